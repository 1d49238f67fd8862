//! Expedite: a gateway in front of fleets of vLLM replicas.
//!
//! # The life of a request
//!
//! 1. A core accepts the connection ([`gateway`], `core.rs`) and reads a head ([`http1`]).
//! 2. `gateway/request.rs` is the path: the endpoint from the raw path, the tenant from the key
//!    ([`tenants`]), then, for a known caller only, the body, the call in it and the few edits to
//!    it ([`openai`]), the pool that serves the model ([`replicas`]).
//! 3. `gateway/prompt.rs` knows the prompt as the engine will ([`prompt`]): its text by the model's
//!    template, its tokens, whether they fit, the chained hashes of its blocks. In turns on the
//!    core; what cannot be cut into turns goes to a thread beside the cores (`gateway/side.rs`).
//! 4. `gateway/quota.rs` takes what the request can cost out of its tenant's budget
//!    ([`tenants::quota`]), or refuses it.
//! 5. `gateway/permit.rs` picks a replica ([`routing`]) by what each holds of the prompt
//!    ([`prefix`]) and lets the request start there if it can finish in time, wait if that helps,
//!    or go ([`admission`]).
//! 6. Of a decode pool `gateway/prefill` has what is left to compute of a long prompt computed by a
//!    replica of its pair; whatever fails there, the picked replica computes it.
//! 7. `gateway/upstream.rs` connects, `gateway/exchange.rs` sends it the request and waits for the
//!    first event; elsewhere again while no content has reached the client.
//! 8. `gateway/relay.rs` passes each event on when it arrives ([`sse`] finds where it ends); the
//!    client is watched all the while, and its going closes the replica's connection.
//! 9. `gateway/ticket.rs` closes the books: what the engine did is paid and the rest given back,
//!    one record a request ([`usage`]), counted in the core's own metric shard ([`admin`]); our
//!    count of the prompt is held against the engine's. What else is told of the request, its
//!    access line and its trace, goes to queues of [`telemetry`].
//!
//! # Who owns what
//!
//! * A core, pinned: its listeners, connections, idle upstream connections, buffers, the parts of
//!   prompts that it remembers, and metric shard. It never waits for a lock, a disk, a name server
//!   or another thread.
//! * The control thread: the registry (sources of members, names, probes, scrapes, adapters), the
//!   admin listener, reloads, the drain, the hand-over to a new process, the watchdog of the cores,
//!   what a collector is sent. It never touches a request.
//! * The side threads: renders and encodings that would hold a core too long, by a bounded queue.
//!   Tokenizers and templates themselves are read-only and shared by all.
//! * The usage writer: the usage log. It never blocks a core: the ring is bounded, and a request
//!   reserves its place before it starts; also in a table that outlives the process, so that a kill
//!   loses no record. A thread beside it copies records to a stream, if one is set.
//! * The access writer: the access log, if there is one. What it cannot write is lost and counted.
//! * The supervisor: the cores' threads. It serves nothing.
//!
//! Threads meet in [`runtime`] (snapshots, cells), in the atomics of a [`replicas::Replica`] and
//! of a tenant's [`Account`](tenants::quota::Account), and in a pool's [`prefix::Index`], which all
//! read and one at a time writes: who finds the writer busy leaves its entry in a queue. But for an
//! account and what a pool's tenants had, which every core spends from, nothing is written twice: a
//! cell has one writer.
//!
//! # Invariants
//!
//! * Bytes of a stream are the engine's bytes in order; only the usage event that we asked for
//!   ourselves is taken out. Nothing waits on a timer.
//! * A truncated answer never looks complete: one error event, no `[DONE]`, no last chunk.
//! * Nothing is retried once content has been passed on, and one request is recorded once.
//! * When a client goes, in any phase, its replica's connection is closed and every count of it
//!   returns to zero.
//! * A reservation is settled once, on whatever way the request ends; what is in flight or reserved
//!   is zero at rest.
//! * No secret reaches a log, a metric, an error, a record or an upstream.
//!
//! # Layers
//!
//! Imports run one way: `main`, `cli`, `sim` and `bench` and `doctor`, `plan`, `gateway`,
//! `admission`, `routing`, `admin`, `replicas`, `prefix`, `engine`, `prompt`, `telemetry`,
//! `openai`, `tenants` and `usage`, `sse` and `http1` and `zmtp` and `net`, `config`, `runtime`
//! (`tests/tidy` holds it). `http1`, `sse`, `zmtp`, `openai`, `prompt`, `prefix`, `engine`,
//! `routing`, `admission`, `plan`, `usage::record`, `usage::sum`, the accounts of `tenants::quota`
//! and what of `telemetry` is data do no I/O and read no clock: `plan` runs them in virtual time.
//!
//! # Deliberately absent
//!
//! * A middleware or plugin system: the path is one screen.
//! * HTTP by a library on the data plane: what we found holds events back, accepts framing that
//!   smuggles, or has no limits. `httparse` splits fields; the rest is ours and fuzzed.
//! * Upstreams from requests: a replica comes from the configuration, from a source that it names,
//!   or from the operator by the admin listener.
//! * Compression, cookies, redirects, upgrades.

pub mod admin;
pub mod admission;
pub mod bench;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod engine;
pub mod gateway;
pub mod http1;
pub mod net;
pub mod openai;
pub mod plan;
pub mod prefix;
pub mod prompt;
pub mod replicas;
pub mod routing;
pub mod runtime;
pub mod sim;
pub mod sse;
pub mod telemetry;
pub mod tenants;
pub mod usage;
pub mod zmtp;
