//! One request within the engine, and how many blocks it needs when.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Work;
use super::cache::Holding;
use super::slab::{Linked, Links, NONE};

/// Counts of tokens and sequences beyond these are cut down to them, so that no sum overflows.
const TOKENS_MAX: u64 = 1 << 32;
const WIDTH_MAX: u64 = 1 << 16;

/// The list of running requests by admission.
pub(super) const RUNNING: usize = 0;
/// The lists of decodes by the step in which they begin a block.
pub(super) const BUCKET: usize = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Waiting,
    /// It computes its prompt, and after a preemption what it had generated.
    Prefill,
    Decode,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) work: Work,
    pub(super) state: State,
    pub(super) holding: Holding,
    /// Tokens of the prefill that are computed, and those that the running step computes.
    pub(super) computed: u64,
    pub(super) chunk: u64,
    /// Tokens that it had generated when `since_step` steps were over; in decode, one more with
    /// each step since.
    generated: u64,
    since_step: u64,
    /// Tokens that were cached at the first admission.
    pub(super) cached_tokens: Option<u64>,
    pub(super) adapter_slot: u32,
    /// The number of its last admission: a later one is preempted first.
    pub(super) admission: u64,
    pub(super) bucket: u32,
    running_links: Links,
    bucket_links: Links,
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence::new(Work {
            id: 0,
            hashes: Arc::new([]),
            prompt_tokens: 0,
            output_tokens: 1,
            width: 1,
            adapter: 0,
            received_tokens: 0,
        })
    }
}

impl Linked<RUNNING> for Sequence {
    fn links(&self) -> &Links {
        &self.running_links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.running_links
    }
}

impl Linked<BUCKET> for Sequence {
    fn links(&self) -> &Links {
        &self.bucket_links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.bucket_links
    }
}

impl Sequence {
    pub(super) fn new(mut work: Work) -> Sequence {
        work.prompt_tokens = work.prompt_tokens.clamp(1, TOKENS_MAX);
        work.output_tokens = work.output_tokens.clamp(1, TOKENS_MAX);
        work.width = work.width.clamp(1, WIDTH_MAX);
        Sequence {
            work,
            state: State::Waiting,
            holding: Holding::default(),
            computed: 0,
            chunk: 0,
            generated: 0,
            since_step: 0,
            cached_tokens: None,
            adapter_slot: NONE,
            admission: 0,
            bucket: NONE,
            running_links: Links::default(),
            bucket_links: Links::default(),
        }
    }

    /// Tokens generated so far, in each of its sequences.
    pub(super) fn generated(&self, steps: u64) -> u64 {
        match self.state {
            State::Decode => self.generated + (steps - self.since_step),
            State::Waiting | State::Prefill => self.generated,
        }
    }

    /// Fixes the number of generated tokens at this step.
    pub(super) fn set_generated(&mut self, generated: u64, steps: u64) {
        (self.generated, self.since_step) = (generated, steps);
    }

    /// Tokens to compute before it decodes.
    pub(super) fn prefill_tokens(&self) -> u64 {
        self.work.prompt_tokens + self.generated * self.work.width
    }

    /// Tokens whose KV is computed, of one of its sequences.
    pub(super) fn kv_tokens(&self, steps: u64) -> u64 {
        match self.state {
            State::Waiting => 0,
            State::Prefill => self.computed,
            // The last token is known; its KV comes with the next step.
            State::Decode => self.work.prompt_tokens + self.generated(steps) - 1,
        }
    }

    /// Blocks at the beginning that the cache may spare it: never with the last token, and of
    /// several sequences only the prompt, which they share.
    pub(super) fn reusable_blocks(&self, block_tokens: u64) -> u64 {
        let tokens = match self.work.width {
            1 => self.prefill_tokens(),
            _ => self.work.prompt_tokens,
        };
        (tokens - 1) / block_tokens
    }

    /// Blocks that it needs in decode for `tokens` in each sequence: the full blocks of the prompt
    /// are shared, the rest each has for itself.
    pub(super) fn decode_blocks(&self, tokens: u64, block_tokens: u64) -> u64 {
        let common = self.work.prompt_tokens / block_tokens;
        common + self.work.width * tokens.div_ceil(block_tokens).saturating_sub(common)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.holding.blocks()
    }
}

/// When a decode ends: the step, the number of its admission, its place.
pub(super) type End = Reverse<(u64, u64, u32)>;
