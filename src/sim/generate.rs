//! The life of a generation request: admitted, paced, sent event by event, released.
//!
//! On the connection's task. The ticket releases the engine when the client leaves, whichever
//! await it happened in.

use std::rc::Rc;
use std::task::Poll;

use super::answer::{Answer, quoted};
use super::cache::parts;
use super::call::{Api, Call, Finish, Shown};
use super::config::OnTerm;
use super::errors::Refusal;
use super::fault::Kind;
use super::kv_transfer::Leg;
use super::replica::{Replica, Ticket};
use super::stats::add;
use super::wire::{End, Wire};
use super::{chat, date, messages, responses};

/// Answers a checked request.
pub(super) async fn generate(wire: &mut Wire, call: &Call, id: Option<&str>) -> Result<(), End> {
    let replica = Rc::clone(&wire.replica);
    let mut answer = begin(wire, call, id);
    match fetch(wire, call).await {
        Ok(true) => {}
        Ok(false) => return not_fetched(wire, call).await,
        Err(end) => {
            super::connection::count_end(&replica, end);
            return Err(end);
        }
    }
    let parts = parts(call, replica.exact.as_deref(), replica.config.block_tokens);
    let lora = call.is_lora.then_some(&*call.model);
    let ticket = replica.admit(parts, lora, call.cache_salt.as_deref());
    let mut steps = 0;
    let ended = if call.stream {
        stream(wire, &mut answer, &ticket, &mut steps).await
    } else {
        whole(wire, &mut answer, &ticket, &mut steps).await
    };
    drop(ticket);
    let sent = answer.generated(steps);
    add(&replica.counters.completion_tokens, sent);
    match ended {
        Ok(()) => {
            add(&replica.counters.completed, 1);
            for choice in &call.choices {
                let stopped = choice.finish != Finish::Length;
                let Replica { counters, .. } = &*replica;
                let kind =
                    if stopped { &counters.finished_stop } else { &counters.finished_length };
                add(kind, 1);
            }
        }
        Err(end) => {
            super::connection::count_end(&replica, end);
            if let Some(seen_us) = wire.gone_us.take() {
                replica.counters.released(replica.clock.now_us() - seen_us);
            }
        }
    }
    ended
}

/// Fetches the prompt's blocks from the replica that has computed them, if it is to; false: they
/// are not to be had.
async fn fetch(wire: &mut Wire, call: &Call) -> Result<bool, End> {
    let Leg::Decode(id) = &call.leg else { return Ok(true) };
    let replica = Rc::clone(&wire.replica);
    if wire.kind() == Kind::KvUnreachable {
        return Ok(false);
    }
    let Some(took) = replica.shared.transfers.fetch(id) else { return Ok(false) };
    let due_us = replica.clock.now_us() + took.as_micros() as u64;
    while replica.clock.now_us() < due_us {
        wire.wait(Some(due_us), |_| Poll::Pending).await?;
    }
    add(&replica.counters.kv_fetched, 1);
    Ok(true)
}

async fn not_fetched(wire: &mut Wire, call: &Call) -> Result<(), End> {
    add(&wire.replica.counters.refused, 1);
    if !call.stream {
        return refuse(wire, &Refusal::not_fetched()).await;
    }
    wire.open_stream().await?;
    error_event(wire, &Refusal::not_fetched()).await
}

/// What hands over the prompt's blocks: only an answer that its limit has ended does.
fn hold(answer: &Answer<'_>) -> Option<String> {
    let call = answer.call;
    let ended = call.choices.iter().all(|choice| choice.finish == Finish::Length);
    if call.leg != Leg::Prefill || !ended || answer.abort_after.is_some() {
        return None;
    }
    Some(format!("{}-{:08x}", answer.id, answer.created))
}

fn begin<'c>(wire: &Wire, call: &'c Call, id: Option<&str>) -> Answer<'c> {
    let replica = &wire.replica;
    let bare_id = match id.or(call.request_id.as_deref()) {
        Some(given) => given.to_owned(),
        None => format!("{:016x}", replica.fresh_id()),
    };
    let id_prefix = match call.api {
        Api::Chat | Api::Messages => "chatcmpl-",
        Api::Completions => "cmpl-",
        Api::Responses => "resp_",
    };
    let id = format!("{id_prefix}{bare_id}");
    let created = date::unix_seconds();
    let model_json = quoted(&call.model);
    let fault = wire.fault.as_ref();
    Answer {
        call,
        prefix: chat::prefix(call.api, &id, created, &model_json),
        id,
        bare_id,
        created,
        prompt_tokens: call.prompt_tokens(),
        cached_tokens: 0,
        block_tokens: replica.config.block_tokens,
        details: replica.config.prompt_tokens_details,
        usage_shape: fault.and_then(|f| f.shape.filter(|_| f.kind == Kind::UsageShape)),
        model_json,
        kv_params: "null".to_owned(),
        abort_after: fault.filter(|f| f.kind == Kind::AbortFinish).map(|f| f.events_first().max(1)),
    }
}

/// Waits for token number `n`; what was ready may be more. Heeds the end signal.
async fn tokens(wire: &mut Wire, ticket: &Ticket, n: u64) -> Result<u64, End> {
    loop {
        if wire.replica.terminating.get() == Some(OnTerm::Freeze) {
            return Err(wire.park().await);
        }
        let ready = ticket.pace.ready(wire.replica.clock.now_us());
        if ready >= n {
            return Ok(ready);
        }
        wire.wait(ticket.pace.due_us(n), |cx| ticket.pace.poll_engine(cx)).await?;
        if wire.replica.terminating.get() == Some(OnTerm::Abort) {
            return Ok(n);
        }
    }
}

/// On the end signal the token in hand becomes the last.
fn heed_end(wire: &Wire, answer: &mut Answer<'_>, steps: u64) {
    if wire.replica.terminating.get() == Some(OnTerm::Abort) && answer.abort_after.is_none() {
        answer.abort_after = Some(steps + 1);
    }
}

async fn stream(
    wire: &mut Wire,
    answer: &mut Answer<'_>,
    ticket: &Ticket,
    steps: &mut u64,
) -> Result<(), End> {
    let call = answer.call;
    wire.open_stream().await?;
    if wire.kind() == Kind::ErrorIn200 {
        return error_event(wire, &Refusal::queue_full()).await;
    }
    let mut ready = tokens(wire, ticket, 1).await?;
    answer.cached_tokens = ticket.count_cached();
    let mut number = open(wire, answer).await?;
    let (mut dies, total) = (None, call.steps());
    if wire.kind() == Kind::ErrorMidStream {
        dies = wire.fault.as_ref().map(|f| f.events_first());
    }
    while *steps < total {
        if dies == Some(*steps) {
            return error_event(wire, &Refusal::engine_dead()).await;
        }
        if *steps >= ready {
            ready = tokens(wire, ticket, *steps + 1).await?;
        }
        heed_end(wire, answer, *steps);
        for (index, choice) in call.choices.iter().enumerate() {
            if *steps >= choice.tokens || call.shown(choice, *steps) == Shown::Hidden {
                continue;
            }
            let out = wire.event();
            let shows = match call.api {
                Api::Chat | Api::Completions => {
                    chat::token(answer, index, choice, *steps, out);
                    true
                }
                Api::Messages => messages::token(answer, choice, *steps, out),
                Api::Responses => responses::token(answer, choice, *steps, number, out),
            };
            if shows {
                wire.send_event().await?;
                number += 1;
            }
        }
        *steps += 1;
        if answer.aborts(*steps - 1) {
            break;
        }
    }
    close(wire, answer, *steps, number).await
}

/// Sends what comes before the first token; returns the number of events.
async fn open(wire: &mut Wire, answer: &Answer<'_>) -> Result<u64, End> {
    let openings = match answer.call.api {
        Api::Chat => answer.call.choices.len() as u64,
        Api::Completions => 0,
        Api::Messages => messages::OPENINGS,
        Api::Responses => responses::OPENINGS,
    };
    for k in 0..openings {
        let out = wire.event();
        match answer.call.api {
            Api::Chat | Api::Completions => chat::role(answer, k as usize, out),
            Api::Messages => messages::opening(answer, k, out),
            Api::Responses => responses::opening(answer, k, out),
        }
        wire.send_event().await?;
    }
    Ok(openings)
}

/// Sends what comes after the last token.
async fn close(
    wire: &mut Wire,
    answer: &Answer<'_>,
    steps: u64,
    mut number: u64,
) -> Result<(), End> {
    let closings = match answer.call.api {
        Api::Chat | Api::Completions => u64::from(answer.usage_event()),
        Api::Messages => messages::CLOSINGS,
        Api::Responses => responses::CLOSINGS,
    };
    for k in 0..closings {
        let Some(choice) = answer.call.choices.first() else { break };
        let out = wire.event();
        match answer.call.api {
            Api::Chat | Api::Completions => {
                chat::usage_event(answer, answer.generated(steps), out);
            }
            Api::Messages => messages::closing(answer, choice, steps, k, out),
            Api::Responses => responses::closing(answer, choice, steps, (k, number), out),
        }
        wire.send_event().await?;
        number += 1;
    }
    if matches!(answer.call.api, Api::Chat | Api::Completions) {
        wire.send_done().await?;
    }
    wire.end_stream().await
}

/// An error within a stream: its event, `[DONE]`, a clean end.
async fn error_event(wire: &mut Wire, refusal: &Refusal) -> Result<(), End> {
    refusal.event(wire.event());
    wire.send_event().await?;
    wire.send_done().await?;
    wire.end_stream().await
}

async fn whole(
    wire: &mut Wire,
    answer: &mut Answer<'_>,
    ticket: &Ticket,
    steps: &mut u64,
) -> Result<(), End> {
    let refusal = match wire.kind() {
        Kind::ErrorIn200 => Some(Refusal::queue_full()),
        Kind::ErrorMidStream => Some(Refusal::engine_dead()),
        _ => None,
    };
    if let Some(refusal) = refusal {
        return refuse(wire, &refusal).await;
    }
    let total = answer.call.steps().min(answer.abort_after.unwrap_or(u64::MAX));
    while *steps < total {
        let ready = tokens(wire, ticket, total).await?;
        *steps = ready.min(total);
        if wire.replica.terminating.get() == Some(OnTerm::Abort) {
            *steps = ticket.pace.ready(wire.replica.clock.now_us()).clamp(1, total);
            heed_end(wire, answer, *steps - 1);
            break;
        }
    }
    answer.cached_tokens = ticket.count_cached();
    if let Some(id) = hold(answer) {
        let Replica { shared, config, port, .. } = &*wire.replica;
        let tokens = answer.prompt_tokens;
        answer.kv_params = shared.transfers.hold(*port, &id, tokens, config.block_tokens);
    }
    wire.body.clear();
    let out = &mut wire.body;
    match (answer.call.api, answer.call.choices.first()) {
        (Api::Messages, Some(choice)) => messages::whole(answer, choice, *steps, out),
        (Api::Responses, Some(choice)) => responses::whole(answer, choice, *steps, out),
        _ => chat::whole(answer, *steps, out),
    }
    wire.whole(200, "application/json", "").await
}

/// Sends a refusal as a response of its own.
pub(super) async fn refuse(wire: &mut Wire, refusal: &Refusal) -> Result<(), End> {
    wire.body.clear();
    refusal.json(&mut wire.body);
    wire.whole(refusal.status, "application/json", "").await
}
