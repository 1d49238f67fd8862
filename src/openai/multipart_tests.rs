//! Forms: what is read, what is refused, and that the audio is not looked into.

use super::*;
use crate::openai::Edits;
use proptest::prelude::*;

const TYPE: &[u8] = b"multipart/form-data; boundary=XyZ";

fn part(name: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
    [head.as_bytes(), value, b"\r\n"].concat()
}

fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body: Vec<u8> = parts.iter().flat_map(|(name, value)| part(name, value)).collect();
    body.extend_from_slice(b"--XyZ--\r\n");
    body
}

fn refused(content_type: &[u8], body: &[u8]) -> &'static str {
    read_call(content_type, body).expect_err("refused").param.unwrap()
}

#[test]
fn model_and_stream_are_read_past_the_audio() {
    let audio = b"RIFF\0\xff\r\n--Xy\r\n\r\n--XY name=\"model\"\r\nmodel";
    let body = form(&[("file", audio), ("model", b"whisper"), ("stream", b"true")]);
    let call = read_call(TYPE, &body).unwrap();
    assert_eq!(call.model_name(&body), Some("whisper"));
    assert!(call.stream);
    let body = form(&[("model", "m\u{e9}".as_bytes()), ("stream", b"False")]);
    let call = read_call(b"Multipart/Form-Data; charset=Utf-8; Boundary=\"XyZ\"", &body).unwrap();
    assert_eq!((call.model_name(&body), call.stream), (Some("m\u{e9}"), false));
}

#[test]
fn the_model_is_edited_in_place() {
    let body = form(&[("file", b"audio"), ("model", b"fast"), ("language", b"en")]);
    let call = read_call(TYPE, &body).unwrap();
    let mut edits = Edits::new(&call);
    edits.set_model(&call, "openai/whisper \"3\"");
    let edited: Vec<u8> = edits.pieces(&body).flatten().copied().collect();
    let expected =
        form(&[("file", b"audio"), ("model", b"openai/whisper \"3\""), ("language", b"en")]);
    assert_eq!(edited, expected);
    assert_eq!(edits.len(&body), expected.len());
    let mut edits = Edits::new(&call);
    edits.set_model(&call, "x\r\n--XyZ");
    assert!(edits.is_empty(), "a line end would change the form");
}

#[test]
fn nothing_but_the_model_of_a_form_is_edited() {
    let body = form(&[("model", b"m"), ("cache_salt", b"5"), ("stream", b"true")]);
    let call = read_call(TYPE, &body).unwrap();
    let mut edits = Edits::new(&call);
    edits.ask_for_usage(&call);
    edits.set_max_tokens(&call, "max_tokens", 7);
    edits.set_policy_field(&call, "cache_salt", "0");
    edits.remove(&call, &body, |_| true);
    assert!(edits.is_empty());
}

#[test]
fn a_field_that_steers_the_engine_is_refused_by_its_name() {
    for field in crate::openai::call::POLICY_FIELDS {
        let body = form(&[("model", b"m"), (field, b"{}"), ("file", b"audio")]);
        match field {
            "cache_salt" => assert!(read_call(TYPE, &body).is_ok()),
            _ => assert_eq!(refused(TYPE, &body), field),
        }
    }
    // What only looks like one in the audio is audio.
    read_call(TYPE, &form(&[("model", b"m"), ("file", b"name=\"priority\"\r\n\r\n5")])).unwrap();
}

#[test]
fn boundaries_follow_the_grammar() {
    let body = form(&[("model", b"m")]);
    let long = format!("multipart/form-data; boundary={}", "b".repeat(71));
    for content_type in [
        &b"application/json"[..],
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=\"\"",
        b"multipart/form-data; boundary=\"XyZ",
        b"multipart/form-data; boundary=XyZ; boundary=XyZ",
        b"multipart/form-data; boundary*=XyZ",
        b"multipart/form-data; boundary=\"X\\yZ\" x",
        b"multipart/form-data; boundary=X[Z",
        b"multipart/form-data; boundary=XyZ; x",
        b"multipart/form-data;; boundary=XyZ",
        b"multipart/form-data; boundary=XyZ; boundary*0=Q",
        b"multipart/form-data; boundary=XyZ; charset=utf-7",
        b"multipart/form-data; boundary=XyZ; charset=utf-16le",
        b"multipart/form-data; boundary=XyZ; charset*=utf-8''utf-7",
        b"multipart/mixed; boundary=XyZ",
        long.as_bytes(),
    ] {
        assert_eq!(refused(content_type, &body), "content-type");
    }
    assert_eq!(refused(b"multipart/form-data; boundary=Xyz", &body), "body", "case counts");
}

#[test]
fn fields_are_given_once_and_right() {
    let model = ("model", &b"m"[..]);
    let long = vec![b'm'; MODEL_BYTES_MAX + 1];
    for (parts, param) in [
        (vec![("file", &b"a"[..])], "model"),
        (vec![model, model], "model"),
        (vec![("model", &long)], "model"),
        (vec![("model", b"\xff")], "model"),
        (vec![model, ("stream", b"maybe")], "stream"),
        (vec![model, ("stream", b"false"), ("stream", b"true")], "stream"),
        (vec![model; 65], "model"),
    ] {
        assert_eq!(refused(TYPE, &form(&parts)), param);
    }
    let mut many = vec![("x", &b""[..]); PARTS_MAX - 1];
    many.push(model);
    assert!(read_call(TYPE, &form(&many)).is_ok());
    many.push(("x", b""));
    assert_eq!(refused(TYPE, &form(&many)), "body");
}

#[test]
fn broken_forms_are_refused() {
    let head = "--XyZ\r\nContent-Disposition: form-data; name=\"model\"";
    for body in [
        String::new(),
        "--XyZ--\r\n".replace("--\r\n", ""),
        format!("preamble\r\n{head}\r\n\r\nm\r\n--XyZ--\r\n"),
        format!("{head}\r\n\r\nm\r\n--XyZ"),
        format!("{head}\r\n\r\nm\r\n--XyZ--epilogue"),
        format!("{head}\r\n\r\nm\r\n--XyZ \r\n\r\n--XyZ--"),
        format!("{head}\r\n\r\nm"),
        format!("{head}\n\nm\r\n--XyZ--"),
        format!("{head}; name=\"x\"\r\n\r\nm\r\n--XyZ--"),
        format!("{head}; name*=utf-8''x\r\n\r\nm\r\n--XyZ--"),
        format!("{head}\r\n folded\r\n\r\nm\r\n--XyZ--"),
        format!("{head}\r\nX: a\nContent-Disposition: b\r\n\r\nm\r\n--XyZ--"),
        format!("{head}\r\nContent-Disposition: form-data; name=x\r\n\r\nm\r\n--XyZ--"),
        "--XyZ\r\nX: y\r\n\r\nm\r\n--XyZ--".to_owned(),
        "--XyZ\r\nContent-Disposition: form-data\r\n\r\nm\r\n--XyZ--".to_owned(),
        format!("{head}\r\nX: {}\r\n\r\nm\r\n--XyZ--", "y".repeat(PART_HEAD_BYTES_MAX)),
    ] {
        assert_eq!(refused(TYPE, body.as_bytes()), "body", "{body:?}");
    }
}

/// Names and values of a form that [`form`] could have made.
fn naive_parts(body: &[u8]) -> Vec<(String, Vec<u8>)> {
    let (mut parts, mut rest) = (Vec::new(), body);
    loop {
        rest = rest.strip_prefix(b"--XyZ").expect("a delimiter");
        if rest == b"--\r\n" {
            return parts;
        }
        let head = memmem::find(rest, b"\r\n\r\n").expect("a head");
        let name = String::from_utf8(rest[..head].to_vec()).unwrap();
        let name = name.split('"').nth(1).unwrap().to_owned();
        let value = &rest[head + 4..];
        let end = memmem::find(value, b"\r\n--XyZ").expect("an end");
        parts.push((name, value[..end].to_vec()));
        rest = &value[end + 2..];
    }
}

/// Each of these a parser in use reads as a second `model`: ours would ask for one and the engine
/// would run the other. The first four do so in python-multipart 0.0.34, the others in its elders.
#[test]
fn no_name_hides_from_us() {
    let model = String::from_utf8(part("model", b"allowed")).unwrap();
    for parameters in [
        "name=\"x\"; y; name=\"model\"",
        "name=\"x\";; name=\"model\"",
        r#"name="x"; y="\\"; z="; name=model; z=""#,
        "name=\"x\"; (y; name=\"model\"; z=)",
        "name=\"x\"; name*0=\"mod\"; name*1=\"el\"",
        "name=\"x\"; NAME*=utf-8''model",
        "name=\"x\"; \u{a0}name=model",
        "name=\"x\"; name=\u{a0}model",
        "name=\"x\"; \u{c}name=model",
    ] {
        let head = format!("--XyZ\r\nContent-Disposition: form-data; {parameters}\r\n\r\n");
        let body = format!("{model}{head}denied\r\n--XyZ--\r\n");
        assert_eq!(refused(TYPE, body.as_bytes()), "body", "{parameters}");
    }
}

#[test]
fn file_names_may_be_odd() {
    for file_name in [r"C:\audio\a.wav", r#"a\"; name=\"model\".wav"#, "a; b=c.wav", "\u{e9}", ""] {
        let file = format!("file\"; filename=\"{file_name}");
        let body = form(&[(&file, b"audio"), ("model", b"m")]);
        let call = read_call(TYPE, &body).unwrap_or_else(|error| panic!("{file_name}: {error}"));
        assert_eq!(call.model_name(&body), Some("m"));
    }
    let body = form(&[("mo\\del", b"x"), ("model", b"m")]);
    assert!(read_call(TYPE, &body).is_ok(), "a backslash escapes nothing but a quote");
}

proptest! {
    /// Any audio that does not hold the delimiter is passed over whole.
    #[test]
    fn any_audio_is_passed_over(audio in prop::collection::vec(any::<u8>(), 0..300), first: bool) {
        prop_assume!(memmem::find(&audio, b"\r\n--XyZ").is_none());
        let (file, model) = (("file", &audio[..]), ("model", &b"m"[..]));
        let body = form(&if first { [file, model] } else { [model, file] });
        let call = read_call(TYPE, &body).unwrap();
        prop_assert_eq!(call.model_name(&body), Some("m"));
    }

    /// An edited form has the same parts, read by a parser that knows nothing but the delimiter.
    #[test]
    fn edits_change_the_model_alone(
        mut parts in prop::collection::vec(("[a-z]{0,8}", any::<Vec<u8>>()), 0..8),
        (old, new) in ("[^\r\n]{0,20}", "[^\r\n]{0,20}"),
        at in any::<prop::sample::Index>(),
    ) {
        parts.retain(|(name, value)| {
            !["model", "stream"].contains(&&name[..]) && memmem::find(value, b"--XyZ").is_none()
        });
        let at = at.index(parts.len() + 1);
        parts.insert(at, ("model".to_owned(), old.clone().into_bytes()));
        let borrowed: Vec<_> = parts.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let body = form(&borrowed);
        let call = read_call(TYPE, &body).unwrap();
        prop_assert_eq!(call.model_name(&body), Some(&old[..]));
        let mut edits = Edits::new(&call);
        edits.set_model(&call, &new);
        let edited: Vec<u8> = edits.pieces(&body).flatten().copied().collect();
        parts[at].1 = new.into_bytes();
        prop_assert_eq!(naive_parts(&edited), parts);
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..300), kind: Vec<u8>) {
        let _ = read_call(&kind, &[b"--XyZ\r\n", &body[..]].concat());
        let _ = read_call(TYPE, &[b"--XyZ\r\n", &body[..]].concat());
    }
}
