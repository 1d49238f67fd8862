//! The page for people and what it reads, and the secret of the admin listener.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::common::engine::Engine;
use crate::common::faults::counted;
use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{Response, ask, get, post_with};
use crate::text;

const SECRET: &str = "canary-admin-secret-1";
const PAGE: &str = "src/admin/status.html";

fn engine() -> Engine {
    Engine::always(counted())
}

/// One stream to its end and to its record.
fn served(bed: &Bed) {
    let json =
        "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let answer = ask(bed.addr, &post_with("/v1/chat/completions", AUTH, json));
    assert_eq!(answer.words(), "ab");
    bed.records(1);
}

fn with(admin: SocketAddr, method: &str, path: &str, fields: &str) -> Response {
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Content-Length: 0\r\n\r\n");
    ask(admin, head.as_bytes())
}

fn bearer(secret: &str) -> String {
    format!("Authorization: Bearer {secret}\r\n")
}

#[test]
fn the_page_stands_alone_and_what_it_reads_is_there() {
    let engine = engine();
    let bed = Bed::of(&[engine.addr]);
    served(&bed);
    let page = ask(bed.admin, &get("/status"));
    assert_eq!(
        (page.status(), page.field("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    let policy = page.field("content-security-policy").expect("policy");
    assert!(policy.starts_with("default-src 'none'; ") && policy.contains("connect-src 'self'"));
    let page = page.text();
    assert_eq!(page, text(PAGE));
    for never in ["http:", "https:", "//", "src=", "href=", "@import", "url(", "innerHTML", "eval"]
    {
        let mut code = page.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert_eq!(code.find(|line| line.contains(never)), None, "{never}");
    }
    let status = ask(bed.admin, &get("/status.json")).json();
    let decisions = ask(bed.admin, &get("/decisions?last=5")).json();
    let roots = [
        ('s', &status),
        ('p', &status["pools"][0]),
        ('r', &status["pools"][0]["replicas"][0]),
        ('t', &status["tenants"][0]),
        ('d', &decisions["decisions"][0]),
    ];
    for (letter, root) in roots {
        let paths = accesses(&page, letter);
        assert!(paths.len() >= 5, "{letter} is read in {paths:?} only");
        for path in paths {
            has(root, &path).unwrap_or_else(|key| panic!("{letter}.{path}: no {key} in {root}"));
        }
    }
}

/// What is read of the object that the script calls `letter`, such as `queue.shed`.
fn accesses(page: &str, letter: char) -> Vec<String> {
    let script = page.split_once("<script>").expect("script").1;
    let start = format!("{letter}.");
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_$.".contains(c);
    let found = script.match_indices(&start).filter(|(at, _)| {
        // Not the end of a longer name, and not the end of a sentence.
        let before = script[..*at].chars().next_back();
        let after = script[at + 2..].chars().next();
        !before.is_some_and(is_name) && after.is_some_and(|c| c.is_ascii_lowercase())
    });
    found
        .map(|(at, _)| {
            let rest = &script[at + 2..];
            rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())].to_owned()
        })
        .collect()
}

/// Follows a path through objects; the key that is missing. What follows an array or a number is a
/// method's name.
fn has(root: &Value, path: &str) -> Result<(), String> {
    let mut at = root;
    for key in path.split('.') {
        let Some(object) = at.as_object() else { return Ok(()) };
        at = object.get(key).ok_or_else(|| key.to_owned())?;
    }
    Ok(())
}

#[test]
fn the_status_counts_what_the_metrics_count() {
    let engine = engine();
    let bed = Bed::of(&[engine.addr]);
    served(&bed);
    let status = ask(bed.admin, &get("/status.json")).json();
    let pool = &status["pools"][0];
    assert_eq!(pool["outcomes"].as_object().expect("outcomes").len(), 1, "{pool}");
    assert_eq!(pool["outcomes"]["ok"], 1, "{pool}");
    assert_eq!(pool["tokens"]["input"], 5);
    assert_eq!(pool["tokens"]["output"], 2);
    for (key, metric, labels) in [
        (&pool["ttft_ms"], "expedite_ttft_seconds_count", "pool=\"p\""),
        (&pool["tpot_ms"], "expedite_tpot_seconds_count", "pool=\"p\""),
        (&status["overhead_ms"]["total"], "expedite_overhead_seconds_count", "stage=\"total\""),
    ] {
        let count = key["count"].as_u64().expect("count");
        assert_eq!(count as f64, bed.metric(metric, labels), "{metric}: {key}");
        // Two events that one read brings have no time between them, which is not counted.
        if metric.contains("tpot") && count == 0 {
            continue;
        }
        assert_eq!(count, 1, "{metric}");
        let at = |q: &str| key[q].as_f64().expect(q);
        assert!(0.0 < at("p50") && at("p50") <= at("p95") && at("p95") <= at("p99"), "{key}");
    }
    assert_eq!(pool["queue_wait_ms"]["p50"], Value::Null, "nothing waited: {pool}");
    let replica = &pool["replicas"][0];
    assert_eq!((&replica["pending_prefill_tokens"], &replica["in_flight"]), (&0.into(), &0.into()));
    assert_eq!(replica["prefix_mode"], "text");
    let all = ask(bed.admin, &get("/decisions")).json();
    let few = ask(bed.admin, &get("/decisions?last=1")).json();
    let (whole, brief) = (&all["decisions"][0], &few["decisions"][0]);
    assert_eq!(whole["request_id"], brief["request_id"]);
    assert!(brief["terms"].is_object() && brief["terms"] == whole["terms"], "{brief}");
    assert!(whole["candidates"].is_array() && brief["candidates"].is_null(), "{brief}");
    assert_eq!(ask(bed.admin, &get("/decisions?last=0")).json()["decisions"], Value::Array(vec![]));
}

#[test]
fn the_admin_secret_guards_all_but_liveness_and_is_told_nowhere() {
    let engine = engine();
    let server = format!("admin_secret = \"{SECRET}\"\n");
    let bed = Bed::start(&[engine.addr], Settings { server, ..Settings::default() });
    let asked = |path: &str, fields: &str| with(bed.admin, "GET", path, fields);
    for path in ["/live", "/ready", "/status"] {
        assert_eq!(asked(path, "").status(), 200, "{path}");
    }
    for path in ["/metrics", "/status.json", "/decisions", "/snapshot", "/debug/heap"] {
        for fields in ["", &bearer("canary-admin-secret-2"), &bearer("")] {
            let refused = asked(path, fields);
            assert_eq!(refused.status(), 401, "{path} {fields}");
            assert_eq!(refused.field("www-authenticate"), Some("Bearer"));
            assert!(!refused.text().contains("canary"));
        }
        let answer = asked(path, &bearer(SECRET));
        assert_eq!(answer.status(), 200, "{path}");
        assert!(!answer.text().contains("canary"), "{path} tells the secret");
    }
    let more = [("POST", "/drain"), ("POST", "/replicas"), ("DELETE", "/replicas/r")];
    for (method, path) in more.into_iter().chain([("GET", "/debug/profile")]) {
        assert_eq!(with(bed.admin, method, path, "").status(), 401, "{method} {path}");
    }
    assert_eq!(asked("/ready", "").status(), 200, "nothing has drained");
    // Another secret comes by a reload, which the first one still opens, and only that.
    let (status, said) = bed.reload(|text| text.replace(SECRET, "canary-admin-secret-3"));
    assert_eq!(status, 401, "{said}");
    assert_eq!(asked("/status.json", &bearer(SECRET)).json()["reloads"], 0);
    let answer = with(bed.admin, "POST", "/reload", &bearer(SECRET));
    assert_eq!((answer.status(), answer.text().contains("canary")), (200, false));
    assert_eq!(asked("/status.json", &bearer(SECRET)).status(), 401);
    assert_eq!(asked("/status.json", &bearer("canary-admin-secret-3")).status(), 200);
}

#[test]
fn a_foreign_web_page_cannot_drain() {
    let engine = engine();
    let bed = Bed::of(&[engine.addr]);
    let foreign = "Sec-Fetch-Site: cross-site\r\n";
    assert_eq!(with(bed.admin, "POST", "/drain", foreign).status(), 403);
    assert_eq!(with(bed.admin, "GET", "/ready", "").status(), 200);
}

#[test]
fn a_page_whose_name_leads_here_changes_nothing() {
    let engine = engine();
    let bed = Bed::of(&[engine.addr]);
    let port = bed.admin.port();
    let asked = |host: &str, method: &str, path: &str, fields: &str| {
        let fields = format!("{fields}Connection: close\r\nContent-Length: 0\r\n");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        ask(bed.admin, head.as_bytes()).status()
    };
    let evil = format!("evil.example:{port}");
    let own = format!("Origin: http://{evil}\r\nSec-Fetch-Site: same-origin\r\n");
    let orders = [("POST", "/replicas"), ("DELETE", "/replicas/r"), ("POST", "/drain")];
    for (method, path) in orders.into_iter().chain([("POST", "/reload"), ("GET", "/status.json")]) {
        assert_eq!(asked(&evil, method, path, &own), 403, "{method} {path}");
    }
    // Programs call by name.
    assert_eq!(asked(&evil, "DELETE", "/replicas/r", ""), 404);
    assert_eq!(asked(&evil, "POST", "/reload", ""), 200);
    for path in ["/metrics", "/ready", "/live", "/status", "/status.json"] {
        assert_eq!(asked(&evil, "GET", path, ""), 200, "{path}");
    }
    // And the page at the addresses that no other site can have.
    for host in [bed.admin.to_string(), format!("localhost:{port}"), format!("[::1]:{port}")] {
        let own = format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n");
        assert_eq!(asked(&host, "GET", "/status.json", &own), 200, "{host}");
        assert_eq!(asked(&host, "DELETE", "/replicas/nobody", &own), 404, "{host}");
    }
}

#[test]
fn commands_take_the_secret_from_the_file_or_the_environment() {
    let engine = engine();
    let server = format!("admin_secret = \"{SECRET}\"\n");
    let bed = Bed::start(&[engine.addr], Settings { server, ..Settings::default() });
    let folder = tempfile::tempdir().expect("folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let admin = bed.admin.to_string();
    let config = |secret: &str| {
        format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"{admin}\"\n\
             admin_secret = \"{secret}\"\n[[pool]]\nname = \"p\"\n\
             replicas = [\"http://{}\"]\n[[tenant]]\nid = \"acme\"\nkeys = []\n",
            engine.addr
        )
    };
    let (right, wrong) =
        (file("right", &config(SECRET)), file("wrong", &config("canary-other-secret")));
    let body =
        file("body", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    let run = |secret: Option<&str>, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_expedite"));
        command.args(args).env_remove("EXPEDITE_ADMIN_SECRET");
        secret.map(|secret| command.env("EXPEDITE_ADMIN_SECRET", secret));
        let output = command.output().expect("run");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains("canary"), "{said}");
        (output.status.code(), said)
    };
    let orders: [&[&str]; 2] = [&["quota", "show", "acme"], &["explain", "--request", &body]];
    for order in orders {
        let by = |secret, config: &str| run(secret, &[order, &["--config", config]].concat());
        let (code, said) = by(None, &right);
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = by(None, &wrong);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("wants another secret"), "{said}");
        let (code, said) = by(Some(SECRET), &wrong);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(by(Some("canary\r\nx: y"), &right).0, Some(2));
    }
    let asked = ["quota", "--admin", &admin, "show", "acme"];
    assert_eq!(run(Some(SECRET), &asked).0, Some(0));
    assert_eq!(run(None, &asked).0, Some(1));
}
