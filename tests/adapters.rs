//! LoRA adapters: requests go where their adapter is, or it is loaded where they go.

mod common;

use common::faults::at_rest;
use common::gateway::{AUTH, Bed, Settings};
use common::{Response, ask, eventually, get, post_with};
use expedite::sim::{Fault, Fleet, Kind, SimConfig, SimHandle};

/// Slots that the simulator tells (`max_lora`).
const SLOTS: usize = 8;

/// A replica that lists these adapters.
fn replica(adapters: &[(&str, &str)]) -> SimHandle {
    let loras = adapters.iter().map(|(name, path)| ((*name).to_owned(), (*path).to_owned()));
    let config =
        SimConfig { model: "base".to_owned(), loras: loras.collect(), ..SimConfig::default() };
    Fleet::start(config).expect("fleet")
}

fn in_front_of(replicas: &[&SimHandle], pool: &str, adapters: &[&str]) -> Bed {
    let addrs: Vec<_> = replicas.iter().map(|fleet| fleet.addr(0)).collect();
    let bed = Bed::unready(&addrs, Settings { pool: pool.to_owned(), ..Settings::default() });
    eventually("the replicas have told what they serve", || {
        let status = ask(bed.admin, &get("/status.json")).json();
        let all = status["pools"][0]["replicas"].as_array().expect("replicas").clone();
        let told = |r: &serde_json::Value| r["adapter_slots"] == SLOTS && r["state"] == "up";
        all.iter().all(told) && adapters.iter().all(|name| listed(&bed).contains(name.to_owned()))
    });
    bed
}

fn listed(bed: &Bed) -> String {
    let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
    ask(bed.addr, list.as_bytes()).text()
}

fn chat(bed: &Bed, model: &str) -> Response {
    let json = format!(
        "{{\"model\":\"{model}\",\"max_tokens\":2,\"stream\":true,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
    );
    ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &json))
}

/// What a replica itself lists.
fn lists(fleet: &SimHandle, adapter: &str) -> bool {
    ask(fleet.addr(0), &get("/v1/models")).text().contains(&format!("\"{adapter}\""))
}

/// T97: loaded on one only, and idle; an unknown one is nobody's.
#[test]
fn an_adapter_is_asked_where_it_is_and_an_unknown_one_nowhere() {
    let (with, without) = (replica(&[("sql", "/srv/sql")]), replica(&[]));
    let bed = in_front_of(&[&without, &with], "", &["sql"]);
    for _ in 0..20 {
        let answer = chat(&bed, "sql");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.text().contains("\"model\":\"sql\""), "{}", answer.text());
    }
    assert_eq!((with.stats(0).requests, without.stats(0).requests), (20, 0));
    assert!(!lists(&without, "sql"), "nothing is loaded unasked");
    let unknown = chat(&bed, "nope");
    assert_eq!(
        (unknown.status(), &unknown.json()["error"]["code"]),
        (404, &"model_not_found".into())
    );
    assert_eq!(with.stats(0).requests + without.stats(0).requests, 20);
    with.fault(0, Fault::new(Kind::ResetBeforeHead));
    let gone = chat(&bed, "sql");
    assert!(matches!(gone.status(), 502 | 503), "never the base model's answer");
    assert_eq!(without.stats(0).requests, 0);
}

#[test]
fn an_adapter_is_loaded_on_demand_where_it_is_not() {
    let (with, without) = (replica(&[("sql", "/srv/sql")]), replica(&[]));
    let bed = in_front_of(&[&without, &with], "adapters = \"load\"\n", &["sql"]);
    with.fault(0, Fault::new(Kind::Refuse));
    let answer = chat(&bed, "sql");
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.text().contains("\"model\":\"sql\""));
    assert!(lists(&without, "sql"));
    assert_eq!(chat(&bed, "nope").status(), 404);
    let count = |hit| bed.metric("expedite_adapter_requests_total", hit);
    assert_eq!((count("hit=\"true\""), count("hit=\"false\"")), (0.0, 1.0));
    eventually("it is found there", || {
        assert_eq!(chat(&bed, "sql").status(), 200);
        count("adapter=\"sql\",hit=\"true\"") >= 2.0
    });
    at_rest(&bed);
}

#[test]
fn many_at_once_load_it_once() {
    let (with, without) = (replica(&[("sql", "/srv/sql")]), replica(&[]));
    let bed = in_front_of(&[&without, &with], "adapters = \"load\"\n", &["sql"]);
    with.fault(0, Fault::new(Kind::Refuse));
    let addr = bed.addr;
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(move || {
                let json = "{\"model\":\"sql\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\
                            \"content\":\"hi\"}]}";
                let answer = ask(addr, &post_with("/v1/chat/completions", AUTH, json));
                assert_eq!(answer.status(), 200, "{}", answer.text());
            });
        }
    });
    assert_eq!(without.stats(0).completed, 16);
    at_rest(&bed);
}

#[test]
fn the_longest_idle_makes_room_and_what_was_there_stays() {
    let names: Vec<String> = (0..SLOTS + 3).map(|n| format!("a{n:02}")).collect();
    let paths: Vec<String> = names.iter().map(|name| format!("/srv/{name}")).collect();
    let all = names.iter().map(String::as_str).zip(paths.iter().map(String::as_str));
    let all: Vec<_> = all.collect();
    let (with, other) = (replica(&all), replica(&[("fixed", "/srv/fixed")]));
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let bed = in_front_of(&[&other, &with], "adapters = \"load\"\n", &known);
    with.fault(0, Fault::new(Kind::Refuse));
    for (n, name) in names.iter().enumerate() {
        let answer = chat(&bed, name);
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
        assert!(lists(&other, name) && lists(&other, "fixed"));
        let loaded = names.iter().filter(|name| lists(&other, name)).count();
        assert_eq!(loaded, (n + 1).min(SLOTS));
        // The first is asked for again and again: it is never the one that has been idle longest.
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert_eq!(chat(&bed, &names[0]).status(), 200);
    }
    assert!(lists(&other, &names[0]) && !lists(&other, &names[1]));
    assert_eq!(chat(&bed, &names[1]).status(), 200, "and it comes back");
    at_rest(&bed);
}

#[test]
fn a_replica_that_cannot_load_it_is_left_out() {
    let (with, without) = (replica(&[("lost", "/nonexistent/lost")]), replica(&[]));
    let bed = in_front_of(&[&without, &with], "adapters = \"load\"\n", &["lost"]);
    for _ in 0..30 {
        assert_eq!(chat(&bed, "lost").status(), 200);
    }
    assert!(!lists(&without, "lost"));
    assert_eq!(without.stats(0).completed, 0);
    with.fault(0, Fault::new(Kind::ResetBeforeHead));
    let failed = chat(&bed, "lost");
    assert!(matches!(failed.status(), 502 | 503), "{}", failed.text());
    at_rest(&bed);
}
