//! The clock: what it is read from, and whether something keeps it right.
//!
//! Records carry the wall clock's time, and a request reads the monotonic clock a dozen times.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{Finding, Findings};
use crate::runtime::tree::Tree;

/// Sources that are read without a system call.
const FAST: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
const SOURCE: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
const SOURCES: &str = "sys/devices/system/clocksource/clocksource0/available_clocksource";

/// What the daemons that keep a clock leave behind while they do.
const KEEPERS: [(&str, &str); 4] = [
    ("run/systemd/timesync/synchronized", "systemd-timesyncd"),
    ("run/chrony/chronyd.pid", "chronyd"),
    ("run/chronyd.pid", "chronyd"),
    ("run/ntpd.pid", "ntpd"),
];

/// How long the two clocks are compared.
const COMPARED: Duration = Duration::from_millis(40);
/// Tries of one reading of both clocks, of which the closest counts.
const READINGS: usize = 8;
/// Below this a difference of rates is noise of the comparison.
const STEERED_PPM: f64 = 2.0;
/// No daemon corrects a healthy clock by more.
const STEERED_PPM_MAX: f64 = 200.0;

/// What was read.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub source: Option<String>,
    pub available: Vec<String>,
    pub keeper: Option<&'static str>,
    /// By how much the kernel makes the clock run faster than the hardware, in parts per million.
    pub steered_ppm: Option<f64>,
}

impl Facts {
    pub(super) fn read(tree: &Tree, steered_ppm: Option<f64>) -> Facts {
        let available = tree.text(SOURCES).unwrap_or_default();
        Facts {
            source: tree.text(SOURCE),
            available: available.split_whitespace().map(str::to_owned).collect(),
            keeper: KEEPERS.iter().find(|(path, _)| tree.has(path)).map(|(_, name)| *name),
            steered_ppm,
        }
    }
}

/// Compares the clock that is steered with the one that is not, for some 40 ms.
pub(super) fn steering() -> Option<f64> {
    let (raw, steered) = both()?;
    std::thread::sleep(COMPARED);
    let (raw_then, steered_then) = both()?;
    let (raw, steered) = (raw_then - raw, steered_then - steered);
    (raw > 0).then(|| (steered - raw) as f64 / raw as f64 * 1e6)
}

/// Both clocks at one instant in nanoseconds, as closely as it can be had.
fn both() -> Option<(i128, i128)> {
    let read = || {
        let before = ns(clock_gettime(ClockId::MonotonicRaw));
        let steered = ns(clock_gettime(ClockId::Monotonic));
        let after = ns(clock_gettime(ClockId::MonotonicRaw));
        (after - before, (before + after) / 2, steered)
    };
    let best = (0..READINGS).map(|_| read()).min_by_key(|(width, ..)| *width);
    best.map(|(_, raw, steered)| (raw, steered))
}

fn ns(at: Timespec) -> i128 {
    i128::from(at.tv_sec) * 1_000_000_000 + i128::from(at.tv_nsec)
}

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::of("clock");
    match &facts.source {
        Some(source) if FAST.contains(&source.as_str()) => {
            found.ok("clock-source", format!("{source}: read without a system call"));
        }
        Some(source) => {
            let better = FAST.iter().find(|fast| facts.available.iter().any(|one| one == *fast));
            let mend = match better {
                Some(fast) => format!("echo {fast} > /{SOURCE}"),
                None => "boot with tsc=reliable if the CPU has constant_tsc and nonstop_tsc".into(),
            };
            let says = format!("{source}: each reading is a system call, or slower");
            found.warn("clock-source", says, mend);
        }
        None => found.unknown("clock-source", "not told here"),
    }
    let ppm = facts.steered_ppm.filter(|ppm| ppm.is_finite());
    match (facts.keeper, ppm) {
        (_, Some(ppm)) if ppm.abs() > STEERED_PPM_MAX => found.warn(
            "clock-drift",
            format!("corrected by {ppm:.0} ppm: the hardware's clock is far off, or was set"),
            "chronyc tracking   (or timedatectl timesync-status) tells what keeps it",
        ),
        (Some(keeper), _) => found.ok("clock-drift", format!("kept by {keeper}")),
        (None, Some(ppm)) if ppm.abs() > STEERED_PPM => {
            found.ok("clock-drift", format!("corrected by {ppm:.1} ppm: something keeps it"));
        }
        (None, _) => found.unknown(
            "clock-drift",
            "nothing seen here that keeps it; in a container the host may (chronyc tracking)",
        ),
    }
    found.all
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn facts(source: &str, keeper: Option<&'static str>, steered_ppm: Option<f64>) -> Facts {
        let available = vec!["tsc".to_owned(), "hpet".to_owned()];
        Facts { source: Some(source.to_owned()), available, keeper, steered_ppm }
    }

    fn levels(facts: &Facts) -> [Level; 2] {
        let all = judge(facts);
        [all[0].level, all[1].level]
    }

    #[test]
    fn a_slow_source_is_named_with_a_better_one() {
        let all = judge(&facts("hpet", None, None));
        assert_eq!(all[0].level, Level::Warn);
        assert!(all[0].mend.as_ref().unwrap().starts_with("echo tsc > /sys/"));
        let none = Facts { available: vec!["hpet".to_owned()], ..facts("hpet", None, None) };
        assert!(judge(&none)[0].mend.as_ref().unwrap().contains("tsc=reliable"));
    }

    #[test]
    fn a_clock_that_nobody_is_seen_to_keep_is_unknown() {
        assert_eq!(levels(&facts("tsc", Some("chronyd"), Some(0.0))), [Level::Ok, Level::Ok]);
        assert_eq!(levels(&facts("tsc", None, Some(-11.0)))[1], Level::Ok);
        assert_eq!(levels(&facts("tsc", None, Some(0.3)))[1], Level::Unknown);
        assert_eq!(levels(&facts("tsc", None, Some(f64::NAN)))[1], Level::Unknown);
        assert_eq!(levels(&facts("tsc", Some("ntpd"), Some(4e3)))[1], Level::Warn);
    }

    #[test]
    fn the_two_clocks_can_be_compared() {
        let ppm = steering().unwrap();
        assert!(ppm.is_finite());
    }
}
