//! Every answer of our own: the one place where a failure becomes a status, an OpenAI error body
//! and a `retry-after`.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::quota;
use super::ticket::Ticket;
use crate::admission::Why;
use crate::http1::{HeadError, Method, write};
use crate::openai::error::{self as body, ApiError};
use crate::openai::{BodyError, Endpoint};
use crate::routing::Policy;
use crate::tenants::quota::Refused;
use crate::usage::Outcome;

/// Why a request is not served, decided where it arises.
#[derive(Debug)]
pub(super) enum Failure {
    /// The head is not acceptable HTTP/1.1.
    Head(HeadError),
    /// The head did not arrive in time.
    HeadIncomplete,
    /// A client of a TLS listener speaks without it.
    PlainHttp,
    /// The body's framing is broken; its reason.
    BodyFraming(&'static str),
    /// The body is longer than the limit in bytes.
    BodyTooLarge(usize),
    /// The body did not arrive in time, or a client that still reads ended it early.
    BodyIncomplete,
    /// The client has ended its direction in the middle of the body: it may still read.
    BodyLeft,
    /// The body has a content coding; we read it, so it must be plain.
    ContentCoding,
    NotFound,
    /// The path exists for these methods.
    MethodNotAllowed(&'static str),
    InvalidApiKey,
    /// The body is not a call of the API.
    Body(BodyError),
    /// A caller that may choose a routing policy named none of them.
    UnknownPolicy,
    /// A named model is not served, or not to this tenant.
    ModelNotFound(String),
    /// Prompt and answer do not fit into the context; all counts in tokens.
    ContextLength {
        context: u64,
        /// The prompt's; 0 when it is not known exactly.
        tokens: u64,
        /// What the call asks for, if anything.
        output: Option<u64>,
        /// The field that holds the prompt.
        param: &'static str,
    },
    /// No model was named and there is more than one.
    ModelMissing,
    /// The caller may not spend what the request can cost.
    Quota {
        refused: Refused,
        /// What it can cost.
        tokens: u64,
        /// Answers that it asks for.
        sequences: u64,
    },
    /// The store of budgets is away, and the policy is to refuse.
    QuotaUnavailable,
    /// No replica's KV cache could ever hold it; all in tokens.
    NeverFits {
        capacity: u64,
        /// Of the prompt.
        tokens: u64,
        /// Of the answer at most.
        output: u64,
    },
    /// The fleet could not answer it within its limits now.
    Overloaded {
        why: Why,
        /// When it could, if nobody else came.
        retry_after_ms: u64,
    },
    NoHealthyReplica,
    /// No replica that was asked has room, as the last of them said.
    Full(String),
    /// The bodies of other requests take all the memory that they may.
    NoMemory,
    /// More long prompts wait to be read than are allowed to.
    Busy,
    /// It has ended as many engines as it may.
    Poison,
    /// Replicas failed before the first content event and no attempt is left.
    Upstream(String),
    /// The limit of this name passed before the first content event.
    Deadline(&'static str),
    UsageUnavailable,
    /// The gateway itself failed at it: a mistake of ours.
    Internal,
    /// The gateway ends, and the time for open requests is over.
    Stopping,
    /// The client has gone: nothing is sent.
    ClientGone,
}

const PLAIN_BODIES: &str = "A request body must not be compressed.";

/// Who is limited by a store that cannot be asked is told this.
const NO_STORE: &str = "Budgets cannot be checked now; try again.";

const NO_RECORDS: &str = "The usage log cannot be written; no request is served meanwhile.";
const OURS: &str = "The gateway failed at this request; its log says where.";
const STOPPED: &str = "The gateway was stopped; try again.";

/// A failure in the words of the API.
struct Said<'f> {
    status: u16,
    code: &'static str,
    param: Option<&'static str>,
    message: Cow<'f, str>,
}

impl Said<'_> {
    fn error(&self) -> ApiError<'_> {
        let Said { status, code, param, message } = self;
        ApiError { status: *status, code, param: *param, message: message.as_bytes() }
    }
}

fn said<'f>(status: u16, code: &'static str, message: impl Into<Cow<'f, str>>) -> Said<'f> {
    Said { status, code, param: None, message: message.into() }
}

/// As OpenAI words it.
fn context_message(context: u64, tokens: u64, output: Option<u64>, param: &str) -> String {
    let most = format!("This model's maximum context length is {context} tokens.");
    match output {
        Some(output) if tokens == 0 => format!(
            "{most} However, you requested {output} tokens in the completion alone. \
             Please reduce the length of the completion."
        ),
        Some(output) => format!(
            "{most} However, you requested {} tokens ({tokens} in the {param}, {output} in the \
             completion). Please reduce the length of the {param} or completion.",
            tokens.saturating_add(output)
        ),
        None => format!(
            "{most} However, your {param} resulted in {tokens} tokens. \
             Please reduce the length of the {param}."
        ),
    }
}

fn unknown_policy() -> Said<'static> {
    let names = Policy::ALL.map(Policy::name).join(", ");
    let message = format!("x-gateway-policy must be one of {names}.");
    Said { param: Some("x-gateway-policy"), ..said(400, "invalid_value", message) }
}

/// What a budget does not allow.
fn over_budget(refused: Refused, tokens: u64, sequences: u64) -> Said<'static> {
    match refused {
        Refused::TooLarge { burst_tokens } => {
            let message = format!(
                "This request may cost {tokens} tokens, more than the {burst_tokens} that may ever \
                 be spent at once. Please reduce its prompt, its limit on the answer, or n."
            );
            said(400, "request_too_large_for_quota", message)
        }
        Refused::TooWide { in_flight_max } => {
            let message = format!(
                "This request asks for {sequences} answers at once; {in_flight_max} may be under \
                 way. Please reduce n."
            );
            said(400, "request_too_large_for_quota", message)
        }
        Refused::Tokens { retry_after_ms } => {
            let message = format!(
                "Rate limit reached: this request may cost {tokens} tokens. \
                 Please try again in {}.",
                quota::duration(retry_after_ms)
            );
            said(429, "rate_limit_exceeded", message)
        }
        Refused::Concurrency { .. } => {
            let message = "Too many requests are under way; try again when one has ended.";
            said(429, "concurrency_limit_exceeded", message)
        }
    }
}

fn never_fits(capacity: u64, tokens: u64, output: u64) -> String {
    format!(
        "No replica of this model can hold {} tokens ({tokens} in the prompt, {output} in the \
         completion): the largest has room for {capacity}.",
        tokens.saturating_add(output)
    )
}

fn body_too_large(max: usize) -> Said<'static> {
    said(413, "request_too_large", format!("The request body is larger than {max} bytes."))
}

const NO_MEMORY: &str = "Too many long requests are under way for the gateway's memory; try again.";

const POISON: &str = "Two replicas' engines have ended under this request: it is sent to no other.";

fn late(limit: &str) -> String {
    format!("No answer began within the time limit ({limit}).")
}

/// What the fleet cannot do in time.
fn overload(why: Why) -> &'static str {
    match why {
        Why::Ttft => "The fleet is busy: the first token would come too late. Please try again.",
        Why::Tpot => "The fleet is busy: the answer would be too slow. Please try again.",
        Why::Deadline => "The fleet is busy: the request's deadline would pass. Please try again.",
        Why::QueueFull => "The fleet is full, and so is the queue. Please try again.",
        Why::QueueTime => "The fleet is full: the wait would be too long. Please try again.",
    }
}

impl Failure {
    fn said(&self) -> Said<'_> {
        match self {
            Failure::Head(HeadError::HeadTooLarge) => {
                said(431, "headers_too_large", HeadError::HeadTooLarge.reason())
            }
            Failure::Head(error) => said(head_status(*error), "bad_request", error.reason()),
            Failure::HeadIncomplete => said(408, "bad_request", "The request did not arrive."),
            Failure::PlainHttp => said(400, "bad_request", "This port speaks TLS: use https://."),
            Failure::BodyFraming(reason) => said(400, "bad_request", *reason),
            Failure::BodyTooLarge(max) => body_too_large(*max),
            Failure::BodyIncomplete | Failure::BodyLeft => {
                said(408, "bad_request", "The body did not arrive.")
            }
            Failure::ContentCoding => said(415, "bad_request", PLAIN_BODIES),
            Failure::NotFound => said(404, "not_found", "Unknown path."),
            Failure::MethodNotAllowed(allow) => {
                said(405, "method_not_allowed", format!("This path is served for {allow} only."))
            }
            Failure::InvalidApiKey => {
                let message = "Incorrect API key provided: send `Authorization: Bearer KEY`.";
                said(401, "invalid_api_key", message)
            }
            Failure::Body(error) => {
                let said = said(400, error.code.as_str(), error.message.as_str());
                Said { param: error.param, ..said }
            }
            Failure::UnknownPolicy => unknown_policy(),
            Failure::ModelNotFound(model) => {
                let message =
                    format!("The model `{model}` does not exist or you do not have access to it.");
                Said { param: Some("model"), ..said(404, "model_not_found", message) }
            }
            Failure::ContextLength { context, tokens, output, param } => {
                let message = context_message(*context, *tokens, *output, param);
                Said { param: Some(param), ..said(400, "context_length_exceeded", message) }
            }
            Failure::ModelMissing => {
                let said = said(400, "invalid_value", "You must provide a model.");
                Said { param: Some("model"), ..said }
            }
            Failure::Quota { refused, tokens, sequences } => {
                over_budget(*refused, *tokens, *sequences)
            }
            Failure::QuotaUnavailable => said(503, "quota_unavailable", NO_STORE),
            Failure::NeverFits { capacity, tokens, output } => {
                said(400, "context_length_exceeded", never_fits(*capacity, *tokens, *output))
            }
            Failure::Overloaded { why, .. } => said(429, "server_overloaded", overload(*why)),
            Failure::NoHealthyReplica => {
                said(503, "no_healthy_replica", "No replica of this model is available now.")
            }
            Failure::Full(message) => said(503, "server_overloaded", message.as_str()),
            Failure::NoMemory => said(503, "server_overloaded", NO_MEMORY),
            Failure::Busy => {
                said(429, "server_overloaded", "Too many long prompts at once; try again.")
            }
            Failure::Poison => said(500, "upstream_error", POISON),
            Failure::Upstream(message) => said(502, "upstream_error", message.as_str()),
            Failure::Deadline(limit) => said(504, "deadline_exceeded", late(limit)),
            Failure::UsageUnavailable => said(503, "usage_unavailable", NO_RECORDS),
            Failure::Internal => said(500, "internal_error", OURS),
            Failure::Stopping => said(503, "no_healthy_replica", STOPPED),
            // Sent to nobody; the status is what access logs call this (nginx).
            Failure::ClientGone => said(499, "client_gone", ""),
        }
    }

    /// The failure as the last event of a stream of `endpoint`, behind `events` others.
    pub(super) fn event(&self, endpoint: Endpoint, events: u64) -> Vec<u8> {
        let said = self.said();
        let mut out = Vec::with_capacity(256);
        body::write_event(&mut out, endpoint, events, &said.error());
        out
    }

    /// Milliseconds after which another try makes sense, where they are known.
    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Failure::Quota {
                refused:
                    Refused::Tokens { retry_after_ms } | Refused::Concurrency { retry_after_ms },
                ..
            } => Some(*retry_after_ms),
            Failure::Overloaded { retry_after_ms, .. } => Some(*retry_after_ms),
            _ => None,
        }
    }

    /// Seconds after which another try makes sense: whole ones, so that a caller waits long enough.
    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Failure::Quota { .. } | Failure::Overloaded { .. } => {
                self.retry_after_ms().map(|ms| ms.div_ceil(1000))
            }
            Failure::NoHealthyReplica
            | Failure::Full(_)
            | Failure::Busy
            | Failure::NoMemory
            | Failure::QuotaUnavailable
            | Failure::UsageUnavailable
            | Failure::Stopping => Some(1),
            _ => None,
        }
    }

    /// Is the connection spent: framing in doubt, or a body that nobody will read?
    fn closes(&self) -> bool {
        match self {
            // What could not be read may have a body that cannot be found.
            Failure::Head(_)
            | Failure::HeadIncomplete
            | Failure::PlainHttp
            | Failure::BodyFraming(_)
            | Failure::BodyTooLarge(_)
            | Failure::BodyIncomplete
            | Failure::BodyLeft
            | Failure::NoMemory
            | Failure::Internal
            | Failure::ClientGone => true,
            _ => false,
        }
    }

    /// The status that goes into the usage record.
    pub(super) fn status(&self) -> u16 {
        match self {
            // What it is told, if it still reads, is that the body did not arrive.
            Failure::BodyLeft => Failure::ClientGone.status(),
            _ => self.said().status,
        }
    }

    /// The outcome that goes into the usage record.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Failure::NoHealthyReplica | Failure::Stopping => Outcome::NoReplica,
            Failure::Upstream(_) | Failure::Poison | Failure::Internal => Outcome::UpstreamError,
            Failure::Deadline(_) => Outcome::Deadline,
            Failure::ClientGone | Failure::BodyLeft => Outcome::ClientCancelled,
            Failure::Quota { refused, .. } => match refused {
                Refused::Tokens { .. } | Refused::TooLarge { .. } => Outcome::RejectedQuota,
                _ => Outcome::RejectedConcurrency,
            },
            Failure::QuotaUnavailable => Outcome::RejectedQuota,
            Failure::Overloaded { .. }
            | Failure::Full(_)
            | Failure::Busy
            | Failure::NoMemory
            | Failure::UsageUnavailable => Outcome::RejectedOverload,
            _ => Outcome::RejectedInvalid,
        }
    }

    /// Writes the whole answer.
    pub(super) fn write(&self, ticket: &Ticket<'_>, close: bool, out: &mut Vec<u8>) {
        let said = self.said();
        let mut json = Vec::with_capacity(256);
        body::write_body(&mut json, &said.error());
        let mut head = Head::new(out, said.status, ticket);
        head.field("content-type", b"application/json");
        if let Failure::MethodNotAllowed(allow) = self {
            head.field("allow", allow.as_bytes());
        }
        if let Failure::InvalidApiKey = self {
            head.field("www-authenticate", b"Bearer");
        }
        if let Failure::Poison = self {
            // What OpenAI's clients go by; without it they would try twice more.
            head.field("x-should-retry", b"false");
        }
        if let Some(seconds) = self.retry_after_s() {
            head.number("retry-after", seconds);
        }
        if let Some(ms) = self.retry_after_ms() {
            head.number("retry-after-ms", ms);
        }
        if ticket.attempts > 0 {
            ticket.write_routing(&mut head);
        }
        head.end_with_length(json.len() as u64, close || self.closes());
        if ticket.head.method != Method::Head {
            out.extend_from_slice(&json);
        }
    }

    /// Must the connection be closed after the answer?
    pub(super) fn must_close(&self) -> bool {
        self.closes()
    }
}

fn head_status(error: HeadError) -> u16 {
    match error {
        HeadError::BadRequest(_) => 400,
        HeadError::TargetTooLong => 414,
        HeadError::ExpectationFailed => 417,
        HeadError::Misdirected => 421,
        HeadError::HeadTooLarge => 431,
        HeadError::MethodUnknown | HeadError::CodingUnsupported => 501,
        HeadError::VersionUnsupported => 505,
    }
}

/// A response head being written.
pub(super) struct Head<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Head<'o> {
    /// Begins a head with the fields that every answer has.
    pub(super) fn new(out: &'o mut Vec<u8>, status: u16, ticket: &Ticket<'_>) -> Head<'o> {
        write::status_line(out, status);
        out.extend_from_slice(ticket.core.date.borrow().as_bytes());
        let mut head = Head { out };
        if !ticket.request_id().is_empty() {
            head.field("x-request-id", ticket.request_id());
        }
        quota::write_standing(&ticket.spending, &mut head);
        head
    }

    pub(super) fn field(&mut self, name: &str, value: &[u8]) {
        // A value that would break the head (an odd byte of the engine's) is left out.
        let _ = write::field(self.out, name, value);
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.field(name, itoa::Buffer::new().format(value).as_bytes());
    }

    /// Ends a head whose body has a known length in bytes.
    pub(super) fn end_with_length(mut self, bytes: u64, close: bool) {
        self.number("content-length", bytes);
        self.end(close);
    }

    /// Ends a head whose body is chunked.
    pub(super) fn end_chunked(mut self, close: bool) {
        self.field("transfer-encoding", b"chunked");
        self.end(close);
    }

    /// Ends a head; without a framing field the body ends with the connection.
    pub(super) fn end(mut self, close: bool) {
        if close {
            self.field("connection", b"close");
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The `date` line (RFC 9110, 6.6.1) for `unix_s`, with its CRLF.
pub(super) fn write_date(line: &mut String, unix_s: u64) {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = unix_s / 86_400;
    let (h, m, s) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    let (year, month, day) = crate::runtime::clock::civil(days);
    let name = DAYS.get((days % 7) as usize).copied().unwrap_or("Thu");
    let month = MONTHS.get((month as usize).wrapping_sub(1)).copied().unwrap_or("Jan");
    line.clear();
    let _ = write!(line, "date: {name}, {day:02} {month} {year} {h:02}:{m:02}:{s:02} GMT\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_an_imf_fixdate() {
        let mut line = String::new();
        write_date(&mut line, 784_111_777);
        assert_eq!(line, "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    }
}
