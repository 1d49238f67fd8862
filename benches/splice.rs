//! Splice against pass-through: what relaying an event costs, `cargo bench --bench splice`.
//!
//! Pass-through reads what has come into a buffer and writes the same bytes, as the gateway does
//! (which also looks at them). Splice moves them by splice(2) through a pipe, so that they are
//! never copied to this process. Both on one blocking thread over loopback TCP, an event at a time
//! between a sender and a receiver, whose time does not count. Prints CPU time of the relaying
//! thread per event and asserts that every byte arrived.
//!
//! Splice needs a second call for what it has put into the pipe, as a copy does for its buffer, so
//! that it spares the copies alone; and what is spliced is not seen: the usage event could not be
//! read, nor a torn one held back. In a ring it is done by threads of the kernel's, one for each
//! that waits (`IORING_OP_SPLICE`).

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use rustix::pipe::{SpliceFlags, pipe, splice};

/// Bytes relayed a case at most, and events.
const BYTES_MAX: usize = 1 << 30;
const EVENTS_MAX: usize = 50_000;
const ROUNDS: usize = 5;
/// A pipe holds so much unless it is told otherwise.
const PIPE_BYTES: usize = 64 << 10;
/// As the gateway's buffers.
const BUFFER_BYTES: usize = 64 << 10;
/// A socket takes so many at least, whoever reads.
const SOCKET_BYTES: usize = 64 << 10;

/// CPU time that this thread has had, in ns.
fn cpu_ns() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstats");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds first")
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (theirs, _) = listener.accept().expect("a connection");
    for side in [&ours, &theirs] {
        side.set_nodelay(true).expect("a socket");
    }
    (ours, theirs)
}

/// Relays `bytes` of one event.
trait Relay {
    fn relay(&mut self, from: &mut TcpStream, to: &mut TcpStream, bytes: usize) -> io::Result<()>;
}

struct PassThrough(Vec<u8>);

impl Relay for PassThrough {
    fn relay(&mut self, from: &mut TcpStream, to: &mut TcpStream, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let read = from.read(&mut self.0)?;
            to.write_all(&self.0[..read])?;
            left -= read;
        }
        Ok(())
    }
}

struct Splice(OwnedFd, OwnedFd);

impl Relay for Splice {
    fn relay(&mut self, from: &mut TcpStream, to: &mut TcpStream, bytes: usize) -> io::Result<()> {
        let Splice(out, into) = self;
        let mut left = bytes;
        while left > 0 {
            let mut held = splice(&*from, None, &*into, None, PIPE_BYTES, SpliceFlags::MOVE)?;
            left -= held;
            while held > 0 {
                held -= splice(&*out, None, &*to, None, held, SpliceFlags::MOVE)?;
            }
        }
        Ok(())
    }
}

/// CPU ns of an event of so many bytes.
fn measure(relay: &mut dyn Relay, bytes: usize) -> f64 {
    let events = EVENTS_MAX.min(BYTES_MAX / bytes);
    let (engine, mut from) = pair();
    let (mut to, mut client) = pair();
    let ends = thread::spawn(move || {
        let sent: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let mut got = vec![0; bytes];
        // The next is sent when the one before has arrived: an event is relayed alone.
        thread::scope(|scope| {
            for _ in 0..events {
                // What the sockets' buffers do not hold is sent beside.
                let sender = (bytes > SOCKET_BYTES).then(|| scope.spawn(|| sends(&engine, &sent)));
                if sender.is_none() {
                    sends(&engine, &sent);
                }
                client.read_exact(&mut got).expect("received");
                assert!(got == sent, "the bytes are the same");
                if let Some(sender) = sender {
                    sender.join().expect("sent");
                }
            }
        });
    });
    let begun_ns = cpu_ns();
    for _ in 0..events {
        relay.relay(&mut from, &mut to, bytes).expect("relayed");
    }
    let took_ns = cpu_ns() - begun_ns;
    ends.join().expect("all arrived");
    took_ns as f64 / events as f64
}

fn sends(mut engine: &TcpStream, bytes: &[u8]) {
    engine.write_all(bytes).expect("sent");
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    println!("{:>10} {:>14} {:>14} {:>7}", "bytes", "pass-through", "splice", "ratio");
    let (out, into) = pipe().expect("a pipe");
    let (mut copies, mut splices) = (PassThrough(vec![0; BUFFER_BYTES]), Splice(out, into));
    for bytes in [250, 1_000, 4_000, 16_000, 64_000, 256_000] {
        let mut times = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            times.0.push(measure(&mut copies, bytes));
            times.1.push(measure(&mut splices, bytes));
        }
        let (copied, spliced) = (median(times.0), median(times.1));
        println!("{bytes:>10} {copied:>11.0} ns {spliced:>11.0} ns {:>7.2}", spliced / copied);
    }
}
