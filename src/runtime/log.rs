//! The log: lines on stderr, for people or as JSON. Cores may write a line when something breaks,
//! never on the path of a healthy request; a flood of lines is cut to a bound a second, counted.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::clock;

/// Lines a second; what is over it is counted and said in the next second.
const LINES_A_SECOND: u64 = 50;

/// How much is written, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// What cost a request or a record.
    Error,
    /// What an operator should look at.
    Warn,
    /// Starts, reloads, replicas that come and go.
    Info,
    /// More.
    Debug,
}

/// The log of a process.
pub struct Log {
    level: Level,
    json: bool,
    second: AtomicU64,
    lines: AtomicU64,
    out: Mutex<()>,
}

impl Log {
    /// A log that writes lines of `level` and worse.
    #[must_use]
    pub fn new(level: Level, json: bool) -> Log {
        let zero = || AtomicU64::new(0);
        Log { level, json, second: zero(), lines: zero(), out: Mutex::new(()) }
    }

    /// Something cost a request or a record.
    pub fn error(&self, message: &str) {
        self.line(Level::Error, "error", message);
    }

    /// An operator should look at it.
    pub fn warn(&self, message: &str) {
        self.line(Level::Warn, "warn", message);
    }

    /// A start, a reload, a replica that comes or goes.
    pub fn info(&self, message: &str) {
        self.line(Level::Info, "info", message);
    }

    fn line(&self, level: Level, name: &str, message: &str) {
        if level > self.level || !self.within_bound() {
            return;
        }
        let ms = clock::unix_ms();
        let text = if self.json {
            let quoted = serde_json::Value::from(message);
            format!("{{\"ts_ms\":{ms},\"level\":\"{name}\",\"message\":{quoted}}}\n")
        } else {
            // One line each, whatever a peer has put into a name.
            let clean: String =
                message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            format!("{name:5} {clean}\n")
        };
        let _one_at_a_time = self.out.lock();
        // Nobody can be told that stderr is gone.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn within_bound(&self) -> bool {
        let second = clock::now_ms() / 1000;
        if self.second.swap(second, Relaxed) != second {
            self.lines.store(0, Relaxed);
        }
        self.lines.fetch_add(1, Relaxed) < LINES_A_SECOND
    }
}
