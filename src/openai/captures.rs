//! Recorded answers of a real vLLM 0.32.0, for tests: `tests/data/vllm/NAME.resp`.

use std::path::PathBuf;

/// A recorded response.
pub(crate) struct Capture {
    /// The file's name without its extension.
    pub(crate) name: String,
    /// It is an event stream.
    pub(crate) stream: bool,
    /// The payload, without head and chunk framing.
    pub(crate) body: Vec<u8>,
}

/// Reads one capture.
pub(crate) fn read(name: &str) -> Capture {
    let path = folder().join(format!("{name}.resp"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rest = &bytes[..];
    loop {
        let end = memchr::memmem::find(rest, b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        rest = &rest[end + 4..];
        if head.starts_with("http/1.1 100") {
            continue;
        }
        let body =
            if head.contains("transfer-encoding: chunked") { unchunk(rest) } else { rest.to_vec() };
        return Capture { name: name.to_owned(), stream: head.contains("text/event-stream"), body };
    }
}

/// All captures.
pub(crate) fn all() -> Vec<Capture> {
    let mut names: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_suffix(".resp").map(str::to_owned)
        })
        .collect();
    names.sort();
    names.iter().map(|name| read(name)).collect()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm")
}

/// Joins the chunks that arrived; a recording may stop anywhere.
fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        let size = size.expect("a chunk size").min(rest.len() - end - 2);
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    body
}
