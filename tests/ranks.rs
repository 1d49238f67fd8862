//! A data-parallel server: each rank is a lane of its own, and a request says which one it is for.

mod common;

use std::io::Write;

use common::engine::{After, Engine, json};
use common::faults::{at_rest, hello, states};
use common::gateway::{AUTH, Bed, Settings};
use common::{ask, eventually, post_with};

/// So many that they do not all find their first home on one rank by chance: once in 2^31 runs.
const DOCUMENTS: usize = 32;

/// What a server with two ranks tells of its load.
fn metrics() -> Vec<u8> {
    let gauge = |name: &str, rank: u32, value: f64| {
        format!("vllm:{name}{{engine=\"{rank}\",model_name=\"base\"}} {value}\n")
    };
    let gauges = [("num_requests_running", 0.0), ("num_requests_waiting", 0.0)];
    let gauges = gauges.into_iter().chain([("kv_cache_usage_perc", 0.0)]);
    let lines = gauges.flat_map(|(name, value)| (0..2).map(move |rank| gauge(name, rank, value)));
    json(200, &lines.collect::<String>())
}

/// A stream whose user text is some four hundred tokens of its own.
fn request(n: usize, question: usize) -> Vec<u8> {
    let text = format!("Document {n}. ").repeat(120);
    let body = format!(
        "{{\"model\":\"m\",\"stream\":true,\"messages\":\
         [{{\"role\":\"user\",\"content\":\"{text} Question {question}?\"}}]}}"
    );
    post_with("/v1/chat/completions", AUTH, &body)
}

#[test]
fn a_rank_is_asked_for_and_keeps_its_prefixes() {
    let engine =
        Engine::start_telling(|_, wire| wire.write_all(&hello()).map(|()| After::Keep), metrics);
    let bed = Bed::start(&[engine.addr], Settings::default());
    eventually("the replica is up", || states(&bed) == ["up"]);
    let rank = |n: usize| {
        let all = engine.requests();
        all[n].fields("x-data-parallel-rank").first().map(|rank| (*rank).to_owned())
    };
    let mut sent = 0;
    eventually("its ranks are known", || {
        assert_eq!(ask(bed.addr, &request(1_000 + sent, 0)).status(), 200);
        sent += 1;
        rank(sent - 1).is_some()
    });
    let mut homes = Vec::new();
    for question in 0..3 {
        for n in 0..DOCUMENTS {
            assert_eq!(ask(bed.addr, &request(n, question)).status(), 200);
            let asked = rank(sent).expect("a rank");
            sent += 1;
            if question == 0 {
                homes.push(asked);
            } else {
                assert_eq!(asked, homes[n], "question {question} of document {n}");
            }
        }
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes, ["0", "1"], "both ranks get work");
    at_rest(&bed);
}
