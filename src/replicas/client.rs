//! Asks one replica on the control thread: an ordinary HTTP/1.1 client (hyper), because nothing
//! here is hot. Every answer has a limit on its size and its time, and a failure is just `None`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::replica::Replica;
use crate::config::Secret;
use crate::net::Peer;
use crate::runtime::descriptors::Lack;

/// Largest answer that is read: a `/v1/models` of thousands of adapters.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The id under which the control thread asks.
const PROBE_ID: &str = "expedite-probe";

/// Status and body of an answer.
pub(super) type Answer = (u16, Bytes);

/// Asks one replica, over one connection that it keeps while the replica does.
pub(super) struct Client {
    authority: String,
    api_key: Option<Secret>,
    peer: Result<Option<Arc<Peer>>, &'static str>,
    /// Why TLS with it has failed, when that was last tried.
    fault: Option<String>,
    /// What we were out of when a connection was last wanted.
    lack: Option<Lack>,
    /// Its last answer had the id of the question.
    repeats_ids: bool,
    kept: Option<(SocketAddr, SendRequest<Full<Bytes>>)>,
}

impl Client {
    /// Of this replica; connects when first asked.
    pub(super) fn new(replica: &Replica, api_key: Option<&Secret>) -> Client {
        Client {
            authority: replica.authority.clone(),
            api_key: api_key.cloned(),
            peer: replica.peer(),
            fault: None,
            lack: None,
            repeats_ids: false,
            kept: None,
        }
    }

    /// Why TLS with it has failed, if it has when a connection was last wanted.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What we were out of when a connection was last wanted, if that is why there was none.
    pub(super) fn lack(&self) -> Option<Lack> {
        self.lack
    }

    /// Did its last answer have the id (`x-request-id`) of the question?
    pub(super) fn repeats_ids(&self) -> bool {
        self.repeats_ids
    }

    /// Gets `path` from the replica at `addr`.
    pub(super) async fn get(
        &mut self,
        addr: SocketAddr,
        path: &str,
        limit: Duration,
    ) -> Option<Answer> {
        self.ask(addr, ("GET", path), String::new(), limit).await
    }

    /// Posts JSON to `path` of the replica at `addr`.
    pub(super) async fn post(
        &mut self,
        addr: SocketAddr,
        path: &str,
        json: String,
        limit: Duration,
    ) -> Option<Answer> {
        self.ask(addr, ("POST", path), json, limit).await
    }

    /// Forgets the connection, so that the next question shows whether the port still accepts.
    pub(super) fn hang_up(&mut self) {
        self.kept = None;
    }

    async fn ask(
        &mut self,
        addr: SocketAddr,
        (method, path): (&'static str, &str),
        body: String,
        limit: Duration,
    ) -> Option<Answer> {
        let exchange = async {
            // vLLM closes an idle connection after 5 s: what was kept may be gone by now.
            if let Some(mut kept) = self.take(addr) {
                let request = self.request(method, path, body.clone())?;
                if let Some(answer) = exchange(&mut kept, request, &mut self.repeats_ids).await {
                    self.kept = Some((addr, kept));
                    return Some(answer);
                }
            }
            let mut fresh = self.connect(addr).await?;
            let request = self.request(method, path, body)?;
            let answer = exchange(&mut fresh, request, &mut self.repeats_ids).await?;
            self.kept = Some((addr, fresh));
            Some(answer)
        };
        // The connection is out of its place meanwhile: one that was late is not used again.
        tokio::time::timeout(limit, exchange).await.ok()?
    }

    async fn connect(&mut self, addr: SocketAddr) -> Option<SendRequest<Full<Bytes>>> {
        let connected = TcpStream::connect(addr).await;
        self.lack = connected.as_ref().err().and_then(Lack::of);
        let socket = connected.ok()?;
        let peer = match &self.peer {
            Ok(None) => return shake_hands(TokioIo::new(socket)).await,
            Ok(Some(peer)) => peer,
            Err(why) => {
                self.fault = Some((*why).to_owned());
                return None;
            }
        };
        let (config, name) = peer.parts();
        match TlsConnector::from(config).connect(name, socket).await {
            Ok(secured) => {
                self.fault = None;
                shake_hands(TokioIo::new(secured)).await
            }
            Err(error) => {
                self.fault = Some(error.to_string());
                None
            }
        }
    }

    fn take(&mut self, addr: SocketAddr) -> Option<SendRequest<Full<Bytes>>> {
        let (to, send) = self.kept.take()?;
        (to == addr).then_some(send)
    }

    fn request(
        &self,
        method: &'static str,
        path: &str,
        body: String,
    ) -> Option<hyper::Request<Full<Bytes>>> {
        let mut request = hyper::Request::builder().method(method).uri(path);
        request = request.header("host", &self.authority).header("x-request-id", PROBE_ID);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {}", key.expose()));
        }
        request.body(Full::new(Bytes::from(body))).ok()
    }
}

async fn shake_hands(
    socket: impl hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
) -> Option<SendRequest<Full<Bytes>>> {
    let (send, connection) = http1::handshake(socket).await.ok()?;
    // It ends with the replica's end of the connection, or when `send` is dropped.
    tokio::task::spawn_local(async move { drop(connection.await) });
    Some(send)
}

async fn exchange(
    send: &mut SendRequest<Full<Bytes>>,
    request: hyper::Request<Full<Bytes>>,
    repeats_ids: &mut bool,
) -> Option<Answer> {
    send.ready().await.ok()?;
    let response = send.send_request(request).await.ok()?;
    *repeats_ids = response.headers().get("x-request-id").is_some_and(|id| id == PROBE_ID);
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    Some((status, body.collect().await.ok()?.to_bytes()))
}
