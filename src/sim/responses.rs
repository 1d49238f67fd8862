//! The shapes of `/v1/responses` as vLLM 0.32 writes them. No I/O, no clock.

use super::answer::{Answer, quoted};
use super::call::{Choice, Shown};
use super::chat::reason;

/// Events before the first token.
pub(super) const OPENINGS: u64 = 4;
/// Events after the last token.
pub(super) const CLOSINGS: u64 = 4;

fn event(name: &str, number: u64, members: &str, more: &str, out: &mut Vec<u8>) {
    let event = format!(
        "event: {name}\ndata: {{{members},\"sequence_number\":{number}{more},\
         \"type\":\"{name}\"}}\n\n"
    );
    out.extend_from_slice(event.as_bytes());
}

/// Opening event `k`.
pub(super) fn opening(answer: &Answer<'_>, k: u64, out: &mut Vec<u8>) {
    let item = item_id(answer);
    match k {
        0 | 1 => {
            let name = if k == 0 { "response.created" } else { "response.in_progress" };
            let members = format!("\"response\":{}", response(answer, None));
            event(name, k, &members, "", out);
        }
        2 => {
            let members = format!(
                "\"item\":{{\"id\":{item},\"content\":[],\"role\":\"assistant\",\"status\":\
                 \"in_progress\",\"type\":\"message\",\"phase\":null}},\"output_index\":0"
            );
            event("response.output_item.added", k, &members, "", out);
        }
        _ => {
            let members = format!(
                "\"content_index\":0,\"item_id\":{item},\"output_index\":0,\"part\":\
                 {{\"annotations\":[],\"text\":\"\",\"type\":\"output_text\",\"logprobs\":[]}}"
            );
            event("response.content_part.added", k, &members, "", out);
        }
    }
}

/// The event of one token, number `number` of the stream; false if it shows nothing.
pub(super) fn token(
    answer: &Answer<'_>,
    choice: &Choice,
    step: u64,
    number: u64,
    out: &mut Vec<u8>,
) -> bool {
    let text = match answer.call.shown(choice, step) {
        Shown::Word(word) => String::from_utf8_lossy(&word).into_owned(),
        Shown::Text(tail) if !tail.is_empty() => tail.to_owned(),
        _ => return false,
    };
    let members = format!(
        "\"content_index\":0,\"delta\":{},\"item_id\":{},\"logprobs\":[],\"output_index\":0",
        quoted(&text),
        item_id(answer)
    );
    event("response.output_text.delta", number, &members, "", out);
    true
}

/// Closing event `k` after `steps` tokens, number `number` of the stream.
pub(super) fn closing(
    answer: &Answer<'_>,
    choice: &Choice,
    steps: u64,
    (k, number): (u64, u64),
    out: &mut Vec<u8>,
) {
    let item = item_id(answer);
    let text = quoted(&String::from_utf8_lossy(&answer.call.text(choice, steps)));
    match k {
        0 => {
            let members = format!(
                "\"content_index\":0,\"item_id\":{item},\"logprobs\":[],\"output_index\":0"
            );
            let more = format!(",\"text\":{text}");
            event("response.output_text.done", number, &members, &more, out);
        }
        1 => {
            let part = part(&text);
            let members = format!(
                "\"content_index\":0,\"item_id\":{item},\"output_index\":0,\"part\":{part}"
            );
            event("response.content_part.done", number, &members, "", out);
        }
        2 => {
            let members = format!("\"item\":{},\"output_index\":0", output(&item, &text));
            event("response.output_item.done", number, &members, "", out);
        }
        _ => {
            let members = format!("\"response\":{}", response(answer, Some((choice, steps))));
            event("response.completed", number, &members, "", out);
        }
    }
}

/// The whole answer after `steps` tokens.
pub(super) fn whole(answer: &Answer<'_>, choice: &Choice, steps: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(response(answer, Some((choice, steps))).as_bytes());
}

fn item_id(answer: &Answer<'_>) -> String {
    quoted(&format!("msg_{}", answer.bare_id))
}

fn part(text_json: &str) -> String {
    format!(
        "{{\"annotations\":[],\"text\":{text_json},\"type\":\"output_text\",\"logprobs\":null}}"
    )
}

fn output(item_json: &str, text_json: &str) -> String {
    format!(
        "{{\"id\":{item_json},\"content\":[{}],\"role\":\"assistant\",\"status\":\"completed\",\
         \"type\":\"message\",\"phase\":null}}",
        part(text_json)
    )
}

/// The response object: in progress, or ended after so many tokens.
fn response(answer: &Answer<'_>, ended: Option<(&Choice, u64)>) -> String {
    let (mut details, mut items, mut status) = ("null", String::new(), "in_progress");
    let mut usage = "null".to_owned();
    if let Some((choice, steps)) = ended {
        status = "completed";
        if reason(answer, choice, steps.saturating_sub(1)).0 == "length" {
            details = "{\"reason\":\"max_output_tokens\"}";
            status = "incomplete";
        }
        let text = quoted(&String::from_utf8_lossy(&answer.call.text(choice, steps)));
        items = output(&item_id(answer), &text);
        let numbers = answer.numbers(steps);
        usage = format!(
            "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},\
             \"cache_write_tokens\":0,\"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]}},\
             \"output_tokens\":{},\"output_tokens_details\":{{\"reasoning_tokens\":0,\
             \"tool_output_tokens\":0,\"output_tokens_per_turn\":[],\
             \"tool_output_tokens_per_turn\":[]}},\"total_tokens\":{}}}",
            numbers.prompt,
            answer.cached(),
            numbers.completion,
            numbers.total()
        );
    }
    let limit = answer.call.max_tokens.map_or_else(|| "null".to_owned(), |n| n.to_string());
    format!(
        "{{\"id\":{},\"created_at\":{},\"incomplete_details\":{details},\"instructions\":null,\
         \"metadata\":null,\"model\":{},\"object\":\"response\",\"output\":[{items}],\
         \"parallel_tool_calls\":true,\"temperature\":{:?},\"tool_choice\":\"none\",\"tools\":[],\
         \"top_p\":1.0,\"background\":false,\"max_output_tokens\":{limit},\"max_tool_calls\":null,\
         \"previous_response_id\":null,\"prompt\":null,\"reasoning\":null,\
         \"service_tier\":\"auto\",\"status\":\"{status}\",\"text\":null,\"top_logprobs\":null,\
         \"truncation\":\"disabled\",\"usage\":{usage},\"user\":null,\"presence_penalty\":0.0,\
         \"frequency_penalty\":0.0,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\
         \"input_messages\":null,\"output_messages\":null}}",
        quoted(&answer.id),
        answer.created,
        answer.model_json,
        answer.call.temperature.unwrap_or(1.0),
    )
}
