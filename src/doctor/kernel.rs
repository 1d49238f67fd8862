//! The kernel: its version, io_uring, and the limits of this process.

use super::{Finding, Findings, Wish};
use crate::config::Driver;
use crate::runtime::descriptors::ENOUGH;
use crate::runtime::tree::{Tree, field};

/// The first version with all that the ring is set up with.
const RING_SINCE: (u64, u64) = (6, 1);
/// The first version that does not count a ring against locked memory.
const UNLOCKED_SINCE: (u64, u64) = (5, 12);
/// Locked bytes that a few dozen rings take on older kernels.
const LOCKED_BYTES: u64 = 64 << 20;
/// Descriptors beside those of requests: listeners, log, admin, rings, event sources.
const OWN_DESCRIPTORS: u64 = 256;
/// A request under way holds the client's connection and the replica's.
const DESCRIPTORS_A_REQUEST: u64 = 2;
/// What is recommended where there is too little.
const DESCRIPTORS_MEND: u64 = 1_048_576;

/// What was read. Limits: `None` inside is "unlimited".
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub release: Option<String>,
    /// What the ring can do, or why there is none.
    pub ring: Result<Vec<&'static str>, String>,
    pub ring_disabled: Option<u64>,
    pub seccomp: Option<u64>,
    pub descriptors: Option<Limit>,
    pub locked_bytes: Option<Limit>,
}

/// A resource limit; `u64::MAX` is "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub soft: u64,
    pub hard: u64,
}

impl Facts {
    pub(super) fn read(tree: &Tree, ring: Result<Vec<&'static str>, String>) -> Facts {
        let limits = tree.text("proc/self/limits").unwrap_or_default();
        let status = tree.text("proc/self/status").unwrap_or_default();
        Facts {
            release: tree.text("proc/sys/kernel/osrelease"),
            ring,
            ring_disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
            seccomp: field(&status, "Seccomp").and_then(|mode| mode.parse().ok()),
            descriptors: limit(&limits, "Max open files"),
            locked_bytes: limit(&limits, "Max locked memory"),
        }
    }
}

/// A line of `/proc/self/limits`.
fn limit(text: &str, name: &str) -> Option<Limit> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = rest.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    });
    Some(Limit { soft: words.next()??, hard: words.next()?? })
}

/// Major and minor of a release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u64, u64)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub(super) fn judge(facts: &Facts, wish: &Wish) -> Vec<Finding> {
    let mut found = Findings::of("kernel");
    let version = facts.release.as_deref().and_then(version);
    match (&facts.release, version) {
        (Some(release), Some(version)) if version >= RING_SINCE => {
            found.ok("kernel", format!("Linux {release}"));
        }
        (Some(release), Some(_)) => found.warn(
            "kernel",
            format!("Linux {release}: before 6.1 the cores run on epoll"),
            "install a kernel of 6.1 or newer",
        ),
        _ => found.unknown("kernel", "its version cannot be read"),
    }
    ring(facts, wish, &mut found);
    descriptors(facts, &mut found);
    match facts.locked_bytes {
        _ if version.is_some_and(|version| version >= UNLOCKED_SINCE) => {
            found.ok("memlock", "rings are not counted against it since Linux 5.12");
        }
        Some(limit) if limit.soft < LOCKED_BYTES => found.warn(
            "memlock",
            format!("{} KiB: too little for a ring on each core", limit.soft / 1024),
            "ulimit -l unlimited   (systemd: LimitMEMLOCK=infinity)",
        ),
        Some(_) => found.ok("memlock", "enough for the rings"),
        None => found.unknown("memlock", "the limit cannot be read"),
    }
    found.all
}

fn ring(facts: &Facts, wish: &Wish, found: &mut Findings) {
    let cause = match &facts.ring {
        Ok(features) => {
            let filter = match facts.seccomp {
                Some(2) => "; the seccomp filter here lets it through",
                _ => "",
            };
            found.ok("io-uring", format!("{}{filter}", features.join(", ")));
            return;
        }
        Err(cause) => cause,
    };
    if wish.driver == Driver::Epoll {
        found.ok("io-uring", "not to be had, and not asked for (driver = \"epoll\")");
        return;
    }
    let mend = match (facts.ring_disabled, facts.seccomp) {
        (Some(1 | 2), _) => "sysctl -w kernel.io_uring_disabled=0",
        (_, Some(2)) => {
            "run the container with scripts/deploy/seccomp.json \
             (docker run --security-opt seccomp=FILE, or a pod's seccompProfile)"
        }
        _ => "see the cause; driver = \"epoll\" goes without",
    };
    match wish.driver {
        Driver::IoUring => found.fail("io-uring", format!("{cause}; serve would not start"), mend),
        _ => found.warn("io-uring", format!("{cause}; the cores would run on epoll"), mend),
    }
}

fn descriptors(facts: &Facts, found: &mut Findings) {
    // The soft limit is raised to the hard one when a gateway starts.
    let Some(Limit { hard, .. }) = facts.descriptors else {
        found.unknown("descriptors", "the limit cannot be read");
        return;
    };
    if hard == u64::MAX {
        found.ok("descriptors", "unlimited");
        return;
    }
    let requests = hard.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS_A_REQUEST;
    let says = format!("{hard}: room for {requests} requests at once");
    let mend = format!(
        "as root: ulimit -n {DESCRIPTORS_MEND}   (systemd: LimitNOFILE={DESCRIPTORS_MEND})"
    );
    match hard {
        hard if hard < OWN_DESCRIPTORS => found.fail("descriptors", says, mend),
        hard if hard < ENOUGH => found.warn("descriptors", says, mend),
        _ => found.ok("descriptors", says),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn facts() -> Facts {
        Facts {
            release: Some("6.8.0-45-generic".to_owned()),
            ring: Ok(vec!["fast poll"]),
            ring_disabled: Some(0),
            seccomp: Some(0),
            descriptors: Some(Limit { soft: 1 << 20, hard: 1 << 20 }),
            locked_bytes: Some(Limit { soft: 8 << 20, hard: 8 << 20 }),
        }
    }

    fn level(facts: &Facts, driver: Driver, name: &str) -> (Level, String) {
        let wish = Wish { cores: vec![0], listed: false, driver };
        let all = judge(facts, &wish);
        let found = all.into_iter().find(|finding| finding.name == name).unwrap();
        (found.level, found.mend.unwrap_or_default())
    }

    #[test]
    fn a_good_host_has_nothing_to_mend() {
        let wish = Wish { cores: vec![0], listed: false, driver: Driver::IoUring };
        let all = judge(&facts(), &wish);
        assert!(all.iter().all(|finding| finding.level == Level::Ok), "{all:?}");
    }

    #[test]
    fn a_ring_that_cannot_be_had_fails_only_who_demands_it() {
        let denied = Facts { ring: Err("denied".to_owned()), ..facts() };
        assert_eq!(level(&denied, Driver::IoUring, "io-uring").0, Level::Fail);
        assert_eq!(level(&denied, Driver::Auto, "io-uring").0, Level::Warn);
        assert_eq!(level(&denied, Driver::Epoll, "io-uring").0, Level::Ok);
    }

    #[test]
    fn the_mend_of_a_ring_goes_by_what_forbids_it() {
        let denied = Facts { ring: Err("denied".to_owned()), ..facts() };
        let by_sysctl = Facts { ring_disabled: Some(2), seccomp: Some(2), ..denied.clone() };
        assert!(level(&by_sysctl, Driver::Auto, "io-uring").1.starts_with("sysctl"));
        let by_filter = Facts { seccomp: Some(2), ..denied };
        assert!(level(&by_filter, Driver::Auto, "io-uring").1.contains("seccomp.json"));
    }

    #[test]
    fn descriptors_are_weighed_in_requests() {
        let of = |soft, hard| {
            let facts = Facts { descriptors: Some(Limit { soft, hard }), ..facts() };
            level(&facts, Driver::Auto, "descriptors")
        };
        assert_eq!(of(128, 128).0, Level::Fail);
        let (level, mend) = of(1024, 4096);
        assert!(level == Level::Warn && mend.contains("ulimit -n 1048576 "), "{mend}");
        // The soft limit is no bound: `serve` raises it.
        assert_eq!([of(1024, 1 << 20).0, of(1024, u64::MAX).0], [Level::Ok; 2]);
        assert_eq!(of(u64::MAX, u64::MAX).0, Level::Ok);
    }

    #[test]
    fn locked_memory_counts_on_old_kernels_only() {
        let old = Facts { release: Some("5.10.0".to_owned()), ..facts() };
        assert_eq!(level(&old, Driver::Auto, "memlock").0, Level::Warn);
        assert_eq!(level(&old, Driver::Auto, "kernel").0, Level::Warn);
        let odd = Facts { release: Some("next".to_owned()), locked_bytes: None, ..facts() };
        assert_eq!(level(&odd, Driver::Auto, "kernel").0, Level::Unknown);
        assert_eq!(level(&odd, Driver::Auto, "memlock").0, Level::Unknown);
    }

    #[test]
    fn limits_are_read_as_the_kernel_prints_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 unlimited            files\n\
                    Max locked memory         x                    8388608              bytes\n";
        assert_eq!(limit(text, "Max open files"), Some(Limit { soft: 1024, hard: u64::MAX }));
        assert_eq!(limit(text, "Max locked memory"), None);
        assert_eq!(limit(text, "Max processes"), None);
    }
}
