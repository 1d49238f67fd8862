//! Who may start, who waits and who is refused, over sockets: an engine that says how full it is,
//! and whose answers end when the test says so.

mod common;

use std::io::{Error, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use common::engine::{After, DONE, Engine, LAST_CHUNK, Received, STREAM_HEAD, chunk, event, json};
use common::faults::at_rest;
use common::gateway::{AUTH, Bed, KEY, Settings};
use common::{Client, Response, ask, eventually, get, post_with};
use expedite::config::KeyDigest;
use serde_json::Value;

/// A wait that no slow machine ends.
const PATIENT: &str = "[admission]\nqueue_ms_max = 60000\n";
/// The key of a second tenant.
const SMALL: &str = "sk-small";

/// An engine of 64 blocks.
struct Stage {
    engine: Engine,
    /// Blocks that it says are in use, and whether it says anything.
    used: Arc<AtomicU64>,
    talks: Arc<AtomicBool>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Stage {
    /// Answers whose prompt begins with token 1 end when the gate is open; the others at once.
    fn start() -> Stage {
        let used = Arc::new(AtomicU64::new(0));
        let talks = Arc::new(AtomicBool::new(true));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (told, says, held) = (Arc::clone(&used), Arc::clone(&talks), Arc::clone(&gate));
        let metrics = move || match says.load(SeqCst) {
            true => metrics(told.load(SeqCst)),
            false => json(500, ""),
        };
        let engine =
            Engine::start_telling(move |received, wire| answer(received, wire, &held), metrics);
        Stage { engine, used, talks, gate }
    }

    fn open(&self) {
        *self.gate.0.lock().expect("lock") = true;
        self.gate.1.notify_all();
    }

    fn close(&self) {
        *self.gate.0.lock().expect("lock") = false;
    }

    fn bed(&self, more: &str) -> Bed {
        let second = KeyDigest::of(SMALL.as_bytes()).to_text();
        let more = format!("[[tenant]]\nid = \"small\"\nkeys = [\"{second}\"]\n{more}");
        Bed::start(&[self.engine.addr], Settings { more, ..Settings::default() })
    }

    /// One request runs, and the engine says that it is nearly full.
    fn fill(&self, bed: &Bed) -> Client {
        let mut first = Client::connect(bed.addr);
        first.send(&call(KEY, 1, ""));
        eventually("the first runs", || self.engine.count() > 0);
        self.used.store(60, SeqCst);
        knows(bed, 60);
        first
    }

    /// Which requests came, by the first token of their prompts.
    fn order(&self) -> Vec<u64> {
        let first = |received: &Received| {
            let body: Value = serde_json::from_slice(&received.body).expect("JSON");
            body["prompt"][0].as_u64().expect("a token")
        };
        self.engine.requests().iter().map(first).collect()
    }
}

fn metrics(used: u64) -> Vec<u8> {
    json(
        200,
        &format!(
            "vllm:num_requests_running{{engine=\"0\"}} 1\n\
             vllm:num_requests_waiting{{engine=\"0\"}} 0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\"}} {}\n\
             vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"64\"}} 1\n",
            used as f64 / 64.0
        ),
    )
}

fn answer(
    received: &Received,
    wire: &mut TcpStream,
    gate: &(Mutex<bool>, Condvar),
) -> Result<After, Error> {
    wire.write_all(STREAM_HEAD)?;
    for _ in 0..10 {
        wire.write_all(&chunk(&event("x")))?;
    }
    if received.body.windows(11).any(|w| w == b"\"prompt\":[1") {
        let open = gate.0.lock().expect("lock");
        drop(gate.1.wait_while(open, |open| !*open).expect("lock"));
    }
    let usage = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":10,\
                  \"total_tokens\":18}}\n\n";
    wire.write_all(&chunk(usage))?;
    wire.write_all(&[chunk(DONE), LAST_CHUNK.to_vec()].concat())?;
    Ok(After::Keep)
}

/// A stream of at most ten tokens for a prompt of eight that begins with `first`.
fn call(key: &str, first: u64, fields: &str) -> Vec<u8> {
    let auth = AUTH.replace(KEY, key);
    let body = format!(
        "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":10,\"prompt\":[{first},9,9,9,9,9,9,9]}}"
    );
    post_with("/v1/completions", &format!("{auth}{fields}"), &body)
}

fn replica(bed: &Bed) -> Value {
    ask(bed.admin, &get("/status.json")).json()["pools"][0]["replicas"][0].clone()
}

fn knows(bed: &Bed, used: u64) {
    eventually("the gateway knows how full the engine is", || {
        let told = replica(bed);
        told["blocks"] == 64 && told["kv_usage"].as_f64() == Some(used as f64 / 64.0)
    });
}

fn queued(bed: &Bed, n: usize) {
    eventually(&format!("{n} wait"), || bed.metric("expedite_queue_requests", "") == n as f64);
}

fn sent(bed: &Bed, key: &str, first: u64) -> Client {
    let mut client = Client::connect(bed.addr);
    client.send(&call(key, first, ""));
    client
}

/// Of a record: in the queue and at the gateway itself, in ms; what the two leave of the whole.
fn waited(record: &Value) -> (f64, f64) {
    let ms = |name: &str| record[name].as_f64().expect("ms");
    let (queue, gateway) = (ms("queue_ms"), ms("gateway_ms"));
    // The books add up however long it took: nothing is both, and of who was sent nowhere
    // nothing is left.
    assert!(queue + gateway <= ms("total_ms") + 1e-6, "{record}");
    (queue, gateway)
}

fn refused(response: &Response) -> u64 {
    assert_eq!(response.status(), 429, "{}", response.text());
    assert_eq!(response.json()["error"]["code"], "server_overloaded");
    assert_eq!(response.field("x-gateway-attempts"), None, "nobody was asked");
    let field = |name| response.field(name).and_then(|value| value.parse::<u64>().ok());
    let (s, ms) = (field("retry-after").expect("s"), field("retry-after-ms").expect("ms"));
    assert_eq!(s, ms.div_ceil(1000));
    ms
}

#[test]
fn what_finds_no_room_waits_and_is_sent_when_something_has_ended() {
    let stage = Stage::start();
    let bed = stage.bed(PATIENT);
    let mut first = stage.fill(&bed);
    let mut second = sent(&bed, KEY, 2);
    queued(&bed, 1);
    assert_eq!(stage.engine.count(), 1);
    assert!(bed.metric("expedite_queue_tokens", "") >= 18.0);
    let status = ask(bed.admin, &get("/status.json")).json();
    assert_eq!(status["pools"][0]["queue"]["requests"], 1);
    stage.open();
    assert_eq!(first.response().status(), 200);
    let answer = second.response();
    assert_eq!((answer.status(), answer.words().len()), (200, 10));
    drop((first, second));
    at_rest(&bed);
    let records = bed.records(2);
    let waited: Vec<_> = records.iter().map(|r| r["queue_ms"].as_f64().expect("ms")).collect();
    assert!(waited[0] == 0.0 && waited[1] > 0.0, "{waited:?}");
    assert_eq!(bed.metric("expedite_queue_wait_seconds_count", ""), 1.0);
}

/// A11: a client that leaves the queue takes its request with it, even when room comes in the same
/// moment. `EXPEDITE_TRIALS` = 10000 for the whole bar.
#[test]
fn what_was_cancelled_in_the_queue_never_reaches_a_replica() {
    const AT_ONCE: usize = 50;
    let trials = std::env::var("EXPEDITE_TRIALS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let stage = Stage::start();
    let bed = stage.bed(PATIENT);
    let mut reached = 0;
    for round in 0..trials / AT_ONCE {
        stage.close();
        let mut first = Client::connect(bed.addr);
        first.send(&call(KEY, 1, ""));
        reached += 1;
        eventually("the first runs", || stage.engine.count() == reached);
        stage.used.store(60, SeqCst);
        knows(&bed, 60);
        let waiting: Vec<_> = (0..AT_ONCE).map(|_| sent(&bed, KEY, 2)).collect();
        queued(&bed, AT_ONCE);
        // Half of the rounds: room comes while they go.
        drop(waiting);
        if round % 2 == 0 {
            queued(&bed, 0);
        }
        stage.open();
        assert_eq!(first.response().status(), 200);
        drop(first);
        queued(&bed, 0);
        assert_eq!(stage.engine.count(), reached, "round {round}");
    }
    at_rest(&bed);
    let records = bed.records(reached + trials / AT_ONCE * AT_ONCE);
    let gone: Vec<_> = records.iter().filter(|r| r["outcome"] == "client_cancelled").collect();
    assert_eq!(gone.len(), trials / AT_ONCE * AT_ONCE);
    gone.iter().for_each(|record| assert!(waited(record).0 > 0.0, "{record}"));
}

#[test]
fn a_flood_in_the_queue_does_not_keep_others_waiting() {
    let stage = Stage::start();
    let bed = stage.bed(PATIENT);
    let mut clients = vec![stage.fill(&bed)];
    clients.extend((0..20).map(|_| sent(&bed, KEY, 2)));
    queued(&bed, 20);
    clients.extend((0..2).map(|_| sent(&bed, SMALL, 3)));
    queued(&bed, 22);
    stage.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().status(), 200));
    let order = stage.order();
    let small: Vec<_> = (0..order.len()).filter(|&at| order[at] == 3).collect();
    assert!(small[0] <= 2 && small[1] <= 4, "{order:?}");
}

#[test]
fn a_full_queue_refuses_and_a_flood_makes_room_for_others() {
    let stage = Stage::start();
    let bed = stage.bed(&format!("{PATIENT}queue_requests_max = 3\n"));
    let mut first = stage.fill(&bed);
    let mut flood: Vec<_> = (1..=3)
        .map(|n| {
            let client = sent(&bed, KEY, 2);
            queued(&bed, n);
            client
        })
        .collect();
    refused(&sent(&bed, KEY, 2).response());
    let mut small = sent(&bed, SMALL, 3);
    refused(&flood.pop().expect("the last").response());
    assert_eq!(bed.metric("expedite_shed_total", "queue_full"), 2.0);
    stage.open();
    for client in flood.iter_mut().chain([&mut small, &mut first]) {
        assert_eq!(client.response().status(), 200);
    }
    drop((flood, small, first));
    at_rest(&bed);
    let records = bed.records(6);
    let shed = records.iter().filter(|r| r["outcome"] == "rejected_overload");
    let waits: Vec<_> = shed.map(|record| waited(record).0).collect();
    assert!(waits.len() == 2 && waits[0] == 0.0 && waits[1] > 0.0, "{waits:?}");
}

#[test]
fn a_wait_that_is_too_long_ends_in_a_refusal() {
    let stage = Stage::start();
    let bed = stage.bed("[admission]\nqueue_ms_max = 200\n");
    let mut first = stage.fill(&bed);
    let ms = refused(&sent(&bed, KEY, 2).response());
    assert!((100..=60_000).contains(&ms), "{ms}");
    assert_eq!(bed.metric("expedite_shed_total", "queue_time"), 1.0);
    let record = bed.records(1).remove(0);
    assert_eq!((&record["outcome"], &record["attempts"]), (&"rejected_overload".into(), &0.into()));
    assert!(waited(&record).0 >= 100.0, "{record}");
    // The caller's own limit is shorter than the queue's.
    let bed = stage.bed(PATIENT);
    knows(&bed, 60);
    let mut other = Client::connect(bed.addr);
    other.send(&call(KEY, 1, ""));
    eventually("it runs", || stage.engine.count() == 2);
    let hurried = call(KEY, 2, "x-request-deadline-ms: 300\r\n");
    refused(&ask(bed.addr, &hurried));
    stage.open();
    assert_eq!((first.response().status(), other.response().status()), (200, 200));
}

/// T69: what an engine once said stops nothing when it says no more.
#[test]
fn stale_metrics_hold_nobody_back() {
    let stage = Stage::start();
    let bed = stage.bed(&format!("{PATIENT}stale_ms = 300\n"));
    let mut first = stage.fill(&bed);
    let mut second = sent(&bed, KEY, 2);
    queued(&bed, 1);
    stage.talks.store(false, SeqCst);
    assert_eq!(second.response().status(), 200, "by our own account there is room");
    stage.open();
    assert_eq!(first.response().status(), 200);
}

/// T71: no replica at all is 503, also for who waits already.
#[test]
fn nobody_alive_is_no_overload() {
    let stage = Stage::start();
    let bed = stage.bed(PATIENT);
    let _first = stage.fill(&bed);
    let mut second = sent(&bed, KEY, 2);
    queued(&bed, 1);
    drop(stage.engine);
    let id = replica(&bed)["id"].as_str().expect("id").to_owned();
    let leave = format!("DELETE /replicas/{id}?now=1 HTTP/1.1\r\nHost: gw\r\n\r\n");
    assert!(ask(bed.admin, leave.as_bytes()).status() < 300);
    let answer = second.response();
    assert_eq!((answer.status(), answer.field("retry-after")), (503, Some("1")));
    assert_eq!(answer.json()["error"]["code"], "no_healthy_replica");
}

#[test]
fn what_no_replica_can_ever_hold_is_the_callers_mistake() {
    let stage = Stage::start();
    let bed = stage.bed(PATIENT);
    knows(&bed, 0);
    let body = |n: u64| {
        format!("{{\"model\":\"m\",\"stream\":true,\"max_tokens\":{n},\"prompt\":[2,9,9,9]}}")
    };
    let of = |n| ask(bed.addr, &post_with("/v1/completions", AUTH, &body(n)));
    let answer = of(1_021);
    assert_eq!((answer.status(), stage.engine.count()), (400, 0), "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(of(1_020).status(), 200);
}

/// Predictions of a preset refuse nobody; those of what was seen do.
#[test]
fn an_objective_counts_once_the_engines_times_are_known() {
    let stage = Stage::start();
    let pool = "slo = { ttft_ms = 0.001, tpot_ms = 50 }\n".to_owned();
    let bed = Bed::start(&[stage.engine.addr], Settings { pool, ..Settings::default() });
    let mut answers = Vec::new();
    for _ in 0..40 {
        answers.push(ask(bed.addr, &call(KEY, 2, "")));
    }
    let good = answers.iter().take_while(|answer| answer.status() == 200).count();
    assert!((32..40).contains(&good), "{good} before the first refusal");
    for answer in answers.iter().skip(good) {
        refused(answer);
    }
    assert_eq!(bed.metric("expedite_shed_total", "\"ttft\""), (40 - good) as f64);
    assert_eq!(stage.engine.count(), good);
    at_rest(&bed);
    let records = bed.records(40);
    let cost = records.iter().skip(good).map(|r| (&r["outcome"], &r["input_tokens"]));
    cost.for_each(|(outcome, input)| assert!(outcome == "rejected_overload" && *input == 0));
}

/// The same for callers who ask for whole answers only.
#[test]
fn whole_answers_teach_the_engines_times_too() {
    let said = r#"{"id":"c","object":"text_completion","created":1,"model":"m",
        "choices":[{"index":0,"text":"x","finish_reason":"length"}],
        "usage":{"prompt_tokens":8,"completion_tokens":10,"total_tokens":18}}"#;
    let engine = Engine::start_telling(
        move |_, wire| wire.write_all(&json(200, said)).map(|()| After::Keep),
        || metrics(0),
    );
    let pool = "slo = { ttft_ms = 0.001 }\n".to_owned();
    let bed = Bed::start(&[engine.addr], Settings { pool, ..Settings::default() });
    let body = r#"{"model":"m","max_tokens":10,"prompt":[2,9,9,9,9,9,9,9]}"#;
    let status = || ask(bed.addr, &post_with("/v1/completions", AUTH, body)).status();
    let answers: Vec<_> = (0..40).map(|_| status()).collect();
    let good = answers.iter().take_while(|status| **status == 200).count();
    assert!((32..40).contains(&good), "{good} before the first refusal");
    assert!(answers.iter().skip(good).all(|status| *status == 429), "{answers:?}");
}
