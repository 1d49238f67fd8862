//! What state each replica is in, and that what it tells of itself never stops or bends traffic.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::engine::{After, Engine, Received};
use common::faults::{IN_TURN, at_rest, chat_for_acme, hello, states, stream_for_acme};
use common::gateway::{Bed, Settings};
use common::{Client, ask, eventually, get};
use expedite::sim::{Fault, Fleet, Kind, SimConfig, SimHandle};
use serde_json::Value;

fn simulated(replicas: usize, more: &str) -> (SimHandle, Bed) {
    let config =
        SimConfig { model: "base".to_owned(), ports: vec![0; replicas], ..SimConfig::default() };
    let fleet = Fleet::start(config).expect("fleet");
    let addrs: Vec<_> = (0..replicas).map(|i| fleet.addr(i)).collect();
    let settings = Settings { more: more.to_owned(), ..Settings::default() };
    let bed = Bed::unready(&addrs, settings);
    eventually("all replicas are up", || states(&bed).iter().all(|state| state == "up"));
    (fleet, bed)
}

fn short_chat() -> Vec<u8> {
    chat_for_acme(",\"max_tokens\":2")
}

fn replica(bed: &Bed, at: usize) -> Value {
    ask(bed.admin, &get("/status.json")).json()["pools"][0]["replicas"][at].clone()
}

#[test]
fn a_replica_tells_what_it_is() {
    let (_fleet, bed) = simulated(1, "");
    eventually("its load is known", || replica(&bed, 0)["running"] == 0);
    let told = replica(&bed, 0);
    assert!(told["blocks"].as_u64() > Some(0) && told["block_tokens"] == 16, "{told}");
    assert_eq!((&told["ranks"], &told["source"]), (&1.into(), &"config".into()));
    assert_eq!(told["hash_algorithm"], "sha256");
    assert!(told["version"].is_string(), "{told}");
    eventually("its age is shown", || bed.metric("expedite_replica_signal_age_seconds", "") > 0.0);
    assert_eq!(bed.metric("expedite_replica_up", ""), 1.0);
    assert_eq!(bed.metric("expedite_replica_state", "state=\"up\""), 1.0);
    assert_eq!(bed.metric("expedite_replica_state", ""), 1.0, "in one state");
}

/// The gauges of an engine that lies are counted and left out, and it gets its share, no more.
#[test]
fn lying_gauges_bend_nothing() {
    let (fleet, bed) = simulated(2, "");
    for lie in ["-3", "NaN", "1e18"] {
        let before = bed.metric("expedite_replica_signals_refused_total", "");
        let value = Some(lie.to_owned());
        fleet.fault(0, Fault { value, ..Fault::new(Kind::LyingGauges) });
        eventually("the lie is seen", || {
            bed.metric("expedite_replica_signals_refused_total", "") > before
        });
        let sent = |at| fleet.stats(at).requests;
        let (liar, honest) = (sent(0), sent(1));
        for _ in 0..60 {
            assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        }
        let (liar, honest) = (sent(0) - liar, sent(1) - honest);
        assert_eq!(liar + honest, 60);
        assert!(liar <= 45, "{lie}: {liar} of 60 to the liar");
        assert!(replica(&bed, 0)["running"].as_u64() < Some(1_000));
    }
}

/// T69: the metrics page hangs or is gone, the engine is fine.
#[test]
fn traffic_flows_without_metrics() {
    for kind in [Fault::new(Kind::StallBeforeHead), Fault::status(404), Fault::status(500)] {
        let (fleet, bed) = simulated(1, "");
        eventually("its load is known", || replica(&bed, 0)["running"] == 0);
        fleet.fault(0, Fault { path: Some("/metrics".to_owned()), ..kind });
        eventually("its signals age", || {
            assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
            bed.metric("expedite_replica_signal_age_seconds", "") > 2.5
        });
        assert_eq!(states(&bed), ["up"]);
    }
}

/// A page like vLLM's; `sleeping` and `started` are what a test changes.
fn page(awake: u8, started: u64) -> Vec<u8> {
    let body = format!(
        "process_start_time_seconds {started}\n\
         vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:num_requests_waiting{{engine=\"0\"}} 0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0\n\
         vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}\n"
    );
    common::engine::json(200, &body)
}

/// An engine that answers its probes with what `metrics` says now, and requests with a stream.
fn telling(metrics: &Arc<Mutex<Vec<u8>>>) -> Engine {
    let metrics = Arc::clone(metrics);
    Engine::start_telling(
        move |_: &Received, wire: &mut TcpStream| wire.write_all(&hello()).map(|()| After::Keep),
        move || metrics.lock().expect("lock").clone(),
    )
}

#[test]
fn a_replica_that_sleeps_gets_nothing_until_it_wakes() {
    let metrics = Arc::new(Mutex::new(page(1, 1)));
    let engine = telling(&metrics);
    let bed = Bed::start(&[engine.addr], Settings::default());
    *metrics.lock().expect("lock") = page(0, 1);
    eventually("it sleeps", || states(&bed) == ["sleeping"]);
    assert_eq!(ask(bed.addr, &stream_for_acme()).status(), 503);
    assert_eq!(engine.count(), 0);
    *metrics.lock().expect("lock") = page(1, 1);
    eventually("it is up", || states(&bed) == ["up"]);
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
}

#[test]
fn a_restart_that_no_probe_has_missed_begins_a_slow_start() {
    let metrics = Arc::new(Mutex::new(page(1, 1_000)));
    let engine = telling(&metrics);
    let bed = Bed::start(&[engine.addr], Settings::default());
    eventually("its load is known", || replica(&bed, 0)["running"] == 0);
    assert_eq!(replica(&bed, 0)["ramp"], 1.0, "it was there from the start");
    *metrics.lock().expect("lock") = page(1, 2_000);
    let ramp = || replica(&bed, 0)["ramp"].as_f64().expect("ramp");
    eventually("it starts slowly", || ramp() < 0.5);
    let early = ramp();
    eventually("and takes more and more", || ramp() > early + 0.2);
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
}

/// T98: the engine says that it takes no more work; nobody notices but the status.
#[test]
fn an_engine_that_closes_is_left_alone() {
    let (fleet, bed) = simulated(2, IN_TURN);
    let body = "{\"error\":{\"message\":\"cannot schedule new futures after shutdown\",\
                \"type\":\"InternalServerError\",\"param\":null,\"code\":500}}";
    fleet.fault(0, Fault { body: Some(body.to_owned()), ..Fault::status(500) });
    for _ in 0..20 {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
    }
    assert_eq!(states(&bed), ["draining", "up"]);
    fleet.fault(0, Fault::new(Kind::None));
    eventually("it serves again", || {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        states(&bed) == ["up", "up"]
    });
}

/// T77, T98: the port accepts, `/health` is good, and not a byte comes of any answer.
#[test]
fn a_frozen_replica_is_suspect_until_it_answers() {
    let frozen = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&frozen);
    let tried = Arc::new(AtomicUsize::new(0));
    let trials = Arc::clone(&tried);
    let engine = Engine::start(move |received, wire| {
        let trial = received.body == br#"{"model":"base","prompt":"1","max_tokens":1}"#;
        trials.fetch_add(usize::from(trial), SeqCst);
        while held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let answer = if trial { common::engine::json(200, "{}") } else { hello() };
        wire.write_all(&answer).map(|()| After::Keep)
    });
    let bed = Bed::start(&[engine.addr], Settings::default());
    let mut waiting: Vec<Client> = (0..3).map(|_| Client::connect(bed.addr)).collect();
    waiting.iter_mut().for_each(|client| client.send(&stream_for_acme()));
    eventually("it is suspect", || states(&bed) == ["suspect"]);
    let refused = ask(bed.addr, &stream_for_acme());
    assert_eq!(refused.status(), 503, "nothing new is sent into the silence");
    eventually("it is asked for a token", || tried.load(SeqCst) > 0);
    frozen.store(false, SeqCst);
    eventually("it is up again", || states(&bed) == ["up"]);
    for mut client in waiting {
        assert_eq!(client.response().words(), "hello");
    }
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
    at_rest(&bed);
}

/// T83: the limit of a whole answer is the time of all its tokens, hours by default. It is not what
/// counts behind a freeze.
#[test]
fn a_whole_answer_is_asked_of_another_when_its_replica_has_frozen() {
    let frozen = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&frozen);
    let engine = Engine::start(move |_, _| {
        while held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(After::Close)
    });
    let whole = common::engine::json(200, r#"{"choices":[{"message":{"content":"hello"}}]}"#);
    let good = Engine::always(whole);
    let more = format!("{IN_TURN}[timeouts]\nfirst_token_ms = 1000\n");
    let bed = Bed::start(&[engine.addr, good.addr], Settings { more, ..Settings::default() });
    let mut waiting: Vec<Client> = (0..4).map(|_| Client::connect(bed.addr)).collect();
    waiting.iter_mut().for_each(|client| client.send(&chat_for_acme("")));
    for mut client in waiting {
        let answer = client.response();
        assert_eq!((answer.status(), answer.complete), (200, true), "{}", answer.text());
    }
    assert_eq!(bed.metric("expedite_retries_total", ""), 2.0);
    frozen.store(false, SeqCst);
    at_rest(&bed);
}

/// T82: nobody is there at the start; the gateway waits and recovers alone.
#[test]
fn replicas_that_come_late_are_taken_in() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let addr = port.local_addr().expect("address");
    drop(port);
    let bed = Bed::unready(&[addr], Settings::default());
    eventually("not ready", || ask(bed.admin, &get("/ready")).status() == 503);
    assert!(matches!(ask(bed.addr, &short_chat()).status(), 502 | 503));
    let _engine = Engine::start_on(addr, |_, wire| wire.write_all(&hello()).map(|()| After::Keep));
    eventually("it is up", || states(&bed) == ["up"]);
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
    assert!(replica(&bed, 0)["ramp"].as_f64() < Some(1.0), "slowly");
}

/// T77: a pool that nobody serves is not ready, whatever the others are.
#[test]
fn each_pool_has_a_readiness_of_its_own() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let dead = port.local_addr().expect("address");
    drop(port);
    let engine = Engine::always(hello());
    let more =
        format!("[[pool]]\nname = \"far-off\"\nmodel = \"n\"\nreplicas = [\"http://{dead}\"]\n");
    let bed = Bed::start(&[engine.addr], Settings { more, ..Settings::default() });
    let ready = |path: &str| ask(bed.admin, &get(path)).status();
    eventually("the one is ready", || ready("/ready/p") == 200);
    eventually("the other is not", || ready("/ready/far%2Doff") == 503);
    assert_eq!((ready("/ready"), ready("/ready/else")), (200, 404));
}

/// T26: who comes back takes its share by degrees.
#[test]
fn a_replica_that_returns_is_not_flooded() {
    const REQUESTS: u64 = 100;
    let (fleet, bed) = simulated(2, IN_TURN);
    fleet.fault(0, Fault::new(Kind::Refuse));
    // Whoever connects anew is refused; the status tells when the probes have noticed.
    eventually("it is down", || matches!(states(&bed)[0].as_str(), "down" | "ejected"));
    fleet.fault(0, Fault::new(Kind::None));
    eventually("it is back", || {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        states(&bed)[0] == "up"
    });
    let before = fleet.stats(0).requests;
    for _ in 0..REQUESTS {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
    }
    let share = (fleet.stats(0).requests - before) as f64 / REQUESTS as f64;
    let ramp = replica(&bed, 0)["ramp"].as_f64().expect("ramp");
    // In turn with the other when it is drawn: half of its ramp at most, and chance.
    assert!(share <= ramp / 2.0 + 0.15, "{share} of the requests at a ramp of {ramp}");
    eventually("it takes its half", || {
        let before = fleet.stats(0).requests;
        (0..20).for_each(|_| assert_eq!(ask(bed.addr, &short_chat()).status(), 200));
        fleet.stats(0).requests - before >= 9
    });
}

/// T27: a probe never touches the load.
#[test]
fn streams_keep_their_count_through_probes() {
    const STREAMS: usize = 50;
    let go_on = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&go_on);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(common::engine::STREAM_HEAD)?;
        wire.write_all(&common::engine::chunk(&common::engine::event("hello")))?;
        while !on.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        wire.write_all(&common::engine::chunk(common::engine::DONE))?;
        wire.write_all(common::engine::LAST_CHUNK).map(|()| After::Keep)
    });
    let bed = Bed::start(&[engine.addr], Settings::default());
    let mut open: Vec<Client> = (0..STREAMS).map(|_| Client::connect(bed.addr)).collect();
    open.iter_mut().for_each(|client| client.send(&stream_for_acme()));
    eventually("all are open", || engine.count() == STREAMS);
    for _ in 0..25 {
        assert_eq!(bed.metric("expedite_in_flight", ""), STREAMS as f64);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(states(&bed), ["up"], "streams that pause are no silence");
    go_on.store(true, SeqCst);
    open.into_iter().for_each(|mut client| drop(client.response()));
    at_rest(&bed);
}
