//! What holds for generated framing, whatever it is: nothing ambiguous is accepted, no split
//! changes an answer, and a plain reader reads the same.

#[path = "support/mutations.rs"]
mod mutations;
#[allow(dead_code)] // Each test of the wire uses its part.
#[path = "fuzz/src/targets.rs"]
mod targets;

use proptest::prelude::*;

use expedite::http1::{BodyLength, ChunkTracker, PieceKind, parse_request};
use targets::wire::{Event, Sender, decode_chunked, transcript};

/// The framing fields of a head as the laxest reader would find them: LF or CR ends a line, any
/// space or control around a name is nothing, `_` is `-`.
fn lax_framing(head: &[u8]) -> Vec<(String, Vec<u8>)> {
    head.split(|byte| matches!(byte, b'\r' | b'\n'))
        .filter_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let name = String::from_utf8_lossy(&line[..colon]).to_lowercase();
            let name = name.trim_matches(|c: char| c <= ' ').to_owned();
            let framing = ["content-length", "transfer-encoding"].contains(&name.as_str());
            framing.then(|| (name, line[colon + 1..].to_vec()))
        })
        .collect()
}

/// The one length that a head without any ambiguity has.
fn plain_length(framing: &[(String, Vec<u8>)]) -> Option<BodyLength> {
    match framing {
        [] => Some(BodyLength::None),
        [(name, value)] => {
            let value = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
            if name == "transfer-encoding" {
                return value.eq_ignore_ascii_case("chunked").then_some(BodyLength::Chunked);
            }
            let length = value.parse().ok()?;
            (format!("{length}") == value).then_some(BodyLength::Length(length))
        }
        _ => None,
    }
}

/// Payload if the body is legal and over.
fn payload(bytes: &[u8], cuts: &[usize]) -> Option<Vec<u8>> {
    let mut tracker = ChunkTracker::request();
    let (mut payload, mut start) = (Vec::new(), 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        let mut read = &bytes[start..cut];
        start = cut;
        while !read.is_empty() && !tracker.is_done() {
            let piece = tracker.next(read).ok()?;
            let (taken, rest) = read.split_at(piece.len);
            if piece.kind == PieceKind::Data {
                payload.extend_from_slice(taken);
            }
            read = rest;
        }
    }
    tracker.is_done().then_some(payload)
}

fn sorted_cuts(len: usize, cuts: &[prop::sample::Index]) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_ambiguous_is_accepted(bytes in mutations::requests()) {
        for event in transcript(Sender::Client, &bytes, &[]) {
            let Event::Request { head, raw, .. } = event else { continue };
            let head_bytes = &raw[..head.head_bytes as usize];
            prop_assert_eq!(plain_length(&lax_framing(head_bytes)), Some(head.body));
        }
    }

    #[test]
    fn no_split_changes_an_answer(
        bytes in mutations::requests(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let cuts = sorted_cuts(bytes.len(), &cuts);
        let whole = transcript(Sender::Client, &bytes, &[]);
        prop_assert_eq!(transcript(Sender::Client, &bytes, &cuts), whole);
    }

    #[test]
    fn a_chunked_body_has_one_payload(
        bytes in mutations::chunked_body(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = payload(&bytes, &[]);
        prop_assert_eq!(&payload(&bytes, &sorted_cuts(bytes.len(), &cuts)), &whole);
        if let Some(payload) = whole {
            let (decoded, _) = decode_chunked(&bytes).expect("a legal body decodes");
            prop_assert_eq!(decoded, payload);
        }
    }

    #[test]
    fn a_body_of_legal_chunks_is_accepted(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8),
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            expedite::http1::write::chunk_header(&mut bytes, chunk.len());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(expedite::http1::write::LAST_CHUNK);
        prop_assert_eq!(payload(&bytes, &[]), Some(chunks.concat()));
    }

    #[test]
    fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for (_, target) in targets::ALL {
            target(&bytes);
        }
        let _ = parse_request(&bytes);
    }
}
