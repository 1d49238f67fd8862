//! What a simulated fleet is made of. Plain values, no I/O.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::EngineParams;

/// How a replica's tokens are timed.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineKind {
    /// Every stream by its own schedule: the first token `ttft` after the request, then one every
    /// `itl`; both zero = no wait at all. Any number of requests runs at once.
    Fixed {
        /// Time to the first token.
        ttft: Duration,
        /// Time between two tokens.
        itl: Duration,
    },
    /// The model of a GPU with continuous batching and paged KV.
    Modelled(EngineParams),
}

impl EngineKind {
    /// No waits.
    #[must_use]
    pub fn instant() -> EngineKind {
        EngineKind::Fixed { ttft: Duration::ZERO, itl: Duration::ZERO }
    }
}

/// What a replica does with what is in flight when the process is told to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTerm {
    /// vLLM's default when its race goes well: `finish_reason: "abort"` and a clean end.
    #[default]
    Abort,
    /// vLLM's default when it goes badly: nothing more comes, the connections stay open.
    Freeze,
    /// `--shutdown-timeout`: what is in flight ends by itself; new requests get 500.
    Drain,
}

/// A fleet.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// One replica a port; 0 = any free port.
    pub ports: Vec<u16>,
    /// Threads; replica `i` lives on thread `i % threads`.
    pub threads: usize,
    /// Name of the served model.
    pub model: String,
    /// Adapters: name and path.
    pub loras: Vec<(String, String)>,
    /// Timing of the tokens.
    pub engine: EngineKind,
    /// Blocks in the KV pool and in the prefix memory.
    pub blocks: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Adapters that a modelled engine has resident at once (`--max-loras`).
    pub loras_max: u32,
    /// KV events of replica `i` are published on this port + 2i, and replayed on the one after.
    /// `None` = there are none.
    pub kv_events_port: Option<u16>,
    /// Longest prompt and answer together, in tokens.
    pub model_len_max: u64,
    /// Bearer key asked for under `/v1`.
    pub api_key: Option<String>,
    /// Folder with `tokenizer.json` and the chat template: prompts are counted as its model counts
    /// them. `None` = four bytes are a token.
    pub tokenizer: Option<PathBuf>,
    /// `--enable-request-id-headers`: answers carry `x-request-id`.
    pub request_id_headers: bool,
    /// `--enable-prompt-tokens-details`: usage carries `cached_tokens`.
    pub prompt_tokens_details: bool,
    /// How long an idle connection is kept after a response (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`).
    pub keep_alive: Duration,
}

impl Default for SimConfig {
    /// One replica on a free loopback port, without waits.
    fn default() -> SimConfig {
        SimConfig {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: vec![0],
            threads: 1,
            model: "sim-model".to_owned(),
            loras: Vec::new(),
            engine: EngineKind::instant(),
            blocks: EngineParams::a100_8b().blocks,
            block_tokens: EngineParams::a100_8b().block_tokens,
            loras_max: EngineParams::a100_8b_lora().adapter_slots,
            kv_events_port: None,
            model_len_max: 32_768,
            api_key: None,
            tokenizer: None,
            request_id_headers: false,
            prompt_tokens_details: true,
            keep_alive: Duration::from_secs(5),
        }
    }
}
