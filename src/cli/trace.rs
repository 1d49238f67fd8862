//! Reads a recorded trace from a file, for the planner and the load generator.

use std::io::Read;
use std::path::Path;

use crate::plan::Trace;

/// Largest decompressed trace.
const TRACE_BYTES_MAX: u64 = 4 << 30;

/// The trace in a file of JSON lines, decompressed if it is gzip.
pub(super) fn read(path: &Path) -> Result<Trace, String> {
    let told = |error: String| format!("{}: {error}", path.display());
    text(path).and_then(|text| Trace::parse(&text)).map_err(told)
}

fn text(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return String::from_utf8(bytes).map_err(|_| "is not text".to_owned());
    }
    let mut text = String::new();
    let decoder = flate2::read::MultiGzDecoder::new(bytes.as_slice());
    decoder.take(TRACE_BYTES_MAX).read_to_string(&mut text).map_err(|e| e.to_string())?;
    Ok(text)
}
