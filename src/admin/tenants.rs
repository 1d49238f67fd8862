//! What each tenant has spent and holds, for the status.

use serde::Serialize;

use crate::runtime::clock;
use crate::tenants::Accounts;
use crate::tenants::quota::{Account, Standing};

/// A tenant with its keys that have limits of their own.
#[derive(Serialize)]
pub(super) struct Tenant<'a> {
    #[serde(flatten)]
    account: Books,
    id: &'a str,
    keys: Vec<Key<'a>>,
}

#[derive(Serialize)]
struct Key<'a> {
    #[serde(flatten)]
    account: Books,
    key_id: &'a str,
}

/// Of an account; of one without limits only these are known: it keeps no books.
#[derive(Serialize)]
struct Books {
    tokens_per_second: Option<u64>,
    burst_tokens: Option<u64>,
    tokens_left: Option<u64>,
    tokens_full_in_ms: Option<u64>,
    in_flight_max: Option<u64>,
    in_flight: u64,
    reserved_tokens: u64,
    spent_tokens: u64,
    rejects: Rejects,
}

#[derive(Serialize)]
struct Rejects {
    tokens: u64,
    concurrency: u64,
    size: u64,
}

/// Every tenant, in the order of the configuration.
pub(super) fn all(accounts: &Accounts) -> Vec<Tenant<'_>> {
    let now_ns = clock::now_ns();
    let tenants = accounts.tenants().iter().map(|of| {
        let mut standings = of.standings(now_ns).into_iter();
        let mut next = || standings.next().unwrap_or_default();
        let account = books(&of.tenant, next());
        let keys = of.keys.iter().map(|(id, account)| {
            let account = books(account, next());
            Key { account, key_id: id.as_str() }
        });
        Tenant { account, id: of.tenant.name(), keys: keys.collect() }
    });
    tenants.collect()
}

fn books(account: &Account, standing: Standing) -> Books {
    let (counts, tokens) = (account.counts(), standing.tokens);
    Books {
        tokens_per_second: account.limits().tokens_per_second,
        burst_tokens: tokens.map(|tokens| tokens.limit),
        tokens_left: tokens.map(|tokens| tokens.remaining),
        tokens_full_in_ms: tokens.map(|tokens| tokens.reset_ms),
        in_flight_max: account.limits().in_flight_max,
        in_flight: counts.in_flight,
        reserved_tokens: counts.reserved_tokens,
        spent_tokens: counts.spent_tokens,
        rejects: Rejects {
            tokens: counts.rejected_tokens,
            concurrency: counts.rejected_concurrency,
            size: counts.rejected_size,
        },
    }
}
