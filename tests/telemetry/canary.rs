//! Secrets and text of prompts, placed wherever there is room for them, on every kind of way that a
//! request can go: none of it is in anything that the gateway tells.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use expedite::config::KeyDigest;
use rustix::process::{Pid, Signal, kill_process};

use crate::collector;
use crate::common::engine::{After, DONE, Engine, Received, chunk, event, json};
use crate::common::faults::{cut_stream, error_event, hello, role_event};
use crate::common::{Client, Response, ask, eventually, find, get, post_with};

/// Every secret holds this word, and so does every prompt and answer.
const CANARY: &str = "canary";
const CLIENT_KEY: &str = "sk-canary-client-key";
const ADMIN: &str = "canary-admin-secret-1";

/// A gateway that is a process of its own: what it prints is kept.
struct Process {
    child: Child,
    addr: SocketAddr,
    admin: SocketAddr,
}

/// Every secret that a configuration can hold, at the most talkative settings.
fn configuration(folder: &Path, engines: &[&Engine], collector: &Engine, admin: u16) -> String {
    let replicas: Vec<_> = engines.iter().map(|e| format!("\"http://{}\"", e.addr)).collect();
    let digest = KeyDigest::of(CLIENT_KEY.as_bytes()).to_text();
    let access = folder.join("access.jsonl");
    format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:{admin}\"\n\
         admin_secret = \"{ADMIN}\"\ncores = [0]\n\
         [[pool]]\nname = \"p\"\nmodel = \"base\"\naliases = [\"m\"]\nreplicas = [{}]\n\
         api_key = \"canary-upstream-key\"\n\
         [routing]\npolicy = \"round_robin\"\ncache_salt_secret = \"canary-salt-secret-1\"\n\
         [quota]\nstore = \"redis://:canary-password@127.0.0.1:1/0\"\n\
         [usage]\npath = \"usage.jsonl\"\notlp = true\nstream = \"redis-stream:u\"\n\
         stream_store = \"redis://:canary-stream-password@127.0.0.1:1/1\"\n\
         [log]\nlevel = \"trace\"\naccess = \"json\"\naccess_path = \"{}\"\n\
         [otel]\nendpoint = \"http://{}\"\n\
         [timeouts]\nfirst_token_ms = 2000\nnext_token_ms = 500\n\
         [[tenant]]\nid = \"acme\"\nkeys = [\"{digest}\"]\ntokens_per_second = 50000000\n\
         burst_tokens = 50000000\nin_flight_max = 4\n",
        replicas.join(", "),
        access.display(),
        collector.addr,
    )
}

impl Process {
    fn start(folder: &Path) -> Process {
        let log = std::fs::File::create(folder.join("stderr")).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_expedite"))
            .args(["serve", "--config", "gateway.toml"])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("expedite");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        assert!(!line.contains(CANARY));
        let addr = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let addr = addr.and_then(|addr| addr.parse().ok()).expect("an address");
        let text = std::fs::read_to_string(folder.join("gateway.toml")).expect("configuration");
        let admin = text.split("admin = \"").nth(1).and_then(|rest| rest.split('"').next());
        let admin = admin.and_then(|admin| admin.parse().ok()).expect("an address");
        Process { child, addr, admin }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    /// What the admin listener says to who has the secret.
    fn told(&self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN}\r\n{fields}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        ask(self.admin, request.as_bytes())
    }

    fn chat(&self, content: &str, more: &str) -> Response {
        ask(self.addr, &chat(content, more))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chat(content: &str, more: &str) -> Vec<u8> {
    let auth = format!("Authorization: Bearer {CLIENT_KEY}\r\n");
    let json = format!(
        "{{\"model\":\"m\",\"user\":\"canary-user\",\"messages\":[{{\"role\":\"user\",\
         \"content\":\"canary {content}\"}}]{more}}}"
    );
    post_with("/v1/chat/completions?key=canary-query", &auth, &json)
}

/// An engine that does what the prompt says, and quotes it wherever an engine may.
fn engine() -> Engine {
    const STREAM: &str = ",\"stream\":true";
    let answer = |request: &Received, wire: &mut std::net::TcpStream| {
        let asks = |word: &str| find(&request.body, word.as_bytes()).is_some();
        let quoting = "{\"error\":{\"message\":\"cannot read canary prompt\",\
                       \"type\":\"canary-type\",\"param\":null,\"code\":400}}";
        if asks("do-400") {
            return wire.write_all(&json(400, quoting)).map(|()| After::Keep);
        }
        if asks("do-500") {
            return wire
                .write_all(&json(500, &quoting.replace("400", "500")))
                .map(|()| After::Keep);
        }
        if asks("do-502") {
            return wire
                .write_all(&json(502, &quoting.replace("400", "502")))
                .map(|()| After::Keep);
        }
        if asks("do-reset") {
            return Ok(After::Reset);
        }
        if asks("do-event") {
            let event = error_event(500, "failed on canary prompt");
            wire.write_all(&cut_stream(&[event]))?;
            return wire.write_all(&chunk(DONE)).map(|()| After::Close);
        }
        if asks("do-cut") {
            wire.write_all(&cut_stream(&[role_event(), event("canary ")]))?;
            return Ok(After::Reset);
        }
        if asks("do-wait") {
            wire.write_all(&cut_stream(&[role_event(), event("canary ")]))?;
            std::thread::sleep(Duration::from_secs(3));
            return Ok(After::Close);
        }
        if asks(STREAM) {
            return wire.write_all(&hello()).map(|()| After::Keep);
        }
        let whole = "{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"base\",\
                     \"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\
                     \"content\":\"canary answer\"},\"finish_reason\":\"stop\"}],\
                     \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}";
        wire.write_all(&json(200, whole)).map(|()| After::Keep)
    };
    Engine::start(answer)
}

fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    free.local_addr().expect("address").port()
}

/// Every way that a request can go. What a caller gets of its own words is its own.
fn all_ways(gateway: &Process) {
    const STREAM: &str = ",\"stream\":true";
    let answer = gateway.chat("hello", STREAM);
    assert_eq!(answer.words(), "hello", "{answer:?}");
    assert!(gateway.chat("hello", "").text().contains("canary answer"));
    assert_eq!(gateway.chat("do-400", "").status(), 400);
    for (what, more) in [("do-500", ""), ("do-500", STREAM), ("do-event", STREAM)] {
        assert_eq!(gateway.chat(what, more).status(), 502, "{what}");
    }
    for what in ["do-cut", "do-wait"] {
        let answer = gateway.chat(what, STREAM);
        assert!(!answer.complete && answer.text().contains("error"), "{what}");
    }
    // The client goes in mid-stream.
    let mut client = Client::connect(gateway.addr);
    client.send(&chat("do-wait", STREAM));
    client.read_some(64);
    drop(client);
    // Of the caller's making: key, path, body, model, size.
    let with = |auth: &str, body: &str| {
        let auth = format!("Authorization: {auth}\r\n");
        ask(gateway.addr, &post_with("/v1/chat/completions", &auth, body)).status()
    };
    let good = format!("Bearer {CLIENT_KEY}");
    assert_eq!(with("Bearer canary-other-key", "{}"), 401);
    assert_eq!(with("Basic Y2FuYXJ5OmNhbmFyeQ==canary", "{}"), 401);
    assert_eq!(with(&good, "{\"canary prompt"), 400);
    let unknown = "{\"model\":\"no-such-model\",\"messages\":[{\"role\":\"user\",\
                   \"content\":\"x\"}]}";
    assert_eq!(with(&good, unknown), 404);
    assert_eq!(with(&good, "{\"model\":\"m\",\"messages\":\"canary\"}"), 400);
    assert_eq!(gateway.chat("x", ",\"max_tokens\":\"canary\"").status(), 400);
    assert_eq!(gateway.chat("x", ",\"max_tokens\":99000000").status(), 400);
    assert_eq!(gateway.chat("x", ",\"chat_template\":\"canary {{ x }}\"").status(), 400);
    assert_eq!(ask(gateway.addr, &get("/canary-path?canary")).status(), 404);
    assert_eq!(ask(gateway.addr, b"canary \xff\r\n\r\n").status(), 400);
    // Last: both replicas are thrown out for what their engines say.
    for what in ["do-502", "do-502", "do-502", "do-reset", "do-reset", "do-reset"] {
        let status = gateway.chat(what, "").status();
        assert!(matches!(status, 502 | 503), "{what}: {status}");
    }
}

/// What the admin listener tells, by path; each is searched.
fn admin_pages(gateway: &Process) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for path in ["/metrics", "/status", "/status.json", "/decisions", "/snapshot", "/ready"] {
        pages.push((path.to_owned(), gateway.told("GET", path, "", "").text()));
    }
    let open = "Accept: application/openmetrics-text\r\n";
    pages.push(("openmetrics".to_owned(), gateway.told("GET", "/metrics", open, "").text()));
    let call = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"canary\"}]}";
    for path in ["/explain", "/explain?tenant=acme", "/reload", "/replicas", "/drain-canary"] {
        pages.push((path.to_owned(), gateway.told("POST", path, "", call).text()));
    }
    let stranger = ask(
        gateway.admin,
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer canary-wrong\r\n\r\n",
    );
    assert_eq!(stranger.status(), 401);
    pages.push(("a stranger's".to_owned(), stranger.text()));
    pages
}

/// What a command prints, on both of its streams.
fn printed(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_expedite"));
    let output = command.args(args).current_dir(folder).output().expect("run");
    let said = [output.stdout, output.stderr].concat();
    assert!(!said.is_empty(), "{args:?} says nothing");
    String::from_utf8_lossy(&said).into_owned()
}

/// What commands print that have the configuration and a call.
fn commands(folder: &Path) -> Vec<(String, String)> {
    let call = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"canary\"}]}";
    std::fs::write(folder.join("call.json"), call).expect("a call");
    let each: [&[&str]; 5] = [
        &["check", "--config", "gateway.toml"],
        &["check", "--config", "gateway.toml", "--json"],
        &["explain", "--config", "gateway.toml", "--request", "call.json"],
        &["quota", "--config", "gateway.toml", "show", "acme"],
        &["doctor", "--config", "gateway.toml"],
    ];
    each.iter().map(|args| (args.join(" "), printed(folder, args))).collect()
}

/// Everything that is in the folder but what the test wrote; the table of open requests is hidden.
fn left(folder: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder") {
        let entry = entry.expect("entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        if !["gateway.toml", "call.json"].contains(&&*name) {
            let bytes = std::fs::read(entry.path()).expect("a file");
            files.push((name, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    files
}

#[test]
fn no_secret_and_no_prompt_is_in_anything_that_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let (collector, engines) = (collector(), [engine(), engine()]);
    let both: Vec<_> = engines.iter().collect();
    let config = folder.path().join("gateway.toml");
    let text = configuration(folder.path(), &both, &collector, free_port());
    std::fs::write(&config, &text).expect("configuration");
    let gateway = Process::start(folder.path());
    eventually("the engines are known", || {
        let list = format!(
            "GET /v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {CLIENT_KEY}\r\n\r\n"
        );
        let listed = ask(gateway.addr, list.as_bytes()).text();
        engines.iter().all(|e| listed.contains(&crate::common::engine::adapter(e.addr)))
    });
    all_ways(&gateway);
    let mut told = admin_pages(&gateway);
    told.extend(commands(folder.path()));
    // A file whose mistakes are in its secrets: refused with their lines, by both ways to ask.
    let bad = text
        .replace(ADMIN, "canary")
        .replace("redis://:canary-password", "rediss://:canary-password")
        .replace("redis://:canary-stream", "http://:canary-stream")
        .replace("api_key = \"canary", "api_key = 5 # \"canary");
    std::fs::write(&config, bad).expect("configuration");
    let refused = gateway.told("POST", "/reload", "", "");
    assert_eq!(refused.status(), 400);
    told.push(("a refused reload".to_owned(), refused.text()));
    gateway.signal(Signal::HUP);
    told.push(("check".to_owned(), printed(folder.path(), &["check", "--config", "gateway.toml"])));
    let reloads = || gateway.told("GET", "/metrics", "", "").text();
    let twice = "expedite_reloads_total{result=\"refused\"} 2";
    eventually("the signal was heard", || reloads().contains(twice));
    gateway.signal(Signal::TERM);
    let mut gateway = gateway;
    gateway.child.wait().expect("its end");
    for request in collector.requests() {
        told.push((request.path().to_owned(), String::from_utf8_lossy(&request.body).into_owned()));
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    told.extend(left(folder.path()));
    for (whose, said) in &told {
        // The messages of the log name the words of a file by their line, never by themselves.
        let hits: Vec<_> = said.lines().filter(|line| line.contains(CANARY)).collect();
        assert!(hits.is_empty(), "{whose}: {hits:#?}");
    }
    let all = |name: &str| told.iter().filter(|(whose, _)| whose == name).count();
    assert!(all("/v1/traces") > 0 && all("/v1/logs") > 0, "the collector heard of it");
    assert!(read("access.jsonl").lines().count() > 20 && read("usage.jsonl").lines().count() > 15);
    assert!(
        read("stderr").contains(" ejected: its engine answered with an error"),
        "{}",
        read("stderr")
    );
}
