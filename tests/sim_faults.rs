//! Each fault of the simulator does to the bytes what it says.

mod common;

use std::net::TcpStream;
use std::time::Duration;

use common::{Client, Ended, Response, ask, chat, eventually, find, get, post};
use expedite::sim::{EngineKind, Fault, Fleet, Kind, SimConfig, SimHandle, UsageShape};

const STREAM: &str = ",\"stream\":true,\"max_tokens\":5";
const USAGE: &str = ",\"stream\":true,\"max_tokens\":5,\"stream_options\":{\"include_usage\":true}";

fn fleet(replicas: usize) -> SimHandle {
    Fleet::start(SimConfig { ports: vec![0; replicas], ..SimConfig::default() }).expect("fleet")
}

/// Everything that comes for one stream under a fault, to the end of the connection.
fn struck(fleet: &SimHandle, fault: Fault, request: &[u8]) -> (Vec<u8>, Ended) {
    fleet.fault(0, fault.times(1));
    let mut client = Client::connect(fleet.addr(0));
    client.send(request);
    client.rest()
}

fn whole_chat() -> Vec<u8> {
    chat("hi", ",\"max_tokens\":5")
}

#[test]
fn connections_break_where_the_fault_says() {
    let fleet = fleet(1);
    let stream = chat("hi", STREAM);
    for request in [&stream, &whole_chat()] {
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::ResetBeforeHead), request);
        assert_eq!((bytes.len(), ended), (0, Ended::Reset));
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::FinBeforeHead), request);
        assert_eq!((bytes.len(), ended), (0, Ended::Fin));
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::ResetInHead), request);
        assert!(!bytes.is_empty() && find(&bytes, b"\r\n\r\n").is_none());
        assert_eq!(ended, Ended::Reset);
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::ResetBeforeEvent), request);
        assert!(bytes.ends_with(b"\r\n\r\n"));
        assert_eq!(ended, Ended::Reset);
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::Garbage), request);
        assert!(!bytes.starts_with(b"HTTP"));
        assert_eq!(ended, Ended::Fin);
    }
    let events = |bytes: &[u8]| Response::parse(bytes).pieces.len();
    let (bytes, ended) = struck(&fleet, Fault::new(Kind::ResetBetweenEvents).after(3), &stream);
    assert_eq!((events(&bytes), ended), (3, Ended::Reset));
    assert!(bytes.ends_with(b"\n\n\r\n"), "whole chunks only");
    let (bytes, ended) = struck(&fleet, Fault::new(Kind::ResetMidEvent).after(2), &stream);
    assert_eq!((events(&bytes), ended), (2, Ended::Reset));
    assert!(!bytes.ends_with(b"\n\n\r\n"), "a part of a chunk follows");
    let (bytes, ended) = struck(&fleet, Fault::new(Kind::FinBetweenEvents).after(2), &stream);
    assert_eq!((events(&bytes), ended), (2, Ended::Fin));
    let (bytes, _) = struck(&fleet, Fault::new(Kind::BadChunk).after(2), &stream);
    assert_eq!(events(&bytes), 2);
    assert!(find(&bytes, b"\r\nzz\r\n").is_some());
    assert_eq!(fleet.stats(0).faulted, 14);
    assert!(ask(fleet.addr(0), &stream).complete, "the count is used up");
}

#[test]
fn whole_bodies_can_be_short_and_streams_can_lack_done() {
    let fleet = fleet(1);
    for request in [whole_chat(), chat("hi", STREAM)] {
        let (bytes, ended) = struck(&fleet, Fault::new(Kind::ShortLength), &request);
        let response = Response::parse(&bytes);
        let length: usize = response.field("content-length").expect("length").parse().expect("n");
        assert!(response.body().len() < length);
        assert_eq!(ended, Ended::Fin);
    }
    fleet.fault(0, Fault::new(Kind::NoDone).times(1));
    let response = ask(fleet.addr(0), &chat("hi", STREAM));
    assert!(response.complete && !response.text().contains("[DONE]"));
    fleet.fault(0, Fault::new(Kind::ContentLengthOnSse).times(1));
    let response = ask(fleet.addr(0), &chat("hi", STREAM));
    assert!(response.field("content-length").is_some() && response.complete);
    assert!(response.text().ends_with("data: [DONE]\n\n"));
}

#[test]
fn stalls_last_until_they_are_cleared() {
    let fleet = fleet(1);
    let cases =
        [(Kind::StallBeforeHead, 0), (Kind::StallBeforeEvent, 1), (Kind::StallBetweenEvents, 3)];
    for (kind, pieces) in cases {
        fleet.fault(0, Fault::new(kind).after(2));
        let mut client = Client::connect(fleet.addr(0));
        client.send(&chat("hi", STREAM));
        eventually("the request is in", || fleet.stats(0).requests >= 1);
        client.0.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(n) = client.read(&mut piece) {
            assert_ne!(n, 0, "the connection stays open");
            bytes.extend_from_slice(&piece[..n]);
        }
        let response = Response::parse(&bytes);
        let seen = usize::from(!response.head.is_empty()) + response.pieces.len();
        assert_eq!(seen, pieces, "{kind:?}");
        fleet.fault(0, Fault::new(Kind::None));
        client.0.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        while !bytes.ends_with(b"0\r\n\r\n") {
            let n = client.read(&mut piece).expect("goes on");
            bytes.extend_from_slice(&piece[..n]);
        }
        assert_eq!(Response::parse(&bytes).events().len(), 6);
    }
}

#[test]
fn engine_errors_come_as_vllm_sends_them() {
    let fleet = fleet(1);
    let last_two = |bytes: &[u8]| {
        let response = Response::parse(bytes);
        response.pieces[response.pieces.len() - 2..].to_vec()
    };
    let real = |name: &str| {
        let path = format!("{}/tests/data/vllm/{name}.resp", env!("CARGO_MANIFEST_DIR"));
        last_two(&std::fs::read(path).expect("capture"))
    };
    let run = |fault: Fault, request: &[u8]| {
        fleet.fault(0, fault.times(1));
        ask(fleet.addr(0), request)
    };
    let stream = chat("hi", STREAM);
    let response = run(Fault::new(Kind::ErrorIn200), &stream);
    assert_eq!(response.pieces, real("b_err_queue_full_stream_200"));
    assert_eq!(run(Fault::new(Kind::ErrorIn200), &whole_chat()).status(), 503);
    let response = run(Fault::new(Kind::ErrorMidStream).after(2), &stream);
    assert_eq!(response.pieces[3..], real("engine_killed_inflight_stream"));
    assert!(response.complete);
    let response = run(Fault::new(Kind::AbortFinish).after(2), &stream);
    let finish = &response.events()[2]["choices"][0]["finish_reason"];
    assert_eq!((finish.as_str(), response.events().len()), (Some("abort"), 3));
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"));
    let response = run(Fault::new(Kind::AbortFinish).after(2), &whole_chat());
    assert_eq!(response.json()["usage"]["completion_tokens"], 2);
    let response = run(Fault::status(500), &stream);
    assert_eq!(response.json()["error"]["message"], "cannot schedule new futures after shutdown");
    assert_eq!(response.status(), 500);
    let teapot = Fault { body: Some("{\"x\":1}".to_owned()), ..Fault::status(418) };
    assert_eq!(run(teapot, &stream).text(), "{\"x\":1}");
    let health = Fault { path: Some("/health".to_owned()), ..Fault::status(503) };
    fleet.fault(0, health);
    assert_eq!(ask(fleet.addr(0), &get("/health")).status(), 503);
    assert_eq!(ask(fleet.addr(0), &stream).status(), 200);
}

#[test]
fn bytes_are_cut_joined_and_dressed_up() {
    let fleet = fleet(1);
    let plain = ask(fleet.addr(0), &chat("[[tag:4]]", USAGE));
    let run = |kind: Kind| {
        fleet.fault(0, Fault::new(kind).times(1));
        ask(fleet.addr(0), &chat("[[tag:4]]", USAGE))
    };
    for kind in [Kind::Trickle, Kind::Split] {
        let cut = run(kind);
        assert_eq!((cut.words(), cut.pieces.len()), (plain.words(), plain.pieces.len()));
    }
    let joined = run(Kind::Coalesce);
    assert_eq!(joined.text().matches("data: ").count(), plain.pieces.len());
    assert!(joined.pieces.len() < plain.pieces.len());
    let last = String::from_utf8_lossy(joined.pieces.last().expect("piece")).into_owned();
    assert!(last.contains("\"usage\"") && last.ends_with("data: [DONE]\n\n"));
    assert!(run(Kind::WrongContentType).field("content-type").expect("type").contains("html"));
    let packed = run(Kind::Gzip);
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.body().starts_with(&[0x1f, 0x8b]) && packed.complete);
    fleet.fault(0, Fault::new(Kind::ExtraBytes).times(1));
    let mut client = Client::connect(fleet.addr(0));
    client.send(&whole_chat());
    let first = client.read_some(1);
    assert_eq!(first, b"H");
    let (bytes, _) = {
        client.0.shutdown(std::net::Shutdown::Write).expect("half close");
        client.rest()
    };
    assert!(bytes.ends_with(b"content-length: 5\r\n\r\nextra"));
}

#[test]
fn connections_close_with_and_without_a_word() {
    let fleet = fleet(1);
    let (bytes, ended) = struck(&fleet, Fault::new(Kind::CloseAfterResponse), &whole_chat());
    assert_eq!(Response::parse(&bytes).field("connection"), Some("close"));
    assert_eq!(ended, Ended::Fin);
    let (bytes, ended) = struck(&fleet, Fault::new(Kind::NoKeepalive), &whole_chat());
    let response = Response::parse(&bytes);
    assert!(response.complete && response.field("connection").is_none());
    assert_eq!(ended, Ended::Fin);
}

#[test]
fn usage_takes_the_shape_that_was_ordered() {
    let fleet = fleet(1);
    let long = "word ".repeat(100);
    ask(fleet.addr(0), &chat(&long, USAGE));
    let run = |shape| {
        fleet.fault(0, Fault::usage(shape).times(1));
        ask(fleet.addr(0), &chat(&long, USAGE)).events()
    };
    let last = |events: &[serde_json::Value]| events[events.len() - 1].clone();
    let cached = |event: &serde_json::Value| {
        event["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    let plain = ask(fleet.addr(0), &chat(&long, USAGE)).events();
    assert!(cached(&last(&plain)).as_u64() > Some(0), "a repeat hits");
    let choice = last(&run(UsageShape::LastChoice));
    assert_eq!(choice["choices"][0]["finish_reason"], "length");
    assert_eq!(choice["usage"]["completion_tokens"], 5);
    let each = run(UsageShape::Continuous);
    assert!(each.iter().all(|e| e["usage"]["prompt_tokens"].is_u64()));
    assert!(run(UsageShape::Missing).iter().all(|e| e["usage"].is_null()));
    assert_eq!(last(&run(UsageShape::Negative))["usage"]["completion_tokens"], -5);
    assert_eq!(cached(&last(&run(UsageShape::ZeroCached))), 0);
    assert!(cached(&last(&run(UsageShape::NullCached))).is_null());
}

#[test]
fn ports_refuse_and_open_again() {
    let fleet = fleet(2);
    let addr = fleet.addr(0);
    fleet.fault(0, Fault::new(Kind::Refuse));
    eventually("connects are refused", || TcpStream::connect(addr).is_err());
    let clear = format!("{{\"kind\":\"none\",\"port\":{}}}", addr.port());
    assert_eq!(ask(fleet.addr(1), &post("/fault", &clear)).status(), 200);
    eventually("connects succeed", || TcpStream::connect(addr).is_ok());
    assert_eq!(ask(addr, &get("/health")).status(), 200);
    fleet.fault(0, Fault::new(Kind::Backlog));
    let brief = Duration::from_millis(100);
    eventually("connects hang", || {
        TcpStream::connect_timeout(&addr, brief).is_err_and(|e| {
            matches!(e.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock)
        })
    });
    fleet.fault(0, Fault::new(Kind::None));
    assert_eq!(ask(addr, &get("/health")).status(), 200);
}

#[test]
fn a_frozen_replica_is_silent_on_every_connection() {
    let itl = Duration::from_millis(5);
    let engine = EngineKind::Fixed { ttft: itl, itl };
    let fleet = Fleet::start(SimConfig { engine, ..SimConfig::default() }).expect("fleet");
    let mut open = Client::connect(fleet.addr(0));
    open.send(&chat("hi", ",\"stream\":true,\"max_tokens\":100"));
    open.read_some(500);
    fleet.fault(0, Fault::new(Kind::Freeze));
    let mut fresh = Client::connect(fleet.addr(0));
    fresh.send(&get("/health"));
    let brief = Some(Duration::from_millis(200));
    fresh.0.set_read_timeout(brief).expect("timeout");
    assert!(fresh.read(&mut [0; 1]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
    fleet.fault(0, Fault::new(Kind::None));
    fresh.0.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    assert_eq!(fresh.response().status(), 200);
    eventually("the stream ended", || fleet.stats(0).completed == 1);
}

#[test]
fn gauges_lie_on_order() {
    let fleet = fleet(1);
    let lie = Fault { value: Some("1e18".to_owned()), ..Fault::new(Kind::LyingGauges) };
    fleet.fault(0, lie);
    let text = ask(fleet.addr(0), &get("/metrics")).text();
    assert!(text.contains("vllm:num_requests_running{engine=\"0\",model_name=\"sim-model\"} 1e18"));
}
