//! The task that sends traces and copies of usage records to a collector: OTLP over HTTP, as JSON.
//!
//! Runs on the control thread. One batch at a time; a collector that is away or busy is asked again
//! with growing pauses while the queues fill and then drop. That costs one line of the log and a
//! metric, never a request.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::otlp;
use super::queue::{Cells, Ended, Traces};
use crate::config::Otel;

/// Traces of one request to the collector: some 300 KB of JSON, and a millisecond of this thread.
const TRACES_A_BATCH: usize = 128;
/// Records of one.
const RECORDS_A_BATCH: usize = 512;
/// How long what came is gathered.
const EVERY: Duration = Duration::from_millis(500);
/// For one exchange.
const LIMIT: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What came of a batch.
enum Sent {
    /// Taken, but for so many.
    Taken(u64),
    /// Not wanted: to send it again would not help.
    Refused(String),
    /// The collector is away or busy.
    Away(String),
}

/// Says a line to the operator; true: it is a warning.
type Say = Box<dyn Fn(bool, &str)>;

/// The task.
pub struct Exporter {
    config: Otel,
    resource: String,
    queues: Arc<Traces>,
    say: Say,
    connection: Option<SendRequest<Full<Bytes>>>,
    traces: Vec<Ended>,
    records: Vec<Box<[u8]>>,
    /// What was last said of the collector and traces, and of it and records.
    said: [Option<bool>; 2],
}

impl Exporter {
    /// Of these queues; `instance` tells this process from others of its kind.
    #[must_use]
    pub fn new(config: Otel, instance: &str, queues: Arc<Traces>, say: Say) -> Exporter {
        let resource = otlp::resource(&config.service_name, instance);
        let (traces, records) = (Vec::new(), Vec::new());
        Exporter {
            config,
            resource,
            queues,
            say,
            connection: None,
            traces,
            records,
            said: [None; 2],
        }
    }

    /// Sends what comes; after `ending` what is left, if the collector takes it.
    pub async fn run(mut self, ending: impl Fn() -> bool) {
        let mut pause = RETRY_MIN;
        loop {
            let last = ending();
            let taken = self.round().await;
            match (taken, last) {
                (false, true) => return,
                (false, false) => {
                    wait(pause, &ending).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
                (true, _) => {
                    pause = RETRY_MIN;
                    let (traces, records) = self.waiting();
                    match last {
                        true if traces + records == 0 => return,
                        true => {}
                        false => wait(EVERY, || ending() || self.is_full()).await,
                    }
                }
            }
        }
    }

    /// Traces and records that wait.
    fn waiting(&self) -> (usize, usize) {
        (self.queues.traces.len(), self.queues.records.len())
    }

    /// A whole batch waits.
    fn is_full(&self) -> bool {
        let (traces, records) = self.waiting();
        traces >= TRACES_A_BATCH || records >= RECORDS_A_BATCH
    }

    /// Sends a batch of each kind. False: the collector is away.
    async fn round(&mut self) -> bool {
        fill(&mut self.traces, TRACES_A_BATCH, || self.queues.traces.pop());
        fill(&mut self.records, RECORDS_A_BATCH, || self.queues.records.pop());
        if !self.traces.is_empty() {
            let body = otlp::traces(&self.resource, &self.traces);
            let sent = self.post("/v1/traces", body, "rejectedSpans").await;
            let spans = self.traces.iter().map(|ended| ended.0.spans.len() as u64 + 1).sum();
            let queues = Arc::clone(&self.queues);
            if !self.came(sent, spans, (&queues.spans, 0)) {
                return false;
            }
            self.traces.clear();
        }
        if !self.records.is_empty() {
            let body = otlp::records(&self.resource, &self.records);
            let sent = self.post("/v1/logs", body, "rejectedLogRecords").await;
            let (records, queues) = (self.records.len() as u64, Arc::clone(&self.queues));
            if !self.came(sent, records, (&queues.logs, 1)) {
                return false;
            }
            self.records.clear();
        }
        true
    }

    /// Counts what came of `n` spans or records. False: they must be sent again.
    fn came(&mut self, sent: Sent, n: u64, (cells, kind): (&Cells, usize)) -> bool {
        let (done, well, what) = match sent {
            Sent::Taken(rejected) => {
                cells.exported.fetch_add(n.saturating_sub(rejected), Relaxed);
                cells.refused.fetch_add(rejected.min(n), Relaxed);
                (true, true, String::new())
            }
            Sent::Refused(why) => {
                cells.refused.fetch_add(n, Relaxed);
                (true, false, why)
            }
            Sent::Away(why) => (false, false, why),
        };
        let said = self.said.get_mut(kind).and_then(|said| said.replace(well));
        self.queues.up.store((!self.said.contains(&Some(false))).into(), Relaxed);
        if said != Some(well) {
            let sent = if kind == 0 { "traces" } else { "usage records" };
            let at = format!("the collector {}:{}", self.config.host, self.config.port);
            match well {
                true => (self.say)(false, &format!("{at} takes {sent}")),
                false => (self.say)(true, &format!("{at} does not take {sent}: {what}")),
            }
        }
        done
    }

    async fn post(&mut self, path: &str, body: String, rejected: &str) -> Sent {
        let exchange = self.exchange(path, Bytes::from(body));
        let answer = match tokio::time::timeout(LIMIT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err("no answer in time".to_owned()),
        };
        match answer {
            Ok((200..=299, body)) => {
                let read: Value = serde_json::from_slice(&body).unwrap_or_default();
                let rejected = read.get("partialSuccess").and_then(|part| part.get(rejected));
                // 64-bit numbers are strings in this JSON; some write them bare.
                let written = |n: &Value| n.as_u64().or(n.as_str().and_then(|n| n.parse().ok()));
                Sent::Taken(rejected.and_then(written).unwrap_or(0))
            }
            // What the protocol says may be tried again.
            Ok((status @ (429 | 502 | 503 | 504), _)) => Sent::Away(format!("status {status}")),
            Ok((status, _)) => Sent::Refused(format!("status {status}")),
            Err(why) => Sent::Away(why),
        }
    }

    /// One exchange over the connection that is kept, or a new one.
    async fn exchange(&mut self, path: &str, body: Bytes) -> Result<(u16, Bytes), String> {
        // It may have been closed while it was idle.
        if let Some(mut kept) = self.connection.take()
            && let Ok(answer) = ask(&mut kept, self.request(path, body.clone())?).await
        {
            self.connection = Some(kept);
            return Ok(answer);
        }
        let mut fresh = self.connect().await?;
        let answer = ask(&mut fresh, self.request(path, body)?).await?;
        self.connection = Some(fresh);
        Ok(answer)
    }

    fn request(&self, path: &str, body: Bytes) -> Result<hyper::Request<Full<Bytes>>, String> {
        let Otel { host, port, path: before, .. } = &self.config;
        let request = hyper::Request::builder()
            .method("POST")
            .uri(format!("{before}{path}"))
            .header("host", format!("{host}:{port}"))
            .header("content-type", "application/json");
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let host = self.config.host.trim_matches(['[', ']']);
        let said = |error: std::io::Error| format!("cannot connect: {error}");
        let socket = TcpStream::connect((host, self.config.port)).await.map_err(said)?;
        let (send, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| error.to_string())?;
        // It ends with the collector's end of the connection, or when `send` is dropped.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(send)
    }
}

async fn ask(
    send: &mut SendRequest<Full<Bytes>>,
    request: hyper::Request<Full<Bytes>>,
) -> Result<(u16, Bytes), String> {
    let said = |error: hyper::Error| format!("the exchange failed: {error}");
    send.ready().await.map_err(said)?;
    let response = send.send_request(request).await.map_err(said)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok((status, body.map_err(|error| format!("the exchange failed: {error}"))?.to_bytes()))
}

/// Waits, no longer than until `over`.
async fn wait(long: Duration, over: impl Fn() -> bool) {
    const LOOK: Duration = Duration::from_millis(50);
    let mut left = long;
    while !left.is_zero() && !over() {
        let step = left.min(LOOK);
        tokio::time::sleep(step).await;
        left = left.saturating_sub(step);
    }
}

fn fill<T>(batch: &mut Vec<T>, most: usize, mut next: impl FnMut() -> Option<T>) {
    while batch.len() < most {
        let Some(one) = next() else { return };
        batch.push(one);
    }
}
