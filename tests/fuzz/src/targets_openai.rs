//! What the targets of event streams, JSON bodies and forms assert about any bytes.

use expedite::openai::{Call, Edits, Endpoint, call::POLICY_FIELDS, json, multipart};
use expedite::openai::{EventReader, read_answer, read_call};
use expedite::sse::{self, EventScanner};
use serde_json::{Value, value::RawValue};
use std::collections::BTreeMap;

/// An event as a client sees it: its name and its data.
type Seen = (Option<Vec<u8>>, Vec<u8>);

/// Any stream: the same events at each split as by a reader that looks at each byte.
pub(crate) fn sse(bytes: &[u8]) {
    let expected = naive_events(bytes);
    let every = bytes.len() / 64 + 1;
    for split in (0..=bytes.len()).step_by(every) {
        let (head, tail) = bytes.split_at(split);
        assert_eq!(events([head, tail]), expected, "split at {split}");
    }
    assert_eq!(events(bytes.chunks(1)), expected, "byte by byte");
}

fn events<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Vec<Seen>, bool) {
    let (mut scanner, mut open, mut seen) = (EventScanner::default(), Vec::new(), Vec::new());
    for mut piece in pieces {
        while let Some(end) = scanner.next(piece).expect("a stream within the limits") {
            assert!(end > 0, "the scanner stands still");
            open.extend_from_slice(&piece[..end]);
            piece = &piece[end..];
            if let Some(data) = sse::data(&open, &mut Vec::new()) {
                seen.push((sse::name(&open).map(<[u8]>::to_vec), data.to_vec()));
            }
            open.clear();
            assert_eq!(scanner.open_bytes(), 0);
        }
        open.extend_from_slice(piece);
    }
    (seen, scanner.open_bytes() > 0)
}

/// WHATWG HTML, 9.2.6, as it is written: the events, and whether one is still open.
fn naive_events(bytes: &[u8]) -> (Vec<Seen>, bool) {
    let body = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (mut seen, mut name, mut data) = (Vec::new(), None, None::<Vec<u8>>);
    let (mut line, mut open, mut at) = (Vec::new(), false, 0);
    while at < body.len() {
        let byte = body[at];
        at += 1;
        if byte != b'\r' && byte != b'\n' {
            line.push(byte);
            open = true;
            continue;
        }
        if byte == b'\r' && body.get(at) == Some(&b'\n') {
            at += 1;
        }
        if line.is_empty() {
            if let Some(data) = data.take() {
                seen.push((name.clone(), data));
            }
            (name, open) = (None, false);
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => name = Some(value.to_vec()).filter(|name| !name.is_empty()),
            b"data" => match &mut data {
                Some(data) => data.extend(std::iter::once(&b'\n').chain(value)),
                None => data = Some(value.to_vec()),
            },
            _ => {}
        }
        line.clear();
    }
    (seen, open)
}

/// Any form behind its content type and a line end: what is accepted ends with its boundary, and an
/// edit changes the model alone.
pub(crate) fn form(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (content_type, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let Ok(call) = multipart::read_call(content_type, body) else { return };
    let model = call.model.as_ref().expect("a form without a model is refused").span;
    let name = call.model_name(body).expect("a model is UTF-8");
    assert_eq!(name.as_bytes(), model.of(body));
    assert!(body.starts_with(b"--") && body[model.end()..].starts_with(b"\r\n--"));

    let mut edits = Edits::new(&call);
    assert_eq!(pieces(&edits, body), body, "no edit, no change");
    edits.ask_for_usage(&call);
    edits.remove(&call, body, |_| true);
    assert!(edits.is_empty(), "a form has no fields but the model to edit");
    edits.set_model(&call, "new");
    let edited = pieces(&edits, body);
    assert_eq!(edited, [&body[..model.start()], b"new", &body[model.end()..]].concat());
    let again = multipart::read_call(content_type, &edited).expect("an edited form is a form");
    assert_eq!((again.model_name(&edited), again.stream), (Some("new"), call.stream));
}

/// Any body: the scanner takes what serde_json takes, and an edited body differs in what was
/// edited alone.
pub(crate) fn body_edit(bytes: &[u8]) {
    same_as_serde_json(bytes);
    assert!(!read_answer(bytes).valid || bytes.trim_ascii().starts_with(b"{"));
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Responses, Endpoint::Messages] {
        let facts = EventReader::new(endpoint).read(bytes);
        assert!(facts.usage.is_none() || !facts.usage_odd, "odd or sound, not both");
    }
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Responses] {
        if let Ok(call) = read_call(endpoint, bytes) {
            edit(endpoint, &call, bytes);
        }
    }
}

fn same_as_serde_json(bytes: &[u8]) {
    let ours = json::Scanner::new(bytes).and_then(|mut scanner| {
        scanner.value()?;
        scanner.finish()
    });
    // Skipping, serde_json passes over numbers out of range and lone surrogates; reading, neither.
    let loose = serde_json::from_slice::<serde::de::IgnoredAny>(bytes);
    if ours.is_ok() {
        assert!(loose.is_ok() && std::str::from_utf8(bytes).is_ok());
    } else if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        assert!(depth(&value) > json::DEPTH_MAX, "{ours:?}");
    }
}

fn depth(value: &Value) -> u32 {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn edit(endpoint: Endpoint, call: &Call, body: &[u8]) {
    let mut edits = Edits::new(call);
    assert_eq!(pieces(&edits, body), body, "no edit, no change");
    let asks = endpoint != Endpoint::Responses && call.stream;
    edits.set_model(call, "new \"model\"");
    if asks {
        edits.ask_for_usage(call);
    }
    edits.remove(call, body, |_| true);
    let edited = pieces(&edits, body);
    assert_eq!(edits.len(body), edited.len());

    let again = read_call(endpoint, &edited).expect("an edited body is a body");
    assert_eq!(again.model_name(&edited), Some("new \"model\""));
    assert!(again.policy_fields.is_empty());
    assert!(!asks || again.client_asked_for_usage());
    // The values as they are written: a number out of range and its spelling survive an edit too.
    let untouched = |body: &[u8]| {
        let mut fields: BTreeMap<String, &RawValue> =
            serde_json::from_slice(body).expect("an accepted body is JSON");
        let edited = |name: &str| {
            name == "model" || asks && name == "stream_options" || POLICY_FIELDS.contains(&name)
        };
        fields.retain(|name, _| !edited(name));
        fields.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(untouched(&edited), untouched(body));
}

fn pieces(edits: &Edits, body: &[u8]) -> Vec<u8> {
    edits.pieces(body).flatten().copied().collect()
}
