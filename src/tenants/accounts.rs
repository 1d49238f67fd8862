//! The accounts of one configuration's tenants, found by whoever has passed the key check.
//!
//! State: one [`Account`] a tenant and one a key with limits of its own, shared by all cores. A
//! reload makes a new table whose accounts go on where those of the same name stood.

use std::collections::HashMap;
use std::sync::Arc;

use super::quota::store::Who;
use super::quota::{Account, Budget, Limits, Standing};
use super::{KeyId, TenantRef};
use crate::config::{Tenant, TenantLimits};

/// See the module.
#[derive(Debug, Default)]
pub struct Accounts {
    tenants: Vec<TenantAccounts>,
}

/// A tenant's account, which is there without limits too, and those of its keys.
#[derive(Debug)]
pub struct TenantAccounts {
    /// Of all its keys together.
    pub tenant: Arc<Account>,
    /// Of keys with limits of their own.
    pub keys: Vec<(KeyId, Arc<Account>)>,
    /// As a store that gateways share knows them: the tenant alone, then with each of the keys.
    who: Vec<Option<Arc<Who>>>,
}

impl TenantAccounts {
    /// How the tenant stands, then each of the keys with limits of their own.
    pub fn standings(&self, now_ns: u64) -> Vec<Standing> {
        let accounts = [&self.tenant].into_iter().chain(self.keys.iter().map(|(_, key)| key));
        let known = self.who.iter().zip(accounts).map(|(who, account)| match who {
            Some(who) => who.standings(now_ns / 1_000_000).last().unwrap_or_default(),
            None => account.standing(now_ns),
        });
        known.collect()
    }
}

impl Accounts {
    /// The accounts of these tenants; those of `old` go on under what limits they have now.
    /// `shared`: a store decides that other gateways ask too.
    pub fn new(tenants: &[Tenant], shared: bool, old: Option<&Accounts>, now_ns: u64) -> Accounts {
        let known: HashMap<&str, &Arc<Account>> =
            old.into_iter().flat_map(Accounts::all).map(|a| (a.name(), a)).collect();
        let account = |name: String, limits: &TenantLimits| {
            let limits = of_config(limits);
            match known.get(name.as_str()) {
                Some(same) if *same.limits() == limits => Arc::clone(same),
                Some(other) => Arc::new(other.renewed(limits, now_ns)),
                None => Arc::new(Account::new(&name, limits, now_ns)),
            }
        };
        let tenants = tenants.iter().map(|tenant| {
            let of_tenant = account(tenant.id.clone(), &tenant.limits);
            let keys = tenant.key_limits.iter().map(|(digest, limits)| {
                let id = digest.key_id();
                (id, account(format!("{}/{}", tenant.id, id.as_str()), limits))
            });
            let keys: Vec<_> = keys.collect();
            let of_key = keys.iter().map(|(_, key)| vec![Arc::clone(&of_tenant), Arc::clone(key)]);
            let who = [vec![Arc::clone(&of_tenant)]].into_iter().chain(of_key);
            let who = who.map(|of| Who::new(&tenant.id, &of).filter(|_| shared).map(Arc::new));
            TenantAccounts { who: who.collect(), tenant: of_tenant, keys }
        });
        Accounts { tenants: tenants.collect() }
    }

    /// What a caller's requests are charged to.
    pub fn budget(&self, caller: TenantRef) -> Budget {
        let Some(of) = self.tenants.get(caller.index) else { return Budget::default() };
        let key = of.keys.iter().position(|(id, _)| *id == caller.key_id);
        let who = of.who.get(key.map_or(0, |n| n.saturating_add(1))).cloned().flatten();
        let key = key.and_then(|n| of.keys.get(n));
        let limited = |account: &&Arc<Account>| account.limits().any();
        Budget {
            tenant: Some(&of.tenant).filter(limited).cloned(),
            key: key.map(|(_, account)| account).filter(limited).cloned(),
            who,
        }
    }

    /// Each tenant's accounts, in the order of the configuration.
    pub fn tenants(&self) -> &[TenantAccounts] {
        &self.tenants
    }

    /// By account, what its bucket lacks: for the process that takes over. Nothing where a store
    /// keeps it.
    pub fn spent_here(&self, now_ns: u64) -> HashMap<String, u64> {
        let lacking = |account: &Arc<Account>| {
            let tokens = account.standing(now_ns).tokens?;
            let lacks = tokens.limit.saturating_sub(tokens.remaining);
            (lacks > 0).then(|| (account.name().to_owned(), lacks))
        };
        if self.tenants.iter().any(|tenant| tenant.who.iter().any(Option::is_some)) {
            return HashMap::new();
        }
        self.all().filter_map(lacking).collect()
    }

    /// Takes what the process before had spent, of accounts that are here too.
    pub fn spent_elsewhere(&self, spent: &HashMap<String, u64>, now_ns: u64) {
        for account in self.all() {
            if let Some(&tokens) = spent.get(account.name()) {
                account.overdraw(now_ns, tokens);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Account>> {
        let tenants = self.tenants.iter().map(|of| &of.tenant);
        let keys = self.tenants.iter().flat_map(|of| &of.keys);
        tenants.chain(keys.map(|(_, account)| account))
    }
}

fn of_config(limits: &TenantLimits) -> Limits {
    let TenantLimits { tokens_per_second, burst_tokens, in_flight_max } = *limits;
    Limits { tokens_per_second, burst_tokens, in_flight_max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyDigest;
    use crate::tenants::quota::Ask;

    fn tenant(id: &str, rate: Option<u64>, keys: &[(&[u8], u64)]) -> Tenant {
        let of_rate = |rate| TenantLimits { tokens_per_second: rate, ..TenantLimits::default() };
        let keys = keys.iter().map(|(key, rate)| (KeyDigest::of(key), of_rate(Some(*rate))));
        Tenant {
            id: id.to_owned(),
            limits: of_rate(rate),
            key_limits: keys.collect(),
            ..Tenant::default()
        }
    }

    fn budget(accounts: &Accounts, index: usize, key: &[u8]) -> Budget {
        accounts.budget(TenantRef { index, key_id: KeyDigest::of(key).key_id() })
    }

    #[test]
    fn a_caller_is_charged_by_tenant_and_by_key() {
        let tenants = [tenant("a", Some(10), &[(b"x", 1)]), tenant("b", None, &[(b"y", 2)])];
        let accounts = Accounts::new(&tenants, false, None, 0);
        let names = |index, key| {
            let Budget { tenant, key, .. } = budget(&accounts, index, key);
            [tenant, key].map(|account| account.map(|account| account.name().to_owned()))
        };
        let key_id = |key| KeyDigest::of(key).key_id();
        let [x, y] = [("a", b"x"), ("b", b"y")].map(|(t, k)| format!("{t}/{}", key_id(k).as_str()));
        assert_eq!(names(0, b"x"), [Some("a".to_owned()), Some(x)]);
        assert_eq!(names(0, b"y"), [Some("a".to_owned()), None]);
        assert_eq!(names(1, b"y"), [None, Some(y)]);
        assert!(budget(&accounts, 1, b"x").is_unlimited());
        assert!(budget(&accounts, 2, b"x").is_unlimited(), "the open tenant");
    }

    #[test]
    fn a_reload_keeps_the_books_of_who_stays_whatever_the_order() {
        let tokens = |accounts: &Accounts, index| {
            let tenant = budget(accounts, index, b"-").tenant.expect("limited");
            tenant.standing(0).tokens.map(|tokens| (tokens.limit, tokens.remaining))
        };
        let old = Accounts::new(
            &[tenant("a", Some(10), &[]), tenant("b", Some(10), &[])],
            false,
            None,
            0,
        );
        let ask = Ask { id: 1, tokens: 60, sequences: 1 };
        budget(&old, 0, b"-").reserve(0, &ask).expect("room");
        let tenants = [tenant("c", Some(10), &[]), tenant("a", Some(20), &[])];
        let new = Accounts::new(&tenants, false, Some(&old), 0);
        assert_eq!(tokens(&new, 0), Some((100, 100)));
        assert_eq!(tokens(&new, 1), Some((200, 140)), "spent stays spent");
        // What began before ends in the same books.
        budget(&old, 0, b"-").settle(0, &ask, 10);
        assert_eq!(tokens(&new, 1), Some((200, 190)));
        // Unlimited for a while, and limited again.
        let free = Accounts::new(&[tenant("a", None, &[])], false, Some(&new), 0);
        assert!(budget(&free, 0, b"-").is_unlimited());
        let again = Accounts::new(&[tenant("a", Some(10), &[])], false, Some(&free), 0);
        assert_eq!(tokens(&again, 0), Some((100, 100)));
    }

    #[test]
    fn a_successor_takes_what_was_spent_and_no_more_than_there_is() {
        let tenants = [tenant("a", Some(10), &[(b"x", 5)]), tenant("b", Some(10), &[])];
        let (old, new) =
            (Accounts::new(&tenants, false, None, 0), Accounts::new(&tenants, false, None, 0));
        budget(&old, 0, b"x").reserve(0, &Ask { id: 1, tokens: 40, sequences: 1 }).expect("room");
        let spent = old.spent_here(0);
        let key = format!("a/{}", KeyDigest::of(b"x").key_id().as_str());
        assert_eq!(spent, HashMap::from([("a".to_owned(), 40), (key, 40)]));
        // It serves already when it hears of it.
        budget(&new, 0, b"-").reserve(0, &Ask { id: 1, tokens: 70, sequences: 1 }).expect("room");
        new.spent_elsewhere(&spent, 0);
        let left = |index, key| budget(&new, index, key).standing(0).tokens.map(|t| t.remaining);
        assert_eq!((left(0, b"-"), left(0, b"x"), left(1, b"-")), (Some(0), Some(0), Some(100)));
        let shared = Accounts::new(&tenants, true, None, 0);
        assert!(shared.spent_here(0).is_empty(), "the store has it");
    }
}
