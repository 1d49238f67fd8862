//! `expedite serve`: the gateway.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::{Config, Flags};
use crate::gateway::{Gateway, Reopen, withdraw};
use crate::runtime::{descriptors, systemd};

/// A start that is told to end and gets done within this is ended as a running gateway is.
const START_PATIENCE: Duration = Duration::from_secs(1);
/// A successor loads its tokenizers before it asks for the sockets, in seconds.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(120);
/// Whoever does not go by SIGTERM is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// Run the gateway
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  expedite serve --replica http://10.0.0.1:8000 \
                        --replica http://10.0.0.2:8000 --listen 0.0.0.0:8080")]
pub(super) struct Args {
    /// Configuration file (TOML)
    #[arg(long)]
    config: Option<PathBuf>,
    /// A vLLM server, http://HOST:PORT or https://HOST[:PORT]; enough without a file
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
    // Before anything that takes time: until then a signal does what it does to any program.
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot wait for signals: {error}")),
    };
    descriptors::raise();
    let Args { config: config_path, replicas, listen, admin, cores } = args;
    let flags = Flags { replicas, listen, admin, cores };
    let config = match Config::open(config_path.as_deref(), &flags) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(2);
        }
    };
    let handover = config.server.handover.clone();
    let mut successor = Successor::new(handover.is_some());
    let reopen: Option<Reopen> = config_path.map(|path| {
        let reopen = move || Config::open(Some(&path), &flags);
        Arc::new(reopen) as Reopen
    });
    let gateway = match signals.beside(move || Gateway::start_reloadable(config, reopen)) {
        Started::Done(Ok(gateway)) => gateway,
        Started::Done(Err(error)) => return fail(&error),
        Started::Panicked => return ExitCode::FAILURE,
        Started::Ended(gateway) => {
            eprintln!("expedite: told to end before it served");
            handover.iter().for_each(|path| withdraw(Path::new(path)));
            gateway.and_then(Result::ok).into_iter().for_each(Gateway::stop);
            return ExitCode::SUCCESS;
        }
    };
    let addr = gateway.addrs.first().map(ToString::to_string).unwrap_or_default();
    let (cores, driver) = (gateway.cores, gateway.driver.name());
    let plural = if cores == 1 { "core" } else { "cores" };
    let scheme = if gateway.tls { "https" } else { "http" };
    println!("expedite: listening on {scheme}://{addr} ({cores} {plural}, {driver})");
    systemd::notify(systemd::READY);
    signals.wait(&gateway, &mut successor);
    gateway.stop();
    ExitCode::SUCCESS
}

fn fail(what: &str) -> ExitCode {
    eprintln!("expedite: {what}");
    ExitCode::FAILURE
}

/// What a panic says, where that is a literal of the source. A message that was put together may
/// quote a prompt (as the standard library's do of a text that is cut within a character).
fn told(payload: &dyn std::any::Any) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(its words may quote a request)")
}

/// The signals that this process knows. One that comes while nobody looks is kept.
struct Signals {
    runtime: Runtime,
    term: Signal,
    int: Signal,
    hup: Signal,
    usr2: Signal,
}

/// What came of a start.
enum Started<T> {
    Done(T),
    /// It was told to end; what there was a moment later.
    Ended(Option<T>),
    Panicked,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (term, int, hup, usr2) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::user_defined2())?,
            )
        };
        Ok(Signals { runtime, term, int, hup, usr2 })
    }

    /// Starts beside this thread, which takes seconds with large tokenizers and longer behind a
    /// gateway that does not hand over. SIGTERM and Ctrl-C end that; SIGHUP and SIGUSR2 wait.
    fn beside<T: Send + 'static>(
        &mut self,
        start: impl FnOnce() -> T + Send + 'static,
    ) -> Started<T> {
        let (send, mut started) = oneshot::channel();
        let thread = std::thread::Builder::new().name("start".to_owned());
        if let Err(error) = thread.spawn(move || drop(send.send(start()))) {
            eprintln!("expedite: cannot start a thread: {error}");
            return Started::Panicked;
        }
        let Signals { runtime, term, int, .. } = self;
        runtime.block_on(async {
            tokio::select! {
                biased;
                done = &mut started => return done.map_or(Started::Panicked, Started::Done),
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            // It may already have clients.
            let soon = tokio::time::timeout(START_PATIENCE, started).await;
            Started::Ended(soon.ok().and_then(Result::ok))
        })
    }

    /// Waits for the end: SIGTERM or Ctrl-C drains, as `POST /drain` does; a second signal ends at
    /// once. SIGHUP reloads, and opens the logs anew. SIGUSR2 starts the program that is
    /// installed now, which takes over.
    fn wait(self, gateway: &Gateway, successor: &mut Successor) {
        let Signals { runtime, mut term, mut int, mut hup, mut usr2 } = self;
        runtime.block_on(async {
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
                successor.look(gateway.hands_over());
                if gateway.wait(Duration::ZERO) {
                    return;
                }
            }
        });
    }
}

/// The process that SIGUSR2 has started, with the arguments and the environment of this one.
struct Successor {
    /// Where the program is installed: after an update this leads to the new one.
    program: Option<PathBuf>,
    child: Option<(Child, Instant)>,
    /// Within this it asks for the sockets, or is ended.
    patience: Duration,
    /// It has not, and that was said.
    late: bool,
}

impl Successor {
    /// `able`: there is a way to hand over.
    fn new(able: bool) -> Successor {
        let program = std::env::current_exe().ok().filter(|_| able);
        Successor { program, child: None, patience: SUCCESSOR_PATIENCE, late: false }
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
            Ok(child) => (self.child, self.late) = (Some((child, Instant::now())), false),
            Err(error) => {
                let program = program.display();
                eprintln!("expedite: cannot start {program}: {error}; nothing has changed");
            }
        }
    }

    /// One that has ended while this process is there has not taken over, or has been told to end.
    /// One that hangs is ended, so that the next can come; not while `it_asks` or has taken over.
    fn look(&mut self, it_asks: bool) {
        let Some((child, since)) = &mut self.child else { return };
        match child.try_wait() {
            Ok(Some(status)) => {
                eprintln!("expedite: the successor has ended: {status}");
                self.child = None;
            }
            Ok(None) if !it_asks => {
                let Some(late) = since.elapsed().checked_sub(self.patience) else { return };
                if !std::mem::replace(&mut self.late, true) {
                    let patience = self.patience.as_secs();
                    eprintln!("expedite: the successor has not asked within {patience} s: ended");
                }
                // It may have ended by itself since.
                let _ = match late < KILL_AFTER {
                    true => kill_process(Pid::from_child(child), rustix::process::Signal::TERM),
                    false => child.kill().map_err(|_| rustix::io::Errno::SRCH),
                };
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_that_hangs_is_ended_and_the_next_may_come() {
        let hangs = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        for (script, ago) in [
            ("exec sleep 1000", Duration::ZERO),
            // Deaf to SIGTERM, and past the time for it.
            ("trap '' TERM; exec sleep 1000", KILL_AFTER),
        ] {
            let since = Instant::now();
            let child = Some((hangs(script), since.checked_sub(ago).unwrap_or(since)));
            let patience = Duration::MAX;
            let mut successor = Successor { program: None, child, patience, late: false };
            successor.look(false);
            assert!(successor.child.is_some(), "it has its time");
            successor.patience = Duration::ZERO;
            successor.look(true);
            assert!(successor.child.is_some(), "it is not ended while it takes over");
            assert!(!successor.late);
            while successor.child.is_some() {
                successor.look(false);
                assert!(successor.late || successor.child.is_none());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

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
