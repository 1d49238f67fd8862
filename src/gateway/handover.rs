//! A new process takes the place of this one without a refused connection or a cut stream.
//!
//! `server.handover` names a Unix socket where the running gateway waits for a successor: a process
//! that starts with the same key. It gets the very listening sockets, with whoever waits in their
//! queues, finds out what its replicas can do, begins to accept, and says "ready". Only then does
//! the old one drain; should the new one end before, nothing has changed. Last it tells what
//! tenants have spent, so that a swap fills no budget.
//!
//! ```text
//! new -> old   connects; only the same user or root may
//! old -> new   descriptors, up to 64 with one "."; then a line of JSON, see `Offer`
//! new -> old   "ready\n"
//! old -> new   a line of JSON, {"spent": {"TENANT": TOKENS}}; then the end
//! ```
//!
//! The old side and the wait for "ready" run on the control thread; `ask` runs on the thread that
//! starts the gateway.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, chmodat};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::doors::Doors;
use super::shared::Shared;
use super::sweep::SWEEP_MS;
use crate::net::{FDS_A_MESSAGE, receive_with, send_with};
use crate::replicas::{Fleet, State};
use crate::runtime::{clock, systemd};

/// Of the lines that the two exchange; another version says so and takes nothing.
const VERSION: u32 = 1;
/// More descriptors than any machine's cores times addresses.
const FDS_MAX: usize = 65_536;
const LINE_BYTES_MAX: u64 = 64 << 20;
/// The old process has its sockets ready: it answers in milliseconds, or it is not turning.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Who finds a gateway that has just handed over, or is ending, asks again.
const ASK_AGAIN: (u32, Duration) = (100, Duration::from_millis(100));
/// A successor has loaded its tokenizers before it asks; what is left is the look at its replicas.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The fleet is known when each replica has answered or failed; one that hangs is not waited for.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Without a replica that takes work, where the old process has one, a successor gives up.
const SERVING_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// What the old process offers beside its sockets.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    version: u32,
    /// Listening sockets for clients; then, with `admin`, one more.
    listeners: usize,
    admin: bool,
    /// Some replica takes work from it.
    serving: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Spent {
    spent: HashMap<String, u64>,
}

/// What a running gateway has given; it serves on until it is told "ready".
pub(super) struct Handed {
    stream: UnixStream,
    /// Its listening sockets for clients.
    pub(super) clients: Vec<TcpListener>,
    pub(super) admin: Option<TcpListener>,
    serving: bool,
}

/// Asks the gateway that waits at `path` for its sockets; `None`: nobody is there.
///
/// # Errors
/// Somebody is, but it is no gateway of ours, or it does not answer.
pub(super) fn ask(path: &Path) -> io::Result<Option<Handed>> {
    let (attempts, pause) = ASK_AGAIN;
    for _ in 0..attempts {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(e) if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&e.kind()) => {
                return Ok(None);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let owner = std::fs::metadata(path).map(|file| file.uid());
        if !owner.is_ok_and(may) {
            let what = "the socket is another user's: its sockets are not taken";
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        match receive(&stream) {
            Ok((offer, fds)) => {
                let mut clients: Vec<_> = fds.into_iter().map(TcpListener::from).collect();
                let admin = if offer.admin { clients.pop() } else { None };
                return Ok(Some(Handed { stream, clients, admin, serving: offer.serving }));
            }
            Err(e)
                if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&e.kind()) =>
            {
                std::thread::sleep(pause);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let what = "the gateway there does not answer, or hands over to another";
                return Err(io::Error::new(ErrorKind::TimedOut, what));
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::TimedOut, "the gateway there hands nothing over"))
}

/// The same user's, or root's.
fn may(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn receive(stream: &UnixStream) -> io::Result<(Offer, Vec<OwnedFd>)> {
    let (mut bytes, mut fds, mut piece) = (Vec::new(), Vec::new(), [0; 1024]);
    while !bytes.ends_with(b"\n") {
        let n = match receive_with(stream, &mut piece, &mut fds) {
            // The end of a ring that was only tried interrupts the thread that tried it.
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            received => received?,
        };
        bytes.extend_from_slice(piece.get(..n).filter(|p| !p.is_empty()).ok_or(EOF)?);
        if fds.len() > FDS_MAX || bytes.len() > FDS_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
    }
    let json = bytes.iter().position(|&b| b == b'{').unwrap_or(0);
    let offer: Offer = serde_json::from_slice(bytes.get(json..).unwrap_or_default())?;
    if offer.version != VERSION || fds.len() != offer.listeners + usize::from(offer.admin) {
        return Err(io::Error::new(ErrorKind::InvalidData, "another version's way to hand over"));
    }
    Ok((offer, fds))
}

const EOF: ErrorKind = ErrorKind::UnexpectedEof;

impl Handed {
    /// Waits until this process can serve, lets its cores accept, and tells the old one.
    ///
    /// # Errors
    /// The old one can serve and this one cannot; the old one has been told nothing.
    pub(super) async fn take_over(self, shared: &Shared) -> Result<(), String> {
        let fleet = || Arc::clone(&shared.published.load().fleet);
        wait_until(KNOWN_WITHIN, || is_known(&fleet(), clock::now_ms())).await;
        let serves = || fleet().any_eligible(clock::now_ms());
        if self.serving && !wait_until(SERVING_WITHIN, serves).await {
            return Err("no replica takes work from this gateway, and some do from the one that \
                        runs: it goes on"
                .to_owned());
        }
        shared.flags.holding.store(false, Relaxed);
        // Each core looks at its listeners once in a sweep.
        let begun = || shared.shards.iter().all(|shard| shard.beat_ms.get() > 0);
        wait_until(READY_WITHIN, begun).await;
        tokio::time::sleep(Duration::from_millis(2 * SWEEP_MS)).await;
        match self.ready().await {
            Ok(Spent { spent }) => {
                shared.published.load().accounts.spent_elsewhere(&spent, clock::now_ns());
                shared.log.info("taken over: the gateway before drains and ends");
            }
            // It has ended, or its last word is lost; the sockets are ours all the same.
            Err(error) => {
                shared.log.warn(&format!("the gateway before said no last word: {error}"))
            }
        }
        Ok(())
    }

    async fn ready(self) -> io::Result<Spent> {
        self.stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.stream)?;
        stream.write_all(b"ready\n").await?;
        let mut line = Vec::new();
        let read = async { (&mut stream).take(LINE_BYTES_MAX).read_to_end(&mut line).await };
        tokio::time::timeout(ANSWER_WITHIN, read).await??;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Each pool has members, and each of them has told its names or failed a probe.
fn is_known(fleet: &Fleet, now_ms: u64) -> bool {
    let replicas = || fleet.pools.iter().flat_map(|pool| &pool.replicas);
    fleet.pools.iter().all(|pool| !pool.replicas.is_empty())
        && replicas().all(|replica| match replica.state(now_ms) {
            State::Joining => false,
            State::Up => replica.models.load().is_some(),
            _ => true,
        })
}

async fn wait_until(patience: Duration, holds: impl Fn() -> bool) -> bool {
    let begun = tokio::time::Instant::now();
    loop {
        if holds() {
            return true;
        }
        if begun.elapsed() >= patience {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The socket where a successor is waited for. Ours alone to read and write; it stays invisible
/// until it is put in the place of the one before, and goes with this process.
pub(super) struct Post {
    listener: UnixListener,
    path: PathBuf,
    at: PathBuf,
    /// A successor's is in its place, or will be.
    left: bool,
}

impl Post {
    /// Opens it beside its place.
    ///
    /// # Errors
    /// The folder is not there or cannot be written to, or the path is too long for a socket.
    pub(super) fn open(path: &Path) -> io::Result<Post> {
        let at = beside(path);
        // Of a process with our number that was killed.
        let _ = std::fs::remove_file(&at);
        let listener = UnixListener::bind(&at)?;
        let ours = Mode::RUSR | Mode::WUSR;
        chmodat(CWD, &at, ours, AtFlags::empty())?;
        listener.set_nonblocking(true)?;
        Ok(Post { listener, path: path.to_owned(), at, left: false })
    }

    /// Puts it in its place: whoever comes from now on asks this process.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        std::fs::rename(&self.at, &self.path)?;
        self.at.clone_from(&self.path);
        Ok(())
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if !self.left {
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

/// Takes away what a `Post` may have left beside `path` in this process, which ends before it
/// has served.
pub fn withdraw(path: &Path) {
    let _ = std::fs::remove_file(beside(path));
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

/// The running gateway's side.
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    pub(super) doors: Arc<Doors>,
    pub(super) admin: Option<TcpListener>,
    /// Told true when the admin listener is the successor's.
    pub(super) gone: watch::Sender<bool>,
}

impl Host {
    /// Waits for successors at `post`, one at a time, until one has taken over; whoever comes after
    /// it and still finds this one has to ask again.
    pub(super) async fn wait(self, mut post: Post) {
        let listener = match post.listener.try_clone().and_then(tokio::net::UnixListener::from_std)
        {
            Ok(listener) => listener,
            Err(error) => {
                return self.shared.log.error(&format!("no successor can be waited for: {error}"));
            }
        };
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if post.left {
                continue;
            }
            self.shared.flags.handing_over.store(true, Relaxed);
            let handed = self.hand_over(stream).await;
            self.shared.flags.handing_over.store(false, Relaxed);
            match handed {
                Ok(()) => post.left = true,
                Err(error) => self.shared.log.warn(&format!(
                    "a successor has asked and not taken over, this gateway goes on: {error}"
                )),
            }
        }
    }

    async fn hand_over(&self, mut stream: tokio::net::UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred()?;
        if !may(peer.uid()) {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's"));
        }
        self.offer(&stream).await?;
        let mut word = [0; 6];
        let said = stream.read_exact(&mut word);
        let said = tokio::time::timeout(READY_WITHIN, said).await?;
        said.map_err(|_| io::Error::new(EOF, "it has ended before it was ready"))?;
        if &word != b"ready\n" {
            return Err(ErrorKind::InvalidData.into());
        }
        self.step_back(peer.pid());
        let now_ns = clock::now_ns();
        let spent = self.shared.published.load().accounts.spent_here(now_ns);
        let line = serde_json::to_vec(&Spent { spent })?;
        // The other serves already, whether it hears this or not.
        let _ = tokio::time::timeout(ANSWER_WITHIN, stream.write_all(&line)).await;
        Ok(())
    }

    async fn offer(&self, stream: &tokio::net::UnixStream) -> io::Result<()> {
        let mut sockets = self.doors.all()?;
        let listeners = sockets.len();
        sockets.extend(self.admin.as_ref().map(TcpListener::try_clone).transpose()?);
        let serving = self.shared.published.load().fleet.any_eligible(clock::now_ms());
        let admin = self.admin.is_some();
        let offer = Offer { version: VERSION, listeners, admin, serving };
        for some in sockets.chunks(FDS_A_MESSAGE) {
            let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
            write_some(stream, || send_with(stream, b".", &some)).await?;
        }
        let mut line = serde_json::to_vec(&offer)?;
        line.push(b'\n');
        // Short enough for the buffer of a socket that has taken the descriptors.
        match write_some(stream, || send_with(stream, &line, &[])).await? {
            n if n == line.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }

    /// The other serves: this process accepts nobody any more, and drains.
    fn step_back(&self, successor: Option<i32>) {
        let flags = &self.shared.flags;
        self.shared.log.info("a successor has taken over: draining");
        if let Some(pid) = successor {
            systemd::notify_main_pid(pid);
        }
        flags.handed_over_ms.store(clock::now_ms().max(1), Relaxed);
        flags.draining.store(true, Relaxed);
        let _ = self.gone.send(true);
    }
}

async fn write_some(
    stream: &tokio::net::UnixStream,
    send: impl Fn() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        tokio::time::timeout(ANSWER_WITHIN, stream.writable()).await??;
        match stream.try_io(tokio::io::Interest::WRITABLE, &send) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            sent => return sent,
        }
    }
}
