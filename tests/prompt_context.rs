//! The context: what cannot fit is refused here, as OpenAI words it, and no replica hears of it.

mod common;

use std::io::Write;

use common::ask;
use common::engine::{After, Engine, json};
use common::gateway::{AUTH, Bed, Settings};

fn engine() -> Engine {
    Engine::start(|_, wire| {
        let usage = r#"{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}"#;
        let choices = r#"[{"text":"one two","finish_reason":"stop"}]"#;
        wire.write_all(&json(200, &format!(r#"{{"choices":{choices},"usage":{usage}}}"#)))?;
        Ok(After::Keep)
    })
}

fn bed(engine: &Engine) -> Bed {
    let pool = "context_tokens = 20".to_owned();
    Bed::start(&[engine.addr], Settings { pool, ..Settings::default() })
}

fn completion(fields: &str) -> Vec<u8> {
    common::post_with("/v1/completions", AUTH, &format!("{{\"model\":\"m\",{fields}}}"))
}

fn chat(fields: &str) -> Vec<u8> {
    let message = r#""messages":[{"role":"user","content":"x"}]"#;
    let body = format!("{{\"model\":\"m\",{message},{fields}}}");
    common::post_with("/v1/chat/completions", AUTH, &body)
}

#[test]
fn what_cannot_fit_is_refused_before_any_replica() {
    let engine = engine();
    let bed = bed(&engine);
    let too_long = [
        (completion(r#""prompt":[1,2,3,4,5],"max_tokens":16"#), "prompt", "requested 21 tokens"),
        // A completion without a limit asks for 16 tokens, and so does one with null.
        (completion(r#""prompt":[1,2,3,4,5]"#), "prompt", "requested 21 tokens"),
        (completion(r#""prompt":[1,2,3,4,5],"max_tokens":null"#), "prompt", "requested 21 tokens"),
        (completion(r#""prompt":[[1],[1,2,3,4,5]]"#), "prompt", "(5 in the prompt, 16 in"),
        (completion(r#""prompt":"short","max_tokens":21"#), "prompt", "requested 21 tokens"),
        (chat(r#""max_tokens":21"#), "messages", "21 tokens in the completion alone"),
        (chat(r#""max_completion_tokens":1000"#), "messages", "1000 tokens"),
    ];
    for (request, param, words) in &too_long {
        let answer = ask(bed.addr, request);
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status(), 400, "{error}");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&"context_length_exceeded".into(), &(*param).into())
        );
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        let most = "This model's maximum context length is 20 tokens. However, ";
        assert!(message.starts_with(most) && message.contains(words), "{message}");
    }
    assert_eq!(engine.requests().len(), 0);
    let records = bed.records(too_long.len());
    assert!(records.iter().all(|r| r["outcome"] == "rejected_invalid" && r["input_tokens"] == 0));
}

#[test]
fn what_just_fits_goes_through_and_an_open_end_is_closed() {
    let engine = engine();
    let bed = bed(&engine);
    let prompt = r#""prompt":[1,2,3,4]"#;
    let ids = ["7"; 30].join(",");
    for (fields, sent) in [
        (format!(r#"{prompt},"max_tokens":16"#), r#""max_tokens":16"#),
        (prompt.to_owned(), r#""prompt":[1,2,3,4]"#),
        (r#""prompt":[1],"max_tokens":null"#.to_owned(), r#""max_tokens":null"#),
        (r#""prompt":[1,2,3,4,5,6],"max_tokens":18,"truncate_prompt_tokens":2"#.to_owned(), "18"),
        (r#""prompt":[1,2,3,4,5,6],"max_tokens":0,"echo":true"#.to_owned(), r#""echo":true"#),
        // Cut to what the context holds, the answer gets what is left of it.
        (format!(r#""prompt":[{ids}],"truncate_prompt_tokens":-1"#), "-1"),
        (format!(r#""prompt":[{ids}],"truncate_prompt_tokens":-1,"max_tokens":null"#), "-1"),
        (format!(r#""prompt":[{ids}],"truncate_prompt_tokens":-1,"max_tokens":9"#), "9"),
    ] {
        assert_eq!(ask(bed.addr, &completion(&fields)).status(), 200, "{fields}");
        let body = engine.requests().pop().unwrap().body;
        assert!(
            common::find(&body, sent.as_bytes()).is_some(),
            "{}",
            String::from_utf8_lossy(&body)
        );
    }
    assert_eq!(engine.requests().len(), 8);
}

#[test]
fn a_count_that_differs_from_the_engines_is_counted() {
    let engine = engine();
    let bed = bed(&engine);
    for ids in ["[1,2,3,4]", "[1,2,3]", "[1,2,3,4]"] {
        let request = completion(&format!("\"prompt\":{ids},\"max_tokens\":2"));
        assert_eq!(ask(bed.addr, &request).status(), 200);
    }
    bed.records(3);
    assert_eq!(bed.metric("expedite_prompt_checks_total", "result=\"same\""), 2.0);
    assert_eq!(bed.metric("expedite_prompt_checks_total", "result=\"differs\""), 1.0);
    assert_eq!(bed.metric("expedite_prompt_mode", "mode=\"estimate\""), 1.0);
}
