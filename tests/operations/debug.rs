//! Profiles and the heap, on the admin listener of a gateway under load.

use std::time::Duration;

use expedite::bench::{Bench, Lengths, Load, Options, Target};
use expedite::sim::{EngineKind, Fleet, SimConfig, token_text};

use crate::common::{ask, eventually, get, post};
use crate::service::Service;

/// Samples of a folded profile, and whether some of them are in code of the gateway.
fn samples(folded: &str) -> (u64, bool) {
    let counts = folded.lines().map(|line| line.rsplit_once(' ').expect("a count").1);
    let sum = counts.map(|count| count.parse::<u64>().expect("a number")).sum();
    let ours = |line: &str| line.contains(";") && line.contains("expedite::gateway::");
    (sum, folded.lines().any(ours))
}

/// A profile, and one that comes too early, under this load; whether code of the gateway is in it.
fn one_profile(service: &Service, load: Options) -> bool {
    let bench = Bench::start(load).expect("bench");
    let take = || ask(service.admin, &get("/debug/profile?seconds=2&hz=250"));
    let (profile, second) = std::thread::scope(|scope| {
        let first = scope.spawn(take);
        std::thread::sleep(Duration::from_millis(500));
        let second = ask(service.admin, &get("/debug/profile?seconds=1"));
        (first.join().expect("a profile"), second)
    });
    let report = bench.finish().expect("report");
    assert_eq!(report.failed(), 0, "{:?}", report.target.failures);
    assert!(report.target.completed > 0);
    // One at a time, whichever was the earlier; both only where a second passes between them.
    let statuses = [profile.status(), second.status()];
    assert!([[200, 409], [409, 200], [200, 200]].contains(&statuses), "{statuses:?}");
    let taken = if profile.status() == 200 { profile } else { second };
    let (sum, ours) = samples(&taken.text());
    assert_eq!(taken.field("x-samples"), Some(sum.to_string().as_str()));
    ours
}

/// Every request is answered while profiles are taken: the signal interrupts whatever a core is in.
fn a_profile_costs_no_request(driver: &str) {
    let (ttft, itl) = (Duration::from_millis(2), Duration::from_millis(1));
    let engine = EngineKind::Fixed { ttft, itl };
    let fleet = Fleet::start(SimConfig { ports: vec![0], engine, ..SimConfig::default() });
    let fleet = fleet.expect("fleet");
    let server = format!("cores = [0]\ndriver = \"{driver}\"");
    let service = Service::new(&[fleet.addr(0)], &server, "");
    let mut process = service.start(&[]);
    let addr = process.listening();
    let known = || ask(addr, &get("/v1/models")).text().contains("sim-model");
    eventually("it knows its replica", known);
    let mut target = Target::from_url(&format!("http://{addr}"), None).expect("target");
    target.choose_model(Some("p"), true).expect("a model");
    let options = Options {
        load: Load::Concurrency(16),
        duration: Duration::from_secs(4),
        output_tokens: Lengths::Fixed(20),
        timeout: Duration::from_secs(60),
        words: Some(token_text),
        ..Options::new(target)
    };
    // On a crowded machine a gateway may hardly run while a profile is taken.
    let seen = (1..=8).any(|seed| one_profile(&service, Options { seed, ..options.clone() }));
    assert!(seen, "of the gateway nothing is seen");
    let heap = ask(service.admin, &get("/debug/heap")).json();
    assert!(heap["allocator"]["committed_bytes"].as_u64() > Some(0), "{heap}");
    assert!(heap["process"]["resident_bytes"].as_u64() > Some(0), "{heap}");
    assert_eq!(heap["prefix_indexes"][0]["pool"], "p");
    assert!(heap["prefix_indexes"][0]["bytes"].as_u64() > Some(0), "{heap}");
    assert_eq!(ask(service.admin, &get("/debug/profile?hz=1000")).status(), 400);
    assert_eq!(ask(service.admin, &post("/debug/heap", "")).status(), 405);
}

#[test]
fn a_profile_costs_no_request_on_io_uring() {
    a_profile_costs_no_request("auto");
}

#[test]
fn a_profile_costs_no_request_on_epoll() {
    a_profile_costs_no_request("epoll");
}
