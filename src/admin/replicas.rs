//! `POST /replicas` and `DELETE /replicas/ID`: the operator's hand on the fleet.
//!
//! What is added here lives in this process only; what belongs to the fleet for good belongs into
//! its configuration or its source.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use serde::Deserialize;
use serde_json::json;

use super::server::{View, text};
use crate::http1::unescaped;
use crate::replicas::{Refused, read_replica};

/// Largest description of a replica.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// `{"pool": "...", "url": "...", "id": "...", "zone": "...", "weight": 1}`; the last three may be
/// left out.
#[derive(Deserialize)]
struct Order {
    pool: String,
    #[serde(flatten)]
    replica: serde_json::Map<String, serde_json::Value>,
}

/// Adds a replica; answers with what it is.
pub(super) async fn add(view: &View, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let Ok(body) = body else { return failed(400, "the body cannot be read") };
    let order: Order = match serde_json::from_slice(&body.to_bytes()) {
        Ok(order) => order,
        Err(error) => return failed(400, &error.to_string()),
    };
    let replica = match read_replica(serde_json::Value::Object(order.replica)) {
        Ok(replica) => replica,
        Err(what) => return failed(400, &what),
    };
    let (id, url) = (replica.id.clone(), replica.url.clone());
    match view.registry.add(&order.pool, replica).await {
        Ok(()) => done(201, &json!({"id": id, "url": url, "pool": order.pool})),
        Err(why) => refused(why),
    }
}

/// Takes a replica away: it drains and then leaves; with `?now=1` it leaves at once, and what runs
/// there is not cut.
pub(super) async fn remove(view: &View, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let id = unescaped(request.uri().path().strip_prefix("/replicas/").unwrap_or_default());
    let id = id.as_ref();
    let now = request.uri().query().is_some_and(|query| query.split('&').any(|q| q == "now=1"));
    match view.registry.remove(id, now).await {
        Ok(()) => done(202, &json!({"id": id, "state": if now { "gone" } else { "draining" }})),
        Err(why) => refused(why),
    }
}

fn refused(why: Refused) -> Response<Full<Bytes>> {
    match why {
        Refused::NoPool(names) => {
            failed(404, &format!("there is no such pool; there are {}", names.join(", ")))
        }
        Refused::NoReplica => failed(404, "there is no such replica"),
        Refused::Taken(what) => failed(409, &what),
        Refused::Invalid(what) => failed(400, &what),
        Refused::Full => failed(409, "there are as many replicas as can be"),
    }
}

fn done(status: u16, body: &serde_json::Value) -> Response<Full<Bytes>> {
    text(status, "application/json", body.to_string())
}

fn failed(status: u16, what: &str) -> Response<Full<Bytes>> {
    done(status, &json!({"error": {"message": what, "code": status}}))
}
