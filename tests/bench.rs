//! The load generator against simulated replicas: what it counts, and what it must not miss.

#[path = "support/command.rs"]
mod command;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use expedite::bench::document::{self, Facts, Step, document};
use expedite::bench::page::page;
use expedite::bench::{
    Answers, Api, Bench, Kind, Lengths, Load, Options, Probe, Report, Slo, Spacing, Target, probe,
};
use expedite::plan::Trace;
use serde_json::Value;

use expedite::sim::{self, EngineKind, Fault, Fleet, SimConfig, SimHandle, token_text};

fn fleet() -> SimHandle {
    fleet_of(EngineKind::instant())
}

fn fleet_of(engine: EngineKind) -> SimHandle {
    Fleet::start(SimConfig { ports: vec![0, 0], engine, ..SimConfig::default() }).unwrap()
}

fn target(fleet: &SimHandle, replica: usize) -> Target {
    let url = format!("http://{}/v1", fleet.addr(replica));
    let mut target = Target::from_url(&url, None).unwrap();
    target.choose_model(None, false).unwrap();
    assert_eq!(target.model, "sim-model");
    target
}

/// A few requests one after the other, every token checked.
fn few(fleet: &SimHandle) -> Options {
    Options {
        load: Load::Concurrency(1),
        requests: Some(4),
        output_tokens: Lengths::Fixed(8),
        prompt_tokens: Lengths::Fixed(20),
        timeout: Duration::from_secs(20),
        words: Some(token_text),
        ..Options::new(target(fleet, 0))
    }
}

fn run(options: Options) -> Report {
    Bench::start(options).unwrap().finish().unwrap()
}

fn kinds(report: &Report) -> Vec<(Kind, u64)> {
    report.target.failures.iter().map(|(kind, (count, _))| (*kind, *count)).collect()
}

/// What one request that meets `fault` is counted as; the others have to be right.
fn judged(fault: Fault, change: impl Fn(Options) -> Options) -> Vec<(Kind, u64)> {
    let fleet = fleet();
    fleet.fault(0, fault.times(1));
    let report = run(change(few(&fleet)));
    assert_eq!(report.target.completed + report.target.failed(), 4);
    kinds(&report)
}

#[test]
fn every_token_of_every_api_and_shape_is_counted() {
    let fleet = fleet();
    for api in [Api::Chat, Api::Completions] {
        for answers in [Answers::Streams, Answers::Whole, Answers::MixedEvery(2)] {
            for usage in [true, false] {
                let options = Options { api, answers, usage, ..few(&fleet) };
                let report = run(options);
                assert_eq!(kinds(&report), [], "{api:?} {answers:?} usage {usage}");
                let streams = match answers {
                    Answers::Streams => 4,
                    Answers::Whole => 0,
                    Answers::MixedEvery(_) => 2,
                };
                let side = &report.target;
                assert_eq!((side.completed, side.output_tokens), (4, 32));
                assert_eq!((side.events, side.ttft.count()), (streams * 8, streams));
                assert_eq!((side.itl.count(), side.total.count()), (streams * 7, 4));
            }
        }
    }
}

#[test]
fn the_server_counts_what_the_bench_counts() {
    let fleet = fleet();
    let options = Options { requests: Some(50), load: Load::Concurrency(8), ..few(&fleet) };
    let report = run(options);
    let stats = fleet.stats(0);
    assert_eq!((stats.completed, stats.completion_tokens), (50, report.target.output_tokens));
    assert_eq!(stats.prompt_tokens, report.target.input_tokens);
}

#[test]
fn each_fault_of_a_stream_is_counted_as_its_kind() {
    use sim::Kind as F;
    let cases = [
        (Fault::new(F::ResetBeforeHead), Kind::ClosedBeforeHead),
        (Fault::new(F::FinBeforeHead), Kind::ClosedBeforeHead),
        (Fault::new(F::ResetBetweenEvents).after(3), Kind::Cut),
        (Fault::new(F::FinBetweenEvents).after(3), Kind::Cut),
        (Fault::new(F::NoDone), Kind::MissingDone),
        (Fault::new(F::BadChunk), Kind::BadChunk),
        (Fault::new(F::Garbage), Kind::BadHead),
        (Fault::new(F::WrongContentType), Kind::ContentType),
        (Fault::new(F::ErrorIn200), Kind::ErrorEvent),
        (Fault::new(F::ErrorMidStream).after(2), Kind::ErrorEvent),
        (Fault::new(F::AbortFinish).after(3), Kind::LostToken),
        (Fault::new(F::ExtraBytes), Kind::ExtraBytes),
        (Fault::status(503), Kind::Status(503)),
    ];
    for (fault, kind) in cases {
        let name = fault.kind;
        let judged = judged(fault, |options| options);
        // Bytes too many that come late are what the connection's next request is answered with.
        let late = kind == Kind::ExtraBytes && judged == [(Kind::ContentType, 1)];
        assert!(late || judged == [(kind, 1)], "{name:?}: {judged:?}");
    }
}

#[test]
fn harmless_ways_to_send_a_stream_are_no_faults() {
    use sim::Kind as F;
    for kind in [F::Split, F::Trickle, F::Coalesce, F::CloseAfterResponse, F::ContentLengthOnSse] {
        assert_eq!(judged(Fault::new(kind), |options| options), [], "{kind:?}");
    }
}

#[test]
fn usage_is_checked_against_what_was_asked_and_counted() {
    let missing =
        Fault { shape: Some(sim::UsageShape::Missing), ..Fault::new(sim::Kind::UsageShape) };
    assert_eq!(judged(missing.clone(), |options| options), [(Kind::BadUsage, 1)]);
    let unasked = |options| Options { usage: false, ..options };
    assert_eq!(judged(missing, unasked), []);
}

#[test]
fn another_tags_words_are_wrong_tokens() {
    fn others(tag: u64, index: u64) -> [u8; 7] {
        token_text(tag + 1, index)
    }
    fn skipping(tag: u64, index: u64) -> [u8; 7] {
        token_text(tag, if index < 3 { index } else { index - 1 })
    }
    fn repeating(tag: u64, index: u64) -> [u8; 7] {
        token_text(tag, if index < 3 { index } else { index + 1 })
    }
    let fleet = fleet();
    let with = |words| run(Options { words: Some(words), ..few(&fleet) });
    assert_eq!(kinds(&with(others)), [(Kind::WrongToken, 4)]);
    // Seen from a server that says word 2 twice, the true answer lacks one; and the other way.
    assert_eq!(kinds(&with(skipping)), [(Kind::LostToken, 4)]);
    assert_eq!(kinds(&with(repeating)), [(Kind::WrongToken, 4)]);
}

#[test]
fn a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let stall = |load: Load| {
        let fleet =
            fleet_of(EngineKind::Fixed { ttft: Duration::from_millis(2), itl: Duration::ZERO });
        let bench = Bench::start(Options {
            load,
            requests: None,
            duration: Duration::from_millis(1500),
            ..few(&fleet)
        });
        let bench = bench.unwrap();
        std::thread::sleep(Duration::from_millis(300));
        fleet.fault(0, Fault::new(sim::Kind::Freeze));
        std::thread::sleep(Duration::from_millis(500));
        fleet.fault(0, Fault::new(sim::Kind::None));
        let report = bench.finish().unwrap();
        assert_eq!(kinds(&report), []);
        report.target
    };
    let open = stall(Load::Rate(100.0));
    let closed = stall(Load::Concurrency(1));
    assert_eq!(open.completed, 150, "every request was sent, none skipped");
    let [open_p80, closed_p80] = [&open, &closed].map(|side| side.total.quantile_ms(0.8));
    assert!(open_p80 > 10.0 * closed_p80, "open {open_p80} ms, closed {closed_p80} ms");
    // The longest wait of the 50 that were due meanwhile is the stall itself, and the hundredth
    // part of 150 requests is the second longest.
    let p99 = open.ttft.quantile_ms(0.99);
    assert!(p99 >= 450.0, "the open loop tells of {p99} ms");
}

#[test]
fn a_connection_that_the_server_has_closed_is_not_used_again() {
    let keep_alive = Duration::from_millis(40);
    let ports = vec![0, 0];
    let fleet = Fleet::start(SimConfig { ports, keep_alive, ..SimConfig::default() }).unwrap();
    let report = run(Options { load: Load::Rate(10.0), requests: Some(6), ..few(&fleet) });
    assert_eq!((kinds(&report), report.target.completed), (vec![], 6));
    assert!(fleet.stats(0).connections_accepted >= 6);
}

#[test]
fn a_direct_endpoint_gets_every_second_request() {
    let fleet = fleet();
    let direct = Some(target(&fleet, 1));
    let load = Load::Concurrency(2);
    let report = run(Options { requests: Some(10), direct, threads: 8, load, ..few(&fleet) });
    assert_eq!(report.failed(), 0);
    assert_eq!((fleet.stats(0).completed, fleet.stats(1).completed), (5, 5));
    assert_eq!(report.direct.as_ref().unwrap().completed, 5);
    let json = report.json();
    for name in ["ttft_p50_ms", "ttft_p99_ms", "e2el_p50_ms", "e2el_p99_ms"] {
        assert!(json["overhead"][name].is_f64(), "{name}");
    }
    assert_eq!(json["direct"]["completed"], 5);
    assert!(report.table().contains("added by the target"));
}

#[test]
fn json_has_the_names_of_vllm_bench_serve() {
    let fleet = fleet();
    fleet.fault(0, Fault::status(500).times(1));
    let json = run(few(&fleet)).json();
    assert_eq!((&json["completed"], &json["failed"]), (&3.into(), &1.into()));
    assert_eq!(
        (&json["total_output_tokens"], &json["errors"]["status_500"]["count"]),
        (&24.into(), &1.into())
    );
    for name in ["duration", "request_throughput", "output_throughput", "total_token_throughput"] {
        assert!(json[name].as_f64().is_some_and(|n| n > 0.0), "{name}");
    }
    assert!(json["total_input_tokens"].as_u64().is_some_and(|n| n > 0));
    for name in ["ttft", "tpot", "itl", "e2el"] {
        for of in ["mean", "median", "std", "p99"] {
            assert!(json[format!("{of}_{name}_ms")].is_f64(), "{of}_{name}_ms");
        }
    }
}

#[test]
fn shared_beginnings_are_found_in_the_cache() {
    let fleet = fleet();
    let options = Options { requests: Some(20), prompt_tokens: Lengths::Fixed(100), ..few(&fleet) };
    assert_eq!(run(options.clone()).target.cached_tokens, 0);
    let report = run(Options { prefix_tokens: 64, prefixes: 2, ..options });
    assert_eq!(kinds(&report), []);
    assert!(report.target.cached_tokens >= 18 * 48, "{}", report.target.cached_tokens);
}

#[test]
fn nobody_there_and_an_early_end_are_told() {
    let fleet = fleet();
    fleet.fault(0, Fault::new(sim::Kind::StallBeforeHead));
    let patient = Options { requests: None, duration: Duration::from_secs(600), ..few(&fleet) };
    let bench = Bench::start(patient.clone()).unwrap();
    while fleet.stats(0).requests == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.stop();
    let report = bench.finish().unwrap();
    assert_eq!((report.target.failed(), report.target.unfinished()), (0, 1));
    let without = "1 had not ended when the run was";
    assert!(report.table().contains(without), "{}", report.table());
    let all = document(&patient, &[Step { rate: None, report }], &Facts::default());
    assert!(page(&all).contains("1 of the requests had not ended"));
    let timeout = Duration::from_millis(50);
    let hasty = run(Options { requests: Some(1), timeout, ..few(&fleet) });
    assert_eq!(kinds(&hasty), [(Kind::Timeout, 1)]);
    let options = few(&fleet);
    fleet.fault(0, Fault::new(sim::Kind::Refuse));
    assert_eq!(kinds(&run(options)), [(Kind::Connect, 4)]);
}

#[test]
fn a_server_of_words_is_known_by_them() {
    fn strange(_: u64, _: u64) -> [u8; 7] {
        *b" strang"
    }
    let fleet = fleet();
    assert_eq!(probe(&few(&fleet), token_text).unwrap(), Probe::Words);
    assert_eq!(probe(&few(&fleet), strange).unwrap(), Probe::Other);
}

#[test]
fn urls_that_cannot_be_asked_are_refused() {
    for url in ["https://u@h", "http://", "h:1", "http://u@h", "http://h h", "ftp://h"] {
        assert!(Target::from_url(url, None).is_err(), "{url}");
    }
    let target = Target::from_url("http://127.0.0.1:81/base/v1/", None).unwrap();
    assert_eq!((target.authority.as_str(), target.base.as_str()), ("127.0.0.1:81", "/base"));
}

#[test]
fn every_way_to_ask_is_answered_right() {
    let fleet = fleet();
    let base = Options {
        requests: Some(60),
        load: Load::Rate(400.0),
        prompt_tokens: Lengths::Lognormal(60.0, 0.8),
        output_tokens: Lengths::Uniform(1, 12),
        ..few(&fleet)
    };
    let ways = [
        Options { spacing: Spacing::Poisson, threads: 3, ..base.clone() },
        Options { prefix_tokens: 64, prefixes: 5, zipf: 1.0, ..base.clone() },
        Options { long: Some((0.2, 3000)), ..base.clone() },
        Options { turns: 3, ignore_eos: true, ..base.clone() },
        Options { turns: 3, load: Load::Concurrency(4), ..base.clone() },
        Options { turns: 2, api: Api::Completions, answers: Answers::Whole, ..base.clone() },
        Options { models: vec!["sim-model".to_owned()], ..base },
    ];
    for options in ways {
        let report = run(options.clone());
        assert_eq!(kinds(&report), [], "{options:?}");
        assert_eq!((report.target.completed, report.target.unfinished()), (60, 0), "{options:?}");
    }
}

#[test]
fn a_conversation_finds_its_beginning_in_the_cache() {
    let fleet = fleet();
    let options = Options {
        requests: Some(15),
        turns: 3,
        think: Duration::from_millis(2),
        prompt_tokens: Lengths::Fixed(160),
        ..few(&fleet)
    };
    let report = run(options);
    assert_eq!((kinds(&report), report.target.completed), (vec![], 15));
    // Of five conversations the second turn finds 160 tokens and the third 320, to the block.
    let cached = report.target.cached_tokens;
    assert!((5 * (144 + 304)..=5 * (160 + 340)).contains(&cached), "{cached}");
}

#[test]
fn a_trace_is_played_with_its_times_lengths_and_shared_names() {
    let line = |at: u32, names: &str| {
        format!(
            "{{\"timestamp\":{at},\"input_length\":1100,\"output_length\":{},\
             \"hash_ids\":[{names}]}}\n",
            at / 100 + 1
        )
    };
    let text: String =
        (0..20).map(|i| line(i * 100, &format!("0, 1, {}", i + 2))).collect::<Vec<_>>().concat();
    let trace = Trace::parse(&text).unwrap();
    let workload = Arc::new(trace.workload(trace.rate() * 10.0, None));
    for threads in [1, 3] {
        let fleet = fleet();
        let load = Load::Trace(Arc::clone(&workload));
        let (duration, requests) = (Duration::from_secs(600), None);
        let report = run(Options { load, threads, duration, requests, ..few(&fleet) });
        let side = &report.target;
        assert_eq!((kinds(&report), side.completed), (vec![], 20));
        assert_eq!(side.output_tokens, (1..=20).sum::<u64>());
        assert!((20 * 1100..20 * 1110).contains(&side.input_tokens), "{}", side.input_tokens);
        // Two names of 512 tokens each, for all but those that came before the first was read.
        assert!(side.cached_tokens >= 10 * 1008, "{}", side.cached_tokens);
        // Twenty sessions at 100 a second: the last is due after 190 ms.
        assert!(report.seconds() >= 0.19, "{}", report.seconds());
    }
}

#[test]
fn what_is_given_up_reaches_the_server_and_is_no_failure() {
    let (ttft, itl) = (Duration::from_millis(20), Duration::from_millis(5));
    let fleet = fleet_of(EngineKind::Fixed { ttft, itl });
    let options =
        Options { requests: Some(80), load: Load::Concurrency(8), cancel: 0.5, ..few(&fleet) };
    let report = run(options);
    let side = &report.target;
    assert_eq!(kinds(&report), []);
    assert_eq!((side.sent, side.completed + side.cancelled), (80, 80));
    assert!((15..=60).contains(&side.cancelled), "{}", side.cancelled);
    let figures = report.json();
    assert_eq!(
        (&figures["cancelled"], &figures["unfinished"]),
        (&side.cancelled.into(), &0.into())
    );
    let mut gone = 0;
    for _ in 0..200 {
        gone = fleet.stats(0).aborted;
        if gone + fleet.stats(0).completed >= 80 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(gone > 0 && gone <= side.cancelled, "{gone} of {}", side.cancelled);
}

#[test]
fn limits_are_judged_by_all_that_was_due() {
    let (ttft, itl) = (Duration::from_millis(30), Duration::from_millis(10));
    let fleet = fleet_of(EngineKind::Fixed { ttft, itl });
    let with = |ttft_ms, tpot_ms| {
        let slo = Slo { ttft_ms, tpot_ms };
        run(Options { slo, requests: Some(8), load: Load::Concurrency(8), ..few(&fleet) })
    };
    let report = with(Some(20.0), None);
    assert!(!report.is_within());
    assert_eq!((report.target.within(), report.target.good), ([0.0, 1.0, 0.0], 0));
    let report = with(None, Some(0.5));
    assert!(!report.is_within());
    assert_eq!(report.target.within(), [1.0, 0.0, 0.0]);
    let report = with(Some(60_000.0), Some(60_000.0));
    assert!(report.is_within() && report.target.good == 8);
    assert!(report.json()["request_goodput"].as_f64().is_some_and(|rate| rate > 0.0));
    fleet.fault(0, Fault::status(500).times(1));
    let report = with(Some(60_000.0), None);
    assert!(!report.is_within(), "a failure is within no limit");
    assert_eq!(report.target.within(), [0.875, 0.875, 0.875]);
}

/// What a page shows: the JSON within it, and each number with the pointer that it claims.
fn shown(page: &str) -> (String, Vec<(String, String)>) {
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let cells = page.split("<td data-of=\"").skip(1).map(|cell| {
        let (pointer, rest) = cell.split_once("\">").unwrap();
        (pointer.to_owned(), rest.split_once("</td>").unwrap().0.to_owned())
    });
    (data.replace("\\u003c", "<"), cells.collect())
}

#[test]
fn every_number_of_the_page_is_that_of_the_json() {
    let (ttft, itl) = (Duration::from_millis(3), Duration::from_millis(1));
    let fleet = fleet_of(EngineKind::Fixed { ttft, itl });
    fleet.fault(0, Fault::status(500).times(1));
    let slo = Slo { ttft_ms: Some(100.0), tpot_ms: Some(50.0) };
    let options = Options { direct: Some(target(&fleet, 1)), slo, ..few(&fleet) };
    let step = |rate| {
        let options = Options { load: Load::Rate(rate), requests: Some(30), ..options.clone() };
        Step { rate: Some(rate), report: run(options) }
    };
    let steps = [step(100.0), step(200.0)];
    let label = Some("</script><b>&".to_owned());
    let facts = Facts { label, searched: Some(200.0), ..Facts::default() };
    let all = document(&options, &steps, &facts);
    let page = page(&all);
    let (data, cells) = shown(&page);
    let whole = all.to_string();
    assert!(data == whole, "{data}");
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert!(read(&document::text(&all)) == read(&data));
    assert!(cells.len() > 100, "{}", cells.len());
    for (pointer, cell) in &cells {
        let number = all.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let digits = cell.split_once('.').map_or(0, |(_, digits)| digits.len());
        let cell: f64 = cell.parse().unwrap();
        let half = 0.5000001 * 10f64.powi(-(digits as i32));
        assert!((cell - number).abs() <= half, "{pointer}: {cell} for {number}");
    }
    assert_eq!(page.matches("<svg").count(), 8, "two by rate, three shares, three by time");
    assert!(page.matches("<polyline").count() >= 2 * 3 + 3 * 2 + 3 + 2);
    assert!(!page.contains("http://www") && !page.contains("src=") && !page.contains("<b>"));
    assert!(page.contains("width=device-width") && page.ends_with("</html>\n"));
}

#[test]
fn the_json_keeps_the_histograms_and_the_seconds() {
    let fleet = fleet();
    let options = Options { requests: Some(50), ..few(&fleet) };
    let report = run(options.clone());
    let all = document(&options, &[Step { rate: None, report }], &Facts::default());
    for (name, n) in [("ttft", 50), ("itl", 350), ("tpot", 50), ("e2el", 50), ("lateness", 50)] {
        let list = |of: &str| -> Vec<u64> {
            serde_json::from_value(all["histograms"][name][of].clone()).unwrap()
        };
        let (us, counts) = (list("us"), list("counts"));
        assert_eq!((us.len(), counts.iter().sum::<u64>()), (counts.len(), n), "{name}");
        // The median that is told is that of the histogram.
        let mut below = 0;
        let middle = us.iter().zip(&counts).find(|(_, count)| {
            below += **count;
            below * 2 >= n
        });
        let told = all[format!("median_{name}_ms")].as_f64().unwrap();
        assert!((told - *middle.unwrap().0 as f64 / 1000.0).abs() < 1e-9, "{name}: {told}");
    }
    let sum = |of: &Value| of.as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    let series = &all["series"];
    let longest = all["max_ttft_ms"].as_f64().unwrap();
    let of_slots = series["p99_ttft_ms"].as_array().unwrap().iter().filter_map(Value::as_f64);
    let longest_slot = of_slots.fold(0.0, f64::max);
    assert!((longest_slot / longest - 1.0).abs() < 0.02, "{longest_slot} of {longest}");
    assert_eq!((sum(&series["due"]), sum(&series["completed"])), (50, 50));
    assert_eq!((sum(&series["events"]), sum(&series["failed"])), (400, 0));
    let gaps = all["gaps"]["counts"].as_array().unwrap();
    assert_eq!(gaps.iter().map(sum).sum::<u64>(), 350);
    assert_eq!((&all["kind"], &all["num_prompts"]), (&"expedite bench".into(), &50.into()));
    assert_eq!(all["options"]["output_tokens"], "8");
}

/// Runs `expedite bench` in a folder and tells its exit code and what it said.
fn bench(folder: &std::path::Path, args: &[&str]) -> (Option<i32>, String, String) {
    let told = command::expedite(folder, &[&["bench"], args].concat(), "");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (told.status.code(), text(told.stdout), text(told.stderr))
}

#[test]
fn rates_are_run_and_two_results_are_compared() {
    let fleet = fleet();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", fleet.addr(0));
    let load = ["--target", &url, "--rates", "50,100", "--duration", "0.3", "--json"];
    for (name, tokens) in [("a.json", "8"), ("b.json", "16")] {
        let more = [name, "--output-tokens", tokens, "--html", "r.html", "--label", name];
        let (code, out, err) = bench(folder.path(), &[&load[..], &more].concat());
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.contains("asked/s") && out.contains("first token"), "{out}");
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let all: Value = serde_json::from_str(&read("b.json")).unwrap();
    let rates: Vec<&Value> =
        all["steps"].as_array().unwrap().iter().map(|step| &step["request_rate"]).collect();
    assert_eq!((rates, &all["request_rate"]), (vec![&50.0.into(), &100.0.into()], &100.0.into()));
    assert_eq!((&all["completed"], &all["steps"][0]["completed"]), (&30.into(), &15.into()));
    assert_eq!(all["options"]["load"]["rate"], 100.0);
    assert!(all["host"]["kernel"].is_string() && all["date"].as_str().unwrap().len() == 15);
    assert!(serde_json::from_str::<Value>(&shown(&read("r.html")).0).unwrap() == all);
    let (code, out, _) = bench(folder.path(), &["diff", "a.json", "b.json"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("first token p50") && out.contains("output_tokens: \"8\" and \"16\""));
    let (_, out, _) = bench(folder.path(), &["diff", "a.json,b.json", "b.json", "--json"]);
    let diff: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&diff["runs_a"], &diff["figures"][0]["figure"]),
        (&2.into(), &"request_throughput".into())
    );
    std::fs::write(folder.path().join("c.json"), "{\"completed\": 3}").unwrap();
    for other in ["c.json", "none.json"] {
        let (code, out, err) = bench(folder.path(), &["diff", "a.json", other]);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.contains(other), "{err}");
    }
}

#[test]
fn a_target_that_does_not_answer_is_a_failure_and_no_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    // Bound and not listening: whoever connects is refused.
    let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    nobody.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let addr = nobody.local_addr().unwrap().as_socket().unwrap();
    let url = format!("http://{addr}");
    for more in [&[][..], &["--model", "m"]] {
        let (code, out, err) = bench(folder.path(), &[&["--target", &url], more].concat());
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        assert!(err.contains(&addr.to_string()), "{err}");
    }
    let (code, _, err) = bench(folder.path(), &["--target", "ftp://127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn a_search_ends_at_the_limits() {
    let fleet = fleet();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", fleet.addr(0));
    let search = |limit: &str| {
        let load = ["--target", &url, "--rate", "2", "--duration", "0.2", "--json", "-"];
        let (code, out, err) =
            bench(folder.path(), &[&load[..], &["--search", "--slo-ttft-ms", limit]].concat());
        let all: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        (code, all)
    };
    let (code, all) = search("60000");
    let found = all["highest_rate_within_slo"].as_f64().unwrap();
    // Up to 64 times the first rate, by strides that double.
    assert!(code == Some(0) && found > 10.0 && found <= 128.0, "{found}");
    assert_eq!((&all["slo"]["met"], &all["request_rate"]), (&true.into(), &found.into()));
    let (code, all) = search("0.000001");
    assert_eq!((code, &all["highest_rate_within_slo"]), (Some(1), &0.0.into()));
    assert_eq!(all["slo"]["met"], false);
}
