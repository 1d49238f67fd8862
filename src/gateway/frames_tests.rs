//! Streams cut at random places come out whole, whatever the framing; ends are told apart.

use super::*;

const ROLE: &str =
    r#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
const ABORT: &str = r#"data: {"choices":[{"delta":{"content":""},"finish_reason":"abort"}]}"#;
const ERROR: &str = r#"data: {"error": {"message": "busy", "code": 503}}"#;

fn delta(text: &str) -> String {
    let text = serde_json::Value::from(text);
    format!(r#"data: {{"choices":[{{"delta":{{"content":{text}}},"finish_reason":null}}]}}"#)
}

/// How the test frames an engine's payload.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    /// As vLLM: an event, a chunk.
    Events,
    /// Chunks that end anywhere.
    Random,
    /// One chunk for everything.
    One,
    /// A byte, a chunk.
    Bytes,
    Length,
    Close,
}

const FRAMINGS: [Framing; 6] = [
    Framing::Events,
    Framing::Random,
    Framing::One,
    Framing::Bytes,
    Framing::Length,
    Framing::Close,
];

fn chunk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn framed(events: &[String], framing: Framing, rng: &mut fastrand::Rng) -> (Incoming, Vec<u8>) {
    let payload = events.iter().map(|e| format!("{e}\n\n")).collect::<String>().into_bytes();
    let mut out = Vec::new();
    match framing {
        Framing::Length => return (Incoming::Length(payload.len() as u64), payload),
        Framing::Close => return (Incoming::UntilClose, payload),
        Framing::Events => {
            events.iter().for_each(|e| chunk(&mut out, format!("{e}\n\n").as_bytes()));
        }
        Framing::One => chunk(&mut out, &payload),
        Framing::Bytes => payload.chunks(1).for_each(|b| chunk(&mut out, b)),
        Framing::Random => {
            let mut rest = &payload[..];
            while !rest.is_empty() {
                let n = rng.usize(1..=rest.len().min(400));
                chunk(&mut out, &rest[..n]);
                rest = &rest[n..];
            }
        }
    }
    out.extend_from_slice(b"0\r\n\r\n");
    (Incoming::Chunked(ChunkTracker::response()), out)
}

/// What came out of a stream that was fed in pieces.
struct Outcome {
    sent: Vec<u8>,
    raw_bytes: usize,
    frames: Frames,
    held_max: usize,
}

fn run(framed: (Incoming, Vec<u8>), outgoing: Outgoing, piece: impl FnMut() -> usize) -> Outcome {
    run_of(Endpoint::ChatCompletions, framed, outgoing, piece)
}

fn run_of(
    endpoint: Endpoint,
    (incoming, bytes): (Incoming, Vec<u8>),
    outgoing: Outgoing,
    mut piece: impl FnMut() -> usize,
) -> Outcome {
    let frames = Frames::new(incoming, outgoing, endpoint, true);
    let mut out = Outcome { sent: Vec::new(), raw_bytes: 0, frames, held_max: 0 };
    let mut buf = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() && out.frames.end.is_none() {
        let n = piece().min(rest.len());
        buf.extend_from_slice(&rest[..n]);
        rest = &rest[n..];
        out.frames.scan(&buf);
        for segment in out.frames.segments.clone() {
            match segment {
                Segment::Raw(range) => {
                    out.raw_bytes += range.len();
                    out.sent.extend_from_slice(&buf[range]);
                }
                Segment::Own(range) => out.sent.extend_from_slice(&out.frames.own[range]),
            }
        }
        let done = out.frames.sent();
        buf.drain(..done);
        out.held_max = out.held_max.max(buf.len());
    }
    if out.frames.end.is_none() {
        out.frames.closed(false);
    }
    out
}

/// The payload of a chunked body without its last chunk.
fn unchunk(bytes: &[u8]) -> Vec<u8> {
    let mut tracker = ChunkTracker::response();
    let (mut at, mut payload) = (0, Vec::new());
    while at < bytes.len() {
        let piece = tracker.next(&bytes[at..]).expect("well framed");
        if piece.kind == PieceKind::Data {
            payload.extend_from_slice(&bytes[at..at + piece.len]);
        }
        at += piece.len;
    }
    assert!(tracker.at_chunk_boundary(), "cut inside a chunk");
    payload
}

fn payload_of(events: &[&str]) -> Vec<u8> {
    events.iter().map(|e| format!("{e}\n\n")).collect::<String>().into_bytes()
}

#[test]
fn every_framing_and_split_gives_the_same_events() {
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..300 {
        let texts = ["a", "你好，世界", "🦀🦀", "x\ny", "data: fake\n\n", " "];
        let mut events = vec![ROLE.to_owned()];
        for _ in 0..rng.usize(0..30) {
            events.push(delta(&texts[rng.usize(..texts.len())].repeat(rng.usize(1..40))));
        }
        let contents = events.len() - 1;
        events.push(USAGE.to_owned());
        events.push("data: [DONE]".to_owned());
        let wanted: Vec<_> = events.iter().map(String::as_str).filter(|e| *e != USAGE).collect();
        let wanted = payload_of(&wanted);
        for framing in FRAMINGS {
            for outgoing in [Outgoing::Chunked, Outgoing::Plain] {
                let body = framed(&events, framing, &mut rng);
                let most = [1, 7, 300, 100_000][round % 4];
                let mut cut = fastrand::Rng::with_seed(round as u64);
                let out = run(body, outgoing, || cut.usize(1..=most));
                let payload = match outgoing {
                    Outgoing::Chunked => unchunk(&out.sent),
                    Outgoing::Plain => out.sent,
                };
                let case = format!("{framing:?} {outgoing:?} {most}");
                assert_eq!(payload, wanted, "{case}");
                assert_eq!(out.frames.end, Some(End::Complete), "{case}");
                assert_eq!(out.frames.seen.content_events, contents as u64, "{case}");
                let usage = out.frames.seen.usage.expect("seen");
                assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
            }
        }
    }
}

#[test]
fn events_in_chunks_of_their_own_go_out_as_they_came() {
    let mut rng = fastrand::Rng::with_seed(1);
    let events: Vec<_> = (0..50).map(|i| delta(&format!("w{i}"))).collect();
    let body = framed(&events, Framing::Events, &mut rng);
    let bytes = body.1.len();
    let out = run(body, Outgoing::Chunked, || 1000);
    // All but the last chunk of five bytes.
    assert!(out.raw_bytes >= bytes - 5 - 2000, "{} of {bytes} raw", out.raw_bytes);
    assert_eq!(unchunk(&out.sent).len(), events.iter().map(|e| e.len() + 2).sum::<usize>());
}

#[test]
fn a_complete_event_never_waits_for_the_rest_of_its_chunk() {
    let first = format!("{}\n\n", delta("one"));
    let second = format!("{}\n\n", delta("two"));
    let mut body = format!("{:x}\r\n", first.len() + second.len()).into_bytes();
    body.extend_from_slice(first.as_bytes());
    body.extend_from_slice(&second.as_bytes()[..10]);
    let incoming = Incoming::Chunked(ChunkTracker::response());
    let out = run((incoming, body), Outgoing::Chunked, || usize::MAX);
    assert_eq!(unchunk(&out.sent), first.as_bytes());
    assert!(matches!(out.frames.end, Some(End::Truncated(_))));
}

#[test]
fn ends_are_told_apart() {
    let content = delta("x");
    let end = |events: &[&str]| {
        let events: Vec<_> = events.iter().map(|e| (*e).to_owned()).collect();
        let mut rng = fastrand::Rng::with_seed(3);
        let body = framed(&events, Framing::Events, &mut rng);
        let out = run(body, Outgoing::Chunked, || 50);
        (out.frames.end, String::from_utf8(unchunk(&out.sent)).expect("text"))
    };
    let (ended, sent) = end(&[&content, ABORT, "data: [DONE]"]);
    assert_eq!((ended, sent), (Some(End::Aborted), format!("{content}\n\n")));
    let (ended, sent) = end(&[ROLE, ERROR, "data: [DONE]"]);
    assert_eq!(
        ended,
        Some(End::EngineError { code: Some(503), message: "busy".to_owned(), told: false })
    );
    assert_eq!(sent, format!("{ROLE}\n\n"), "an error before content may be mended elsewhere");
    let (ended, sent) = end(&[&content, ERROR, "data: [DONE]"]);
    assert!(matches!(ended, Some(End::EngineError { .. })));
    assert_eq!(sent, format!("{content}\n\n{ERROR}\n\n"), "the engine's words, no [DONE]");
    let (ended, _) = end(&[&content]);
    assert!(matches!(ended, Some(End::Truncated(_))), "a clean end without [DONE]");
    let (ended, sent) = end(&[&content, "data: [DONE]", &content]);
    assert_eq!(ended, Some(End::Complete));
    assert_eq!(sent, format!("{content}\n\ndata: [DONE]\n\n"), "nothing after [DONE]");
}

#[test]
fn broken_framing_is_a_cut() {
    let content = delta("x");
    let mut body = Vec::new();
    chunk(&mut body, format!("{content}\n\n").as_bytes());
    body.extend_from_slice(b"zz\r\nnot a chunk");
    let incoming = Incoming::Chunked(ChunkTracker::response());
    let out = run((incoming, body), Outgoing::Chunked, || usize::MAX);
    assert!(matches!(out.frames.end, Some(End::Truncated(_))));
    assert_eq!(unchunk(&out.sent), format!("{content}\n\n").as_bytes());
}

#[test]
fn a_huge_event_goes_out_in_parts_and_little_is_held() {
    let huge = delta(&"很".repeat(300_000));
    let events = vec![huge.clone(), "data: [DONE]".to_owned()];
    for framing in FRAMINGS {
        let mut rng = fastrand::Rng::with_seed(5);
        let body = framed(&events, framing, &mut rng);
        let out = run(body, Outgoing::Chunked, || 4_096);
        assert!(unchunk(&out.sent) == payload_of(&[&huge, "data: [DONE]"]), "{framing:?}");
        assert_eq!(out.frames.end, Some(End::Complete), "{framing:?}");
        assert!(out.held_max <= HOLD_BYTES_MAX + 4_096, "{framing:?} held {}", out.held_max);
    }
}

#[test]
fn a_part_of_an_event_is_content_that_was_passed_on() {
    let huge = delta(&"x".repeat(2 * HOLD_BYTES_MAX));
    let mut rng = fastrand::Rng::with_seed(1);
    let (incoming, mut bytes) = framed(&[ROLE.to_owned(), huge], Framing::Bytes, &mut rng);
    bytes.truncate(bytes.len() - 100);
    let out = run((incoming, bytes), Outgoing::Chunked, || 4_096);
    assert_eq!(out.frames.seen.content_events, 1, "a repetition would tear the event");
    assert!(out.frames.within_event());
    assert!(matches!(out.frames.end, Some(End::Truncated(_))));
}

/// The last event of a stream of responses, which repeats what was asked for and answered.
fn last_response(kind: &str, bytes: usize) -> String {
    let text = "很\\\"usage\\\"".repeat(bytes / 12);
    format!(
        "event: {kind}\ndata: {{\"response\":{{\"id\":\"r\",\"tools\":[{{\"usage\":1}}],\
         \"output\":[{{\"text\":\"{text}\"}}],\"usage\":{{\"input_tokens\":10,\
         \"input_tokens_details\":{{\"cached_tokens\":4}},\"output_tokens\":7,\
         \"total_tokens\":17}},\"user\":null}},\"sequence_number\":9,\"type\":\"{kind}\"}}"
    )
}

#[test]
fn a_last_event_of_any_size_ends_a_stream_of_responses_with_its_usage() {
    let delta = "event: response.output_text.delta\ndata: {\"delta\":\"x\",\"type\":\
                 \"response.output_text.delta\"}";
    for bytes in [100, HOLD_BYTES_MAX, 3 * HOLD_BYTES_MAX, 300_000] {
        for kind in ["response.completed", "response.incomplete"] {
            let events = [delta.to_owned(), last_response(kind, bytes)];
            for framing in FRAMINGS {
                let mut rng = fastrand::Rng::with_seed(9);
                let body = framed(&events, framing, &mut rng);
                let out = run_of(Endpoint::Responses, body, Outgoing::Chunked, || 4_096);
                let case = format!("{kind} of {bytes}, {framing:?}");
                assert_eq!(out.frames.end, Some(End::Complete), "{case}");
                let usage = out.frames.seen.usage.expect("the engine's usage");
                let told = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens);
                assert_eq!(told, (10, 7, Some(4)), "{case}");
                let sent: Vec<_> = events.iter().map(String::as_str).collect();
                assert!(unchunk(&out.sent) == payload_of(&sent), "{case}");
            }
        }
        let mut rng = fastrand::Rng::with_seed(9);
        let failed = last_response("response.failed", bytes.max(2 * HOLD_BYTES_MAX));
        let body = framed(&[delta.to_owned(), failed], Framing::Events, &mut rng);
        let out = run_of(Endpoint::Responses, body, Outgoing::Chunked, || 4_096);
        assert!(matches!(out.frames.end, Some(End::EngineError { code: None, .. })));
    }
    // What another event says near its end is not believed.
    let item = last_response("response.output_item.done", 2 * HOLD_BYTES_MAX);
    let mut rng = fastrand::Rng::with_seed(9);
    let body = framed(&[delta.to_owned(), item], Framing::Events, &mut rng);
    let out = run_of(Endpoint::Responses, body, Outgoing::Chunked, || 4_096);
    assert!(matches!(out.frames.end, Some(End::Truncated(_))));
    assert_eq!(out.frames.seen.usage, None);
}
