//! The shapes of `/v1/chat/completions` and `/v1/completions`, stream and whole, as vLLM 0.32
//! writes them: members in its order, compact JSON.
//!
//! A plain token event is a few copies into the connection's buffer. No I/O, no clock.

use super::answer::{Answer, FINGERPRINT, push, push_number, quoted};
use super::call::{Api, Choice, Finish, Shown};

/// The beginning of every event of a stream, made once.
pub(super) fn prefix(api: Api, id: &str, created: u64, model_json: &str) -> Vec<u8> {
    let object = if api == Api::Chat { "chat.completion.chunk" } else { "text_completion" };
    format!(
        "data: {{\"id\":{},\"object\":\"{object}\",\"created\":{created},\"model\":{model_json},\
         \"choices\":[",
        quoted(id)
    )
    .into_bytes()
}

/// The event that opens a choice of a chat.
pub(super) fn role(answer: &Answer<'_>, index: usize, out: &mut Vec<u8>) {
    push(out, &[&answer.prefix, b"{\"index\":"]);
    push_number(out, index);
    out.extend_from_slice(
        b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\
          \"finish_reason\":null}]",
    );
    if answer.usage_in_choice(false) {
        choice_usage(answer, 0, out);
    }
    out.extend_from_slice(b",\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
}

/// The event of one token of a choice.
pub(super) fn token(
    answer: &Answer<'_>,
    index: usize,
    choice: &Choice,
    step: u64,
    out: &mut Vec<u8>,
) {
    push(out, &[&answer.prefix, b"{\"index\":"]);
    push_number(out, index);
    let shown = answer.call.shown(choice, step);
    let finishing = answer.ends(choice, step);
    if answer.call.api == Api::Chat {
        delta(answer, choice, &shown, out);
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
        if finishing {
            finish(answer, choice, step, out);
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"token_ids\":null}]");
    } else {
        out.extend_from_slice(b",\"text\":\"");
        let echoed = answer.call.echo && step == 0;
        if echoed {
            echo(answer, choice, out);
        }
        text(&shown, out);
        out.extend_from_slice(b"\",\"logprobs\":null,\"finish_reason\":");
        if finishing {
            finish(answer, choice, step, out);
        } else {
            out.extend_from_slice(b"null,\"stop_reason\":null");
        }
        out.extend_from_slice(b",\"prompt_token_ids\":");
        if echoed {
            prompt_ids(answer, choice, out);
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"token_ids\":null}]");
    }
    if answer.usage_in_choice(finishing) {
        choice_usage(answer, step + 1, out);
    }
    if finishing && !answer.usage_event() {
        fingerprint(out);
    }
    out.extend_from_slice(b"}\n\n");
}

/// The last event when usage was asked for.
pub(super) fn usage_event(answer: &Answer<'_>, completion: u64, out: &mut Vec<u8>) {
    push(out, &[&answer.prefix, b"],\"usage\":{"]);
    numbers(answer, completion, out);
    if answer.details {
        let cached = answer.cached();
        push(out, &[b",\"prompt_tokens_details\":{\"cached_tokens\":", cached.as_bytes()]);
        if answer.call.api == Api::Chat {
            out.extend_from_slice(b",\"created_cache_tokens\":");
            push_number(out, answer.cache_created());
        }
        out.push(b'}');
    }
    out.push(b'}');
    fingerprint(out);
    out.extend_from_slice(b"}\n\n");
}

/// The whole answer after `steps` steps.
pub(super) fn whole(answer: &Answer<'_>, steps: u64, out: &mut Vec<u8>) {
    let chat = answer.call.api == Api::Chat;
    let object = if chat { "chat.completion" } else { "text_completion" };
    let (id, model, created) = (quoted(&answer.id), &answer.model_json, answer.created);
    let begin = format!(
        "{{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
         \"choices\":["
    );
    out.extend_from_slice(begin.as_bytes());
    for (index, choice) in answer.call.choices.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",{\"index\":" } else { b"{\"index\":" });
        push_number(out, index);
        let last = choice.tokens.min(steps).saturating_sub(1);
        if chat {
            message(answer, choice, steps, out);
            out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
            finish(answer, choice, last, out);
            out.extend_from_slice(b",\"token_ids\":null,\"routed_experts\":null}");
        } else {
            out.extend_from_slice(b",\"text\":\"");
            if answer.call.echo {
                echo(answer, choice, out);
            }
            escaped(&answer.call.text(choice, steps), out);
            out.extend_from_slice(b"\",\"logprobs\":null,\"finish_reason\":");
            finish(answer, choice, last, out);
            out.extend_from_slice(
                b",\"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\
                  \"routed_experts\":null}",
            );
        }
    }
    push(out, &[b"],\"service_tier\":null", b",\"system_fingerprint\":\"", FINGERPRINT.as_bytes()]);
    out.push(b'"');
    whole_usage(answer, answer.generated(steps), out);
    if chat {
        let nulls = b",\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null";
        out.extend_from_slice(nulls);
    }
    push(out, &[b",\"kv_transfer_params\":", answer.kv_params.as_bytes()]);
    out.extend_from_slice(b",\"ec_transfer_params\":null,\"metrics\":null}");
}

fn whole_usage(answer: &Answer<'_>, completion: u64, out: &mut Vec<u8>) {
    use super::fault::UsageShape;
    if answer.usage_shape == Some(UsageShape::Missing) {
        return;
    }
    out.extend_from_slice(b",\"usage\":{");
    numbers(answer, completion, out);
    out.extend_from_slice(b",\"prompt_tokens_details\":");
    if answer.details {
        let created = match answer.call.api {
            Api::Chat => answer.cache_created().to_string(),
            _ => "null".to_owned(),
        };
        let cached = answer.cached();
        let details = format!(
            "{{\"cached_tokens\":{cached},\"created_cache_tokens\":{created},\
             \"multimodal_tokens\":null}}"
        );
        out.extend_from_slice(details.as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b",\"completion_tokens_details\":null}");
}

fn message(answer: &Answer<'_>, choice: &Choice, steps: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":\"");
    escaped(&answer.call.text(choice, steps), out);
    out.extend_from_slice(
        b"\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null",
    );
    if let (Some(tool), Finish::Tool { .. }) = (&answer.call.tool, &choice.finish) {
        let call = format!(
            ",\"tool_calls\":[{{\"id\":\"chatcmpl-tool-{}\",\"type\":\"function\",\"function\":\
             {{\"name\":{},\"arguments\":{}}}}}]",
            answer.bare_id,
            quoted(&tool.name),
            quoted(&tool.arguments)
        );
        out.extend_from_slice(call.as_bytes());
    }
    out.extend_from_slice(b",\"reasoning\":null}");
}

fn delta(answer: &Answer<'_>, choice: &Choice, shown: &Shown<'_>, out: &mut Vec<u8>) {
    match shown {
        Shown::ToolName(name) => {
            let call = format!(
                ",\"delta\":{{\"content\":null,\"tool_calls\":[{{\"id\":\"chatcmpl-tool-{}\",\
                 \"type\":\"function\",\"index\":0,\"function\":{{\"name\":{}}}}}]}}",
                answer.bare_id,
                quoted(name)
            );
            out.extend_from_slice(call.as_bytes());
        }
        Shown::ToolArguments(piece) => {
            let call = format!(
                ",\"delta\":{{\"content\":null,\"tool_calls\":[{{\"index\":0,\"function\":\
                 {{\"arguments\":{}}}}}]}}",
                quoted(piece)
            );
            out.extend_from_slice(call.as_bytes());
        }
        Shown::End | Shown::Hidden => out.extend_from_slice(b",\"delta\":{}"),
        Shown::Text("") => out.extend_from_slice(b",\"delta\":{}"),
        Shown::Word(_) | Shown::Text(_) => {
            debug_assert!(!matches!(choice.finish, Finish::Tool { .. }));
            out.extend_from_slice(b",\"delta\":{\"content\":\"");
            text(shown, out);
            out.extend_from_slice(b"\"}");
        }
    }
}

fn text(shown: &Shown<'_>, out: &mut Vec<u8>) {
    match shown {
        Shown::Word(word) => out.extend_from_slice(word),
        Shown::Text(tail) => escaped(tail.as_bytes(), out),
        _ => {}
    }
}

/// `finish_reason` and the `stop_reason` behind it.
fn finish(answer: &Answer<'_>, choice: &Choice, step: u64, out: &mut Vec<u8>) {
    let (reason, stop) = reason(answer, choice, step);
    push(out, &[b"\"", reason.as_bytes(), b"\",\"stop_reason\":", stop.as_bytes()]);
}

/// Reason and stop reason (as JSON) of a choice that ends at `step`.
pub(super) fn reason(answer: &Answer<'_>, choice: &Choice, step: u64) -> (&'static str, String) {
    let null = || "null".to_owned();
    match &choice.finish {
        _ if step + 1 < choice.tokens || answer.aborts(step) => ("abort", null()),
        Finish::Length => ("length", null()),
        Finish::Eos => ("stop", null()),
        Finish::StopString { stop, .. } => ("stop", quoted(stop)),
        Finish::Tool { reason } => (*reason, null()),
    }
}

fn numbers(answer: &Answer<'_>, completion: u64, out: &mut Vec<u8>) {
    let numbers = answer.numbers(completion);
    out.extend_from_slice(b"\"prompt_tokens\":");
    push_number(out, numbers.prompt);
    out.extend_from_slice(b",\"total_tokens\":");
    push_number(out, numbers.total());
    out.extend_from_slice(b",\"completion_tokens\":");
    push_number(out, numbers.completion);
}

/// Usage within an event that has a choice: the numbers so far.
fn choice_usage(answer: &Answer<'_>, completion: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"usage\":{");
    numbers(answer, completion, out);
    if answer.call.api == Api::Chat {
        out.extend_from_slice(b",\"completion_tokens_details\":null");
    }
    out.push(b'}');
}

fn fingerprint(out: &mut Vec<u8>) {
    push(out, &[b",\"system_fingerprint\":\"", FINGERPRINT.as_bytes(), b"\""]);
}

fn echo(answer: &Answer<'_>, choice: &Choice, out: &mut Vec<u8>) {
    let Some(prompt) = answer.call.prompts.get(choice.prompt) else { return };
    let end = prompt.text.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
    escaped(prompt.text.get(..end).unwrap_or_default(), out);
}

fn prompt_ids(answer: &Answer<'_>, choice: &Choice, out: &mut Vec<u8>) {
    let Some(prompt) = answer.call.prompts.get(choice.prompt) else { return };
    let ids = serde_json::Value::from(prompt.ids()).to_string();
    out.extend_from_slice(ids.as_bytes());
}

/// Text as the inside of a JSON string.
pub(super) fn escaped(text: &[u8], out: &mut Vec<u8>) {
    let plain = |b: &u8| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\';
    if text.iter().all(plain) {
        out.extend_from_slice(text);
        return;
    }
    let json = quoted(&String::from_utf8_lossy(text));
    out.extend_from_slice(json.get(1..json.len() - 1).unwrap_or_default().as_bytes());
}
