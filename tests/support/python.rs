//! A Python script of the tests, in the environment that `scripts/venv` makes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, thread};

/// The interpreter; `None`, said aloud, where there is no such environment and nobody insists on it
/// by `CI=true` or `EXPEDITE_FULL=1`.
pub(crate) fn interpreter() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/python/bin/python");
    if python.exists() {
        return Some(python);
    }
    let required = env::var("CI").is_ok_and(|value| value == "true")
        || env::var("EXPEDITE_FULL").is_ok_and(|value| value == "1");
    assert!(!required, "run scripts/venv first");
    println!("skipped: no .cache/python; run scripts/venv");
    None
}

/// The lines that a script prints of these lines. It must end well.
pub(crate) fn ask(python: &Path, script: &str, lines: String) -> Vec<String> {
    let mut child = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python starts");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("python ends");
    writer.join().expect("no panic").expect("python reads all");
    assert!(output.status.success(), "{script}: {}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// Bytes as the scripts take them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
