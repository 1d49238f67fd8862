//! Streams arrive as they were sent: every byte, in order, each event before the next is made,
//! however the engine cuts them and however slowly the client reads.

mod common;

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, usage_event};
use common::gateway::{AUTH, Bed};
use common::{Client, Response, ask};

const EVENTS: usize = 10_000;

fn chat() -> Vec<u8> {
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Ten thousand events of one byte to 8 KiB of text in several scripts.
fn events() -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(11);
    let words = ["a", "你好，世界。", "🦀🔥", "ß", "\\n", "data: x", "مرحبا"];
    let mut all: Vec<_> = (0..EVENTS)
        .map(|i| {
            let bytes = if i % 50 == 0 { 8_192 } else { rng.usize(1..120) };
            let mut text = String::new();
            while text.len() < bytes {
                text.push_str(words[rng.usize(..words.len())]);
            }
            event(&text)
        })
        .collect();
    all.push(DONE.to_vec());
    all
}

/// How the engine's bytes reach the wire.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// An event, a chunk, a write.
    Events,
    /// A byte a packet for the first part, then cuts anywhere.
    Bytes,
    /// Chunks that end anywhere.
    Chunks,
}

fn serve(events: &[Vec<u8>], cut: Cut, wire: &mut impl Write) -> std::io::Result<()> {
    let mut rng = fastrand::Rng::with_seed(3);
    wire.write_all(STREAM_HEAD)?;
    let (content, last) = events.split_at(events.len() - 1);
    let usage = [usage_event(7, EVENTS as u64)];
    let all = content.iter().chain(&usage).chain(last);
    match cut {
        Cut::Events => {
            for event in all {
                wire.write_all(&chunk(event))?;
            }
        }
        Cut::Bytes => {
            let bytes: Vec<u8> = all.flat_map(|event| chunk(event)).collect();
            let (slow, fast) = bytes.split_at(20_000.min(bytes.len()));
            for byte in slow.chunks(1) {
                wire.write_all(byte)?;
            }
            let mut rest = fast;
            while !rest.is_empty() {
                let n = rng.usize(1..=3_000).min(rest.len());
                wire.write_all(&rest[..n])?;
                rest = &rest[n..];
            }
        }
        Cut::Chunks => {
            let bytes: Vec<u8> = all.flat_map(|event| event.iter().copied()).collect();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let n = rng.usize(1..=5_000).min(rest.len());
                wire.write_all(&chunk(&rest[..n]))?;
                rest = &rest[n..];
            }
        }
    }
    wire.write_all(LAST_CHUNK)
}

/// Reads in bursts with pauses, as a busy client does.
fn read_slowly(client: &mut Client) -> Vec<u8> {
    let (mut all, mut piece, mut reads) = (Vec::new(), vec![0; 64 * 1024], 0);
    loop {
        let n = client.read(&mut piece).expect("read");
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&piece[..n]);
        reads += 1;
        if reads % 20 == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn every_byte_arrives_whatever_the_cuts() {
    let sent = events();
    let wanted: Vec<u8> = sent.concat();
    for cut in [Cut::Events, Cut::Bytes, Cut::Chunks] {
        let script = sent.clone();
        let engine = Engine::start(move |_, wire| serve(&script, cut, wire).map(|()| After::Keep));
        let bed = Bed::of(&[engine.addr]);
        let mut client = Client::connect(bed.addr);
        client.send(&chat());
        let answer = Response::parse(&read_slowly(&mut client));
        assert!(answer.complete, "{cut:?}");
        assert!(answer.body() == wanted, "{cut:?}: other bytes arrived");
        let record = &bed.records(1)[0];
        assert_eq!(record["outcome"], "ok", "{cut:?}");
        assert_eq!(record["output_tokens"], EVENTS, "{cut:?}");
        assert_eq!(record["input_tokens"], 7, "{cut:?}");
    }
}

#[test]
fn each_event_is_with_the_client_before_the_next_is_made() {
    let (seen, next) = mpsc::channel::<()>();
    let next = Mutex::new(next);
    const ROUNDS: usize = 1_000;
    let engine = Engine::start(move |_, wire| {
        let next = next.lock().expect("lock");
        wire.write_all(STREAM_HEAD)?;
        for i in 0..ROUNDS {
            wire.write_all(&chunk(&event(&format!("w{i}"))))?;
            // Made only when the client has read this one: nothing may wait for more.
            next.recv_timeout(Duration::from_secs(10)).expect("the client sees each event");
        }
        wire.write_all(&chunk(DONE))?;
        wire.write_all(LAST_CHUNK).map(|()| After::Keep)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut client = Client::connect(bed.addr);
    client.send(&chat());
    let (mut all, mut piece, mut told) = (Vec::new(), [0; 4096], 0);
    loop {
        let n = client.read(&mut piece).expect("read");
        if n == 0 {
            break;
        }
        all.extend_from_slice(&piece[..n]);
        let arrived = all.windows(2).filter(|pair| pair == b"\n\n").count();
        while told < arrived.min(ROUNDS) {
            told += 1;
            seen.send(()).expect("the engine waits");
        }
    }
    assert!(Response::parse(&all).complete);
    assert_eq!(told, ROUNDS);
}

#[test]
fn usage_reaches_those_who_ask() {
    let engine = Engine::start(|_, wire| {
        wire.write_all(STREAM_HEAD)?;
        for payload in [event("one"), usage_event(3, 1), DONE.to_vec()] {
            wire.write_all(&chunk(&payload))?;
        }
        wire.write_all(LAST_CHUNK).map(|()| After::Keep)
    });
    let bed = Bed::of(&[engine.addr]);
    assert!(!ask(bed.addr, &chat()).text().contains("usage"));
    let options = r#""stream_options":{"include_usage":true}"#;
    let body = format!(r#"{{"model":"m","stream":true,{options},"messages":[{{}}]}}"#);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert!(ask(bed.addr, request.as_bytes()).text().contains("\"usage\":{"));
    let sent = engine.requests();
    assert!(sent.iter().all(|r| String::from_utf8_lossy(&r.body).contains(options)));
    assert_eq!(sent[1].body, body.replace("\"m\"", "\"base\"").as_bytes());
}
