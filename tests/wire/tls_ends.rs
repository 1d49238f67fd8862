//! How connections with TLS end: whole answers say so, cut ones do not, and a client that leaves
//! ends its replica's work.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::engine::{After, Engine, event, json};
use crate::common::faults::{
    at_rest, chat_for_acme, cut_stream, hello, role_event, stream_for_acme,
};
use crate::common::gateway::{Bed, Settings};
use crate::common::{Ended, Response, eventually, find, get};
use crate::secure::{Authority, Files, Secure, TlsClient, TlsEnd, config};

/// The request with `connection: close`.
fn last(request: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(request.to_vec()).expect("text");
    text.replacen("Host:", "Connection: close\r\nHost:", 1).into_bytes()
}

/// The request as HTTP/1.0, whose answers end with the connection.
fn old(request: &[u8]) -> Vec<u8> {
    String::from_utf8(request.to_vec()).expect("text").replace("HTTP/1.1", "HTTP/1.0").into_bytes()
}

#[test]
fn a_whole_answer_ends_with_a_word_and_a_cut_one_without() {
    let whole = Secure::start(Engine::always(hello()), "auto", "");
    for request in [last(&stream_for_acme()), old(&stream_for_acme()), last(&get("/health"))] {
        let mut client = whole.client();
        client.send(&request);
        let (bytes, end) = client.rest();
        assert_eq!(end, TlsEnd::Confirmed, "{}", bytes.escape_ascii());
    }
    at_rest(&whole.bed);

    let cut = cut_stream(&[role_event(), event("one")]);
    let engine = Engine::start(move |_, wire| wire.write_all(&cut).map(|()| After::Close));
    let torn = Secure::start(engine, "auto", "");
    for request in [stream_for_acme(), last(&stream_for_acme()), old(&stream_for_acme())] {
        let mut client = torn.client();
        client.send(&request);
        let (bytes, end) = client.rest();
        assert_eq!(end, TlsEnd::Cut(Ended::Fin), "{}", bytes.escape_ascii());
        assert!(find(&bytes, b"\"error\"").is_some() && find(&bytes, b"[DONE]").is_none());
        assert!(!bytes.ends_with(b"0\r\n\r\n"), "{}", bytes.escape_ascii());
    }
    at_rest(&torn.bed);
}

#[test]
fn an_idle_connection_is_ended_with_a_word() {
    let secure =
        Secure::start(Engine::always(hello()), "auto", "[timeouts]\nclient_idle_ms = 1000\n");
    let mut client = secure.client();
    client.send(&stream_for_acme());
    assert!(client.response().complete);
    assert_eq!(client.rest(), (Vec::new(), TlsEnd::Confirmed));
    at_rest(&secure.bed);
}

/// Leaves a stream in its middle by `leave`: the replica sees its connection closed.
fn leaves(what: &str, leave: impl Fn(TlsClient)) {
    for opening in [Vec::new(), cut_stream(&[role_event(), event("one")])] {
        let (left, gone) = mpsc::channel();
        let begun = !opening.is_empty();
        let engine = Engine::start(move |_, wire| {
            wire.write_all(&opening)?;
            let ended = wire.read(&mut [0]).is_ok_and(|n| n == 0);
            let _ = left.send(ended);
            Ok(After::Close)
        });
        let secure = Secure::start(engine, "auto", "");
        let mut client = secure.client();
        client.send(&stream_for_acme());
        let mut bytes = Vec::new();
        while begun && find(&bytes, b"one").is_none() {
            let mut piece = [0; 4096];
            let n = client.read(&mut piece).expect("read");
            bytes.extend_from_slice(&piece[..n]);
        }
        eventually("the replica has it", || secure.engine.count() == 1);
        leave(client);
        let told = gone.recv_timeout(Duration::from_secs(20)).expect("the replica is told");
        assert!(told, "{what}");
        let log = secure.bed.records(1);
        assert_eq!(log.last().expect("a record")["outcome"], "client_cancelled", "{what}");
        at_rest(&secure.bed);
    }
}

#[test]
fn a_client_that_leaves_ends_its_replicas_work() {
    leaves("a close", drop);
    leaves("a close with a word", |mut client| {
        client.0.conn.send_close_notify();
        client.0.conn.write_tls(&mut client.0.sock).expect("a word");
    });
    leaves("a half-close without a word", |client| {
        client.0.sock.shutdown(Shutdown::Write).expect("shutdown");
        std::thread::sleep(Duration::from_millis(300));
    });
    leaves("a reset", |client| {
        let socket = socket2::SockRef::from(&client.0.sock);
        socket.set_linger(Some(Duration::ZERO)).expect("linger");
    });
    leaves("bytes that are no record", |mut client| {
        client.0.sock.write_all(&[0x55; 64]).expect("noise");
        std::thread::sleep(Duration::from_millis(300));
    });
}

#[test]
fn who_may_end_its_direction_ends_it_and_reads_on() {
    let authority = Authority::new();
    let files = Files::new(&authority.sign());
    let server = format!("{}\nhalf_close = \"allow\"", files.line(""));
    let engine = Engine::always(hello());
    let bed = Bed::unready(&[engine.addr], Settings { server, ..Settings::default() });
    eventually("the engine is up", || bed.metric("expedite_replica_up", "") == 1.0);
    let config = config(&authority.pem, None, rustls::ALL_VERSIONS);
    let mut client = TlsClient::connect(bed.addr, config);
    client.send(&stream_for_acme());
    client.0.conn.send_close_notify();
    client.0.conn.write_tls(&mut client.0.sock).expect("a word");
    let (bytes, end) = client.rest();
    let answer = Response::parse(&bytes);
    assert_eq!((answer.words().as_str(), answer.complete), ("hello", true));
    assert_eq!(end, TlsEnd::Confirmed);
}

#[test]
fn a_silent_stream_is_commented_over_tls_too() {
    let (open, opened) = mpsc::channel::<()>();
    let opened = std::sync::Mutex::new(opened);
    let engine = Engine::start(move |_, wire| {
        let _ = opened.lock().expect("lock").recv();
        wire.write_all(&hello()).map(|()| After::Keep)
    });
    let secure = Secure::start(engine, "auto", "[timeouts]\nsse_keepalive_ms = 100\n");
    let mut client = secure.client();
    client.send(&last(&stream_for_acme()));
    let mut bytes = Vec::new();
    while find(&bytes, b": keep-alive\n\n").is_none() {
        let mut piece = [0; 4096];
        let n = client.read(&mut piece).expect("read");
        bytes.extend_from_slice(&piece[..n]);
    }
    open.send(()).expect("engine");
    let (rest, end) = client.rest();
    bytes.extend(rest);
    let answer = Response::parse(&bytes);
    assert_eq!((answer.words().as_str(), answer.complete), ("hello", true));
    assert_eq!(end, TlsEnd::Confirmed);
    at_rest(&secure.bed);
}

#[test]
fn an_answer_that_is_no_stream_says_its_length_and_its_end() {
    let body = "{\"choices\":[{\"message\":{\"content\":\"hi\"}}]}";
    let secure = Secure::start(Engine::always(json(200, body)), "auto", "");
    let mut client = secure.client();
    client.send(&last(&chat_for_acme("")));
    let (bytes, end) = client.rest();
    let answer = Response::parse(&bytes);
    assert_eq!((answer.text().as_str(), answer.complete, end), (body, true, TlsEnd::Confirmed));
}
