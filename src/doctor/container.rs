//! The limits of the control group that this process is in (cgroup v2, and v1's CPU quota).

use super::{Finding, Findings, Wish};
use crate::runtime::memory;
use crate::runtime::tree::Tree;

/// A gateway's own need, and what each core keeps of prompts and buffers, in bytes.
const BYTES: u64 = 256 << 20;
const BYTES_A_CORE: u64 = 128 << 20;

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// A group was found.
    pub seen: bool,
    /// CPU time and the period in which it may be used, in microseconds.
    pub quota_us: Option<(u64, u64)>,
    /// Periods in which the group ran, and in which it was held up.
    pub throttled: Option<(u64, u64)>,
    /// Most bytes of memory.
    pub memory_bytes: Option<u64>,
}

impl Facts {
    pub(super) fn read(tree: &Tree) -> Facts {
        let v2 = memory::group_folders(tree)
            .into_iter()
            .find(|folder| tree.has(&format!("{folder}/cpu.stat")));
        let Some(folder) = v2 else { return Facts::v1(tree) };
        let stat = tree.text(&format!("{folder}/cpu.stat")).unwrap_or_default();
        let counted = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            stat.lines().find_map(value)
        };
        let quota = tree.text(&format!("{folder}/cpu.max")).unwrap_or_default();
        Facts {
            seen: true,
            quota_us: quota.split_once(' ').and_then(|(quota, period)| {
                Some((quota.parse().ok()?, period.parse().ok().filter(|us| *us > 0)?))
            }),
            throttled: counted("nr_periods ").zip(counted("nr_throttled ")),
            memory_bytes: tree.number(&format!("{folder}/memory.max")),
        }
    }

    fn v1(tree: &Tree) -> Facts {
        let quota = tree.text("sys/fs/cgroup/cpu/cpu.cfs_quota_us");
        let period = tree.number("sys/fs/cgroup/cpu/cpu.cfs_period_us").filter(|us| *us > 0);
        let seen = quota.is_some();
        let quota_us = quota.and_then(|quota| quota.parse().ok()).zip(period);
        Facts { seen, quota_us, ..Facts::default() }
    }
}

pub(super) fn judge(facts: &Facts, wish: &Wish) -> Vec<Finding> {
    let mut found = Findings::of("container");
    let cores = wish.cores.len() as u64;
    match facts.quota_us {
        _ if !facts.seen => found.unknown("cpu-quota", "no control group can be seen"),
        None => found.ok("cpu-quota", "none: no core is held up"),
        Some((quota, period)) if quota < period.saturating_mul(cores) => {
            let whole = quota / period;
            let mend = match whole {
                0 => "give it at least one whole CPU: requests and limits of 1 or more".to_owned(),
                n => format!("list {n} CPUs in server.cores, or lift the limit (cpu.max)"),
            };
            let says = format!(
                "{:.1} CPUs for {cores} cores: under load all streams stand still for up to {} ms \
                 at a time",
                quota as f64 / period as f64,
                period / 1000,
            );
            found.warn("cpu-quota", says, mend);
        }
        Some((quota, period)) => {
            found.ok("cpu-quota", format!("{:.1} CPUs", quota as f64 / period as f64));
        }
    }
    match facts.throttled {
        Some((periods, held)) if held > 0 => found.warn(
            "cpu-throttled",
            format!("held up in {held} of {periods} periods so far"),
            "raise cpu.max, or use whole CPUs of one's own (Kubernetes: static CPU policy)",
        ),
        Some(_) => found.ok("cpu-throttled", "never held up"),
        None => found.unknown("cpu-throttled", "not counted here"),
    }
    let need = BYTES.saturating_add(BYTES_A_CORE.saturating_mul(cores));
    match facts.memory_bytes {
        Some(bytes) if bytes < need => found.warn(
            "memory-limit",
            format!("{} MiB: {cores} cores may take {} MiB", bytes >> 20, need >> 20),
            format!("raise the limit to {} MiB, or list fewer cores", need >> 20),
        ),
        Some(bytes) => found.ok("memory-limit", format!("{} MiB", bytes >> 20)),
        None if facts.seen => found.ok("memory-limit", "none seen"),
        None => found.unknown("memory-limit", "no control group can be seen"),
    }
    found.all
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::config::Driver;

    fn judged(facts: Facts, cores: usize) -> [(Level, String); 3] {
        let wish = Wish { cores: (0..cores).collect(), listed: true, driver: Driver::Auto };
        let all = judge(&facts, &wish);
        [0, 1, 2].map(|n| (all[n].level, all[n].mend.clone().unwrap_or_default()))
    }

    fn levels(facts: Facts, cores: usize) -> [Level; 3] {
        judged(facts, cores).map(|(level, _)| level)
    }

    #[test]
    fn a_quota_below_the_cores_is_told_with_what_fits() {
        let with =
            |quota| Facts { seen: true, quota_us: Some((quota, 100_000)), ..Facts::default() };
        assert_eq!(judged(with(200_000), 2)[0].0, Level::Ok);
        let (level, mend) = judged(with(250_000), 4)[0].clone();
        assert!(level == Level::Warn && mend.contains("list 2 CPUs"), "{mend}");
        assert!(judged(with(50_000), 1)[0].1.contains("one whole CPU"));
    }

    #[test]
    fn being_held_up_and_little_memory_are_told() {
        let facts = Facts {
            seen: true,
            throttled: Some((1000, 3)),
            memory_bytes: Some(256 << 20),
            ..Facts::default()
        };
        assert_eq!(levels(facts, 1), [Level::Ok, Level::Warn, Level::Warn]);
        let facts = Facts {
            seen: true,
            throttled: Some((1000, 0)),
            memory_bytes: Some(8 << 30),
            ..Facts::default()
        };
        assert_eq!(levels(facts, 1), [Level::Ok; 3]);
        assert_eq!(levels(Facts::default(), 1), [Level::Unknown; 3]);
    }
}
