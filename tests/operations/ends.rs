//! Ctrl-C ends every command cleanly: with a word and a code, nothing left behind.

use std::process::{Command, Stdio};

use crate::common::eventually;
use crate::service::signal;

/// Does the process have a handler of its own for SIGINT?
fn hears(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (2 - 1) != 0)
}

#[test]
fn a_command_that_is_interrupted_says_so_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let replay = ["plan", "replay", "--workload", "mix", "--rate", "300", "--seconds", "3000"];
    let orders: [&[&str]; 3] = [&["demo", "--seconds", "60"], &replay, &["usage", "sum", "-"]];
    for (order, name) in orders.iter().flat_map(|order| [(order, "INT"), (order, "TERM")]) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_expedite"))
            .args(*order)
            .env("TMPDIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("expedite");
        let input = child.stdin.take();
        let entries = || std::fs::read_dir(folder.path()).expect("folder").count();
        let begun = || hears(child.id()) && (order[0] != "demo" || entries() > 0);
        eventually("it is at work", begun);
        signal(child.id(), name);
        let output = child.wait_with_output().expect("its end");
        drop(input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{order:?} {name}: {} {said}", output.status);
        assert!(said.contains("interrupted"), "{order:?} {name}: {said}");
        assert_eq!(entries(), 0, "{order:?} {name}");
    }
}
