//! `expedite serve`: the gateway.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Flags};
use crate::gateway::{Gateway, Reopen};
use crate::runtime::systemd;

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
    let mut successor = Successor::new(config.server.handover.is_some());
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
    wait(&gateway, &mut successor, || {
        println!("expedite: listening on {scheme}://{addr} ({cores} {plural}, {driver})");
        systemd::notify(systemd::READY);
    });
    gateway.stop();
    ExitCode::SUCCESS
}

/// What a panic says, where that is a literal of the source. A message that was put together may
/// quote a prompt (as the standard library's do of a text that is cut within a character).
fn told(payload: &dyn std::any::Any) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(its words may quote a request)")
}

/// Waits for the end: SIGTERM or Ctrl-C drains, a second one ends at once; `POST /drain` likewise.
/// SIGHUP reloads, and opens the logs anew. SIGUSR2 starts the program that is installed now, which
/// takes over. Whoever has been told by `ready` that it serves may send any of them.
fn wait(gateway: &Gateway, successor: &mut Successor, ready: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        ready();
        while !gateway.wait(Duration::from_secs(1)) {}
        return;
    };
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
            SignalKind::user_defined2(),
        ];
        let [Ok(mut term), Ok(mut int), Ok(mut hup), Ok(mut usr2)] = kinds.map(signal) else {
            return;
        };
        ready();
        loop {
            tokio::select! {
                _ = term.recv() => gateway.drain(),
                _ = int.recv() => gateway.drain(),
                // What comes of it is in the log.
                _ = hup.recv() => {
                    gateway.reopen_logs();
                    gateway.ask_for_reload();
                }
                _ = usr2.recv() => successor.start(),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            successor.look();
            if gateway.wait(Duration::ZERO) {
                return;
            }
        }
    });
}

/// The process that SIGUSR2 has started, with the arguments and the environment of this one.
struct Successor {
    /// Where the program is installed: after an update this leads to the new one.
    program: Option<PathBuf>,
    child: Option<Child>,
}

impl Successor {
    /// `able`: there is a way to hand over.
    fn new(able: bool) -> Successor {
        let program = std::env::current_exe().ok().filter(|_| able);
        Successor { program, child: None }
    }

    fn start(&mut self) {
        let Some(program) = &self.program else {
            eprintln!("expedite: SIGUSR2 needs handover in [server]; nothing has changed");
            return;
        };
        if self.child.is_some() {
            eprintln!("expedite: a successor has been started already");
            return;
        }
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
        for name in systemd::MEANT_FOR_ONE {
            command.env_remove(name);
        }
        match command.spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                let program = program.display();
                eprintln!("expedite: cannot start {program}: {error}; nothing has changed");
            }
        }
    }

    /// One that has ended while this process is there has not taken over, or has been told to end.
    fn look(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            eprintln!("expedite: the successor has ended: {status}");
            self.child = None;
        }
    }
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
