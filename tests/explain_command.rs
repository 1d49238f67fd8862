//! The command `explain`: a table or JSON from a running gateway, and from a snapshot of it.

#[path = "support/command.rs"]
mod command;
mod common;

use std::io::Write;

use common::engine::{After, Engine};
use common::faults::hello;
use common::gateway::Bed;
use common::{ask, get};
use serde_json::Value;

/// Exit code, standard output, standard error.
fn expedite(args: &[&str]) -> (i32, String, String) {
    let run = command::expedite(&std::env::temp_dir(), args, "");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.code().unwrap(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn a_gateway_and_a_snapshot_are_asked() {
    let engines: Vec<_> = (0..3)
        .map(|_| Engine::start(|_, wire| wire.write_all(&hello()).map(|()| After::Keep)))
        .collect();
    let addrs: Vec<_> = engines.iter().map(|engine| engine.addr).collect();
    let bed = Bed::of(&addrs);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let words = "some words of a prompt ".repeat(100);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let body = file("body.json", &body);
    let admin = bed.admin.to_string();
    let (code, table, said) = expedite(&["explain", "--admin", &admin, "--request", &body]);
    assert_eq!(code, 0, "{said}");
    assert!(table.starts_with("pool p, policy cost: ") && table.contains("(estimate)"), "{table}");
    for addr in &addrs {
        assert!(table.contains(&addr.to_string()), "{table}");
    }
    let live: Value = {
        let asked = ["explain", "--admin", &admin, "--request", &body, "--json"];
        serde_json::from_str(&expedite(&asked).1).unwrap()
    };
    let told = ask(bed.admin, &get("/snapshot")).json();
    assert!(told["note"].as_str().unwrap().contains("prefix index"), "{told}");
    let snapshot = file("fleet.json", &ask(bed.admin, &get("/snapshot")).text());
    let replicas: Vec<_> = addrs.iter().map(|addr| format!("\"http://{addr}\"")).collect();
    let replicas = replicas.join(", ");
    let pool = format!("[[pool]]\nname = \"p\"\naliases = [\"m\"]\nreplicas = [{replicas}]\n");
    let config = file("gateway.toml", &pool);
    let base = ["explain", "--config", &config, "--request", &body];
    let asked = [&base[..], &["--snapshot", &snapshot, "--json"]].concat();
    let (code, saved, said) = expedite(&asked);
    assert_eq!(code, 0, "{said}");
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["prompt"]["tokens"], live["prompt"]["tokens"]);
    assert_eq!(saved["request"]["ttft_limit_ms"], live["request"]["ttft_limit_ms"]);
    let costs = |said: &Value| -> Vec<f64> {
        let candidates = said["candidates"].as_array().unwrap().iter();
        candidates.map(|it| it["cost"].as_f64().unwrap()).collect()
    };
    assert_eq!(costs(&saved).len(), 3);
    for (saved, live) in costs(&saved).into_iter().zip(costs(&live)) {
        assert!((saved - live).abs() < 1e-6, "{saved} {live}");
    }
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body.json").display().to_string();
    let missing = expedite(&["explain", "--admin", "127.0.0.1:1", "--request", &body]);
    assert_eq!(missing.0, 1);
    assert!(missing.2.contains("cannot read"), "{}", missing.2);
    std::fs::write(&body, "{}").unwrap();
    let nobody = expedite(&["explain", "--admin", "127.0.0.1:1", "--request", &body]);
    assert!(nobody.0 == 1 && nobody.2.contains("cannot ask 127.0.0.1:1"), "{}", nobody.2);
    let odd = expedite(&["explain", "--admin", "nowhere", "--request", &body]);
    assert!(odd.0 == 2 && odd.2.contains("no address"), "{}", odd.2);
    assert_eq!(expedite(&["explain", "--request", &body]).0, 2);
}
