//! Time: monotonic since process start for every limit and duration, wall clock for records only.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the process first asked.
#[must_use]
pub fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

/// Milliseconds since the process first asked.
#[must_use]
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// Milliseconds since 1970 by the wall clock; 0 before that.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Nanoseconds since 1970 by the wall clock; 0 before that.
#[must_use]
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// CPU time that the calling thread has had, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Year, month (1..=12) and day (1..=31) of a day since 1970-01-01, proleptic Gregorian
/// (Hinnant, "chrono-compatible low-level date algorithms").
#[must_use]
pub fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_787), (2026, 11, 30));
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let (a, b) = (now_ns(), now_ns());
        assert!(b >= a);
    }
}
