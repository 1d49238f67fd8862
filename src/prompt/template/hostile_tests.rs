//! Bodies that nobody sane would send end in a text or an error, never in a panic.

use super::*;

const WORDS: [&str; 40] = [
    "role",
    "content",
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "name",
    "tool_calls",
    "function",
    "arguments",
    "{}",
    "{\"a\":1}",
    "[",
    "id",
    "type",
    "text",
    "image_url",
    "url",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    "task",
    "tools",
    "parameters",
    "description",
    "properties",
    "items",
    "strict",
    "uuid",
    "refusal",
    "thinking",
    "input_audio",
    "video_url",
    "",
    "\\n \\u001c",
    "\\ud83d\\ude00",
    "NaN",
    "enable_thinking",
    "x-anthropic-billing-header\\n",
];

const MEMBERS: [&str; 9] = [
    "messages",
    "tools",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "tool_choice",
    "other",
];

fn word(rng: &mut fastrand::Rng) -> String {
    WORDS[rng.usize(..WORDS.len())].replace('"', "\\\"")
}

fn value(rng: &mut fastrand::Rng, depth: usize) -> String {
    match rng.u8(..if depth > 5 { 7 } else { 14 }) {
        0 => "null".to_owned(),
        1 => "true".to_owned(),
        2 => "false".to_owned(),
        3 => ["0", "-1", "1.5e300", "1e999", "12345678901234567890123", "9e-9"][rng.usize(..6)]
            .to_owned(),
        4..7 => format!("\"{}\"", word(rng)),
        7..10 => {
            let items: Vec<_> = (0..rng.usize(..4)).map(|_| value(rng, depth + 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => object(rng, depth),
    }
}

fn object(rng: &mut fastrand::Rng, depth: usize) -> String {
    let member = |rng: &mut fastrand::Rng| format!("\"{}\":{}", word(rng), value(rng, depth + 1));
    let members: Vec<_> = (0..rng.usize(..5)).map(|_| member(rng)).collect();
    format!("{{{}}}", members.join(","))
}

/// Half of the values are of the right kind, so that much gets past the first look.
fn message(rng: &mut fastrand::Rng) -> String {
    let role = ["user", "assistant", "system", "tool", "developer"][rng.usize(..5)];
    let mut out = format!("{{\"role\":\"{role}\"");
    for name in ["content", "tool_calls", "reasoning", "tool_call_id", "name", "tools", "task"] {
        let given = match (name, rng.u8(..4)) {
            ("content", 0..3) => format!("\"{}\"", word(rng)),
            ("content", _) | (_, 0) => value(rng, 0),
            ("tool_calls", 1) => {
                let call =
                    r#"[{"id":"i","type":"function","function":{"name":"f","arguments":"A"}}]"#;
                call.replace('A', &word(rng))
            }
            _ => continue,
        };
        out.push_str(&format!(",\"{name}\":{given}"));
    }
    out + "}"
}

fn body(rng: &mut fastrand::Rng) -> String {
    let messages: Vec<_> = (0..rng.usize(..4)).map(|_| message(rng)).collect();
    let mut out = format!("{{\"messages\":[{}]", messages.join(","));
    for _ in 0..rng.usize(..3) {
        let member = MEMBERS[rng.usize(..MEMBERS.len())];
        out.push_str(&format!(",\"{member}\":{}", value(rng, 0)));
    }
    out + "}"
}

#[test]
fn any_body_ends_in_a_text_or_an_error() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates");
    let mut rng = fastrand::Rng::with_seed(3);
    let mut rendered = 0;
    for name in ["features", "parts", "llama_tools", "mistral_like"] {
        let source = std::fs::read_to_string(data.join(format!("{name}.jinja"))).unwrap();
        let mut specials = Specials::default();
        specials.add("bos_token", "<s>");
        specials.add("eos_token", "</s>");
        let template = Template::parse(&source, specials).unwrap();
        for _ in 0..1_500 {
            let body = body(&mut rng);
            for endpoint in [Endpoint::ChatCompletions, Endpoint::Tokenize] {
                let Ok(chat) = Chat::read(endpoint, body.as_bytes()) else { continue };
                let mut out = String::new();
                let result = template.render_chat(&chat, &LocalTime::from_unix(0), &mut out);
                if let Ok(facts) = result {
                    rendered += 1;
                    assert!(facts.media_at.is_none_or(|at| out.is_char_boundary(at)), "{body}");
                }
            }
        }
    }
    assert!(rendered > 1_000, "only {rendered} came through");
}

#[test]
fn cut_and_changed_bodies_end_so_too() {
    let mut rng = fastrand::Rng::with_seed(5);
    let template = Template::parse("{{ messages }}{{ tools }}", Specials::default()).unwrap();
    for _ in 0..2_000 {
        let mut bytes = body(&mut rng).into_bytes();
        let at = rng.usize(..bytes.len());
        match rng.u8(..3) {
            0 => bytes.truncate(at),
            1 => bytes[at] = rng.u8(..),
            _ => drop(bytes.remove(at)),
        }
        let _ = template.render(&bytes, &LocalTime::from_unix(0), &mut String::new());
    }
}

#[test]
fn the_first_media_part_is_where_the_text_stops_being_exact() {
    let parts = "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}\
                 {{ '[image]' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}";
    let text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":[
        {"type":"text","text":"b["},{"type":"image_url","image_url":{"url":"u"}},
        {"type":"text","text":"c"},{"type":"input_audio","input_audio":{}}]}]}"#;
    for (source, before, all) in [
        (parts, "-<user>a<user>b[", "-<user>a<user>b[[image]c"),
        (text, "-<user>a<user>", "-<user>a<user>b[\nc"),
    ] {
        let template = Template::parse(source, Specials::default()).unwrap();
        let mut out = String::from("-");
        let facts = template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut out).unwrap();
        assert_eq!((out.as_str(), facts.media_parts), (all, 2));
        assert_eq!(facts.media_at, Some(before.len()));
    }
}

#[test]
fn what_is_long_is_rendered_up_to_the_limit() {
    let source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}";
    let template = Template::parse(source, Specials::default()).unwrap();
    let render = |megabytes: usize| {
        let content = "word ".repeat(megabytes << 20).split_off(megabytes << 22);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}]}}"#);
        let mut out = String::new();
        template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut out).map(|_| out.len())
    };
    assert_eq!(render(15), Ok((15 << 20) + "<user>\n".len()));
    assert!(matches!(render(16), Err(RenderError::Limit(_))));
}

#[test]
fn the_engines_options_change_the_prompt() {
    let source = "{{ tools is none }} {{ x }} {{ messages[0].content }}";
    let body = r#"{"messages":[{"role":"user","content":"a"}],"tool_choice":"none",
        "tools":[{"function":{"name":"f"}}],"chat_template_kwargs":{"y":1}}"#;
    let render = |options: Options| {
        let template = Template::parse(source, Specials::default()).unwrap();
        let template = template.with_options(options).unwrap();
        let mut out = String::new();
        template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut out).unwrap();
        out
    };
    assert_eq!(render(Options::default()), "False  a");
    let options = Options {
        exclude_tools_when_tool_choice_none: true,
        default_kwargs: r#"{"x":[1.0]}"#.to_owned(),
        content_format: Some(ContentFormat::Parts),
    };
    assert_eq!(render(options), "True [1.0] [{'type': 'text', 'text': 'a'}]");
    let wrong = Options { default_kwargs: "[]".to_owned(), ..Options::default() };
    assert!(Template::parse("", Specials::default()).unwrap().with_options(wrong).is_err());
}
