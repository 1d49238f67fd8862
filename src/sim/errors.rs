//! vLLM's own words for what it refuses: status, type, param and text as captured.
//!
//! Plain values, no I/O.

use serde_json::Value;

use super::body::Body;

/// A refusal in vLLM's shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    message: String,
    kind: &'static str,
    param: Option<String>,
}

impl Refusal {
    fn new(status: u16, kind: &'static str, param: Option<&str>, message: String) -> Refusal {
        Refusal { status, message, kind, param: param.map(str::to_owned) }
    }

    /// The body of the answer.
    pub(super) fn json(&self, out: &mut Vec<u8>) {
        let (message, kind, param) = self.quoted();
        let status = self.status;
        out.extend_from_slice(
            format!(
                "{{\"error\":{{\"message\":{message},\"type\":{kind},\"param\":{param},\
                 \"code\":{status}}}}}"
            )
            .as_bytes(),
        );
    }

    /// The event that tells of it within a stream: JSON with spaces, as vLLM writes it there.
    pub(super) fn event(&self, out: &mut Vec<u8>) {
        let (message, kind, param) = self.quoted();
        let status = self.status;
        out.extend_from_slice(
            format!(
                "data: {{\"error\": {{\"message\": {message}, \"type\": {kind}, \
                 \"param\": {param}, \"code\": {status}}}}}\n\n"
            )
            .as_bytes(),
        );
    }

    /// Message, type and param as JSON.
    fn quoted(&self) -> (String, String, String) {
        let quoted = |text: &str| Value::from(text).to_string();
        let param = self.param.as_deref().map_or("null".to_owned(), quoted);
        (quoted(&self.message), quoted(self.kind), param)
    }

    fn own(param: &str, message: String) -> Refusal {
        Refusal::new(400, "BadRequestError", Some(param), message)
    }

    fn validation(loc: Option<&str>, error: &str) -> Refusal {
        let message = format!("1 validation error:\n  {error}");
        Refusal::new(400, "Bad Request", loc, message)
    }

    pub(super) fn content_type() -> Refusal {
        let error = "Unsupported Media Type: Only 'application/json' is allowed";
        Refusal::validation(None, error)
    }

    pub(super) fn missing(field: &str, members: usize) -> Refusal {
        let loc = format!("body.{field}");
        let error = format!(
            "{{'type': 'missing', 'loc': '{loc}', 'msg': 'Field required', \
             'input': '<dict of {members} items>'}}"
        );
        Refusal::validation(Some(&loc), &error)
    }

    pub(super) fn empty_prompt() -> Refusal {
        let text = "Either prompt or prompt_embeds must be provided and non-empty.";
        Refusal::own("prompt", format!("{text} (parameter=prompt)"))
    }

    pub(super) fn stream_options() -> Refusal {
        let text = "Stream options can only be defined when `stream=True`.";
        Refusal::own("stream_options", format!("{text} (parameter=stream_options)"))
    }

    pub(super) fn temperature(value: f64) -> Refusal {
        let text = format!("temperature must be non-negative, got {value:?}.");
        Refusal::own("temperature", format!("{text} (parameter=temperature, value={value:?})"))
    }

    pub(super) fn prompt_too_long(limit: u64) -> Refusal {
        let value = limit + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains \
             at least {value} input tokens, which exceeds this limit even without any output \
             tokens. Please reduce the length of the input prompt. (parameter=input_tokens, \
             value={value})"
        );
        Refusal::own("input_tokens", message)
    }

    pub(super) fn output_too_long(field: &str, value: u64, limit: u64) -> Refusal {
        let message = format!(
            "{field}={value} cannot be greater than max_model_len={limit}. Please request fewer \
             output tokens. (parameter={field}, value={value})"
        );
        Refusal::own(field, message)
    }

    pub(super) fn unknown_model(name: &str, served: &str) -> Refusal {
        let message = format!("The model `{name}` does not exist. Valid aliases: {served}.");
        Refusal::new(404, "NotFoundError", Some("model"), message)
    }

    pub(super) fn user_input(message: String) -> Refusal {
        Refusal::new(400, "InvalidUserInput", None, message)
    }

    pub(super) fn not_found(message: String) -> Refusal {
        Refusal::new(404, "NotFoundError", None, message)
    }

    pub(super) fn queue_full() -> Refusal {
        let text = "The engine is currently busy and cannot accept new requests. Please try again \
                    later or on a different instance.";
        Refusal::new(503, "Service Unavailable", None, text.to_owned())
    }

    /// Blocks of another replica could not be fetched.
    pub(super) fn not_fetched() -> Refusal {
        Refusal::new(500, "InternalServerError", None, "Internal server error".to_owned())
    }

    pub(super) fn shut_down() -> Refusal {
        let text = "cannot schedule new futures after shutdown";
        Refusal::new(500, "InternalServerError", None, text.to_owned())
    }

    pub(super) fn engine_dead() -> Refusal {
        let text = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        Refusal::new(500, "InternalServerError", None, text.to_owned())
    }

    /// For the `status` fault: vLLM's text for that status, as far as it has one.
    pub(super) fn of_status(status: u16) -> Refusal {
        match status {
            500 => Refusal::shut_down(),
            503 => Refusal::queue_full(),
            429 => Refusal::new(429, "RateLimitError", None, "Too many requests".to_owned()),
            _ => {
                let message = format!("simulated status {status}");
                Refusal::new(status, "BadRequestError", None, message)
            }
        }
    }

    /// Why a body could not be read: not JSON at all, or a field of the wrong type.
    pub(super) fn unreadable(body: &[u8], error: &serde_json::Error) -> Refusal {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Object(members)) => members
                .iter()
                .find_map(|(name, value)| wrong_type(name, value))
                .unwrap_or_else(|| Refusal::validation(None, &python_text(&error.to_string()))),
            Ok(_) => Refusal::validation(
                Some("body"),
                "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid \
                 dictionary or object to extract fields from'}",
            ),
            Err(syntax) => {
                let lines = body.split_inclusive(|&b| b == b'\n');
                let before: usize =
                    lines.take(syntax.line().saturating_sub(1)).map(<[u8]>::len).sum();
                let loc = format!("body.{}", before + syntax.column());
                let error = format!(
                    "{{'type': 'json_invalid', 'loc': '{loc}', 'msg': 'JSON decode error', \
                     'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
                );
                Refusal::validation(Some(&loc), &error)
            }
        }
    }
}

/// Tries a member alone; what fails is the culprit.
fn wrong_type(name: &str, value: &Value) -> Option<Refusal> {
    let alone = serde_json::json!({ name: value }).to_string();
    serde_json::from_str::<Body<'_>>(&alone).err()?;
    let loc = format!("body.{name}");
    let (kind, text) = match name {
        "stream" | "echo" | "ignore_eos" => {
            ("bool_parsing", "Input should be a valid boolean, unable to interpret input")
        }
        "model" | "request_id" => ("string_type", "Input should be a valid string"),
        "temperature" => ("float_parsing", "Input should be a valid number"),
        _ if value.is_string() => {
            ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
        }
        _ => ("int_type", "Input should be a valid integer"),
    };
    let input = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let input = python_text(&input);
    let error =
        format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}', 'input': '{input}'}}");
    Some(Refusal::validation(Some(&loc), &error))
}

fn python_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_of(body: &str) -> String {
        let error = serde_json::from_str::<Body<'_>>(body).expect_err("refused");
        let mut out = Vec::new();
        Refusal::unreadable(body.as_bytes(), &error).json(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_texts_are_those_of_the_captures() {
        assert_eq!(
            refusal_of("{\"model\": \"tiny-qwen3\", \"messages\": ["),
            "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'json_invalid', 'loc': \
             'body.37', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': \
             'Expecting value'}}\",\"type\":\"Bad Request\",\"param\":\"body.37\",\"code\":400}}"
        );
        assert_eq!(
            refusal_of("{\"model\":\"m\",\"max_tokens\":\"lots\"}"),
            "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'int_parsing', 'loc': \
             'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as \
             an integer', 'input': 'lots'}\",\"type\":\"Bad Request\",\"param\":\
             \"body.max_tokens\",\"code\":400}}"
        );
    }
}
