//! `expedite tokens` and `expedite check` as their users run them.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

fn expedite(args: &[&str], input: &str) -> Output {
    command::expedite(Path::new("."), args, input)
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    tiny_tokenizer::write(folder.path());
    let path = folder.path().display().to_string();
    (folder, path)
}

#[test]
fn a_text_and_a_body_are_counted() {
    let (_folder, path) = folder();
    let text = "The weather in the city. ".repeat(20);
    let output = expedite(&["tokens", "--tokenizer", &path, "--json"], &text);
    assert!(output.status.success(), "{output:?}");
    let [told] = lines(&output).try_into().unwrap();
    let ids = told["ids"].as_array().unwrap();
    assert_eq!(told["count"], ids.len());
    assert_eq!(told["basis"], "exact");
    assert_eq!(told["blocks"].as_array().unwrap().len(), ids.len() / 16);
    // A longer text begins with the blocks of a shorter one.
    let more = expedite(&["tokens", "--tokenizer", &path, "--json", "-"], &format!("{text}More."));
    let [more] = lines(&more).try_into().unwrap();
    let blocks = told["blocks"].as_array().unwrap();
    assert_eq!(&more["blocks"].as_array().unwrap()[..blocks.len()], &blocks[..]);

    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let chat = expedite(&["tokens", "--tokenizer", &path, "--chat"], body);
    let shown = String::from_utf8(chat.stdout).unwrap();
    assert!(shown.ends_with(" tokens, 0 full blocks of 16 (exact)\n"), "{shown}");
}

#[test]
fn each_line_is_told_apart_and_a_bad_one_fails_alone() {
    let (_folder, path) = folder();
    let bodies =
        "{\"prompt\":\"one\"}\n\n{\"prompt\":[1,2,3]}\nnot json\n{\"prompt\":[\"a\",\"b\"]}\n";
    let args = ["tokens", "--tokenizer", &path, "--chat", "--lines", "--json"];
    let output = expedite(&args, bodies);
    assert_eq!(output.status.code(), Some(1));
    let told = lines(&output);
    assert_eq!(told.len(), 4);
    assert_eq!((&told[1]["count"], &told[1]["ids"]), (&3.into(), &vec![1, 2, 3].into()));
    assert!(told[2]["error"].as_str().unwrap().contains("JSON"));
    assert_eq!(told[3]["ids"].as_array().unwrap().len(), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 4: "));
}

#[test]
fn mistakes_are_told_with_the_right_status() {
    let (_folder, path) = folder();
    let missing = expedite(&["tokens", "--tokenizer", &format!("{path}/none"), "-"], "x");
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("tokenizer.json"));
    let file = expedite(&["tokens", "--tokenizer", &path, "/nonexistent/file"], "");
    assert_eq!(file.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&file.stderr).contains("cannot read /nonexistent/file"));
    for usage in [&["tokens"][..], &["tokens", "--pool", "p", "-"], &["tokens", "--config", "x"]] {
        assert_eq!(expedite(usage, "").status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn a_pools_tokenizer_is_checked_and_used() {
    let (folder, path) = folder();
    let file = folder.path().join("gateway.toml");
    let config = |tokenizer: &str| {
        let text = format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
             tokenizer = \"{tokenizer}\"\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let file_arg = file.display().to_string();
    config(&path);
    assert!(expedite(&["check", "--config", &file_arg], "").status.success());
    let args = ["tokens", "--config", &file_arg, "--pool", "p", "--json"];
    assert_eq!(lines(&expedite(&args, "the city"))[0]["basis"], "exact");
    let args = ["tokens", "--config", &file_arg, "--pool", "other", "--json"];
    assert_eq!(expedite(&args, "x").status.code(), Some(2));
    // Not on this machine: a warning. There and not to be used: a mistake of that line.
    config("/nonexistent");
    let warned = expedite(&["check", "--config", &file_arg], "");
    assert!(warned.status.success());
    let told = String::from_utf8(warned.stderr).unwrap();
    assert!(told.contains("pool \"p\": /nonexistent is not there"), "{told}");
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().display().to_string();
    config(&path);
    let refused = expedite(&["check", "--config", &file_arg], "");
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains(&format!("{file_arg}:4: {path}: tokenizer.json")), "{told}");
}
