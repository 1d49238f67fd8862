//! Whole gateways, each a process of its own, that share a budget.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use expedite::config::KeyDigest;
use serde_json::{Value, json};

use super::bed::{LEASE_MS, account};
use super::common::engine::{After, Engine, Received, adapter, json as answer_json};
use super::common::gateway::{AUTH, KEY};
use super::common::{Client, ask, eventually, post_with};
use super::redis_server::Redis;

/// Requests to each of four gateways at once.
const EACH: usize = 60;

/// A gateway's process; it ends as by a crash.
struct Process {
    addr: SocketAddr,
    child: Child,
    config: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Process {
    fn start(redis: &Redis, engine: &Engine, tenant: &str) -> Process {
        let folder = tempfile::tempdir().expect("folder");
        let config = folder.path().join("gateway.toml");
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"none\"\ncores = [0]\n\
             [quota]\nstore = \"{}\"\nlease_ms = {LEASE_MS}\ntimeout_ms = 10000\n\
             [routing]\nshare = \"none\"\n\
             [[pool]]\nname = \"p\"\nmodel = \"base\"\naliases = [\"m\"]\n\
             replicas = [\"http://{}\"]\n\
             [usage]\npath = \"none\"\n\
             [[tenant]]\nid = \"acme\"\nkeys = [\"{}\"]\n{tenant}\n",
            redis.url(),
            engine.addr,
            KeyDigest::of(KEY.as_bytes()).to_text(),
        );
        std::fs::write(&config, text).expect("configuration");
        let mut child = Command::new(env!("CARGO_BIN_EXE_expedite"))
            .args(["serve", "--config"])
            .arg(&config)
            .stdout(Stdio::piped())
            .spawn()
            .expect("expedite");
        let mut line = String::new();
        let out = child.stdout.take().expect("stdout");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let addr = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let addr = addr.and_then(|addr| addr.parse().ok()).expect("an address");
        let process = Process { addr, child, config, _folder: folder };
        let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
        eventually("the engine's models are known", || {
            ask(addr, list.as_bytes()).text().contains(&adapter(engine.addr))
        });
        process
    }

    /// Sends so many requests that cost 100 tokens each, every one on its own connection.
    fn send(&self, count: usize) -> Vec<Client> {
        let ids = ["9"; 10].join(",");
        let body = format!("{{\"model\":\"m\",\"prompt\":[{ids}],\"max_tokens\":90}}");
        let request = post_with("/v1/completions", AUTH, &body);
        let connected = |_| {
            let mut client = Client::connect(self.addr);
            client.send(&request);
            client
        };
        (0..count).map(connected).collect()
    }

    fn quota(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_expedite"));
        command.args(["quota", "--json", "--config"]).arg(&self.config).args(arguments);
        let output = command.output().expect("expedite");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Holds an engine's answers back until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().expect("lock") = true;
        self.1.notify_all();
    }
}

/// Requests of clients: a gateway that hears nothing for long sends one of its own, without an id.
fn started(engine: &Engine) -> usize {
    let of_client = |request: &&Received| !request.fields("x-request-id").is_empty();
    engine.requests().iter().filter(of_client).count()
}

fn gated(gate: &Arc<Gate>) -> Engine {
    let gate = Arc::clone(gate);
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40});
    let text = json!({"choices": [{"index": 0, "text": "x"}], "usage": usage}).to_string();
    let answer = answer_json(200, &text);
    Engine::start(move |_, wire| {
        let closed = gate.0.lock().expect("lock");
        drop(gate.1.wait_while(closed, |open| !*open).expect("lock"));
        wire.write_all(&answer).map(|()| After::Keep)
    })
}

#[test]
fn four_processes_start_ten_requests_on_a_budget_for_ten() {
    let (redis, gate) = (Redis::start(), Arc::default());
    let engine = gated(&gate);
    let tenant = "tokens_per_second = 1\nburst_tokens = 1000";
    let gateways: Vec<_> = (0..4).map(|_| Process::start(&redis, &engine, tenant)).collect();
    let mut clients: Vec<_> = gateways.iter().flat_map(|gateway| gateway.send(EACH)).collect();
    eventually("ten have started", || started(&engine) == 10);
    let answered = |client: &&Client| {
        client.0.set_nonblocking(true).expect("socket");
        let some = client.0.peek(&mut [0]).is_ok();
        client.0.set_nonblocking(false).expect("socket");
        some
    };
    eventually("all others are refused", || {
        clients.iter().filter(answered).count() == 4 * EACH - 10
    });
    eventually("their leases are there", || account(&redis, "acme").1 == 10);
    let shown = gateways[3].quota(&["show", "acme"]);
    let of_acme = &shown["accounts"][0];
    assert_eq!((&shown["gateways"], &of_acme["requests"]), (&json!(4), &json!(10)), "{shown:#}");
    assert_eq!(of_acme["in_flight"], 10);
    gate.open();
    let answers: Vec<_> = clients.iter_mut().map(Client::response).collect();
    let with = |status| answers.iter().filter(|answer| answer.status() == status).count();
    assert_eq!((with(200), with(429)), (10, 4 * EACH - 10));
    assert_eq!(started(&engine), 10);
    let refused = answers.iter().find(|answer| answer.status() == 429).expect("refused");
    assert_eq!(refused.field("x-ratelimit-limit-tokens"), Some("1000"));
    assert!(refused.field("retry-after").is_some());
    eventually("all is settled", || account(&redis, "acme").1 == 0);
    // Ten have used forty each.
    let left = gateways[0].quota(&["show", "acme"])["accounts"][0]["tokens_left"].as_u64();
    assert!(left.is_some_and(|left| (600..1_000).contains(&left)), "{left:?}");
    let set = gateways[0].quota(&["set", "acme", "--tokens", "50"]);
    assert_eq!(set["accounts"][0]["tokens_left"], 50);
    let mut refused = gateways[1].send(1);
    assert_eq!(refused[0].response().status(), 429);
    let reset = gateways[0].quota(&["reset", "acme"]);
    assert_eq!(reset["accounts"][0]["tokens_left"], 1_000);
    let mut passing = gateways[2].send(1);
    assert_eq!(passing[0].response().status(), 200);
}

#[test]
fn a_killed_process_frees_its_fifty_and_harms_nobody() {
    let (redis, gate) = (Redis::start(), Arc::default());
    let engine = gated(&gate);
    let tenant = "in_flight_max = 60";
    let mut dies = Process::start(&redis, &engine, tenant);
    let lives = Process::start(&redis, &engine, tenant);
    let mut others = lives.send(10);
    eventually("ten run", || account(&redis, "acme").1 == 10);
    let lost = dies.send(50);
    eventually("sixty run", || account(&redis, "acme").1 == 60);
    assert_eq!(lives.send(1)[0].response().status(), 429);
    dies.kill();
    drop(lost);
    eventually("only those of the living are left", || account(&redis, "acme").1 == 10);
    let mut more = lives.send(50);
    eventually("fifty more run", || account(&redis, "acme").1 == 60);
    gate.open();
    for client in others.iter_mut().chain(&mut more) {
        assert_eq!(client.response().status(), 200);
    }
    eventually("all is settled", || account(&redis, "acme").1 == 0);
}

#[test]
fn what_nobody_holds_any_more_is_not_shown() {
    let (redis, gate) = (Redis::start(), Arc::default());
    let engine = gated(&gate);
    let mut dies = Process::start(&redis, &engine, "in_flight_max = 60");
    let lost = dies.send(5);
    eventually("five run", || account(&redis, "acme").1 == 5);
    dies.kill();
    drop(lost);
    let shown = || {
        let shown = dies.quota(&["show", "acme"])["accounts"][0].clone();
        [&shown["requests"], &shown["in_flight"]].map(|n| n.as_u64().expect("a number"))
    };
    assert_eq!(shown(), [5, 5]);
    eventually("its leases have run out", || shown()[1] == 0);
    assert_eq!(shown(), [0, 0]);
}
