//! Why a request goes where it goes: a call read, counted and priced as a core would, without
//! sending it; the cores' last decisions; the fleet as it is, to be looked at later.
//!
//! Runs beside the cores, on the control thread's blocking threads or in the command `explain`. It
//! changes nothing: no entry in the ledger, none in the index.

use serde_json::{Value, json};

use super::prompt::{self, Asked};
use super::shared::{Published, Shared};
use super::view::{self, Asks, Scratch, Seen};
use crate::openai::{self, Call, Endpoint, Method, read_call};
use crate::prompt::Prompt;
use crate::prompt::blocks::BlockHash;
use crate::replicas::adapters::adapter_hash;
use crate::replicas::{Lane, Pool, Served, Unresolved};
use crate::routing::{self, Candidate, Explained, Request};
use crate::runtime::clock;

/// Prompt blocks whose hashes are shown; of a longer prompt the first and the last.
const HASHES_SHOWN: usize = 64;

/// Nobody's answers: the lengths of all tenants stand in for them.
const NO_TENANT: u64 = u64::MAX;

/// An answer of the admin listener: its status, and what it says.
pub(super) type Said = (u16, Value);

fn wrong(status: u16, what: &str) -> Said {
    (status, json!({ "error": what }))
}

/// Explains the call in `body`, meant for `path`, as if a tenant had sent it.
pub(super) fn call(shared: &Shared, (path, tenant): (&str, Option<&str>), body: &[u8]) -> Said {
    let published = shared.published.load();
    match explained(shared, &published, (path, tenant), body) {
        Ok(value) => (200, value),
        Err(said) => said,
    }
}

fn explained(
    shared: &Shared,
    published: &Published,
    (path, tenant): (&str, Option<&str>),
    body: &[u8],
) -> Result<Value, Said> {
    let index = |id| published.tenant_index(id).ok_or_else(|| wrong(404, "no such tenant"));
    let tenant = tenant.map(index).transpose()?;
    let (endpoint, call) = read(path, body)?;
    let name = call.model_name(body);
    let served = published.fleet.resolve(name).map_err(|why| match why {
        Unresolved::Unknown => wrong(404, "no pool serves that model"),
        Unresolved::NotLearned => wrong(503, "no replica has told its models yet"),
        Unresolved::NoName => wrong(400, "the call names no model, and there is more than one"),
    })?;
    let parts = (published.fleet.pools.get(served.pool), published.learned.get(served.pool));
    let (Some(pool), Some(learned)) = parts else { return Err(wrong(503, "no such pool")) };
    let own = call.cache_salt(body).ok().flatten();
    let salt = tenant.and_then(|tenant| published.salt(tenant, own.as_deref()));
    let asked = Asked { endpoint, call: &call, served, pool, salt: salt.as_deref() };
    let prompt = prompt::at_once(&asked, body);
    let asks = Asks {
        pool,
        served,
        learned,
        prompt: Some(&prompt),
        adapter: served.adapter.as_deref().map(adapter_hash),
        tried: &[],
        stale_ms: published.config.admission.stale_ms,
        now_ms: clock::now_ms(),
    };
    let mut scratch = Scratch::default();
    let seen = scratch.look(&asks);
    // Of no tenant: what its answers were like is not known here.
    let expected = learned.pool.expected_tokens(call.output_tokens_max(), NO_TENANT);
    let mut request = Request {
        prompt_tokens: prompt.tokens,
        output_tokens: expected * call.sequences() as f64,
        output_tokens_max: call.output_tokens_max().unwrap_or(0),
        block_tokens: prompt.block_tokens,
        adapter: asks.adapter.is_some(),
        owner_key: view::owner_key(&prompt).unwrap_or_default(),
        ..Request::default()
    };
    learned.pool.limit(&mut request);
    let terms = routing::explain(&request, &seen, &learned.pool.model());
    let names = |lane: usize| pool.lanes.get(lane).map(name_of).unwrap_or_default();
    Ok(json!({
        "pool": &*pool.name,
        "model": &*served.upstream,
        "adapter": served.adapter.as_deref(),
        "policy": published.policy.name(),
        "gateway": { "cores": shared.shards.len() },
        "prompt": shown_prompt(&prompt),
        "request": shown_request(&request),
        "candidates": shown_candidates(&terms, scratch.candidates(), names),
    }))
}

pub(super) fn read(path: &str, body: &[u8]) -> Result<(Endpoint, Call), Said> {
    let endpoint = openai::route(Method::Post, path.as_bytes());
    let endpoint = endpoint.ok().filter(|e| !e.multipart());
    let endpoint = endpoint.ok_or_else(|| wrong(400, "path is not that of a call in JSON"))?;
    let call = read_call(endpoint, body).map_err(|error| wrong(400, &error.to_string()))?;
    Ok((endpoint, call))
}

/// Id of a lane's replica, and its rank.
fn name_of(lane: &Lane) -> (String, Option<u32>) {
    (lane.replica.id.to_string(), lane.rank)
}

fn hash(hash: &BlockHash) -> String {
    format!("{hash:032x}")
}

pub(super) fn shown_prompt(prompt: &Prompt) -> Value {
    let all = &prompt.hashes;
    let half = HASHES_SHOWN / 2;
    let shown: Vec<_> = match (all.get(..half), all.get(all.len().saturating_sub(half)..)) {
        (Some(first), Some(last)) if all.len() > HASHES_SHOWN => {
            first.iter().chain(last).map(hash).collect()
        }
        _ => all.iter().map(hash).collect(),
    };
    json!({
        "tokens": prompt.tokens,
        "basis": prompt.basis.name(),
        "block_tokens": prompt.block_tokens,
        "blocks": all.len(),
        "hashes": shown,
    })
}

pub(super) fn shown_request(request: &Request) -> Value {
    json!({
        "prompt_tokens": request.prompt_tokens,
        "expected_output_tokens": request.output_tokens.round(),
        "ttft_limit_ms": request.ttft_limit_ms,
        "tpot_limit_ms": request.tpot_limit_ms,
        "owner_key": format!("{:016x}", request.owner_key),
    })
}

/// Candidates with the terms of their costs, the cheapest first, those that may not at the end.
pub(super) fn shown_candidates(
    terms: &[Explained],
    candidates: &[Candidate],
    name: impl Fn(usize) -> (String, Option<u32>),
) -> Value {
    let mut sorted: Vec<_> = terms.iter().collect();
    sorted.sort_by(|a, b| {
        let may = a.infeasible.is_some().cmp(&b.infeasible.is_some());
        may.then(a.cost.total_cmp(&b.cost))
    });
    let shown = sorted.into_iter().map(|it| {
        let (replica, rank) = name(it.replica);
        json!({
            "replica": replica,
            "rank": rank,
            "infeasible": it.infeasible,
            "cost": it.cost,
            "cached_tokens": it.cached_tokens,
            "ttft_ms": it.ttft_ms,
            "tpot_ms": it.tpot_ms,
            "prefill_ms": it.prefill_ms,
            "terms": shown_terms(it),
            "seen": candidates.get(it.replica).map(shown_candidate),
        })
    });
    shown.collect()
}

fn shown_candidate(seen: &Candidate) -> Value {
    json!({
        "eligible": seen.eligible,
        "key": seen.key,
        "pending_tokens": seen.pending_tokens,
        "pending_requests": seen.pending_requests,
        "decodes": seen.decodes,
        "decode_kv_tokens": seen.decode_kv_tokens,
        "decode_age_ms": seen.decode_age_ms,
        "requests": seen.requests,
        "load_tokens": seen.load_tokens,
        "blocks": seen.blocks,
        "blocks_used": seen.blocks_used,
        "sequences_max": seen.sequences_max,
        "prefill_duty": seen.prefill_duty,
        "adapter": match seen.adapter {
            routing::Residency::Resident => "resident",
            routing::Residency::Loadable => "loadable",
            routing::Residency::Absent => "absent",
        },
        "adapters_busy": seen.adapters_busy,
        "adapter_slots": seen.adapter_slots,
        "slowness": seen.slowness,
        "weight": seen.weight,
        "ramp": seen.ramp,
    })
}

/// The cores' last decisions, the newest first, and how many could not be kept. With `last`, only
/// so many of them and without their candidates: these are long where replicas are many.
pub(super) fn decisions(shared: &Shared, last: Option<usize>) -> Value {
    let published = shared.published.load();
    let mut left_out = 0_u64;
    let mut all = Vec::new();
    for (core, kept) in shared.decisions.iter().enumerate() {
        let (entries, lost) = kept.copy(last);
        left_out = left_out.saturating_add(lost);
        all.extend(entries.into_iter().map(|entry| (core, entry)));
    }
    all.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.at_unix_ms));
    all.truncate(last.unwrap_or(usize::MAX));
    let shown = all.iter().map(|(core, entry)| {
        let names = |lane: usize| entry.pool.lanes.get(lane).map(name_of).unwrap_or_default();
        let pick = &entry.pick;
        let (replica, rank) = names(pick.replica);
        let terms = whole(&published, entry);
        let why = terms.iter().flatten().find(|it| it.replica == pick.replica);
        let runners_up = pick.runners_up.iter().flatten().map(|(lane, cost)| {
            let (replica, rank) = names(*lane);
            json!({ "replica": replica, "rank": rank, "cost": cost })
        });
        json!({
            "request_id": entry.id.as_str(),
            "at_unix_ms": entry.at_unix_ms,
            "core": core,
            "pool": &*entry.pool.name,
            "policy": entry.policy.name(),
            "attempt": entry.attempt,
            "request": shown_request(&entry.request),
            "replica": replica,
            "rank": rank,
            "cached_tokens": pick.cached_tokens,
            "predicted_ttft_ms": pick.ttft_ms,
            "predicted_tpot_ms": pick.tpot_ms,
            "prefill_ms": pick.prefill_ms,
            "cost": pick.cost,
            "ttft_ms": entry.ttft_ms,
            "route_us": entry.route_ns as f64 / 1e3,
            "runners_up": runners_up.collect::<Vec<_>>(),
            "terms": why.map(shown_terms),
            "candidates": terms.as_deref().filter(|_| last.is_none()).map(|terms| {
                shown_candidates(terms, &entry.candidates, names)
            }),
        })
    });
    json!({ "decisions": shown.collect::<Vec<_>>(), "left_out": left_out })
}

/// The candidates of a decision that was kept whole, priced by today's model.
fn whole(published: &Published, entry: &super::decisions::Entry) -> Option<Vec<Explained>> {
    if entry.candidates.is_empty() {
        return None;
    }
    let mut pools = published.fleet.pools.iter().zip(&published.learned);
    let same = |pool: &Pool| std::sync::Arc::ptr_eq(&pool.state, &entry.pool.state);
    let (_, learned) = pools.find(|(pool, _)| same(pool))?;
    let seen = Seen::of(&entry.candidates);
    Some(routing::explain(&entry.request, &seen, &learned.pool.model()))
}

/// What a cost is made of, by name.
fn shown_terms(it: &Explained) -> Value {
    Value::Object(it.terms.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect())
}

/// The fleet as it is: what an explanation needs later, when the gateway has gone on.
pub(super) fn snapshot(shared: &Shared) -> Value {
    let published = shared.published.load();
    let pools = published.fleet.pools.iter().zip(&published.learned);
    let pools = pools.enumerate().map(|(index, (pool, learned))| {
        let everyone = Served {
            pool: index,
            upstream: "".into(),
            adapter: None,
            holders: None,
            loads_from: None,
            context_tokens: None,
        };
        let asks = Asks {
            pool,
            served: &everyone,
            learned,
            prompt: None,
            adapter: None,
            tried: &[],
            stale_ms: published.config.admission.stale_ms,
            now_ms: clock::now_ms(),
        };
        let mut scratch = Scratch::default();
        scratch.look(&asks);
        let lanes = pool.lanes.iter().zip(scratch.candidates()).map(|(lane, seen)| {
            let (replica, rank) = name_of(lane);
            json!({ "replica": replica, "rank": rank, "seen": shown_candidate(seen) })
        });
        let (ttft, tpot) = learned.pool.scale();
        json!({
            "name": &*pool.name,
            "block_tokens": pool.block_tokens(),
            "bytes_per_token": pool.state.prompts.bytes_a_token(),
            "expected_output_tokens": learned.pool.expected_tokens(None, NO_TENANT).round(),
            "observed_over_predicted": { "ttft": ttft, "tpot": tpot },
            "index_blocks": pool.state.index.blocks(),
            "lanes": lanes.collect::<Vec<_>>(),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "at_unix_ms": clock::unix_ms(),
        "policy": published.policy.name(),
        "note": "what each replica holds (the prefix index) is not part of a snapshot",
        "pools": pools.collect::<Vec<_>>(),
    })
}
