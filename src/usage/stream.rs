//! The second sink: each written record also goes to a stream of Redis or Valkey (`XADD`).
//!
//! The file is the truth and the stream a copy of it: a line is offered once it is written, the
//! queue is bounded, and what does not fit while the store is away is dropped and counted. On a
//! thread of its own; neither cores nor the writer ever wait for it. A batch whose answer was lost
//! is sent again: entries carry an `id` that is unique to the record, for who must count once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use redis::{Client, Connection};

use super::ring::Shared;
use crate::config::UsageStream;

/// Lines that wait for the store: some 40 MB, and half a minute at 2,000 a second.
const QUEUE: usize = 65_536;
/// Entries of one round trip.
const BATCH: usize = 512;
const IDLE: Duration = Duration::from_millis(20);
/// To connect, and for an answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a stop goes on trying while the store is away.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// The writer's end.
pub(super) struct Feed {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    run: u64,
    next: u64,
}

struct Queue {
    lines: ArrayQueue<Line>,
    stop: AtomicBool,
}

struct Line {
    id: String,
    text: Box<[u8]>,
}

/// The thread.
pub(super) struct Stream {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Feed {
    /// Queues a line, without its newline.
    pub(super) fn offer(&mut self, line: &[u8]) {
        let id = format!("{:016x}-{}", self.run, self.next);
        self.next += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(line).into();
        if self.queue.lines.push(Line { id, text }).is_err() {
            self.shared.stream_dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Stream {
    /// Starts the thread, which connects when there is something to send.
    ///
    /// # Errors
    /// The URL cannot be read, which the words do not show, or the thread not be started.
    pub(super) fn start(config: &UsageStream, shared: Arc<Shared>) -> io::Result<(Stream, Feed)> {
        let client = Client::open(config.store.expose())
            .map_err(|_| io::Error::other("the URL of the stream's store cannot be read"))?;
        let mut run = [0; 8];
        getrandom::fill(&mut run).map_err(|e| io::Error::other(e.to_string()))?;
        let (lines, stop) = (ArrayQueue::new(QUEUE), AtomicBool::new(false));
        let queue = Arc::new(Queue { lines, stop });
        let (run, next) = (u64::from_ne_bytes(run), 0);
        let feed = Feed { queue: queue.clone(), shared: shared.clone(), run, next };
        let sender = Sender {
            name: config.name.clone(),
            length_max: config.length_max,
            client,
            connection: None,
            queue: queue.clone(),
            shared,
            batch: Vec::new(),
        };
        let builder = std::thread::Builder::new().name("usage-stream".to_owned());
        let thread = builder.spawn(move || sender.run())?;
        Ok((Stream { queue, thread }, feed))
    }

    /// Has the thread send what is queued and end.
    pub(super) fn stop(self) -> JoinHandle<()> {
        self.queue.stop.store(true, Release);
        self.thread
    }
}

/// The thread's own state.
struct Sender {
    name: String,
    length_max: u64,
    client: Client,
    connection: Option<Connection>,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    batch: Vec<Line>,
}

impl Sender {
    fn run(mut self) {
        let (mut stop_since, mut pause): (Option<Instant>, _) = (None, RETRY_MIN);
        loop {
            if stop_since.is_none() && self.queue.stop.load(Acquire) {
                stop_since = Some(Instant::now());
            }
            while self.batch.len() < BATCH {
                let Some(line) = self.queue.lines.pop() else { break };
                self.batch.push(line);
            }
            if self.batch.is_empty() {
                if stop_since.is_some() {
                    return;
                }
                std::thread::sleep(IDLE);
                continue;
            }
            if self.send().is_ok() {
                self.shared.streamed.fetch_add(self.batch.len() as u64, Relaxed);
                self.batch.clear();
                pause = RETRY_MIN;
                continue;
            }
            self.connection = None;
            if stop_since.is_some_and(|since| since.elapsed() >= STOP_PATIENCE) {
                let lost = self.batch.len() + self.queue.lines.len();
                self.shared.stream_dropped.fetch_add(lost as u64, Relaxed);
                return;
            }
            std::thread::sleep(if stop_since.is_some() { RETRY_MIN } else { pause });
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Sends the batch; all of it is taken, or all is sent again.
    fn send(&mut self) -> redis::RedisResult<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                let new = self.client.get_connection_with_timeout(STORE_TIMEOUT)?;
                new.set_read_timeout(Some(STORE_TIMEOUT))?;
                new.set_write_timeout(Some(STORE_TIMEOUT))?;
                empty.insert(new)
            }
        };
        let mut pipe = redis::pipe();
        for line in &self.batch {
            let add = pipe.cmd("XADD").arg(&self.name).arg("MAXLEN").arg("~").arg(self.length_max);
            add.arg("*").arg("id").arg(&line.id).arg("record").arg(&*line.text).ignore();
        }
        pipe.query(connection)
    }
}
