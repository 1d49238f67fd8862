//! The two ports of a replica's KV events: PUB sends each batch to whoever has subscribed, ROUTER
//! gives the last ones again.
//!
//! A message is topic, sequence number (8 bytes, big endian, from 0 without a gap) and payload; a
//! replayed one has an empty frame before it, and the last of a replay is number -1. On the
//! replica's thread; [`zmtp`] is the wire, this its sockets.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::task::Poll;

use super::fault::Kind;
use super::pace::Signal;
use crate::net::{self, Listener, Stream};
use crate::zmtp::{self, Connection, Incoming, Message, Role};

/// Batches that can be replayed: `buffer_steps`.
pub(super) const BUFFER_STEPS: usize = 10_000;

/// A subscriber that is so far behind misses what comes, as behind ZeroMQ's high-water mark.
const BEHIND_BYTES_MAX: usize = 64 << 20;

/// Ends a replay.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// See the module.
pub(super) struct Publisher {
    topic: Vec<u8>,
    state: RefCell<State>,
    peers: RefCell<Vec<Rc<Peer>>>,
}

#[derive(Default)]
struct State {
    next: u64,
    kept: VecDeque<(u64, Rc<[u8]>)>,
    /// What strikes the next batches, and how many.
    fault: Option<(Kind, u64)>,
    /// A batch that is sent after the next one.
    held: Option<(u64, Rc<[u8]>)>,
}

/// One connection.
#[derive(Default)]
struct Peer {
    out: RefCell<Vec<u8>>,
    topics: RefCell<Vec<Vec<u8>>>,
    signal: Signal,
    closed: Cell<bool>,
}

impl Publisher {
    pub(super) fn new(topic: &str) -> Publisher {
        Publisher {
            topic: topic.as_bytes().to_vec(),
            state: RefCell::default(),
            peers: RefCell::default(),
        }
    }

    /// Numbers a batch, keeps it for replay, and sends it as the fault will have it.
    pub(super) fn publish(&self, payload: Rc<[u8]>) {
        let mut state = self.state.borrow_mut();
        let seq = state.next;
        state.next += 1;
        if state.kept.len() >= BUFFER_STEPS {
            state.kept.pop_front();
        }
        state.kept.push_back((seq, Rc::clone(&payload)));
        let late = state.held.take();
        let fault = match &mut state.fault {
            Some((kind, left)) if *left > 0 => {
                *left -= 1;
                *kind
            }
            _ => Kind::None,
        };
        match fault {
            Kind::KvDrop => {}
            Kind::KvReorder if late.is_none() => state.held = Some((seq, payload)),
            Kind::KvGarbage => self.send(seq, b"\xc1 no MessagePack begins like this"),
            _ => self.send(seq, &payload),
        }
        if let Some((seq, payload)) = late {
            self.send(seq, &payload);
        }
    }

    /// Sets what strikes the next `count` batches; any other kind clears it.
    pub(super) fn set_fault(&self, kind: Kind, count: u64) {
        let strikes = matches!(kind, Kind::KvDrop | Kind::KvReorder | Kind::KvGarbage);
        self.state.borrow_mut().fault = strikes.then_some((kind, count));
    }

    /// Numbers begin anew, nothing can be replayed, and the connections are closed.
    pub(super) fn restart(&self) {
        *self.state.borrow_mut() = State::default();
        for peer in self.peers.borrow().iter() {
            peer.closed.set(true);
            peer.signal.ring();
        }
    }

    fn send(&self, seq: u64, payload: &[u8]) {
        for peer in self.peers.borrow().iter() {
            let wanted = peer.topics.borrow().iter().any(|topic| self.topic.starts_with(topic));
            let mut out = peer.out.borrow_mut();
            if wanted && out.len() < BEHIND_BYTES_MAX {
                zmtp::message(&mut out, &[&self.topic, &seq.to_be_bytes(), payload]);
                peer.signal.ring();
            }
        }
    }

    /// A subscription or its end.
    fn subscribed(peer: &Peer, message: &Message<'_>) {
        let Some([frame]) = message.exactly::<1>() else { return };
        let mut topics = peer.topics.borrow_mut();
        match frame.split_first() {
            Some((1, topic)) => topics.push(topic.to_vec()),
            Some((0, topic)) => {
                if let Some(at) = topics.iter().position(|t| t == topic) {
                    topics.swap_remove(at);
                }
            }
            _ => {}
        }
    }

    /// All kept batches from the number that was asked for on.
    fn replay(&self, peer: &Peer, message: &Message<'_>) {
        let Some([_, start]) = message.exactly::<2>() else { return };
        let Ok(start) = start.try_into().map(u64::from_be_bytes) else { return };
        let mut out = peer.out.borrow_mut();
        for (seq, payload) in self.state.borrow().kept.iter().filter(|kept| kept.0 >= start) {
            zmtp::message(&mut out, &[b"", &self.topic, &seq.to_be_bytes(), payload]);
        }
        zmtp::message(&mut out, &[b"", b"", &REPLAY_END, b""]);
    }
}

/// Takes connections for good.
pub(super) async fn keep(publisher: Rc<Publisher>, role: Role, socket: TcpListener) {
    let Ok(mut listener) = Listener::from_std(socket) else { return };
    while let Ok(stream) = listener.accept().await {
        let publisher = Rc::clone(&publisher);
        net::spawn(async move {
            let peer = Rc::new(Peer::default());
            // However it ended, the other side will come again.
            let _ = serve(&publisher, &peer, role, stream).await;
            publisher.peers.borrow_mut().retain(|other| !Rc::ptr_eq(other, &peer));
        });
    }
}

async fn serve(
    publisher: &Publisher,
    peer: &Rc<Peer>,
    role: Role,
    mut stream: Stream,
) -> io::Result<()> {
    let mut connection = Connection::new(role);
    peer.out.borrow_mut().extend_from_slice(&zmtp::opening(role));
    let mut space = [0; 4096];
    loop {
        let n = poll_fn(|cx| {
            if peer.closed.get() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let mut out = peer.out.borrow_mut();
            while !out.is_empty() {
                match stream.poll_send(cx, &out) {
                    Poll::Ready(Ok(sent)) => drop(out.drain(..sent)),
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => break,
                }
            }
            match stream.poll_recv(cx, &mut space) {
                Poll::Pending => peer.signal.poll(cx).map(|()| Ok(None)),
                Poll::Ready(received) => Poll::Ready(received.map(Some)),
            }
        })
        .await?;
        let Some(n) = n else { continue };
        if n == 0 {
            return Ok(());
        }
        connection.buffer().extend_from_slice(&space[..n]);
        while let Some(incoming) =
            connection.incoming().map_err(|e| io::Error::other(e.reason()))?
        {
            match (incoming, role) {
                (Incoming::Ready, Role::Pub) => {
                    publisher.peers.borrow_mut().push(Rc::clone(peer));
                }
                (Incoming::Ready, _) => {}
                (Incoming::Message(message), Role::Pub) => Publisher::subscribed(peer, &message),
                (Incoming::Message(message), _) => publisher.replay(peer, &message),
                (Incoming::Ping(context), _) => zmtp::pong(&mut peer.out.borrow_mut(), context),
            }
        }
    }
}
