//! What each fuzz target asserts about any bytes. `cargo fuzz` calls these with bytes of its own
//! making, `tests/corpus.rs` with those of the committed corpus.

use expedite::http1::{ChunkError, ChunkTracker, PieceKind, RequestHead, ResponseHead, Span};
use expedite::http1::{HeadScanner, parse_request, parse_response};

use wire::{Sender, decode_chunked, transcript};

#[path = "wire.rs"]
pub(crate) mod wire;

/// A target's name, which is that of its corpus folder, and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const ALL: [Target; 3] =
    [("request_head", request_head), ("response_head", response_head), ("chunks", chunks)];

/// Any bytes from a client: same transcript at each split, spans in range, and the parser accepts
/// no head that the scanner refuses.
pub(crate) fn request_head(bytes: &[u8]) {
    same_at_each_split(Sender::Client, bytes);
    if let Ok(head) = parse_request(bytes) {
        assert_eq!(HeadScanner::request().advance(bytes), Ok(Some(bytes.len())));
        request_spans(&head, bytes);
    }
}

fn request_spans(head: &RequestHead, bytes: &[u8]) {
    let required = [head.target, head.query, head.host].map(Some);
    let optional = [
        head.authorization,
        head.api_key,
        head.content_type,
        head.content_encoding,
        head.request_id,
        head.traceparent,
        head.tracestate,
        head.deadline_ms,
        head.policy,
    ];
    in_range(&required, bytes);
    in_range(&optional, bytes);
    assert!(!head.target.is_empty());
    assert_eq!(head.head_bytes as usize, bytes.len());
}

/// Any bytes from an upstream: as [`request_head`].
pub(crate) fn response_head(bytes: &[u8]) {
    for to_head in [false, true] {
        same_at_each_split(Sender::Upstream { to_head }, bytes);
        if let Ok(head) = parse_response(bytes, to_head) {
            assert_eq!(HeadScanner::response().advance(bytes), Ok(Some(bytes.len())));
            response_spans(&head, bytes);
        }
    }
}

fn response_spans(head: &ResponseHead, bytes: &[u8]) {
    in_range(&[head.content_type, head.content_encoding, head.retry_after, head.request_id], bytes);
    assert!((100..=599).contains(&head.status));
}

fn in_range(spans: &[Option<Span>], bytes: &[u8]) {
    for span in spans.iter().flatten() {
        assert_eq!(span.of(bytes).len(), span.len as usize, "{span:?} in {}", bytes.len());
        assert!(!span.of(bytes).iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
}

/// All splits of a short input, spread ones of a long input, and a byte at a time.
fn same_at_each_split(sender: Sender, bytes: &[u8]) {
    let whole = transcript(sender, bytes, &[]);
    let step = bytes.len() / 24 + 1;
    for cut in (1..bytes.len()).step_by(step) {
        assert_eq!(transcript(sender, bytes, &[cut]), whole, "cut at {cut}");
    }
    let every: Vec<usize> = (1..bytes.len().min(1024)).collect();
    assert_eq!(transcript(sender, bytes, &every), whole, "a byte at a time");
}

/// Any bytes as a chunked body, with both sets of limits: same payload and verdict at each split,
/// progress, and what is accepted reads the same with a plain decoder.
pub(crate) fn chunks(bytes: &[u8]) {
    for tracker in [ChunkTracker::request(), ChunkTracker::response()] {
        let whole = follow(tracker.clone(), bytes, bytes.len());
        for step in [1, 2, 3, 7, 64] {
            assert_eq!(follow(tracker.clone(), bytes, step), whole, "{step} bytes a read");
        }
        if let (payload, taken, Ok(true)) = whole {
            let (decoded, rest) = decode_chunked(bytes).expect("a legal body decodes");
            assert_eq!((decoded, rest.len()), (payload, bytes.len() - taken));
        }
    }
}

/// Payload, bytes taken if the body is over, and whether it is, of a body read by `step` bytes.
fn follow(
    mut tracker: ChunkTracker,
    bytes: &[u8],
    step: usize,
) -> (Vec<u8>, usize, Result<bool, ChunkError>) {
    let (mut payload, mut at) = (Vec::new(), 0);
    while at < bytes.len() && !tracker.is_done() {
        let read = &bytes[at..bytes.len().min(at + step)];
        let due = tracker.data_left();
        let piece = match tracker.next(read) {
            Ok(piece) => piece,
            Err(error) => {
                assert_eq!(tracker.next(b"0\r\n\r\n"), Err(error), "an error stays");
                return (payload, 0, Err(error));
            }
        };
        assert!((1..=read.len()).contains(&piece.len), "progress, within the input");
        assert_eq!(piece.kind == PieceKind::Data, due > 0);
        if piece.kind == PieceKind::Data {
            payload.extend_from_slice(&read[..piece.len]);
        }
        at += piece.len;
    }
    (payload, at, Ok(tracker.is_done()))
}
