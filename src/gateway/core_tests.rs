//! A core without its process. Panics: under a connection's fence they cost that connection,
//! outside it their core, for a moment. A client that reads nothing: time is the sweep's, so half
//! a minute passes in a moment.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use super::super::doors::{Doors, Giver};
use super::super::reply::Failure;
use super::super::supervise::Cores;
use super::super::ticket::Ticket;
use super::super::watchdog::{Change, Stalls};
use super::*;
use crate::config::Config;
use crate::gateway::side::Side;
use crate::http1::parse_request;
use crate::net::{Driver, Stream};
use crate::openai::Endpoint;
use crate::replicas::{Files, Fleet};
use crate::runtime::log::{Level, Log};
use crate::runtime::snapshot::Snapshot;
use crate::tenants::KeyId;
use crate::usage::UsageWriter;

/// What the cores share, without a core, and the usage writer with its file.
fn shared(cores: usize) -> (Arc<Shared>, UsageWriter, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().expect("file");
    let text = format!(
        "[[pool]]\nname = \"p\"\nmodel = \"m\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
         [usage]\npath = \"{}\"\n",
        file.path().display()
    );
    let config = Arc::new(Config::from_text("test.toml", &text).expect("configuration"));
    let (usage, writer) = UsageWriter::start(&config.usage).expect("writer");
    let fleet = Arc::new(Fleet::new(&config, cores, &Files::default(), 0));
    let (loader, _) = crate::replicas::adapters::channel();
    let shared = Shared {
        loader,
        decisions: vec![Default::default()],
        published: Arc::new(Snapshot::new(Published::new(config, fleet, None))),
        identity: None,
        driver: Driver::Epoll,
        shards: (0..cores).map(|_| Arc::default()).collect(),
        usage,
        access: None,
        traces: None,
        side: Side::start(1, || SegmentCache::new(1 << 20)).expect("threads"),
        readers: Side::start(1, || ()).expect("threads"),
        share: Arc::default(),
        addresses: Arc::default(),
        bodies: Arc::new(super::super::bodies::Bodies::within(None)),
        poisons: Default::default(),
        reloads: Arc::default(),
        quota: None,
        log: Arc::new(Log::new(Level::Off, false)),
        flags: Arc::default(),
    };
    (Arc::new(shared), writer, file)
}

#[test]
fn a_panic_costs_its_own_request_and_nothing_else() {
    let (shared, writer, file) = shared(1);
    let of_core = Arc::clone(&shared);
    net::run(Driver::Epoll, async move {
        let core = Core::new(0, of_core).expect("core");
        let panicking = Rc::clone(&core);
        let request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n";
        let head = parse_request(request).expect("head");
        fenced(Rc::clone(&core), async move {
            let mut ticket = Ticket::open(&panicking, request, &head);
            ticket.caller(Endpoint::ChatCompletions, KeyId::OPEN, "open".into());
            ticket.reserve().expect("a place");
            assert_eq!(panicking.connections.get(), 1);
            net::sleep(Duration::from_millis(1)).await;
            panic!("a broken invariant of a request");
        })
        .await;
        fenced(Rc::clone(&core), async {}).await;
        assert_eq!(core.connections.get(), 0);
    })
    .expect("driver");
    let metrics = &shared.shards[0];
    assert_eq!(metrics.panics.get(), 1);
    assert_eq!((metrics.in_flight.get(), metrics.client_connections.get()), (0, 0));
    assert!(writer.stop(Duration::from_secs(20)));
    let records = std::fs::read_to_string(file.path()).expect("records");
    assert_eq!(records.matches("\"outcome\":\"upstream_error\"").count(), 1, "{records}");
}

static DIED: AtomicBool = AtomicBool::new(false);

/// A core that panics as soon as it has a connection, the first time that it runs.
fn dies_once(
    index: usize,
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
) -> std::io::Result<()> {
    if DIED.swap(true, SeqCst) {
        return run(index, shared, listeners);
    }
    live(index, shared, listeners, |core| async move {
        while core.connections.get() == 0 {
            net::sleep(Duration::from_millis(5)).await;
            tick(&core);
        }
        panic!("a broken invariant of a core");
    })
}

#[test]
fn a_core_that_panics_is_started_again() {
    let (shared, writer, _file) = shared(1);
    let listen = [([127, 0, 0, 1], 0).into()];
    let (doors, _) = Doors::open(&listen, 1, Vec::new(), Giver::Gateway).expect("sockets");
    let (addr, doors) = (doors.addrs()[0], Arc::new(doors));
    let cores = Cores::start(Arc::clone(&shared), vec![0], doors, dies_once).expect("cores");
    let supervisor = std::thread::spawn(move || cores.watch());
    let mut first = TcpStream::connect(addr).expect("connect");
    first.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let read = first.read(&mut [0; 16]);
    assert!(
        matches!(read, Ok(0)) || read.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock),
        "its connections end with it"
    );
    while shared.shards[0].panics.get() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Who comes before the core is back waits in the queue of its listener, and is refused by none.
    for _ in 0..32 {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(addr)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = asked().expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(shared.shards[0].panics.get(), 1);
    shared.flags.draining.store(true, Relaxed);
    shared.flags.listeners_closed.store(true, Relaxed);
    supervisor.join().expect("supervisor");
    let metrics = &shared.shards[0];
    assert_eq!((metrics.in_flight.get(), metrics.client_connections.get()), (0, 0));
    assert!(writer.stop(Duration::from_secs(20)));
}

/// Fault 34.
#[test]
fn a_request_that_panics_is_answered_with_500_and_harms_nobody() {
    let (shared, writer, _file) = shared(1);
    let listen = [([127, 0, 0, 1], 0).into()];
    let (doors, _) = Doors::open(&listen, 1, Vec::new(), Giver::Gateway).expect("sockets");
    let (addr, doors) = (doors.addrs()[0], Arc::new(doors));
    let cores = Cores::start(Arc::clone(&shared), vec![0], doors, run).expect("cores");
    let supervisor = std::thread::spawn(move || cores.watch());
    let ask = |stream: &mut TcpStream, path: &str| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").expect("write");
        let mut answer = [0; 4096];
        let n = stream.read(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[..n]).into_owned()
    };
    let mut other = TcpStream::connect(addr).expect("connect");
    assert!(ask(&mut other, "/health").starts_with("HTTP/1.1 200"));
    let mut one = TcpStream::connect(addr).expect("connect");
    let answer = ask(&mut one, "/panic");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains("\"code\":\"internal_error\""), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(one.read(&mut [0; 16]).expect("its end"), 0);
    assert!(ask(&mut other, "/health").starts_with("HTTP/1.1 200"));
    drop(other);
    shared.flags.draining.store(true, Relaxed);
    shared.flags.listeners_closed.store(true, Relaxed);
    supervisor.join().expect("supervisor");
    let metrics = &shared.shards[0];
    assert_eq!((metrics.panics.get(), metrics.in_flight.get()), (1, 0));
    assert!(writer.stop(Duration::from_secs(20)));
}

static LET_GO: AtomicBool = AtomicBool::new(false);

/// A core that something holds for a while, as no task may.
fn stalls_once(
    index: usize,
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
) -> std::io::Result<()> {
    live(index, shared, listeners, |core| async move {
        while !LET_GO.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        beat(core).await;
    })
}

#[test]
fn a_core_that_stalls_is_named_and_so_is_its_return() {
    let (shared, _writer, _file) = shared(1);
    let (doors, _) = Doors::open(&[], 1, Vec::new(), Giver::Gateway).expect("none");
    let cores = Cores::start(Arc::clone(&shared), vec![0], Arc::new(doors), stalls_once);
    let cores = cores.expect("cores");
    let mut stalls = Stalls::default();
    let mut next = || {
        for _ in 0..4_000 {
            let beats = shared.shards.iter().map(|shard| shard.beat_ms.get());
            if let Some(change) = stalls.look(clock::now_ms(), beats).pop() {
                return change;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("nothing has changed");
    };
    assert!(matches!(next(), Change::Stalls { core: 0, for_ms: 1_000.. }));
    LET_GO.store(true, SeqCst);
    assert!(matches!(next(), Change::TurnsAgain { core: 0, after_ms: 1_000.. }));
    shared.flags.draining.store(true, Relaxed);
    cores.watch();
    assert_eq!(shared.shards[0].beat_ms.get(), i64::MAX, "who has ended does not stall");
}

#[test]
fn in_the_notice_time_of_a_drain_a_core_without_a_connection_goes_on_accepting() {
    let (shared, writer, _file) = shared(1);
    let listen = [([127, 0, 0, 1], 0).into()];
    let (doors, _) = Doors::open(&listen, 1, Vec::new(), Giver::Gateway).expect("sockets");
    let doors = Arc::new(doors);
    let cores = Cores::start(Arc::clone(&shared), vec![0], Arc::clone(&doors), run);
    let supervisor = std::thread::spawn(move || cores.expect("cores").watch());
    shared.flags.draining.store(true, Relaxed);
    let beat_ms = || shared.shards[0].beat_ms.get();
    for sweep in 0..5 {
        let before = beat_ms();
        let mut looks = 0..4_000;
        while beat_ms() == before {
            assert!(looks.next().is_some(), "it has ended after sweep {sweep}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut client = TcpStream::connect(doors.addrs()[0]).expect("connect");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    client.write_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer, and the end");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    doors.close();
    shared.flags.listeners_closed.store(true, Relaxed);
    supervisor.join().expect("supervisor");
    assert!(TcpStream::connect(doors.addrs()[0]).is_err(), "then nobody listens");
    assert!(writer.stop(Duration::from_secs(20)));
}

#[test]
fn a_client_that_reads_nothing_has_gone() {
    let (shared, _writer, _file) = shared(1);
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let _reads_nothing = TcpStream::connect(listener.local_addr().expect("address"));
    let (socket, _) = listener.accept().expect("accept");
    net::run(Driver::Epoll, async move {
        let core = Core::new(0, shared).expect("core");
        let stream = Stream::from_std(socket).expect("stream");
        let mut client = connection::Client::new(&core, net::Wire::Plain(stream));
        let of_sweep = Rc::clone(&core);
        net::spawn(async move {
            for second in 1.. {
                net::sleep(Duration::from_millis(1)).await;
                of_sweep.sweep.run(second * 1_000);
            }
        });
        let sent = client.send(&core, &vec![0; 64 << 20]).await;
        assert!(matches!(sent, Err(Failure::ClientGone)), "{sent:?}");
    })
    .expect("driver");
}
