//! A configuration is reloaded while requests go on: whole or not at all, and nobody notices.

mod common;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

use common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, usage_event};
use common::faults::{at_rest, hello};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, ask, eventually, post_with};
use expedite::config::KeyDigest;
use expedite::sim::{Fleet, SimConfig, SimHandle};
use serde_json::json;

fn chat(model: &str, fields: &str) -> Vec<u8> {
    let body = json!({"model": model, "stream": true, "max_tokens": 8,
        "messages": [{"role": "user", "content": "Hello?"}]});
    post_with("/v1/chat/completions", fields, &body.to_string())
}

fn quick() -> Engine {
    Engine::start(|_, wire| wire.write_all(&hello()).map(|()| After::Keep))
}

/// An engine whose streams send one event, and the rest when told to.
fn held() -> (Engine, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(STREAM_HEAD)?;
        wire.write_all(&chunk(&event("Hello")))?;
        let _ = wait.lock().expect("wait").recv();
        wire.write_all(&chunk(&event(" again")))?;
        wire.write_all(&chunk(&usage_event(3, 2)))?;
        wire.write_all(&chunk(DONE))?;
        wire.write_all(LAST_CHUNK).map(|()| After::Keep)
    });
    (engine, go)
}

/// Three simulated replicas and a gateway.
fn simulated() -> (SimHandle, Bed) {
    let (ports, model) = (vec![0; 3], "base".to_owned());
    let fleet = Fleet::start(SimConfig { ports, model, ..SimConfig::default() }).expect("fleet");
    let addrs: Vec<_> = (0..3).map(|i| fleet.addr(i)).collect();
    let bed = Bed::unready(&addrs, Settings::default());
    (fleet, bed)
}

#[test]
fn pools_replicas_names_and_tenants_change_under_an_open_stream() {
    let ((old, go), new) = (held(), quick());
    let bed = Bed::start(&[old.addr], Settings::default());
    let mut stream = Client::connect(bed.addr);
    stream.send(&chat("m", AUTH));
    eventually("the stream is open", || old.count() == 1);

    let key = KeyDigest::of(b"sk-more").to_text();
    let (status, said) = bed.reload(|text| {
        let more = format!("[[tenant]]\nid = \"more\"\nkeys = [\"{key}\"]\npools = [\"q\"]\n");
        let pool = format!("[[pool]]\nname = \"q\"\nreplicas = [\"http://{}\"]\n", new.addr);
        text.replace("aliases = [\"m\"]", "aliases = [\"n\"]")
            .replace(&format!("http://{}", old.addr), &format!("http://{}", new.addr))
            .replace("[[pool]]\nname = \"p\"", &format!("{pool}[[pool]]\nname = \"p\""))
            + &more
    });
    // One address in two pools is refused by the file's check, and nothing has changed.
    assert_eq!(status, 400, "{said}");
    assert!(said["error"].as_str().is_some_and(|why| why.contains("test.toml:")), "{said}");

    let other = quick();
    let (status, said) = bed.reload(|text| {
        text.replacen(&format!("http://{}", new.addr), &format!("http://{}", other.addr), 1)
    });
    assert_eq!((status, &said), (200, &json!({"reloaded": true, "next_start": []})));
    eventually("the new pool serves", || {
        ask(bed.addr, &chat("q", "Authorization: Bearer sk-more\r\n")).status() == 200
    });
    eventually("the new alias serves", || ask(bed.addr, &chat("n", AUTH)).status() == 200);
    // As long as a replica has not told its names, an unknown one may yet turn out to be its.
    eventually("the old alias is gone", || ask(bed.addr, &chat("m", AUTH)).status() == 404);
    let foreign = ask(bed.addr, &chat("n", "Authorization: Bearer sk-more\r\n"));
    assert_eq!(foreign.status(), 404, "a pool that is not the tenant's");
    assert_eq!(old.count(), 1, "whoever has left gets nothing new");

    go.send(()).expect("told");
    let response = stream.response();
    assert!(response.complete && response.words() == "Hello again", "{}", response.text());
    drop(stream);
    at_rest(&bed);
    let reloads = |result: &str| bed.metric("expedite_reloads_total", result);
    assert_eq!((reloads("done"), reloads("refused")), (1.0, 1.0));
}

#[test]
fn a_bad_file_changes_nothing_and_the_next_good_one_is_taken() {
    let engine = quick();
    let bed = Bed::start(&[engine.addr], Settings::default());
    for (bad, why) in [
        ("[routting]\n", "did you mean \"routing\""),
        ("[[pool]\n", "test.toml:"),
        ("[timeouts]\nconnect_ms = -1\n", "connect_ms"),
        ("[[pool]]\nname = \"t\"\nreplicas = [\"http://t:1\"]\ntokenizer = \"/none\"\n", "/none"),
    ] {
        let (status, said) = bed.reload(|text| format!("{text}{bad}"));
        assert!(
            status == 400 && said["error"].to_string().contains(&why.replace('"', "\\\"")),
            "{said}"
        );
        assert_eq!(ask(bed.addr, &chat("m", AUTH)).status(), 200);
        let (status, _) = bed.reload(|text| text.replace(bad, ""));
        assert_eq!(status, 200);
    }
    let (_, said) = bed.reload(|text| text.replace("cores = [0]", "cores = [1]"));
    assert_eq!(said["next_start"], json!(["cores in [server]"]));
    at_rest(&bed);
}

#[test]
fn what_a_tenant_has_spent_stays_spent() {
    let engine = quick();
    let more = "tokens_per_second = 1\nburst_tokens = 1000\n".to_owned();
    let bed = Bed::start(&[engine.addr], Settings { more, ..Settings::default() });
    let left = || {
        let response = ask(bed.addr, &chat("m", AUTH));
        let left = response.field("x-ratelimit-remaining-tokens").map(str::to_owned);
        left.and_then(|left| left.parse::<u64>().ok()).expect("a number")
    };
    let before = left();
    let (status, _) = bed.reload(|text| text.replace("burst_tokens = 1000", "burst_tokens = 900"));
    assert_eq!(status, 200);
    let after = left();
    assert!(after + 90 < before && before < 1_000, "{before} then {after}");
}

#[test]
fn a_prefix_is_known_after_a_reload() {
    let (_fleet, bed) = simulated();
    let text = "A document that all ask about. ".repeat(100);
    let body = json!({"model": "p", "max_tokens": 2,
        "messages": [{"role": "user", "content": text}]});
    let send = || ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &body.to_string()));
    eventually("it serves", || send().status() == 200);
    let before = send();
    let (status, _) = bed.reload(|text| text.replace("aliases = [\"m\"]", "aliases = [\"n\"]"));
    assert_eq!(status, 200);
    let after = send();
    for name in ["x-gateway-assigned-node", "x-gateway-cached-tokens"] {
        assert!(before.field(name).is_some() && before.field(name) == after.field(name), "{name}");
    }
    assert_ne!(after.field("x-gateway-cached-tokens"), Some("0"));
    at_rest(&bed);
}

#[test]
fn nobody_notices_reload_after_reload() {
    let (fleet, bed) = simulated();
    eventually("it serves", || ask(bed.addr, &chat("p", AUTH)).status() == 200);
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(bed.addr);
                while !over.load(SeqCst) {
                    client.send(&chat("p", AUTH));
                    let response = client.response();
                    assert!(response.status() == 200 && response.complete, "{}", response.text());
                    answered.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 0..40 {
            // A replica leaves and comes back; a stranger comes and goes.
            let gone = format!(", \"http://{}\"", fleet.addr(2));
            let (status, said) = bed.reload(|text| match round % 2 {
                0 => text.replace(&gone, ", \"http://127.0.0.1:9\""),
                _ => text.replace(", \"http://127.0.0.1:9\"", &gone),
            });
            assert_eq!(status, 200, "{said}");
        }
        let before = answered.load(SeqCst);
        eventually("requests go on", || answered.load(SeqCst) > before + 40);
        over.store(true, SeqCst);
    });
    at_rest(&bed);
}
