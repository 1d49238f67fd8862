//! A gateway follows the KV events of the replicas in its fleet, from where it is told to or from
//! where an engine tells them to be.

mod common;
#[allow(dead_code)] // Each test uses its part.
#[path = "support/kv_engine.rs"]
mod kv_engine;
#[allow(dead_code)] // Each test uses its part.
#[path = "support/kv_wire.rs"]
mod kv_wire;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use expedite::bench::{Bench, Lengths, Load, Options, Target};
use expedite::config::Secret;
use expedite::engine::EngineParams;
use expedite::sim::{EngineKind, Fleet, SimConfig, token_text};

use common::engine::{After, Engine, json};
use common::eventually;
use common::faults::{hello, states};
use common::gateway::{Bed, KEY, Settings};
use kv_wire::{Form, Stored, batch};

/// Tokens in a block.
const BLOCK: u64 = 16;

fn metrics() -> Vec<u8> {
    json(
        200,
        "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n",
    )
}

/// Block `n` of one long sequence, as the engine tells of it.
fn grows(n: u64) -> Vec<u8> {
    let tokens = [n as u32 + 1; BLOCK as usize];
    batch(vec![Stored::new(&[n + 1], n, BLOCK, &tokens).event(Form::Map)], 0)
}

/// An engine that publishes a block for each order; it ends when the orders do.
fn publisher() -> (u16, mpsc::Sender<u64>) {
    let (orders, ordered) = mpsc::channel::<u64>();
    let (port, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let engine = kv_engine::Engine::start().await;
            port.send(engine.port).expect("told");
            loop {
                match ordered.try_recv() {
                    Ok(n) => {
                        while engine.subscribers() == 0 {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        engine.publish(n, &grows(n)).await;
                    }
                    Err(mpsc::TryRecvError::Empty) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
        });
    });
    (told.recv().expect("port"), orders)
}

fn followed(sources: Option<String>, configured: &str) -> (Engine, Bed, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("folder");
    tiny_tokenizer::write(folder.path());
    let engine = Engine::start_with(
        |_, wire| wire.write_all(&hello()).map(|()| After::Keep),
        move |path| match path {
            "/metrics" => metrics(),
            "/kv_event_sources" => match &sources {
                Some(sources) => json(200, sources),
                None => json(404, ""),
            },
            _ => json(404, ""),
        },
    );
    let pool = format!(
        "tokenizer = \"{}\"\ncontext_tokens = 4096\n{configured}\n",
        folder.path().display()
    );
    let bed = Bed::unready(&[engine.addr], Settings { pool, ..Settings::default() });
    eventually("the replica is up", || states(&bed) == ["up"]);
    (engine, bed, folder)
}

fn exact(bed: &Bed) -> bool {
    exact_on(bed) == 1.0
}

/// Replicas whose part of the index is exact.
fn exact_on(bed: &Bed) -> f64 {
    bed.metric("expedite_prefix_mode", "mode=\"exact\"")
}

fn blocks_arrive(bed: &Bed, orders: &mpsc::Sender<u64>) {
    assert!(!exact(bed), "nothing was told yet");
    (0..5).for_each(|n| orders.send(n).expect("sent"));
    eventually("the index is exact", || {
        exact(bed) && bed.metric("expedite_prefix_index_blocks", "") == 5.0
    });
}

#[test]
fn events_are_followed_from_the_configured_place_and_from_where_the_engine_tells() {
    let (port, orders) = publisher();
    let configured = format!("kv_events = \"tcp://{{host}}:{port}\"");
    let (_engine, bed, _folder) = followed(None, &configured);
    blocks_arrive(&bed, &orders);
    drop(orders);
    eventually("it ends, and what it held is forgotten", || !exact(&bed));
    eventually("nothing is left of it", || bed.metric("expedite_prefix_index_blocks", "") == 0.0);

    let (port, orders) = publisher();
    let sources = format!("{{\"0\":{{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:{port}\"}}}}");
    let (_engine, bed, _folder) = followed(Some(sources), "");
    blocks_arrive(&bed, &orders);
}

/// T74: exact is configured, and nobody publishes.
#[test]
fn without_events_the_mode_is_shown_to_be_approximate() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = free.local_addr().expect("address").port();
    drop(free);
    let configured = format!("kv_events = \"tcp://{{host}}:{port}\"");
    let (_engine, bed, _folder) = followed(None, &configured);
    eventually("it is said", || bed.metric("expedite_prefix_mode", "mode=\"approximate\"") == 1.0);
    assert!(!exact(&bed));
}

/// What a policy's fleet counted: tokens of prompts, those that were cached, and those that the
/// gateway had predicted to be.
fn tokens_with(policy: &str, requests: u64) -> (u64, u64, u64) {
    const REPLICAS: usize = 8;
    let folder = tempfile::tempdir().expect("folder");
    tiny_tokenizer::write(folder.path());
    let mut engine = EngineParams::a100_8b();
    engine.step.dense_slowdown = 0.1;
    let fleet = Fleet::start(SimConfig {
        model: "base".to_owned(),
        ports: vec![0; REPLICAS],
        engine: EngineKind::Modelled(engine),
        kv_events_port: Some(0),
        tokenizer: Some(folder.path().to_owned()),
        ..SimConfig::default()
    });
    let fleet = fleet.expect("fleet");
    let addrs: Vec<_> = (0..REPLICAS).map(|i| fleet.addr(i)).collect();
    let pool = format!("tokenizer = \"{}\"\n", folder.path().display());
    let more = format!("[routing]\npolicy = \"{policy}\"\n");
    let bed = Bed::unready(&addrs, Settings { pool, more, ..Settings::default() });
    eventually("all are up", || states(&bed).iter().all(|state| state == "up"));
    let url = format!("http://{}", bed.addr);
    let mut target = Target::from_url(&url, Some(Secret::new(KEY.to_owned()))).expect("target");
    target.choose_model(Some("m"), false).expect("model");
    let options = Options {
        load: Load::Concurrency(8),
        requests: Some(requests),
        duration: Duration::from_secs(600),
        prompt_tokens: Lengths::Fixed(292),
        output_tokens: Lengths::Fixed(4),
        prefix_tokens: 290,
        prefixes: 17,
        hot: 0.8,
        words: Some(token_text),
        ..Options::new(target)
    };
    let report = Bench::start(options).expect("bench").finish().expect("report");
    assert_eq!(report.failed(), 0, "{}", report.table());
    let records = bed.records(requests as usize);
    let predicted = records.iter().map(|r| r["predicted_cached_tokens"].as_u64().expect("told"));
    let stats: Vec<_> = (0..REPLICAS).map(|i| fleet.stats(i)).collect();
    assert!(exact_on(&bed) > 0.0, "events came");
    (
        stats.iter().map(|s| s.prompt_tokens).sum(),
        stats.iter().map(|s| s.cached_tokens).sum(),
        predicted.sum(),
    )
}

/// 80 % of the prompts have one beginning, the others sixteen: what `scripts/compare-policies`
/// measures in time, here in tokens.
#[test]
fn cached_tokens_are_foreseen_and_the_cost_leaves_half_the_prefill_that_p2c_does() {
    let [cost, p2c] = ["cost", "p2c"].map(|policy| {
        let (prompt, cached, predicted) = tokens_with(policy, 600);
        println!("{policy}: {prompt} tokens, {cached} cached, {predicted} foreseen");
        let apart = predicted.abs_diff(cached) as f64 / cached as f64;
        assert!(apart <= 0.01, "{policy}: {predicted} predicted, {cached} cached");
        prompt - cached
    });
    assert!(2 * cost < p2c, "prefilled: cost {cost}, p2c {p2c}");
}
