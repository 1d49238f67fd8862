//! `[[tenant]]` and `[tier.NAME]`.

use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::effective::Origin;
use super::pool::check_name;
use super::reader::{Table, Text, spans};
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
    let (keys, key_limits) = keys(&mut table);
    let limits = limits(&mut table);
    let tenant = Tenant {
        id: id.map(|text| text.text).unwrap_or_default(),
        keys,
        tier: table.text_or("tier", DEFAULT_TIER).text,
        limits,
        key_limits,
        pools: table.texts_or("pools", &["*"]).into_iter().map(|text| text.text).collect(),
        may_choose_policy: table.flag("may_choose_policy", false),
        trust_group: trust_group(&mut table),
    };
    table.finish();
    tenant
}

/// The limits of a tenant or of one of its keys.
fn limits(table: &mut Table<'_, '_>) -> TenantLimits {
    let limits = TenantLimits {
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
            "ten seconds of tokens_per_second",
        ),
        in_flight_max: table.opt_number(
            "in_flight_max",
            1..=IN_FLIGHT_MAX,
            "sequences",
            "unlimited",
        ),
    };
    if limits.burst_tokens.is_some() && limits.tokens_per_second.is_none() {
        // A bucket that nothing fills would be empty for ever after its first use.
        let line = table.line_of("burst_tokens");
        table.error(line, "burst_tokens needs tokens_per_second, which fills the bucket again");
    }
    limits
}

/// What is read of a tenant's keys: their digests, as shown, and the limits of some.
#[derive(Default)]
struct Keys {
    digests: Vec<KeyDigest>,
    limits: Vec<(KeyDigest, TenantLimits)>,
    shown: Vec<Value>,
    origins: Vec<Origin>,
}

fn trust_group(table: &mut Table<'_, '_>) -> Option<String> {
    let group = table.opt_text("trust_group", "the tenant alone");
    if let Some(text) = &group {
        check_name(table, "trust_group", text);
    }
    group.map(|text| text.text)
}

/// Digests only: a key itself has no place in a file. Messages never repeat what was given.
fn keys(table: &mut Table<'_, '_>) -> (Vec<KeyDigest>, Vec<(KeyDigest, TenantLimits)>) {
    let mut keys = Keys::default();
    let Some((raw, line)) = table.get("keys") else {
        let what = "keys is missing in [[tenant]]; `expedite key NAME` makes one";
        table.error(table.line, what);
        return (keys.digests, keys.limits);
    };
    if !raw.is_array() {
        table.error(line, "keys in [[tenant]] must be a list of keys or { key = ... } tables");
    }
    for (n, item) in spans(raw).iter().enumerate() {
        let line = table.reader.line_at(item.span().start);
        let read = match item.get_ref() {
            DeValue::String(text) => {
                let text = table.reader.substitute(text, line);
                Some((text, TenantLimits::default()))
            }
            DeValue::Table(fields) => key_table(table, fields, line),
            other => {
                let got = other.type_str();
                table.error(line, format!("a key must be a string or a table, not of type {got}"));
                None
            }
        };
        let Some((text, limits)) = read else { continue };
        let Some(digest) = KeyDigest::parse(&text.text) else {
            let what = format!(
                "key {} of [[tenant]] must be \"sha256:\" and 64 hex digits; \
                 `expedite key NAME` makes one",
                n + 1
            );
            table.error(text.origin.line(), what);
            continue;
        };
        keys.add(digest, limits, text.origin);
    }
    table.note_list("keys", keys.shown, keys.origins);
    (keys.digests, keys.limits)
}

/// `{ key = "sha256:...", tokens_per_second = ... }`.
fn key_table<'a>(
    table: &mut Table<'_, 'a>,
    fields: &'a DeTable<'a>,
    line: u32,
) -> Option<(Text, TenantLimits)> {
    table.detached("keys of [[tenant]]", line, fields, |inner| {
        let (key, limits) = (inner.text("key"), limits(inner));
        if key.is_none() {
            inner.error(line, "key is missing in keys of [[tenant]]");
        }
        key.map(|key| (key, limits))
    })
}

impl Keys {
    fn add(&mut self, digest: KeyDigest, limits: TenantLimits, origin: Origin) {
        let masked = format!("sha256:{}***", digest.key_id().as_str());
        let mut shown = json!({ "key": masked });
        for (name, limit) in [
            ("tokens_per_second", limits.tokens_per_second),
            ("burst_tokens", limits.burst_tokens),
            ("in_flight_max", limits.in_flight_max),
        ] {
            if let Some(limit) = limit {
                shown[name] = limit.into();
            }
        }
        self.digests.push(digest);
        self.origins.push(origin);
        if limits == TenantLimits::default() {
            self.shown.push(masked.into());
            return;
        }
        self.limits.push((digest, limits));
        self.shown.push(shown);
    }
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
