//! A request's way around its core's time: work given to a thread beside the cores while the
//! client is watched, and turns between what the core does itself.
//!
//! Two kinds of threads ([`super::side`]): those that encode may be busy for a second with one
//! prompt; those that read a body or write a list are not kept waiting by them.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::body::Body;
use super::connection::Client;
use super::core::Core;
use super::reply::Failure;
use super::side::{Busy, Lost, Side};
use crate::openai::{Call, Endpoint, read_call};

/// What a core does with a longer body is done stage by stage, and others have their turn between.
pub(super) const STAGE_BYTES_MAX: usize = 64 * 1024;

/// Does `job` on one of the threads of `side` and waits for it, watching the client. `None`: the
/// job is lost.
///
/// # Errors
/// The client goes, the core ends, or too many jobs wait.
pub(super) async fn beside<S: 'static, T: Send + 'static>(
    side: &Side<S>,
    core: &Rc<Core>,
    client: &mut Client,
    job: impl FnOnce(&mut S) -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    let answer = side.submit(&core.bell, job).map_err(|Busy| Failure::Busy)?;
    let mut rung = pin!(core.bell.rung());
    poll_fn(|cx| {
        loop {
            match answer.take() {
                Ok(Some(answer)) => return Poll::Ready(Ok(Some(answer))),
                Err(Lost) => return Poll::Ready(Ok(None)),
                Ok(None) => {}
            }
            if client.poll_gone(cx, core).is_ready() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            if core.sweep.ended() {
                return Poll::Ready(Err(Failure::Stopping));
            }
            if rung.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            rung.set(core.bell.rung());
        }
    })
    .await
}

/// Does `work` here when it is short, else on a thread that reads and writes lists. `None`: it is
/// lost.
///
/// # Errors
/// As [`beside`].
pub(super) async fn short_here<T: Send + 'static>(
    core: &Rc<Core>,
    client: &mut Client,
    short: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    if short {
        return Ok(Some(work()));
    }
    beside(&core.shared.readers, core, client, move |(): &mut ()| work()).await
}

/// Lets the core do what else is ready.
///
/// # Errors
/// The client has gone.
pub(super) async fn turn(core: &Rc<Core>, client: &mut Client) -> Result<(), Failure> {
    core.bell.turn().await;
    match poll_fn(|cx| Poll::Ready(client.poll_gone(cx, core).is_ready())).await {
        true => Err(Failure::ClientGone),
        false => Ok(()),
    }
}

/// [`read_call`], of a heavy body beside the core.
///
/// # Errors
/// As it, and as [`beside`].
pub(super) async fn call(
    core: &Rc<Core>,
    client: &mut Client,
    endpoint: Endpoint,
    body: &Body,
) -> Result<Call, Failure> {
    let read = match body.heavy() {
        None => {
            let read = read_call(endpoint, body.bytes(client));
            if body.bytes(client).len() > STAGE_BYTES_MAX {
                turn(core, client).await?;
            }
            read
        }
        Some(apart) => {
            let job = move |(): &mut ()| read_call(endpoint, apart.bytes());
            let read = beside(&core.shared.readers, core, client, job).await?;
            // Whatever it broke on breaks here, where it costs this request alone.
            read.unwrap_or_else(|| read_call(endpoint, body.bytes(client)))
        }
    };
    read.map_err(Failure::Body)
}
