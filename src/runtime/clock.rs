//! Time for the whole process: monotonic for every measure, wall clock for records only.
//!
//! State: the instant and the wall-clock time at which the clock was first asked, set once. Any
//! thread may read it, without a lock. Wall time is the start's plus what has passed, so that it
//! never runs backwards when an administrator sets the clock; a step of the system's clock after
//! the start is therefore not seen.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

struct Start {
    instant: Instant,
    unix_ns: u128,
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| Start {
        instant: Instant::now(),
        unix_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()),
    })
}

/// Sets the zero point; `main` calls it first. Without it the first reading does.
pub fn init() {
    start();
}

/// Nanoseconds since the start; never runs backwards, wraps after 584 years.
pub fn now_ns() -> u64 {
    start().instant.elapsed().as_nanos() as u64
}

/// Milliseconds since the start; never runs backwards.
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// Milliseconds since 1970-01-01T00:00:00Z at the start.
pub fn start_unix_ms() -> u64 {
    (start().unix_ns / 1_000_000) as u64
}

/// Milliseconds since 1970-01-01T00:00:00Z.
pub fn unix_ms() -> u64 {
    unix_ms_at(now_ns())
}

/// The wall-clock time, in milliseconds since 1970, of a reading of [`now_ns`].
pub fn unix_ms_at(ns: u64) -> u64 {
    ((start().unix_ns + u128::from(ns)) / 1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_never_run_backwards_and_agree() {
        init();
        let mut before = now_ns();
        for _ in 0..1000 {
            let now = now_ns();
            assert!(now >= before);
            before = now;
        }
        assert!(unix_ms() >= unix_ms_at(before));
        assert_eq!(unix_ms_at(0), start_unix_ms());
        // Within a day of the system's clock: the epoch is the right one.
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(system.abs_diff(unix_ms()) < 86_400_000);
    }
}
