//! What the gateway answers itself: the model list and its health.

use std::rc::Rc;

use super::body;
use super::connection::{Client, Next};
use super::core::Core;
use super::reply::{Failure, Head};
use super::shared::Published;
use super::ticket::Ticket;
use crate::http1::{Method, RequestHead, unescaped};
use crate::openai::{Endpoint, models};
use crate::tenants::TenantRef;

/// The body of a local answer; `None` when the endpoint is not ours.
pub(super) fn answer(
    endpoint: Endpoint,
    path: &[u8],
    published: &Published,
    caller: TenantRef,
) -> Option<Result<Vec<u8>, Failure>> {
    let allowed = |id: &str| {
        let served = published.fleet.resolve(Some(id)).ok()?;
        let pool = published.fleet.pools.get(served.pool)?;
        published.may_use(caller, &pool.name).then_some(())
    };
    match endpoint {
        Endpoint::Health => Some(Ok(b"{\"status\":\"ok\"}".to_vec())),
        Endpoint::Models => {
            let entries = published.fleet.entries.iter().filter(|e| allowed(&e.id).is_some());
            Some(Ok(models::list(entries)))
        }
        Endpoint::Model(id) => {
            // SDKs write the slash of `meta-llama/Llama-3.1-8B` as %2F.
            let id = unescaped(&String::from_utf8_lossy(id.of(path))).into_owned();
            let entry = published.fleet.entries.iter().find(|e| e.id == id);
            let entry = entry.filter(|e| allowed(&e.id).is_some());
            Some(entry.map(models::one).ok_or(Failure::ModelNotFound(id)))
        }
        _ => None,
    }
}

/// Sends a local answer, after whatever body the request has is out of the way.
pub(super) async fn send(
    core: &Rc<Core>,
    client: &mut Client,
    request: &RequestHead,
    json: &[u8],
    ticket: &Ticket<'_>,
) -> Result<Next, Failure> {
    let skipped = body::skip(core, client, request).await;
    write(core, client, request, json, (ticket, !skipped || ticket.closes())).await
}

/// Sends a local answer to a request whose body was read.
pub(super) async fn reply(
    core: &Rc<Core>,
    client: &mut Client,
    request: &RequestHead,
    json: &[u8],
    ticket: &Ticket<'_>,
) -> Result<Next, Failure> {
    write(core, client, request, json, (ticket, ticket.closes())).await
}

async fn write(
    core: &Rc<Core>,
    client: &mut Client,
    request: &RequestHead,
    json: &[u8],
    (ticket, close): (&Ticket<'_>, bool),
) -> Result<Next, Failure> {
    let mut out = Vec::with_capacity(json.len() + 256);
    let mut head = Head::new(&mut out, 200, ticket);
    head.field("content-type", b"application/json");
    head.end_with_length(json.len() as u64, close);
    if request.method != Method::Head {
        out.extend_from_slice(json);
    }
    client.send(core, &out).await?;
    Ok(if close { Next::Close } else { Next::KeepAlive })
}
