//! Records that never lie: kills, logs that cannot be written, rotation, the stream, and sums.

#[path = "support/command.rs"]
mod command;
mod common;
#[path = "support/redis.rs"]
mod redis_server;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};

use common::engine::{After, Engine, event, json};
use common::faults::{cut_stream, role_event, stream_for_acme};
use common::gateway::{AUTH, Bed, KEY, Settings};
use common::{Client, ask, eventually, find, get, post_with};
use expedite::config::KeyDigest;
use redis_server::Redis;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A gateway that is a process of its own, with its logs in `folder`.
struct Process {
    child: Child,
    addr: SocketAddr,
}

impl Process {
    fn start(folder: &Path, engine: SocketAddr) -> Process {
        let process = Process::unready(folder, engine, "[log]\nlevel = \"off\"\n");
        eventually("the engine is known", || ask(process.addr, &chat_for_acme()).status() == 200);
        process
    }

    /// With further sections; what it logs goes to the file `log`.
    fn unready(folder: &Path, engine: SocketAddr, more: &str) -> Process {
        let digest = KeyDigest::of(KEY.as_bytes()).to_text();
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\ncores = [0]\n\
             [[pool]]\nname = \"p\"\nmodel = \"base\"\naliases = [\"m\"]\n\
             replicas = [\"http://{engine}\"]\n\
             [[tenant]]\nid = \"acme\"\nkeys = [\"{digest}\"]\n{more}"
        );
        std::fs::write(folder.join("gateway.toml"), text).expect("configuration");
        let mut child = Command::new(env!("CARGO_BIN_EXE_expedite"))
            .args(["serve", "--config", "gateway.toml"])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.join("log")).expect("log"))
            .spawn()
            .expect("expedite");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("a line when it is ready");
        let addr = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let addr = addr.and_then(|addr| addr.parse().ok()).expect("an address");
        Process { child, addr }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().expect("its end");
    }
}

/// An engine whose answers have 5 tokens of prompt and 2 of answer; its streams stop after their
/// first word for as long as the sender lives.
fn engine() -> (Engine, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let answer = "{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"base\",\
                  \"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\
                  \"content\":\"hello\"},\"finish_reason\":\"stop\"}],\
                  \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}";
    let engine = Engine::start(move |request, wire| {
        if find(&request.body, b"\"stream\":true").is_none() {
            return wire.write_all(&json(200, answer)).map(|()| After::Keep);
        }
        wire.write_all(&cut_stream(&[role_event(), event("one ")]))?;
        let _ = wait.lock().map(|wait| wait.recv());
        Ok(After::Reset)
    });
    (engine, go)
}

fn chat_for_acme() -> Vec<u8> {
    common::faults::chat_for_acme("")
}

fn lines(path: impl AsRef<Path>) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["request_id"].as_str()).collect()
}

/// The same request under an id of one's own.
fn with_id(request: &[u8], id: &str) -> Vec<u8> {
    let end = find(request, b"\r\n").expect("a request line") + 2;
    [&request[..end], format!("x-request-id: {id}\r\n").as_bytes(), &request[end..]].concat()
}

#[test]
fn after_a_kill_what_had_ended_is_recorded_once_and_what_was_open_is_listed() {
    let folder = tempfile::tempdir().expect("folder");
    let (engine, go) = engine();
    let mut open = Vec::new();
    let mut ended = Vec::new();
    for round in 0..3 {
        let gateway = Process::start(folder.path(), engine.addr);
        let mut clients = Vec::new();
        for n in 0..3 {
            let (id, mut client) = (format!("open-{round}-{n}"), Client::connect(gateway.addr));
            client.send(&with_id(&stream_for_acme(), &id));
            let mut bytes = Vec::new();
            while find(&bytes, b"one ").is_none() {
                bytes.extend(client.read_some(1));
            }
            clients.push(client);
            open.push(id);
        }
        // The kill comes before the writer may have seen them.
        for n in 0..20 {
            let id = format!("ended-{round}-{n}");
            assert_eq!(ask(gateway.addr, &with_id(&chat_for_acme(), &id)).status(), 200);
            ended.push(id);
        }
        // An answer is whole before its record is: what the one core says next, it says after both.
        ask(gateway.addr, &get("/health"));
        gateway.end(Signal::KILL);
        drop(clients);
    }
    Process::start(folder.path(), engine.addr).end(Signal::TERM);
    drop(go);
    let (records, listed) =
        (lines(folder.path().join("usage.jsonl")), lines(folder.path().join("usage.open.jsonl")));
    let mut names = ids(&listed);
    names.sort_unstable();
    assert_eq!(names, open);
    assert!(listed.iter().all(|line| line["outcome"] == "open" && line["certain"] == true));
    assert!(listed.iter().all(|line| line["tenant"] == "acme"));
    for id in &ended {
        let of_it: Vec<_> = records.iter().filter(|r| r["request_id"] == id.as_str()).collect();
        assert_eq!(of_it.len(), 1, "{id}");
        assert_eq!((&of_it[0]["outcome"], &of_it[0]["output_tokens"]), (&"ok".into(), &2.into()));
    }
    assert!(open.iter().all(|id| !ids(&records).contains(&id.as_str())));
    // A clean end leaves no table.
    let hidden = std::fs::read_dir(folder.path()).expect("folder").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with('.'))
    });
    assert_eq!(hidden.count(), 0);
}

#[test]
fn sighup_opens_the_log_anew() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine().0;
    let gateway = Process::start(folder.path(), engine.addr);
    let (path, moved) = (folder.path().join("usage.jsonl"), folder.path().join("moved"));
    ask(gateway.addr, &with_id(&chat_for_acme(), "one"));
    eventually("it is written", || ids(&lines(&path)).contains(&"one"));
    std::fs::rename(&path, &moved).expect("rename");
    gateway.signal(Signal::HUP);
    eventually("it is there again", || path.exists());
    ask(gateway.addr, &with_id(&chat_for_acme(), "two"));
    gateway.end(Signal::TERM);
    assert_eq!(ids(&lines(path)), ["two"]);
    assert!(ids(&lines(moved)).contains(&"one"));
}

fn settings(usage: &str) -> Settings {
    Settings { usage: Some(usage.to_owned()), ..Settings::default() }
}

#[test]
fn a_log_that_cannot_be_written_refuses_or_drops_as_told_and_holds_nobody_up() {
    let engine = engine().0;
    let full = "path = \"/dev/full\"\n";
    let bed = Bed::start(&[engine.addr], settings(full));
    // The first write fails; until then requests pass.
    eventually("it refuses", || ask(bed.addr, &chat_for_acme()).status() == 503);
    let refused = ask(bed.addr, &chat_for_acme());
    assert_eq!(refused.json()["error"]["code"], "usage_unavailable");
    assert!(refused.field("retry-after").is_some());
    assert_eq!(ask(bed.admin, &get("/ready")).status(), 503);
    assert!(bed.metric("expedite_usage_records_total", "failed") >= 1.0);

    let bed = Bed::start(&[engine.addr], settings(&format!("{full}on_full = \"drop\"\n")));
    for _ in 0..50 {
        assert_eq!(ask(bed.addr, &chat_for_acme()).status(), 200);
    }
    eventually("each is counted", || {
        bed.metric("expedite_usage_records_total", "\"dropped\"") >= 50.0
    });
    // The policy says that requests go on: a load balancer must send them.
    assert_eq!(ask(bed.admin, &get("/ready")).status(), 200);
}

#[test]
fn the_log_says_once_that_records_are_not_written_and_once_what_it_cost() {
    let engine = engine().0;
    for (policy, status) in [("refuse", 503), ("drop", 200)] {
        let folder = tempfile::tempdir().expect("folder");
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
        let usage = format!("[usage]\npath = \"fifo\"\non_full = \"{policy}\"\n");
        let gateway = Process::unready(folder.path(), engine.addr, &usage);
        let said = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let times = |what: &str| said().matches(what).count();
        let mut sent = 0;
        let mut ask_once = || {
            sent += 1;
            ask(gateway.addr, &chat_for_acme()).status()
        };
        eventually("the models are known", || ask_once() == status);
        eventually("it is said", || times("cannot be written") == 1);
        for _ in 0..30 {
            assert_eq!(ask_once(), status);
        }
        let reader = std::thread::spawn(move || std::fs::read_to_string(fifo));
        eventually("it is written", || times("can be written again") == 1);
        assert_eq!(ask_once(), 200);
        gateway.end(Signal::TERM);
        let records = reader.join().expect("reader").expect("records").lines().count();
        assert_eq!((times("cannot be written"), times("can be written again")), (1, 1));
        let lost = said()
            .split("lost meanwhile: ")
            .nth(1)
            .and_then(|n| n.split_whitespace().next()?.parse::<usize>().ok());
        match policy {
            "refuse" => assert_eq!((records, lost), (1, None), "{}", said()),
            // Those that came within a try of the reader's coming were in time.
            _ => assert_eq!(lost.unwrap_or(0) + records, sent, "{}", said()),
        }
    }
}

#[test]
fn a_pipe_that_nobody_reads_refuses_until_somebody_does() {
    let folder = tempfile::tempdir().expect("folder");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let engine = engine().0;
    let bed = Bed::start(&[engine.addr], settings(&format!("path = \"{}\"\n", fifo.display())));
    assert_eq!(ask(bed.addr, &chat_for_acme()).status(), 503);
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(std::fs::File::open(fifo).expect("fifo"))
            .read_line(&mut line)
            .expect("line");
        line
    });
    // The reader stays for one line only, and with it the request passes.
    eventually("it accepts", || ask(bed.addr, &chat_for_acme()).status() == 200);
    let record: Value = serde_json::from_str(&reader.join().expect("reader")).expect("record");
    assert_eq!(record["outcome"], "ok");
}

#[test]
fn a_full_log_is_rotated_and_sums_are_over_all_files_packed_or_not() {
    let folder = tempfile::tempdir().expect("folder");
    let log = folder.path().join("usage.jsonl");
    let engine = engine().0;
    let usage = format!("path = \"{}\"\nrotate_bytes = 2000\n", log.display());
    let bed = Bed::start(&[engine.addr], settings(&usage));
    for n in 0..30 {
        let id = format!("r-{n}");
        assert_eq!(ask(bed.addr, &with_id(&chat_for_acme(), &id)).status(), 200);
        eventually("it is written", || {
            bed.metric("expedite_usage_records_total", "written") >= f64::from(n + 1)
        });
    }
    bed.gateway.stop();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder.path())
        .expect("folder")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    assert!(files.len() > 3, "{files:?}");
    // One of them packed, another with half a line at its end, and one that is no log.
    let packed = Command::new("gzip").arg(&files[1]).status().expect("gzip");
    assert!(packed.success());
    let mut torn = std::fs::OpenOptions::new().append(true).open(&files[2]).expect("file");
    torn.write_all(b"{\"ts\":\"2026").expect("half a line");
    std::fs::write(folder.path().join("usage.jsonl.txt"), "hello\n").expect("file");
    let script = "exec \"$0\" usage sum usage.jsonl* --by tenant,outcome --json";
    let out = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_expedite")])
        .current_dir(folder.path())
        .output()
        .expect("expedite");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let sums: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&sums["foreign_lines"], &sums["torn_files"]), (&1.into(), &1.into()));
    assert_eq!(sums["groups"].as_array().map(Vec::len), Some(1), "{sums}");
    let group = &sums["groups"][0];
    assert_eq!((&group["tenant"], &group["outcome"]), (&"acme".into(), &"ok".into()));
    assert_eq!((&group["requests"], &group["output_tokens"]), (&30.into(), &60.into()));
}

#[test]
fn sums_are_asked_for_in_words_and_mistakes_name_the_right_ones() {
    let folder = tempfile::tempdir().expect("folder");
    let line = |tenant: &str, pool: &str| {
        format!(
            "{{\"ts\":\"2026-01-31T12:00:00.000Z\",\"request_id\":\"r\",\"tenant\":\"{tenant}\",\
             \"pool\":\"{pool}\",\"outcome\":\"ok\",\"input_tokens\":100,\"cached_tokens\":40,\
             \"output_tokens\":10,\"cost\":0.5}}\n"
        )
    };
    let log = [line("a", "p"), line("b", "p"), line("a", "q")].concat();
    let price = "[pool.p]\ninput = 10\ncached = 1\noutput = 100\n";
    std::fs::write(folder.path().join("price.toml"), price).expect("file");
    let sum = |args: &[&str]| {
        let out = command::expedite(folder.path(), &[&["usage", "sum", "-"], args].concat(), &log);
        let [stdout, stderr] =
            [out.stdout, out.stderr].map(|s| String::from_utf8(s).expect("text"));
        (out.status.code(), stdout, stderr)
    };
    let (code, table, told) = sum(&["--by", "tenant"]);
    let want = "tenant  requests  input  cached  output      cost\n\
                a              2    200      80      20  1.000000\n\
                b              1    100      40      10  0.500000\n\
                total          3    300     120      30  1.500000\n";
    assert_eq!((code, table.as_str(), told.as_str()), (Some(0), want, ""));
    let (_, json, _) = sum(&["--by", "pool", "--price", "price.toml", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let of = &json["groups"][0]["cost_of"];
    let parts = ["input", "cached", "output"].map(|part| of[part].as_f64().map(|x| x * 1e6));
    assert_eq!(parts.map(|part| part.map(f64::round)), [Some(1200.0), Some(80.0), Some(2000.0)]);
    assert_eq!(json["groups"][1]["unpriced"], 1, "pool q has no price");
    let (_, json, _) = sum(&["--since", "2026-01-31T12:00:00.001Z", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["total"]["requests"], &json["records"]), (&0.into(), &3.into()));
    for (args, want) in [
        (["--by", "tennant"], "not one of tenant, key_id"),
        (["--since", "yesterday"], "no time such as"),
        (["--since", "2026-13-01"], "no time such as"),
        (["--until", "2026-02-29"], "no time such as"),
        (["--price", "gone.toml"], "cannot read gone.toml"),
    ] {
        let (code, _, told) = sum(&args);
        assert_eq!(code, Some(2));
        assert!(told.contains(want), "{told}");
    }
    let out = command::expedite(folder.path(), &["usage", "sum", "gone.jsonl"], "");
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn each_record_is_in_the_stream_and_a_store_that_is_away_holds_nobody_up() {
    let mut store = Redis::start();
    let folder = tempfile::tempdir().expect("folder");
    let log = folder.path().join("usage.jsonl");
    let engine = engine().0;
    let usage = format!(
        "path = \"{}\"\nstream = \"redis-stream:records\"\nstream_store = \"{}\"\n\
         stream_length_max = 1000\n",
        log.display(),
        store.url()
    );
    let bed = Bed::start(&[engine.addr], settings(&usage));
    let send = |n: u32| {
        let id = format!("r-{n}");
        assert_eq!(ask(bed.addr, &with_id(&chat_for_acme(), &id)).status(), 200);
    };
    let streamed = |n: f64| {
        eventually("the store has them", || {
            bed.metric("expedite_usage_records_total", "streamed") >= n
        });
    };
    (0..20).for_each(send);
    streamed(20.0);
    let records = |store: &Redis| -> Vec<Value> {
        let client = redis::Client::open(store.url()).expect("URL");
        let mut connection = client.get_connection().expect("connection");
        let entries: Vec<(String, Vec<(String, String)>)> = redis::cmd("XRANGE")
            .arg(&["records", "-", "+"])
            .query(&mut connection)
            .expect("entries");
        let ids: std::collections::HashSet<_> = entries.iter().map(|(_, of)| &of[0].1).collect();
        assert_eq!(ids.len(), entries.len(), "each with an id of its own");
        entries.iter().map(|(_, of)| serde_json::from_str(&of[1].1).expect("record")).collect()
    };
    let of_file = lines(&log);
    assert_eq!(records(&store), of_file);
    store.kill();
    (20..40).for_each(send);
    store.restart();
    streamed(40.0);
    assert_eq!(records(&store), lines(&log)[20..]);
    assert_eq!(bed.metric("expedite_usage_records_total", "stream_dropped"), 0.0);
}

/// Whatever the endpoint: where the engine says what it used, that is what is recorded.
#[test]
fn the_engines_usage_is_recorded_on_every_endpoint_that_gives_one() {
    let long = format!("[{}0.5]", "0.25,".repeat(300_000));
    let embedding = |vector: &str| {
        let data = format!("[{{\"object\":\"embedding\",\"index\":0,\"embedding\":{vector}}}]");
        format!(
            "{{\"object\":\"list\",\"data\":{data},\"usage\":{{\"prompt_tokens\":12,\
             \"total_tokens\":12,\"completion_tokens\":0,\"prompt_tokens_details\":null}}}}"
        )
    };
    let words = "x".repeat(2 << 20);
    let chat = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":\"{words}\"}},\"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":12,\"completion_tokens\":5}},\"prompt_logprobs\":null}}"
    );
    let short = chat.replacen(&words, "x", 1);
    let rerank = "{\"id\":\"r\",\"results\":[],\"usage\":{\"total_tokens\":12}}".to_owned();
    let score = "{\"data\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":12}}".to_owned();
    let input = "\"input\":\"x\"";
    for (path, members, answer, output) in [
        ("/v1/embeddings", input, embedding("[0.5]"), 0),
        ("/v1/embeddings", input, embedding(&long), 0),
        ("/v1/rerank", "\"query\":\"x\",\"documents\":[\"y\"]", rerank, 0),
        ("/v1/score", "\"text_1\":\"x\",\"text_2\":\"y\"", score, 0),
        ("/v1/chat/completions", "\"messages\":[{}]", chat, 5),
        ("/v1/chat/completions", "\"messages\":[{}]", short, 5),
    ] {
        let engine = Engine::always(json(200, &answer));
        let bed = Bed::of(&[engine.addr]);
        let request = post_with(path, AUTH, &format!("{{\"model\":\"m\",{members}}}"));
        let got = ask(bed.addr, &request);
        assert!(got.status() == 200 && got.text() == answer, "{path}");
        let record = &bed.records(1)[0];
        assert_eq!(record["input_tokens"], 12, "{path}: {record}");
        assert_eq!(record["output_tokens"], output, "{path}: {record}");
        assert_eq!(record["tokens_source"], "engine", "{path}");
        // A whole answer does not show when its tokens came.
        assert_eq!(record["tpot_ms"], Value::Null, "{path}: {record}");
    }
}

/// A refusal's record says what was asked for, as far as that was read.
#[test]
fn the_record_of_a_refusal_names_the_model_that_was_asked_for() {
    let engine = Engine::always(json(200, "{}"));
    let bed = Bed::of(&[engine.addr]);
    let long = "x".repeat(1_000);
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    for (n, (model, shown)) in [("nobody's", "nobody's"), ("a\\nb", "a\nb"), (&*long, &long[..256])]
        .into_iter()
        .enumerate()
    {
        let json = format!("{{\"model\":\"{model}\",\"stream\":true,{messages}}}");
        assert_eq!(ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &json)).status(), 404);
        let records = bed.records(n + 1);
        let record = records.last().expect("a record");
        assert_eq!((&record["model"], &record["stream"]), (&shown.into(), &true.into()));
        assert_eq!(
            (&record["outcome"], &record["pool"]),
            (&"rejected_invalid".into(), &Value::Null)
        );
    }
}

/// Case 220: what an engine does not count soundly is counted here, and said to be.
#[test]
fn an_answer_without_a_sound_usage_is_counted_here() {
    let text = "x".repeat(400);
    let chat = format!(r#""choices":[{{"message":{{"role":"assistant","content":"{text}"}}}}]"#);
    let calls = format!(r#"[{{"function":{{"name":"f","arguments":"{text}"}}}}]"#);
    let calls = format!(r#""choices":[{{"message":{{"content":null,"tool_calls":{calls}}}}}]"#);
    let response =
        format!(r#""output":[{{"content":[{{"type":"output_text","text":"{text}"}}]}}]"#);
    let message = format!(r#""content":[{{"type":"text","text":"{text}"}}]"#);
    let completion = format!(r#""choices":[{{"text":"{text}"}}]"#);
    let negative = r#","usage":{"prompt_tokens":-3,"completion_tokens":2}"#;
    for (path, said, usage) in [
        ("/v1/chat/completions", &chat, ""),
        ("/v1/chat/completions", &chat, negative),
        ("/v1/chat/completions", &calls, r#","usage":null"#),
        ("/v1/completions", &completion, ""),
        ("/v1/responses", &response, ""),
        ("/v1/messages", &message, ""),
    ] {
        let engine = Engine::always(json(200, &format!("{{{said}{usage}}}")));
        let bed = Bed::of(&[engine.addr]);
        let input = r#""messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x""#;
        let request =
            post_with(path, AUTH, &format!("{{\"model\":\"m\",\"max_tokens\":500,{input}}}"));
        assert_eq!(ask(bed.addr, &request).status(), 200, "{path}");
        let record = &bed.records(1)[0];
        let counted = (&record["output_tokens"], &record["tokens_source"]);
        assert_eq!(counted, (&100.into(), &"gateway".into()), "{path}{usage}: {record}");
        assert_ne!(record["input_tokens"], 0, "{path}");
    }
}
