//! What each tenant has spent and holds, for the status.

use serde_json::{Map, Value, json};

use crate::runtime::clock;
use crate::tenants::Accounts;
use crate::tenants::quota::{Account, Standing};

/// Every tenant with its keys that have limits of their own, in the order of the configuration.
pub(super) fn json(accounts: &Accounts) -> Value {
    let tenants = accounts.tenants().iter().map(|of| {
        let mut standings = of.standings(clock::now_ns()).into_iter();
        let mut next = || standings.next().unwrap_or_default();
        let mut tenant = account_json(&of.tenant, next());
        tenant.insert("id".to_owned(), of.tenant.name().into());
        let keys = of.keys.iter().map(|(id, account)| {
            let mut key = account_json(account, next());
            key.insert("key_id".to_owned(), id.as_str().into());
            Value::Object(key)
        });
        tenant.insert("keys".to_owned(), keys.collect());
        Value::Object(tenant)
    });
    tenants.collect()
}

/// Of an account without limits only these are known: it keeps no books.
fn account_json(account: &Account, standing: Standing) -> Map<String, Value> {
    let (counts, tokens) = (account.counts(), standing.tokens);
    let value = json!({
        "tokens_per_second": account.limits().tokens_per_second,
        "burst_tokens": tokens.map(|tokens| tokens.limit),
        "tokens_left": tokens.map(|tokens| tokens.remaining),
        "tokens_full_in_ms": tokens.map(|tokens| tokens.reset_ms),
        "in_flight_max": account.limits().in_flight_max,
        "in_flight": counts.in_flight,
        "reserved_tokens": counts.reserved_tokens,
        "spent_tokens": counts.spent_tokens,
        "rejects": {
            "tokens": counts.rejected_tokens,
            "concurrency": counts.rejected_concurrency,
            "size": counts.rejected_size,
        },
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
