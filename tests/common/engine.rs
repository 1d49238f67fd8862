//! A scripted engine: reads whole requests, hands each to a closure, which writes what it likes.
//!
//! `std` sockets, one thread a connection. Probes (`GET /health`, `/v1/models`, `/metrics`,
//! `/version`, `/kv_event_sources` and a sample for `POST /tokenize`) are answered here and not
//! counted; the list names `base` and an adapter of its own, `adapter-PORT`.

use std::io::{Error, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::find;

/// The gateway's own question, which no client asks.
fn is_sample(received: &Received) -> bool {
    received.body.starts_with(b"{\"prompt\":\"Summarize the report below in three short")
}

/// A request as it arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    /// Request line and field lines, with all line ends.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Which connection brought it, counted from 0; probes count too.
    pub(crate) connection: usize,
}

impl Received {
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Values of a field, by its name in any case.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        let lines = self.head.split("\r\n").filter_map(|line| line.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
    Reset,
}

/// A fake engine; its listener goes with it, and what its connections bring then is not answered.
pub(crate) struct Engine {
    pub(crate) addr: SocketAddr,
    requests: Arc<Mutex<Vec<Received>>>,
    over: Arc<AtomicBool>,
}

impl Engine {
    /// `answer` runs on the connection's thread; an error of the socket ends that connection.
    pub(crate) fn start(
        answer: impl Fn(&Received, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
    ) -> Engine {
        Engine::start_on((Ipv4Addr::LOCALHOST, 0).into(), answer)
    }

    /// As [`Engine::start`], on this address.
    pub(crate) fn start_on(
        addr: SocketAddr,
        answer: impl Fn(&Received, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
    ) -> Engine {
        Engine::listen(addr, answer, |_| json(404, ""))
    }

    fn listen(
        addr: SocketAddr,
        answer: impl Fn(&Received, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
        told: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Engine {
        let listener = TcpListener::bind(addr).expect("bind");
        let addr = listener.local_addr().expect("address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let (log, ended) = (Arc::clone(&requests), Arc::clone(&over));
        let (answer, told) = (Arc::new(answer), Arc::new(told));
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                if ended.load(SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let (told, ended) = (Arc::clone(&told), Arc::clone(&ended));
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    let of = (n, addr, &*ended);
                    let _ = serve(of, &mut stream, &log, &*answer, &*told);
                });
            }
        });
        Engine { addr, requests, over }
    }

    /// As [`Engine::start`], with this whole answer to `GET /metrics`.
    pub(crate) fn start_telling(
        answer: impl Fn(&Received, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
        metrics: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> Engine {
        Engine::start_with(answer, move |path| match path {
            "/metrics" => metrics(),
            _ => json(404, ""),
        })
    }

    /// As [`Engine::start`], with these whole answers to `GET /metrics`, `/version` and
    /// `/kv_event_sources`, by path; a 200 for `/v1/models` has that list repeat the request's id.
    pub(crate) fn start_with(
        answer: impl Fn(&Received, &mut TcpStream) -> Result<After, Error> + Send + Sync + 'static,
        told: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Engine {
        Engine::listen((Ipv4Addr::LOCALHOST, 0).into(), answer, told)
    }

    /// An engine that answers every request with these bytes.
    pub(crate) fn always(bytes: impl Into<Vec<u8>>) -> Engine {
        let bytes = bytes.into();
        Engine::start(move |_, wire| wire.write_all(&bytes).map(|()| After::Keep))
    }

    /// All requests so far but for probes, each as soon as it was read to its end.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.requests.lock().expect("lock").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().expect("lock").len()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

fn serve(
    (connection, addr, over): (usize, SocketAddr, &AtomicBool),
    wire: &mut TcpStream,
    log: &Mutex<Vec<Received>>,
    answer: &dyn Fn(&Received, &mut TcpStream) -> Result<After, Error>,
    told: &dyn Fn(&str) -> Vec<u8>,
) -> Result<(), Error> {
    let mut inbox = Vec::new();
    while let Some(mut received) = read_request(wire, &mut inbox)? {
        if over.load(SeqCst) {
            return Ok(());
        }
        received.connection = connection;
        let probe = received.head.starts_with("GET ");
        let after = match received.path() {
            "/health" if probe => wire.write_all(&json(200, "")).map(|()| After::Keep),
            path @ "/v1/models" if probe => {
                let repeats = told(path).starts_with(b"HTTP/1.1 200");
                let id = received.fields("x-request-id").first().copied().filter(|_| repeats);
                let list = models(addr);
                wire.write_all(&id.map_or(list.clone(), |id| under(id, &list)))?;
                Ok(After::Keep)
            }
            path @ ("/metrics" | "/version" | "/kv_event_sources") if probe => {
                wire.write_all(&told(path)).map(|()| After::Keep)
            }
            "/tokenize" if is_sample(&received) => {
                wire.write_all(&json(404, "")).map(|()| After::Keep)
            }
            _ => {
                log.lock().expect("lock").push(received.clone());
                answer(&received, wire)
            }
        };
        match after? {
            After::Keep => {}
            After::Close => break,
            After::Reset => {
                let linger = std::time::Duration::ZERO;
                return socket2::SockRef::from(&*wire).set_linger(Some(linger));
            }
        }
    }
    wire.shutdown(Shutdown::Write)?;
    // Closing with bytes unread would reset what is still on its way.
    while wire.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

/// The gateway always sends `content-length`.
fn read_request(wire: &mut TcpStream, inbox: &mut Vec<u8>) -> Result<Option<Received>, Error> {
    let mut piece = [0; 16 * 1024];
    loop {
        if let Some(end) = find(inbox, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&inbox[..end + 4]).into_owned();
            let mut received = Received { head, ..Received::default() };
            let length =
                received.fields("content-length").first().map_or(0, |v| v.parse().unwrap());
            if inbox.len() >= end + 4 + length {
                received.body = inbox[end + 4..end + 4 + length].to_vec();
                inbox.drain(..end + 4 + length);
                return Ok(Some(received));
            }
        }
        match wire.read(&mut piece)? {
            0 => return Ok(None),
            n => inbox.extend_from_slice(&piece[..n]),
        }
    }
}

/// An answer that begins with `bytes`, under the id of this request.
pub(crate) fn under(id: &str, bytes: &[u8]) -> Vec<u8> {
    let line = find(bytes, b"\r\n").expect("a line") + 2;
    [&bytes[..line], format!("x-request-id: {id}\r\n").as_bytes(), &bytes[line..]].concat()
}

fn models(addr: SocketAddr) -> Vec<u8> {
    let adapter = adapter(addr);
    let entry = |id: &str, parent: &str| {
        format!("{{\"id\":\"{id}\",\"object\":\"model\",\"root\":\"{id}\",\"parent\":{parent}}}")
    };
    let list = format!("{},{}", entry("base", "null"), entry(&adapter, "\"base\""));
    json(200, &format!("{{\"object\":\"list\",\"data\":[{list}]}}"))
}

/// Name of the adapter that only the engine at `addr` lists.
pub(crate) fn adapter(addr: SocketAddr) -> String {
    format!("adapter-{}", addr.port())
}

/// A whole answer of JSON.
pub(crate) fn json(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The head of a stream as vLLM sends it.
pub(crate) const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The last chunk.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// One chunk.
pub(crate) fn chunk(payload: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat()
}

/// A chat event with this text.
pub(crate) fn event(content: &str) -> Vec<u8> {
    let content = serde_json::Value::from(content);
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"base\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":{content}}},\
         \"finish_reason\":null}}]}}\n\n"
    )
    .into_bytes()
}

/// The usage event of a chat stream.
pub(crate) fn usage_event(prompt: u64, completion: u64) -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"base\",\
         \"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\
         \"completion_tokens\":{completion}}}}}\n\n",
        prompt + completion
    )
    .into_bytes()
}

/// The end of an event stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";
