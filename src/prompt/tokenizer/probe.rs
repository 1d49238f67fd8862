//! What is only known by trying: the ids around a text, and whether cuts hold.
//!
//! Runs once when a tokenizer is loaded. A cut that the rules allow and that changes any id of a
//! probe is switched off for that model, with the reason; the rules are then wrong for it.

use super::added::{Added, Role};
use super::cuts::Cuts;
use super::definition::AddedToken;
use super::{EncodeError, library::Library};

/// Boundaries tried; of a vocabulary with thousands, these many spread over it.
const BOUNDARIES_MAX: usize = 64;

/// Text of the kinds that prompts are made of, and of those that trip splitters.
pub(super) const TEXTS: [&str; 12] = [
    "You are a helpful assistant. Answer briefly, and say so when you don't know: it's fine!",
    "fn main() {\n    let x = vec![1, 22, 333];\n\tprintln!(\"{:?}\", x); // it's 4,444\n}\n\n\n",
    "{\"name\": \"get_weather\",\"parameters\":{\"city\":\"Paris\",\"days\":[1,2,3]},\"ok\":true}",
    "  leading, trailing and   inner   spaces  \n \n\t\n  then 12345678 and 3.14159e-10   ",
    "HELLO World CamelCase snake_case kebab-case don't DON'T we'll they're I'D x'S 'tis",
    "Größe naïve café e\u{301}le\u{300}ve Ångström fiancée — “quotes” … ½ ² № ﬁ",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก",
    "你好，世界！今天天气很好。これはテストです。カタカナ、ひらがな。한국어 문장입니다.",
    "👋🏽 👨‍👩‍👧‍👦 🇫🇷 ✅ → ∑ √ ≠ = \u{338} \u{200b}\u{200d}\u{feff} \u{a0}x\u{3000}y\u{85}z",
    "https://example.com/a/b?c=d&e=%20#f user@example.com C:\\path\\file.txt <b>bold</b>\r\n\r\nx",
    "a\n\nb\r\nc \n d  \n\n  e\t\tf\n1\n22\n!\n?\n",
    "",
];

/// The ids that the file's post-processor puts before and after every text.
///
/// # Errors
/// The library's, or a post-processor that does more than that.
pub(super) fn affixes(library: &Library) -> Result<(Vec<u32>, Vec<u32>), EncodeError> {
    // What stands around an id that no vocabulary has.
    const TEXT: u32 = u32::MAX;
    let around = library.post_process(&[TEXT])?;
    let parts: Vec<&[u32]> = around.split(|&id| id == TEXT).collect();
    let [prefix, suffix] = parts.as_slice() else {
        return Err(EncodeError::new("the post-processor repeats the text"));
    };
    for text in ["", "a"] {
        let mut bare = Vec::new();
        library.encode(text, false, &mut bare)?;
        if library.encode_with_special(text)? != [prefix, bare.as_slice(), suffix].concat() {
            return Err(EncodeError::new("the post-processor does more than add ids to a text"));
        }
    }
    Ok((prefix.to_vec(), suffix.to_vec()))
}

/// Tries every cut that `cuts` allows on probes and switches off the kind that fails.
///
/// # Errors
/// The library's.
pub(super) fn cuts(
    library: &Library,
    tokens: &[AddedToken],
    added: &Added,
    cuts: &mut Cuts,
) -> Result<(), EncodeError> {
    if cuts.added.is_ok()
        && let Some(wrong) = boundaries(library, tokens, added)?
    {
        cuts.added = Err(format!("a probe failed at the added token with id {wrong}"));
        cuts.letter_space = Err("cuts at added tokens are off".to_owned());
    }
    if cuts.letter_space.is_ok()
        && let Some((before, after)) = characters(library, cuts)?
    {
        cuts.letter_space = Err(format!("a probe failed between {before:?} and {after:?}"));
    }
    Ok(())
}

/// The id of a boundary at which the ids of some whole text are not those of its parts.
fn boundaries(
    library: &Library,
    tokens: &[AddedToken],
    added: &Added,
) -> Result<Option<u32>, EncodeError> {
    let cuts = |token: &&AddedToken| {
        let len = token.content.len();
        let found = added.find(&token.content, 0, 1);
        found.is_some_and(|found| found.end == len && found.role != Role::Inside)
    };
    let tokens: Vec<&AddedToken> = tokens.iter().filter(cuts).collect();
    let step = tokens.len().div_ceil(BOUNDARIES_MAX).max(1);
    for (i, token) in tokens.iter().step_by(step).enumerate() {
        let left = TEXTS.iter().cycle().skip(i).take(2);
        for (left, right) in left.zip(TEXTS.iter().cycle().skip(i + 5)) {
            let whole = [left, token.content.as_str(), right].concat();
            let (mut ids, mut parts) = (Vec::new(), Vec::new());
            library.encode(&whole, false, &mut ids)?;
            library.encode(left, false, &mut parts)?;
            parts.push(token.id);
            library.encode(right, false, &mut parts)?;
            if ids != parts {
                return Ok(Some(token.id));
            }
        }
    }
    Ok(None)
}

/// Two characters between which a cut changes the ids of a text.
fn characters(library: &Library, cuts: &Cuts) -> Result<Option<(char, char)>, EncodeError> {
    for text in TEXTS {
        let mut whole = Vec::new();
        library.encode(text, true, &mut whole)?;
        let befores = text.chars();
        for ((at, after), before) in text.char_indices().skip(1).zip(befores) {
            if !cuts.between(before, after) {
                continue;
            }
            let (left, right) = text.split_at(at);
            let mut parts = Vec::new();
            library.encode(left, true, &mut parts)?;
            library.encode(right, true, &mut parts)?;
            if parts != whole {
                return Ok(Some((before, after)));
            }
        }
    }
    Ok(None)
}
