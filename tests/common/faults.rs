//! What the fault tests are made of: engines that fail by turn, streams in pieces, a gateway at
//! rest.

use std::io::{Error, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, usage_event};
use super::gateway::{AUTH, Bed, Settings};
use super::{ask, eventually, get, post_with};

/// Replicas are asked in turn, so that a test knows who comes next.
pub(crate) const IN_TURN: &str = "[routing]\npolicy = \"round_robin\"\n";

/// `n` engines with one count: `answer` is told which request of all it serves, from 0.
pub(crate) fn fleet(
    n: usize,
    answer: impl Fn(usize, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
) -> Vec<Engine> {
    let count = Arc::new(AtomicUsize::new(0));
    let answer = Arc::new(answer);
    let engine = |_| {
        let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
        Engine::start(move |_, wire| answer(count.fetch_add(1, SeqCst), wire))
    };
    (0..n).map(engine).collect()
}

/// `n` engines that answer the first `failures` requests of all with `bytes` and `after`, the rest
/// with `good`.
pub(crate) fn failing(
    n: usize,
    failures: usize,
    (bytes, after): (&[u8], After),
    good: &[u8],
) -> Vec<Engine> {
    let (bytes, good) = (bytes.to_vec(), good.to_vec());
    fleet(n, move |nth, wire| {
        if nth >= failures {
            return wire.write_all(&good).map(|()| After::Keep);
        }
        wire.write_all(&bytes)?;
        if after == After::Reset {
            // A reset may overtake bytes that were not read yet.
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        Ok(after)
    })
}

/// A gateway that asks these engines in turn; `more` are further sections.
pub(crate) fn in_front_of(engines: &[Engine], more: &str) -> Bed {
    let addrs: Vec<SocketAddr> = engines.iter().map(|engine| engine.addr).collect();
    let more = format!("{IN_TURN}{more}");
    Bed::start(&addrs, Settings { more, ..Settings::default() })
}

/// The event that opens a chat stream.
pub(crate) fn role_event() -> Vec<u8> {
    b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"base\",\
      \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
      \"finish_reason\":null}]}\n\n"
        .to_vec()
}

/// The event that ends a choice.
pub(crate) fn finish_event(reason: &str) -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"base\",\
         \"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n"
    )
    .into_bytes()
}

/// vLLM's own error event; it ends the stream with `[DONE]` and cleanly.
pub(crate) fn error_event(code: u16, message: &str) -> Vec<u8> {
    format!(
        "data: {{\"error\": {{\"message\": \"{message}\", \"type\": \"InternalServerError\", \
         \"param\": null, \"code\": {code}}}}}\n\n"
    )
    .into_bytes()
}

/// A stream's head and these events, a chunk each, without an end.
pub(crate) fn cut_stream(events: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = STREAM_HEAD.to_vec();
    events.iter().for_each(|event| bytes.extend(chunk(event)));
    bytes
}

/// A stream of these events with `[DONE]` and its last chunk.
pub(crate) fn whole_stream(events: &[Vec<u8>]) -> Vec<u8> {
    [cut_stream(events), chunk(DONE), LAST_CHUNK.to_vec()].concat()
}

/// The stream that says `hello`.
pub(crate) fn hello() -> Vec<u8> {
    whole_stream(&[role_event(), event("hel"), event("lo"), finish_event("stop")])
}

/// The stream that says `ab`, and that its prompt had 5 tokens and its answer 2.
pub(crate) fn counted() -> Vec<u8> {
    whole_stream(&[event("a"), event("b"), usage_event(5, 2)])
}

/// A chat of the tenant `acme`; `more` are further members, each with a comma before it.
pub(crate) fn chat_for_acme(more: &str) -> Vec<u8> {
    let json = format!("{{\"model\":\"m\",\"messages\":[{{}}]{more}}}");
    post_with("/v1/chat/completions", AUTH, &json)
}

/// The same as a stream.
pub(crate) fn stream_for_acme() -> Vec<u8> {
    chat_for_acme(",\"stream\":true")
}

/// Waits until nothing is in flight and no client is connected.
pub(crate) fn at_rest(bed: &Bed) {
    let gauges = [
        ("expedite_requests_open", ""),
        ("expedite_in_flight", ""),
        ("expedite_in_flight_tokens", ""),
        ("expedite_queue_requests", ""),
        ("expedite_queue_tokens", ""),
        ("expedite_connections", "side=\"client\""),
        ("expedite_connections", "side=\"upstream\""),
    ];
    for (name, labels) in gauges {
        eventually(&format!("{name}{{{labels}}} is zero"), || bed.metric(name, labels) == 0.0);
    }
    eventually("no budget holds anything", || {
        let tenants = bed.tenants();
        let keys = tenants.iter().flat_map(|t| t["keys"].as_array().expect("keys"));
        tenants.iter().chain(keys).all(|t| t["in_flight"] == 0 && t["reserved_tokens"] == 0)
    });
}

/// The state of each replica as the status tells it.
pub(crate) fn states(bed: &Bed) -> Vec<String> {
    let status = ask(bed.admin, &get("/status.json")).json();
    let replicas = status["pools"][0]["replicas"].as_array().expect("replicas");
    replicas.iter().map(|r| r["state"].as_str().expect("state").to_owned()).collect()
}

/// An address that answers no connect: the backlog is full of connections that nobody accepts.
pub(crate) fn deaf() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let listener = listener.expect("socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
    listener.listen(0).expect("listen");
    let listener = TcpListener::from(listener);
    let addr = listener.local_addr().expect("address");
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
        held.push(stream);
    }
    (listener, held, addr)
}
