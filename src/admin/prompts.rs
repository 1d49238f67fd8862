//! The part of the metrics page that tells how prompts are counted.

use super::exposition::Page;
use super::server::View;
use crate::runtime::cells::Gauge;

/// How a pool's prompts can be counted: each is a value of `expedite_prompt_mode`'s label.
const MODES: [&str; 3] = ["exact", "estimate", "fell_back"];

pub(super) fn prompts(page: &mut Page, view: &View) {
    let fleet = (view.fleet)();
    let checks = "expedite_prompt_checks_total";
    page.family(checks, "counter", "Exact prompt counts against those of the engine.");
    for pool in &fleet.pools {
        let (same, differs) = pool.state.prompts.checked();
        for (result, n) in [("same", same), ("differs", differs)] {
            page.value(checks, &[("pool", &pool.name), ("result", result)], n);
        }
    }
    let mode = "expedite_prompt_mode";
    page.family(mode, "gauge", "1 for the way in which the pool's prompts are counted.");
    for pool in &fleet.pools {
        for known in MODES {
            let on = u8::from(known == pool.prompt_mode());
            page.value(mode, &[("pool", &pool.name), ("mode", known)], on);
        }
    }
    let ratio = "expedite_prompt_bytes_per_token";
    page.family(ratio, "gauge", "Bytes of text a token takes, for estimates.");
    for pool in &fleet.pools {
        page.value(ratio, &[("pool", &pool.name)], pool.state.prompts.bytes_a_token());
    }
    let bytes = "expedite_tokenizer_bytes";
    page.family(bytes, "gauge", "Bytes of the tables of the pool's tokenizer, estimated.");
    for pool in &fleet.pools {
        page.value(bytes, &[("pool", &pool.name)], pool.tokenizer_bytes());
    }
    let parts = "expedite_prompt_parts_total";
    page.family(parts, "counter", "Parts of prompts that a core had encoded before, or had not.");
    for (result, at) in [("known", 0), ("new", 1)] {
        let sum = view.shards.iter().filter_map(|shard| shard.parts.get(at));
        page.value(parts, &[("result", result)], sum.map(Gauge::get).sum::<i64>());
    }
    let kept = "expedite_prompt_parts_bytes";
    page.family(kept, "gauge", "Bytes that the cores keep of parts of prompts.");
    page.value(kept, &[], view.shards.iter().map(|shard| shard.part_bytes.get()).sum::<i64>());
    let blocks = "expedite_block_tokens";
    page.family(blocks, "gauge", "Tokens in a block of the KV cache; 0 = not known.");
    for pool in &fleet.pools {
        page.value(blocks, &[("pool", &pool.name)], pool.block_tokens());
    }
}
