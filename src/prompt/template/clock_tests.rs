//! Each expectation is what CPython's `datetime.strftime` answers in the C locale.

use super::*;

const FIRST: &str = "%d %b %Y|%A %a %B %-d %-m|%Y-%m-%d %H:%M:%S.%f|%I:%M %p";
const SECOND: &str = "%j %U %W %u %w %V %G %g|%x %X|%e %y %C|%Z%z|%%|%k %l|%h|%c";

/// Seconds since 1970 and microseconds; then the two formats.
const TIMES: [((i64, u32), &str, &str); 7] = [
    (
        (1721984707, 42),
        "26 Jul 2024|Friday Fri July 26 7|2024-07-26 09:05:07.000042|09:05 AM",
        "208 29 30 5 5 30 2024 24|07/26/24 09:05:07|26 24 20||%| 9  9|Jul|Fri Jul 26 09:05:07 2024",
    ),
    (
        (1795996800, 0),
        "30 Nov 2026|Monday Mon November 30 11|2026-11-30 00:00:00.000000|12:00 AM",
        "334 48 48 1 1 49 2026 26|11/30/26 00:00:00|30 26 20||%| 0 12|Nov|Mon Nov 30 00:00:00 2026",
    ),
    (
        (1709211599, 999999),
        "29 Feb 2024|Thursday Thu February 29 2|2024-02-29 12:59:59.999999|12:59 PM",
        "060 08 09 4 4 09 2024 24|02/29/24 12:59:59|29 24 20||%|12 12|Feb|Thu Feb 29 12:59:59 2024",
    ),
    (
        (1798844401, 5),
        "01 Jan 2027|Friday Fri January 1 1|2027-01-01 23:00:01.000005|11:00 PM",
        "001 00 00 5 5 53 2026 26|01/01/27 23:00:01| 1 27 20||%|23 11|Jan|Fri Jan  1 23:00:01 2027",
    ),
    (
        (1609678862, 3),
        "03 Jan 2021|Sunday Sun January 3 1|2021-01-03 13:01:02.000003|01:01 PM",
        "003 01 00 7 0 53 2020 20|01/03/21 13:01:02| 3 21 20||%|13  1|Jan|Sun Jan  3 13:01:02 2021",
    ),
    (
        (946602123, 4),
        "31 Dec 1999|Friday Fri December 31 12|1999-12-31 01:02:03.000004|01:02 AM",
        "365 52 52 5 5 52 1999 99|12/31/99 01:02:03|31 99 19||%| 1  1|Dec|Fri Dec 31 01:02:03 1999",
    ),
    (
        (951912000, 0),
        "01 Mar 2000|Wednesday Wed March 1 3|2000-03-01 12:00:00.000000|12:00 PM",
        "061 09 09 3 3 09 2000 00|03/01/00 12:00:00| 1 00 20||%|12 12|Mar|Wed Mar  1 12:00:00 2000",
    ),
];

#[test]
fn times_are_spelled_as_python_spells_them() {
    for ((seconds, microsecond), first, second) in TIMES {
        let time = LocalTime { microsecond, ..LocalTime::from_unix(seconds) };
        assert_eq!(time.format(FIRST), first);
        assert_eq!(time.format(SECOND), second);
    }
}

#[test]
fn odd_formats_stand_as_they_are() {
    let time = LocalTime::from_unix(0);
    assert_eq!(time.format("%Q %-Q %"), "%Q %-Q %");
    assert_eq!(time.format("%F %T|%D %R"), "1970-01-01 00:00:00|01/01/70 00:00");
}

#[test]
fn every_day_of_eight_centuries_comes_back() {
    for day in -150_000..150_000 {
        assert_eq!(LocalTime::from_unix(day * DAY_SECONDS).days(), day);
    }
}
