//! Follows one engine's KV events: connects, subscribes, has replayed what is missing.
//!
//! One task a replica or rank on the control thread, for as long as it is a member. Owns the
//! connections; what they bring goes to the [`Feed`]. A source that is wrong, silent, flooding or
//! gone costs exactness, shown in the [`State`](super::state::State), never a request.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::feed::{Feed, Host, Need};
use super::source::Source;
use super::state::Happened;
use crate::zmtp::{self, Connection, Incoming, Message, Role};

/// A connection, with its handshake, that takes longer has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two attempts to connect, doubled up to the second.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Without a connection for so long, what is known is stale.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// Between two looks at what may have changed elsewhere: block count and size, the self-check.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest silence within a replay: vLLM looks for requests ten times a second.
const REPLAY_SILENCE: Duration = Duration::from_secs(3);
/// The longest replay: the default buffer of 10,000 steps takes some seconds.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes read at once at most, so that many small messages do not hold the thread.
const READ_BYTES: usize = 32 << 10;
/// The sequence number that ends a replay.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// Why a connection ended.
#[derive(Debug)]
enum Failure {
    /// The port is closed: no process is there.
    Refused,
    /// Anything else of the network.
    Io(io::ErrorKind),
    /// What the peer speaks is not what we do.
    Protocol(zmtp::Error),
    /// It took too long.
    Timeout,
    /// The pool's block size has changed: all begins anew.
    Outdated,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            kind => Failure::Io(kind),
        }
    }
}

impl From<zmtp::Error> for Failure {
    fn from(error: zmtp::Error) -> Failure {
        Failure::Protocol(error)
    }
}

impl Failure {
    fn reason(&self) -> String {
        match self {
            Failure::Refused => "the port is closed".to_owned(),
            Failure::Io(kind) => kind.to_string(),
            Failure::Protocol(error) => error.reason().to_owned(),
            Failure::Timeout => "it does not answer".to_owned(),
            Failure::Outdated => "the pool's block size has changed".to_owned(),
        }
    }
}

/// Follows `source` until the task is dropped.
pub async fn follow<H: Host>(source: Source, mut feed: Feed<H>) {
    let mut retry = RETRY_MIN;
    let mut lost_at = Instant::now();
    let mut told = false;
    loop {
        if !feed.is_ready().await {
            sleep(LOOK_EVERY).await;
            continue;
        }
        let failure = match Link::open(&source.host, source.port, Role::Sub).await {
            Ok(mut link) => {
                retry = RETRY_MIN;
                told = false;
                feed.connected();
                let failure = listen(&source, &mut link, &mut feed).await;
                lost_at = Instant::now();
                failure
            }
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Outdated) {
            continue;
        }
        feed.state().count(Happened::Disconnect);
        if matches!(failure, Failure::Refused) {
            feed.ended().await;
        }
        if !std::mem::replace(&mut told, true) {
            let Source { host, port, .. } = &source;
            let line = format!("its KV events at {host}:{port}: {}", failure.reason());
            feed.host().say(true, &line);
        }
        if lost_at.elapsed() >= STALE_AFTER {
            feed.unreachable().await;
        }
        // Spread, so that a gateway's subscriptions do not all come back at once.
        sleep(retry.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        retry =
            (retry * 2).min(if lost_at.elapsed() < STALE_AFTER { LOOK_EVERY } else { RETRY_MAX });
    }
}

/// Takes messages until the connection ends.
async fn listen<H: Host>(source: &Source, link: &mut Link, feed: &mut Feed<H>) -> Failure {
    let mut topic = Vec::new();
    zmtp::subscribe(&mut topic, source.topic.as_bytes());
    if let Err(error) = link.socket.write_all(&topic).await {
        return error.into();
    }
    // What was published before the subscription took hold, or while there was none. A failure is
    // counted; the first message then tells what is missing.
    let _ = replay(source, feed).await;
    feed.settle().await;
    loop {
        match timeout(LOOK_EVERY, link.read()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return failure,
            Err(_) => feed.settle().await,
        }
        if feed.is_outdated() {
            return Failure::Outdated;
        }
        loop {
            let message = match link.connection.incoming() {
                Ok(Some(Incoming::Message(message))) => message,
                Ok(Some(Incoming::Ping(context))) => {
                    zmtp::pong(&mut link.pongs, context);
                    continue;
                }
                Ok(Some(Incoming::Ready)) => continue,
                Ok(None) => break,
                Err(error) => return error.into(),
            };
            let Some((seq, payload)) = event(&message, &[3]) else {
                feed.state().count(Happened::Garbage);
                continue;
            };
            take(source, feed, seq, payload).await;
        }
        if let Err(failure) = link.answer().await {
            return failure;
        }
    }
}

/// Sequence number and payload, the last two frames of a message of one of these `lengths`.
fn event<'b>(message: &Message<'b>, lengths: &[usize]) -> Option<(u64, &'b [u8])> {
    let mut frames = [&b""[..]; zmtp::FRAMES_MAX];
    let mut count = 0;
    for (place, frame) in frames.iter_mut().zip(message.frames()) {
        *place = frame;
        count += 1;
    }
    let [.., seq, payload] = frames.get(..count)? else { return None };
    let seq = (*seq).try_into().ok().map(u64::from_be_bytes)?;
    lengths.contains(&count).then_some((seq, *payload))
}

async fn take<H: Host>(source: &Source, feed: &mut Feed<H>, seq: u64, payload: &[u8]) {
    if feed.message(seq, payload).await == Need::Nothing {
        return;
    }
    feed.state().count(Happened::Gap);
    let _ = replay(source, feed).await;
    if feed.message(seq, payload).await == Need::Replay {
        feed.unfilled(seq).await;
        feed.message(seq, payload).await;
    }
    feed.settle().await;
}

/// Has replayed what is missing up to now; twice, if the first shows that the process is a new one.
async fn replay<H: Host>(source: &Source, feed: &mut Feed<H>) -> Result<(), Failure> {
    let Some(port) = source.replay_port else { return Ok(()) };
    for _ in 0..2 {
        feed.state().count(Happened::Replay);
        let replayed = timeout(REPLAY_TIMEOUT, replay_once(&source.host, port, feed)).await;
        match replayed.unwrap_or(Err(Failure::Timeout)) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(failure) => {
                feed.state().count(Happened::ReplayFailed);
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// One request for a replay. True: it has to begin anew.
async fn replay_once<H: Host>(host: &str, port: u16, feed: &mut Feed<H>) -> Result<bool, Failure> {
    let mut link = Link::open(host, port, Role::Dealer).await?;
    let mut request = Vec::new();
    zmtp::message(&mut request, &[b"", &feed.replay_from().to_be_bytes()]);
    link.socket.write_all(&request).await?;
    loop {
        while let Some(incoming) = link.connection.incoming()? {
            let message = match incoming {
                Incoming::Message(message) => message,
                Incoming::Ping(context) => {
                    zmtp::pong(&mut link.pongs, context);
                    continue;
                }
                Incoming::Ready => continue,
            };
            // With a topic since vLLM 0.26, without before.
            let Some((seq, payload)) = event(&message, &[3, 4]) else {
                return Err(Failure::Protocol(zmtp::Error::Malformed));
            };
            if seq == u64::from_be_bytes(REPLAY_END) {
                return Ok(feed.replay_ended().await);
            }
            if feed.replayed(seq, payload).await {
                return Ok(true);
            }
        }
        link.answer().await?;
        timeout(REPLAY_SILENCE, link.read()).await.map_err(|_| Failure::Timeout)??;
    }
}

/// A connection after its handshake.
struct Link {
    socket: TcpStream,
    connection: Connection,
    /// Answers to heartbeats that are to be sent.
    pongs: Vec<u8>,
}

impl Link {
    async fn open(host: &str, port: u16, role: Role) -> Result<Link, Failure> {
        let open = async {
            let socket = TcpStream::connect((host, port)).await?;
            // An engine may be silent for hours: a host that is gone is found by its silence.
            let keepalive = socket2::TcpKeepalive::new()
                .with_time(Duration::from_secs(10))
                .with_interval(Duration::from_secs(5))
                .with_retries(3);
            socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
            let mut link = Link { socket, connection: Connection::new(role), pongs: Vec::new() };
            link.socket.write_all(&zmtp::opening(role)).await?;
            while link.connection.incoming()? != Some(Incoming::Ready) {
                link.read().await?;
            }
            Ok(link)
        };
        timeout(CONNECT_TIMEOUT, open).await.unwrap_or(Err(Failure::Timeout))
    }

    /// Waits for bytes. Safe to drop between: what was read is kept.
    async fn read(&mut self) -> Result<(), Failure> {
        let buffer = self.connection.buffer();
        buffer.reserve(READ_BYTES);
        match (&mut self.socket).take(READ_BYTES as u64).read_buf(buffer).await? {
            0 => Err(Failure::Io(io::ErrorKind::UnexpectedEof)),
            _ => Ok(()),
        }
    }

    async fn answer(&mut self) -> Result<(), Failure> {
        if !self.pongs.is_empty() {
            let answered = timeout(CONNECT_TIMEOUT, self.socket.write_all(&self.pongs)).await;
            answered.map_err(|_| Failure::Timeout)??;
            self.pongs.clear();
        }
        Ok(())
    }
}
