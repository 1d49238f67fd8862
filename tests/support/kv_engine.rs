//! An engine's publisher and replay socket by script, on loopback: what is published, what is kept
//! for a replay, and every way in which both may fail.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use expedite::zmtp::{self, Connection, Incoming, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_local};

/// See the module. Everything is dropped, ports and connections too, when it is.
pub(crate) struct Engine {
    pub(crate) port: u16,
    pub(crate) replay_port: u16,
    shared: Rc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    subscribers: RefCell<Vec<TcpStream>>,
    /// What a replay answers with: message number and payload.
    kept: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Answer as vLLM up to 0.20 does, without a topic.
    old_replay: bool,
}

impl Engine {
    /// An engine on ports of the system's choice.
    pub(crate) async fn start() -> Engine {
        Engine::at(0, 0, false).await
    }

    pub(crate) async fn at(port: u16, replay_port: u16, old_replay: bool) -> Engine {
        let shared = Rc::new(Shared { old_replay, ..Shared::default() });
        let (events, port) = listen(port).await;
        let (replays, replay_port) = listen(replay_port).await;
        let tasks = vec![
            spawn_local(publisher(events, Rc::clone(&shared))),
            spawn_local(replayer(replays, Rc::clone(&shared))),
        ];
        Engine { port, replay_port, shared, tasks }
    }

    /// Ends the process: ports and connections close.
    pub(crate) fn stop(self) -> (u16, u16) {
        (self.port, self.replay_port)
    }

    /// Subscribers that are connected.
    pub(crate) fn subscribers(&self) -> usize {
        self.shared.subscribers.borrow().len()
    }

    /// Drops the subscribers' connections; the port stays open.
    pub(crate) fn cut(&self) {
        self.shared.subscribers.borrow_mut().clear();
    }

    /// Keeps a message for replays without publishing it.
    pub(crate) fn keep(&self, seq: u64, payload: &[u8]) {
        self.shared.kept.borrow_mut().push((seq, payload.to_vec()));
    }

    /// Keeps only messages from `seq` on.
    pub(crate) fn forget_before(&self, seq: u64) {
        self.shared.kept.borrow_mut().retain(|(kept, _)| *kept >= seq);
    }

    /// Publishes a message and keeps it.
    pub(crate) async fn publish(&self, seq: u64, payload: &[u8]) {
        self.keep(seq, payload);
        self.send(seq, payload).await;
    }

    /// Publishes a message that no replay will know.
    pub(crate) async fn send(&self, seq: u64, payload: &[u8]) {
        let mut bytes = Vec::new();
        zmtp::message(&mut bytes, &[b"kv@here", &seq.to_be_bytes(), payload]);
        self.raw(&bytes).await;
    }

    /// Sends bytes as they are to each subscriber; those that are gone are forgotten.
    pub(crate) async fn raw(&self, bytes: &[u8]) {
        let sockets = self.shared.subscribers.take();
        let mut left = Vec::new();
        for mut socket in sockets {
            if socket.write_all(bytes).await.is_ok() {
                left.push(socket);
            }
        }
        left.append(&mut self.shared.subscribers.borrow_mut());
        *self.shared.subscribers.borrow_mut() = left;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.cut();
    }
}

async fn listen(port: u16) -> (TcpListener, u16) {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // The port of an engine that was just stopped may be taken for a moment.
    for _ in 0..200 {
        if let Ok(listener) = TcpListener::bind(address).await {
            let port = listener.local_addr().unwrap().port();
            return (listener, port);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("port {port} stays taken");
}

/// The next message of a peer, as owned frames; `None` when it is gone.
async fn next(socket: &mut TcpStream, connection: &mut Connection) -> Option<Vec<Vec<u8>>> {
    loop {
        match connection.incoming() {
            Ok(Some(Incoming::Message(message))) => {
                return Some(message.frames().map(<[u8]>::to_vec).collect());
            }
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(_) => return None,
        }
        if socket.read_buf(connection.buffer()).await.ok()? == 0 {
            return None;
        }
    }
}

async fn publisher(listener: TcpListener, shared: Rc<Shared>) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let mut connection = Connection::new(Role::Pub);
        if socket.write_all(&zmtp::opening(Role::Pub)).await.is_err() {
            continue;
        }
        // The subscription: a first byte of 1, then the topic's beginning.
        if let Some(frames) = next(&mut socket, &mut connection).await
            && frames.first().is_some_and(|frame| frame.first() == Some(&1))
        {
            shared.subscribers.borrow_mut().push(socket);
        }
    }
}

async fn replayer(listener: TcpListener, shared: Rc<Shared>) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let mut connection = Connection::new(Role::Router);
        if socket.write_all(&zmtp::opening(Role::Router)).await.is_err() {
            continue;
        }
        let Some(frames) = next(&mut socket, &mut connection).await else { continue };
        let [empty, from] = frames.as_slice() else { continue };
        let Ok(from) = from.as_slice().try_into().map(u64::from_be_bytes) else { continue };
        assert!(empty.is_empty(), "a request begins with an empty frame");
        let mut bytes = Vec::new();
        for (seq, payload) in shared.kept.borrow().iter().filter(|(seq, _)| *seq >= from) {
            let seq = seq.to_be_bytes();
            match shared.old_replay {
                true => zmtp::message(&mut bytes, &[b"", &seq, payload]),
                false => zmtp::message(&mut bytes, &[b"", b"kv@here", &seq, payload]),
            }
        }
        match shared.old_replay {
            true => zmtp::message(&mut bytes, &[b"", &[0xff; 8], b""]),
            false => zmtp::message(&mut bytes, &[b"", b"", &[0xff; 8], b""]),
        }
        let _ = socket.write_all(&bytes).await;
    }
}
