//! Wakes a runtime when a request of an open loop is due.
//!
//! The runtime's own timers tick once a millisecond, which would add up to that to every latency
//! and send requests in bursts. A thread of its own sleeps until the next moment, by the kernel's
//! timers, and sends a byte over a loopback connection. It ends when the other side is dropped.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use super::schedule::Schedule;
use crate::net::Stream;
use crate::runtime::clock;

/// The side that is woken.
pub(super) struct Metronome {
    stream: Stream,
}

impl Metronome {
    /// Beats at each time of `schedule`. On the thread of the runtime.
    pub(super) fn start(schedule: Schedule) -> io::Result<Metronome> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (far, peer) = listener.accept()?;
        if peer != near.local_addr()? {
            return Err(io::Error::other("a stranger connected to the metronome"));
        }
        near.set_nodelay(true)?;
        near.set_nonblocking(true)?;
        let beat = move || {
            for due_ns in schedule {
                let left = due_ns.saturating_sub(clock::now_ns());
                if left > 0 {
                    std::thread::sleep(Duration::from_nanos(left));
                }
                match near.write(&[1]) {
                    Ok(_) => {}
                    // There are enough beats in it.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("metronome".to_owned()).spawn(beat)?;
        Ok(Metronome { stream: Stream::from_std(far)? })
    }

    /// Waits for a beat, or takes all that have come.
    pub(super) async fn beat(&mut self) {
        // An end means that no beat is left: the caller's clock tells what is due.
        let _ = self.stream.recv(&mut [0; 1024]).await;
    }
}
