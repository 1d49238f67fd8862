//! `expedite plan` as its users run it.

#[path = "support/command.rs"]
mod command;

use std::io::Write;
use std::path::Path;
use std::process::Output;

use expedite::plan::presets::Preset;
use expedite::plan::shapes::Shape;
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
fn settings_of_the_engines_change_what_is_found() {
    let of = |args: &[&str]| lines(&replay(&[args, &["--json"]].concat())).remove(0);
    let number = |told: &Value, name: &str| told[name].as_f64().unwrap();
    let plain = of(&[]);
    // A step holds no more tokens, so that none takes as long, and prompts take more of them.
    let small = of(&["--batch-tokens", "256"]);
    assert!(number(&small, "gap_p99_ms") < number(&plain, "gap_p99_ms"), "{small} {plain}");
    assert!(number(&small, "ttft_p99_ms") > number(&plain, "ttft_p99_ms"), "{small} {plain}");
    // Larger blocks: fewer tokens are found again, and more room is left empty in the last ones.
    let large = of(&["--block-size", "256"]);
    assert!(number(&large, "hit_ratio") < number(&plain, "hit_ratio"), "{large} {plain}");
    assert!(number(&large, "kv_empty_ratio") > 2.0 * number(&plain, "kv_empty_ratio"));
    // Little memory: engines take blocks away, and less often where some are kept free.
    let bare = of(&["--blocks", "900"]);
    let kept = of(&["--blocks", "900", "--headroom", "0.3"]);
    assert!(number(&bare, "preemptions") > number(&kept, "preemptions"), "{bare} {kept}");
    assert!(number(&bare, "kv_used_p95") > number(&kept, "kv_used_p95"), "{bare} {kept}");
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
    let wrong: [(&[&str], &str); 12] = [
        (&["--policy", "best"], "none of: cost"),
        (&["--block-size", "24"], "a multiple of 16"),
        (&["--batch-tokens", "0"], "--batch-tokens"),
        (&["--headroom", "1"], "from 0 to 0.9"),
        (&["--blocks", "100"], "exceeds a replica's 1600"),
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

/// The cells of each table of a page, row by row.
fn page_tables(page: &str) -> Vec<Vec<Vec<String>>> {
    let cell = |cell: &str| {
        let text = cell.split_once('>').unwrap().1.split("</td>").next().unwrap();
        let text = text.rsplit_once("</span>").map_or(text, |swatch| swatch.1);
        let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")];
        marks.iter().fold(text.to_owned(), |text, (mark, plain)| text.replace(mark, plain))
    };
    let row = |row: &str| row.split("<td").skip(1).map(cell).collect();
    let table = |table: &str| {
        let body = table.split("</table>").next().unwrap().split("<tbody>").nth(1).unwrap();
        body.split("<tr>").skip(1).map(row).collect()
    };
    page.split("<table>").skip(1).map(table).collect()
}

/// Whether a page shows what the JSON has, to its last digit.
fn is_shown(cell: &str, value: &Value) -> bool {
    match value {
        Value::Null => cell == "-",
        Value::String(words) => cell == words,
        value => cell.replace(',', "").parse().ok() == value.as_f64(),
    }
}

#[test]
fn pages_of_the_calculators_have_the_numbers_of_their_json_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let few = ["--hit", "0,0.5", "--replicas", "2", "--seconds", "8", "--output-tokens", "40"];
    let calls: [&[&str]; 6] = [
        &BLUEPRINT[..7],
        &[&["capacity"], &few[..]].concat(),
        &["capacity", "--model", "llama-3-70b", "--gpus", "8", "--no-replay"],
        &["cost", "--tokens-day=1e9", "--gpu-hour=3", "--replica-tps=2000"],
        &["cost", "--documents"],
        &["pd", "--slo-ttft-ms", "800", "--slo-tpot-ms", "15"],
    ];
    for call in calls {
        let told = sheet(&[call, &["--html", &page]].concat());
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("<svg") && page.contains("device-width"), "{call:?}");
        assert!(!page.contains("<script") && !page.contains("http"), "{call:?}");
        let mut expected: Vec<Vec<Vec<&Value>>> = Vec::new();
        for figures in ["inputs", "results"].map(|name| told[name].as_object().unwrap()) {
            let rows: Vec<_> = figures.values().map(|figure| vec![&figure["value"]]).collect();
            expected.extend((!rows.is_empty()).then_some(rows));
        }
        for table in told["tables"].as_object().unwrap().values() {
            let row = |row: &'_ Value| row.as_object().unwrap().len();
            assert!(table.as_array().unwrap().iter().all(|one| row(one) == row(&table[0])));
            let rows = table.as_array().unwrap().iter();
            expected.push(rows.map(|row| row.as_object().unwrap().values().collect()).collect());
        }
        let shown = page_tables(&page);
        assert_eq!(shown.len(), expected.len(), "{call:?}");
        let mut numbers = 0;
        for (rows, values) in shown.iter().zip(&expected) {
            assert_eq!(rows.len(), values.len(), "{call:?}: {rows:?}");
            for (row, values) in rows.iter().zip(values) {
                // Of an input or a result: label, value, unit, how.
                let cells = if values.len() == 1 { &row[1..2] } else { &row[..] };
                assert_eq!(cells.len(), values.len(), "{call:?}: {row:?}");
                for (cell, value) in cells.iter().zip(values) {
                    assert!(is_shown(cell, value), "{call:?}: {cell:?} for {value}");
                    numbers += usize::from(value.is_number());
                }
            }
        }
        assert!(numbers >= 12, "{call:?}: {numbers}");
    }
}

#[test]
fn the_page_of_a_replay_has_the_numbers_of_its_json() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let told = lines(&replay(&["--policy", "cost,round_robin", "--json", "--html", &page]));
    let page = std::fs::read_to_string(&page).unwrap();
    let tables = page_tables(&page);
    assert_eq!(tables[0].len(), told.len());
    // Column, name in the JSON, and how much a unit of the page is there.
    let columns = [
        (1, "offered_rps", 1.0),
        (2, "good_rps", 1.0),
        (4, "ttft_p50_ms", 1.0),
        (5, "ttft_p99_ms", 1.0),
        (6, "ttft_ok_ratio", 0.01),
        (7, "tpot_p50_ms", 1.0),
        (8, "tpot_p95_ms", 1.0),
        (9, "tpot_ok_ratio", 0.01),
        (10, "hit_ratio", 0.01),
        (11, "shed", 1.0),
        (13, "kv_used_mean", 0.01),
        (14, "preemptions", 1.0),
    ];
    for (row, told) in tables[0].iter().zip(&told) {
        assert_eq!((&row[0], row.len()), (&told["policy"].as_str().unwrap().to_owned(), 15));
        for (at, name, unit) in columns {
            let cell = row[at].trim_end_matches(" %");
            let digits = cell.split_once('.').map_or(0, |(_, digits)| digits.len() as i32);
            let shown: f64 = cell.parse().unwrap();
            let apart = (shown * unit - told[name].as_f64().unwrap()).abs();
            // Half of the last digit, and half of the fourth that the JSON keeps.
            assert!(apart <= unit * 0.5 * 0.1f64.powi(digits) + 5.1e-5, "{name}: {cell} {told}");
        }
    }
}

#[test]
fn presets_are_what_was_published_of_the_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let published: Value = serde_json::from_str(&text).unwrap();
        let preset = Preset::of_name(&name).unwrap_or_else(|| panic!("no preset is {name}"));
        let part: Value = serde_json::from_str(preset.config).unwrap();
        for (key, value) in part.as_object().unwrap() {
            // Of how it is quantized the method alone counts.
            let method = |value: &Value| value.get("quant_method").cloned();
            let same = method(value)
                .map_or(published[key] == *value, |of| method(&published[key]) == Some(of));
            assert!(same, "{name}: {key} is {}", published[key]);
        }
        // What the preset leaves out changes nothing.
        assert_eq!(Shape::parse(&name, &text), preset.shape(), "{name}");
        checked += 1;
    }
    assert_eq!(checked, 9);
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
    let wrong: [(&[&str], &str); 13] = [
        (&["--output-share", "1.5"], "between 0 and 1"),
        (&["--output-share", "nan"], "between 0 and 1"),
        (&["--api-input=-1"], "--api-input"),
        (&["--replicas", "0"], "--replicas"),
        (&["--replicas", "1", "--months", "0"], "between 1 and 120"),
        (&["--replicas", "1", "--growth=-1"], "between -1 and 10"),
        (&["--replicas", "1", "--other-month", "inf"], "--other-month"),
        (&["--replica-tps", "0"], "above 0"),
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
