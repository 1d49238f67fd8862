//! Prompts as an engine with a real tokenizer has them: the gateway's own template, tokens and
//! block hashes, so that both agree when they read the same folder.
//!
//! One a thread, shared by its replicas; the tables are shared by all threads. Encodes on the
//! thread that asks, in one go, for as long as it takes: a client that measures gaps keeps long
//! prompts away from the thread that it measures. No I/O.

use std::cell::RefCell;
use std::sync::Arc;

use super::call::{Api, Prompt};
use super::date;
use crate::openai::{self, Call, Endpoint, read_call};
use crate::prompt::blocks::Root;
use crate::prompt::model::{Ask, Model};
use crate::prompt::segments::SegmentCache;
use crate::prompt::work::{Terms, Work};

/// Bytes of encoded parts that a thread keeps.
const SEGMENT_BYTES: usize = 64 << 20;

/// See the module.
pub(super) struct Exact {
    model: Arc<Model>,
    segments: RefCell<SegmentCache>,
    context_tokens: u64,
}

/// A prompt as real tokens.
#[derive(Debug)]
pub(super) struct Real {
    pub(super) ids: Vec<u32>,
}

impl Exact {
    pub(super) fn new(model: Arc<Model>, context_tokens: u64) -> Exact {
        Exact { model, segments: RefCell::new(SegmentCache::new(SEGMENT_BYTES)), context_tokens }
    }

    /// Token ids of each prompt in a body; `None` where even the gateway does not know them.
    pub(super) fn ids(&self, endpoint: Endpoint, body: &[u8]) -> Option<Vec<Vec<u32>>> {
        let call = read_call(endpoint, body).ok()?;
        self.ids_of(endpoint, &call, body)
    }

    fn ids_of(&self, endpoint: Endpoint, call: &Call, body: &[u8]) -> Option<Vec<Vec<u32>>> {
        // What is counted for Anthropic's clients is the prompt of their messages.
        let endpoint = match endpoint {
            Endpoint::CountTokens => Endpoint::Messages,
            other => other,
        };
        let unix_s = i64::try_from(date::unix_seconds()).unwrap_or(0);
        let source = self.model.source(&Ask { endpoint, call, body, unix_s }).ok()?;
        let media = source.media_parts > 0;
        let no_blocks = (Root::new(None, None), 0);
        let terms = Terms::new(endpoint, call, Some(self.context_tokens), no_blocks);
        let mut work = Work::new(Some(self.model.tokenizer()), source, terms);
        work.rest(&mut self.segments.borrow_mut()).ok()?;
        let (_, ids) = work.finish();
        // The text before the first picture and the rest are one prompt.
        Some(if media { vec![ids.concat()] } else { ids })
    }

    /// Makes the prompts of a generation request real; leaves them as they are where it cannot.
    pub(super) fn make_real(&self, api: Api, body: &[u8], prompts: &mut [Prompt]) {
        let endpoint = match api {
            Api::Chat => Endpoint::ChatCompletions,
            Api::Completions => Endpoint::Completions,
            Api::Responses => Endpoint::Responses,
            Api::Messages => Endpoint::Messages,
        };
        let Ok(call) = read_call(endpoint, body) else { return };
        let Some(lists) = self.ids_of(endpoint, &call, body) else { return };
        if lists.len() != prompts.len() {
            return;
        }
        let as_ids = matches!(
            call.prompt,
            openai::Prompt::Tokens { .. } | openai::Prompt::TokenLists { .. }
        );
        for (prompt, ids) in prompts.iter_mut().zip(lists) {
            if let Some(text) = as_ids.then(|| self.text(&ids)).flatten() {
                prompt.retell(text.into_bytes());
            }
            prompt.real = Some(Real { ids });
        }
    }

    /// The ids of a plain text, as it would come within a longer one.
    pub(super) fn ids_of_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        // What cannot be encoded has no ids.
        if self.model.tokenizer().encode_ordinary(text, &mut ids).is_err() {
            ids.clear();
        }
        ids
    }

    /// The text of token ids; `None` for an id that the tokenizer does not have.
    pub(super) fn text(&self, ids: &[u32]) -> Option<String> {
        let tokenizer = self.model.tokenizer();
        let known = ids.iter().all(|id| *id < tokenizer.vocab_size());
        if known { tokenizer.decode(ids, false).ok() } else { None }
    }

    /// The token itself, as the vocabulary writes it.
    pub(super) fn token(&self, id: u32) -> Option<String> {
        self.model.tokenizer().id_to_token(id)
    }
}
