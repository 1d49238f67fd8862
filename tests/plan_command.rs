//! `expedite plan replay` as its users run it.

#[path = "support/command.rs"]
mod command;

use std::io::Write;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

/// A small fleet, so that a run takes a moment.
const SMALL: [&str; 8] = ["plan", "replay", "--rate", "20", "--replicas", "4", "--seconds", "8"];

fn replay(args: &[&str]) -> Output {
    command::expedite(Path::new("."), &[&SMALL, args].concat(), "")
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_policy_is_one_line_of_json_in_the_order_asked() {
    let told = lines(&replay(&["--policy", "lmetric,cost,round_robin", "--json"]));
    let names: Vec<&str> = told.iter().map(|line| line["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["lmetric", "cost", "round_robin"]);
    let figures = [
        "offered_rps",
        "good_rps",
        "ttft_p50_ms",
        "ttft_p99_ms",
        "tpot_p50_ms",
        "tpot_p95_ms",
        "hit_ratio",
        "shed",
        "preemptions",
    ];
    for line in &told {
        assert!(figures.iter().all(|name| line[name].is_number()), "{line}");
        assert_eq!(line["capacity_rps"], Value::Null);
        assert_eq!(line["completed"], line["requests"]);
        // Nothing is faster than the gateway, the network and one step of the engine.
        assert!(line["ttft_p50_ms"].as_f64().unwrap() > 19.0, "{line}");
    }
    assert!(told[1]["hit_ratio"].as_f64() > told[2]["hit_ratio"].as_f64());
}

#[test]
fn the_same_seed_is_the_same_to_the_byte() {
    let args = ["--policy", "all", "--json", "--gateways", "2", "--gossip-ms", "100"];
    let run = |seed| replay(&[&args[..], &["--seed", seed]].concat()).stdout;
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
}

#[test]
fn capacity_is_found_and_the_page_holds_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let page_name = page.display().to_string();
    let told = lines(&replay(&["--json", "--capacity", "--html", &page_name]));
    let capacity = told[0]["capacity_rps"].as_f64().unwrap();
    assert!((20.0..60.0).contains(&capacity), "{capacity} requests/s on four replicas");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"));
    assert!(page.contains(&format!("<td>{capacity:.1}</td>")));
    assert!(!page.contains("<script") && !page.contains("http"), "nothing comes from elsewhere");
}

#[test]
fn a_compressed_trace_runs_at_another_rate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    for i in 0..60 {
        writeln!(
            gzip,
            "{{\"timestamp\": {}, \"input_length\": 1200, \"output_length\": 20, \
             \"hash_ids\": [0, 1, {}]}}",
            i * 1000,
            i + 2
        )
        .unwrap();
    }
    gzip.finish().unwrap();
    let path = path.display().to_string();
    let args = ["plan", "replay", "--workload", &path, "--rate", "4", "--replicas", "2", "--json"];
    let told = lines(&command::expedite(Path::new("."), &args, ""));
    assert_eq!(told[0]["requests"], 60);
    assert!((told[0]["offered_rps"].as_f64().unwrap() - 4.0).abs() < 0.1, "{}", told[0]);
    // The first two names are in all of them: 64 of 75 blocks.
    let hit = told[0]["hit_ratio"].as_f64().unwrap();
    assert!((0.75..0.86).contains(&hit), "{hit}");
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let wrong: [(&[&str], &str); 8] = [
        (&["--policy", "best"], "none of: cost"),
        (&["--fail", "1,2"], "T,REPLICA,DOWN"),
        (&["--fail", "1,4,2"], "replica 4 is not there"),
        (&["--slow", "0,0"], "factor"),
        (&["--adapters", "9"], "a100-8b-lora"),
        (&["--warmup", "8"], "nothing to count"),
        (&["--hot", "1.5"], "between 0 and 1"),
        (&["--workload", "no-such-file"], "no-such-file"),
    ];
    for (args, reason) in wrong {
        let output = replay(args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(reason) && output.stdout.is_empty(), "{args:?}: {told}");
    }
    let output = command::expedite(Path::new("."), &["plan", "replay"], "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--rate is missing"));
}
