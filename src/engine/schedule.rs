//! What goes into the next step: decodes, then prompts that are under way, then admissions, first
//! come first served, as the scheduler of vLLM V1.
//!
//! All decodes advance by one token a step, so no step touches each of them: their number and
//! their KV are sums, and a list for each step of a block's length says which of them begin a
//! block. When no block is left, the request that was admitted last loses all that it has, goes to
//! the head of the queue, and computes later what the cache has not kept; nobody is admitted in
//! that step.

use super::adapters::Found;
use super::cache::own_chain;
use super::sequence::State;
use super::slab::NONE;
use super::{Engine, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It runs, with so many tokens of the step.
    Runs(u64),
    /// It waits for its adapter; those behind it may run.
    Deferred,
    /// It waits for blocks or a place, and so do those behind it.
    Blocked,
}

impl Engine {
    /// Begins a step, if there is something to compute.
    pub(super) fn begin_step(&mut self, now_us: u64) {
        (self.step_ends_us, self.wake_us, self.kicked) = (None, None, false);
        self.now_us = now_us;
        let preempted = self.preemptions;
        self.widen();
        self.begin_blocks();
        let budget = self.params.step_tokens_max.saturating_sub(self.decodes);
        let budget = self.continue_prefills(budget);
        if self.preemptions == preempted {
            self.admit(budget);
        }
        let mut step = Step::default();
        step.decode(self.decodes, self.decode_kv);
        for sequence in self.prefilling.iter().filter_map(|&at| self.sequences.get(at)) {
            if sequence.chunk > 0 {
                step.prefill(sequence.chunk, sequence.computed);
            }
        }
        if step.tokens > 0 {
            let step_us = (self.params.step.ms(&step) * 1e3).round() as u64;
            self.step_ends_us = Some(now_us.saturating_add(step_us.max(1)));
            self.gaps.add(step_us, self.decodes);
        } else if !self.deferred.is_empty() {
            self.wake_us = self.adapters.next_us(now_us);
        }
    }

    /// Gives the sequences of a request that decodes from now on each a last block of its own.
    fn widen(&mut self) {
        let mut widened = std::mem::take(&mut self.widened);
        for at in widened.drain(..) {
            let Some(sequence) = self.sequences.get(at).filter(|s| s.state == State::Decode) else {
                continue;
            };
            let block_tokens = self.params.block_tokens;
            let tokens = sequence.kv_tokens(self.steps);
            let needed = sequence.decode_blocks(tokens, block_tokens);
            self.take_or_preempt(at, needed.saturating_sub(sequence.blocks()));
        }
        self.widened = widened;
    }

    /// Gives a block to each sequence whose next token begins one.
    fn begin_blocks(&mut self) {
        let bucket = (self.steps % self.params.block_tokens) as usize;
        let Some(list) = self.buckets.get(bucket) else { return };
        let mut due = std::mem::take(&mut self.due);
        due.extend(list.iter(&self.sequences).map(|(at, s)| (s.admission, at)));
        let blocks: u64 =
            due.iter().filter_map(|d| self.sequences.get(d.1)).map(|s| s.work.width).sum();
        if blocks > self.cache.free() {
            // Some will be preempted, and then the order counts.
            due.sort_unstable();
        }
        for (_, at) in due.drain(..) {
            // One that was preempted on behalf of another is no longer there.
            let Some(s) = self.sequences.get_mut(at).filter(|s| s.state == State::Decode) else {
                continue;
            };
            let full = s.kv_tokens(self.steps) / self.params.block_tokens;
            if s.work.width == 1 {
                self.cache.store(&mut s.holding, s.work.id, &s.work.hashes, full);
            }
            let width = s.work.width;
            self.take_or_preempt(at, width);
        }
        self.due = due;
    }

    /// Puts chunks of prompts under way into the step; returns what is left of its tokens.
    fn continue_prefills(&mut self, mut budget: u64) -> u64 {
        let mut i = 0;
        while let Some(&at) = self.prefilling.get(i) {
            let Some(chunk) = self.chunk(at, budget) else { continue };
            budget -= chunk;
            i += 1;
        }
        budget
    }

    /// Puts up to `budget` tokens of a prompt into the step; `None` = it was preempted.
    fn chunk(&mut self, at: u32, budget: u64) -> Option<u64> {
        let sequence = self.sequences.get_mut(at)?;
        sequence.chunk = 0;
        let chunk = (sequence.prefill_tokens() - sequence.computed).min(budget);
        let tokens = sequence.computed + chunk;
        let blocks = tokens.div_ceil(self.params.block_tokens).saturating_sub(sequence.blocks());
        if !self.take_or_preempt(at, blocks) {
            return None;
        }
        let s = self.sequences.get_mut(at)?;
        s.chunk = chunk;
        // Findable from now on: who joins in this step reads it a layer after it was written.
        let shared = if s.work.width == 1 { tokens } else { tokens.min(s.work.prompt_tokens) };
        let full = shared / self.params.block_tokens;
        self.cache.store(&mut s.holding, s.work.id, &s.work.hashes, full);
        Some(chunk)
    }

    /// Gives blocks to a sequence, preempting others or at last itself; false = itself.
    fn take_or_preempt(&mut self, at: u32, blocks: u64) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(at) else { return false };
            if self.cache.take(&mut sequence.holding, blocks) {
                return true;
            }
            let last = self.running.tail();
            self.preempt(last);
            if last == at || last == NONE {
                return false;
            }
        }
    }

    fn preempt(&mut self, at: u32) {
        let block_tokens = self.params.block_tokens;
        let Some(s) = self.sequences.get_mut(at) else { return };
        let full = s.kv_tokens(self.steps) / block_tokens;
        if s.work.width == 1 && full > s.work.hashes.len() as u64 {
            // In vLLM every full block has a hash, so the request finds its own answer again.
            s.work.hashes = own_chain(&s.work.hashes, s.work.id, full);
        }
        self.stop(at);
        self.waiting.push_front(at);
        self.preemptions += 1;
    }

    fn admit(&mut self, mut budget: u64) {
        if !self.deferred.is_empty() && self.adapters.changed(self.asked_us, self.now_us) {
            self.asked_us = self.now_us;
            let mut deferred = std::mem::take(&mut self.deferred);
            let mut blocked = false;
            deferred.retain(|&at| {
                if blocked || budget == 0 {
                    blocked = true;
                    return true;
                }
                match self.try_admit(at, budget) {
                    Admission::Runs(chunk) => {
                        budget -= chunk;
                        false
                    }
                    Admission::Deferred => true,
                    Admission::Blocked => {
                        blocked = true;
                        true
                    }
                }
            });
            self.deferred = deferred;
            if blocked {
                self.adapters.ask_again();
                return;
            }
        }
        while budget > 0
            && let Some(&at) = self.waiting.front()
        {
            match self.try_admit(at, budget) {
                Admission::Runs(chunk) => budget -= chunk,
                Admission::Deferred => self.deferred.push_back(at),
                Admission::Blocked => return,
            }
            self.waiting.pop_front();
        }
    }

    fn try_admit(&mut self, at: u32, budget: u64) -> Admission {
        let block_tokens = self.params.block_tokens;
        let Some(s) = self.sequences.get_mut(at) else { return Admission::Deferred };
        let width = s.work.width;
        if self.width > 0 && self.width + width > self.params.sequences_max {
            return Admission::Blocked;
        }
        let mut slot = NONE;
        if s.work.adapter != 0 {
            match self.adapters.find(self.now_us, s.work.adapter) {
                Found::Ready(found) => slot = found,
                Found::Wait => return Admission::Deferred,
            }
        }
        let reusable = s.work.hashes.len().min(s.reusable_blocks(block_tokens) as usize);
        let hit = self.cache.lookup(s.work.hashes.get(..reusable).unwrap_or_default());
        // The whole prompt must fit (`scheduler_reserve_full_isl`), though blocks are taken by
        // chunk.
        let needed = s.prefill_tokens().div_ceil(block_tokens) - hit.blocks;
        if needed + hit.idle > self.cache.free() {
            return Admission::Blocked;
        }
        s.holding = self.cache.acquire(&hit);
        s.computed = hit.blocks * block_tokens;
        if s.cached_tokens.is_none() {
            s.cached_tokens = Some(s.computed);
            self.prefix_queries += s.work.prompt_tokens;
            self.prefix_hits += s.computed;
        }
        // Once: after a preemption it computes what the cache has not kept of them.
        let received = std::mem::take(&mut s.work.received_tokens);
        s.computed = s.computed.max(received.min(s.prefill_tokens().saturating_sub(1)));
        self.admissions += 1;
        (s.admission, s.state, s.adapter_slot) = (self.admissions, State::Prefill, slot);
        self.adapters.enter(self.now_us, slot);
        self.width += width;
        self.running_count += 1;
        self.running.push_back(&mut self.sequences, at);
        self.prefilling.push(at);
        Admission::Runs(self.chunk(at, budget).unwrap_or(0))
    }
}
