//! What is in flight at one lane (a replica, or one data-parallel rank of it): entered at dispatch,
//! moved from prefill to decode at the first token, taken off exactly once by a guard.
//!
//! One padded line a core, written by that core alone (relaxed load and store, no locked
//! instruction), summed by whoever reads. What other gateways say that they have in flight there
//! stands beside it and counts only while it is fresh; the control thread writes it. The ledger is
//! the gateway's own view: nothing that an engine reports ever replaces it. No clock: time (ms
//! since process start) is an argument.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::in_use::InUse;

/// Time over which prefill work fades, so that its mean age is that of a window of 10 s.
const DUTY_TAU_MS: f32 = 5_000.0;
/// What another gateway reported counts for so long.
const REMOTE_MS_MAX: u64 = 1_000;
/// Other gateways whose reports are kept.
const GATEWAYS_MAX: usize = 64;

/// What is in flight at a lane: of one core, of all, or of another gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Requests between dispatch and end.
    pub requests: u64,
    /// Tokens of their prompts and expected answers.
    pub tokens: u64,
    /// Prompt tokens that no cache spares, of requests without a first token.
    pub pending_tokens: u64,
    /// Requests without a first token.
    pub pending_requests: u64,
    /// Sequences of requests past their first token.
    pub decodes: u64,
    /// KV tokens that these read at each step: their prompts and half of their expected answers.
    pub decode_kv_tokens: u64,
    /// When each of them had its first token, in ms, summed and wrapping round; 0 of others.
    pub begun_ms: u64,
    /// KV tokens that all requests take up beyond what was cached before them.
    pub held_tokens: u64,
    /// GPU time in ms of the prefills of the last seconds, the older the less.
    pub prefill_ms: f64,
}

impl Sums {
    /// Share of the engine's time that went into prefills lately, 0 to 1.
    #[must_use]
    pub fn prefill_duty(&self) -> f64 {
        (self.prefill_ms / f64::from(DUTY_TAU_MS)).clamp(0.0, 1.0)
    }

    /// Mean time since the first token of the sequences that decode, in ms; 0 = none do.
    #[must_use]
    pub fn decode_age_ms(&self, now_ms: u64) -> f64 {
        // Cores' clocks are read a moment apart: what is as if begun later is new.
        let ages_ms = self.decodes.wrapping_mul(now_ms).wrapping_sub(self.begun_ms) as i64;
        if self.decodes == 0 { 0.0 } else { ages_ms.max(0) as f64 / self.decodes as f64 }
    }

    /// Adds what somebody else has.
    pub fn add(&mut self, other: &Sums) {
        self.requests = self.requests.wrapping_add(other.requests);
        self.tokens = self.tokens.wrapping_add(other.tokens);
        self.pending_tokens = self.pending_tokens.wrapping_add(other.pending_tokens);
        self.pending_requests = self.pending_requests.wrapping_add(other.pending_requests);
        self.decodes = self.decodes.wrapping_add(other.decodes);
        self.decode_kv_tokens = self.decode_kv_tokens.wrapping_add(other.decode_kv_tokens);
        self.begun_ms = self.begun_ms.wrapping_add(other.begun_ms);
        self.held_tokens = self.held_tokens.wrapping_add(other.held_tokens);
        self.prefill_ms += other.prefill_ms;
    }
}

/// One core's line, or the other gateways' together: two cache lines, since the prefetcher of x86
/// fetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    requests: AtomicU64,
    tokens: AtomicU64,
    pending_tokens: AtomicU64,
    pending_requests: AtomicU64,
    decodes: AtomicU64,
    decode_kv_tokens: AtomicU64,
    begun_ms: AtomicU64,
    held_tokens: AtomicU64,
    /// A [`Fading`] in its packed form.
    prefill: AtomicU64,
}

/// Single writer: no other thread stores to the cell.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

fn take(cell: &AtomicU64, n: u64) {
    add(cell, n.wrapping_neg());
}

impl Line {
    fn read(&self, now_ms: u64) -> Sums {
        Sums {
            requests: self.requests.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            pending_tokens: self.pending_tokens.load(Relaxed),
            pending_requests: self.pending_requests.load(Relaxed),
            decodes: self.decodes.load(Relaxed),
            decode_kv_tokens: self.decode_kv_tokens.load(Relaxed),
            begun_ms: self.begun_ms.load(Relaxed),
            held_tokens: self.held_tokens.load(Relaxed),
            prefill_ms: f64::from(Fading::unpack(self.prefill.load(Relaxed)).at(now_ms)),
        }
    }

    fn write(&self, sums: &Sums, now_ms: u64) {
        self.requests.store(sums.requests, Relaxed);
        self.tokens.store(sums.tokens, Relaxed);
        self.pending_tokens.store(sums.pending_tokens, Relaxed);
        self.pending_requests.store(sums.pending_requests, Relaxed);
        self.decodes.store(sums.decodes, Relaxed);
        self.decode_kv_tokens.store(sums.decode_kv_tokens, Relaxed);
        self.begun_ms.store(sums.begun_ms, Relaxed);
        self.held_tokens.store(sums.held_tokens, Relaxed);
        let fading = Fading { value: sums.prefill_ms as f32, at_ms: now_ms as u32 };
        self.prefill.store(fading.pack(), Relaxed);
    }
}

/// A sum that fades: its value at a time, both in one word, so that a reader never sees the one
/// without the other.
#[derive(Clone, Copy, Debug)]
struct Fading {
    value: f32,
    /// Low half of the time; a fading sum is nothing long before it comes round.
    at_ms: u32,
}

impl Fading {
    fn unpack(word: u64) -> Fading {
        Fading { value: f32::from_bits((word >> 32) as u32), at_ms: word as u32 }
    }

    fn pack(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.at_ms)
    }

    /// What is left of it at `now_ms`. (1 + x/8)^-8 stands for e^-x: a division and three
    /// products, within 6 % up to x = 1.
    fn at(self, now_ms: u64) -> f32 {
        let age_ms = (now_ms as u32).wrapping_sub(self.at_ms);
        if self.value == 0.0 || age_ms > u32::MAX / 2 {
            return self.value; // Another core's clock was read a moment later.
        }
        let mut left = 1.0 / (1.0 + age_ms as f32 / (8.0 * DUTY_TAU_MS));
        left *= left;
        left *= left;
        left *= left;
        self.value * left
    }
}

/// What other gateways have reported.
#[derive(Debug, Default)]
struct Remote {
    /// When the total was last written; 0 = never.
    at_ms: AtomicU64,
    total: Line,
    /// By gateway; only the control thread locks it.
    reports: Mutex<Vec<(Sums, u64)>>,
}

/// The ledger of one lane.
#[derive(Debug)]
pub struct Ledger {
    lines: Box<[Line]>,
    remote: Remote,
    /// Adapters of its requests.
    adapters: InUse,
}

/// What a request brings to a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispatch {
    /// Tokens of its prompts.
    pub prompt_tokens: u64,
    /// Those of them that the lane's cache is expected to spare.
    pub cached_tokens: u64,
    /// Output tokens that it is expected to make, over all its sequences.
    pub output_tokens: u64,
    /// Sequences that will decode, 1 for most.
    pub sequences: u64,
    /// GPU time of its prefill, in ms.
    pub prefill_ms: f64,
    /// A hash of the adapter that it asks for, not 0.
    pub adapter: Option<u64>,
}

impl Ledger {
    /// A ledger for `cores` writers.
    #[must_use]
    pub fn new(cores: usize) -> Ledger {
        Ledger {
            lines: (0..cores.max(1)).map(|_| Line::default()).collect(),
            remote: Remote::default(),
            adapters: InUse::default(),
        }
    }

    /// This gateway's requests in flight.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lines.iter().fold(0, |sum, l| sum.wrapping_add(l.requests.load(Relaxed)))
    }

    /// Tokens of this gateway's requests in flight.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.lines.iter().fold(0, |sum, l| sum.wrapping_add(l.tokens.load(Relaxed)))
    }

    /// What this gateway has in flight.
    #[must_use]
    pub fn own(&self, now_ms: u64) -> Sums {
        let mut sums = Sums::default();
        self.lines.iter().for_each(|line| sums.add(&line.read(now_ms)));
        sums
    }

    /// What the other gateways have in flight, as far as they have said so lately.
    #[must_use]
    pub fn others(&self, now_ms: u64) -> Option<Sums> {
        let at_ms = self.remote.at_ms.load(Relaxed);
        let fresh = at_ms != 0 && now_ms.saturating_sub(at_ms) < REMOTE_MS_MAX;
        fresh.then(|| self.remote.total.read(now_ms))
    }

    /// Another gateway, by a number of the caller's, says what it has in flight here. Called by
    /// the control thread only. A gateway past the 64th is not counted.
    pub fn set_remote(&self, gateway: usize, sums: Sums, now_ms: u64) {
        if gateway >= GATEWAYS_MAX {
            return;
        }
        let mut reports = self.remote.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() <= gateway {
            reports.resize(gateway + 1, (Sums::default(), 0));
        }
        if let Some(report) = reports.get_mut(gateway) {
            *report = (sums, now_ms);
        }
        let mut total = Sums::default();
        for (sums, at_ms) in reports.iter() {
            if *at_ms != 0 && now_ms.saturating_sub(*at_ms) < REMOTE_MS_MAX {
                total.add(sums);
            }
        }
        self.remote.total.write(&total, now_ms);
        self.remote.at_ms.store(now_ms.max(1), Relaxed);
    }

    /// Different adapters of this gateway's requests in flight.
    #[must_use]
    pub fn adapters(&self) -> u32 {
        self.adapters.different()
    }

    /// Is the adapter with this hash likely to have one of the engine's `slots`, by what this
    /// gateway has sent there?
    #[must_use]
    pub fn has_adapter(&self, adapter: u64, slots: u32, now_ms: u64) -> bool {
        self.adapters.resident(adapter, slots, now_ms)
    }

    /// Another gateway has sent a request for this adapter here.
    pub fn adapter_used(&self, adapter: u64, now_ms: u64) {
        if let Some(place) = self.adapters.enter(adapter, now_ms) {
            self.adapters.leave(place);
        }
    }

    /// Is the adapter with this hash in use there, and how long ago did a request for it come or
    /// go, in ms?
    #[must_use]
    pub fn adapter_use(&self, adapter: u64, now_ms: u64) -> (bool, Option<u64>) {
        self.adapters.used(adapter, now_ms)
    }

    /// Enters a request on `core`'s line until the guard is dropped on that core.
    #[must_use]
    pub fn enter(self: &Arc<Self>, core: usize, entry: &Dispatch, now_ms: u64) -> InFlight {
        let uncached = entry.prompt_tokens.saturating_sub(entry.cached_tokens);
        let half = entry.output_tokens / 2;
        let held = InFlight {
            tokens: entry.prompt_tokens.saturating_add(entry.output_tokens),
            pending_tokens: uncached,
            kv_tokens: entry.prompt_tokens.saturating_add(half),
            held_tokens: uncached.saturating_add(half),
            sequences: entry.sequences,
            begun_ms: 0,
            phase: Phase::Prefill,
            adapter: entry.adapter.and_then(|adapter| self.adapters.enter(adapter, now_ms)),
            core,
            ledger: Arc::clone(self),
        };
        if let Some(line) = self.lines.get(core) {
            add(&line.requests, 1);
            add(&line.tokens, held.tokens);
            add(&line.pending_requests, 1);
            add(&line.pending_tokens, held.pending_tokens);
            add(&line.held_tokens, held.held_tokens);
            let known = Fading::unpack(line.prefill.load(Relaxed)).at(now_ms);
            // What is odd or endless would stay for ever.
            let ms = if entry.prefill_ms.is_finite() { entry.prefill_ms.max(0.0) } else { 0.0 };
            let value = known + ms.min(1e9) as f32;
            line.prefill.store(Fading { value, at_ms: now_ms as u32 }.pack(), Relaxed);
        }
        held
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Prefill,
    Decode,
}

/// A request's entry; its drop takes off what it has entered, whatever became of the request.
#[derive(Debug)]
pub struct InFlight {
    ledger: Arc<Ledger>,
    core: usize,
    phase: Phase,
    tokens: u64,
    pending_tokens: u64,
    kv_tokens: u64,
    held_tokens: u64,
    sequences: u64,
    /// When its sequences had their first token, summed over them.
    begun_ms: u64,
    /// Its place among the adapters in use.
    adapter: Option<usize>,
}

impl InFlight {
    /// The first token is there: the prefill is over and the decode begins. Again: nothing.
    pub fn first_token(&mut self, now_ms: u64) {
        if self.phase == Phase::Decode {
            return;
        }
        self.phase = Phase::Decode;
        self.begun_ms = now_ms.wrapping_mul(self.sequences);
        if let Some(line) = self.ledger.lines.get(self.core) {
            take(&line.pending_requests, 1);
            take(&line.pending_tokens, self.pending_tokens);
            add(&line.decodes, self.sequences);
            add(&line.decode_kv_tokens, self.kv_tokens);
            add(&line.begun_ms, self.begun_ms);
        }
    }

    /// Is its first token still to come?
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.phase == Phase::Prefill
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(place) = self.adapter {
            self.ledger.adapters.leave(place);
        }
        let Some(line) = self.ledger.lines.get(self.core) else { return };
        take(&line.requests, 1);
        take(&line.tokens, self.tokens);
        take(&line.held_tokens, self.held_tokens);
        match self.phase {
            Phase::Prefill => {
                take(&line.pending_requests, 1);
                take(&line.pending_tokens, self.pending_tokens);
            }
            Phase::Decode => {
                take(&line.decodes, self.sequences);
                take(&line.decode_kv_tokens, self.kv_tokens);
                take(&line.begun_ms, self.begun_ms);
            }
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
