//! `expedite plan` as its users run it.

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

fn plan(args: &[&str]) -> Output {
    command::expedite(Path::new("."), &[&["plan"], args].concat(), "")
}

/// The sheet of a calculator that succeeds.
fn sheet(args: &[&str]) -> Value {
    let output = plan(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const BLUEPRINT: [&str; 8] =
    ["size", "--model", "llama-3-70b", "--gpus", "8", "--weights=fp8", "--kv-cache=fp8", "--json"];

#[test]
fn size_reproduces_the_blueprint_and_says_what_is_honest() {
    let told = sheet(&BLUEPRINT[..7]);
    let rows = told["tables"]["reckonings"].as_array().unwrap();
    let row = |i: usize| {
        ["memory_gb", "weights_gb", "kv_sequence_gb", "sequences"].map(|key| rows[i][key].clone())
    };
    assert_eq!(row(0), [640.0.into(), 84.0.into(), 1.34.into(), Value::from(414)]);
    assert_eq!(row(1), [576.0.into(), 84.0.into(), 1.34.into(), Value::from(367)]);
    // The engine's own reckoning is the last row, and the result.
    let sequences = &told["results"]["sequences"]["value"];
    assert_eq!(&rows.last().unwrap()["sequences"], sequences);
    let text = plan(&BLUEPRINT[..7]).stdout;
    let text = String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ");
    for told in ["84.0 1.34 414", "84.0 1.34 367", "leaves 10 % alone", "the honest one"] {
        assert!(text.contains(told), "{told}: {text}");
    }
}

#[test]
fn size_reads_a_config_and_warns_of_a_prompt_that_fills_a_replica() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let shape = r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
        "vocab_size": 128256, "max_position_embeddings": 8192}"#;
    std::fs::write(&config, shape).unwrap();
    let config = config.display().to_string();
    let cards = ["--gpu", "a100-80g", "--gpus", "2", "--longest", "36000"];
    let of = |model: [&str; 2]| sheet(&[&["size"], &model[..], &cards].concat());
    let (named, read) = (of(["--model", "llama-3-70b"]), of(["--model-config", &config]));
    assert_eq!(named["results"], read["results"]);
    let warning = read["warnings"][0].as_str().unwrap();
    assert!(warning.contains("36000 tokens needs more than the replica"), "{warning}");
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let output = plan(&["size", "--model-config", &config]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("`hidden_size` is missing"), "{told}");
}

#[test]
fn pages_of_the_calculators_hold_the_numbers_of_their_json() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let few = ["--hit", "0,0.5", "--replicas", "2", "--seconds", "8", "--output-tokens", "40"];
    let calls: [&[&str]; 5] = [
        &BLUEPRINT[..7],
        &[&["capacity"], &few[..]].concat(),
        &["cost", "--tokens-day=1e9", "--gpu-hour=3", "--replica-tps=2000"],
        &["cost", "--documents"],
        &["pd", "--slo-ttft-ms", "800", "--slo-tpot-ms", "15"],
    ];
    for call in calls {
        let told = sheet(&[call, &["--html", &page]].concat());
        let page = std::fs::read_to_string(&page).unwrap().replace(',', "");
        assert!(page.contains("<svg") && page.contains("device-width"), "{call:?}");
        assert!(!page.contains("<script") && !page.contains("http"), "{call:?}");
        let mut numbers = 0;
        for table in told["tables"].as_object().unwrap().values() {
            for value in table.as_array().unwrap().iter().flat_map(|r| r.as_object().unwrap()) {
                let Some(number) = value.1.as_f64() else { continue };
                numbers += 1;
                let digits = (0..=4).find(|&d| page.contains(&format!("<td>{number:.d$}</td>")));
                assert!(digits.is_some(), "{call:?}: {value:?}");
            }
        }
        assert!(numbers >= 6, "{call:?}: {numbers}");
    }
}

#[test]
fn capacity_rises_with_hits_by_fluid_and_by_replay() {
    let small = ["--replicas", "2", "--seconds", "15", "--output-tokens", "60", "--hit", "0,0.9"];
    let told = sheet(&[&["capacity"], &small[..]].concat());
    let rows = &told["tables"]["by_hit_ratio"];
    for column in ["fluid_rps", "replay_rps", "hit_ratio"] {
        let at = |row: usize| rows[row][column].as_f64().unwrap();
        assert!(at(1) > at(0), "{column}: {rows}");
    }
    let model = ["--model", "qwen3-8b", "--weights", "fp8", "--no-replay"];
    let told = sheet(&[&["capacity"], &model[..]].concat());
    assert!(told["inputs"]["engine"]["source"].as_str().unwrap().contains("estimate"));
    assert!(told["tables"]["by_hit_ratio"][0]["replay_rps"].is_null());
}

#[test]
fn cost_finds_the_break_even_and_refuses_what_cannot_be() {
    let year = ["cost", "--tokens-day", "100e6", "--gpu-hour", "4.552", "--gpus", "8"];
    let told = sheet(&[&year[..], &["--replicas", "1"]].concat());
    let result = |key: &str| told["results"][key]["value"].as_f64().unwrap();
    assert!((result("break_even_tokens_day") / 199.8e6 - 1.0).abs() < 0.001);
    assert!((result("api_year") - 159_687.5).abs() < 1.0);
    assert_eq!(told["tables"]["months"].as_array().unwrap().len(), 12);
    let wrong: [(&[&str], &str); 6] = [
        (&["--output-share", "1.5"], "between 0 and 1"),
        (&["--replicas", "1", "--api-input", "0", "--api-output", "0"], "free of charge"),
        (&["--replicas", "1", "--replica-tps", "100"], "it takes 3"),
        (&["--replica-tps", "1e9"], "beyond any GPU"),
        (&["--replicas", "1", "--peak", "0.5"], "below the mean"),
        (&[], "--replica-tps"),
    ];
    for (args, reason) in wrong {
        let output = plan(&[&year[..], args].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(reason) && output.stdout.is_empty(), "{args:?}: {told}");
    }
}

#[test]
fn what_is_said_of_a_model_needs_one() {
    let lone: [&[&str]; 3] = [&["capacity", "--gpus", "4"], &["pd", "--weights", "fp8"], &["size"]];
    for args in lone {
        let output = plan(args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains("--model"), "{args:?}: {told}");
    }
    let both = ["pd", "--engine", "a100-8b", "--model", "qwen3-8b"];
    assert_eq!(plan(&both).status.code(), Some(2));
}

#[test]
fn pd_weighs_the_link_against_the_prefill() {
    let of =
        |gbit: &str| sheet(&["pd", "--slo-ttft-ms=800", "--slo-tpot-ms=15", "--link-gbit", gbit]);
    let result = |told: &Value, key: &str| told["results"][key]["value"].clone();
    let (fast, slow) = (of("400"), of("3"));
    assert_eq!(result(&fast, "verdict"), "pays");
    assert_eq!(result(&slow, "verdict"), "does not pay");
    assert_eq!(result(&fast, "kv_mb"), 536.9);
    // 536.9 MB over 0.8 x 50 GB/s, and 5 ms.
    assert_eq!(result(&fast, "transfer_ms"), 18.4);
    assert!(slow["warnings"][0].as_str().unwrap().contains("% of the prefill"), "{slow}");
}
