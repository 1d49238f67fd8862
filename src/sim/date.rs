//! The `date` field, made once a second a thread (RFC 9110 5.6.7).

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const FIELD_BYTES: usize = "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n".len();

thread_local! {
    static LAST: Cell<(u64, [u8; FIELD_BYTES])> = const { Cell::new((0, [0; FIELD_BYTES])) };
}

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Seconds since 1970 with their fraction.
pub(super) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Appends the whole field line.
pub(super) fn append(out: &mut Vec<u8>) {
    let now = unix_seconds();
    let (second, mut line) = LAST.get();
    if second != now {
        let text = line_of(now);
        if let Ok(made) = text.as_bytes().try_into() {
            line = made;
            LAST.set((now, line));
        }
    }
    out.extend_from_slice(&line);
}

fn line_of(unix: u64) -> String {
    let (days, second) = (unix / 86_400, unix % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[(days % 7) as usize];
    let month = MONTHS[month];
    format!("date: {weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT\r\n")
}

/// Year, month from 0 and day of month of a day since 1970 (years of 1 March, by Hinnant).
fn civil(days: u64) -> (u64, usize, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = year + era * 400 + u64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(line_of(0), "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
        assert_eq!(line_of(1_709_164_800), "date: Thu, 29 Feb 2024 00:00:00 GMT\r\n");
        assert_eq!(line_of(1_796_004_404), "date: Mon, 30 Nov 2026 02:06:44 GMT\r\n");
        assert_eq!(line_of(1_798_761_599), "date: Thu, 31 Dec 2026 23:59:59 GMT\r\n");
    }
}
