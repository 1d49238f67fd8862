//! `strftime_now`: the local time that the caller gives, spelled as Python's `strftime` does in
//! the C locale.
//!
//! Reads no clock.

use std::fmt::Write;

/// A wall-clock time without a zone, as `datetime.now()` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, of the common era.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// 0 to 999,999.
    pub microsecond: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_SECONDS: i64 = 86_400;

impl LocalTime {
    /// The time `seconds` after 1970-01-01T00:00:00, which already includes the zone's offset.
    #[must_use]
    pub fn from_unix(seconds: i64) -> LocalTime {
        let (day, second) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
        // Civil from days: years begin in March, so that the leap day ends one; eras are of 400.
        let shifted = day + 719_468;
        let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let byte = |number: i64| u8::try_from(number).unwrap_or_default();
        let late = i64::from(month >= 10);
        LocalTime {
            year: i32::try_from(year + era * 400 + late).unwrap_or(i32::MAX),
            month: byte(if month < 10 { month + 3 } else { month - 9 }),
            day: byte(day - (153 * month + 2) / 5 + 1),
            hour: byte(second / 3_600),
            minute: byte(second / 60 % 60),
            second: byte(second % 60),
            microsecond: 0,
        }
    }

    /// Days since 1970-01-01.
    fn days(&self) -> i64 {
        let year = i64::from(self.year) - i64::from(self.month <= 2);
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let month = (i64::from(self.month) + 9) % 12;
        let day = (153 * month + 2) / 5 + i64::from(self.day) - 1;
        era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
    }

    /// 0 is Sunday.
    fn weekday(&self) -> i64 {
        (self.days() + 4).rem_euclid(7)
    }

    /// 1 is the first of January.
    fn yearday(&self) -> i64 {
        self.days() - LocalTime { month: 1, day: 1, ..*self }.days() + 1
    }

    /// Year and week of ISO 8601: the week of a day is the year's in which its Thursday lies.
    fn iso_week(&self) -> (i32, i64) {
        let monday_based = (self.weekday() + 6) % 7;
        let thursday = self.days() - monday_based + 3;
        let year = LocalTime::from_unix(thursday * DAY_SECONDS).year;
        let first = LocalTime { year, month: 1, day: 1, ..*self }.days();
        (year, (thursday - first) / 7 + 1)
    }

    /// `strftime(format)`; a directive that is not known stands as it is, as in glibc.
    #[must_use]
    pub fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some((before, after)) = rest.split_once('%') {
            out.push_str(before);
            let mut chars = after.chars();
            let mut directive = chars.next();
            // glibc's flags: `-` takes the padding away, `0` and `_` change it.
            let flag = directive.filter(|char| matches!(char, '-' | '_' | '0'));
            if flag.is_some() {
                directive = chars.next();
            }
            rest = chars.as_str();
            match directive {
                Some(directive) => self.push(&mut out, directive, flag),
                None => out.push('%'),
            }
        }
        out.push_str(rest);
        out
    }

    fn push(&self, out: &mut String, directive: char, flag: Option<char>) {
        let name = |names: &[&'static str], place: i64| -> &'static str {
            usize::try_from(place).ok().and_then(|place| names.get(place)).copied().unwrap_or("")
        };
        let short = |name: &'static str| name.get(..3).unwrap_or(name);
        let month = name(&MONTHS, i64::from(self.month) - 1);
        let day = name(&DAYS, self.weekday());
        match directive {
            'A' => out.push_str(day),
            'a' => out.push_str(short(day)),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(short(month)),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")),
            'F' => out.push_str(&self.format("%Y-%m-%d")),
            'R' => out.push_str(&self.format("%H:%M")),
            'r' => out.push_str(&self.format("%I:%M:%S %p")),
            'T' | 'X' => out.push_str(&self.format("%H:%M:%S")),
            'f' => drop(write!(out, "{:06}", self.microsecond)),
            'n' => out.push('\n'),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            't' => out.push('\t'),
            'z' | 'Z' => {}
            '%' => out.push('%'),
            _ => match self.number(directive) {
                Some((number, width, pad)) => push_padded(out, number, width, flag.unwrap_or(pad)),
                None => {
                    out.push('%');
                    out.extend(flag);
                    out.push(directive);
                }
            },
        }
    }

    /// Number, width and padding of a numeric directive.
    fn number(&self, directive: char) -> Option<(i64, usize, char)> {
        let hour12 = (i64::from(self.hour) + 11) % 12 + 1;
        let weekday = self.weekday();
        Some(match directive {
            'C' => (i64::from(self.year) / 100, 2, '0'),
            'd' => (i64::from(self.day), 2, '0'),
            'e' => (i64::from(self.day), 2, '_'),
            'G' => (i64::from(self.iso_week().0), 1, '0'),
            'g' => (i64::from(self.iso_week().0) % 100, 2, '0'),
            'H' => (i64::from(self.hour), 2, '0'),
            'I' => (hour12, 2, '0'),
            'j' => (self.yearday(), 3, '0'),
            'k' => (i64::from(self.hour), 2, '_'),
            'l' => (hour12, 2, '_'),
            'M' => (i64::from(self.minute), 2, '0'),
            'm' => (i64::from(self.month), 2, '0'),
            'S' => (i64::from(self.second), 2, '0'),
            'U' => ((self.yearday() + 6 - weekday) / 7, 2, '0'),
            'u' => ((weekday + 6) % 7 + 1, 1, '0'),
            'V' => (self.iso_week().1, 2, '0'),
            'W' => ((self.yearday() + 6 - (weekday + 6) % 7) / 7, 2, '0'),
            'w' => (weekday, 1, '0'),
            'Y' => (i64::from(self.year), 1, '0'),
            'y' => (i64::from(self.year) % 100, 2, '0'),
            _ => return None,
        })
    }
}

fn push_padded(out: &mut String, number: i64, width: usize, pad: char) {
    let _ = match pad {
        '-' => write!(out, "{number}"),
        '_' => write!(out, "{number:width$}"),
        _ => write!(out, "{number:0width$}"),
    };
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
