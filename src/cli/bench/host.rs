//! What a result says of the machine that the load came from, and when.

use std::path::Path;

use serde_json::{Value, json};

use crate::net::DriverChoice;
use crate::runtime::{affinity, clock, files};

/// No file of the kernel's that is read here is longer.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Ticks of the kernel's clock in a second, as `/proc` counts for every program (USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;

/// The machine as it is now; what cannot be read is null.
pub(super) fn facts() -> Value {
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    let field = |of: &str, name: &str| {
        let value = |line: &str| {
            let (field, value) = line.split_once(':')?;
            (field.trim() == name).then(|| value.trim().to_owned())
        };
        of.lines().find_map(value)
    };
    let kib = |of: Option<String>| of?.trim_end_matches(" kB").trim().parse::<u64>().ok();
    let memory = field(&text("/proc/meminfo").unwrap_or_default(), "MemTotal");
    let load = text("/proc/loadavg").unwrap_or_default();
    let driver = DriverChoice::Auto.resolve().ok().map(|(driver, _)| driver.name());
    json!({
        "cpu": field(&cpuinfo, "model name"),
        "cpus": cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
        "cpus_allowed": affinity::allowed().map_or(0, |cpus| cpus.len()),
        "kernel": text("/proc/sys/kernel/osrelease"),
        "driver": driver,
        "memory_bytes": kib(memory).map(|kib| kib * 1024),
        "load_1m_before": load.split(' ').next().and_then(|word| word.parse::<f64>().ok()),
    })
}

/// Seconds of CPU that this process has taken.
pub(super) fn cpu_seconds() -> Option<f64> {
    let stat = text("/proc/self/stat")?;
    // The name in parentheses may hold anything; user and system time are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(|word| word.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / TICKS_A_SECOND)
}

fn text(path: &str) -> Option<String> {
    let bytes = files::read(Path::new(path), FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// `YYYYMMDD-hhmmss` of a wall clock, UTC, as `vllm bench serve` has it.
pub(super) fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = clock::civil(seconds / 86_400);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_utc() {
        assert_eq!(date(0), "19700101-000000");
        assert_eq!(date(951_786_061_999), "20000229-010101");
    }

    #[test]
    fn a_host_has_cpus_and_takes_time() {
        let facts = facts();
        assert!(facts["cpus_allowed"].as_u64().is_some_and(|n| n > 0), "{facts}");
        assert!(facts["kernel"].is_string() && facts["driver"].is_string(), "{facts}");
        assert!(cpu_seconds().is_some_and(|seconds| seconds >= 0.0));
    }
}
