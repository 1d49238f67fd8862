//! What a replica counted: `/stats` and the library handle.
//!
//! The counters are owned by the replica's thread; [`Stats`] is a copy that may go anywhere.

use std::cell::{Cell, RefCell};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest request that is kept for tests to look at.
const LAST_REQUEST_BYTES_MAX: usize = 1 << 20;

/// Quantiles of the time from the moment that a replica's thread saw the end of a client's
/// connection to the release of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseUs {
    /// Median.
    pub p50: u64,
    /// 99 of 100.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// Number of aborts measured.
    pub count: u64,
}

/// A copy of a replica's counters. Requests are those for generation; probes and `/stats` itself
/// are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Port of the replica.
    pub port: u16,
    /// Read in full.
    pub requests: u64,
    /// Answered in full with the model's answer.
    pub completed: u64,
    /// Given up because the client left.
    pub aborted: u64,
    /// Ended by a fault that closed the connection.
    pub faulted: u64,
    /// Answered with an error of our own.
    pub refused: u64,
    /// Prompt tokens of all admitted requests.
    pub prompt_tokens: u64,
    /// Of these, known already.
    pub cached_tokens: u64,
    /// Tokens sent or, for a whole answer, ready when it ended in any way.
    pub completion_tokens: u64,
    /// In the engine now.
    pub running: u64,
    /// Waiting for the engine now.
    pub waiting: u64,
    /// Prompts whose blocks it holds for other replicas now.
    pub kv_held: u64,
    /// Requests whose blocks came from another replica.
    pub kv_fetched: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted in all.
    pub connections_accepted: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// How fast a request is released when its client leaves.
    pub abort_to_release_us: ReleaseUs,
    /// Head of the last generation request as it came.
    #[serde(serialize_with = "as_text")]
    pub last_request_head: Vec<u8>,
    /// Its body without chunk framing (at most 1 MiB).
    #[serde(serialize_with = "as_text")]
    pub last_request_body: Vec<u8>,
}

/// UTF-8 as it is; anything else byte by byte as U+0000 to U+00FF.
fn as_text<S: serde::Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => out.serialize_str(text),
        Err(_) => out.collect_str(&bytes.iter().map(|&b| char::from(b)).collect::<String>()),
    }
}

/// The live counters of one replica.
pub(super) struct Counters {
    pub(super) requests: Cell<u64>,
    pub(super) completed: Cell<u64>,
    pub(super) aborted: Cell<u64>,
    pub(super) faulted: Cell<u64>,
    pub(super) refused: Cell<u64>,
    pub(super) prompt_tokens: Cell<u64>,
    pub(super) cached_tokens: Cell<u64>,
    pub(super) completion_tokens: Cell<u64>,
    pub(super) finished_stop: Cell<u64>,
    pub(super) finished_length: Cell<u64>,
    pub(super) kv_fetched: Cell<u64>,
    pub(super) connections_open: Cell<u64>,
    pub(super) connections_accepted: Cell<u64>,
    pub(super) bytes_in: Cell<u64>,
    release_us: RefCell<Histogram<u64>>,
    last: RefCell<(Vec<u8>, Vec<u8>)>,
}

/// Adds to a counter.
pub(super) fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get().wrapping_add(n));
}

impl Counters {
    pub(super) fn new() -> Counters {
        // Microseconds up to a minute, two digits: these bounds are always valid.
        let release_us = Histogram::new_with_bounds(1, 60_000_000, 2).expect("valid bounds");
        Counters {
            requests: Cell::new(0),
            completed: Cell::new(0),
            aborted: Cell::new(0),
            faulted: Cell::new(0),
            refused: Cell::new(0),
            prompt_tokens: Cell::new(0),
            cached_tokens: Cell::new(0),
            completion_tokens: Cell::new(0),
            finished_stop: Cell::new(0),
            finished_length: Cell::new(0),
            kv_fetched: Cell::new(0),
            connections_open: Cell::new(0),
            connections_accepted: Cell::new(0),
            bytes_in: Cell::new(0),
            release_us: RefCell::new(release_us),
            last: RefCell::default(),
        }
    }

    pub(super) fn released(&self, us: u64) {
        self.release_us.borrow_mut().saturating_record(us.max(1));
    }

    pub(super) fn keep_request(&self, head: &[u8], body: &[u8]) {
        let (last_head, last_body) = &mut *self.last.borrow_mut();
        last_head.clear();
        last_head.extend_from_slice(head);
        last_body.clear();
        last_body.extend_from_slice(&body[..body.len().min(LAST_REQUEST_BYTES_MAX)]);
    }

    pub(super) fn copy(&self, port: u16, running: u64, waiting: u64) -> Stats {
        let release = self.release_us.borrow();
        let last = self.last.borrow();
        Stats {
            port,
            requests: self.requests.get(),
            completed: self.completed.get(),
            aborted: self.aborted.get(),
            faulted: self.faulted.get(),
            refused: self.refused.get(),
            prompt_tokens: self.prompt_tokens.get(),
            cached_tokens: self.cached_tokens.get(),
            completion_tokens: self.completion_tokens.get(),
            running,
            waiting,
            kv_held: 0,
            kv_fetched: self.kv_fetched.get(),
            connections_open: self.connections_open.get(),
            connections_accepted: self.connections_accepted.get(),
            bytes_in: self.bytes_in.get(),
            abort_to_release_us: ReleaseUs {
                p50: release.value_at_quantile(0.5),
                p99: release.value_at_quantile(0.99),
                max: release.max(),
                count: release.len(),
            },
            last_request_head: last.0.clone(),
            last_request_body: last.1.clone(),
        }
    }
}
