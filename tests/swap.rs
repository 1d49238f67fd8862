//! A new process takes the place of a running one: nobody is refused, no stream is cut, every
//! request is recorded once. And the end of one with many streams.
//!
//! `EXPEDITE_FULL=1` takes minutes: 20 swaps and 100 reloads under 300 streams a second, and a
//! drain of 1,000 streams that comes to the end of its grace.

mod common;
#[path = "support/service.rs"]
mod service;

use std::collections::HashSet;
use std::fs::Permissions;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::gateway::{AUTH, KEY};
use common::{Client, ask, eventually, get, post, post_with};
use expedite::bench::{Bench, Kind, Lengths, Load, Options, Report, Target};
use expedite::net::receive_with;
use expedite::sim::{EngineKind, Fleet, SimConfig, SimHandle, token_text};
use service::{Process, Service};

fn full() -> bool {
    std::env::var("EXPEDITE_FULL").is_ok_and(|value| value == "1")
}

/// Two replicas whose streams of `n` tokens take `n` times `itl_ms`.
fn fleet(itl_ms: u64) -> SimHandle {
    let (ttft, itl) = (Duration::from_millis(20), Duration::from_millis(itl_ms));
    let engine = EngineKind::Fixed { ttft, itl };
    Fleet::start(SimConfig { ports: vec![0, 0], engine, ..SimConfig::default() }).expect("fleet")
}

fn service(fleet: &SimHandle, server: &str, more: &str) -> Service {
    Service::new(&[fleet.addr(0), fleet.addr(1)], server, more)
}

/// Streams whose every token is checked.
fn streams(addr: SocketAddr, load: Load, output_tokens: u64) -> Options {
    let mut target = Target::from_url(&format!("http://{addr}"), None).expect("target");
    target.choose_model(Some("p"), true).expect("a model");
    let timeout = Duration::from_secs(120);
    let output_tokens = Lengths::Fixed(output_tokens);
    Options { load, output_tokens, timeout, words: Some(token_text), ..Options::new(target) }
}

fn is_ready(admin: SocketAddr) -> bool {
    TcpStream::connect(admin).is_ok() && ask(admin, &get("/ready")).status() == 200
}

/// Starts a process and waits until it knows what its replicas serve.
fn serving(service: &Service, args: &[&str]) -> (Process, SocketAddr) {
    let mut process = service.start(args);
    let addr = process.listening();
    let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
    let known = || ask(addr, list.as_bytes()).text().contains("sim-model");
    eventually("it knows its replicas", || is_ready(service.admin) && known());
    (process, addr)
}

/// Load until told to stop: a new bench every two seconds, the one before finishing beside it.
fn load_until(over: &AtomicBool, addr: SocketAddr, rate: f64) -> Vec<Report> {
    let mut benches = Vec::new();
    while !over.load(SeqCst) {
        let duration = Duration::from_secs(2);
        let seed = benches.len() as u64 + 1;
        let options = Options { duration, seed, ..streams(addr, Load::Rate(rate), 32) };
        benches.push(Bench::start(options).expect("bench"));
        std::thread::sleep(duration);
    }
    benches.into_iter().map(|bench| bench.finish().expect("report")).collect()
}

/// Ends the load, also when its test fails.
struct Ends<'o>(&'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn swaps_and_reloads_under_load_cost_nobody_anything() {
    let (swaps, reloads, rate) = if full() { (20, 5, 300.0) } else { (3, 3, 40.0) };
    let fleet = fleet(10);
    let service = service(&fleet, "cores = [0, 1]", "");
    let (mut process, addr) = serving(&service, &[]);
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut ended = Vec::new();
    let reports = std::thread::scope(|scope| {
        let load = scope.spawn(|| load_until(&over, addr, rate));
        // Connections that are always new.
        scope.spawn(|| {
            while !over.load(SeqCst) {
                assert_eq!(ask(addr, &get("/health")).status(), 200);
                asked.fetch_add(1, SeqCst);
            }
        });
        let ends = Ends(&over);
        let before = asked.load(SeqCst);
        for _ in 0..swaps {
            for _ in 0..reloads {
                let answer = ask(service.admin, &post("/reload", ""));
                assert_eq!(answer.status(), 200, "{}", answer.text());
            }
            let next = service.start(&[]);
            ended.push(std::mem::replace(&mut process, next));
            assert_eq!(process.listening(), addr, "the same sockets: {}", service.log());
            // Some streams begin and end in each process; idle connections of others are closed.
            std::thread::sleep(Duration::from_secs(2));
        }
        assert!(asked.load(SeqCst) > before, "it was asked all the while");
        drop(ends);
        load.join().expect("load")
    });
    for process in &mut ended {
        assert!(process.wait().success(), "{}", service.log());
    }
    process.signal("TERM");
    assert!(process.wait().success(), "{}", service.log());
    for report in &reports {
        assert_eq!(report.failed(), 0, "{:?}\n{}", report.target.failures, service.log());
    }
    let completed: u64 = reports.iter().map(|report| report.target.completed).sum();
    let records = service.records();
    let ids: HashSet<_> = records.iter().map(|record| record["request_id"].to_string()).collect();
    assert!(records.iter().all(|record| record["outcome"] == "ok"));
    assert_eq!((records.len() as u64, ids.len() as u64), (completed, completed));
    assert_eq!(service.listed(), 0);
    println!(
        "{swaps} swaps, {} reloads, {completed} streams of {rate} a second, {} new connections",
        swaps * reloads,
        asked.load(SeqCst)
    );
}

/// Many new connections, so that each of a few listening sockets gets some.
fn everybody_is_served(addr: SocketAddr) {
    for _ in 0..48 {
        assert_eq!(ask(addr, &get("/health")).status(), 200);
    }
}

#[test]
fn another_number_of_cores_leaves_no_socket_without_an_owner() {
    let fleet = fleet(1);
    let service = service(&fleet, "", "");
    let (mut before, addr) = serving(&service, &["--cores", "0"]);
    for cores in ["0,1", "0", "1"] {
        let (next, same) = serving(&service, &["--cores", cores]);
        assert_eq!(addr, same);
        assert!(before.wait().success());
        everybody_is_served(addr);
        before = next;
    }
}

#[test]
fn a_successor_that_fails_leaves_everything_as_it_was() {
    let fleet = fleet(1);
    let service = service(&fleet, "cores = [0]", "");
    let (mut old, addr) = serving(&service, &[]);
    let config = std::fs::read_to_string(service.config()).expect("file");
    std::fs::write(service.config(), format!("{config}[routting]\n")).expect("file");
    assert_eq!(service.start(&[]).wait().code(), Some(2));
    std::fs::write(service.config(), &config).expect("file");
    // One that takes the sockets and dies, one that says something else.
    for last_words in ["", "never\n"] {
        let mut stream = UnixStream::connect(service.post()).expect("the old one waits");
        let (mut fds, mut bytes) = (Vec::new(), [0; 1024]);
        while bytes.iter().all(|&byte| byte != b'\n') {
            assert_ne!(receive_with(&stream, &mut bytes, &mut fds).expect("an offer"), 0);
        }
        assert_eq!(fds.len(), 2, "a socket for clients, the admin's");
        std::io::Write::write_all(&mut stream, last_words.as_bytes()).expect("sent");
        drop((stream, fds));
        everybody_is_served(addr);
    }
    eventually("both are told of", || service.log().matches("and not taken over").count() == 2);
    assert!(is_ready(service.admin) && old.child.try_wait().expect("running").is_none());
    // And the next good one takes over.
    let (_new, same) = serving(&service, &[]);
    assert_eq!(addr, same);
    assert!(old.wait().success());
}

/// A gateway before that takes whoever comes and says nothing: the start waits for it.
fn mute(service: &Service) -> (UnixListener, Process, UnixStream) {
    let post = UnixListener::bind(service.post()).expect("socket");
    let starting = service.start(&[]);
    let (asks, _) = post.accept().expect("it asks");
    (post, starting, asks)
}

#[test]
fn signals_before_it_serves_are_kept_or_end_it_cleanly() {
    let fleet = fleet(1);
    for last in ["TERM", "INT"] {
        let service = service(&fleet, "cores = [0]", "");
        let (_post, mut starting, _asks) = mute(&service);
        for name in ["HUP", "USR2", last] {
            starting.signal(name);
        }
        let end = starting.wait();
        assert_eq!(end.code(), Some(0), "{last}: {end}\n{}", service.log());
        assert!(!service.log().contains("panic"), "{}", service.log());
        let left: Vec<_> = std::fs::read_dir(service.folder.path()).expect("folder").collect();
        let left = left.iter().flatten().map(|entry| entry.file_name());
        let sockets = left.filter(|name| name.to_string_lossy().starts_with("next."));
        assert_eq!(sockets.count(), 0, "its own way to be found is gone");
    }
    let service = service(&fleet, "cores = [0]", "");
    let (post, mut starting, asks) = mute(&service);
    starting.signal("HUP");
    std::fs::remove_file(service.post()).expect("removed");
    drop((post, asks));
    starting.listening();
    eventually("it reloads when it serves", || {
        service.log().contains("the configuration was reloaded")
    });
    starting.signal("TERM");
    assert!(starting.wait().success(), "{}", service.log());
}

#[test]
fn another_users_process_gets_no_socket_and_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: only root can start a process of another user");
        return;
    }
    let fleet = fleet(1);
    let service = service(&fleet, "cores = [0]", "");
    let (mut old, addr) = serving(&service, &[]);
    // What the file system would refuse it may here, so that the gateway itself has to.
    let folder = service.folder.path();
    let all = |path: &std::path::Path| {
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("rights");
    };
    all(folder);
    for entry in std::fs::read_dir(folder).expect("folder") {
        all(&entry.expect("entry").path());
    }
    // By a descriptor, since the folder of the program may be closed to others.
    let mut command = Command::new("sh");
    let script = "exec 9<\"$0\" && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                  /proc/self/fd/9 serve --config \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_expedite")]).arg(service.config());
    let mut other = service.run(command);
    let refusals = || service.log().matches("it is another user's").count();
    eventually("it is refused, and asks again", || refusals() >= 2);
    assert_eq!(other.child.try_wait().expect("running"), None, "{}", service.log());
    other.child.kill().expect("killed");
    assert_eq!(other.line(), "", "it has never served");
    assert!(!service.log().contains("draining"), "{}", service.log());
    assert!(is_ready(service.admin) && old.child.try_wait().expect("running").is_none());
    everybody_is_served(addr);
    let (_new, same) = serving(&service, &[]);
    assert_eq!(addr, same);
    assert!(old.wait().success());
}

#[test]
fn sigusr2_starts_the_successor_and_what_is_spent_stays_spent() {
    let fleet = fleet(1);
    let key = expedite::config::KeyDigest::of(KEY.as_bytes()).to_text();
    let tenant = format!(
        "[[tenant]]\nid = \"acme\"\nkeys = [\"{key}\"]\ntokens_per_second = 1\n\
         burst_tokens = 100000\n"
    );
    let service = service(&fleet, "cores = [0]", &tenant);
    let (mut old, addr) = serving(&service, &[]);
    let left = || {
        let body = "{\"model\":\"p\",\"max_tokens\":500,\"messages\":[{\"role\":\"user\",\
                    \"content\":\"Hello\"}]}";
        let answer = ask(addr, &post_with("/v1/chat/completions", AUTH, body));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let left = answer.field("x-ratelimit-remaining-tokens").map(str::to_owned);
        left.and_then(|left| left.parse::<u64>().ok()).expect("a number")
    };
    let mut before = 100_000;
    while before > 97_000 {
        before = left();
    }
    old.signal("USR2");
    assert_eq!(old.listening(), addr, "the successor says so, on the same output");
    assert!(old.wait().success());
    eventually("the new one has its admin", || is_ready(service.admin));
    assert!(left() < 98_000, "a full bucket has 100000");
    assert_eq!(ask(service.admin, &post("/drain", "")).status(), 200);
    assert_eq!(old.line(), "", "the end of the output is the end of the successor");
}

/// How many streams a drain is tried with.
fn many() -> usize {
    if full() { 1_000 } else { 100 }
}

/// Opens [`many`] streams at once, does `then` when all are under way, and tells what came of them.
fn with_streams(fleet: &SimHandle, addr: SocketAddr, tokens: u64, then: impl FnOnce()) -> Report {
    let options = Options {
        requests: Some(many() as u64),
        duration: Duration::from_secs(600),
        ..streams(addr, Load::Concurrency(many()), tokens)
    };
    let bench = Bench::start(options).expect("bench");
    let running = || fleet.stats(0).running + fleet.stats(1).running;
    eventually("all streams are under way", || running() == many() as u64);
    then();
    bench.finish().expect("report")
}

fn outcomes(service: &Service) -> HashSet<String> {
    let records = service.records();
    assert_eq!(records.len(), many(), "one record a request");
    records.iter().map(|record| record["outcome"].as_str().unwrap_or("?").to_owned()).collect()
}

#[test]
fn sigterm_lets_every_stream_finish() {
    let fleet = fleet(400);
    let service = service(&fleet, "", "");
    let (mut process, addr) = serving(&service, &[]);
    let report = with_streams(&fleet, addr, 16, || {
        process.signal("TERM");
        eventually("it accepts nobody", || TcpStream::connect(addr).is_err());
    });
    assert_eq!((report.target.completed, report.failed()), (many() as u64, 0));
    assert!(process.wait().success());
    assert_eq!(outcomes(&service), HashSet::from(["ok".to_owned()]));
}

/// Streams that would go on for a minute end with an error event, and each is recorded.
fn all_are_cut_honestly(ends: impl FnOnce(&Process)) {
    let fleet = fleet(1_000);
    let service = service(&fleet, "", "");
    let (mut process, addr) = serving(&service, &[]);
    let report = with_streams(&fleet, addr, 60, || {
        process.signal("TERM");
        eventually("it accepts nobody", || TcpStream::connect(addr).is_err());
        ends(&process);
    });
    let failures: Vec<_> = report.target.failures.iter().map(|(kind, of)| (*kind, of.0)).collect();
    let details = &report.target.failures;
    assert_eq!(failures, [(Kind::ErrorEvent, many() as u64)], "{details:?}");
    assert!(process.wait().success());
    assert_eq!(outcomes(&service), HashSet::from(["truncated".to_owned()]));
    eventually("the replicas are told", || fleet.stats(0).running + fleet.stats(1).running == 0);
}

#[test]
fn a_second_sigterm_ends_every_stream_with_an_error_event() {
    all_are_cut_honestly(|process| process.signal("TERM"));
}

#[test]
fn the_end_of_the_grace_ends_every_stream_with_an_error_event() {
    if full() {
        all_are_cut_honestly(|_| {});
    }
}

/// What a service manager would hear.
fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let n = loop {
        match socket.recv(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.expect("a state"),
        }
    };
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

#[test]
fn a_service_manager_hears_of_every_step_and_gives_the_sockets() {
    let fleet = fleet(1);
    let theirs = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let addr = theirs.local_addr().expect("address");
    let service = service(&fleet, "cores = [0, 1]", "");
    let text = std::fs::read_to_string(service.config()).expect("file");
    let text = text.replacen("127.0.0.1:0", &addr.to_string(), 1);
    std::fs::write(service.config(), text).expect("file");
    let path = service.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("socket");
    manager.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    // Descriptor 3, in the process that the variable names.
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_expedite"), "serve", "--config"]);
    command.arg(service.config()).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    command.stdin(Stdio::from(OwnedFd::from(theirs.try_clone().expect("descriptor"))));
    let mut process = service.run(command);
    let until = |want: &str| {
        while !heard(&manager).contains(want) {}
    };
    until("READY=1");
    assert_eq!(process.listening(), addr);
    until("WATCHDOG=1");
    until("WATCHDOG=1");
    process.signal("HUP");
    until("RELOADING=1\nMONOTONIC_USEC=");
    until("READY=1");
    everybody_is_served(addr);
    // The one that takes over is the manager's main process from then on.
    let mut next = service.start(&[]);
    until(&format!("MAINPID={}", next.child.id()));
    assert_eq!(next.listening(), addr);
    assert!(process.wait().success());
    next.signal("TERM");
    assert!(next.wait().success());
    // Whoever comes while nothing runs waits in the manager's queue for the next start.
    let mut waiting = Client::connect(addr);
    waiting.send(&get("/health"));
    theirs.set_nonblocking(false).expect("blocking");
    let (mut accepted, _) = theirs.accept().expect("the connection");
    accepted.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    assert_ne!(accepted.read(&mut [0; 4]).expect("a request"), 0);
}
