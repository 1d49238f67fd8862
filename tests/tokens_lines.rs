//! `expedite tokens` as its user meets it: what it counts, and what it says of what it cannot.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::path::Path;
use std::process::Output;

use command::expedite;
use serde_json::Value;

/// Runs `expedite tokens` in `folder` with `input` on standard input.
fn tokens(folder: &Path, args: &[&str], input: &str) -> Output {
    expedite(folder, &[&["tokens"], args].concat(), input)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    tiny_tokenizer::write(&folder.path().join("tiny"));
    folder
}

#[test]
fn a_bad_line_is_named_by_its_number_in_the_file_and_the_others_are_counted() {
    let folder = folder();
    let lines = "{\"prompt\":\"one two\"}\n\n   \n{\"prompt\":\nnot json\n{\"prompt\":[5,6,7]}\n";
    let args = ["--tokenizer", "tiny", "--chat", "--lines", "--json"];
    let output = tokens(folder.path(), &args, lines);
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<&str> = text(&output.stderr).lines().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("expedite: line 4: the body is not valid JSON"), "{}", told[0]);
    assert!(told[1].starts_with("expedite: line 5: the body is not valid JSON"), "{}", told[1]);
    let read = |line| serde_json::from_str::<Value>(line).unwrap();
    let counted: Vec<Value> = text(&output.stdout).lines().map(read).collect();
    assert_eq!(counted.len(), 4, "a line of output for each that holds anything");
    assert!(counted[0]["count"].as_u64() > Some(1) && counted[1]["error"].is_string());
    assert_eq!((&counted[3]["count"], &counted[3]["ids"]), (&3.into(), &vec![5, 6, 7].into()));
}

#[test]
fn texts_come_from_a_file_or_standard_input() {
    let folder = folder();
    std::fs::write(folder.path().join("notes.txt"), "the weather in the city").unwrap();
    let of_file = tokens(folder.path(), &["--tokenizer", "tiny", "notes.txt"], "");
    let piped = tokens(folder.path(), &["--tokenizer", "tiny", "-"], "the weather in the city");
    assert_eq!((of_file.status.code(), piped.status.code()), (Some(0), Some(0)));
    assert_eq!(text(&of_file.stdout), text(&piped.stdout));
    assert!(text(&of_file.stdout).ends_with(" tokens, 0 full blocks of 16 (exact)\n"));
    let empty = tokens(folder.path(), &["--tokenizer", "tiny", "--json"], "");
    assert!(text(&empty.stdout).starts_with("{\"count\":0,"));
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    std::fs::write(folder.path().join("bytes"), b"\xff\xfe").unwrap();
    std::fs::write(folder.path().join("broken.jinja"), "{% for").unwrap();
    let tiny = ["--tokenizer", "tiny"];
    for (args, code, words) in [
        (&["--tokenizer", "empty"][..], 1, "empty: tokenizer.json: No such file"),
        (&[&tiny[..], &["missing"]].concat(), 1, "cannot read missing: No such file"),
        (&[&tiny[..], &["bytes"]].concat(), 1, "cannot read bytes: "),
        (&[&tiny[..], &["--chat-template", "none.jinja"]].concat(), 1, "none.jinja: not found"),
        (&[&tiny[..], &["--chat-template", "broken.jinja"]].concat(), 1, "syntax error"),
        (&[&tiny[..], &["--block-size", "0"]].concat(), 2, "--block-size"),
        (&[], 2, "--tokenizer"),
    ] {
        let output = tokens(folder.path(), args, "");
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output.stderr).contains(words), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
