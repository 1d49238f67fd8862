//! `[[tenant]]` and `[tier.NAME]`.

use super::pool::check_name;
use super::reader::Table;
use super::secret::KeyDigest;
use super::types::*;

/// The tier of a tenant that names none.
pub(super) const DEFAULT_TIER: &str = "default";

/// Sanity bounds; a large fleet serves about a million tokens a second.
const TOKENS_PER_SECOND_MAX: u64 = 1_000_000_000;
const BURST_TOKENS_MAX: u64 = 1_000_000_000_000;
const IN_FLIGHT_MAX: u64 = 1_000_000;

pub(super) fn tenant(mut table: Table<'_, '_>) -> Tenant {
    let id = table.opt_text("id", "missing");
    match &id {
        Some(text) => check_name(&mut table, "id", text),
        None => table.error(table.line, "id is missing in [[tenant]]"),
    }
    let keys = keys(&mut table);
    let tenant = Tenant {
        id: id.map(|text| text.text).unwrap_or_default(),
        keys,
        tier: table.text_or("tier", DEFAULT_TIER).text,
        tokens_per_second: table.opt_number(
            "tokens_per_second",
            1..=TOKENS_PER_SECOND_MAX,
            "tokens per second",
            "unlimited",
        ),
        burst_tokens: table.opt_number(
            "burst_tokens",
            1..=BURST_TOKENS_MAX,
            "tokens",
            "unlimited, or ten seconds of tokens_per_second",
        ),
        in_flight_max: table.opt_number(
            "in_flight_max",
            1..=IN_FLIGHT_MAX,
            "requests",
            "unlimited",
        ),
        pools: table.texts_or("pools", &["*"]).into_iter().map(|text| text.text).collect(),
        may_choose_policy: table.flag("may_choose_policy", false),
    };
    table.finish();
    tenant
}

/// Digests only: a key itself has no place in a file. Messages never repeat what was given.
fn keys(table: &mut Table<'_, '_>) -> Vec<KeyDigest> {
    let Some(texts) = table.texts("keys") else {
        let what = "keys is missing in [[tenant]]; `expedite key NAME` makes one";
        table.error(table.line, what);
        return Vec::new();
    };
    let (mut digests, mut origins) = (Vec::new(), Vec::new());
    for (n, text) in texts.into_iter().enumerate() {
        match KeyDigest::parse(&text.text) {
            Some(digest) => {
                digests.push(digest);
                origins.push(text.origin);
            }
            None => {
                let what = format!(
                    "key {} of [[tenant]] must be \"sha256:\" and 64 hex digits; \
                     `expedite key NAME` makes one",
                    n + 1
                );
                table.error(text.origin.line(), what);
            }
        }
    }
    let shown = digests.iter().map(|digest| format!("sha256:{}***", digest.key_id().as_str()));
    table.note_list("keys", shown.map(Into::into).collect(), origins);
    digests
}

pub(super) fn tier(name: &str, mut table: Table<'_, '_>) -> Tier {
    let tier = Tier {
        name: name.to_owned(),
        weight: table.float("weight", 1.0, 0.001..=1_000_000.0, "relative to other tiers"),
        priority: table.number("priority", 0, 0..=100, "(lower is first)"),
        deadline_ms: table.number("deadline_ms", 0, 0..=86_400_000, "milliseconds (0 = none)"),
    };
    table.finish();
    tier
}
