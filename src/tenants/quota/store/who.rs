//! Whose budget a request is on: the accounts that must all let it pass, as the store knows them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::advance::Advance;
use super::script::Stands;
use super::slot::slot;
use crate::tenants::quota::{Account, Limits, SequenceStanding, Standing, TokenStanding};

/// A tenant, or one of its keys with limits of its own. Made with a configuration, used by all
/// cores; what it knows of its standing lives on in the accounts' state.
#[derive(Debug)]
pub struct Who {
    /// The tenant's account and the key's, those of them that limit anything.
    pub(super) accounts: Vec<Arc<Account>>,
    /// Two keys an account.
    pub(super) keys: Vec<String>,
    /// The slot that all of them are in, in a cluster.
    pub(super) slot: u16,
    /// What this gateway has taken ahead.
    pub(super) advance: Arc<Advance>,
}

impl Who {
    /// Whoever is held to these accounts of `tenant`; `None`: nothing limits them.
    pub fn new(tenant: &str, accounts: &[Arc<Account>]) -> Option<Who> {
        let limited = accounts.iter().filter(|account| account.limits().any());
        let accounts: Vec<_> = limited.map(Arc::clone).collect();
        let advance = Arc::clone(accounts.last()?.advance());
        let keys = accounts.iter().flat_map(|account| keys_of(tenant, account.name()));
        let keys = keys.collect();
        Some(Who { accounts, keys, slot: slot_of(tenant), advance })
    }

    /// The limits of each account.
    pub(super) fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.accounts.iter().map(|account| account.limits())
    }

    /// Notes how the accounts stand, as the store has just told.
    pub(super) fn saw(&self, stands: &Stands, now_ms: u64) {
        for (seen, stand) in self.advance.seen.iter().zip(stands) {
            if let Some((spent, flight)) = stand {
                seen.spent.store(*spent, Relaxed);
                seen.flight.store(*flight, Relaxed);
                seen.at_ms.store(now_ms, Relaxed);
            }
        }
    }

    /// How each account stands, by what the store last told and what is taken ahead of it.
    pub fn standings(&self, now_ms: u64) -> impl Iterator<Item = Standing> {
        let (free, used, has) = self.advance.holds();
        let free = u64::try_from(free).unwrap_or(0);
        self.limits().zip(&self.advance.seen).map(move |(limits, seen)| {
            let ms = now_ms.saturating_sub(seen.at_ms.load(Relaxed));
            let tokens = limits.bucket().map(|(rate, limit)| {
                let spent = seen.spent.load(Relaxed).saturating_sub(ms.saturating_mul(rate));
                let left = limit.saturating_sub(spent.div_ceil(1_000)).saturating_add(free);
                let remaining = left.min(limit);
                let missing = limit.saturating_sub(remaining);
                let reset_ms = missing.saturating_mul(1_000).div_ceil(rate.max(1));
                TokenStanding { limit, remaining, reset_ms }
            });
            let sequences = limits.in_flight_max.map(|limit| {
                let ahead = has.saturating_sub(used);
                let taken = seen.flight.load(Relaxed).saturating_sub(ahead);
                SequenceStanding { limit, remaining: limit.saturating_sub(taken) }
            });
            Standing { tokens, sequences }
        })
    }

    /// When so many more sequences may start in an account, by how long answers take.
    pub(super) fn until_free_ms(&self, n: usize, sequences: u64) -> u64 {
        let (Some(account), Some(seen)) = (self.accounts.get(n), self.advance.seen.get(n)) else {
            return 1;
        };
        let taken = seen.flight.load(Relaxed);
        let most = account.limits().in_flight_max.unwrap_or(u64::MAX);
        account.until_free_ms(taken, taken.saturating_add(sequences).saturating_sub(most))
    }

    /// Under which name the accounts know what is taken ahead: a gateway has one for the tenant,
    /// and one for each key with limits of its own.
    pub(super) fn advance_name(&self, gateway: u64) -> String {
        let last = self.keys.last().map_or("", String::as_str);
        format!("g{gateway:016x}.{:016x}", xxhash_rust::xxh3::xxh3_64(last.as_bytes()))
    }

    /// Whether tokens count at all.
    pub(super) fn counts_tokens(&self) -> bool {
        self.limits().any(|limits| limits.bucket().is_some())
    }
}

/// The bucket and the leases of an account. The tenant is the hash tag, so that one script reaches
/// all accounts of a tenant in a cluster too.
pub(super) fn keys_of(tenant: &str, account: &str) -> [String; 2] {
    let (tag, account) = (escaped(tenant), escaped(account));
    ["bucket", "leases"].map(|what| format!("expedite:{{{tag}}}:{account}:{what}"))
}

/// The slot of a tenant's keys.
pub(super) fn slot_of(tenant: &str) -> u16 {
    slot(escaped(tenant).as_bytes())
}

/// Braces would begin or end a hash tag of their own.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}
