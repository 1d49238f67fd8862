//! One attempt at a replica that prefills: the exchange, and what it hands over. On the request's
//! core; every wait watches the client, whose going closes the replica's connection.

use std::rc::Rc;

use super::PARAMS;
use crate::gateway::adapters;
use crate::gateway::answer;
use crate::gateway::buffer::Buffer;
use crate::gateway::connection::Client;
use crate::gateway::core::Core;
use crate::gateway::exchange::{self, Attempt, FIRST_TOKEN, Side};
use crate::gateway::pick::Routed;
use crate::gateway::plan::Plan;
use crate::gateway::ticket::Ticket;
use crate::gateway::upstream;
use crate::http1::ResponseHead;
use crate::openai::json::Kind;
use crate::openai::{member, read_answer};
use crate::prompt::Basis;
use crate::replicas::{Dispatch, Lane, Replica};
use crate::runtime::clock;

/// What a replica that prefills has answered.
pub(super) enum Answered {
    /// What its blocks are fetched by: an object, as it came.
    Handed(String),
    /// It will not, and no other would.
    Not(String),
}

/// Has a lane prefill the request.
///
/// # Errors
/// The attempt came to nothing: another lane may be asked, unless client or time have gone.
pub(super) async fn ask(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    (lane, routed, dispatch): (&Lane, &Routed, &Dispatch),
) -> Result<Answered, Attempt> {
    let replica = &lane.replica;
    replica.health.start(core.sweep.now_ms());
    let waited_ns = adapters::load(core, client, plan, ticket, lane).await?;
    ticket.waited_for_them(waited_ns);
    let now_ms = core.sweep.now_ms();
    let _entry = lane.ledger.enter(core.index, dispatch, now_ms);
    let _awaiting = replica.silence.sent(core.index, routed.pick.ttft_ms, now_ms);
    let mut reused = core.idle.take(replica.key, now_ms);
    loop {
        let was_reused = reused.is_some();
        let mut stream = match reused.take() {
            Some(stream) => stream,
            None => upstream::connect(core, client, plan, ticket, replica).await?,
        };
        let mut inbox = Buffer::default();
        let sent_ns = clock::now_ns();
        ticket.leg_sent();
        match exchange(core, client, plan, ticket, replica, (&mut stream, &mut inbox)).await {
            Ok((head, answer)) => {
                let now_ms = core.sweep.now_ms();
                replica.silence.heard(core.index, now_ms);
                replica.health.succeeded(now_ms);
                if inbox.is_empty() && head.keep_alive && answer.is_framed() {
                    core.idle.give(replica.key, stream, None, now_ms);
                }
                let payload = answer.payload().unwrap_or_default();
                let answered = read(head.status, payload);
                if matches!(answered, Answered::Handed(_)) {
                    let took_ns = clock::now_ns().saturating_sub(sent_ns);
                    learn(core, ticket, routed, (took_ns as f64 / 1e6, payload));
                }
                inbox.release(&core.buffers);
                return Ok(answered);
            }
            // As of any replica: it closed the connection in the moment of its reuse.
            Err(Attempt::Failed(..)) if was_reused && inbox.untouched() => {
                core.metrics.reuse_races.inc();
            }
            Err(why) => return Err(why),
        }
    }
}

async fn exchange(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    replica: &Replica,
    (stream, inbox): Side<'_>,
) -> Result<(ResponseHead, answer::Answer), Attempt> {
    let (limit_ms, limit) = ticket.sooner(plan.first_ms(), FIRST_TOKEN);
    client.deadline.set(limit_ms);
    let request = plan.write_head(replica, ticket, plan.edits.len(plan.body.bytes(client)));
    let what = (request.as_slice(), &plan.edits, &plan.body);
    let whole = exchange::send(core, client, what, limit, (stream, inbox)).await?;
    let mut head = exchange::read_head(core, client, limit, (stream, inbox)).await?;
    exchange::plainly_coded(&head, inbox.filled())?;
    head.keep_alive &= whole;
    inbox.consume(head.head_bytes as usize);
    // Who is full is no reason to wait: somebody can always compute it.
    let elsewhere = || true;
    let how = (&elsewhere as &dyn Fn() -> bool, limit, plan.endpoint.answers_json());
    let answer = answer::read(core, client, &head, how, (stream, inbox)).await?;
    Ok((head, answer))
}

/// What is handed over by an answer.
fn read(status: u16, payload: &[u8]) -> Answered {
    if status != 200 {
        // The engine that decodes will say so in its own words, if it thinks so too.
        return Answered::Not(format!("it answered {status}"));
    }
    let params = member(payload, PARAMS).filter(|value| value.kind == Kind::Object);
    let text = params.and_then(|value| std::str::from_utf8(value.span.of(payload)).ok());
    match text {
        Some(text) => Answered::Handed(text.to_owned()),
        None => Answered::Not(format!("its answer has no {PARAMS}: is its connector set up?")),
    }
}

/// A prefill is over: what it teaches of times and of the cache there.
fn learn(core: &Core, ticket: &Ticket<'_>, routed: &Routed, (took_ms, payload): (f64, &[u8])) {
    routed.first_token(core, took_ms, core.sweep.now_ms());
    let counted = ticket.prompt().is_some_and(|prompt| prompt.basis == Basis::Exact);
    let cached = read_answer(payload).usage.and_then(|usage| usage.cached_tokens);
    if let Some(verdict) = cached.filter(|_| counted).and_then(|n| routed.cached(n)) {
        core.shared.log.info(&format!("a replica that prefills: {}", verdict.reason()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_is_passed_on_as_it_came() {
        let params = "{ \"remote_block_ids\":[[1,2]],\"new\\u0020field\":-0.0 }";
        let answer = format!("{{\"choices\":[],\"kv_transfer_params\":{params},\"x\":1}}");
        let Answered::Handed(handed) = read(200, answer.as_bytes()) else { panic!("not handed") };
        assert_eq!(handed, params);
        for (status, answer) in [
            (400, answer.as_str()),
            (200, "{\"kv_transfer_params\":null}"),
            (200, "{\"kv_transfer_params\":\"x\"}"),
            (200, "{}"),
            (200, ""),
        ] {
            assert!(matches!(read(status, answer.as_bytes()), Answered::Not(_)), "{answer}");
        }
    }
}
