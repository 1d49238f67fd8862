//! The accounts that one caller's requests are charged to, as one: the tenant's, then the key's.

use std::sync::Arc;

use super::store::Who;
use super::{Account, Ask, Refused, Standing};

/// See the module. A clone shares the accounts.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// The tenant's account, when it has limits.
    pub tenant: Option<Arc<Account>>,
    /// The key's, when it has limits of its own.
    pub key: Option<Arc<Account>>,
    /// The same accounts as a store knows them that gateways share, when there is one.
    pub who: Option<Arc<Who>>,
}

impl Budget {
    /// Nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.tenant.is_none() && self.key.is_none()
    }

    /// The most tokens that a request may ever cost, when tokens are limited.
    pub fn burst_tokens(&self) -> Option<u64> {
        self.accounts()
            .filter_map(|account| account.limits().bucket())
            .map(|(_, burst)| burst)
            .min()
    }

    /// Takes what is asked for from each account, or nothing.
    ///
    /// # Errors
    /// The first account's refusal; its time is that of the account which needs the longest.
    pub fn reserve(&self, now_ns: u64, ask: &Ask) -> Result<(), Refused> {
        for (n, account) in self.accounts().enumerate() {
            let Err(refused) = account.reserve(now_ns, ask) else { continue };
            self.accounts().take(n).for_each(|taken| taken.cancel(ask));
            return Err(self.at_the_soonest(now_ns, ask, refused));
        }
        Ok(())
    }

    /// Ends what [`Budget::reserve`] began, once: see [`Account::settle`].
    pub fn settle(&self, now_ns: u64, ask: &Ask, used: u64) {
        self.accounts().for_each(|account| {
            account.settle(now_ns, ask.tokens, used, ask.sequences);
        });
    }

    /// An answer took this long.
    pub fn answered(&self, took_ms: u64) {
        self.accounts().for_each(|account| account.answered(took_ms));
    }

    /// How it stands now: of tokens and of sequences those of the account that has the fewest left.
    pub fn standing(&self, now_ns: u64) -> Standing {
        if let Some(who) = &self.who {
            return tightest(who.standings(now_ns / 1_000_000));
        }
        tightest(self.accounts().map(|account| account.standing(now_ns)))
    }

    fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.tenant.iter().chain(&self.key)
    }

    /// A caller that waits as long as it is told passes every account, not only the one that
    /// happened to be asked first.
    fn at_the_soonest(&self, now_ns: u64, ask: &Ask, refused: Refused) -> Refused {
        let tokens_ms = self.accounts().map(|a| a.until_ms(now_ns, ask.tokens)).max().unwrap_or(0);
        match refused {
            Refused::Tokens { retry_after_ms } => {
                Refused::Tokens { retry_after_ms: retry_after_ms.max(tokens_ms) }
            }
            Refused::Concurrency { retry_after_ms } => {
                Refused::Concurrency { retry_after_ms: retry_after_ms.max(tokens_ms) }
            }
            larger => larger,
        }
    }
}

/// Of tokens and of sequences those with the fewest left.
fn tightest(standings: impl Iterator<Item = Standing>) -> Standing {
    let mut tightest = Standing::default();
    for Standing { tokens, sequences } in standings {
        let fewest = [tightest.tokens, tokens].into_iter().flatten();
        tightest.tokens = fewest.min_by_key(|standing| standing.remaining);
        let fewest = [tightest.sequences, sequences].into_iter().flatten();
        tightest.sequences = fewest.min_by_key(|standing| standing.remaining);
    }
    tightest
}
