//! Readings entered into the signals of one replica.

use super::*;
use crate::config;

fn replica() -> Replica {
    let listed = config::Replica {
        url: "http://10.0.0.1:1".to_owned(),
        host: "10.0.0.1".to_owned(),
        port: 1,
        id: "a".to_owned(),
        zone: None,
        weight: 1.0,
        server_name: None,
    };
    Replica::new(&listed, 1)
}

fn page(running: &str, blocks: u64, started: f64) -> Vec<u8> {
    format!(
        "process_start_time_seconds {started}\n\
         vllm:num_requests_running{{engine=\"0\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\"}} 1\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\",\
         prefix_caching_hash_algo=\"sha256\"}} 1\n"
    )
    .into_bytes()
}

#[test]
fn a_reading_is_entered_and_a_lie_leaves_the_last_one() {
    let (replica, mut scraper) = (replica(), Scraper::default());
    let first = scraper.enter(&replica, &page("3", 100, 1000.0), 5_000);
    assert_eq!((first.reading, first.shape, first.restarted), (Reading::Good, true, false));
    let load = replica.signals.server.load(5_000).map(|(load, age)| (load.running, age));
    assert_eq!((load, replica.signals.server.blocks()), (Some((3, 0)), 100));
    for lie in ["NaN", "-3", "1e18"] {
        let odd = scraper.enter(&replica, &page(lie, 100, 1000.0), 6_000);
        assert_eq!((odd.reading, odd.shape), (Reading::Odd, false));
    }
    let load = replica.signals.server.load(6_000).map(|(load, age)| (load.running, age));
    assert_eq!((load, replica.signals.refused()), (Some((3, 1_000)), 3));
    assert_eq!(scraper.enter(&replica, b"<html>", 7_000).reading, Reading::Silent);
}

#[test]
fn a_restart_and_another_number_of_blocks_are_seen() {
    let (replica, mut scraper) = (replica(), Scraper::default());
    scraper.enter(&replica, &page("0", 100, 1000.0), 0);
    let same = scraper.enter(&replica, &page("0", 100, 1000.5), 1);
    assert_eq!((same.restarted, same.shape), (false, false));
    let again = scraper.enter(&replica, &page("0", 90, 2000.0), 2);
    assert_eq!((again.restarted, again.shape), (true, true));
    assert_eq!(replica.signals.server.blocks(), 90);
}

#[test]
fn the_seats_of_an_engine_are_learned_and_forgotten_when_it_begins_anew() {
    let full = |started: f64| {
        let page = String::from_utf8(page("64", 1000, started)).expect("text");
        page.replace(
            "num_requests_waiting{engine=\"0\"} 1",
            "num_requests_waiting{engine=\"0\"} 20",
        )
    };
    let (replica, mut scraper) = (replica(), Scraper::default());
    scraper.enter(&replica, full(1000.0).as_bytes(), 4_000);
    scraper.enter(&replica, full(1000.0).as_bytes(), 5_000);
    let gauges = replica.signals.gauges(Some(0));
    assert_eq!((gauges.sequences_max(5_000), gauges.sequences_max(70_000)), (64, 0));
    scraper.enter(&replica, &page("1", 1000, 2000.0), 6_000);
    assert_eq!(gauges.sequences_max(6_000), 0);
}

#[test]
fn a_version_is_read() {
    assert_eq!(version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
    for bad in [&b"{}"[..], b"[]", b"{\"version\":7}", b"{\"version\":\"a\\nb\"}", b""] {
        assert_eq!(version(bad), None);
    }
}
