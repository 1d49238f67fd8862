//! The shapes of Anthropic's `/v1/messages` as vLLM 0.32 writes them. No I/O, no clock.

use super::answer::{Answer, push, push_number, quoted};
use super::call::{Choice, Shown};
use super::chat::{escaped, reason};

/// Events before the first token.
pub(super) const OPENINGS: u64 = 2;
/// Events after the last token.
pub(super) const CLOSINGS: u64 = 3;

/// Opening event `k`.
pub(super) fn opening(answer: &Answer<'_>, k: u64, out: &mut Vec<u8>) {
    let event = if k == 0 {
        format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":{},\
             \"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":{},\
             \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{},\
             \"output_tokens\":0}}}}}}\n\n",
            quoted(&answer.id),
            answer.model_json,
            answer.numbers(0).prompt
        )
    } else {
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":\
         {\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n"
            .to_owned()
    };
    out.extend_from_slice(event.as_bytes());
}

/// The event of one token; false if it shows nothing.
pub(super) fn token(answer: &Answer<'_>, choice: &Choice, step: u64, out: &mut Vec<u8>) -> bool {
    let shown = answer.call.shown(choice, step);
    out.extend_from_slice(
        b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":\
          {\"type\":\"text_delta\",\"text\":\"",
    );
    match shown {
        Shown::Word(word) => out.extend_from_slice(&word),
        Shown::Text(tail) if !tail.is_empty() => escaped(tail.as_bytes(), out),
        _ => return false,
    }
    out.extend_from_slice(b"\"},\"index\":0}\n\n");
    true
}

/// Closing event `k` after `steps` tokens.
pub(super) fn closing(answer: &Answer<'_>, choice: &Choice, steps: u64, k: u64, out: &mut Vec<u8>) {
    match k {
        0 => out.extend_from_slice(
            b"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        ),
        1 => {
            let (reason, sequence) = stop(answer, choice, steps);
            let begin = format!(
                "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
                 {{\"stop_reason\":\"{reason}\",\"stop_sequence\":{sequence}}},\"usage\":"
            );
            out.extend_from_slice(begin.as_bytes());
            usage(answer, steps, out);
            out.extend_from_slice(b"}\n\n");
        }
        _ => out.extend_from_slice(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
    }
}

/// The whole answer after `steps` tokens.
pub(super) fn whole(answer: &Answer<'_>, choice: &Choice, steps: u64, out: &mut Vec<u8>) {
    let begin = format!(
        "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"content\":[{{\"type\":\"text\",\
         \"text\":\"",
        quoted(&answer.id)
    );
    out.extend_from_slice(begin.as_bytes());
    escaped(&answer.call.text(choice, steps), out);
    let (reason, _) = stop(answer, choice, steps);
    push(out, &[b"\"}],\"model\":", answer.model_json.as_bytes()]);
    push(out, &[b",\"stop_reason\":\"", reason.as_bytes(), b"\",\"usage\":"]);
    usage(answer, steps, out);
    out.push(b'}');
}

fn stop(answer: &Answer<'_>, choice: &Choice, steps: u64) -> (&'static str, String) {
    match reason(answer, choice, steps.saturating_sub(1)) {
        ("length", null) => ("max_tokens", null),
        ("stop", null) if null == "null" => ("end_turn", null),
        ("stop", sequence) => ("stop_sequence", sequence),
        (_, null) => ("end_turn", null),
    }
}

/// Anthropic's input leaves out what the cache had and what it took in.
fn usage(answer: &Answer<'_>, completion: u64, out: &mut Vec<u8>) {
    let numbers = answer.numbers(completion);
    let apart = answer.cached_tokens + answer.cache_created();
    out.extend_from_slice(b"{\"input_tokens\":");
    push_number(out, if numbers.prompt < 0 { -1 } else { numbers.prompt - apart as i64 });
    out.extend_from_slice(b",\"output_tokens\":");
    push_number(out, numbers.completion);
    out.extend_from_slice(b",\"cache_creation_input_tokens\":");
    push_number(out, answer.cache_created());
    push(out, &[b",\"cache_read_input_tokens\":", answer.cached().as_bytes(), b"}"]);
}
