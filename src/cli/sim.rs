//! `expedite sim`: a simulated vLLM fleet until SIGINT or SIGTERM.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::engine::EngineParams;
use crate::runtime::descriptors;
use crate::sim::{EngineKind, Fleet, OnTerm, SimConfig, SimHandle};

/// How long a process that was told to end waits for what is in flight, unless told otherwise.
const END_WAIT: Duration = Duration::from_secs(2);

/// Simulated vLLM replicas, one a port, in one process.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  expedite sim --ports 9101-9104
  expedite sim --ports 9101 --tokenizer tokenizers/qwen3
  expedite sim --ports 9101-9108 --engine a100-8b --lora lora-a=/srv/lora-a
  expedite sim --ports 9101-9104 --engine a100-8b --kv-events-port 9201
  curl -d '{\"kind\":\"stall_between_events\",\"count\":1}' 127.0.0.1:9101/fault
  curl 127.0.0.1:9101/stats")]
pub(super) struct Args {
    /// Ports: numbers and ranges, as in 9101-9104,9110
    #[arg(long, value_parser = parse_ports, required = true)]
    ports: Ports,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Name of the served model
    #[arg(long, default_value = "sim-model")]
    model: String,
    /// Time to the first token in ms [default: 20 without --engine, else the engine's]
    #[arg(long)]
    ttft_ms: Option<u64>,
    /// Time between tokens in ms [default: 10 without --engine, else the engine's]
    #[arg(long)]
    itl_ms: Option<u64>,
    /// Timing by the model of a GPU, or no waits at all
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// KV blocks [default: the engine's]
    #[arg(long)]
    blocks: Option<u64>,
    /// Tokens in a KV block
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    block_size: u64,
    /// Adapters that an engine has resident at once
    #[arg(long, default_value_t = 8)]
    max_loras: u32,
    /// Publish KV events as vLLM does: replica i on this port + 2i (PUB) and + 2i + 1 (replay)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    kv_events_port: Option<u16>,
    /// Longest prompt and answer together, in tokens
    #[arg(long, default_value_t = 32_768)]
    max_model_len: u64,
    /// Folder with tokenizer.json and the chat template: prompts are counted, and their blocks
    /// cached, as this model's engine does [default: four bytes are a token]
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Bearer key asked for under /v1
    #[arg(long)]
    api_key: Option<String>,
    /// An adapter; may be given many times
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_lora)]
    lora: Vec<(String, String)>,
    /// Threads; the replicas are dealt out to them
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// What happens to what is in flight on SIGTERM
    #[arg(long, value_enum, default_value_t = Term::Abort)]
    on_term: Term,
    /// Seconds that SIGTERM waits for what is in flight; above 0 it may end by itself
    #[arg(long, default_value_t = 0)]
    shutdown_timeout: u64,
    /// Answers carry x-request-id
    #[arg(long)]
    request_id_headers: bool,
}

#[derive(Clone, Debug)]
struct Ports(Vec<u16>);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Instant,
    #[value(name = "a100-8b")]
    A100Small,
    #[value(name = "a100-70b-tp2")]
    A100Large,
    #[value(name = "a100-8b-lora")]
    A100Lora,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Term {
    Abort,
    Freeze,
    Drain,
}

fn parse_ports(text: &str) -> Result<Ports, String> {
    let number = |part: &str| {
        part.trim().parse::<u16>().map_err(|_| format!("`{part}` is no port; say 9101-9104,9110"))
    };
    let mut ports = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => ports.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(format!("`{part}`: the first port is above the last"));
                }
                ports.extend(first..=last);
            }
        }
    }
    Ok(Ports(ports))
}

fn parse_lora(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() => Ok((name.to_owned(), path.to_owned())),
        _ => Err("say NAME=PATH".to_owned()),
    }
}

/// Runs the fleet until a signal ends it.
pub(super) fn run(args: Args) -> ExitCode {
    descriptors::raise();
    let on_term = match args.on_term {
        _ if args.shutdown_timeout > 0 => OnTerm::Drain,
        Term::Abort => OnTerm::Abort,
        Term::Freeze => OnTerm::Freeze,
        Term::Drain => OnTerm::Drain,
    };
    let end_wait = match (on_term, args.shutdown_timeout) {
        (OnTerm::Freeze, _) | (OnTerm::Drain, 0) => None,
        (_, 0) => Some(END_WAIT),
        (_, seconds) => Some(Duration::from_secs(seconds)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let started = runtime.and_then(|runtime| Ok((runtime, Fleet::start(config(args))?)));
    let (runtime, fleet) = match started {
        Ok(started) => started,
        Err(e) => {
            eprintln!("expedite sim: {e}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(cause) = fleet.fallback() {
        eprintln!("expedite sim: runs on epoll: {cause}");
    }
    for i in 0..fleet.replicas() {
        println!("replica {i} listens on http://{}", fleet.addr(i));
    }
    if let Err(e) = runtime.block_on(until_signal(&fleet, on_term, end_wait)) {
        eprintln!("expedite sim: {e}");
        return ExitCode::FAILURE;
    }
    fleet.stop();
    ExitCode::SUCCESS
}

fn config(args: Args) -> SimConfig {
    let fixed = |ttft_ms, itl_ms| EngineKind::Fixed {
        ttft: Duration::from_millis(args.ttft_ms.unwrap_or(ttft_ms)),
        itl: Duration::from_millis(args.itl_ms.unwrap_or(itl_ms)),
    };
    let modelled = |params: EngineParams| (params.blocks, EngineKind::Modelled(params));
    let (blocks, engine) = match args.engine {
        None => (EngineParams::a100_8b().blocks, fixed(20, 10)),
        Some(Engine::Instant) => (EngineParams::a100_8b().blocks, fixed(0, 0)),
        Some(Engine::A100Small) => modelled(EngineParams::a100_8b()),
        Some(Engine::A100Large) => modelled(EngineParams::a100_70b_tp2()),
        Some(Engine::A100Lora) => modelled(EngineParams::a100_8b_lora()),
    };
    SimConfig {
        host: args.host,
        ports: args.ports.0,
        threads: args.threads,
        model: args.model,
        loras: args.lora,
        engine,
        blocks: args.blocks.unwrap_or(blocks),
        block_tokens: args.block_size,
        loras_max: args.max_loras,
        kv_events_port: args.kv_events_port,
        model_len_max: args.max_model_len,
        api_key: args.api_key,
        tokenizer: args.tokenizer,
        request_id_headers: args.request_id_headers,
        ..SimConfig::default()
    }
}

/// Waits for a signal, then for what is in flight as the mode has it. A second signal ends at
/// once.
async fn until_signal(
    fleet: &SimHandle,
    on_term: OnTerm,
    end_wait: Option<Duration>,
) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => return Ok(()),
    }
    fleet.terminate(on_term);
    let begun = Instant::now();
    let look = Duration::from_millis(50);
    // The ports close within this time; what still comes in before is answered.
    let settle = Duration::from_millis(300);
    loop {
        tokio::select! {
            () = tokio::time::sleep(look) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        let busy = (0..fleet.replicas()).map(|i| fleet.stats(i));
        let busy = busy.map(|s| s.running + s.waiting).sum::<u64>() > 0;
        let late = end_wait.is_some_and(|limit| begun.elapsed() >= limit);
        if begun.elapsed() >= settle && (!busy || late) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_and_ranges() {
        assert_eq!(parse_ports("9101-9103,80").expect("valid").0, [9101, 9102, 9103, 80]);
        for bad in ["", "x", "3-1", "70000", "1-"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_adapter_has_a_name_and_a_path() {
        assert_eq!(parse_lora("a=/x=y"), Ok(("a".to_owned(), "/x=y".to_owned())));
        assert!(parse_lora("a").is_err() && parse_lora("=x").is_err());
    }
}
