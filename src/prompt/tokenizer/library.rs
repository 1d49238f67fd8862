//! The two libraries behind one door: `fastokens`, and `tokenizers` for what it refuses; a
//! `tekken.json` is for `fastokens` alone.
//!
//! Read-only after loading and shared by all cores; `fastokens` keeps a cache of words in each
//! thread. Neither may use threads of its own: a core that encodes is the only one to work on it.

use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use super::definition::Definition;
use super::tekken::{Parsed, Tekken};
use super::{EncodeError, Engine};
use crate::runtime::affinity;

/// One of them, loaded.
pub(super) enum Library {
    Fast(Box<fastokens::Tokenizer>),
    Reference(Box<tokenizers::Tokenizer>),
    Tekken(Box<Tekken>),
}

impl Library {
    /// Loads the `tokenizer.json` at `path`, whose bytes are `file`, as `definition` has it: with
    /// `fastokens`, or with `tokenizers` when that refuses.
    ///
    /// # Errors
    /// What each of them says, when both refuse.
    pub(super) fn load(
        path: &Path,
        file: &[u8],
        definition: &Definition,
    ) -> Result<(Library, Engine), String> {
        one_thread();
        match fast(path, file, definition) {
            Ok(fast) => Ok((Library::Fast(Box::new(fast)), Engine::Fastokens)),
            Err(refused) => {
                let reference = Library::reference(file, definition)
                    .map_err(|error| format!("fastokens: {refused}; tokenizers: {error}"))?;
                Ok((reference, Engine::Tokenizers(refused)))
            }
        }
    }

    /// Loads a `tekken.json`.
    ///
    /// # Errors
    /// What `fastokens` says.
    pub(super) fn tekken(parsed: Parsed) -> Result<Library, String> {
        one_thread();
        Ok(Library::Tekken(Box::new(Tekken::load(parsed)?)))
    }

    /// Loads it with `tokenizers` whatever `fastokens` would say.
    ///
    /// # Errors
    /// What the library says.
    pub(super) fn reference(file: &[u8], definition: &Definition) -> Result<Library, String> {
        let bytes = serde_json::to_vec(&definition.merged(file)?);
        let bytes = bytes.map_err(|error| error.to_string())?;
        let reference =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        Ok(Library::Reference(Box::new(reference)))
    }

    /// Appends the ids of `text`, without any around it. In a `plain` text no added token is
    /// looked for: the caller knows that it holds none.
    pub(super) fn encode(
        &self,
        text: &str,
        plain: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        match self {
            Library::Fast(fast) => {
                let ids = match plain {
                    true => fast.encode_ordinary(text),
                    false => fast.encode(text),
                };
                out.extend_from_slice(&ids.map_err(EncodeError::new)?);
            }
            Library::Reference(reference) => {
                let encoding = reference.encode_fast(text, false).map_err(EncodeError::new)?;
                out.extend_from_slice(encoding.get_ids());
            }
            Library::Tekken(tekken) => tekken.encode(text, out)?,
        }
        Ok(())
    }

    /// Appends the ids of `text`, in which no added token is special.
    pub(super) fn encode_ordinary(
        &self,
        text: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        match self {
            Library::Fast(fast) => {
                out.extend_from_slice(&fast.encode_ordinary(text).map_err(EncodeError::new)?);
            }
            Library::Reference(reference) => {
                // The library keeps this choice in the tokenizer itself. Rare: gpt-oss alone asks.
                let mut ordinary = reference.clone();
                ordinary.set_encode_special_tokens(true);
                let encoding = ordinary.encode_fast(text, false).map_err(EncodeError::new)?;
                out.extend_from_slice(encoding.get_ids());
            }
            Library::Tekken(tekken) => tekken.encode(text, out)?,
        }
        Ok(())
    }

    pub(super) fn has_token(&self, token: &str) -> bool {
        match self {
            Library::Fast(fast) => fast.token_to_id(token).is_some(),
            Library::Reference(reference) => reference.token_to_id(token).is_some(),
            Library::Tekken(tekken) => tekken.has_token(token),
        }
    }

    /// The ids of `text` with those that the file's post-processor puts around it.
    pub(super) fn encode_with_special(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        match self {
            Library::Fast(fast) => {
                fast.encode_with_special_tokens(text, true).map_err(EncodeError::new)
            }
            Library::Reference(reference) => {
                let encoding = reference.encode_fast(text, true).map_err(EncodeError::new)?;
                Ok(encoding.get_ids().to_vec())
            }
            Library::Tekken(_) => Err(no_post_processor()),
        }
    }

    /// What the file's post-processor makes of `ids`.
    pub(super) fn post_process(&self, ids: &[u32]) -> Result<Vec<u32>, EncodeError> {
        match self {
            Library::Fast(fast) => Ok(fast.post_process(ids.to_vec(), true)),
            Library::Reference(reference) => {
                let token = |&id: &u32| tokenizers::Token::new(id, String::new(), (0, 0));
                let tokens = ids.iter().map(token).collect();
                let encoding = tokenizers::Encoding::from_tokens(tokens, 0);
                let encoding =
                    reference.post_process(encoding, None, true).map_err(EncodeError::new)?;
                Ok(encoding.get_ids().to_vec())
            }
            Library::Tekken(_) => Err(no_post_processor()),
        }
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, EncodeError> {
        match self {
            Library::Fast(fast) => fast.decode(ids, skip_special).map_err(EncodeError::new),
            Library::Reference(reference) => {
                reference.decode(ids, skip_special).map_err(EncodeError::new)
            }
            Library::Tekken(tekken) => tekken.decode(ids, skip_special),
        }
    }

    pub(super) fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Library::Fast(fast) => fast.id_to_token(id).map(str::to_owned),
            Library::Reference(reference) => reference.id_to_token(id),
            Library::Tekken(tekken) => tekken.id_to_token(id),
        }
    }
}

/// What surrounds a text is known of a `tekken.json` before it is loaded, and never asked.
fn no_post_processor() -> EncodeError {
    EncodeError::new("tekken.json has no post-processor")
}

/// Loads with `fastokens`. It reads the file itself when nothing is to be changed, which leaves
/// half as much freed memory behind as a tree of JSON does (Qwen 3: 150 MB in all, not 280).
fn fast(path: &Path, file: &[u8], definition: &Definition) -> Result<fastokens::Tokenizer, String> {
    if !definition.changed
        && let Ok(mut fast) = fastokens::Tokenizer::from_file(path)
    {
        fast.set_truncation(None);
        fast.set_padding(None);
        return Ok(fast);
    }
    let json = definition.merged(file)?;
    fastokens::Tokenizer::from_json(json).map_err(|error| error.to_string())
}

/// Sees to it that `fastokens` starts no threads in this process; says how many may encode one
/// text, 1 unless a thread could not be pinned.
///
/// The library sizes its pool once, when first asked, by `FASTOKENS_BPE_THREADS` and by the CPUs
/// that the asking thread may run on. Setting the variable is unsafe once there are threads, so the
/// first to ask is a thread pinned to one CPU. Should that fail, texts below 64 KiB still never
/// reach the pool, and a turn of a core encodes less than that.
pub(super) fn one_thread() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let ask = || {
            if let Some(&cpu) = affinity::allowed().unwrap_or_default().first() {
                // Unpinned, the answer says so.
                let _ = affinity::pin(cpu);
            }
            fastokens::fanout::threads()
        };
        let thread = thread::Builder::new().name("tokenizer".to_owned()).spawn(ask);
        thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(0)
    })
}
