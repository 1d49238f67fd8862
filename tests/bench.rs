//! The load generator against simulated replicas: what it counts, and what it must not miss.

use std::time::Duration;

use expedite::bench::{Answers, Api, Bench, Kind, Load, Options, Probe, Report, Target, probe};
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
        output_tokens: 8,
        prompt_tokens: 20,
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
        (report.target.completed, report.target.total.quantile_ms(0.8))
    };
    let (open, open_p80) = stall(Load::Rate(100.0));
    let (_, closed_p80) = stall(Load::Concurrency(1));
    assert_eq!(open, 150, "every request was sent, none skipped");
    assert!(open_p80 > 10.0 * closed_p80, "open {open_p80} ms, closed {closed_p80} ms");
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
    let options = Options { requests: Some(20), prompt_tokens: 100, ..few(&fleet) };
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
    let bench = Bench::start(patient).unwrap();
    bench.stop();
    assert_eq!(bench.finish().unwrap().target.failed(), 0);
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
    for url in ["https://h", "http://", "h:1", "http://u@h", "http://h h", "ftp://h"] {
        assert!(Target::from_url(url, None).is_err(), "{url}");
    }
    let target = Target::from_url("http://127.0.0.1:81/base/v1/", None).unwrap();
    assert_eq!((target.authority.as_str(), target.base.as_str()), ("127.0.0.1:81", "/base"));
}
