//! Where a text can be cut so that its parts, encoded apart, give the ids of the whole.
//!
//! # At added tokens
//!
//! Exact when normalizer, pre-tokenizer and model look at each piece between added tokens alone,
//! without knowing where in the text it stands.
//!
//! # Between two characters
//!
//! For byte-level models whose splitting pattern is on the list below. Why a cut is exact: no merge
//! crosses a piece of the pattern; the pattern is matched from left to right and never looks back,
//! so what follows a boundary does not depend on what is before it; and in all of these patterns
//!
//! 1. no alternative goes from a character that is not white space to a space,
//! 2. none goes from a letter or digit to punctuation other than the apostrophe (`'s` belongs to
//!    its word in o200k), as `\p{L}+` and `\p{N}+` end there,
//! 3. none goes from a line end to a letter or digit, and `\s*[\r\n]+` is tried before
//!    `\s+(?!\S)`, which would look ahead (so not in GPT-2's pattern, which lacks the former).
//!
//! Whether what is before the cut is a match does not depend on what follows: the only look-ahead
//! stands after white space, and 3 is decided before it. NFC does not reach across: space,
//! punctuation, letters and digits of these classes never compose with what precedes them. No
//! added token lies across, because tokens are found before the cut is chosen. Unicode versions do
//! not matter: the classes hold characters that were assigned long ago, or (before a space) any
//! letter or digit at all.
//!
//! Pure functions; each rule is checked again on a probe when a tokenizer is loaded.

use serde_json::Value;

/// Where the ids of a whole text are those of its parts, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuts {
    /// Parts between added tokens. Without this nothing is cut and nothing cached but whole texts.
    pub added: Result<(), String>,
    /// Cuts between two characters, as from a letter to a space.
    pub letter_space: Result<(), String>,
    /// Whether a cut may follow a line end too.
    pub(super) line_start: bool,
}

/// How a pre-tokenizer on the list splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splitter {
    /// cl100k and its kin: line ends are matched before other white space.
    Lines,
    /// GPT-2: they are white space like any other.
    Gpt2,
}

/// Lines of alternatives, as one pattern has them between `|`.
type Alternatives = &'static [&'static str];

const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const LETTERS: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const PUNCTUATION: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const WHITE_SPACE: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";

macro_rules! upper {
    () => {
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    };
}
macro_rules! lower {
    () => {
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    };
}
/// Words as o200k and Tekken see them: capitals, then small letters.
macro_rules! word {
    ($capitals:literal, $small:literal, $end:literal) => {
        concat!(r"[^\r\n\p{L}\p{N}]?", upper!(), $capitals, lower!(), $small, $end)
    };
}

/// The patterns that the rules above were checked for: one or more in a row, each with its
/// alternatives.
const PATTERNS: [&[Alternatives]; 6] = [
    // cl100k: Llama 3, GLM 4 and others.
    &[&[CONTRACTIONS, LETTERS, r"\p{N}{1,3}", PUNCTUATION, WHITE_SPACE]],
    // Qwen 2 and 3.
    &[&[CONTRACTIONS, LETTERS, r"\p{N}", PUNCTUATION, WHITE_SPACE]],
    // Qwen 3.5.
    &[&[
        CONTRACTIONS,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        WHITE_SPACE,
    ]],
    // o200k: gpt-oss.
    &[&[
        word!("*", "+", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
        word!("+", "*", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        WHITE_SPACE,
    ]],
    // Tekken: Mistral.
    &[&[
        word!("*", "+", ""),
        word!("+", "*", ""),
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        WHITE_SPACE,
    ]],
    // DeepSeek V3.
    &[
        &[r"\p{N}{1,3}"],
        &[r"[一-龥぀-ゟ゠-ヿ]+"],
        &[
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r" ?[\p{P}\p{S}]+[\r\n]*",
            WHITE_SPACE,
        ],
    ],
];

impl Cuts {
    /// What a merged `tokenizer.json` allows; `complete` and `flags` are of its added tokens.
    pub(super) fn judge(json: &Value, complete: bool, flags: bool) -> Cuts {
        let added = pieces_are_apart(json);
        let splitter = added.clone().and_then(|()| {
            if flags {
                return Err("an added token takes notice of what is beside it".to_owned());
            }
            if !complete {
                return Err("some added tokens are only found in the normalized text".to_owned());
            }
            if !is_identity(json.get("normalizer")) && kind(json.get("normalizer")) != "NFC" {
                return Err(format!("the normalizer is {}", kind(json.get("normalizer"))));
            }
            splitter(json.get("pre_tokenizer").unwrap_or(&Value::Null))
        });
        let line_start = splitter == Ok(Splitter::Lines);
        Cuts { added, letter_space: splitter.map(|_| ()), line_start }
    }

    /// The first place in `from..=until` where `text` can be cut between two characters; both are
    /// between added tokens. Never 0 or the end of the text.
    pub(in crate::prompt) fn find(&self, text: &str, from: usize, until: usize) -> Option<usize> {
        self.letter_space.as_ref().ok()?;
        let from = (from.max(1)..text.len()).find(|&from| text.is_char_boundary(from))?;
        let mut before = text.get(..from)?.chars().next_back()?;
        for (i, after) in text.get(from..)?.char_indices() {
            let at = from + i;
            if at > until {
                return None;
            }
            if self.between(before, after) {
                return Some(at);
            }
            before = after;
        }
        None
    }

    /// Whether the text can be cut between these two, by the numbered rules of this module.
    pub fn between(&self, before: char, after: char) -> bool {
        match after {
            ' ' => before.is_alphanumeric() || before.is_ascii_punctuation(),
            '、' | '。' | '，' | '！' | '？' | '：' | '；' => is_old_letter(before),
            _ if after.is_ascii_punctuation() => after != '\'' && is_old_letter(before),
            _ => before == '\n' && self.line_start && after.is_alphanumeric(),
        }
    }
}

/// Letters and digits that every version of Unicode in use has as such.
fn is_old_letter(c: char) -> bool {
    match c {
        '0'..='9' | 'a'..='z' | 'A'..='Z' => true,
        '×' | '÷' => false,
        // Latin with accents; Greek, Cyrillic, Hebrew, Arabic; kana, Chinese, Korean.
        'À'..='ɏ' | 'α'..='ω' | 'Ѐ'..='ҁ' | 'א'..='ת' | 'ؠ'..='ي' => true,
        'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='龥' | '가'..='힣' => true,
        _ => false,
    }
}

/// Whether what lies between two added tokens is encoded without regard to the rest of the text.
fn pieces_are_apart(json: &Value) -> Result<(), String> {
    let model = json.get("model").unwrap_or(&Value::Null);
    if kind(Some(model)) != "BPE" {
        return Err(format!("the model is {}, not BPE", kind(Some(model))));
    }
    if model.get("dropout").and_then(Value::as_f64).is_some_and(|dropout| dropout != 0.0) {
        return Err("the model drops merges at random".to_owned());
    }
    for step in steps(json.get("normalizer"), "normalizers") {
        match kind(Some(step)) {
            "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "Replace" => {}
            other => return Err(format!("the normalizer {other} looks at where a text begins")),
        }
    }
    for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
        let prefix = step.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
        match kind(Some(step)) {
            "Split" | "Digits" | "Punctuation" | "Whitespace" | "WhitespaceSplit" => {}
            "ByteLevel" if !prefix => {}
            "ByteLevel" => return Err("the pre-tokenizer adds a space before a text".to_owned()),
            other => return Err(format!("the pre-tokenizer {other} looks at where a text begins")),
        }
    }
    Ok(())
}

/// The pattern of `pre_tokenizer`, if it is on the list.
fn splitter(pre_tokenizer: &Value) -> Result<Splitter, String> {
    let steps = steps(Some(pre_tokenizer), "pretokenizers");
    let Some((&byte_level, splits)) = steps.split_last() else {
        return Err("there is no pre-tokenizer".to_owned());
    };
    if kind(Some(byte_level)) != "ByteLevel" {
        return Err(format!("the pre-tokenizer ends with {}", kind(Some(byte_level))));
    }
    let own = byte_level.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
    if splits.is_empty() && own {
        return Ok(Splitter::Gpt2);
    }
    let patterns: Option<Vec<String>> = splits.iter().map(|split| isolated(split)).collect();
    let known = |patterns: &[String]| {
        PATTERNS.iter().any(|list| {
            list.len() == patterns.len()
                && list.iter().zip(patterns).all(|(known, pattern)| known.join("|") == *pattern)
        })
    };
    match patterns {
        Some(patterns) if !own && known(&patterns) => Ok(Splitter::Lines),
        _ => Err("the splitting pattern is not on the list".to_owned()),
    }
}

/// The pattern of a `Split` that keeps every piece apart, with its line ends escaped.
fn isolated(split: &Value) -> Option<String> {
    let isolates = kind(Some(split)) == "Split"
        && split.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && split.get("invert").and_then(Value::as_bool) != Some(true);
    let pattern = split.get("pattern")?.get("Regex")?.as_str()?;
    isolates.then(|| pattern.replace('\r', r"\r").replace('\n', r"\n"))
}

/// Whether a normalizer leaves every text as it is.
pub(super) fn is_identity(normalizer: Option<&Value>) -> bool {
    steps(normalizer, "normalizers").is_empty()
}

/// The steps of a component: those of a sequence, itself, or none when it is null.
fn steps<'a>(component: Option<&'a Value>, list: &str) -> Vec<&'a Value> {
    match component {
        None | Some(Value::Null) => Vec::new(),
        Some(sequence) if kind(component) == "Sequence" => {
            let inner = sequence.get(list).and_then(Value::as_array);
            inner.into_iter().flatten().flat_map(|step| steps(Some(step), list)).collect()
        }
        Some(other) => vec![other],
    }
}

/// The `type` of a component.
fn kind(component: Option<&Value>) -> &str {
    let kind = component.and_then(|component| component.get("type"));
    kind.and_then(Value::as_str).unwrap_or("unknown")
}

#[cfg(test)]
#[path = "cuts_tests.rs"]
mod tests;
