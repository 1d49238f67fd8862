//! Cost of rendering a chat: `cargo bench --bench template`, with the files that
//! `scripts/fetch-tokenizers` brings.
//!
//! Prints medians of single renders in microseconds with the fifth and ninety-fifth percentile,
//! one thread, warm. Asserts what it rendered; times are printed, not judged.

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use expedite::openai::Endpoint;
use expedite::prompt::template::{Chat, LocalTime, Specials, Template};

const ROUNDS: usize = 2_000;

/// About 7.5 KB of mixed text: 1,800 tokens of Qwen 3.
fn document(bytes: usize) -> String {
    let lines = [
        "The replica answered in 12.5 ms; the queue held three requests.",
        "fn main() {\n    println!(\"{}\", 1 + 1);\n}",
        "{\"key\": [1, 2.5, null], \"other\": \"a \\\\ b\"}",
        "日本語の文章もいくつか含まれています。",
        "Ça coûte 3 € — déjà vu ? 🙂",
    ];
    let mut out = String::new();
    for line in lines.iter().cycle() {
        if out.len() > bytes {
            return out;
        }
        let _ = writeln!(out, "{line}");
    }
    out
}

fn message(role: &str, content: &str) -> String {
    let content = serde_json::to_string(content).unwrap_or_default();
    format!(r#"{{"role":"{role}","content":{content}}}"#)
}

fn chat(messages: &[String], more: &str) -> String {
    format!(r#"{{"model":"m","messages":[{}]{more},"stream":true}}"#, messages.join(","))
}

const TOOL: &str = r#"{"type":"function","function":{"name":"tool_N","description":"Does the Nth
thing with what it is given, and says how it went.","parameters":{"type":"object","properties":{
"path":{"type":"string","description":"Where the file is, absolute."},"limit":{"type":"integer",
"minimum":1,"maximum":1000},"mode":{"type":"string","enum":["fast","exact"]},"filters":{"type":
"array","items":{"type":"object","properties":{"field":{"type":"string"},"value":{"type":["string",
"number","null"]}}}}},"required":["path"]}}}"#;

fn tools(count: usize) -> String {
    let tool = |n: usize| TOOL.replace('\n', " ").replace('N', &n.to_string());
    format!(r#","tools":[{}]"#, (0..count).map(tool).collect::<Vec<_>>().join(","))
}

fn measure(name: &str, template: &Template, body: &str) {
    let now = LocalTime::from_unix(1_700_000_000);
    let mut out = String::new();
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + ROUNDS / 4 {
        out.clear();
        let start = Instant::now();
        let rendered = template.render(black_box(body.as_bytes()), &now, &mut out);
        let took = start.elapsed().as_nanos() as f64 / 1e3;
        assert!(rendered.is_ok(), "{name}: {rendered:?}");
        if round >= ROUNDS / 4 {
            times.push(took);
        }
    }
    let expected = body.matches("\"role\":\"user\"").count();
    assert!(out.matches("ser").count() >= expected, "{name}: every turn is there");
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let read = Chat::read(Endpoint::ChatCompletions, body.as_bytes());
    let plain = read.is_ok_and(|chat| template.is_plain(&chat));
    println!(
        "{name:32} {:7} B  {:8.2} us  ({:.2} to {:.2}){}",
        body.len(),
        at(50),
        at(5),
        at(95),
        if plain { "  plain" } else { "" },
    );
}

/// How long the limits let a template run that never ends.
fn measure_limits() {
    let grow = "{% set ns = namespace(s='x' * 100000) %}\
                {% for i in range(9999) %}{% set y = ns.s.split('x') %}{% endfor %}";
    for (name, source) in [
        (
            "empty loop",
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        ),
        ("splitting", grow),
        ("spelling out", "{% for i in range(9999) %}{{ messages | tojson }}{% endfor %}"),
        (
            "comparing",
            "{% for i in range(9999) %}{% if messages == messages | list %}{% endif %}{% endfor %}",
        ),
    ] {
        let Ok(template) = Template::parse(source, Specials::default()) else { continue };
        let messages = vec![message("user", &document(1_000)); 1_000];
        let body = chat(&messages, "");
        let start = Instant::now();
        let result = template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut String::new());
        let took = start.elapsed().as_millis();
        println!("{name:32} stopped after {took:6} ms: {result:?}");
    }
}

fn main() {
    measure_limits();
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers");
    let system = message("system", &document(1_000));
    let mut turns = vec![system.clone()];
    for _ in 0..8 {
        turns.push(message("user", &document(500)));
        turns.push(message("assistant", &document(900)));
    }
    turns.push(message("user", "And now?"));
    let long = [system.clone(), message("user", &document(6_300))];
    let parts = format!(
        r#"{{"role":"user","content":[{{"type":"text","text":{}}}]}}"#,
        serde_json::to_string(&document(6_300)).unwrap_or_default()
    );
    let many = vec![message("user", "x"); 4_096];
    for name in ["qwen3", "llama3_1", "deepseek_v3", "gemma3"] {
        let Ok(Some(template)) = Template::load(&cache.join(name), None) else {
            println!("{name}: not fetched; see scripts/fetch-tokenizers");
            continue;
        };
        measure(&format!("{name} plain 1,800 tokens"), &template, &chat(&long, ""));
        measure(&format!("{name} 17 turns"), &template, &chat(&turns, ""));
        let in_parts = [system.clone(), parts.clone()];
        measure(&format!("{name} in one part"), &template, &chat(&in_parts, ""));
        let engine = r#","reasoning_effort":"low""#;
        measure(&format!("{name} plain by the engine"), &template, &chat(&long, engine));
        measure(&format!("{name} 8 tools (engine)"), &template, &chat(&long, &tools(8)));
        measure(&format!("{name} 17 turns, 8 tools"), &template, &chat(&turns, &tools(8)));
        if name != "gemma3" {
            measure(&format!("{name} 4,096 messages"), &template, &chat(&many, engine));
        }
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates/llama_tools.jinja");
    if let Ok(Some(template)) = Template::load(Path::new("/nonexistent"), Some(&own)) {
        let more = [tools(8).as_str(), r#","chat_template_kwargs":{"bos_token":""}"#].concat();
        measure("llama-like 8 tools (engine)", &template, &chat(&long, &more));
    }
}
