//! What bytes cost: heads, chunks, events, bodies. A stream is one that vLLM sent.

use std::fmt::Write;
use std::hint::black_box;

use expedite::http1::{ChunkTracker, HeadScanner, PieceKind, parse_request, parse_response};
use expedite::openai::{Edits, Endpoint, EventKind, EventReader, read_call};
use expedite::sse::{self, EventScanner};

use crate::rounds::Round;

/// Head and chunked body of a short stream with its usage, as recorded from an engine.
const STREAM: &[u8] = include_bytes!("../../tests/data/vllm/chat_stream_include_usage.resp");

/// As the OpenAI client for Python sends it.
const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example:8080\r\n\
    Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json\r\n\
    Content-Type: application/json\r\nUser-Agent: OpenAI/Python 1.99.1\r\n\
    X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.99.1\r\nX-Stainless-OS: Linux\r\n\
    X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n\
    X-Stainless-Runtime-Version: 3.11.7\r\nAuthorization: Bearer sk-0123456789abcdef01234567\r\n\
    X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n\
    Content-Length: 8192\r\n\r\n";

fn head_bytes(scanner: &mut HeadScanner, bytes: &[u8]) -> usize {
    scanner.advance(black_box(bytes)).expect("a head").expect("a whole one")
}

pub(crate) fn head_request() -> Option<Round> {
    Some(Box::new(|_| {
        let len = head_bytes(&mut HeadScanner::request(), REQUEST);
        let head = parse_request(&REQUEST[..len]).expect("a request");
        assert!(head.keep_alive && head.authorization.is_some());
    }))
}

pub(crate) fn head_response() -> Option<Round> {
    Some(Box::new(|_| {
        let len = head_bytes(&mut HeadScanner::response(), STREAM);
        let head = parse_response(&STREAM[..len], false).expect("a response");
        assert_eq!(head.status, 200);
    }))
}

/// The stream's body, and its payload in the pieces that its chunks make.
fn body() -> (&'static [u8], Vec<&'static [u8]>) {
    let body = &STREAM[head_bytes(&mut HeadScanner::response(), STREAM)..];
    let (mut pieces, mut at) = (Vec::new(), 0);
    each_piece(body, |kind, len| {
        if kind == PieceKind::Data {
            pieces.push(&body[at..at + len]);
        }
        at += len;
    });
    (body, pieces)
}

fn each_piece(body: &[u8], mut seen: impl FnMut(PieceKind, usize)) {
    let (mut tracker, mut rest) = (ChunkTracker::response(), body);
    while !rest.is_empty() {
        let piece = tracker.next(rest).expect("chunks");
        seen(piece.kind, piece.len);
        rest = &rest[piece.len..];
    }
}

/// The framing of a stream's body.
pub(crate) fn chunks() -> Option<Round> {
    let (body, pieces) = body();
    Some(Box::new(move |_| {
        let mut data = 0;
        each_piece(black_box(body), |kind, _| data += usize::from(kind == PieceKind::Data));
        assert_eq!(data, pieces.len());
    }))
}

/// Where the events of the same stream end.
pub(crate) fn sse_framing() -> Option<Round> {
    let (_, pieces) = body();
    Some(Box::new(move |_| {
        let (mut scanner, mut events) = (EventScanner::default(), 0);
        for piece in black_box(&pieces) {
            let mut rest = *piece;
            while let Some(end) = scanner.next(rest).expect("short events") {
                (rest, events) = (&rest[end..], events + 1);
            }
        }
        assert_eq!(events, pieces.len());
    }))
}

/// What each event of the same stream says.
pub(crate) fn sse_events() -> Option<Round> {
    let (_, events) = body();
    let (mut scratch, reader) = (Vec::new(), EventReader::new(Endpoint::ChatCompletions));
    Some(Box::new(move |_| {
        let (mut usage, mut last) = (0, EventKind::Content);
        for event in black_box(&events) {
            let data = sse::data(event, &mut scratch).expect("data");
            let facts = reader.read(data);
            usage += usize::from(facts.usage.is_some());
            last = facts.kind;
        }
        assert_eq!((usage, last), (1, EventKind::Done));
    }))
}

/// A chat of 8 KB in four messages, with the usual parameters.
fn chat() -> Vec<u8> {
    let mut body = String::from("{\"model\":\"gpt-4o\",\"temperature\":0.7,\"messages\":[");
    for at in 0..4 {
        let role = ["system", "user", "assistant", "user"][at];
        let text = "The replica said \\\"no\\\" in 12 ms.\\nWhat next? ".repeat(43);
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(body, "{comma}{{\"role\":\"{role}\",\"content\":\"{text}\"}}");
    }
    body.push_str("],\"max_tokens\":300,\"stream\":true,\"stream_options\":{}}");
    body.into_bytes()
}

/// What the gateway reads of a body.
pub(crate) fn body_read() -> Option<Round> {
    let body = chat();
    Some(Box::new(move |_| {
        let call = read_call(Endpoint::ChatCompletions, black_box(&body)).expect("a call");
        assert!(call.model.is_some());
    }))
}

/// The model's name and the request for usage, edited into it.
pub(crate) fn body_edit() -> Option<Round> {
    let body = chat();
    let call = read_call(Endpoint::ChatCompletions, &body).expect("a call");
    let grown = "meta-llama/Llama-3.1-8B".len() - "gpt-4o".len() + "\"include_usage\":true".len();
    Some(Box::new(move |_| {
        let mut edits = Edits::new(black_box(&call));
        edits.set_model(&call, "meta-llama/Llama-3.1-8B");
        edits.ask_for_usage(&call);
        assert_eq!(edits.len(&body), body.len() + grown);
    }))
}
