//! What a core counts. Plain cells of one writer; the admin listener sums the shards.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::runtime::cells::{Counter, Exemplars, Gauge, Histogram, Tokens};
use crate::usage::Outcome;

/// Where the time within the gateway goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a head out of what has come.
    Head,
    /// From the head to its tenant, body and call.
    Auth,
    /// Template, tokens and block hashes of the prompt.
    Tokenize,
    /// Taking the cost out of the tenant's budget.
    Quota,
    /// Whether it may start, without the wait for it.
    Admission,
    /// Choosing the replica.
    Route,
    /// A connection to it.
    Connect,
    /// Handing on what a replica has sent, each read of it: also the wait for a client that does
    /// not take it.
    Relay,
    /// Everything but the engine's and the client's time.
    Total,
}

impl Stage {
    /// All stages with their label.
    pub const ALL: [(Stage, &'static str); 9] = [
        (Stage::Head, "head"),
        (Stage::Auth, "auth"),
        (Stage::Tokenize, "tokenize"),
        (Stage::Quota, "quota"),
        (Stage::Admission, "admission"),
        (Stage::Route, "route"),
        (Stage::Connect, "connect"),
        (Stage::Relay, "relay"),
        (Stage::Total, "total"),
    ];

    /// Its label.
    #[must_use]
    pub fn label(self) -> &'static str {
        Stage::ALL.get(self as usize).map_or("", |(_, label)| label)
    }
}

/// What a request was doing when its client went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connecting to a replica.
    Connect,
    /// Waiting for a stream's first event.
    FirstToken,
    /// In mid-stream.
    Stream,
    /// Waiting for a whole answer.
    Answer,
    /// Waiting for another pool to prefill the prompt.
    Prefill,
}

impl Phase {
    /// All phases with their label.
    pub const ALL: [(Phase, &'static str); 5] = [
        (Phase::Connect, "connect"),
        (Phase::FirstToken, "first_token"),
        (Phase::Stream, "stream"),
        (Phase::Answer, "answer"),
        (Phase::Prefill, "prefill"),
    ];
}

/// What became of the prompt of a request to a decode pool at the pool that prefills for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillResult {
    /// An attempt there: it was prefilled and handed over.
    Done,
    /// An attempt there came to nothing.
    Failed,
    /// The client, or its time, went during an attempt.
    Gone,
    /// After failures it was computed where it is decoded.
    FellBack,
    /// Nobody there could be asked.
    Unavailable,
    /// It would have waited there for longer than the pool's limit on the first token.
    Busy,
    /// Too little was left to compute, or it cannot be handed over.
    Direct,
}

impl PrefillResult {
    /// All of them by their label, in the order of [`PoolCells::prefills`].
    pub const ALL: [(PrefillResult, &'static str); 7] = [
        (PrefillResult::Done, "done"),
        (PrefillResult::Failed, "failed"),
        (PrefillResult::Gone, "gone"),
        (PrefillResult::FellBack, "fell_back"),
        (PrefillResult::Unavailable, "unavailable"),
        (PrefillResult::Busy, "busy"),
        (PrefillResult::Direct, "direct"),
    ];
}

/// Why requests are not admitted, in the order of [`PoolCells::shed`].
pub const SHED_REASONS: [&str; 5] = ["ttft", "tpot", "deadline", "queue_full", "queue_time"];

/// Why an attempt came to nothing and another was made, in the order of [`Shard::retries`]: the
/// replica's port refused, its connection or answer broke, it is shutting down, its engine failed,
/// it has no room, it was silent for too long; or something that says nothing of its health, such
/// as a name without an address.
pub const RETRY_REASONS: [&str; 8] =
    ["refused", "broken", "draining", "erred", "full", "denied", "late", "other"];

/// Operations by the names of OpenTelemetry's GenAI conventions, in the order of
/// [`PoolCells::genai`].
pub const OPERATIONS: [&str; 3] = ["chat", "text_completion", "embeddings"];

/// What OpenTelemetry's GenAI conventions ask for, of one operation of a pool.
#[derive(Debug, Default)]
pub struct GenAi {
    /// From the head to the first content, of streams that succeeded.
    pub ttft: Histogram,
    /// Time per output token after the first, of answers that succeeded.
    pub tpot: Histogram,
    /// From the head to the end: of requests that succeeded, and of others.
    pub duration: [Histogram; 2],
    /// Tokens of the prompt, and of the answer.
    pub tokens: [Tokens; 2],
}

/// Cells of one pool.
#[derive(Debug, Default)]
pub struct PoolCells {
    /// Time to the first content event.
    pub ttft: Histogram,
    /// Traced requests among these.
    pub ttft_exemplars: Exemplars,
    /// Time per output token.
    pub tpot: Histogram,
    /// By operation, in the order of [`OPERATIONS`].
    pub genai: [GenAi; 3],
    /// Input tokens.
    pub input: Counter,
    /// Of these cached.
    pub cached: Counter,
    /// Output tokens.
    pub output: Counter,
    /// Cached tokens as predicted, of requests whose engine told its own count.
    pub hits_predicted: Counter,
    /// That count.
    pub hits_actual: Counter,
    /// Requests that were not admitted, in the order of [`SHED_REASONS`].
    pub shed: [Counter; 5],
    /// Prompts by what became of them at the pool that prefills, in the order of
    /// [`PrefillResult::ALL`]. All zero but in decode pools.
    pub prefills: [Counter; 7],
    /// Time from choosing who prefills to having it, or having given up.
    pub prefill_legs: Histogram,
    /// How long requests waited for room, also those that left.
    pub queue_wait: Histogram,
    /// Requests that wait.
    pub queue_requests: Gauge,
    /// Tokens that they need room for.
    pub queue_tokens: Gauge,
    /// Requests by endpoint and outcome; the names are bounded.
    pub requests: Mutex<HashMap<(&'static str, Outcome), Arc<Counter>>>,
}

impl PoolCells {
    /// The counter of a result.
    #[must_use]
    pub fn prefill(&self, result: PrefillResult) -> &Counter {
        &self.prefills[result as usize]
    }
}

/// One core's metrics.
#[derive(Debug, Default)]
pub struct Shard {
    /// Time by stage, in the order of [`Stage::ALL`].
    stages: [Histogram; 9],
    /// From noticing that the client has gone to having closed the replica's connection, in the
    /// order of [`Phase::ALL`].
    cancels: [Histogram; 5],
    /// Lateness of the sweep: how long the core was busy with something else.
    pub loop_stall: Histogram,
    /// Retries, in the order of [`RETRY_REASONS`].
    pub retries: [Counter; 8],
    /// Prompts that were rendered or encoded beside the cores.
    pub long_prompts: Counter,
    /// Reused connections that died before any byte, and were replaced.
    pub reuse_races: Counter,
    /// Requests that a budget refused: for its tokens, for too many in flight, and for good.
    pub quota_rejects: [Counter; 3],
    /// Heads that were no HTTP.
    pub refused_heads: Counter,
    /// TLS handshakes that came to nothing.
    pub refused_handshakes: Counter,
    /// Failed accepts.
    pub accept_errors: Counter,
    /// Answers under another request's id.
    pub foreign_answers: Counter,
    /// Connections closed since their address had as many as it may.
    pub crowded_connections: Counter,
    /// Panics under the connection fence.
    pub panics: Counter,
    /// Open client connections.
    pub client_connections: Gauge,
    /// Idle replica connections.
    pub idle_upstreams: Gauge,
    /// Requests between their head and their end.
    pub in_flight: Gauge,
    /// Parts of prompts that the core knew, and did not know, as last looked at.
    pub parts: [Gauge; 2],
    /// Bytes that it keeps of them.
    pub part_bytes: Gauge,
    /// CPU time that its thread has had, in ns, as last looked at.
    pub cpu_ns: Gauge,
    /// When the core last swept, in ms since process start: the watchdog looks at it.
    pub beat_ms: Gauge,
    /// By pool name. The lock is taken by this core when a pool is new, and by a scrape.
    pools: Mutex<HashMap<Arc<str>, Arc<PoolCells>>>,
    /// By adapter: requests that found it on their replica, and that did not. Locked as `pools`.
    adapters: Mutex<HashMap<Arc<str>, Arc<[Counter; 2]>>>,
}

/// Adapters that are counted by name; what is beyond is counted as `other`.
const ADAPTERS_MAX: usize = 256;

impl Shard {
    /// The histogram of a stage.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> &Histogram {
        &self.stages[stage as usize]
    }

    /// The histogram of a phase.
    #[must_use]
    pub fn cancel(&self, phase: Phase) -> &Histogram {
        &self.cancels[phase as usize]
    }

    /// Every adapter's requests that found it on their replica, and that did not, for a scrape.
    #[must_use]
    pub fn adapters(&self) -> Vec<(Arc<str>, [u64; 2])> {
        let adapters = self.adapters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let read = |(name, cells): (&Arc<str>, &Arc<[Counter; 2]>)| {
            (Arc::clone(name), cells.each_ref().map(Counter::get))
        };
        adapters.iter().map(read).collect()
    }

    /// Every pool's cells, for a scrape.
    #[must_use]
    pub fn pools(&self) -> Vec<(Arc<str>, Arc<PoolCells>)> {
        let pools = self.pools.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pools.iter().map(|(name, cells)| (Arc::clone(name), Arc::clone(cells))).collect()
    }
}

/// A counter's place: pool, endpoint, outcome.
type Place = (Arc<str>, &'static str, Outcome);

/// A core's own way to its pools' cells, without a lock once a cell is known.
#[derive(Default)]
pub struct PoolIndex {
    pools: RefCell<HashMap<Arc<str>, Arc<PoolCells>>>,
    requests: RefCell<HashMap<Place, Arc<Counter>>>,
    adapters: RefCell<HashMap<Arc<str>, Arc<[Counter; 2]>>>,
}

impl PoolIndex {
    /// The cells of `pool`.
    pub fn pool(&self, shard: &Shard, pool: &Arc<str>) -> Arc<PoolCells> {
        if let Some(cells) = self.pools.borrow().get(pool) {
            return Arc::clone(cells);
        }
        let mut shared = shard.pools.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cells = Arc::clone(shared.entry(Arc::clone(pool)).or_default());
        self.pools.borrow_mut().insert(Arc::clone(pool), Arc::clone(&cells));
        cells
    }

    /// Counts a request for an adapter: it was on the chosen replica, or was not.
    pub fn count_adapter(&self, shard: &Shard, adapter: &Arc<str>, hit: bool) {
        let mut known = self.adapters.borrow_mut();
        let cells = match known.get(adapter) {
            Some(cells) => cells,
            None => {
                let mut shared =
                    shard.adapters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let full = known.len() >= ADAPTERS_MAX;
                let name = if full { "other".into() } else { Arc::clone(adapter) };
                let cells = Arc::clone(shared.entry(Arc::clone(&name)).or_default());
                known.entry(name).or_insert(cells)
            }
        };
        let [hits, misses] = &**cells;
        if hit { hits.inc() } else { misses.inc() }
    }

    /// Counts a request's end.
    pub fn count(
        &self,
        cells: &PoolCells,
        pool: &Arc<str>,
        endpoint: &'static str,
        outcome: Outcome,
    ) {
        let place = (Arc::clone(pool), endpoint, outcome);
        if let Some(counter) = self.requests.borrow().get(&place) {
            return counter.inc();
        }
        let mut shared = cells.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let counter = Arc::clone(shared.entry((endpoint, outcome)).or_default());
        counter.inc();
        self.requests.borrow_mut().insert(place, counter);
    }
}
