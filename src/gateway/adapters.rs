//! Before an attempt at a replica that does not list the request's adapter: has it loaded there,
//! and waits, watching the client and the time limit.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crossbeam_queue::ArrayQueue;

use super::connection::Client;
use super::core::Core;
use super::exchange::{self, Attempt, FIRST_TOKEN};
use super::plan::Plan;
use super::ticket::Ticket;
use crate::replicas::Lane;
use crate::runtime::clock;

/// Has the adapter that the request asks for loaded on the lane's replica, unless it lists it; how
/// long that took, in ns.
///
/// # Errors
/// The attempt has failed: it would not load, or the client or the time has gone.
pub(super) async fn load(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    lane: &Lane,
) -> Result<u64, Attempt> {
    let (Some(adapter), Some(path)) = (&plan.served.adapter, &plan.served.loads_from) else {
        return Ok(0);
    };
    // What the snapshot says may be old by now: it may have been unloaded to make room.
    if lane.replica.lists(adapter) {
        return Ok(0);
    }
    let began_ns = clock::now_ns();
    let failed = |what: &str| Attempt::Failed(None, format!("adapter {adapter}: {what}"));
    let (answer, ringer) = (Arc::new(ArrayQueue::new(1)), core.bell.ringer());
    let told = Arc::clone(&answer);
    let done = Box::new(move |result| {
        let _ = told.push(result);
        ringer.ring();
    });
    let loader = &core.shared.loader;
    if !loader.want(&plan.pool, &lane.replica, (adapter, path), done) {
        return Err(failed("too many loads wait"));
    }
    let (limit_ms, limit) = ticket.sooner(plan.first_ms(), FIRST_TOKEN);
    client.deadline.set(limit_ms);
    let mut rung = pin!(core.bell.rung());
    poll_fn(|cx| {
        loop {
            if let Some(result) = answer.pop() {
                let took_ns = clock::now_ns().saturating_sub(began_ns);
                return Poll::Ready(match result {
                    Ok(()) => Ok(took_ns),
                    Err(what) => Err(failed(&what)),
                });
            }
            // The loader is gone, and its end of the answer with it.
            if Arc::strong_count(&answer) == 1 {
                return Poll::Ready(Err(failed("it is not loaded any more")));
            }
            if client.poll_gone(cx, core).is_ready() {
                return Poll::Ready(Err(Attempt::ClientGone));
            }
            if client.deadline.poll(cx).is_ready() {
                return Poll::Ready(Err(exchange::late(core, limit)));
            }
            if rung.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            rung.set(core.bell.rung());
        }
    })
    .await
}
