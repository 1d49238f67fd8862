//! What an answer is made of, whatever the API: its id, its numbers, its usage.
//!
//! No I/O, no clock.

use super::call::{Call, Choice};
use super::fault::UsageShape;

/// Fingerprint of the version that the captures were taken from.
pub(super) const FINGERPRINT: &str = "vllm-0.32.0-9f9658be";

/// An answer in the making.
pub(super) struct Answer<'c> {
    pub(super) call: &'c Call,
    /// With its prefix (`chatcmpl-`, `cmpl-`, `resp_`).
    pub(super) id: String,
    /// The part of the id that is the request's own.
    pub(super) bare_id: String,
    /// Unix time in seconds.
    pub(super) created: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    /// Tokens in a block of the cache.
    pub(super) block_tokens: u64,
    /// `--enable-prompt-tokens-details`.
    pub(super) details: bool,
    pub(super) usage_shape: Option<UsageShape>,
    /// Served under the name of the request, in JSON quotes.
    pub(super) model_json: String,
    /// Generation is cut after so many tokens with `finish_reason: "abort"`.
    pub(super) abort_after: Option<u64>,
    /// `kv_transfer_params` as JSON.
    pub(super) kv_params: String,
    /// Beginning of each event up to its choices.
    pub(super) prefix: Vec<u8>,
}

/// Numbers as usage tells them; signed because a fault may want them so.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) prompt: i64,
    pub(super) completion: i64,
}

impl Numbers {
    pub(super) fn total(self) -> i64 {
        self.prompt + self.completion
    }
}

impl Answer<'_> {
    /// Usage after `completion` tokens.
    pub(super) fn numbers(&self, completion: u64) -> Numbers {
        if self.usage_shape == Some(UsageShape::Negative) {
            return Numbers { prompt: -1, completion: -5 };
        }
        Numbers { prompt: self.prompt_tokens as i64, completion: completion as i64 }
    }

    /// Tokens of all choices after `steps` steps.
    pub(super) fn generated(&self, steps: u64) -> u64 {
        self.call.choices.iter().map(|c| c.tokens.min(steps)).sum()
    }

    /// `cached_tokens` as JSON.
    pub(super) fn cached(&self) -> String {
        match self.usage_shape {
            Some(UsageShape::ZeroCached) => "0".to_owned(),
            Some(UsageShape::NullCached) => "null".to_owned(),
            _ => self.cached_tokens.to_string(),
        }
    }

    /// Tokens in full blocks that this prompt added to the cache.
    pub(super) fn cache_created(&self) -> u64 {
        let block = self.block_tokens;
        (self.prompt_tokens / block * block).saturating_sub(self.cached_tokens)
    }

    /// Whether usage comes as the last event of a stream.
    pub(super) fn usage_event(&self) -> bool {
        let elsewhere = [Some(UsageShape::Missing), Some(UsageShape::LastChoice)];
        self.call.include_usage && !elsewhere.contains(&self.usage_shape)
    }

    /// Whether an event with a choice carries usage.
    pub(super) fn usage_in_choice(&self, finishing: bool) -> bool {
        match self.usage_shape {
            Some(UsageShape::Continuous) => true,
            Some(UsageShape::LastChoice) => finishing,
            Some(UsageShape::Missing) => false,
            _ => self.call.continuous_usage,
        }
    }

    /// Whether the whole answer ends after this step of a choice.
    pub(super) fn ends(&self, choice: &Choice, step: u64) -> bool {
        step + 1 >= choice.tokens || self.aborts(step)
    }

    /// Whether the answer is cut by `finish_reason: "abort"` at this step.
    pub(super) fn aborts(&self, step: u64) -> bool {
        self.abort_after.is_some_and(|after| step + 1 >= after)
    }
}

/// Appends texts.
pub(super) fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a number.
pub(super) fn push_number(out: &mut Vec<u8>, n: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Text as a JSON string, quotes included.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
