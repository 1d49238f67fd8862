//! A plain HTTP/1.1 client over `std` sockets, for tests that look at bytes: what arrived, in
//! which pieces, and how the connection ended.

#![allow(dead_code)]

pub(crate) mod engine;
pub(crate) mod faults;
pub(crate) mod gateway;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No test waits longer for a byte.
const WAIT: Duration = Duration::from_secs(20);

/// A response taken apart.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// Status line and field lines, without line ends.
    pub(crate) head: Vec<String>,
    /// Payload of each chunk, or the whole body.
    pub(crate) pieces: Vec<Vec<u8>>,
    /// The last chunk came, or all of `content-length`.
    pub(crate) complete: bool,
}

impl Response {
    /// From all bytes of a connection or a capture.
    pub(crate) fn parse(bytes: &[u8]) -> Response {
        let mut response = Response::default();
        let Some(end) = find(bytes, b"\r\n\r\n") else { return response };
        let head = String::from_utf8_lossy(&bytes[..end]);
        response.head = head.split("\r\n").map(str::to_owned).collect();
        if response.head[0].contains(" 100 ") {
            return Response::parse(&bytes[end + 4..]);
        }
        let body = &bytes[end + 4..];
        if response.field("transfer-encoding").is_some() {
            response.chunks(body);
        } else {
            let length = response.field("content-length").and_then(|v| v.parse().ok());
            response.complete = length.is_none_or(|n: usize| body.len() >= n);
            response.pieces.push(body[..length.unwrap_or(body.len()).min(body.len())].to_vec());
        }
        response
    }

    fn chunks(&mut self, mut rest: &[u8]) {
        while let Some(line) = find(rest, b"\r\n") {
            let size = String::from_utf8_lossy(&rest[..line]).into_owned();
            let Ok(size) = usize::from_str_radix(&size, 16) else { return };
            if size == 0 {
                self.complete = rest[line + 2..].starts_with(b"\r\n");
                return;
            }
            if rest.len() < line + 4 + size {
                return;
            }
            self.pieces.push(rest[line + 2..line + 2 + size].to_vec());
            rest = &rest[line + 4 + size..];
        }
    }

    pub(crate) fn status(&self) -> u16 {
        let line = self.head.first().map_or("", String::as_str);
        line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body()).into_owned()
    }

    /// The JSON of a whole body.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body()).expect("JSON body")
    }

    /// The data of every event but `[DONE]`, as JSON.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).expect("event")).collect()
    }

    /// The words of a chat or completion answer.
    pub(crate) fn words(&self) -> String {
        let mut words = String::new();
        for event in self.events() {
            let choice = &event["choices"][0];
            words += choice["delta"]["content"].as_str().unwrap_or_default();
            words += choice["text"].as_str().unwrap_or_default();
        }
        words
    }
}

pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|w| w == needle)
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Fin,
    Reset,
}

/// One connection.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(WAIT)).expect("timeout");
        Client(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("send");
    }

    /// Reads until the response is complete or the connection over.
    pub(crate) fn response(&mut self) -> Response {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let response = Response::parse(&bytes);
            let no_body = response.field("allow") == Some("GET") && response.status() == 405;
            if response.complete || (no_body && find(&bytes, b"\r\n\r\n").is_some()) {
                return response;
            }
            match self.read(&mut piece) {
                Ok(0) => return response,
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return response,
                Err(e) => panic!("after {} bytes: {e}", bytes.len()),
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Reads what is there. A socket with a time limit is not restarted after a signal.
    pub(crate) fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(piece) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Reads at least `n` bytes.
    pub(crate) fn read_some(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.0.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    /// Reads to the end of the connection.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, Ended) {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.read(&mut piece) {
                Ok(0) => return (bytes, Ended::Fin),
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return (bytes, Ended::Reset),
                Err(e) => panic!("after {} bytes: {e}", bytes.len()),
            }
        }
    }
}

/// A POST of JSON with more field lines (each with CRLF).
pub(crate) fn post_with(path: &str, fields: &str, json: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: sim\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{fields}\r\n{json}",
        json.len()
    )
    .into_bytes()
}

/// A POST of JSON.
pub(crate) fn post(path: &str, json: &str) -> Vec<u8> {
    post_with(path, "", json)
}

/// A GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: sim\r\n\r\n").into_bytes()
}

/// A chat of one message; `more` are further members, each with a comma before it.
pub(crate) fn chat(content: &str, more: &str) -> Vec<u8> {
    let json = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]{more}}}");
    post("/v1/chat/completions", &json)
}

/// One request on a connection of its own.
pub(crate) fn ask(addr: SocketAddr, request: &[u8]) -> Response {
    let mut client = Client::connect(addr);
    client.send(request);
    client.response()
}

/// Tries again until it holds; the longest wait is that of a test's patience, not a bound.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never came true: {what}");
}
