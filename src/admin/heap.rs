//! `/debug/heap`: memory by who has it, as far as it is known: the allocator, the system, and the
//! indexes of prefixes, which are the one part that grows with traffic by design.

use serde_json::{Value, json};

use super::process::kilobytes;
use super::server::View;
use crate::net::heap;

/// All of it, in bytes; `null` where another system tells nothing.
pub(super) fn json(view: &View) -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |line| kilobytes(&status, line).map(|n| n.saturating_mul(1024));
    let fleet = (view.fleet)();
    let indexes = fleet.pools.iter().map(|pool| {
        let index = &pool.state.index;
        json!({
            "pool": &*pool.name,
            "blocks": index.blocks(),
            "bytes": index.bytes(),
            "bytes_max": index.bytes_max(),
        })
    });
    let heap = heap();
    json!({
        "allocator": {
            "committed_bytes": heap.committed_bytes,
            "committed_max_bytes": heap.committed_max_bytes,
        },
        "process": {
            "resident_bytes": of("VmRSS:"),
            "resident_max_bytes": of("VmHWM:"),
            "anonymous_bytes": of("RssAnon:"),
            "file_bytes": of("RssFile:"),
            "shared_bytes": of("RssShmem:"),
        },
        "prefix_indexes": indexes.collect::<Vec<_>>(),
    })
}
