//! A decode pool and the pool that prefills for it: who is sent what, and that nothing which fails
//! on the way costs the client more than time.

mod common;

use std::time::Duration;

use common::faults::at_rest;
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Response, ask, eventually, post_with};
use expedite::sim::{EngineKind, Fault, Fleet, Kind, SimConfig, SimHandle, token_text};
use serde_json::{Value, json};

/// Replicas of the fleet that prefill, and those that decode.
const PREFILL: [usize; 2] = [0, 1];
const DECODE: [usize; 2] = [2, 3];
/// Some two thousand tokens.
const LONG: usize = 8_000;

struct Pair {
    fleet: SimHandle,
    bed: Bed,
    _nobody: tempfile::NamedTempFile,
}

impl Pair {
    fn start() -> Pair {
        Pair::of(EngineKind::instant(), &PREFILL, &DECODE, "")
    }

    /// A gateway in front of these replicas of a fleet of four; `more` are further sections.
    fn of(engine: EngineKind, prefill: &[usize], decode: &[usize], more: &str) -> Pair {
        Pair::with(engine, (prefill, decode), None, more)
    }

    /// The same with `settings` of the decode pool.
    fn with(
        engine: EngineKind,
        (prefill, decode): (&[usize], &[usize]),
        settings: Option<&str>,
        more: &str,
    ) -> Pair {
        let model = "base".to_owned();
        let loras = vec![("lora-a".to_owned(), "adapters/lora-a".to_owned())];
        let config = SimConfig { ports: vec![0; 4], engine, model, loras, ..SimConfig::default() };
        let fleet = Fleet::start(config).expect("a fleet");
        let urls: Vec<_> =
            prefill.iter().map(|at| format!("\"http://{}\"", fleet.addr(*at))).collect();
        // A pool without replicas has a place where some may be found.
        let nobody = tempfile::NamedTempFile::new().expect("a file");
        let pool = format!("role = \"decode\"\npair = \"pre\"\n{}", settings.unwrap_or_default());
        let more = format!(
            "[routing]\npolicy = \"round_robin\"\npolicy_header = true\n\
             [[pool]]\nname = \"pre\"\nmodel = \"base\"\n\
             role = \"prefill\"\npair = \"p\"\nreplicas = [{}]\n\
             discover = {{ file = \"{}\" }}\n{more}\n",
            urls.join(", "),
            nobody.path().display(),
        );
        let decode: Vec<_> = decode.iter().map(|at| fleet.addr(*at)).collect();
        let bed = Bed::unready(&decode, Settings { pool, more, ..Settings::default() });
        let all = (prefill.len() + decode.len()) as f64;
        eventually("all are up", || bed.metric("expedite_replica_up", "") == all);
        Pair { fleet, bed, _nobody: nobody }
    }

    fn requests(&self, replicas: &[usize]) -> Vec<u64> {
        replicas.iter().map(|at| self.fleet.stats(*at).requests).collect()
    }

    /// What the first of these replicas that was asked was sent last: head and body.
    fn sent(&self, replicas: &[usize]) -> (String, Value) {
        let asked = replicas.iter().map(|at| self.fleet.stats(*at)).find(|it| it.requests > 0);
        let asked = asked.expect("one was asked");
        let head = String::from_utf8(asked.last_request_head).expect("text");
        (head, serde_json::from_slice(&asked.last_request_body).expect("JSON"))
    }

    fn legs(&self, result: &str) -> f64 {
        let labels = format!("pool=\"p\",result=\"{result}\"");
        self.bed.metric("expedite_prefill_legs_total", &labels)
    }

    /// How many prompts' blocks nobody has fetched yet, and how many were fetched.
    fn blocks(&self) -> (u64, u64) {
        let sum = |of: fn(&expedite::sim::Stats) -> u64| {
            (0..4).map(|at| of(&self.fleet.stats(at))).sum::<u64>()
        };
        (sum(|it| it.kv_held), sum(|it| it.kv_fetched))
    }
}

/// A chat whose answer is the words of `tag`; `more` are further members.
fn chat(tag: u64, bytes: usize, more: &str) -> Vec<u8> {
    let content = format!("{} [[tag:{tag}]]", format!("{tag} ").repeat(bytes / 3));
    let message = json!([{"role": "user", "content": content}]);
    let json = format!("{{\"model\":\"m\",\"messages\":{message},\"max_tokens\":4{more}}}");
    post_with("/v1/chat/completions", AUTH, &json)
}

fn stream(tag: u64) -> Vec<u8> {
    chat(tag, LONG, ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"min_tokens\":2")
}

/// Of a request that was cut while it was prefilled: that time is not the gateway's.
fn leg_is_booked(record: &Value) {
    let ms = |name: &str| record[name].as_f64().expect("ms");
    assert!(ms("gateway_ms") < ms("total_ms"), "{record}");
}

fn words(tag: u64) -> String {
    (0..4).map(|i| String::from_utf8(token_text(tag, i).to_vec()).expect("words")).collect()
}

/// The answer is whole, and the one that was asked for.
fn answers(answer: &Response, tag: u64) {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.complete, "{}", answer.text());
    let said = match answer.field("content-type") {
        Some(kind) if kind.starts_with("text/event-stream") => answer.words(),
        _ => {
            let json = answer.json();
            json["choices"][0]["message"]["content"].as_str().expect("content").to_owned()
        }
    };
    assert_eq!(said, words(tag));
}

#[test]
fn a_long_prompt_is_prefilled_by_the_pair_and_its_blocks_are_fetched() {
    let pair = Pair::start();
    for (nth, request) in [stream(7), chat(8, LONG, "")].into_iter().enumerate() {
        let answer = ask(pair.bed.addr, &request);
        answers(&answer, 7 + nth as u64);
        let at = answer.field("x-gateway-prefill-node").expect("a prefill replica").to_owned();
        assert!(PREFILL.iter().any(|it| pair.fleet.addr(*it).to_string() == at), "{at}");
        assert_eq!(pair.blocks(), (0, nth as u64 + 1));
    }
    assert_eq!(pair.requests(&PREFILL), [1, 1]);
    assert_eq!(pair.requests(&DECODE), [1, 1]);
    assert_eq!((pair.legs("done"), pair.legs("direct")), (2.0, 0.0));
    for record in pair.bed.records(2) {
        assert_eq!((&record["outcome"], &record["attempts"]), (&json!("ok"), &json!(1)));
        assert_eq!((&record["pool"], &record["output_tokens"]), (&json!("p"), &json!(4)));
        assert!(record["input_tokens"].as_u64().expect("tokens") > 1_000, "{record}");
        let at = record["replica"].as_str().expect("a replica").to_owned();
        assert!(DECODE.iter().any(|it| pair.fleet.addr(*it).to_string() == at), "{at}");
    }
    at_rest(&pair.bed);
}

#[test]
fn both_get_the_clients_body_and_each_what_it_needs() {
    let pair = Pair::start();
    let own =
        ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_host\":\"evil\"},\"x\":1";
    let request = String::from_utf8(stream(7)).expect("text");
    let json = request.rsplit("\r\n\r\n").next().expect("a body");
    let json = format!("{}{own}}}", json.strip_suffix('}').expect("an object"));
    let fields = format!("{AUTH}X-Request-Id: pd-1\r\n");
    answers(&ask(pair.bed.addr, &post_with("/v1/chat/completions", &fields, &json)), 7);
    let ((head, prefill), (decode_head, decode)) = (pair.sent(&PREFILL), pair.sent(&DECODE));
    for head in [head, decode_head] {
        assert!(head.to_ascii_lowercase().contains("x-request-id: pd-1\r\n"), "{head}");
    }
    let keep = json!({"do_remote_decode": true, "do_remote_prefill": false});
    assert_eq!(prefill["kv_transfer_params"], keep);
    for (field, value) in [
        ("stream", json!(false)),
        ("stream_options", Value::Null),
        ("max_tokens", json!(1)),
        ("min_tokens", json!(0)),
        ("x", json!(1)),
        ("model", json!("base")),
    ] {
        assert_eq!(prefill[field], value, "{field}");
    }
    assert_eq!(prefill["messages"], decode["messages"]);
    let handed = &decode["kv_transfer_params"];
    assert_eq!((&handed["do_remote_prefill"], &handed["tp_size"]), (&json!(true), &json!(1)));
    assert_ne!(handed["remote_host"], json!("evil"));
    assert_eq!((&decode["max_tokens"], &decode["stream"]), (&json!(4), &json!(true)));
    assert_eq!((&decode["min_tokens"], &decode["x"]), (&json!(2), &json!(1)));
}

#[test]
fn what_is_short_or_cached_or_cannot_be_handed_over_goes_to_decode_at_once() {
    let pair = Pair::of(EngineKind::instant(), &PREFILL, &DECODE[..1], "");
    answers(&ask(pair.bed.addr, &chat(1, 300, "")), 1);
    for more in [",\"n\":2", ",\"prompt_logprobs\":1", ",\"use_beam_search\":false"] {
        answers(&ask(pair.bed.addr, &chat(2, LONG, more)), 2);
    }
    assert_eq!((pair.requests(&PREFILL), pair.legs("direct")), (vec![0, 0], 4.0));
    answers(&ask(pair.bed.addr, &chat(3, LONG, "")), 3);
    assert_eq!((pair.legs("done"), pair.legs("direct")), (1.0, 4.0));
    // Now the replica that decodes has it.
    answers(&ask(pair.bed.addr, &chat(3, LONG, "")), 3);
    assert_eq!((pair.legs("done"), pair.legs("direct")), (1.0, 5.0));
    at_rest(&pair.bed);
}

#[test]
fn the_prefill_pool_is_nothing_that_a_client_may_ask_for() {
    let pair = Pair::start();
    let request = post_with("/v1/chat/completions", AUTH, "{\"model\":\"pre\",\"messages\":[{}]}");
    // Until all models are known it might be one of them.
    eventually("there is no such model", || ask(pair.bed.addr, &request).status() == 404);
    let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw\r\n{AUTH}\r\n");
    let list = ask(pair.bed.addr, list.as_bytes()).json();
    let names: Vec<_> =
        list["data"].as_array().expect("a list").iter().map(|it| &it["id"]).collect();
    assert!(names.iter().all(|name| **name != "pre"), "{names:?}");
    assert!(names.contains(&&json!("base")), "{names:?}");
}

#[test]
fn who_prefills_may_fail_in_any_way() {
    let faults = [
        Fault::new(Kind::Refuse),
        Fault::new(Kind::ResetBeforeHead),
        Fault::new(Kind::FinBeforeHead),
        Fault::new(Kind::ResetInHead),
        Fault::new(Kind::ShortLength),
        Fault::new(Kind::Garbage),
        Fault::new(Kind::Gzip),
        Fault::new(Kind::ErrorIn200),
        Fault::new(Kind::ErrorMidStream),
        Fault::new(Kind::AbortFinish),
        Fault::status(400),
        Fault::status(500),
        Fault::status(503),
    ];
    for (nth, fault) in faults.into_iter().enumerate() {
        // A gateway each, since it would remember who has failed.
        let pair = Pair::start();
        PREFILL.into_iter().for_each(|at| pair.fleet.fault(at, fault.clone()));
        let request = if nth % 2 == 0 { stream(1) } else { chat(1, LONG, "") };
        let answer = ask(pair.bed.addr, &request);
        answers(&answer, 1);
        assert_eq!(answer.field("x-gateway-attempts"), Some("1"), "{fault:?}");
        assert_eq!(answer.field("x-gateway-prefill-node"), None, "{fault:?}");
        // Its probes may have found a port closed before the request came.
        let without = pair.legs("fell_back") + pair.legs("unavailable");
        let sent = pair.legs("failed");
        let tried = sent >= 1.0 || fault.kind == Kind::Refuse;
        assert!(pair.legs("done") == 0.0 && without == 1.0 && tried, "{fault:?}: {sent} {without}");
        assert_eq!(pair.bed.records(1)[0]["outcome"], "ok");
        at_rest(&pair.bed);
    }
}

#[test]
fn another_prefills_when_one_cannot_and_nobody_when_none_is_there() {
    let pair = Pair::of(EngineKind::instant(), &PREFILL, &DECODE, "");
    pair.fleet.fault(PREFILL[0], Fault::new(Kind::ResetBeforeHead));
    for tag in 1..=2 {
        let answer = ask(pair.bed.addr, &chat(tag, LONG, ""));
        answers(&answer, tag);
        let at = pair.fleet.addr(PREFILL[1]).to_string();
        assert_eq!(answer.field("x-gateway-prefill-node"), Some(at.as_str()));
    }
    assert_eq!((pair.legs("done"), pair.legs("failed"), pair.legs("fell_back")), (2.0, 1.0, 0.0));
    at_rest(&pair.bed);
    let pair = Pair::of(EngineKind::instant(), &[], &DECODE, "");
    answers(&ask(pair.bed.addr, &stream(3)), 3);
    assert_eq!((pair.legs("unavailable"), pair.legs("fell_back")), (1.0, 0.0));
    at_rest(&pair.bed);
}

#[test]
fn blocks_that_cannot_be_fetched_are_computed_and_no_replicas_fault() {
    // One replica that decodes: the client would get an error if it were not asked again.
    let pair = Pair::of(EngineKind::instant(), &PREFILL, &DECODE[..1], "");
    for (tag, request) in [(1, chat(1, LONG, "")), (2, stream(2))] {
        pair.fleet.fault(DECODE[0], Fault::new(Kind::KvUnreachable).times(1));
        let answer = ask(pair.bed.addr, &request);
        answers(&answer, tag);
        assert_eq!(answer.field("x-gateway-attempts"), Some("2"));
        assert_eq!(answer.field("x-gateway-prefill-node"), None);
        let (_, body) = pair.sent(&DECODE);
        assert!(body.get("kv_transfer_params").is_none(), "{body}");
    }
    assert_eq!((pair.requests(&PREFILL), pair.blocks().1), (vec![1, 1], 0));
    assert_eq!(pair.bed.metric("expedite_replica_up", "pool=\"p\""), 1.0);
    assert!(pair.bed.records(2).iter().all(|record| record["attempts"] == 2));
    at_rest(&pair.bed);
}

#[test]
fn what_was_handed_over_serves_again_only_where_nothing_was_sent() {
    let pair = Pair::start();
    pair.fleet.fault(DECODE[0], Fault::new(Kind::Refuse));
    let asked = |tag| {
        let answer = ask(pair.bed.addr, &chat(tag, LONG, ""));
        answers(&answer, tag);
        answer.field("x-gateway-attempts").map(str::to_owned)
    };
    let mut attempts = vec![asked(1)];
    attempts.push(asked(2));
    assert!(
        attempts.contains(&Some("2".to_owned())),
        "the one that refuses was tried: {attempts:?}"
    );
    assert_eq!((pair.requests(&PREFILL), pair.blocks()), (vec![1, 1], (0, 2)));
    at_rest(&pair.bed);
}

#[test]
fn what_was_sent_with_a_request_that_failed_is_computed_anew() {
    let pair = Pair::start();
    pair.fleet.fault(DECODE[0], Fault::new(Kind::ResetBeforeHead).times(1));
    let asked = |tag| {
        let answer = ask(pair.bed.addr, &stream(tag));
        answers(&answer, tag);
        answer.field("x-gateway-attempts").map_or(0, |n| n.parse().expect("a number"))
    };
    assert_eq!(asked(1) + asked(2), 3, "one of them was asked of both");
    assert_eq!((pair.legs("done"), pair.legs("fell_back")), (3.0, 0.0));
    assert_eq!(pair.requests(&PREFILL).iter().sum::<u64>(), 3);
    at_rest(&pair.bed);
}

#[test]
fn a_client_that_leaves_while_it_is_prefilled_ends_that_at_once() {
    let engine =
        EngineKind::Fixed { ttft: Duration::from_secs(600), itl: Duration::from_millis(1) };
    let pair = Pair::of(engine, &PREFILL[..1], &DECODE, "");
    for request in [stream(1), chat(2, LONG, "")] {
        let mut client = Client::connect(pair.bed.addr);
        client.send(&request);
        eventually("it is being prefilled", || pair.fleet.stats(PREFILL[0]).running == 1);
        // Whoever is to decode it is taken already, and who prefills it too.
        assert_eq!(pair.bed.metric("expedite_in_flight", ""), 2.0);
        drop(client);
        eventually("its prefill is aborted", || pair.fleet.stats(PREFILL[0]).running == 0);
    }
    assert_eq!(pair.fleet.stats(PREFILL[0]).aborted, 2);
    assert_eq!((pair.requests(&DECODE), pair.legs("gone")), (vec![0, 0], 2.0));
    let cancelled = "phase=\"prefill\"";
    assert_eq!(pair.bed.metric("expedite_cancel_seconds_count", cancelled), 2.0);
    for record in pair.bed.records(2) {
        assert_eq!(record["outcome"], "client_cancelled");
        assert!(record["input_tokens"].as_u64().expect("tokens") > 1_000, "{record}");
        leg_is_booked(&record);
    }
    at_rest(&pair.bed);
}

#[test]
fn who_prefills_in_silence_is_given_up_and_a_callers_time_limit_holds_there_too() {
    let limit = "[timeouts]\nfirst_token_ms = 300\n";
    let pair = Pair::of(EngineKind::instant(), &PREFILL, &DECODE, limit);
    PREFILL.into_iter().for_each(|at| pair.fleet.fault(at, Fault::new(Kind::StallBeforeHead)));
    answers(&ask(pair.bed.addr, &stream(1)), 1);
    assert_eq!((pair.legs("failed"), pair.legs("fell_back")), (2.0, 1.0));
    at_rest(&pair.bed);
    let pair = Pair::start();
    PREFILL.into_iter().for_each(|at| pair.fleet.fault(at, Fault::new(Kind::StallBeforeHead)));
    let request = String::from_utf8(chat(2, LONG, "")).expect("text");
    let request = request.replacen(AUTH, &format!("{AUTH}X-Request-Deadline-Ms: 200\r\n"), 1);
    assert_eq!(ask(pair.bed.addr, request.as_bytes()).status(), 504);
    assert_eq!((pair.legs("gone"), pair.requests(&DECODE)), (1.0, vec![0, 0]));
    let record = pair.bed.records(1).remove(0);
    assert_eq!(record["outcome"], "deadline");
    leg_is_booked(&record);
    at_rest(&pair.bed);
}

#[test]
fn who_holds_the_beginning_prefills_what_follows() {
    let pair = Pair::start();
    let ask_for = |end: u64| {
        let content =
            format!("{} {} [[tag:{end}]]", "0 ".repeat(6_000), format!("{end} ").repeat(3_000));
        let json = json!({"model": "m", "messages": [{"role": "user", "content": content}],
            "max_tokens": 4});
        let fields = format!("{AUTH}X-Gateway-Policy: cost\r\n");
        let request = post_with("/v1/chat/completions", &fields, &json.to_string());
        let answer = ask(pair.bed.addr, &request);
        answers(&answer, end);
        answer.field("x-gateway-prefill-node").expect("a prefill replica").to_owned()
    };
    let first = ask_for(1);
    assert!((2..8).all(|end| ask_for(end) == first), "all begin alike");
    at_rest(&pair.bed);
}

#[test]
fn an_adapters_prompt_is_prefilled_with_the_adapter() {
    let pair = Pair::start();
    let mut tag = 0;
    // Another prompt each time: who lists it is learned one replica after the other.
    eventually("it is prefilled by who lists it", || {
        tag += 1;
        let request = String::from_utf8(chat(tag, LONG, "")).expect("text");
        let json = request.rsplit("\r\n\r\n").next().expect("a body");
        let json = json.replacen("\"m\"", "\"lora-a\"", 1);
        let answer = ask(pair.bed.addr, &post_with("/v1/chat/completions", AUTH, &json));
        answer.status() == 200 && pair.legs("done") > 0.0
    });
    assert_eq!(pair.sent(&PREFILL).1["model"], "lora-a");
    at_rest(&pair.bed);
}

#[test]
fn who_has_too_much_to_prefill_is_passed_by() {
    let engine = EngineKind::Fixed { ttft: Duration::from_millis(5), itl: Duration::ZERO };
    // No prefill is that quick; it shows once some were seen.
    let limit = Some("slo = { ttft_ms = 1.0 }\n");
    let pair = Pair::with(engine, (&PREFILL, &DECODE), limit, "");
    let (mut tag, mut shed) = (0, 0);
    eventually("it is known that they are slow", || {
        tag += 1;
        let answer = ask(pair.bed.addr, &chat(tag, LONG, ""));
        // Where decoding is slow too, the limit can refuse the request itself.
        match answer.status() {
            429 => shed += 1,
            _ => answers(&answer, tag),
        }
        pair.legs("busy") > 0.0
    });
    assert_eq!(pair.legs("done") + pair.legs("busy"), (tag - shed) as f64);
    assert_eq!(pair.requests(&PREFILL).iter().sum::<u64>(), pair.legs("done") as u64);
    at_rest(&pair.bed);
}

#[test]
fn whoever_prefills_is_charged_only_while_it_does() {
    // What is fetched has its first token a step later; what is computed would take ten minutes.
    let engine =
        EngineKind::Fixed { ttft: Duration::from_millis(20), itl: Duration::from_millis(200) };
    let pair = Pair::of(engine, &PREFILL, &DECODE, "");
    let requests: Vec<_> = (1..=6)
        .map(|tag| {
            let mut client = Client::connect(pair.bed.addr);
            client.send(&chat(tag, LONG, ",\"stream\":true,\"ignore_eos\":true"));
            (tag, client)
        })
        .collect();
    let at = |pool: &str| pair.bed.metric("expedite_in_flight_tokens", &format!("pool=\"{pool}\""));
    eventually("all are being decoded", || pair.blocks().1 == 6);
    assert_eq!((at("pre"), at("p") > 0.0), (0.0, true));
    for (tag, mut client) in requests {
        answers(&client.response(), tag);
    }
    at_rest(&pair.bed);
}
