//! The accounts of one configuration's tenants, found by whoever has passed the key check.
//!
//! State: one [`Account`] a tenant and one a key with limits of its own, shared by all cores. A
//! reload makes a new table whose accounts go on where those of the same name stood.

use std::collections::HashMap;
use std::sync::Arc;

use super::quota::{Account, Budget, Limits};
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
}

impl Accounts {
    /// The accounts of these tenants; those of `old` go on under what limits they have now.
    pub fn new(tenants: &[Tenant], old: Option<&Accounts>, now_ns: u64) -> Accounts {
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
        let tenants = tenants.iter().map(|tenant| TenantAccounts {
            tenant: account(tenant.id.clone(), &tenant.limits),
            keys: tenant
                .key_limits
                .iter()
                .map(|(digest, limits)| (digest.key_id(), limits))
                .map(|(id, limits)| (id, account(format!("{}/{}", tenant.id, id.as_str()), limits)))
                .collect(),
        });
        Accounts { tenants: tenants.collect() }
    }

    /// What a caller's requests are charged to.
    pub fn budget(&self, caller: TenantRef) -> Budget {
        let Some(of) = self.tenants.get(caller.index) else { return Budget::default() };
        let key = of.keys.iter().find(|(id, _)| *id == caller.key_id);
        let limited = |account: &&Arc<Account>| account.limits().any();
        Budget {
            tenant: Some(&of.tenant).filter(limited).cloned(),
            key: key.map(|(_, account)| account).filter(limited).cloned(),
        }
    }

    /// Each tenant's accounts, in the order of the configuration.
    pub fn tenants(&self) -> &[TenantAccounts] {
        &self.tenants
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
