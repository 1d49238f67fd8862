//! One engine as a model in virtual time: what vLLM V1 does with requests, without a GPU.
//!
//! Continuous batching with chunked prefill over paged KV memory with a prefix cache; preemption by
//! recompute; adapter slots. [`StepModel`] says how long a step takes, `schedule` what goes into
//! it, `cache` which blocks are where. `sim` runs it by the clock, `plan` as fast as it can, and
//! `routing` predicts with its step model.
//!
//! Pure and deterministic: time is an argument (microseconds from any origin), nothing is random.
//! Work in proportion to requests, steps and new blocks; nothing is done for each token.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod adapters;
mod cache;
mod gaps;
mod params;
mod schedule;
mod sequence;
mod slab;
mod step;
mod table;
mod work;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use cache::{Chain, Hit, Holding, KvCache};
pub use gaps::Gaps;
pub use params::EngineParams;
pub use step::{Step, StepModel};
pub use work::{KvEvent, Progress, Work};

use crate::prompt::blocks::BlockHash;
use adapters::Adapters;
use sequence::{BUCKET, End, RUNNING, Sequence, State};
use slab::{List, NONE, Slab};
use table::Table;

/// One engine.
#[derive(Debug)]
pub struct Engine {
    params: EngineParams,
    cache: KvCache,
    adapters: Adapters,
    sequences: Slab<Sequence>,
    /// Requests by id.
    ids: Table,
    /// Not admitted, first come first; and those that their adapter keeps from it.
    waiting: VecDeque<u32>,
    deferred: VecDeque<u32>,
    /// Admitted ones, the last admitted last; those of them that are in prefill.
    running: List<RUNNING>,
    prefilling: Vec<u32>,
    /// Decodes by the step, modulo a block's length, in which they begin a block.
    buckets: Vec<List<BUCKET>>,
    ends: BinaryHeap<End>,
    /// Decodes whose sequences get their own last block with the next step.
    widened: Vec<u32>,
    /// Scratch.
    due: Vec<(u64, u32)>,
    done: Vec<u32>,
    running_count: u64,
    /// Sequences that run, those of them that decode, and the tokens of the latter.
    width: u64,
    decodes: u64,
    decode_kv: u64,
    /// Steps that are over.
    steps: u64,
    step_ends_us: Option<u64>,
    /// When an idle engine has an adapter loaded; whether it may begin since one was aborted.
    wake_us: Option<u64>,
    kicked: bool,
    now_us: u64,
    /// When the deferred ones were asked last.
    asked_us: u64,
    admissions: u64,
    preemptions: u64,
    gaps: Gaps,
    prefix_queries: u64,
    prefix_hits: u64,
    /// Events of the steps that are over.
    events: Vec<KvEvent>,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(mut params: EngineParams) -> Engine {
        params.block_tokens = params.block_tokens.clamp(1, 4096);
        params.blocks = params.blocks.min(u64::from(u32::MAX / 2));
        // All decodes are in every step.
        params.sequences_max = params.sequences_max.min(params.step_tokens_max).max(1);
        Engine {
            cache: KvCache::new(params.blocks),
            adapters: Adapters::new(params.adapter_slots, params.adapter_load_ms),
            sequences: Slab::new(),
            ids: Table::new(),
            waiting: VecDeque::new(),
            deferred: VecDeque::new(),
            running: List::new(),
            prefilling: Vec::new(),
            buckets: vec![List::new(); params.block_tokens as usize],
            ends: BinaryHeap::new(),
            widened: Vec::new(),
            due: Vec::new(),
            done: Vec::new(),
            running_count: 0,
            width: 0,
            decodes: 0,
            decode_kv: 0,
            steps: 0,
            step_ends_us: None,
            wake_us: None,
            kicked: false,
            now_us: 0,
            asked_us: 0,
            admissions: 0,
            preemptions: 0,
            gaps: Gaps::default(),
            prefix_queries: 0,
            prefix_hits: 0,
            events: Vec::new(),
            params,
        }
    }

    /// Queues a request at `now_us`; an idle engine begins a step at once. One that can never fit
    /// waits until it is aborted, and all behind it with it, as in vLLM.
    pub fn submit(&mut self, now_us: u64, work: Work) {
        let id = work.id;
        self.abort(id);
        let at = self.sequences.insert(Sequence::new(work));
        self.ids.insert(id, at);
        self.waiting.push_back(at);
        if self.step_ends_us.is_none() {
            self.begin_step(now_us);
        }
    }

    /// Drops a request wherever it is; its blocks are free at once, and stay cached. Ask
    /// [`next_us`](Self::next_us) anew: an idle engine may be able to begin.
    pub fn abort(&mut self, id: u64) {
        let Some(at) = self.ids.get(id) else { return };
        if self.sequences.get(at).is_some_and(|s| s.state == State::Waiting) {
            self.waiting.retain(|&other| other != at);
            self.deferred.retain(|&other| other != at);
        }
        self.drop_sequence(at);
        self.kicked = self.step_ends_us.is_none() && !self.waiting.is_empty();
    }

    /// When [`advance`](Self::advance) has something to do; `None` = idle.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        let kick = self.kicked.then_some(self.now_us);
        self.step_ends_us.or(kick).or(self.wake_us)
    }

    /// Ends every step that is over by `now_us` and begins the next ones; adds to `out` what they
    /// brought, in order.
    pub fn advance(&mut self, now_us: u64, out: &mut Vec<Progress>) {
        loop {
            match (self.step_ends_us, self.wake_us) {
                (Some(ends_us), _) if ends_us <= now_us => {
                    self.end_step(ends_us, out);
                    self.begin_step(ends_us);
                }
                (None, _) if self.kicked => self.begin_step(now_us),
                (None, Some(wake_us)) if wake_us <= now_us => self.begin_step(wake_us),
                _ => return,
            }
        }
    }

    /// Tokens that a live request has generated so far, in each of its sequences.
    #[must_use]
    pub fn generated(&self, id: u64) -> Option<u64> {
        self.sequences.get(self.ids.get(id)?).map(|s| s.generated(self.steps))
    }

    /// Requests that hold blocks.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running_count
    }

    /// Requests that wait for blocks, a place or an adapter.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        (self.waiting.len() + self.deferred.len()) as u64
    }

    /// Those of them that wait for an adapter.
    #[must_use]
    pub fn waiting_for_adapter(&self) -> u64 {
        self.deferred.len() as u64
    }

    /// Adapters that requests can use at once.
    pub fn resident_adapters(&self) -> impl Iterator<Item = u32> {
        self.adapters.resident(self.now_us)
    }

    /// Share of the blocks that live requests hold, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        let total = self.cache.total();
        (total - self.cache.free()) as f64 / total.max(1) as f64
    }

    /// Tokens for which the blocks of running requests have room and that are not there: the rest
    /// of each one's last block. Work in proportion to what runs.
    #[must_use]
    pub fn empty_tokens(&self) -> u64 {
        let block_tokens = self.params.block_tokens;
        let empty = |s: &Sequence| {
            let tokens = s.kv_tokens(self.steps);
            let common = tokens.min(s.work.prompt_tokens / block_tokens * block_tokens);
            let filled = common + s.work.width * (tokens - common);
            (s.blocks() * block_tokens).saturating_sub(filled)
        };
        self.running.iter(&self.sequences).map(|(_, s)| empty(s)).sum()
    }

    /// Times that a request lost its blocks to others.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// How long decodes waited for their tokens so far.
    #[must_use]
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Prompt tokens that were looked up in the prefix cache, and those that were found.
    #[must_use]
    pub fn prefix_tokens(&self) -> (u64, u64) {
        (self.prefix_queries, self.prefix_hits)
    }

    /// Leading blocks of a chain that are cached now.
    #[must_use]
    pub fn cached_blocks(&self, hashes: &[BlockHash]) -> u64 {
        self.cache.lookup(hashes).blocks
    }

    /// Forgets all cached blocks; false and nothing while a request holds any, as in vLLM.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.cache.reset()
    }

    /// Forgets everything, as a new process would; a step that runs is lost.
    pub fn restart(&mut self) {
        let (params, recording) = (self.params.clone(), self.cache.is_recording());
        *self = Engine::new(params);
        self.record_events(recording);
    }

    /// Whether to keep [`KvEvent`]s; off at first.
    pub fn record_events(&mut self, on: bool) {
        self.cache.record_events(on);
    }

    /// Moves the events of all steps that are over to `out`, in order.
    pub fn take_events(&mut self, out: &mut Vec<KvEvent>) {
        out.append(&mut self.events);
    }

    /// Steps that are over.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Gives the engine another step model, from the next step on.
    pub fn set_step(&mut self, step: StepModel) {
        self.params.step = step;
    }

    fn end_step(&mut self, at_us: u64, out: &mut Vec<Progress>) {
        self.now_us = at_us;
        self.steps += 1;
        self.decode_kv += self.decodes;
        while let Some(&Reverse((step, admission, at))) = self.ends.peek()
            && step <= self.steps
        {
            self.ends.pop();
            if self.decodes_since(admission, at) {
                self.finish(at, at_us, out);
            }
        }
        let mut done = std::mem::take(&mut self.done);
        for &at in &self.prefilling {
            let Some(s) = self.sequences.get_mut(at) else { continue };
            s.computed += std::mem::take(&mut s.chunk);
            if s.computed >= s.prefill_tokens() {
                done.push(at);
            }
        }
        for at in done.drain(..) {
            self.begin_decode(at, at_us, out);
        }
        self.done = done;
        self.cache.take_events(&mut self.events);
    }

    /// A prefill is over, and with it the next token is there.
    fn begin_decode(&mut self, at: u32, at_us: u64, out: &mut Vec<Progress>) {
        self.prefilling.retain(|&other| other != at);
        let Some(s) = self.sequences.get_mut(at) else { return };
        let generated = s.generated(self.steps) + 1;
        s.state = State::Decode;
        s.set_generated(generated, self.steps);
        if generated == 1 {
            let cached_tokens = s.cached_tokens.unwrap_or(0);
            out.push(Progress::First { id: s.work.id, at_us, cached_tokens });
        }
        let width = s.work.width;
        self.decodes += width;
        self.decode_kv += width * (s.work.prompt_tokens + generated);
        let (block_tokens, kv_tokens) = (self.params.block_tokens, s.kv_tokens(self.steps));
        let ahead = block_tokens - kv_tokens % block_tokens;
        s.bucket = ((self.steps + ahead) % block_tokens) as u32;
        if let Some(bucket) = self.buckets.get_mut(s.bucket as usize) {
            bucket.push_back(&mut self.sequences, at);
        }
        if width > 1 {
            self.widened.push(at);
        }
        let Some(s) = self.sequences.get(at) else { return };
        if generated >= s.work.output_tokens {
            return self.finish(at, at_us, out);
        }
        let end = self.steps + (s.work.output_tokens - generated);
        self.ends.push(Reverse((end, s.admission, at)));
        if self.ends.len() as u64 > 2 * self.running_count + 64 {
            let mut ends = std::mem::take(&mut self.ends);
            ends.retain(|&Reverse((_, admission, at))| self.decodes_since(admission, at));
            self.ends = ends;
        }
    }

    /// Whether a place is still that of the decode with this admission.
    fn decodes_since(&self, admission: u64, at: u32) -> bool {
        let still = |s: &Sequence| s.admission == admission && s.state == State::Decode;
        self.sequences.get(at).is_some_and(still)
    }

    fn finish(&mut self, at: u32, at_us: u64, out: &mut Vec<Progress>) {
        if let Some(s) = self.sequences.get(at) {
            out.push(Progress::Finished { id: s.work.id, at_us });
        }
        self.drop_sequence(at);
    }

    fn drop_sequence(&mut self, at: u32) {
        self.stop(at);
        let gone = self.sequences.remove(at);
        self.ids.remove(gone.work.id);
    }

    /// Takes all from a running request; what it has computed stays cached until evicted.
    fn stop(&mut self, at: u32) {
        let Some(s) = self.sequences.get_mut(at) else { return };
        let (generated, kv_tokens) = (s.generated(self.steps), s.kv_tokens(self.steps));
        let width = s.work.width;
        match s.state {
            State::Waiting => return,
            State::Prefill => self.prefilling.retain(|&other| other != at),
            State::Decode => {
                self.decodes -= width;
                self.decode_kv -= width * (s.work.prompt_tokens + generated);
            }
        }
        if width == 1 {
            let full = kv_tokens / self.params.block_tokens;
            self.cache.store(&mut s.holding, s.work.id, &s.work.hashes, full);
        }
        self.cache.release(&mut s.holding);
        self.adapters.leave(self.now_us, s.adapter_slot);
        s.adapter_slot = NONE;
        s.set_generated(generated, self.steps);
        (s.state, s.computed, s.chunk) = (State::Waiting, 0, 0);
        let bucket = std::mem::replace(&mut s.bucket, NONE);
        if let Some(bucket) = self.buckets.get_mut(bucket as usize) {
            bucket.unlink(&mut self.sequences, at);
        }
        self.running.unlink(&mut self.sequences, at);
        self.running_count -= 1;
        self.width -= width;
    }

    /// Counts all books anew and says which is wrong; slow, for tests.
    ///
    /// # Errors
    ///
    /// What was counted and what was kept, where the two differ.
    pub fn check(&self) -> Result<(), String> {
        let running: Vec<&Sequence> = self.running.iter(&self.sequences).map(|(_, s)| s).collect();
        let holders: Vec<_> = running.iter().map(|s| &s.holding).collect();
        self.cache.check(&holders)?;
        let decoding = |s: &&&Sequence| s.state == State::Decode;
        let tokens = |s: &&Sequence| s.work.prompt_tokens + s.generated(self.steps);
        let kept = [self.width, self.decodes, self.decode_kv, self.running_count];
        let counted = [
            running.iter().map(|s| s.work.width).sum(),
            running.iter().filter(decoding).map(|s| s.work.width).sum(),
            running.iter().filter(decoding).map(|s| s.work.width * tokens(s)).sum(),
            running.len() as u64,
        ];
        let bucketed: usize =
            self.buckets.iter().map(|list| list.iter(&self.sequences).count()).sum();
        let decodes = running.iter().filter(decoding).count();
        let adapters = running.iter().filter(|s| s.work.adapter != 0).count();
        let waiting = self.waiting.len() + self.deferred.len();
        let others = [bucketed, self.adapters.users() as usize, self.ids.len(), waiting];
        let all = self.sequences.len();
        if counted != kept || others != [decodes, adapters, all, all - running.len()] {
            return Err(format!(
                "counted {counted:?} {decodes} {adapters} {all}, kept {kept:?} {others:?}"
            ));
        }
        let enough = |s: &&Sequence| {
            s.blocks() >= s.kv_tokens(self.steps).div_ceil(self.params.block_tokens)
        };
        if running.iter().all(enough) { Ok(()) } else { Err("computed without blocks".into()) }
    }
}

#[cfg(test)]
mod tests;
