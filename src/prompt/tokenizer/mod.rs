//! Token ids of a text, exactly as the engine computes them.
//!
//! `definition.rs` merges the model's files as transformers does, `tekken.rs` reads Mistral's own,
//! `library.rs` loads the result with one of two libraries, `added.rs` finds added tokens,
//! `cuts.rs` says where a text may be cut and `probe.rs` tries it. Tables are loaded off the cores,
//! read-only and shared by an `Arc`; what a core keeps of its own is in [`super::segments`].

mod added;
mod cuts;
mod definition;
mod library;
mod probe;
mod tekken;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

pub use cuts::Cuts;

use crate::runtime::files;
pub(super) use added::{Found, Role};

use added::Added;
use definition::Definition;
use library::Library;
use tekken::Parsed;

const TOKENIZER: &str = "tokenizer.json";
const TEKKEN: &str = "tekken.json";

/// The largest file read, in bytes: twice the largest `tokenizer.json` in use.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Resident bytes for each byte of `tokenizer.json`: 12 to 18 for five models, of which 3 to 12 are
/// tables and the rest is what loading frees and the allocator keeps.
const BYTES_A_FILE_BYTE: usize = 16;
/// Resident bytes for each token of a `tekken.json`: 123 to 137 MB for 131,072 of them.
const BYTES_A_TEKKEN_TOKEN: usize = 1024;

/// Which library encodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// `fastokens`.
    Fastokens,
    /// `tokenizers`, some fifty times slower, for the reason given.
    Tokenizers(String),
}

/// Why no tokenizer could be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// A file could not be read.
    Read(&'static str, std::io::Error),
    /// A file is not what its name says.
    Json(&'static str, String),
    /// Neither library takes the model.
    Refused(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Read(file, error) => write!(f, "{file}: {error}"),
            LoadError::Json(file, error) => write!(f, "{file}: {error}"),
            LoadError::Refused(error) => write!(f, "no tokenizer library takes it: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// A library's failure to encode or decode; no text of a caller is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeError(String);

impl EncodeError {
    /// Text, where only token ids were expected.
    pub(super) fn no_tokenizer() -> EncodeError {
        EncodeError("there is no tokenizer for a text".to_owned())
    }

    pub(super) fn new(error: impl fmt::Display) -> EncodeError {
        EncodeError(error.to_string())
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EncodeError {}

/// A model's tokenizer.
pub struct Tokenizer {
    library: Library,
    engine: Engine,
    added: Added,
    cuts: Cuts,
    /// Ids before and after a text that is encoded with `add_special`.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    vocab_size: u32,
    bytes: usize,
    /// Tells it from every other tokenizer of this process.
    tag: u32,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of a model's folder, with what `tokenizer_config.json` adds to it, or
    /// `tekken.json` of a folder that has no `tokenizer.json`; and the vocabulary size of the
    /// model's configuration, when it is there. Takes a second or more.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(folder: &Path) -> Result<Tokenizer, LoadError> {
        if folder.join(TOKENIZER).exists() {
            return Tokenizer::huggingface(folder);
        }
        match read(folder, TEKKEN)? {
            Some(file) => Tokenizer::tekken(folder, &file),
            None => Tokenizer::huggingface(folder),
        }
    }

    /// Loads `tokenizer.json`.
    fn huggingface(folder: &Path) -> Result<Tokenizer, LoadError> {
        let path = folder.join(TOKENIZER);
        let file = files::read(&path, FILE_BYTES_MAX)
            .map_err(|error| LoadError::Read(TOKENIZER, error))?;
        let config = read_json(folder, "tokenizer_config.json")?;
        let definition = Definition::read(&file, config.as_ref())
            .map_err(|error| LoadError::Json(TOKENIZER, error))?;
        let (library, engine) =
            Library::load(&path, &file, &definition).map_err(LoadError::Refused)?;
        let bytes = file.len().saturating_mul(BYTES_A_FILE_BYTE);
        Tokenizer::new(&definition, library, engine, bytes)?.of_model(folder, "config.json")
    }

    /// Loads `tekken.json`, whose bytes are `file`.
    fn tekken(folder: &Path, file: &[u8]) -> Result<Tokenizer, LoadError> {
        let parsed = Parsed::read(file).map_err(|error| LoadError::Json(TEKKEN, error))?;
        let definition = parsed.definition();
        let library = Library::tekken(parsed).map_err(LoadError::Refused)?;
        let bytes = (definition.vocab_size as usize).saturating_mul(BYTES_A_TEKKEN_TOKEN);
        Tokenizer::new(&definition, library, Engine::Fastokens, bytes)?
            .of_model(folder, "params.json")
    }

    /// The same with the vocabulary of the model, if that is the larger.
    fn of_model(mut self, folder: &Path, file: &'static str) -> Result<Tokenizer, LoadError> {
        if let Some(model) = read_json(folder, file)? {
            self.vocab_size = self.vocab_size.max(model_vocab(&model));
        }
        Ok(self)
    }

    /// Puts a library and what else there is to know together; `bytes` are those of its tables.
    fn new(
        definition: &Definition,
        library: Library,
        engine: Engine,
        bytes: usize,
    ) -> Result<Tokenizer, LoadError> {
        static TAGS: AtomicU32 = AtomicU32::new(0);
        let json = &definition.head;
        let identity = cuts::is_identity(json.get("normalizer"));
        let added = Added::new(&definition.added, identity).map_err(LoadError::Refused)?;
        let mut cuts = Cuts::judge(json, added.is_complete(), added.has_flags());
        let refused = |error: EncodeError| LoadError::Refused(error.to_string());
        let (prefix, suffix) = match definition.affixes.clone() {
            Some(affixes) => affixes,
            None => probe::affixes(&library).map_err(refused)?,
        };
        probe::cuts(&library, &definition.added, &added, &mut cuts).map_err(refused)?;
        Ok(Tokenizer {
            library,
            engine,
            bytes: bytes.saturating_add(added.bytes()),
            added,
            cuts,
            prefix,
            suffix,
            vocab_size: definition.vocab_size,
            tag: TAGS.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Which library encodes, and why if it is not the fast one.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }

    /// It was loaded from a `tekken.json`.
    pub fn is_tekken(&self) -> bool {
        matches!(self.library, Library::Tekken(_))
    }

    /// Where texts may be cut, or why not.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Appends the ids of `text` in one go, without cutting or caching. With `add_special` the ids
    /// that the model's post-processor puts around a text are there too (BOS, EOS).
    ///
    /// # Errors
    /// The library's; nothing is appended then.
    pub fn encode_whole(
        &self,
        text: &str,
        add_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        out.extend_from_slice(self.prefix(add_special));
        let encoded = self.library.encode(text, false, out);
        match encoded {
            Ok(()) => out.extend_from_slice(self.suffix(add_special)),
            Err(_) => out.truncate(start),
        }
        encoded
    }

    /// Appends the ids of `text` in which the names of special tokens are no more than text.
    ///
    /// # Errors
    /// The library's; nothing is appended then.
    pub fn encode_ordinary(&self, text: &str, out: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.library.encode_ordinary(text, out)
    }

    /// Is `token` one of the vocabulary, added ones among it?
    pub fn has_token(&self, token: &str) -> bool {
        self.library.has_token(token)
    }

    /// The text of `ids`, as `decode` of transformers has it: ids out of the vocabulary are left
    /// out, and with `skip_special` special tokens too. Of a `tekken.json` as mistral-common has
    /// it, which refuses such ids.
    ///
    /// # Errors
    /// The library's.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, EncodeError> {
        self.library.decode(ids, skip_special)
    }

    /// The token of `id` as vLLM's `convert_ids_to_tokens` has it (byte-level models: `Ġthe`; of a
    /// `tekken.json`: ` the`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.library.id_to_token(id)
    }

    /// Ids from here on are out of the vocabulary: as vLLM has it, the larger of the tokenizer's
    /// and the model's.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Resident bytes of the tables, estimated from the size of the file or of the vocabulary.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Encodes some text of many kinds, so that the calling thread's first real one does not pay
    /// for tables that are built on first use (50 to 280 ms).
    pub fn warm(&self) {
        let mut ids = Vec::new();
        for text in probe::TEXTS {
            // A text that cannot be encoded fails again, and is told, when a caller sends it.
            let _ = self.encode_whole(text, true, &mut ids);
        }
        let _ = self.decode(&ids, true);
    }

    pub(super) fn prefix(&self, add_special: bool) -> &[u32] {
        if add_special { &self.prefix } else { &[] }
    }

    pub(super) fn suffix(&self, add_special: bool) -> &[u32] {
        if add_special { &self.suffix } else { &[] }
    }

    /// The first added token that starts in `from..until`.
    pub(super) fn find_added(&self, text: &str, from: usize, until: usize) -> Option<Found> {
        self.added.find(text, from, until)
    }

    /// Where [`Tokenizer::find_added`] finds none, there is none.
    pub(super) fn finds_all(&self) -> bool {
        self.added.is_complete()
    }

    /// Appends the ids of a part between cuts; `plain` when no added token is in it.
    pub(super) fn encode_part(
        &self,
        part: &str,
        plain: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        self.library.encode(part, plain, out)
    }

    pub(super) fn is_fast(&self) -> bool {
        matches!(self.library, Library::Fast(_) | Library::Tekken(_))
    }

    pub(super) fn tag(&self) -> u32 {
        self.tag
    }
}

/// A file of the folder, if it is there.
fn read(folder: &Path, file: &'static str) -> Result<Option<Vec<u8>>, LoadError> {
    files::read_if_any(&folder.join(file), FILE_BYTES_MAX)
        .map_err(|error| LoadError::Read(file, error))
}

/// The same, of JSON.
fn read_json(folder: &Path, file: &'static str) -> Result<Option<Value>, LoadError> {
    let parse = |bytes: Vec<u8>| {
        serde_json::from_slice(&bytes).map_err(|error| LoadError::Json(file, error.to_string()))
    };
    read(folder, file)?.map(parse).transpose()
}

/// `vocab_size` of a model's `config.json`; of a multimodal one, that of its text model.
fn model_vocab(config: &Value) -> u32 {
    let of = |config: Option<&Value>| config?.get("vocab_size")?.as_u64();
    let size = of(config.get("text_config")).or_else(|| of(Some(config)));
    size.and_then(|size| u32::try_from(size).ok()).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests;
