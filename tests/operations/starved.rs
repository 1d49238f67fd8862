//! Clients that take too much: an address has its share of the connections. When all descriptors
//! are taken no replica loses its place for it, and whoever comes when they have gone is served.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use crate::common::engine::{After, Engine, json};
use crate::common::{Client, ask, chat, eventually, get};
use crate::service::Service;

/// More than the gateway opens for itself.
const DESCRIPTORS: usize = 160;
/// More failures in a row than eject a replica.
const FAILURES: usize = 5;
/// More probes than take one out; a slow machine makes fewer of them, and no mistake.
const PROBES: Duration = Duration::from_secs(4);

const ANSWER: &str =
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"x"}}],"usage":null}"#;

#[test]
fn an_address_has_no_more_connections_than_it_may() {
    let engine = Engine::start(|_, wire| wire.write_all(&json(200, ANSWER)).map(|()| After::Keep));
    // Over all cores: which of them accepts is the kernel's choice.
    let service =
        Service::new(&[engine.addr], "cores = [0, 1]\nconnections_per_address_max = 4", "");
    let mut process = service.start(&[]);
    let addr = process.listening();
    let call = chat("x", ",\"model\":\"p\"");
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(addr)).collect();
    eventually("all four are served", || {
        clients.iter_mut().all(|client| {
            client.send(&call);
            client.response().status() == 200
        })
    });
    for _ in 0..3 {
        let (said, _) = Client::connect(addr).rest();
        assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }
    let metrics = ask(service.admin, &get("/metrics")).text();
    assert!(metrics.contains("\nexpedite_crowded_connections_total 3\n"), "{metrics}");
    clients.pop();
    let open = "\nexpedite_connections{side=\"client\"} 3\n";
    eventually("one has gone", || ask(service.admin, &get("/metrics")).text().contains(open));
    assert_eq!(ask(addr, &call).status(), 200, "there is room again");
}

#[test]
fn who_is_out_of_descriptors_blames_no_replica() {
    let engine = Engine::start(|_, wire| wire.write_all(&json(200, ANSWER)).map(|()| After::Keep));
    let service = Service::new(&[engine.addr], "cores = [0]", "");
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" serve --config \"$1\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_expedite")]).arg(service.config());
    let mut process = service.run(command);
    let addr = process.listening();
    assert!(service.log().contains(&format!("at most {DESCRIPTORS} open files")));
    let call = chat("x", ",\"model\":\"p\"");
    eventually("it serves", || ask(addr, &call).status() == 200);

    let mut clients: Vec<_> = (0..DESCRIPTORS).map(|_| Client::connect(addr)).collect();
    let out = "cannot accept a connection";
    eventually("it is out of descriptors", || service.log().contains(out));
    let mut failed = 0;
    eventually("requests want one more", || {
        clients[0].send(&call);
        let answer = clients[0].response();
        let said = answer.text();
        assert!(answer.status() == 200 || said.contains("out of descriptors"), "{said}");
        failed += usize::from(answer.status() == 502);
        failed >= FAILURES
    });
    std::thread::sleep(PROBES);
    drop(clients);

    eventually("it serves again", || ask(addr, &call).status() == 200);
    let status = ask(service.admin, &get("/status.json")).json();
    assert_eq!(status["pools"][0]["replicas"][0]["state"], "up", "{status:#}");
    let log = service.log();
    for blame in ["ejected", "is down", "is suspect"] {
        assert!(!log.contains(blame), "{log}");
    }
    assert_eq!(log.matches(out).count(), 1, "said once: {log}");
}
