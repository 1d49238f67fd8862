//! Budgets over sockets: what a request reserves, what it pays, what it is told.
//!
//! Prompts are token ids, so that costs are exact without a tokenizer. Buckets fill by one token a
//! second where a test does not wait for them.

mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::engine::{After, Engine, event, json as answer_json, usage_event};
use common::faults::{at_rest, cut_stream, whole_stream};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Response, ask, eventually, post_with};
use expedite::config::KeyDigest;
use serde_json::{Value, json};

/// A completion of `prompt` tokens; `more` are further members, each with a comma before it.
fn completion(prompt: usize, more: &str) -> Vec<u8> {
    keyed(AUTH, prompt, more)
}

fn keyed(field: &str, prompt: usize, more: &str) -> Vec<u8> {
    let ids = vec!["9"; prompt].join(",");
    post_with("/v1/completions", field, &format!("{{\"model\":\"m\",\"prompt\":[{ids}]{more}}}"))
}

/// A whole answer whose engine counted these tokens.
fn counted(prompt: u64, output: u64) -> Vec<u8> {
    let usage = json!({
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output
    });
    answer_json(200, &json!({"choices": [{"index": 0, "text": "x"}], "usage": usage}).to_string())
}

fn bed(engines: &[&Engine], tenant: &str) -> Bed {
    let addrs: Vec<SocketAddr> = engines.iter().map(|engine| engine.addr).collect();
    Bed::start(&addrs, Settings { tenant: tenant.to_owned(), ..Settings::default() })
}

/// What the one tenant's account shows.
fn shown(bed: &Bed, field: &str) -> Value {
    bed.tenants()[0][field].clone()
}

fn number(response: &Response, field: &str) -> u64 {
    let text = response.field(field).unwrap_or_else(|| panic!("no {field}: {:?}", response.head));
    text.parse().unwrap_or_else(|_| panic!("{field}: {text}"))
}

fn code(response: &Response) -> String {
    response.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

/// Tokens that a record says were reserved, and refunded.
fn booked(record: &Value) -> (u64, u64) {
    let tokens = |field: &str| record[field].as_u64().expect("tokens");
    (tokens("reserved_tokens"), tokens("refunded_tokens"))
}

/// A gate that holds answers back until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().expect("lock") = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let closed = self.0.lock().expect("lock");
        drop(self.1.wait_while(closed, |open| !*open).expect("lock"));
    }
}

/// An engine that answers nothing before the gate is open.
fn gated(gate: &Arc<Gate>, answer: Vec<u8>) -> Engine {
    let gate = Arc::clone(gate);
    Engine::start(move |_, wire| {
        gate.pass();
        wire.write_all(&answer).map(|()| After::Keep)
    })
}

/// Sends all at once, each on a connection of its own, and opens the gate when as many have been
/// refused as should be. The answers.
fn at_once(bed: &Bed, gate: &Gate, requests: &[Vec<u8>], passing: usize) -> Vec<Response> {
    let mut clients: Vec<Client> = requests.iter().map(|_| Client::connect(bed.addr)).collect();
    for (client, request) in clients.iter_mut().zip(requests) {
        client.send(request);
    }
    let refused = (requests.len() - passing) as f64;
    eventually("the others are refused", || {
        bed.metric("expedite_quota_rejects_total", "") >= refused
    });
    gate.open();
    clients.iter_mut().map(Client::response).collect()
}

fn with_status(responses: &[Response], status: u16) -> usize {
    responses.iter().filter(|response| response.status() == status).count()
}

#[test]
fn of_five_at_once_of_eighty_on_a_limit_of_a_hundred_one_starts() {
    let gate = Arc::new(Gate::default());
    let engine = gated(&gate, counted(30, 50));
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100");
    // Whom a caller says to be is no budget of its own.
    let user = |n: usize| completion(30, &format!(",\"max_tokens\":50,\"user\":\"u{n}\""));
    let requests: Vec<_> = (0..5).map(user).collect();
    let responses = at_once(&bed, &gate, &requests, 1);
    assert_eq!((with_status(&responses, 200), with_status(&responses, 429)), (1, 4));
    assert_eq!(engine.count(), 1);
    for refused in responses.iter().filter(|response| response.status() == 429) {
        assert_eq!(code(refused), "rate_limit_exceeded");
        assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
        // 60 tokens are missing, at one a second.
        let (s, ms) = (number(refused, "retry-after"), number(refused, "retry-after-ms"));
        assert!((1..=60).contains(&s) && s == ms.div_ceil(1000), "{:?}", refused.head);
    }
    let records = bed.records(5);
    let rejected: Vec<_> = records.iter().filter(|r| r["outcome"] == "rejected_quota").collect();
    assert_eq!(rejected.len(), 4);
    assert!(rejected.iter().all(|r| r["reserved_tokens"] == 0 && r["status"] == 429));
    assert_eq!(bed.metric("expedite_quota_rejects_total", "reason=\"tokens\""), 4.0);
    assert_eq!(shown(&bed, "rejects"), json!({"tokens": 4, "concurrency": 0, "size": 0}));
    assert_eq!(shown(&bed, "spent_tokens"), 80, "rejected requests cost nothing");
    at_rest(&bed);
}

#[test]
fn of_a_thousand_at_once_on_a_budget_for_ten_ten_start() {
    let gate = Arc::new(Gate::default());
    let engine = gated(&gate, counted(1, 999));
    let tenant = "tokens_per_second = 1\nburst_tokens = 10000".to_owned();
    let settings = Settings { tenant, cores: "\"auto\"", ..Settings::default() };
    let bed = Bed::start(&[engine.addr], settings);
    let requests = vec![completion(1, ",\"max_tokens\":999"); 1000];
    let responses = at_once(&bed, &gate, &requests, 10);
    assert_eq!((with_status(&responses, 200), with_status(&responses, 429)), (10, 990));
    assert_eq!(engine.count(), 10);
    at_rest(&bed);
}

#[test]
fn in_flight_counts_sequences_and_frees_them() {
    let gate = Arc::new(Gate::default());
    let engine = gated(&gate, counted(1, 4));
    let bed = bed(&[&engine], "in_flight_max = 4");
    let four = completion(1, ",\"max_tokens\":1,\"n\":4");
    let responses = at_once(&bed, &gate, &vec![four.clone(); 3], 1);
    assert_eq!((with_status(&responses, 200), with_status(&responses, 429)), (1, 2));
    for refused in responses.iter().filter(|response| response.status() == 429) {
        assert_eq!(code(refused), "concurrency_limit_exceeded");
        assert!(number(refused, "retry-after") >= 1);
        assert_eq!(number(refused, "x-ratelimit-limit-requests"), 4);
        assert_eq!(number(refused, "x-ratelimit-remaining-requests"), 0);
        assert_eq!(refused.field("x-ratelimit-limit-tokens"), None, "tokens are not limited");
    }
    let again = ask(bed.addr, &four);
    assert_eq!((again.status(), number(&again, "x-ratelimit-remaining-requests")), (200, 4));
    let wide = ask(bed.addr, &completion(1, ",\"max_tokens\":1,\"n\":5"));
    assert_eq!((wide.status(), code(&wide)), (400, "request_too_large_for_quota".to_owned()));
    let records = bed.records(5);
    let rejected = records.iter().filter(|r| r["outcome"] == "rejected_concurrency").count();
    assert_eq!(rejected, 3);
    at_rest(&bed);
}

#[test]
fn a_cost_is_input_and_every_sequences_limit() {
    let engine = Engine::always(counted(10, 0));
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 1000");
    for (n, (body, cost)) in [
        (completion(10, ",\"max_tokens\":90"), 100),
        (completion(10, ",\"max_tokens\":90,\"n\":4"), 370),
        (completion(10, ",\"max_tokens\":90,\"n\":2,\"best_of\":5"), 460),
        // A completion without a limit gets 16 tokens, the API's default.
        (completion(10, ""), 26),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(ask(bed.addr, &body).status(), 200);
        assert_eq!(booked(&bed.records(n + 1)[n]), (cost, cost - 10));
    }
    let lists = "{\"model\":\"m\",\"prompt\":[[1,2,3],[4,5]],\"max_tokens\":20,\"n\":2}";
    assert_eq!(ask(bed.addr, &post_with("/v1/completions", AUTH, lists)).status(), 200);
    assert_eq!(booked(&bed.records(5)[4]).0, 5 + 4 * 20);
    // Can never pass, and says so; limits that differ are no way to reserve less.
    let differing =
        "{\"model\":\"m\",\"messages\":[{}],\"max_tokens\":1,\"max_completion_tokens\":900}";
    for (request, code_of) in [
        (completion(10, ",\"max_tokens\":991"), "request_too_large_for_quota"),
        (completion(10, ",\"max_tokens\":250,\"n\":4"), "request_too_large_for_quota"),
        (post_with("/v1/chat/completions", AUTH, differing), "invalid_value"),
    ] {
        let refused = ask(bed.addr, &request);
        assert_eq!((refused.status(), code(&refused).as_str()), (400, code_of));
        assert_eq!(refused.field("retry-after"), None);
    }
    assert_eq!(engine.count(), 5);
    assert_eq!(bed.metric("expedite_quota_rejects_total", "reason=\"size\""), 2.0);
    at_rest(&bed);
}

#[test]
fn ten_replies_of_150_on_a_limit_of_1000_end_at_the_seventh() {
    let engine = Engine::always(counted(100, 50));
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 1000");
    let statuses: Vec<_> =
        (0..10).map(|_| ask(bed.addr, &completion(100, ",\"max_tokens\":50")).status()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 429, 429, 429, 429]);
    assert_eq!(shown(&bed, "spent_tokens"), 900);
    at_rest(&bed);
}

#[test]
fn an_estimate_that_was_too_low_is_paid_all_the_same() {
    let engine = Engine::always(counted(70, 40));
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100");
    assert_eq!(ask(bed.addr, &completion(10, ",\"max_tokens\":20")).status(), 200);
    assert_eq!(booked(&bed.records(1)[0]), (30, 0));
    assert_eq!(shown(&bed, "spent_tokens"), 110);
    let left = shown(&bed, "tokens_left").as_u64().expect("tokens");
    assert!(left < 30, "the bucket was emptied, {left} have come since");
}

#[test]
fn a_client_that_leaves_pays_for_what_it_got() {
    let gate = Arc::new(Gate::default());
    let (until, events) = (Arc::clone(&gate), [event("a"), event("b"), event("c")]);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&cut_stream(&events))?;
        until.pass();
        Ok(After::Close)
    });
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100\nin_flight_max = 2");
    let mut client = Client::connect(bed.addr);
    client.send(&completion(10, ",\"max_tokens\":50,\"stream\":true"));
    let mut got = Vec::new();
    while got.iter().filter(|byte| **byte == b'{').count() < 9 {
        got.extend(client.read_some(1));
    }
    let head = Response::parse(&got);
    assert_eq!(number(&head, "x-ratelimit-limit-tokens"), 100);
    assert!((40..=100).contains(&number(&head, "x-ratelimit-remaining-tokens")), "{:?}", head.head);
    assert_eq!(number(&head, "x-ratelimit-remaining-requests"), 1);
    assert_eq!((shown(&bed, "in_flight"), shown(&bed, "reserved_tokens")), (1.into(), 60.into()));
    drop(client);
    at_rest(&bed);
    let record = &bed.records(1)[0];
    assert_eq!((&record["outcome"], booked(record)), (&"client_cancelled".into(), (60, 47)));
    assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&10.into(), &3.into()));
    assert_eq!(shown(&bed, "spent_tokens"), 13);
    gate.open();
}

#[test]
fn what_fails_costs_nothing_and_what_is_served_elsewhere_costs_once() {
    let broken =
        || Engine::always(answer_json(500, "{\"error\":{\"message\":\"x\",\"code\":500}}"));
    let refusing =
        Engine::always(answer_json(400, "{\"error\":{\"message\":\"no\",\"code\":400}}"));
    let limits = "tokens_per_second = 1\nburst_tokens = 100";
    let request = completion(10, ",\"max_tokens\":50");
    for (engine, status, outcome) in
        [(broken(), 502, "upstream_error"), (refusing, 400, "rejected_invalid")]
    {
        let bed = bed(&[&engine], limits);
        let answer = ask(bed.addr, &request);
        assert_eq!(answer.status(), status);
        assert_eq!(number(&answer, "x-ratelimit-remaining-tokens"), 100);
        let record = &bed.records(1)[0];
        assert_eq!((&record["outcome"], booked(record)), (&outcome.into(), (60, 60)));
        assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&0.into(), &0.into()));
        assert_eq!(shown(&bed, "spent_tokens"), 0);
        at_rest(&bed);
    }
    let (first, second) = (broken(), Engine::always(counted(10, 20)));
    let bed = bed(&[&first, &second], &format!("{limits}\n[routing]\npolicy = \"round_robin\""));
    let answers: Vec<_> = (0..2).map(|_| ask(bed.addr, &request)).collect();
    assert_eq!(with_status(&answers, 200), 2);
    let records = bed.records(2);
    assert!(records.iter().any(|record| record["attempts"] == 2), "{records:?}");
    assert!(records.iter().all(|record| booked(record) == (60, 30)), "{records:?}");
    assert_eq!(shown(&bed, "spent_tokens"), 60);
    at_rest(&bed);
}

#[test]
fn a_replica_that_cannot_be_reached_costs_nothing() {
    let engine = Engine::always(counted(10, 20));
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100");
    drop(engine);
    eventually("the engine is gone", || {
        ask(bed.addr, &completion(10, ",\"max_tokens\":50")).status() == 503
    });
    assert_eq!(shown(&bed, "spent_tokens"), 0);
    at_rest(&bed);
}

#[test]
fn who_waits_as_long_as_told_passes() {
    let engine = Engine::always(counted(100, 300));
    let bed = bed(&[&engine], "tokens_per_second = 400\nburst_tokens = 400");
    let request = completion(100, ",\"max_tokens\":300");
    // A bucket for one lets the second wait, unless it comes a second later.
    let answers = std::iter::repeat_with(|| ask(bed.addr, &request)).take(100);
    let refused = answers.into_iter().find(|answer| answer.status() == 429).expect("a refusal");
    let reset = refused.field("x-ratelimit-reset-tokens").expect("a time");
    assert!(reset.ends_with("ms") || reset == "1s", "{reset}");
    let ms = number(&refused, "retry-after-ms");
    assert!((1..=1000).contains(&ms) && number(&refused, "retry-after") == 1);
    std::thread::sleep(Duration::from_millis(ms));
    assert_eq!(ask(bed.addr, &request).status(), 200, "after {ms} ms");
    at_rest(&bed);
}

#[test]
fn a_limit_on_the_answer_is_filled_in_and_paid_for() {
    let engine = Engine::always(counted(1, 1));
    let sent = |bed: &Bed, path: &str, body: &str| {
        let before = engine.count();
        assert_eq!(ask(bed.addr, &post_with(path, AUTH, body)).status(), 200, "{path}");
        let received = engine.requests()[before].body.clone();
        serde_json::from_slice::<Value>(&received).expect("JSON")
    };
    let (chat, path) = ("{\"model\":\"m\",\"messages\":[{}]}", "/v1/chat/completions");
    let open = Bed::of(&[engine.addr]);
    assert_eq!(sent(&open, path, chat)["max_tokens"], Value::Null, "nobody limits it");
    let wide = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100000");
    assert_eq!(sent(&wide, path, chat)["max_tokens"], 4096);
    let own = sent(&wide, path, "{\"model\":\"m\",\"messages\":[{}],\"max_completion_tokens\":9}");
    assert_eq!((&own["max_tokens"], &own["max_completion_tokens"]), (&Value::Null, &9.into()));
    let input = "{\"model\":\"m\",\"input\":\"hello\"}";
    assert_eq!(sent(&wide, "/v1/responses", input)["max_output_tokens"], 4096);
    let embedded = sent(&wide, "/v1/embeddings", input);
    assert_eq!(embedded["max_tokens"], Value::Null);
    let records = wide.records(4);
    assert!(booked(&records[0]).0 >= 4096 && booked(&records[3]).0 < 10, "{records:?}");
    // Three answers, and no more than the burst can pay.
    let narrow = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 1000");
    let three = "{\"model\":\"m\",\"messages\":[{}],\"n\":3}";
    let most = sent(&narrow, path, three)["max_tokens"].as_u64().expect("a limit");
    assert!((300..=333).contains(&most), "{most}");
    let limit = "tokens_per_second = 1\nburst_tokens = 1000\n[quota]\noutput_tokens_default = 50";
    let small = bed(&[&engine], limit);
    assert_eq!(sent(&small, path, chat)["max_tokens"], 50);
    // An engine refuses a limit below what the call asks for at least.
    let least = |n: u64| format!("{{\"model\":\"m\",\"messages\":[{{}}],\"min_tokens\":{n}}}");
    assert_eq!(sent(&small, path, &least(200))["max_tokens"], 200);
    assert!(booked(&small.records(2)[1]).0 >= 200);
    let more = ask(small.addr, &post_with(path, AUTH, &least(2_000)));
    assert_eq!((more.status(), &*code(&more)), (400, "request_too_large_for_quota"));
}

#[test]
fn a_key_is_limited_within_its_tenant() {
    let engine = Engine::always(counted(10, 10));
    let digest = KeyDigest::of(b"sk-small").to_text();
    let more = format!(
        "[[tenant]]\nid = \"zeta\"\ntokens_per_second = 1\nburst_tokens = 100\nkeys = [\"{}\", \
         {{ key = \"{digest}\", tokens_per_second = 1, burst_tokens = 30 }}]",
        KeyDigest::of(b"sk-large").to_text(),
    );
    let bed = Bed::start(&[engine.addr], Settings { more, ..Settings::default() });
    let [small, large] =
        ["sk-small", "sk-large"].map(|key| format!("Authorization: Bearer {key}\r\n"));
    let spend = |key: &str| ask(bed.addr, &keyed(key, 10, ",\"max_tokens\":10"));
    let first = spend(&small);
    assert_eq!(first.status(), 200);
    assert_eq!(number(&first, "x-ratelimit-limit-tokens"), 30, "the tighter of both");
    assert_eq!(spend(&small).status(), 429);
    let others: Vec<_> = (0..5).map(|_| spend(&large)).collect();
    assert_eq!((with_status(&others, 200), with_status(&others, 429)), (4, 1));
    assert_eq!(number(&others[0], "x-ratelimit-limit-tokens"), 100);
    // A caller of a tenant without limits is told of none.
    let free = ask(bed.addr, &completion(10, ",\"max_tokens\":10"));
    assert!(!free.head.iter().any(|line| line.starts_with("x-ratelimit")), "{:?}", free.head);
    let staged = bed.metric("expedite_overhead_seconds_count", "stage=\"quota\"");
    assert_eq!(staged, 5.0, "who passed, and not who has no limits");
    let zeta = &bed.tenants()[1];
    assert_eq!((&zeta["id"], &zeta["spent_tokens"]), (&"zeta".into(), &100.into()));
    assert_eq!(
        (&zeta["keys"][0]["spent_tokens"], &zeta["keys"][0]["burst_tokens"]),
        (&20.into(), &30.into())
    );
    at_rest(&bed);
}

#[test]
fn a_stream_is_settled_by_the_engines_own_count() {
    let stream = whole_stream(&[event("a"), event("b"), usage_event(10, 7)]);
    let engine = Engine::always(stream);
    let bed = bed(&[&engine], "tokens_per_second = 1\nburst_tokens = 100");
    let answer = ask(bed.addr, &completion(10, ",\"max_tokens\":50,\"stream\":true"));
    assert!(answer.complete && answer.field("x-ratelimit-reset-tokens").is_some());
    assert_eq!(booked(&bed.records(1)[0]), (60, 43));
    // What never reaches an engine, or only counts, costs nothing.
    let count = post_with("/tokenize", AUTH, "{\"model\":\"m\",\"prompt\":\"hello\"}");
    ask(bed.addr, &count);
    let record = &bed.records(2)[1];
    assert_eq!((booked(record), &record["input_tokens"]), ((0, 0), &0.into()));
    assert_eq!(shown(&bed, "spent_tokens"), 17);
    at_rest(&bed);
}
