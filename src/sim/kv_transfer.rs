//! Blocks that one replica has computed for another (vLLM's NixlConnector): what a prefill hands
//! over, who still holds what, and that it can be fetched once.
//!
//! What is held is shared by the replicas of a fleet, whatever their threads; a fleet's blocks are
//! not seen by another. The state of a transfer is here, its time is the caller's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// How long blocks are held for somebody to fetch them (`kv_lease_duration`).
const LEASE: Duration = Duration::from_secs(30);
/// KV of one token over the link: an 8B model's 128 KiB over 100 Gbit/s take some 10 us.
const TRANSFER_NS_A_TOKEN: u64 = 10_000;

/// `kv_transfer_params` of a request, as far as a replica acts on it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Params {
    #[serde(default)]
    do_remote_decode: bool,
    #[serde(default)]
    do_remote_prefill: bool,
    #[serde(default)]
    remote_request_id: Option<String>,
}

/// What a request has to do with blocks of another replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Leg {
    /// Nothing.
    #[default]
    Whole,
    /// It computes them for another.
    Prefill,
    /// It fetches those that were computed under this name.
    Decode(String),
}

impl Params {
    pub(super) fn leg(self) -> Leg {
        match self.remote_request_id {
            Some(id) if self.do_remote_prefill => Leg::Decode(id),
            _ if self.do_remote_decode => Leg::Prefill,
            _ => Leg::Whole,
        }
    }
}

/// Blocks of one prompt.
struct Held {
    port: u16,
    tokens: u64,
    since: Instant,
}

/// What the replicas of a fleet hold for each other, by the name of the request.
#[derive(Default)]
pub(super) struct Transfers {
    held: Mutex<HashMap<String, Held>>,
}

impl Transfers {
    /// The replica on `port` holds the blocks of a prompt; its `kv_transfer_params` for the answer.
    pub(super) fn hold(&self, port: u16, id: &str, tokens: u64, block_tokens: u64) -> String {
        let blocks: Vec<u64> = (1..=tokens.div_ceil(block_tokens.max(1))).collect();
        let held = Held { port, tokens, since: Instant::now() };
        self.with(|all| all.insert(id.to_owned(), held));
        let id = super::answer::quoted(id);
        format!(
            "{{\"do_remote_prefill\":true,\"do_remote_decode\":false,\
             \"remote_block_ids\":[{}],\"remote_engine_id\":\"sim-{port}\",\
             \"remote_request_id\":{id},\"remote_host\":\"127.0.0.1\",\"remote_port\":{port},\
             \"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":{tokens},\
             \"remote_blocks_expiry_time\":null,\"transfer_mode\":\"pull\",\
             \"remote_prefill_cached_tokens\":0}}",
            serde_json::Value::from(blocks)
        )
    }

    /// Fetches them: how long that takes. `None`: nobody holds them any more.
    pub(super) fn fetch(&self, id: &str) -> Option<Duration> {
        let held = self.with(|all| all.remove(id))?;
        Some(Duration::from_nanos(held.tokens.saturating_mul(TRANSFER_NS_A_TOKEN)))
    }

    /// Prompts whose blocks the replica on `port` holds for others.
    pub(super) fn held_by(&self, port: u16) -> u64 {
        self.with(|all| all.values().filter(|held| held.port == port).count() as u64)
    }

    /// Whose lease has run out is gone.
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Held>) -> T) -> T {
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, held| held.since.elapsed() < LEASE);
        work(&mut all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_fetched_once() {
        let transfers = Transfers::default();
        let params = transfers.hold(7, "cmpl-1", 1_000, 16);
        let read: Params = serde_json::from_str(&params).expect("its own shape");
        assert_eq!(read.leg(), Leg::Decode("cmpl-1".to_owned()));
        assert_eq!((transfers.held_by(7), transfers.held_by(8)), (1, 0));
        assert_eq!(transfers.fetch("cmpl-1"), Some(Duration::from_millis(10)));
        assert_eq!((transfers.fetch("cmpl-1"), transfers.held_by(7)), (None, 0));
    }
}
