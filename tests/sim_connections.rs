//! Connections of the simulator behave as uvicorn's, requests end when their clients leave, and
//! the numbers agree.

mod common;

use std::net::Shutdown;
use std::time::Duration;

use common::{Client, Ended, Response, ask, chat, eventually, get, post, post_with};
use expedite::engine::EngineParams;
use expedite::sim::{EngineKind, Fleet, OnTerm, SimConfig, SimHandle, token_text};

fn paced(ttft_ms: u64, itl_ms: u64) -> SimHandle {
    let [ttft, itl] = [ttft_ms, itl_ms].map(Duration::from_millis);
    let engine = EngineKind::Fixed { ttft, itl };
    Fleet::start(SimConfig { engine, ..SimConfig::default() }).expect("fleet")
}

fn expected(tag: u64, n: u64) -> String {
    let bytes: Vec<u8> = (0..n).flat_map(|i| token_text(tag, i)).collect();
    String::from_utf8(bytes).expect("ASCII")
}

#[test]
fn an_idle_connection_is_closed_after_five_seconds() {
    let fleet = paced(0, 0);
    let mut client = Client::connect(fleet.addr(0));
    let mut never = Client::connect(fleet.addr(0));
    client.send(&get("/health"));
    assert_eq!(client.response().status(), 200);
    std::thread::sleep(Duration::from_millis(4500));
    client.send(&get("/version"));
    assert_eq!(client.response().status(), 200, "4.5 s are within the 5 s");
    assert_eq!(client.rest(), (Vec::new(), Ended::Fin));
    never.send(&get("/health"));
    assert_eq!(never.response().status(), 200, "it never sent a request, so it was kept");
}

#[test]
fn pipelined_and_chunked_requests_are_answered_in_order() {
    let fleet = paced(0, 0);
    let mut client = Client::connect(fleet.addr(0));
    let json = "{\"prompt\":\"[[tag:3]]\",\"max_tokens\":2,\"stream\":true}";
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: sim\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &json[..5],
        json.len() - 5,
        &json[5..]
    );
    let close = "Connection: close\r\n";
    let last = post_with("/v1/completions", close, &json.replace("tag:3", "tag:4"));
    client.send(&[chunked.as_bytes(), &get("/version"), &last].concat());
    let (bytes, ended) = client.rest();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let answers: Vec<&str> = text.split_inclusive("HTTP/1.1 200 OK\r\n").collect();
    assert_eq!((answers.len(), ended), (4, Ended::Fin));
    let words =
        |tail: &str| Response::parse(format!("HTTP/1.1 200 OK\r\n{tail}").as_bytes()).words();
    assert_eq!(words(answers[1].trim_end_matches("HTTP/1.1 200 OK\r\n")), expected(3, 2));
    assert!(answers[2].contains("\"version\""));
    assert_eq!(words(answers[3]), expected(4, 2));
    assert_eq!(fleet.stats(0).last_request_body, json.replace("tag:3", "tag:4").as_bytes());
}

#[test]
fn a_client_that_leaves_releases_its_request() {
    let engines = [
        EngineKind::Fixed { ttft: Duration::from_secs(3600), itl: Duration::ZERO },
        EngineKind::Fixed { ttft: Duration::ZERO, itl: Duration::from_secs(3600) },
        EngineKind::Modelled(EngineParams::a100_8b()),
    ];
    for engine in engines {
        let fleet = Fleet::start(SimConfig { engine, ..SimConfig::default() }).expect("fleet");
        for leave in 0..3 {
            let stream = chat("hi", ",\"stream\":true,\"max_tokens\":10000");
            let whole = chat("hi", ",\"max_tokens\":10000");
            let mut client = Client::connect(fleet.addr(0));
            client.send(if leave == 2 { &whole } else { &stream });
            eventually("it runs", || fleet.stats(0).running == 1);
            match leave {
                0 => client.0.shutdown(Shutdown::Write).expect("half close"),
                _ => drop(client.0),
            }
            eventually("it is released", || fleet.stats(0).running == 0);
            assert_eq!(fleet.stats(0).aborted, leave + 1);
        }
        let stats = fleet.stats(0);
        assert_eq!((stats.completed, stats.abort_to_release_us.count), (0, 3));
    }
}

#[test]
fn every_token_of_every_choice_can_be_checked() {
    let fleet = paced(2, 1);
    let request = chat("x [[tag:77]]", ",\"max_tokens\":40,\"n\":2,\"stream\":true");
    let events = ask(fleet.addr(0), &request).events();
    for index in 0..2 {
        let mine = events.iter().filter(|e| e["choices"][0]["index"] == index);
        let words: String = mine
            .filter_map(|e| e["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(words, expected(77 + index, 40));
    }
    let stats = fleet.stats(0);
    assert_eq!((stats.completed, stats.completion_tokens, stats.running), (1, 80, 0));
}

#[test]
fn usage_agrees_with_tokenize_and_repeats_hit_the_cache() {
    let fleet = paced(0, 0);
    let long = "lorem ipsum ".repeat(50);
    let messages = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{long}\"}}]}}");
    let count = ask(fleet.addr(0), &post("/tokenize", &messages)).json()["count"].clone();
    let usage = || ask(fleet.addr(0), &chat(&long, ",\"max_tokens\":1")).json()["usage"].clone();
    let first = usage();
    assert_eq!(first["prompt_tokens"], count);
    assert_eq!(first["prompt_tokens_details"]["cached_tokens"], 0);
    let again = usage()["prompt_tokens_details"]["cached_tokens"].as_u64().expect("number");
    assert_eq!(again, (count.as_u64().expect("number") - 1) / 16 * 16);
    let metrics = ask(fleet.addr(0), &get("/metrics")).text();
    assert!(metrics.contains(&format!(
        "vllm:prefix_cache_hits_total{{engine=\"0\",model_name=\"sim-model\"}} {again}.0"
    )));
}

#[test]
fn a_modelled_engine_answers_in_full() {
    let engine = EngineKind::Modelled(EngineParams::a100_8b());
    let config = SimConfig { engine, ports: vec![0; 2], threads: 2, ..SimConfig::default() };
    let fleet = Fleet::start(config).expect("fleet");
    for replica in 0..2 {
        let response =
            ask(fleet.addr(replica), &chat("[[tag:5]]", ",\"max_tokens\":8,\"stream\":true"));
        assert_eq!(response.words(), expected(5, 8));
        let response = ask(fleet.addr(replica), &chat("[[tag:5]]", ",\"max_tokens\":8"));
        assert_eq!(response.json()["choices"][0]["message"]["content"], expected(5, 8));
    }
}

#[test]
fn termination_aborts_what_is_in_flight_and_closes_the_port() {
    let fleet = paced(0, 20);
    let mut client = Client::connect(fleet.addr(0));
    let mut idle = Client::connect(fleet.addr(0));
    client.send(&chat("hi", ",\"stream\":true,\"max_tokens\":10000"));
    eventually("it runs", || fleet.stats(0).running == 1);
    fleet.terminate(OnTerm::Abort);
    let response = client.response();
    let last = response.events().last().expect("event").clone();
    assert_eq!(last["choices"][0]["finish_reason"], "abort");
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"));
    idle.send(&chat("hi", ",\"max_tokens\":1"));
    let refused = idle.response();
    assert_eq!(refused.status(), 500);
    assert_eq!(refused.json()["error"]["message"], "cannot schedule new futures after shutdown");
    let addr = fleet.addr(0);
    eventually("the port is closed", || std::net::TcpStream::connect(addr).is_err());
}

#[test]
fn a_key_is_asked_for_under_v1_only() {
    let api_key = Some("secret".to_owned());
    let fleet = Fleet::start(SimConfig { api_key, ..SimConfig::default() }).expect("fleet");
    let addr = fleet.addr(0);
    assert_eq!(ask(addr, &get("/health")).status(), 200);
    assert_eq!(ask(addr, &get("/v1/models")).status(), 401);
    let with_key = b"GET /v1/models HTTP/1.1\r\nHost: sim\r\nAuthorization: Bearer secret\r\n\r\n";
    assert_eq!(ask(addr, with_key).status(), 200);
}

#[test]
fn a_frozen_end_leaves_streams_hanging_and_a_drain_lets_them_finish() {
    for (on_term, completed) in [(OnTerm::Freeze, 0), (OnTerm::Drain, 1)] {
        let fleet = paced(0, 10);
        let mut client = Client::connect(fleet.addr(0));
        client.send(&chat("[[tag:6]]", ",\"stream\":true,\"max_tokens\":50"));
        eventually("it runs", || fleet.stats(0).running == 1);
        fleet.terminate(on_term);
        let addr = fleet.addr(0);
        eventually("the port is closed", || std::net::TcpStream::connect(addr).is_err());
        if completed == 1 {
            assert_eq!(client.response().words(), expected(6, 50));
        } else {
            assert_eq!(fleet.stats(0).running, 1, "only the client can end it");
            drop(client);
        }
        eventually("nothing runs", || fleet.stats(0).running == 0);
        let stats = fleet.stats(0);
        assert_eq!((stats.completed, stats.aborted), (completed, 1 - completed));
    }
}
