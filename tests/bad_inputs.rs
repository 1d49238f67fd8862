//! Hostile and odd requests against a whole gateway: each has one right answer, on each driver,
//! in one piece or in two; and nothing but the one sound body ever reaches an engine.

#[path = "support/answers.rs"]
mod answers;
mod common;
#[path = "support/inputs.rs"]
mod inputs;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use answers::Answers;
use common::Client;
use common::engine::{Engine, json};
use common::gateway::{Bed, Settings};
use inputs::Input;

/// Connections at once.
const THREADS: usize = 64;
/// Longer inputs are cut at so many places.
const CUTS: usize = 64;
const EVERY_BYTE_MAX: usize = 4096;
/// Lets the gateway read the first part before the second is there; an answer never depends on it.
const APART: Duration = Duration::from_millis(2);

/// Sends the input, cut at `cut` unless that is 0, and reads what it gets.
fn probe(addr: SocketAddr, input: &Input, cut: usize) -> Answers {
    let mut client = Client::connect(addr);
    let (first, second) = input.bytes.split_at(cut);
    // The gateway may close while we are still sending.
    let _ = client.0.write_all(first);
    if cut > 0 {
        std::thread::sleep(APART);
    }
    let _ = client.0.write_all(second);
    if input.fin {
        let _ = client.0.shutdown(Shutdown::Write);
    }
    let (mut bytes, mut piece, mut closed) = (Vec::new(), [0; 4096], true);
    loop {
        match client.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Err(e) => panic!("{} cut at {cut}: {e} after {}", input.name, bytes.escape_ascii()),
        }
        if !input.closes && Answers::parse(&bytes).statuses.len() >= input.statuses.len() && closed
        {
            // It stays open: were there more to come, it would come before the end.
            closed = false;
            let _ = client.0.shutdown(Shutdown::Write);
        }
    }
    Answers { closed, ..Answers::parse(&bytes) }
}

/// What is wrong with the answers to an input in this form.
fn fault(addr: SocketAddr, input: &Input, cut: usize) -> Option<String> {
    let got = probe(addr, input, cut);
    let want = Answers {
        statuses: input.statuses.to_vec(),
        says_close: input.closes && !input.statuses.is_empty(),
        rest: Vec::new(),
        closed: input.closes,
    };
    let shown = input.bytes[..input.bytes.len().min(200)].escape_ascii();
    (got != want).then(|| format!("{} cut at {cut}: {shown}\n  got {got:?}", input.name))
}

/// Puts every form of every input to a gateway on `driver`.
fn run(driver: &'static str, forms: impl Fn(&Input) -> Vec<usize>) {
    let engine = Engine::always(json(200, "{\"choices\":[]}"));
    let bed = Bed::start(&[engine.addr], Settings { driver, ..Settings::default() });
    let inputs = inputs::all();
    let form = |input| forms(input).into_iter().map(move |cut| (input, cut));
    let work: Vec<_> = inputs.iter().flat_map(form).collect();
    let (addr, next) = (bed.addr, AtomicUsize::new(0));
    let worker = || {
        let mut faults = Vec::new();
        while let Some((input, cut)) = work.get(next.fetch_add(1, Relaxed)) {
            faults.extend(fault(addr, input, *cut));
        }
        faults
    };
    let faults: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("worker")).collect()
    });
    let shown = faults.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{} of {} wrong:\n{shown}", faults.len(), work.len());
    let body = inputs::SOUND.replace("\"m\"", "\"base\"");
    for got in engine.requests() {
        assert_eq!(String::from_utf8_lossy(&got.body), body, "{}", got.head);
    }
    assert_eq!(bed.metric("expedite_panics_total", ""), 0.0);
}

/// Where an input is cut in two.
fn cuts(input: &Input) -> Vec<usize> {
    let n = input.bytes.len();
    match n {
        0..=EVERY_BYTE_MAX => (1..n).collect(),
        _ => (1..=CUTS).map(|i| i * (n - 1) / CUTS).collect(),
    }
}

#[test]
fn each_input_has_its_answer_on_io_uring() {
    run("io_uring", |_| vec![0]);
}

#[test]
fn each_input_has_its_answer_on_epoll() {
    run("epoll", |_| vec![0]);
}

#[test]
fn two_pieces_change_no_answer_on_io_uring() {
    run("io_uring", cuts);
}

#[test]
fn two_pieces_change_no_answer_on_epoll() {
    run("epoll", cuts);
}
