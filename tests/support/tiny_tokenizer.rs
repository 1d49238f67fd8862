//! A tiny tokenizer for tests: byte-level BPE with Qwen's pattern, trained here from the text
//! below, with six added tokens and a ChatML template. The same on every machine and every run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// Merges that are learned.
const MERGES: usize = 700;
/// Added tokens, in the order of their ids; the last three are not special.
pub(crate) const ADDED: [&str; 6] =
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>"];

const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const TEMPLATE: &str = "{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What it learns from.
const TEXT: &str = "
The gateway keeps the prompt of every request as the engine will see it. When the system prompt is
the same as before, the tokens are the same as before, and there is no reason to count them again.
The user asks the assistant a question about the weather in the city, and the assistant answers.
There are many kinds of text: some are long, some are short, and others have numbers or code in
them. A request that waits for its turn is not lost; it is only late. What the user writes comes
after what the system says, and the answer comes after both. This is how a conversation grows.
You are a helpful assistant. You should think about the question before you give the answer, and
you should say that you do not know when you do not know. It's what they'd want; we're sure of it.
fn main() {
    let mut total = 0;
    for (index, value) in values.iter().enumerate() {
        total += value.len() * index;
    }
    println!(\"the total is {}\", total);
}
{\"name\": \"get_weather\",
\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\":
\"string\"}, \"days\": {\"type\": \"integer\"}}}, \"required\": [\"city\"]}
Das Wetter in der Stadt ist heute schön, und morgen wird es regnen. Le temps dans la ville est beau
aujourd'hui, et demain il va pleuvoir. El tiempo en la ciudad es bueno hoy, pero mañana lloverá.
Погода в городе сегодня хорошая, а завтра будет дождь. Погода завтра будет хорошая.
今天城市的天气很好，明天会下雨。今日の天気はとても良いです。明日は雨が降るでしょう。
오늘 도시의 날씨가 좋습니다. الطقس في المدينة جيد اليوم. मौसम आज अच्छा है। 🌦️ ☀️ 👍
";

/// `tokenizer.json` and `tokenizer_config.json`.
pub(crate) fn tiny() -> (Value, Value) {
    let (vocab, merges) = train();
    let added = ADDED.iter().enumerate().map(|(i, content)| {
        json!({"id": vocab.len() + i, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": i < 3})
    });
    let added: Vec<Value> = added.collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated",
             "invert": false},
            byte_level
        ]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges}
    });
    let config = json!({
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "model_max_length": 4096, "chat_template": TEMPLATE
    });
    (tokenizer, config)
}

/// Writes both into `folder`, as a model's folder has them.
pub(crate) fn write(folder: &Path) {
    let (tokenizer, config) = tiny();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// The bytes as characters, as byte-level models write them.
fn byte_char(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match plain(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&byte| !plain(byte)).count();
            char::from_u32(256 + u32::try_from(before).unwrap()).unwrap()
        }
    }
}

/// Words of the text with a space before them, as the pattern has them but for its finer points.
fn words() -> BTreeMap<Vec<String>, usize> {
    let mut words = BTreeMap::new();
    let class = |c: char| (c.is_alphabetic(), c.is_numeric(), c.is_whitespace());
    let chars: Vec<char> = TEXT.chars().collect();
    let mut start = 0;
    for i in 1..=chars.len() {
        let lone_space = i == start + 1 && chars[start] == ' ';
        if i < chars.len() && (class(chars[i]) == class(chars[i - 1]) || lone_space) {
            continue;
        }
        let word: String = chars[start..i].iter().collect();
        *words.entry(word.bytes().map(|b| byte_char(b).to_string()).collect()).or_insert(0) += 1;
        start = i;
    }
    words
}

/// The vocabulary and the merges: always the most frequent pair, the first of those in order.
fn train() -> (serde_json::Map<String, Value>, Vec<Value>) {
    let mut words: Vec<(Vec<String>, usize)> = words().into_iter().collect();
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255 {
        vocab.insert(byte_char(byte).to_string(), json!(vocab.len()));
    }
    let mut merges = Vec::new();
    while merges.len() < MERGES {
        let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (word, count) in &words {
            for pair in word.windows(2) {
                *pairs.entry((&pair[0], &pair[1])).or_insert(0) += count;
            }
        }
        let Some((pair, _)) =
            pairs.iter().max_by_key(|(pair, count)| (**count, std::cmp::Reverse(**pair)))
        else {
            break;
        };
        let (left, right) = (pair.0.to_owned(), pair.1.to_owned());
        let joined = left.clone() + &right;
        for (word, _) in &mut words {
            let mut i = 0;
            while i + 1 < word.len() {
                if word[i] == left && word[i + 1] == right {
                    word.splice(i..i + 2, [joined.clone()]);
                }
                i += 1;
            }
        }
        if !vocab.contains_key(&joined) {
            vocab.insert(joined, json!(vocab.len()));
        }
        merges.push(json!([left, right]));
    }
    (vocab, merges)
}
