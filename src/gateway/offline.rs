//! The same explanation from a saved snapshot of the fleet (`GET /snapshot` of the admin
//! listener), where no gateway runs: the configuration has the tokenizer, the snapshot the lanes.
//!
//! A snapshot does not hold the prefix index, which may have millions of blocks: every lane is
//! priced as if it held nothing of the prompt. Reads files; runs in the command `explain` only.

use std::path::Path;

use serde_json::{Value, json};

use super::explain::{read, shown_candidates, shown_prompt, shown_request};
use super::learned::PoolModel;
use super::prompt::BLOCK_TOKENS_DEFAULT;
use super::view::{Seen, owner_key};
use crate::config::{self, Config};
use crate::openai::{Call, Endpoint};
use crate::prompt::blocks::Root;
use crate::prompt::model::{Ask, Model, of_ids};
use crate::prompt::segments::SegmentCache;
use crate::prompt::work::{Terms, Work};
use crate::prompt::{Basis, Prompt};
use crate::routing::{self, Candidate, Request, Residency};
use crate::runtime::clock;

/// Explains the call in `body`, meant for `path`, by a snapshot.
///
/// # Errors
/// The call, the snapshot or the tokenizer cannot be read, or the snapshot has no such pool; in
/// words for the operator.
pub fn explain_snapshot(
    config: &Config,
    snapshot: &Value,
    path: &str,
    body: &[u8],
) -> Result<Value, String> {
    let (endpoint, call) = read(path, body).map_err(|(_, said)| message(&said))?;
    let settings = pool_of(config, call.model_name(body))?;
    let pools = snapshot.get("pools").and_then(Value::as_array);
    let mut pools = pools.ok_or("this is no snapshot: it has no pools")?.iter();
    let saved = pools.find(|pool| pool.get("name").and_then(Value::as_str) == Some(&settings.name));
    let saved = saved.ok_or_else(|| format!("the snapshot has no pool \"{}\"", settings.name))?;
    let prompt = prompt(settings, saved, (endpoint, &call), body)?;
    let expected = number(saved, "expected_output_tokens");
    let most = call.output_tokens_max().map_or(f64::INFINITY, |most| most as f64);
    let mut request = Request {
        prompt_tokens: prompt.tokens,
        output_tokens: expected.min(most) * call.sequences() as f64,
        output_tokens_max: call.output_tokens_max().unwrap_or(0),
        block_tokens: prompt.block_tokens,
        owner_key: owner_key(&prompt).unwrap_or_default(),
        ..Request::default()
    };
    let model = PoolModel::new(settings);
    model.limit(&mut request);
    let lanes = saved.get("lanes").and_then(Value::as_array);
    let lanes = lanes.ok_or("the snapshot's pool has no lanes")?;
    let candidates: Vec<_> =
        lanes.iter().map(|lane| candidate(lane.get("seen").unwrap_or(&Value::Null))).collect();
    let terms = routing::explain(&request, &Seen::of(&candidates), &model.model());
    let names = |lane: usize| {
        let lane = lanes.get(lane).unwrap_or(&Value::Null);
        let id = lane.get("replica").and_then(Value::as_str).unwrap_or_default();
        let rank = lane.get("rank").and_then(Value::as_u64).and_then(|rank| rank.try_into().ok());
        (id.to_owned(), rank)
    };
    Ok(json!({
        "pool": settings.name,
        "policy": snapshot.get("policy"),
        "at_unix_ms": snapshot.get("at_unix_ms"),
        "note": "from a snapshot, which does not hold the prefix index: nothing counts as cached",
        "prompt": shown_prompt(&prompt),
        "request": shown_request(&request),
        "candidates": shown_candidates(&terms, &candidates, names),
    }))
}

fn message(said: &Value) -> String {
    said.get("error").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The pool that a name means by the configuration alone.
fn pool_of<'c>(config: &'c Config, name: Option<&str>) -> Result<&'c config::Pool, String> {
    if let [one] = config.pools.as_slice() {
        return Ok(one);
    }
    let name = name.ok_or("the call names no model, and there is more than one pool")?;
    let means = |pool: &&config::Pool| {
        pool.name == name
            || pool.model.as_deref() == Some(name)
            || pool.aliases.iter().any(|alias| alias == name)
    };
    config.pools.iter().find(means).ok_or_else(|| {
        format!("no pool of the file is called \"{name}\"; a snapshot knows no adapters")
    })
}

/// The call's prompt: exact with the pool's tokenizer, else by what was learned of its texts.
fn prompt(
    settings: &config::Pool,
    saved: &Value,
    (endpoint, call): (Endpoint, &Call),
    body: &[u8],
) -> Result<Prompt, String> {
    let block_tokens = match number(saved, "block_tokens") as u32 {
        0 => BLOCK_TOKENS_DEFAULT,
        tokens => tokens,
    };
    let template = settings.chat_template.as_deref().map(Path::new);
    let load = |folder: &String| Model::load(Path::new(folder), template);
    let model = settings.tokenizer.as_ref().map(load).transpose()?;
    let unix_s = i64::try_from(clock::unix_ms() / 1000).unwrap_or(0);
    let ask = Ask { endpoint, call, body, unix_s };
    let source = of_ids(&ask).or_else(|| model.as_ref()?.source(&ask).ok());
    let Some(source) = source else {
        let tokens = call.text_bytes as f64 / number(saved, "bytes_per_token").max(0.5);
        return Ok(Prompt {
            tokens: tokens as u64,
            longest: tokens as u64,
            basis: Basis::Estimate,
            hashes: Vec::new(),
            block_tokens: 0,
            cut_to_context: false,
        });
    };
    let blocks = (Root::new(None, None), block_tokens);
    let terms = Terms::new(endpoint, call, settings.context_tokens, blocks);
    let mut work = Work::new(model.as_ref().map(Model::tokenizer), source, terms);
    work.rest(&mut SegmentCache::new(0)).map_err(|error| error.to_string())?;
    Ok(work.finish().0)
}

fn candidate(seen: &Value) -> Candidate {
    let count = |key: &str| seen.get(key).and_then(Value::as_u64).unwrap_or(0);
    let one = |key: &str| seen.get(key).and_then(Value::as_f64).unwrap_or(1.0);
    Candidate {
        eligible: seen.get("eligible").and_then(Value::as_bool).unwrap_or(false),
        key: count("key"),
        cached_tokens: 0,
        pending_tokens: count("pending_tokens"),
        pending_requests: count("pending_requests"),
        decodes: count("decodes"),
        decode_kv_tokens: count("decode_kv_tokens"),
        decode_age_ms: number(seen, "decode_age_ms"),
        requests: count("requests"),
        load_tokens: count("load_tokens"),
        blocks: count("blocks"),
        blocks_used: count("blocks_used"),
        sequences_max: count("sequences_max"),
        prefill_duty: number(seen, "prefill_duty"),
        adapter: Residency::Resident,
        adapters_busy: count("adapters_busy") as u32,
        adapter_slots: count("adapter_slots") as u32,
        slowness: one("slowness"),
        weight: one("weight"),
        ramp: one("ramp"),
    }
}
