//! A simulated vLLM fleet: many replicas in one process, the wire of vLLM 0.32 behind uvicorn,
//! the timing of an engine, and faults on demand.
//!
//! | file | what |
//! | --- | --- |
//! | `fleet` | threads, ports, [`SimHandle`] |
//! | `door`, `connection` | the port and one connection, as uvicorn behaves |
//! | `routes`, `errors`, `metrics` | paths, refusals in vLLM's words, `/metrics` |
//! | `body`, `call` | what a request asks for; the answer is planned before its first byte |
//! | `exact` | prompts as a real tokenizer counts them, when one is given |
//! | `generate`, `pace` | admitted, paced by an [`engine`](crate::engine), sent, released |
//! | `answer`, `chat`, `messages`, `responses` | the shapes of the APIs |
//! | `kv_events`, `kv_sockets` | what the cache does, published as vLLM does |
//! | `kv_transfer` | blocks that one replica computes for another |
//! | `wire`, `date`, `gzip` | heads, chunks, and the faults that strike bytes |
//! | `fault`, `replica`, `cache`, `stats`, `token`, `config` | state and values |
//!
//! A replica lives on one thread and shares nothing; threads meet in a mailbox. Shapes, texts and
//! their order are those of captures from a real server; the rules of the pseudo tokenizer and of
//! the words are documented at [`token_text`], so that a client can check every answer. It never
//! listens but where it is told to, and it is not hardened: it is for tests and demonstrations.

mod answer;
mod body;
mod cache;
mod call;
mod chat;
mod config;
mod connection;
mod date;
mod door;
mod errors;
mod exact;
mod fault;
mod fleet;
mod generate;
mod gzip;
mod kv_events;
mod kv_sockets;
mod kv_transfer;
mod messages;
mod metrics;
mod pace;
mod replica;
mod responses;
mod routes;
mod stats;
mod token;
mod wire;

pub use config::{EngineKind, OnTerm, SimConfig};
pub use fault::{Fault, Kind, UsageShape};
pub use fleet::{Fleet, SimHandle};
pub use stats::{ReleaseUs, Stats};
pub use token::{TOKEN_BYTES, WORD_BYTES, token_text};
