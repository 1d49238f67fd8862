//! Replicas that go and come back under a gateway: who notices, who is asked, what clients see.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, json};
use common::faults::{IN_TURN, at_rest, chat_for_acme, in_front_of, role_event, states};
use common::faults::{finish_event, stream_for_acme, whole_stream};
use common::gateway::{Bed, Settings};
use common::{ask, eventually, get};
use expedite::sim::{Fault, Fleet, Kind, SimConfig, SimHandle};

fn simulated(replicas: usize) -> (SimHandle, Bed) {
    let config =
        SimConfig { model: "base".to_owned(), ports: vec![0; replicas], ..SimConfig::default() };
    let fleet = Fleet::start(config).expect("fleet");
    let addrs: Vec<_> = (0..replicas).map(|i| fleet.addr(i)).collect();
    let settings = Settings { more: IN_TURN.to_owned(), ..Settings::default() };
    let bed = Bed::unready(&addrs, settings);
    eventually("all replicas are up", || states(&bed).iter().all(|state| state == "up"));
    (fleet, bed)
}

fn short_chat() -> Vec<u8> {
    chat_for_acme(",\"max_tokens\":2")
}

fn refuse(fleet: &SimHandle, replica: usize) {
    fleet.fault(replica, Fault::new(Kind::Refuse));
    let addr = fleet.addr(replica);
    eventually("connects are refused", || TcpStream::connect(addr).is_err());
}

#[test]
fn a_replica_that_goes_and_returns_costs_no_client_anything() {
    let (fleet, bed) = simulated(2);
    let served = |replica| fleet.stats(replica).completed;
    refuse(&fleet, 0);
    for _ in 0..50 {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
    }
    assert_ne!(states(&bed)[0], "up");
    let before = served(0);
    fleet.fault(0, Fault::new(Kind::None));
    eventually("it has traffic again", || {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        served(0) >= before + 3
    });
    assert_eq!(states(&bed), ["up", "up"]);
    at_rest(&bed);
}

#[test]
fn with_nobody_alive_requests_fail_fast_and_recover_alone() {
    let (fleet, bed) = simulated(1);
    refuse(&fleet, 0);
    let refused = |status, code: &str| {
        let response = ask(bed.addr, &short_chat());
        assert!(matches!(response.status(), 502 | 503), "{}", response.text());
        response.status() == status && response.json()["error"]["code"] == code
    };
    eventually("it is known that nobody is alive", || refused(503, "no_healthy_replica"));
    let response = ask(bed.addr, &short_chat());
    assert_eq!((response.status(), response.field("retry-after")), (503, Some("1")));
    eventually("not ready", || ask(bed.admin, &get("/ready")).status() == 503);
    fleet.fault(0, Fault::new(Kind::None));
    eventually("it serves again", || ask(bed.addr, &short_chat()).status() == 200);
    eventually("ready", || ask(bed.admin, &get("/ready")).status() == 200);
    at_rest(&bed);
}

#[test]
fn a_replica_that_serves_stays_in_whatever_its_health_says() {
    let (fleet, bed) = simulated(1);
    fleet.fault(0, Fault { path: Some("/health".to_owned()), ..Fault::status(500) });
    // Requests share a connection; each failed probe has one of its own.
    let probed = fleet.stats(0).connections_accepted + 5;
    eventually("probes failed", || {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        fleet.stats(0).connections_accepted >= probed
    });
    assert_eq!(states(&bed), ["up"]);
}

/// An engine whose process can be killed: open connections are reset, new ones refused.
fn mortal(killed: &Arc<AtomicBool>) -> Engine {
    let killed = Arc::clone(killed);
    Engine::start(move |_, wire| {
        let events = [role_event(), event("a"), event("b"), finish_event("stop"), DONE.to_vec()];
        wire.write_all(STREAM_HEAD)?;
        for bytes in events {
            if killed.load(SeqCst) {
                return Ok(After::Reset);
            }
            wire.write_all(&chunk(&bytes))?;
            std::thread::sleep(Duration::from_millis(2));
        }
        wire.write_all(LAST_CHUNK).map(|()| After::Keep)
    })
}

#[test]
fn killing_one_of_four_under_load_fails_no_request_without_content() {
    const REQUESTS: usize = 600;
    let killed: Vec<Arc<AtomicBool>> = (0..4).map(|_| Arc::default()).collect();
    let mut engines: Vec<Engine> = killed.iter().map(mortal).collect();
    let bed = in_front_of(&engines, "");
    let (started, torn) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while started.fetch_add(1, SeqCst) < REQUESTS {
                    let response = ask(bed.addr, &stream_for_acme());
                    assert_eq!(response.status(), 200, "{}", response.text());
                    if response.complete {
                        assert_eq!(response.words(), "ab");
                        continue;
                    }
                    let text = response.text();
                    assert!(text.contains("\"content\":\"a\""), "without content: {text}");
                    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
                    torn.fetch_add(1, SeqCst);
                }
            });
        }
        eventually("a third is served", || started.load(SeqCst) > REQUESTS / 3);
        killed[0].store(true, SeqCst);
        drop(engines.remove(0));
    });
    let torn = torn.load(SeqCst);
    let truncated = |records: &[serde_json::Value]| {
        records.iter().filter(|r| r["outcome"] == "truncated").count()
    };
    let records = bed.records(REQUESTS);
    assert_eq!(truncated(&records), torn);
    assert!(torn <= 8, "only what was open with content: {torn}");
    assert!(records.iter().filter(|r| r["outcome"] == "ok").count() == REQUESTS - torn);
    at_rest(&bed);
}

#[test]
fn who_says_that_it_is_full_is_left_alone_while_others_have_room() {
    let (fleet, bed) = simulated(3);
    fleet.fault(0, Fault::status(503));
    let began = Instant::now();
    for _ in 0..90 {
        let response = ask(bed.addr, &short_chat());
        assert_eq!(response.status(), 200, "{}", response.text());
    }
    // A third of the traffic would soon have spent the retries of all.
    let asked = bed.metric("expedite_retries_total", "reason=\"full\"") as u64;
    let seconds = began.elapsed().as_secs();
    assert!((1..=2 + seconds).contains(&asked), "asked {asked} times in {seconds} s");
    assert_eq!(states(&bed), ["up", "up", "up"], "full is not ill");
    fleet.fault(0, Fault::new(Kind::None));
    let before = fleet.stats(0).completed;
    eventually("it has traffic again", || {
        assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
        fleet.stats(0).completed > before
    });
    // Where all are full, the engine is asked: it may have room again.
    (0..3).for_each(|replica| fleet.fault(replica, Fault::status(503)));
    let refused = (0..4).filter(|_| ask(bed.addr, &short_chat()).status() == 503).count();
    assert_eq!(refused, 4);
    (0..3).for_each(|replica| fleet.fault(replica, Fault::new(Kind::None)));
    assert_eq!(ask(bed.addr, &short_chat()).status(), 200);
    at_rest(&bed);
}

#[test]
fn a_replica_whose_streams_break_off_is_ejected_though_each_began_well() {
    let (fleet, bed) = simulated(2);
    let cut = |bed: &Bed| {
        let response = ask(bed.addr, &chat_for_acme(",\"stream\":true,\"max_tokens\":8"));
        assert_eq!(response.status(), 200, "{}", response.text());
        !response.complete
    };
    fleet.fault(0, Fault::new(Kind::ResetBetweenEvents).after(3));
    let torn = (0..40).filter(|_| cut(&bed)).count();
    // Three eject it; then one comes to nothing for each trial.
    assert!((3..=8).contains(&torn), "{torn} of 40");
    assert_eq!(states(&bed)[0], "ejected");
    fleet.fault(0, Fault::new(Kind::None));
    let before = fleet.stats(0).completed;
    eventually("it has traffic again", || {
        cut(&bed);
        fleet.stats(0).completed > before
    });
    assert_eq!(states(&bed), ["up", "up"]);
    at_rest(&bed);
}

#[test]
fn who_does_not_take_our_key_draws_no_requests_while_others_serve() {
    let mut engines = vec![Engine::always(json(401, "{\"error\":\"Unauthorized\"}"))];
    engines.push(Engine::always(whole_stream(&[role_event(), event("a"), finish_event("stop")])));
    let bed = in_front_of(&engines, "");
    let began = Instant::now();
    for _ in 0..60 {
        assert_eq!(ask(bed.addr, &stream_for_acme()).status(), 200);
    }
    let seconds = began.elapsed().as_secs() as usize;
    assert!(engines[0].count() <= 2 + seconds, "{} in {seconds} s", engines[0].count());
    assert_eq!(states(&bed), ["up", "up"], "a wrong key is no illness");
    // Alone it is asked each time: the client's key is not at fault, whatever the engine says.
    engines.truncate(1);
    let bed = in_front_of(&engines, "");
    for _ in 0..4 {
        let answer = ask(bed.addr, &stream_for_acme());
        assert_eq!((answer.status(), answer.field("www-authenticate")), (502, None));
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "upstream_error");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("gateway's key")));
    }
    assert_eq!(states(&bed), ["up"]);
    at_rest(&bed);
}
