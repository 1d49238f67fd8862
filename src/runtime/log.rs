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
    bound: Bound,
    out: Mutex<()>,
}

/// So many lines a second; what is over them is counted.
#[derive(Default)]
struct Bound {
    second: AtomicU64,
    lines: AtomicU64,
    left_out: AtomicU64,
}

impl Bound {
    /// One more line in this second: is it written?
    fn admits(&self, second: u64) -> bool {
        if self.second.swap(second, Relaxed) != second {
            self.lines.store(0, Relaxed);
        }
        let within = self.lines.fetch_add(1, Relaxed) < LINES_A_SECOND;
        if !within {
            self.left_out.fetch_add(1, Relaxed);
        }
        within
    }

    /// Lines that were left out in seconds before this one, told once; 0 = none.
    fn left_out(&self, second: u64) -> u64 {
        match self.left_out.load(Relaxed) {
            0 => 0,
            _ if self.second.load(Relaxed) == second => 0,
            _ => self.left_out.swap(0, Relaxed),
        }
    }
}

impl Log {
    /// A log that writes lines of `level` and worse.
    #[must_use]
    pub fn new(level: Level, json: bool) -> Log {
        Log { level, json, bound: Bound::default(), out: Mutex::new(()) }
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

    /// Says how many lines were left out, if some were. Every line does so first; somebody has to
    /// call it where no line follows.
    pub fn tell_left_out(&self) {
        let lines = self.bound.left_out(clock::now_ms() / 1000);
        if lines > 0 {
            let message = format!("{lines} lines left out: more than {LINES_A_SECOND} in a second");
            self.write("warn", &message);
        }
    }

    fn line(&self, level: Level, name: &str, message: &str) {
        if level > self.level {
            return;
        }
        self.tell_left_out();
        if self.bound.admits(clock::now_ms() / 1000) {
            self.write(name, message);
        }
    }

    fn write(&self, name: &str, message: &str) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_its_rest_is_told_once() {
        let bound = Bound::default();
        let written = (0..80).filter(|_| bound.admits(7)).count();
        assert_eq!((written as u64, bound.left_out(7)), (LINES_A_SECOND, 0), "it still lasts");
        assert_eq!((bound.left_out(8), bound.left_out(8)), (30, 0));
        assert!(bound.admits(8));
        assert_eq!(bound.left_out(9), 0, "nothing was left out");
    }
}
