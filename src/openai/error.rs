//! Errors of our own, as the OpenAI API writes them: `{"error":{message,type,param,code}}`.
//!
//! [`BodyError`] is why a request body was refused; [`write_body`] and [`write_event`] write an
//! error for a client, whole or in band.

use serde_json::{Value, json};

use super::{Endpoint, Span, json};

/// What kind of fault a body has; both are answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyErrorCode {
    /// Not JSON, or not an object.
    InvalidJson,
    /// A field of the wrong type, out of range, missing, doubled or at odds with another.
    InvalidValue,
}

impl BodyErrorCode {
    /// The contract's `code`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BodyErrorCode::InvalidJson => "invalid_json",
            BodyErrorCode::InvalidValue => "invalid_value",
        }
    }
}

/// Why a request body is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyError {
    /// What kind of fault.
    pub code: BodyErrorCode,
    /// The field at fault.
    pub param: Option<&'static str>,
    /// For people; quotes nothing of the body.
    pub message: String,
    /// Bytes of the body before the fault; 0 for something that is missing.
    pub offset: usize,
}

impl BodyError {
    pub(super) fn value(param: &'static str, message: impl Into<String>, at: Span) -> Self {
        let (code, message) = (BodyErrorCode::InvalidValue, message.into());
        BodyError { code, param: Some(param), message, offset: at.start() }
    }

    pub(super) fn json(message: impl Into<String>, offset: usize) -> Self {
        let (code, message) = (BodyErrorCode::InvalidJson, message.into());
        BodyError { code, param: None, message, offset }
    }
}

impl From<json::Error> for BodyError {
    fn from(error: json::Error) -> Self {
        BodyError::json(format!("the body is not valid JSON: {error}"), error.offset)
    }
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BodyError {}

/// An error to write for a client.
#[derive(Debug, Clone, Copy)]
pub struct ApiError<'a> {
    /// The status, which decides the `type`; for an event, the one that it would have had.
    pub status: u16,
    /// The contract's string, such as `rate_limit_exceeded`.
    pub code: &'a str,
    /// The field at fault.
    pub param: Option<&'a str>,
    /// For people. Any bytes: what is not UTF-8 becomes U+FFFD.
    pub message: &'a [u8],
}

/// OpenAI's `type` for a status.
#[must_use]
pub fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// Appends `{"error":{...}}`.
pub fn write_body(out: &mut Vec<u8>, error: &ApiError<'_>) {
    out.extend_from_slice(b"{\"error\":{\"message\":");
    write_string(out, error.message);
    out.extend_from_slice(b",\"type\":\"");
    out.extend_from_slice(kind(error.status).as_bytes());
    out.extend_from_slice(b"\",\"param\":");
    match error.param {
        Some(param) => write_string(out, param.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"code\":");
    write_string(out, error.code.as_bytes());
    out.extend_from_slice(b"}}");
}

/// Appends the last event of a stream that failed behind `events` others, as the clients of
/// `endpoint` read it: `data: {"error":{...}}`; of messages with the name and type `error`, of
/// responses with those of `response.failed`.
pub fn write_event(out: &mut Vec<u8>, endpoint: Endpoint, events: u64, error: &ApiError<'_>) {
    let mut json = Vec::with_capacity(256);
    write_body(&mut json, error);
    if endpoint == Endpoint::Messages {
        json.splice(..1, *b"{\"type\":\"error\",");
    }
    write_json_event(out, endpoint, events, &json);
}

/// The same of an engine's error, which is JSON.
pub fn write_json_event(out: &mut Vec<u8>, endpoint: Endpoint, events: u64, json: &[u8]) {
    let failed;
    let json = match endpoint {
        // Anthropic's clients pass over an event without a name.
        Endpoint::Messages => {
            out.extend_from_slice(b"event: error\n");
            json
        }
        Endpoint::Responses => {
            out.extend_from_slice(b"event: response.failed\n");
            failed = response_failed(events, json);
            failed.as_bytes()
        }
        _ => json,
    };
    out.extend_from_slice(b"data: ");
    // A line end in JSON is space between its tokens; in an event it would be an end.
    let space = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    out.extend(json.iter().map(space));
    out.extend_from_slice(b"\n\n");
}

/// The event by which a stream of responses fails. The error stands in it twice: in its response,
/// and where OpenAI's own clients look before anything else.
fn response_failed(events: u64, json: &[u8]) -> String {
    let mut said: Value = serde_json::from_slice(json).unwrap_or_default();
    let error = match said.get_mut("error").map(Value::take) {
        Some(error) if !error.is_null() => error,
        _ => said,
    };
    let message = error.get("message").or(Some(&error)).and_then(Value::as_str);
    let code = match error.get("type").and_then(Value::as_str).unwrap_or_default() {
        "rate_limit_error" => "rate_limit_exceeded",
        "invalid_request_error" | "BadRequestError" => "invalid_prompt",
        _ => "server_error",
    };
    let told = json!({"code": code, "message": message.unwrap_or_default()});
    json!({
        "type": "response.failed",
        "sequence_number": events,
        "response": {"object": "response", "status": "failed", "error": told},
        "error": error,
    })
    .to_string()
}

/// Appends `bytes` as a JSON string with its quotes, on one line. Not UTF-8 becomes U+FFFD.
pub fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let hex = |digit: u8| HEX.get(usize::from(digit & 15)).copied().unwrap_or(b'0');
    out.push(b'"');
    for byte in String::from_utf8_lossy(bytes).bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[hex(byte >> 4), hex(byte)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_four_fields() {
        let mut out = Vec::new();
        let message = b"quote \" slash \\ line\n nul \0 del \x7f \xff \xe2\x82\xac";
        let error = ApiError { status: 429, code: "rate_limit_exceeded", param: None, message };
        write_body(&mut out, &error);
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap(),
            json!({"error": {
                "message": "quote \" slash \\ line\n nul \0 del \x7f \u{fffd} \u{20ac}",
                "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded",
            }})
        );
    }

    #[test]
    fn an_event_is_one_data_line() {
        let mut out = Vec::new();
        let error = ApiError {
            status: 502,
            code: "upstream_error",
            param: Some("x"),
            message: b"a\r\ndata: b\n\n",
        };
        for (endpoint, name) in [
            (Endpoint::ChatCompletions, None),
            (Endpoint::Completions, None),
            (Endpoint::Messages, Some(&b"error"[..])),
            (Endpoint::Responses, Some(b"response.failed")),
        ] {
            out.clear();
            write_event(&mut out, endpoint, 7, &error);
            let lines = out.iter().filter(|byte| **byte == b'\n').count();
            assert_eq!((lines, crate::sse::name(&out)), (2 + usize::from(name.is_some()), name));
            let data = crate::sse::data(&out, &mut Vec::new()).map(<[u8]>::to_vec).unwrap();
            let value: Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(value["error"]["message"], "a\r\ndata: b\n\n");
            assert_eq!(value["error"]["type"], "server_error");
            assert_eq!(value["error"]["param"], "x");
            let kind = value["type"].as_str().map(str::as_bytes);
            assert_eq!(kind, name);
        }
    }

    #[test]
    fn a_stream_of_responses_fails_by_its_own_event() {
        for (json, code, message) in [
            (r#"{"error":{"message":"m","type":"server_error"}}"#, "server_error", "m"),
            (
                "{\"error\":\n{\"message\":\"m\",\"type\":\"BadRequestError\"}}",
                "invalid_prompt",
                "m",
            ),
            (r#"{"error":{"message":"m","type":"rate_limit_error"}}"#, "rate_limit_exceeded", "m"),
            (r#"{"object":"error","message":"m","code":500}"#, "server_error", "m"),
            (r#"{"error":"m"}"#, "server_error", "m"),
            ("\"m\"", "server_error", "m"),
            ("{\"error\":null}", "server_error", ""),
            ("no JSON", "server_error", ""),
        ] {
            let mut out = Vec::new();
            write_json_event(&mut out, Endpoint::Responses, 7, json.as_bytes());
            let data = crate::sse::data(&out, &mut Vec::new()).map(<[u8]>::to_vec).unwrap();
            let value: Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(
                (&value["type"], &value["sequence_number"]),
                (&json!("response.failed"), &json!(7))
            );
            let told = json!({"code": code, "message": message});
            assert_eq!(
                (&value["response"]["error"], &value["response"]["status"]),
                (&told, &json!("failed"))
            );
        }
    }

    #[test]
    fn types_follow_the_status() {
        for (status, expected) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (404, "invalid_request_error"),
            (413, "invalid_request_error"),
            (503, "server_error"),
        ] {
            assert_eq!(kind(status), expected);
        }
    }
}
