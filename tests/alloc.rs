//! In steady state an event costs no allocation, and a stream little memory.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use common::Client;
use common::engine::{After, Engine, STREAM_HEAD, chunk, event};
use common::gateway::{AUTH, Bed, Settings};

/// Counts what the cores' threads allocate; other threads are the test's own.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);
/// Counts are of all cores, so that the tests take turns.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_CORE: Cell<Option<bool>> = const { Cell::new(None) };
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Is this a core's thread? Asked once it has its name.
fn on_core() -> bool {
    if let Some(known) = IS_CORE.get() {
        return known;
    }
    if ASKING.replace(true) {
        return false;
    }
    let is = std::thread::current().name().is_some_and(|name| name.starts_with("core-"));
    IS_CORE.set(Some(is));
    ASKING.set(false);
    is
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if on_core() {
            ALLOCATIONS.fetch_add(1, Relaxed);
            BYTES.fetch_add(layout.size() as i64, Relaxed);
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if on_core() {
            BYTES.fetch_sub(layout.size() as i64, Relaxed);
        }
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn chat() -> Vec<u8> {
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Reads until `n` more events have arrived.
fn read_events(client: &mut Client, n: usize) {
    let (mut seen, mut piece) = (0, [0; 4096]);
    let mut last = 0;
    while seen < n {
        let got = client.read(&mut piece).expect("read");
        assert!(got > 0, "the stream goes on");
        for byte in &piece[..got] {
            seen += usize::from(*byte == b'\n' && last == b'\n');
            last = *byte;
        }
    }
}

#[test]
fn an_event_allocates_nothing_and_a_stream_holds_little() {
    let _alone = ALONE.lock();
    a_stream_by(Settings::default());
    let more = "[timeouts]\nsse_keepalive_ms = 60000\n".to_owned();
    a_stream_by(Settings { more, ..Settings::default() });
    // No more where requests are told of, to a collector that is not there.
    let log = "level = \"off\"\naccess = \"json\"\naccess_path = \"/dev/null\"".to_owned();
    let more = "[otel]\nendpoint = \"http://127.0.0.1:1\"\n".to_owned();
    a_stream_by(Settings { log, more, ..Settings::default() });
}

fn a_stream_by(settings: Settings) {
    let (go, more) = mpsc::channel::<usize>();
    let more = Mutex::new(more);
    let engine = Engine::start(move |_, wire| {
        let more = more.lock().expect("lock");
        wire.write_all(STREAM_HEAD)?;
        while let Ok(n) = more.recv_timeout(Duration::from_secs(20)) {
            for i in 0..n {
                wire.write_all(&chunk(&event(&format!("word {i}"))))?;
                if i % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
        Ok(After::Close)
    });
    let bed = Bed::start(&[engine.addr], settings);
    let mut client = Client::connect(bed.addr);
    let idle = BYTES.load(Relaxed);
    client.send(&chat());
    // Steady state: past the first events and the first sweeps of the core.
    for _ in 0..2 {
        go.send(500).expect("engine");
        read_events(&mut client, 500);
        std::thread::sleep(Duration::from_millis(300));
    }
    let (before, held) = (ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed));
    go.send(2_000).expect("engine");
    read_events(&mut client, 2_000);
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    println!("2,000 events: {allocations} allocations; a stream holds {} bytes", held - idle);
    assert!(before > 0, "the core's thread is counted");
    assert_eq!(allocations, 0, "allocations in 2,000 events");
    assert!(held - idle <= 128 * 1024, "a stream holds {} bytes", held - idle);
}

/// A client that reads nothing: what the gateway holds for it stays bounded.
#[test]
fn a_client_that_reads_nothing_is_not_buffered_for() {
    let _alone = ALONE.lock();
    let (done_tx, done) = mpsc::channel::<usize>();
    let done_tx = Mutex::new(done_tx);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(STREAM_HEAD)?;
        wire.set_write_timeout(Some(Duration::from_millis(500)))?;
        let big = chunk(&event(&"x".repeat(8_000)));
        let mut sent = 0;
        // 64 MB, far over every kernel buffer: the gateway must stop reading.
        while sent < 8_000 && wire.write_all(&big).is_ok() {
            sent += 1;
        }
        let _ = done_tx.lock().expect("lock").send(sent);
        let _ = wire.read(&mut [0]);
        Ok(After::Close)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut client = Client::connect(bed.addr);
    let idle = BYTES.load(Relaxed);
    client.send(&chat());
    let sent = done.recv_timeout(Duration::from_secs(60)).expect("engine");
    let held = BYTES.load(Relaxed) - idle;
    println!("the engine got rid of {sent} events of 8 KB; the gateway holds {held} bytes");
    assert!(sent < 8_000, "the engine was slowed down");
    assert!(held <= 256 * 1024, "the gateway holds {held} bytes for a client that reads nothing");
}
