//! One request of a load: send it, read the answer, check it to the last byte.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use memchr::memmem;

use super::Run;
use super::report::Answered;
use crate::http1::{
    ChunkTracker, HeadScanner, Method, PieceKind, ResponseBody, ResponseHead, parse_response, write,
};
use crate::net::{self, Stream};
use crate::openai::{Endpoint, EventKind, EventReader, json, read_answer};
use crate::runtime::clock;
use crate::sse::{self, EventScanner};

/// A request that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(120);
/// Received at once.
const READ_BYTES: usize = 16 * 1024;
/// Sentences that prompts are made of.
const FILLER: &str = "The expediter looks at every burner before the next order goes to a cook. ";

/// Idle connections to one target.
pub(super) struct Connections {
    addr: SocketAddr,
    idle: RefCell<Vec<Stream>>,
}

impl Connections {
    pub(super) fn new(addr: SocketAddr) -> Connections {
        Connections { addr, idle: RefCell::new(Vec::new()) }
    }

    async fn take(&self) -> std::io::Result<Stream> {
        if let Some(stream) = self.idle.borrow_mut().pop() {
            return Ok(stream);
        }
        net::connect(self.addr).await
    }
}

/// The answer as it is read.
struct Answer {
    received: Vec<u8>,
    looked: usize,
    events: EventScanner,
    reader: EventReader,
    open: Vec<u8>,
    text: Vec<u8>,
    scratch: Vec<u8>,
    done: bool,
    content_at_ns: Vec<u64>,
    out: Answered,
}

/// Sends request `n` to target `at` and reads its answer.
pub(super) async fn exchange(run: &Rc<Run>, at: usize, n: u64, due_ns: u64) -> Answered {
    let mut exchanged = std::pin::pin!(attempt(run, at, n, due_ns));
    let mut limit = std::pin::pin!(net::sleep(PATIENCE));
    let result = std::future::poll_fn(|cx| {
        use std::task::Poll;
        if let Poll::Ready(result) = exchanged.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        limit.as_mut().poll(cx).map(|()| Err("no answer within 120 s".to_owned()))
    });
    result.await.unwrap_or_else(|error| Answered { error: Some(error), ..Answered::default() })
}

async fn attempt(run: &Rc<Run>, at: usize, n: u64, due_ns: u64) -> Result<Answered, String> {
    let (Some(target), Some(connections)) = (run.load.targets.get(at), run.connections.get(at))
    else {
        return Err("no such target".to_owned());
    };
    let io = |what: &'static str| move |e: std::io::Error| format!("{what}: {}", e.kind());
    let mut stream = connections.take().await.map_err(io("connect"))?;
    let stream_wanted = wants_stream(run, n);
    let tag = run.load.seed.wrapping_add(n);
    let endpoint = match run.load.completions {
        true => Endpoint::Completions,
        false => Endpoint::ChatCompletions,
    };
    let body = body(run, &target.model, n, tag, stream_wanted);
    let mut out = Vec::with_capacity(body.len() + 256);
    let _ = write::request_line(&mut out, Method::Post, endpoint.path());
    let _ = write::field(&mut out, "host", target.authority.as_bytes());
    if let Some(key) = &target.key {
        let _ = write::field(&mut out, "authorization", format!("Bearer {key}").as_bytes());
    }
    let _ = write::field(&mut out, "content-type", b"application/json");
    write::number_field(&mut out, "content-length", body.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&body);
    stream.send_all(&out).await.map_err(io("send"))?;

    let mut answer = Answer {
        received: Vec::with_capacity(READ_BYTES),
        looked: 0,
        events: EventScanner::default(),
        reader: EventReader::new(endpoint),
        open: Vec::new(),
        text: Vec::new(),
        scratch: Vec::new(),
        done: false,
        content_at_ns: Vec::new(),
        out: Answered::default(),
    };
    let head = answer.head(&mut stream).await?;
    answer.body(&mut stream, &head, stream_wanted).await?;
    let end_ns = clock::now_ns();
    if let Some(word) = run.load.word {
        answer.check(tag, word)?;
    }
    if head.keep_alive {
        connections.idle.borrow_mut().push(stream);
    }
    Ok(answer.finish(due_ns, end_ns))
}

/// Spread evenly: of each hundred requests, the share's first.
fn wants_stream(run: &Run, n: u64) -> bool {
    let round = n / run.load.targets.len() as u64;
    (round.wrapping_mul(61) % 100) < (run.load.stream_share * 100.0) as u64
}

fn body(run: &Run, model: &str, n: u64, tag: u64, stream: bool) -> Vec<u8> {
    let load = &run.load;
    let filler = |tokens: usize| FILLER.chars().cycle().take(tokens * 4).collect::<String>();
    let shared = load.prefix_tokens.min(load.prompt_tokens);
    let prefix = match shared {
        0 => String::new(),
        _ => format!("Prefix {}. {}", n % load.prefixes.max(1), filler(shared)),
    };
    let prompt = format!("{prefix} [[tag:{tag}]] {}", filler(load.prompt_tokens - shared));
    let mut body = serde_json::json!({
        "model": model,
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": stream,
    });
    if let Some(fields) = body.as_object_mut() {
        if load.completions {
            fields.insert("prompt".to_owned(), prompt.into());
        } else {
            let messages = serde_json::json!([{"role": "user", "content": prompt}]);
            fields.insert("messages".to_owned(), messages);
        }
        if stream {
            let options = serde_json::json!({"include_usage": true});
            fields.insert("stream_options".to_owned(), options);
        }
    }
    body.to_string().into_bytes()
}

impl Answer {
    async fn more(&mut self, stream: &mut Stream) -> Result<bool, String> {
        let from = self.received.len();
        self.received.resize(from + READ_BYTES, 0);
        let space = self.received.get_mut(from..).unwrap_or_default();
        let n = stream.recv(space).await.map_err(|e| format!("receive: {}", e.kind()))?;
        self.received.truncate(from + n);
        Ok(n > 0)
    }

    async fn head(&mut self, stream: &mut Stream) -> Result<ResponseHead, String> {
        let mut scanner = HeadScanner::response();
        loop {
            if !self.more(stream).await? {
                return Err("connection ended before an answer".to_owned());
            }
            let found = scanner.advance(&self.received).map_err(|e| e.reason().to_owned())?;
            let Some(n) = found else { continue };
            let bytes = self.received.get(..n).unwrap_or_default();
            let head = parse_response(bytes, false).map_err(|e| e.reason().to_owned())?;
            self.out.attempts = attempts_of(bytes);
            self.looked = n;
            return Ok(head);
        }
    }

    async fn body(
        &mut self,
        stream: &mut Stream,
        head: &ResponseHead,
        streams: bool,
    ) -> Result<(), String> {
        let kind = head.content_type.map(|s| s.of(&self.received)).unwrap_or_default();
        let wanted: &[u8] = if streams { b"text/event-stream" } else { b"application/json" };
        let right_kind = kind.starts_with(wanted);
        let mut payload = Vec::new();
        let mut tracker = ChunkTracker::response();
        loop {
            let bytes = std::mem::take(&mut self.received);
            let rest = bytes.get(self.looked..).unwrap_or_default();
            let ended = match head.body {
                ResponseBody::Length(length) => {
                    payload.extend_from_slice(rest);
                    payload.len() as u64 >= length
                }
                ResponseBody::Chunked => unchunk(&mut tracker, rest, &mut payload)?,
                _ => return Err("the answer has no length".to_owned()),
            };
            self.looked = 0;
            if streams && head.status == 200 {
                self.payload(&std::mem::take(&mut payload))?;
            }
            if ended {
                break;
            }
            if !self.more(stream).await? {
                return Err("connection ended inside the answer".to_owned());
            }
        }
        match (head.status, right_kind, streams) {
            (200, true, true) if self.done => Ok(()),
            (200, true, true) => Err("no [DONE]".to_owned()),
            (200, true, false) => self.whole(&payload),
            (200, ..) => Err("wrong content type".to_owned()),
            (status, ..) => Err(format!("status {status}")),
        }
    }

    /// Payload of a stream.
    fn payload(&mut self, mut piece: &[u8]) -> Result<(), String> {
        while !piece.is_empty() {
            let Some(n) = self.events.next(piece).map_err(|_| "event too long".to_owned())? else {
                self.open.extend_from_slice(piece);
                return Ok(());
            };
            self.open.extend_from_slice(piece.get(..n).unwrap_or_default());
            piece = piece.get(n..).unwrap_or_default();
            let event = std::mem::take(&mut self.open);
            self.event(&event)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &[u8]) -> Result<(), String> {
        let Some(data) = sse::data(event, &mut self.scratch) else { return Ok(()) };
        if self.done {
            return Err("an event after [DONE]".to_owned());
        }
        let facts = self.reader.read(data);
        if let Some(usage) = facts.usage {
            self.out.input_tokens = usage.prompt_tokens;
            self.out.output_tokens = usage.completion_tokens;
            self.out.cached_tokens = usage.cached_tokens.unwrap_or(0);
        }
        match facts.kind {
            EventKind::Done => self.done = true,
            EventKind::Error(_) => return Err("an error event".to_owned()),
            EventKind::Content => {
                let before = self.text.len();
                append_text(data, &mut self.text);
                if self.text.len() > before {
                    self.content_at_ns.push(clock::now_ns());
                }
            }
            EventKind::Role | EventKind::UsageOnly => {}
        }
        Ok(())
    }

    fn whole(&mut self, body: &[u8]) -> Result<(), String> {
        let read = read_answer(body);
        if !read.valid {
            return Err("the answer is not JSON".to_owned());
        }
        let usage = read.usage.ok_or("no usage")?;
        self.out.input_tokens = usage.prompt_tokens;
        self.out.output_tokens = usage.completion_tokens;
        self.out.cached_tokens = usage.cached_tokens.unwrap_or(0);
        append_text(body, &mut self.text);
        Ok(())
    }

    /// Every word of the answer, in order, none twice and none of another request's.
    fn check(&self, tag: u64, word: super::Word) -> Result<(), String> {
        let mut expected = Vec::with_capacity(self.text.len());
        for index in 0..self.out.output_tokens {
            word(tag, index, &mut expected);
        }
        match self.text == expected {
            true => Ok(()),
            false if expected.starts_with(&self.text) => Err("tokens are missing".to_owned()),
            false => Err("wrong tokens".to_owned()),
        }
    }

    fn finish(mut self, due_ns: u64, end_ns: u64) -> Answered {
        let us = |from: u64, to: u64| to.saturating_sub(from) / 1_000;
        self.out.total_us = us(due_ns, end_ns);
        self.out.ttft_us = self.content_at_ns.first().map(|at| us(due_ns, *at));
        let pairs = self.content_at_ns.iter().zip(self.content_at_ns.iter().skip(1));
        self.out.gaps_us = pairs.map(|(a, b)| us(*a, *b)).collect();
        self.out
    }
}

/// Takes chunked bytes out of their framing. True: the body has ended.
fn unchunk(t: &mut ChunkTracker, mut rest: &[u8], out: &mut Vec<u8>) -> Result<bool, String> {
    while !rest.is_empty() {
        let piece = t.next(rest).map_err(|e| e.reason().to_owned())?;
        if piece.kind == PieceKind::Data {
            out.extend_from_slice(rest.get(..piece.len).unwrap_or_default());
        }
        rest = rest.get(piece.len..).unwrap_or_default();
        if piece.kind == PieceKind::End {
            return if rest.is_empty() { Ok(true) } else { Err("bytes after the end".to_owned()) };
        }
    }
    Ok(false)
}

/// Appends the text of a chunk or an answer: its `content` of chat or `text` of completions.
fn append_text(json: &[u8], out: &mut Vec<u8>) {
    for name in [&b"\"content\":\""[..], b"\"text\":\""] {
        let Some(at) = memmem::find(json, name) else { continue };
        let quoted = json.get(at + name.len() - 1..).unwrap_or_default();
        let end = (1..quoted.len()).find(|&i| quoted[i] == b'"' && quoted[i - 1] != b'\\');
        let Some(end) = end else { continue };
        out.extend_from_slice(json::text(&quoted[..=end]).as_bytes());
        return;
    }
}

/// How many replicas the gateway has asked; 1 when the answer does not say.
fn attempts_of(head: &[u8]) -> u64 {
    const NAME: &[u8] = b"x-gateway-attempts: ";
    let digits = memmem::find(head, NAME).and_then(|at| head.get(at + NAME.len()..));
    let digits = digits.unwrap_or_default().iter().take_while(|b| b.is_ascii_digit());
    digits.fold(0, |n: u64, b| n.saturating_mul(10).saturating_add(u64::from(b - b'0'))).max(1)
}
