//! The load generator: requests on a fixed schedule or in a closed loop, every answer checked.
//!
//! One thread on the same `net`, `http1`, `sse` and `openai` code as the gateway. In open loop a
//! request's time counts from the moment it was due, not from when it could be sent, so that a
//! stall of the server is seen by all requests that it delayed (no coordinated omission).

mod client;
mod report;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

pub use report::{Quantiles, Report};

use crate::net::{self, DriverChoice};
use crate::runtime::clock;
use client::Connections;

/// Appends token `index` of the answer to the prompt with this tag.
pub type Word = fn(tag: u64, index: u64, out: &mut Vec<u8>);

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many a second, on a fixed schedule.
    Rate(f64),
    /// So many at a time, each followed by the next.
    Concurrency(usize),
}

/// Where requests go. Several take turns.
#[derive(Clone, Debug)]
pub struct Target {
    /// A name for the report.
    pub name: String,
    /// Address to connect to.
    pub addr: SocketAddr,
    /// `host:port` for the `Host` field.
    pub authority: String,
    /// Model to ask for.
    pub model: String,
    /// Key to send.
    pub key: Option<String>,
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where.
    pub targets: Vec<Target>,
    /// When.
    pub pace: Pace,
    /// For how long.
    pub duration: Duration,
    /// At most so many requests.
    pub requests_max: u64,
    /// Prompt length in tokens of four bytes.
    pub prompt_tokens: usize,
    /// Of these, shared with every `prefixes`-th other prompt.
    pub prefix_tokens: usize,
    /// Number of different shared prefixes.
    pub prefixes: u64,
    /// Tokens asked for.
    pub output_tokens: u64,
    /// Share of requests that stream, 0 to 1.
    pub stream_share: f64,
    /// The completions endpoint instead of chat.
    pub completions: bool,
    /// First tag; each request has the next.
    pub seed: u64,
    /// The words that a simulated fleet answers with; `None` checks framing only.
    pub word: Option<Word>,
}

/// The state that the tasks of a run share.
struct Run {
    load: Load,
    connections: Vec<Connections>,
    reports: Vec<RefCell<Report>>,
    started_ns: u64,
    issued: Cell<u64>,
    open: Cell<u64>,
    stop: Cell<bool>,
}

/// Runs a load to its end; one report a target.
///
/// # Errors
/// The driver cannot be set up.
pub fn run(load: Load) -> std::io::Result<Vec<Report>> {
    let driver = match DriverChoice::Auto.resolve() {
        Ok((driver, _)) => driver,
        Err(error) => return Err(std::io::Error::other(error)),
    };
    net::run(driver, async move {
        let run = Rc::new(Run {
            connections: load.targets.iter().map(|t| Connections::new(t.addr)).collect(),
            reports: load.targets.iter().map(|t| RefCell::new(Report::new(&t.name))).collect(),
            started_ns: clock::now_ns(),
            issued: Cell::new(0),
            open: Cell::new(0),
            stop: Cell::new(false),
            load,
        });
        match run.load.pace {
            Pace::Rate(rate) => open_loop(&run, rate).await,
            Pace::Concurrency(n) => closed_loop(&run, n).await,
        }
        run.stop.set(true);
        while run.open.get() > 0 {
            net::sleep(Duration::from_millis(2)).await;
        }
        let seconds = clock::now_ns().saturating_sub(run.started_ns) as f64 / 1e9;
        let finish = |report: &RefCell<Report>| {
            let mut report = report.replace(Report::new(""));
            report.duration_s = seconds;
            report
        };
        run.reports.iter().map(finish).collect()
    })
}

impl Run {
    /// Is it time to stop? Counts the next request otherwise.
    fn next(&self) -> Option<u64> {
        let spent = clock::now_ns().saturating_sub(self.started_ns);
        let over = u128::from(spent) >= self.load.duration.as_nanos();
        let n = self.issued.get();
        if over || self.stop.get() || n >= self.load.requests_max {
            return None;
        }
        self.issued.set(n + 1);
        Some(n)
    }

    /// One request, entered into its target's report.
    async fn one(self: &Rc<Self>, n: u64, due_ns: u64) {
        self.open.set(self.open.get() + 1);
        let at = (n % self.load.targets.len() as u64) as usize;
        let outcome = client::exchange(self, at, n, due_ns).await;
        if let Some(report) = self.reports.get(at) {
            report.borrow_mut().enter(outcome);
        }
        self.open.set(self.open.get() - 1);
    }
}

async fn open_loop(run: &Rc<Run>, rate: f64) {
    let gap_ns = 1e9 / rate.max(1e-3);
    loop {
        let due = run.started_ns.saturating_add((run.issued.get() as f64 * gap_ns) as u64);
        let now = clock::now_ns();
        if due > now {
            net::sleep(Duration::from_nanos(due - now)).await;
            continue;
        }
        let Some(n) = run.next() else { return };
        let run = Rc::clone(run);
        net::spawn(async move { run.one(n, due).await });
    }
}

async fn closed_loop(run: &Rc<Run>, concurrency: usize) {
    let workers = Rc::new(Cell::new(concurrency));
    for _ in 0..concurrency {
        let (run, workers) = (Rc::clone(run), Rc::clone(&workers));
        net::spawn(async move {
            while let Some(n) = run.next() {
                run.one(n, clock::now_ns()).await;
            }
            workers.set(workers.get() - 1);
        });
    }
    while workers.get() > 0 {
        net::sleep(Duration::from_millis(2)).await;
    }
}
