//! The task behind a lane: connects, says what is to be said, reads what comes, begins again.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::Cmd;

use super::client::Inner;
use super::lane::{Lane, Target};
use super::op::probe;
use super::resp::{Reply, parse};
use super::shared::Topology;
use super::stats::Trouble;
use super::url::Layout;
use crate::net::{self, Stream};

/// To connect, and for each answer to the greeting.
const CONNECT_MS: u64 = 1_000;
/// Between two attempts, doubled from the one to the other.
const PAUSE_MIN_MS: u64 = 20;
const PAUSE_MAX_MS: u64 = 500;
/// Looks for an address within that time.
const LOOKS: u64 = 50;
const READ_BYTES: usize = 16 * 1024;
/// A reply that is longer has no end.
const INBOX_BYTES_MAX: usize = 8 << 20;

/// Keeps a lane connected until its client ends or it is retired.
pub(super) async fn drive(lane: Rc<Lane>, inner: Rc<Inner>) {
    let mut pause_ms = PAUSE_MIN_MS;
    while !inner.ended() {
        let epoch = lane.epoch.get();
        let Err(why) = session(&lane, &inner).await;
        if inner.ended() || inner.retired(&lane) {
            lane.disconnected(&inner, why, true);
            return;
        }
        inner.stats.errors(why).inc();
        inner.shared.moved.notify_one();
        let was_up = lane.epoch.get() != epoch;
        // One that was up may be back at once: what waits has its own patience.
        let closed = was_up && why == Trouble::Closed;
        lane.disconnected(&inner, why, !closed);
        if was_up {
            pause_ms = PAUSE_MIN_MS;
        }
        // Spread, so that cores and gateways do not come back in one burst.
        let spread = pause_ms.saturating_mul(fastrand::u64(50..150)) / 100;
        net::sleep(Duration::from_millis(spread)).await;
        pause_ms = pause_ms.saturating_mul(2).min(PAUSE_MAX_MS);
    }
}

enum Never {}

async fn session(lane: &Rc<Lane>, inner: &Rc<Inner>) -> Result<Never, Trouble> {
    let address = found(lane, inner).await.ok_or(Trouble::Connect)?;
    let connected = within(CONNECT_MS, net::connect(address)).await.ok_or(Trouble::Connect)?;
    let mut wire = Wire {
        stream: connected.map_err(|_| Trouble::Connect)?,
        inbox: Vec::new(),
        out: Vec::new(),
    };
    wire.greet(lane, inner).await?;
    lane.connected(inner);
    poll_fn(|cx| wire.poll(cx, lane, inner)).await
}

/// Where the server is; who has just started may not know yet.
async fn found(lane: &Lane, inner: &Inner) -> Option<SocketAddr> {
    for _ in 0..LOOKS {
        let address = address(lane, inner);
        if address.is_some() || lane.cut.get().is_some() {
            return address;
        }
        net::sleep(Duration::from_millis(CONNECT_MS / LOOKS)).await;
    }
    None
}

fn address(lane: &Lane, inner: &Inner) -> Option<SocketAddr> {
    match (lane.target, &**inner.topology()) {
        (Target::Node(node), _) => Some(node),
        (Target::Main, Topology::Single(address)) => Some(*address),
        _ => None,
    }
}

async fn within<T>(ms: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut over = std::pin::pin!(net::sleep(Duration::from_millis(ms)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => over.as_mut().poll(cx).map(|()| None),
    })
    .await
}

struct Wire {
    stream: Stream,
    inbox: Vec<u8>,
    out: Vec<u8>,
}

impl Wire {
    /// Who we are, what we shall call, and whether it can write.
    async fn greet(&mut self, lane: &Lane, inner: &Inner) -> Result<(), Trouble> {
        let place = &inner.shared.place;
        let tag = lane.tag.borrow().clone();
        let blind = place.layout == Layout::Cluster && tag.is_empty();
        let last = if blind { redis::cmd("PING") } else { probe(&tag) };
        let greeting = place.greeting().into_iter().chain(inner.scripts.load()).chain([last]);
        for command in greeting {
            let reply = within(CONNECT_MS, self.ask(&command)).await.ok_or(Trouble::Timeout)??;
            if let Reply::Error(text) = reply {
                // A slot that has moved since is no fault of this server.
                if !text.starts_with("MOVED ") {
                    return Err(Trouble::of_error(&text));
                }
            }
        }
        Ok(())
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Reply, Trouble> {
        self.stream.send_all(&command.get_packed_command()).await.map_err(|_| Trouble::Closed)?;
        loop {
            if let Some(reply) = self.take()? {
                return Ok(reply);
            }
            poll_fn(|cx| self.poll_fill(cx)).await?;
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        lane: &Rc<Lane>,
        inner: &Rc<Inner>,
    ) -> Poll<Result<Never, Trouble>> {
        loop {
            if let Some(why) = lane.cut.take() {
                return Poll::Ready(Err(why));
            }
            if let Err(why) = self.send(cx, lane, inner) {
                return Poll::Ready(Err(why));
            }
            match self.poll_fill(cx) {
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Ready(Ok(())) => match self.hear(lane, inner) {
                    Ok(()) => {}
                    Err(why) => return Poll::Ready(Err(why)),
                },
                // Nothing to read, and all is sent or the socket is full: the one or the other, or
                // something new to say, wakes.
                Poll::Pending => {
                    *lane.waker.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    /// Sends what there is to say, as far as the socket takes it.
    fn send(&mut self, cx: &mut Context<'_>, lane: &Lane, inner: &Inner) -> Result<(), Trouble> {
        loop {
            if self.out.is_empty() {
                lane.pack(inner, &mut self.out);
            }
            if self.out.is_empty() {
                return Ok(());
            }
            match self.stream.poll_send(cx, &self.out) {
                Poll::Ready(Ok(n)) => drop(self.out.drain(..n.min(self.out.len()))),
                Poll::Ready(Err(_)) => return Err(Trouble::Closed),
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        let mut space = [0; READ_BYTES];
        match self.stream.poll_recv(cx, &mut space) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(n)) if n > 0 => {
                self.inbox.extend_from_slice(space.get(..n).unwrap_or_default());
                let fits = self.inbox.len() <= INBOX_BYTES_MAX;
                Poll::Ready(if fits { Ok(()) } else { Err(Trouble::Garbage) })
            }
            Poll::Ready(_) => Poll::Ready(Err(Trouble::Closed)),
        }
    }

    fn hear(&mut self, lane: &Rc<Lane>, inner: &Rc<Inner>) -> Result<(), Trouble> {
        let mut at = 0;
        while let Some((reply, n)) =
            parse(self.inbox.get(at..).unwrap_or_default()).map_err(|_| Trouble::Garbage)?
        {
            at = at.saturating_add(n);
            lane.heard(inner, reply)?;
        }
        self.inbox.drain(..at.min(self.inbox.len()));
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Reply>, Trouble> {
        let read = parse(&self.inbox).map_err(|_| Trouble::Garbage)?;
        Ok(read.map(|(reply, n)| {
            self.inbox.drain(..n.min(self.inbox.len()));
            reply
        }))
    }
}
