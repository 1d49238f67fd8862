//! A pool as one request sees it: each lane a candidate, read once into a scratch that its owner
//! keeps, so that a pick allocates nothing.
//!
//! The gateway's own ledger carries it; what a replica tells only corrects it while it is fresh,
//! and its absence changes nothing. Used by the cores, and by the control thread to explain.

use super::learned::Learned;
use super::prompt::BLOCK_TOKENS_DEFAULT;
use crate::prompt::Prompt;
use crate::prompt::blocks::{BlockHash, reusable_tokens, text_bytes};
use crate::replicas::{Lane, Pool, Served, Sums};
use crate::routing::{Candidate, FleetView, Others, Residency};

/// The block whose hash stands for a prompt's beginning: behind what many system prompts share in
/// their first words, before what two of one kind differ in.
const OWNER_TOKENS: usize = 128;
/// The same where chunks of text are hashed.
const OWNER_CHUNK: usize = 1;

/// A token whose KV is handed over costs a replica this share of one that it computes, as a pick
/// weighs them: an 8B model's 128 KiB a token take some 10 us over 100 Gbit/s, its prefill some 80.
const HAND_OVER_SHARE: u64 = 8;

/// A request as far as the view depends on it.
pub(super) struct Asks<'a> {
    pub pool: &'a Pool,
    pub served: &'a Served,
    pub learned: &'a Learned,
    pub prompt: Option<&'a Prompt>,
    /// A hash of the adapter that is asked for.
    pub adapter: Option<u64>,
    /// Lanes that have failed it, by index.
    pub tried: &'a [usize],
    /// Age past which what a replica tells is not believed.
    pub stale_ms: u64,
    pub now_ms: u64,
}

impl Asks<'_> {
    /// May the lane with this index be sent the request?
    pub(super) fn eligible(&self, index: usize, lane: &Lane) -> bool {
        !self.has_failed(index, lane)
            && (self.served.holds(lane.member) || self.may_load(lane))
            && lane.replica.eligible(self.now_ms)
    }

    /// Has the lane, or another rank of its server, failed the request?
    fn has_failed(&self, index: usize, lane: &Lane) -> bool {
        let same = |tried: &usize| {
            let failed = self.pool.lanes.get(*tried);
            *tried == index || failed.is_some_and(|it| it.replica.key == lane.replica.key)
        };
        self.tried.iter().any(same)
    }

    /// Could the lane's replica have the adapter loaded?
    fn may_load(&self, lane: &Lane) -> bool {
        let loads = self.served.loads_from.is_some();
        loads && self.adapter.is_some_and(|it| lane.replica.loads.may_load(it, self.now_ms))
    }

    pub(super) fn hashes(&self) -> &[BlockHash] {
        self.prompt.map_or(&[], |prompt| prompt.hashes.as_slice())
    }

    /// By this gateway's own account; of the other gateways' only what does not age in a second.
    fn candidate(
        &self,
        (index, lane): (usize, &Lane),
        (own, others): (&Sums, &Sums),
        depth: u32,
        block_tokens: u64,
    ) -> Candidate {
        let signals = &lane.replica.signals;
        let gauges = signals.gauges(lane.rank);
        let (blocks, slots) = (gauges.blocks(), signals.adapter_slots());
        let told = gauges.load(self.now_ms).filter(|(_, age_ms)| *age_ms <= self.stale_ms);
        // The engine's word, and what it had not begun when it gave it; else what our own requests
        // and those of other gateways will have taken when they end.
        let used = match told {
            Some((load, _)) => {
                let told = load.kv_usage.clamp(0.0, 1.0) * blocks as f64;
                let pending = own.pending_tokens.saturating_add(others.pending_tokens);
                (told as u64).saturating_add(pending / block_tokens)
            }
            None => own.held_tokens.saturating_add(others.held_tokens) / block_tokens,
        };
        Candidate {
            eligible: self.eligible(index, lane),
            key: lane.key,
            cached_tokens: self.prompt.map_or(0, |prompt| cached_tokens(prompt, depth)),
            pending_tokens: own.pending_tokens,
            pending_requests: own.pending_requests,
            decodes: own.decodes,
            decode_kv_tokens: own.decode_kv_tokens,
            decode_age_ms: own.decode_age_ms(self.now_ms),
            requests: own.requests,
            load_tokens: own.tokens,
            blocks,
            blocks_used: used,
            sequences_max: match self.pool.sequences_max {
                0 => gauges.sequences_max(self.now_ms),
                configured => configured,
            },
            prefill_duty: (own.prefill_duty() + others.prefill_duty()).min(1.0),
            adapter: self.residency(lane, slots),
            adapters_busy: if self.adapter.is_some() { lane.ledger.adapters() } else { 0 },
            adapter_slots: slots,
            slowness: self.learned.slowness(index, self.now_ms),
            weight: lane.replica.weight(),
            ramp: lane.replica.health.ramp(self.now_ms),
        }
    }

    fn residency(&self, lane: &Lane, slots: u32) -> Residency {
        match self.adapter {
            None => Residency::Resident,
            Some(adapter) if !self.served.holds(lane.member) => {
                // Who is loading it already is the place to wait.
                let expected = lane.replica.loads.expects(adapter);
                if expected { Residency::Resident } else { Residency::Loadable }
            }
            // It lists the adapter; which of the listed ones have a slot is not told.
            Some(_) if slots == 0 => Residency::Resident,
            Some(adapter) if lane.ledger.has_adapter(adapter, slots, self.now_ms) => {
                Residency::Resident
            }
            Some(_) => Residency::Loadable,
        }
    }
}

/// Tokens of a KV block of the pool's replicas, or as many as a block usually has.
pub(super) fn block_tokens(pool: &Pool) -> u64 {
    match pool.block_tokens() {
        0 => u64::from(BLOCK_TOKENS_DEFAULT),
        tokens => u64::from(tokens),
    }
}

/// Tokens of a prompt that a cache spares which holds its first `depth` blocks.
pub(super) fn cached_tokens(prompt: &Prompt, depth: u32) -> u64 {
    let depth = (depth as usize).min(prompt.hashes.len());
    match u64::from(prompt.block_tokens) {
        // Chunks of text: their share of the tokens. What is behind the last whole chunk counts
        // as half of one.
        0 => {
            let chunks = prompt.hashes.len();
            let text = (text_bytes(chunks) + text_bytes(chunks + 1)) as f64 / 2.0;
            (prompt.tokens as f64 * text_bytes(depth) as f64 / text) as u64
        }
        tokens => {
            (depth as u64).saturating_mul(tokens).min(reusable_tokens(prompt.longest, tokens))
        }
    }
}

/// What stands for the beginning of a prompt, so that several gateways give a prefix that nobody
/// holds to the same lane; `None` when the prompt is too short to be worth it.
pub(super) fn owner_key(prompt: &Prompt) -> Option<u64> {
    let at = match prompt.block_tokens {
        0 => OWNER_CHUNK,
        tokens => OWNER_TOKENS.div_ceil(tokens as usize).saturating_sub(1),
    };
    prompt.hashes.get(at).map(|hash| (hash ^ hash >> 64) as u64)
}

/// What others said of a lane that ages within a second.
fn others(told: &Sums) -> Others {
    Others {
        requests: told.requests,
        tokens: told.tokens,
        pending_tokens: told.pending_tokens,
        pending_requests: told.pending_requests,
        decodes: told.decodes,
        decode_kv_tokens: told.decode_kv_tokens,
    }
}

/// What a view is read into, kept from one request to the next.
#[derive(Default)]
pub(super) struct Scratch {
    /// By slot.
    depths: Vec<u32>,
    candidates: Vec<Candidate>,
    /// What the other gateways have in flight at each lane.
    others: Vec<Others>,
}

impl Scratch {
    /// Reads the pool as it is for this request.
    pub(super) fn look(&mut self, asks: &Asks<'_>) -> Seen<'_> {
        let lanes = &asks.pool.lanes;
        let slots = lanes.iter().map(|lane| usize::from(lane.slot) + 1).max().unwrap_or(0);
        self.depths.clear();
        self.depths.resize(slots, 0);
        asks.pool.state.index.depths(asks.hashes(), &mut self.depths);
        self.candidates.clear();
        let block_tokens = block_tokens(asks.pool);
        self.others.clear();
        let (mut fleet, mut heard) = (Others::default(), false);
        for (index, lane) in lanes.iter().enumerate() {
            let depth = self.depths.get(usize::from(lane.slot)).copied().unwrap_or(0);
            let (own, told) = (lane.ledger.own(asks.now_ms), lane.ledger.others(asks.now_ms));
            heard |= told.is_some();
            let told = told.unwrap_or_default();
            self.candidates.push(asks.candidate((index, lane), (&own, &told), depth, block_tokens));
            let others = others(&told);
            fleet.add(&others);
            self.others.push(others);
        }
        self.leave_out_unwilling(asks);
        if heard {
            for (candidate, others) in self.candidates.iter_mut().zip(&self.others) {
                others.add_to(candidate, &fleet, lanes.len());
            }
        }
        Seen { candidates: &self.candidates }
    }

    /// Leaves out who is full or does not serve us while another does. It answers at once and has
    /// nothing to do, so that every policy would send it the next request, too.
    fn leave_out_unwilling(&mut self, asks: &Asks<'_>) {
        let unwilling = |lane: &Lane| lane.replica.health.is_unwilling(asks.now_ms);
        let mut pairs = self.candidates.iter().zip(&asks.pool.lanes);
        if !asks.pool.lanes.iter().any(unwilling)
            || !pairs.any(|(it, lane)| it.eligible && !unwilling(lane))
        {
            return;
        }
        for (it, lane) in self.candidates.iter_mut().zip(&asks.pool.lanes) {
            it.eligible &= !unwilling(lane);
        }
    }

    /// Leaves out who starts slowly, but for its share of the picks. By chance and before any
    /// policy, so that it holds for all of them; not when everybody is new. `draw` is uniform in
    /// 0 to 1.
    pub(super) fn start_slowly(&mut self, mut draw: impl FnMut() -> f64) {
        if !self.candidates.iter().any(|it| it.eligible && it.ramp >= 1.0) {
            return;
        }
        for it in self.candidates.iter_mut().filter(|it| it.eligible && it.ramp < 1.0) {
            it.eligible = draw() < it.ramp;
            // This is all of its slow start: a policy must not hold it back once more.
            it.ramp = 1.0;
        }
    }

    /// What the lanes do not hold of a prompt of so many tokens will be handed over to whichever is
    /// picked.
    pub(super) fn handed_over(&mut self, tokens: u64) {
        for it in &mut self.candidates {
            let missing = tokens.saturating_sub(it.cached_tokens);
            it.cached_tokens = tokens.saturating_sub(missing / HAND_OVER_SHARE);
        }
    }

    /// Leading blocks that the lane held when last looked at.
    pub(super) fn depth(&self, lane: &Lane) -> u32 {
        self.depths.get(usize::from(lane.slot)).copied().unwrap_or(0)
    }

    /// The candidates as last looked at.
    pub(super) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}

/// A pool as seen.
#[derive(Clone, Copy)]
pub(super) struct Seen<'s> {
    candidates: &'s [Candidate],
}

impl<'s> Seen<'s> {
    /// A view of candidates that were seen before.
    pub(super) fn of(candidates: &'s [Candidate]) -> Seen<'s> {
        Seen { candidates }
    }
}

impl FleetView for Seen<'_> {
    fn len(&self) -> usize {
        self.candidates.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        let nobody = || Candidate { eligible: false, ..Candidate::default() };
        self.candidates.get(index).copied().unwrap_or_else(nobody)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(ramps: &[f64]) -> Scratch {
        let candidate =
            |ramp: &f64| Candidate { eligible: true, ramp: *ramp, ..Candidate::default() };
        Scratch { candidates: ramps.iter().map(candidate).collect(), ..Scratch::default() }
    }

    fn eligible(scratch: &Scratch) -> Vec<bool> {
        scratch.candidates.iter().map(|it| it.eligible).collect()
    }

    #[test]
    fn who_starts_slowly_is_left_out_but_for_its_share() {
        let mut seen = scratch(&[1.0, 0.4, 0.1]);
        seen.start_slowly(|| 0.3);
        assert_eq!(eligible(&seen), [true, true, false]);
        let mut all_new = scratch(&[0.4, 0.1]);
        all_new.start_slowly(|| 0.9);
        assert_eq!(eligible(&all_new), [true, true], "somebody must serve");
        let mut gone = scratch(&[1.0, 0.1]);
        gone.candidates[0].eligible = false;
        gone.start_slowly(|| 0.9);
        assert_eq!(eligible(&gone), [false, true]);
    }
}
