//! `expedite serve`: the gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Flags};
use crate::gateway::{Gateway, Reopen};

/// Run the gateway
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  expedite serve --replica http://10.0.0.1:8000 \
                        --replica http://10.0.0.2:8000 --listen 0.0.0.0:8080")]
pub(super) struct Args {
    /// Configuration file (TOML)
    #[arg(long)]
    config: Option<PathBuf>,
    /// A vLLM server, http://HOST:PORT; enough without a file
    #[arg(long = "replica", value_name = "URL")]
    replicas: Vec<String>,
    /// Address for clients
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Address for metrics and status
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// CPUs to run on, such as 2,3 or 2-5
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
}

/// Runs the gateway until it is told to stop.
pub(super) fn run(args: Args) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let (name, at) = (thread.name().unwrap_or("-"), panic.location());
        let at = at.map(ToString::to_string).unwrap_or_default();
        eprintln!("error panic in thread {name} at {at}: {}", told(panic.payload()));
    }));
    let Args { config: config_path, replicas, listen, admin, cores } = args;
    let flags = Flags { replicas, listen, admin, cores };
    let config = match Config::open(config_path.as_deref(), &flags) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(2);
        }
    };
    let reopen: Option<Reopen> = config_path.map(|path| {
        let reopen = move || Config::open(Some(&path), &flags);
        Arc::new(reopen) as Reopen
    });
    let gateway = match Gateway::start_reloadable(config, reopen) {
        Ok(gateway) => gateway,
        Err(error) => {
            eprintln!("expedite: {error}");
            return ExitCode::FAILURE;
        }
    };
    let addr = gateway.addrs.first().map(ToString::to_string).unwrap_or_default();
    let (cores, driver) = (gateway.cores, gateway.driver.name());
    let plural = if cores == 1 { "core" } else { "cores" };
    let scheme = if gateway.tls { "https" } else { "http" };
    println!("expedite: listening on {scheme}://{addr} ({cores} {plural}, {driver})");
    wait(&gateway);
    gateway.stop();
    ExitCode::SUCCESS
}

/// What a panic says, where that is a literal of the source. A message that was put together may
/// quote a prompt (as the standard library's do of a text that is cut within a character).
fn told(payload: &dyn std::any::Any) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(its words may quote a request)")
}

/// Waits for the end: SIGTERM or Ctrl-C drains, a second one ends at once; `POST /drain` likewise.
/// SIGHUP reloads, and opens the logs anew.
fn wait(gateway: &Gateway) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        while !gateway.wait(Duration::from_secs(1)) {}
        return;
    };
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [Ok(mut term), Ok(mut int), Ok(mut hup)] = kinds.map(signal) else { return };
        loop {
            tokio::select! {
                _ = term.recv() => gateway.drain(),
                _ = int.recv() => gateway.drain(),
                // What comes of it is in the log.
                _ = hup.recv() => {
                    gateway.reopen_logs();
                    gateway.ask_for_reload();
                }
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            if gateway.wait(Duration::ZERO) {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_quotes_no_text_that_it_met() {
        let payload = |panics: fn()| std::panic::catch_unwind(panics).unwrap_err();
        let said = payload(|| panic!("a literal"));
        assert_eq!(told(&*said), "a literal");
        let said = payload(|| drop("canary-\u{e9}"[..8].to_owned()));
        assert!(said.downcast_ref::<String>().is_some_and(|words| words.contains("canary")));
        assert!(!told(&*said).contains("canary"));
    }
}
