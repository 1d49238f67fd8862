//! What reaches an engine: the client's body but for the few edits, and a head of our own.

mod common;

use common::engine::{Engine, json};
use common::gateway::{AUTH, Bed};
use common::{ask, post_with};

#[test]
fn a_body_arrives_as_it_was_sent_but_for_the_model() {
    let engine = Engine::always(json(200, "{\"choices\":[]}"));
    let bed = Bed::of(&[engine.addr]);
    let body = "{\"model\":\"m\",\"messages\":[{}]}";
    let response = ask(bed.addr, &post_with("/v1/chat/completions", AUTH, body));
    assert_eq!((response.status(), response.text().as_str()), (200, "{\"choices\":[]}"));
    let got = &engine.requests()[0];
    assert_eq!(String::from_utf8_lossy(&got.body), body.replace("\"m\"", "\"base\""));
    assert_eq!(got.fields("authorization"), Vec::<&str>::new());
    assert_eq!(bed.records(1)[0]["outcome"], "ok");
    assert!(bed.metric("expedite_requests_total", "").is_finite());
}
