//! Waking a core's tasks from elsewhere, and giving a core's other work a turn.
//!
//! The runtime's own wakers must not leave their thread. A [`Bell`] is a socket pair: any thread
//! rings by writing a byte, the core's listening task reads it and wakes whoever waits. A task that
//! has much to compute rings for itself and waits: the wake comes back through the ring, behind
//! everything that was ready before it. Lives on its core; only [`Ringer`] may leave it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use monoio::net::UnixStream;
use rustix::net::RecvFlags;

use super::ready::{Wait, slot};
use super::sys::fd;

/// Rings read at once.
const RINGS_A_READ: usize = 64;

/// Rings a bell, from any thread.
#[derive(Clone)]
pub struct Ringer {
    socket: Arc<StdUnixStream>,
}

impl Ringer {
    /// Wakes whoever waits for the bell.
    pub fn ring(&self) {
        // A full socket has rings enough in it; a closed one has nobody to wake.
        let _ = (&*self.socket).write(&[1]);
    }
}

/// The bell of one core.
pub struct Bell {
    ringer: Ringer,
    socket: Rc<UnixStream>,
    waiting: RefCell<Vec<Waker>>,
    /// Rings heard so far: what a waiter compares.
    rings: Cell<u64>,
}

impl Bell {
    /// A new bell; somebody must [`listen`](Bell::listen).
    ///
    /// # Errors
    /// No descriptor left, or the runtime cannot register it.
    pub fn new() -> io::Result<Bell> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        Ok(Bell {
            ringer: Ringer { socket: Arc::new(theirs) },
            socket: Rc::new(UnixStream::from_std(ours)?),
            waiting: RefCell::default(),
            rings: Cell::new(0),
        })
    }

    /// What rings this bell.
    #[must_use]
    pub fn ringer(&self) -> Ringer {
        self.ringer.clone()
    }

    /// Waits for the next ring. Rings are for all: look whether it was meant for you.
    pub async fn rung(&self) {
        let heard = self.rings.get();
        poll_fn(|cx| {
            if self.rings.get() != heard {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Lets the core do what else is ready before the caller goes on.
    pub async fn turn(&self) {
        self.ringer.ring();
        self.rung().await;
    }

    /// Hears the rings until `over` says, at a ring, that this is enough.
    pub async fn listen(&self, over: impl Fn() -> bool) {
        let waited = Rc::clone(&self.socket);
        let mut readable: Box<dyn Wait> = slot(move || {
            let socket = Rc::clone(&waited);
            async move { socket.readable(false).await }
        });
        while !over() {
            poll_fn(|cx| readable.poll(cx)).await;
            self.drain();
            self.rings.set(self.rings.get().wrapping_add(1));
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    fn drain(&self) {
        let mut rings = [0; RINGS_A_READ];
        while let Ok((n, _)) =
            rustix::net::recv(fd(&*self.socket), &mut rings[..], RecvFlags::DONTWAIT)
        {
            if n < RINGS_A_READ {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{DriverChoice, run, sleep, spawn};
    use std::time::Duration;

    #[test]
    fn another_thread_wakes_a_task() {
        for choice in [DriverChoice::Auto, DriverChoice::Epoll] {
            let (driver, _) = choice.resolve().unwrap();
            let heard = run(driver, async {
                let bell = Rc::new(Bell::new().unwrap());
                let (ringer, over) = (bell.ringer(), Rc::new(Cell::new(false)));
                let (listener, ended) = (Rc::clone(&bell), Rc::clone(&over));
                spawn(async move { listener.listen(|| ended.get()).await });
                let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let told = Arc::clone(&done);
                let thread = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    told.store(true, std::sync::atomic::Ordering::Release);
                    ringer.ring();
                });
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    bell.rung().await;
                }
                thread.join().unwrap();
                over.set(true);
                bell.ringer().ring();
                true
            });
            assert!(heard.unwrap());
        }
    }

    #[test]
    fn a_task_that_takes_turns_does_not_starve_timers_or_tasks() {
        let (driver, _) = DriverChoice::Auto.resolve().unwrap();
        let turns = run(driver, async {
            let bell = Rc::new(Bell::new().unwrap());
            let listener = Rc::clone(&bell);
            spawn(async move { listener.listen(|| false).await });
            let over = Rc::new(Cell::new(false));
            let told = Rc::clone(&over);
            spawn(async move {
                sleep(Duration::from_millis(20)).await;
                told.set(true);
            });
            let mut turns = 0;
            while !over.get() {
                bell.turn().await;
                turns += 1;
            }
            turns
        });
        assert!(turns.unwrap() > 10, "a turn is no sleep");
    }
}
