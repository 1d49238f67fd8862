//! Settings of the kernel's sockets that a gateway with many connections meets.

use super::{Finding, Findings};
use crate::net::BACKLOG;
use crate::runtime::tree::Tree;

/// Below this many ports new connections to one replica may run out of them.
const PORTS: u64 = 16_384;
/// A closed connection keeps its port for this long (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT_S: u64 = 60;

/// What was read, from `net.core` and `net.ipv4`.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub somaxconn: Option<u64>,
    pub syn_backlog: Option<u64>,
    pub syncookies: Option<u64>,
    pub ports: Option<(u64, u64)>,
    pub tw_reuse: Option<u64>,
    pub slow_start: Option<u64>,
    pub busy_read_us: Option<u64>,
}

impl Facts {
    pub(super) fn read(tree: &Tree) -> Facts {
        let number = |name: &str| tree.number(&format!("proc/sys/net/{name}"));
        let range = tree.text("proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut ends = range.split_whitespace().map(|end| end.parse().ok());
        let mut end = || ends.next().flatten();
        Facts {
            somaxconn: number("core/somaxconn"),
            syn_backlog: number("ipv4/tcp_max_syn_backlog"),
            syncookies: number("ipv4/tcp_syncookies"),
            ports: end().zip(end()),
            tw_reuse: number("ipv4/tcp_tw_reuse"),
            slow_start: number("ipv4/tcp_slow_start_after_idle"),
            busy_read_us: number("core/busy_read"),
        }
    }
}

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::of("sockets");
    let backlog = u64::try_from(BACKLOG).unwrap_or_default();
    match facts.somaxconn {
        Some(most) if most < backlog => found.warn(
            "somaxconn",
            format!("{most} connections may wait to be accepted; each core asks for {backlog}"),
            format!("sysctl -w net.core.somaxconn={backlog}"),
        ),
        Some(most) => found.ok("somaxconn", format!("{most} connections may wait")),
        None => found.unknown("somaxconn", "cannot be read"),
    }
    match (facts.syn_backlog, facts.syncookies) {
        (Some(most), Some(0)) if most < backlog => found.warn(
            "syn-backlog",
            format!("{most} half-open connections, and no SYN cookies beyond that"),
            format!("sysctl -w net.ipv4.tcp_max_syn_backlog={backlog} net.ipv4.tcp_syncookies=1"),
        ),
        (Some(most), Some(_)) => found.ok("syn-backlog", format!("{most}, or SYN cookies")),
        _ => found.unknown("syn-backlog", "cannot be read"),
    }
    ports(facts, &mut found);
    match facts.slow_start {
        Some(0) => found.ok("slow-start", "a connection keeps its window while it is idle"),
        Some(_) => found.warn(
            "slow-start",
            "an idle connection starts again at ten segments: long prompts take more round trips",
            "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
        ),
        None => found.unknown("slow-start", "cannot be read"),
    }
    match facts.busy_read_us {
        Some(0) => found.ok("busy-poll", "off: a core without work sleeps"),
        Some(us) => found.ok("busy-poll", format!("a read waits {us} us at the card's queue")),
        None => found.unknown("busy-poll", "this kernel has none, or it cannot be read"),
    }
    found.all
}

fn ports(facts: &Facts, found: &mut Findings) {
    let Some((first, last)) = facts.ports else {
        found.unknown("ports", "cannot be read");
        return;
    };
    let ports = last.saturating_sub(first).saturating_add(1);
    let says = format!("{ports} ports for connections to one replica ({first} to {last})");
    match facts.tw_reuse {
        Some(1) => found.ok("ports", format!("{says}, used again at once")),
        _ if ports >= PORTS => found.ok("ports", says),
        _ => found.warn(
            "ports",
            format!("{says}: {} new ones a second at most", ports / TIME_WAIT_S),
            "sysctl -w net.ipv4.ip_local_port_range='16384 65535' net.ipv4.tcp_tw_reuse=1",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn level(facts: &Facts, name: &str) -> Level {
        judge(facts).into_iter().find(|finding| finding.name == name).unwrap().level
    }

    #[test]
    fn nothing_read_is_unknown() {
        let all = judge(&Facts::default());
        assert!(all.iter().all(|finding| finding.level == Level::Unknown), "{all:?}");
    }

    #[test]
    fn each_setting_has_its_bound() {
        let none = Facts::default();
        let at = |somaxconn| level(&Facts { somaxconn, ..none.clone() }, "somaxconn");
        assert_eq!((at(Some(4095)), at(Some(4096))), (Level::Warn, Level::Ok));
        let at = |syn_backlog, syncookies| {
            level(&Facts { syn_backlog, syncookies, ..none.clone() }, "syn-backlog")
        };
        assert_eq!((at(Some(128), Some(0)), at(Some(128), Some(1))), (Level::Warn, Level::Ok));
        let at = |slow_start| level(&Facts { slow_start, ..none.clone() }, "slow-start");
        assert_eq!((at(Some(1)), at(Some(0))), (Level::Warn, Level::Ok));
        let at = |busy_read_us| level(&Facts { busy_read_us, ..none.clone() }, "busy-poll");
        assert_eq!((at(Some(0)), at(Some(50))), (Level::Ok, Level::Ok));
    }

    #[test]
    fn few_ports_matter_unless_they_are_used_again() {
        let at = |ports, tw_reuse| {
            level(&Facts { ports: Some(ports), tw_reuse, ..Facts::default() }, "ports")
        };
        assert_eq!(at((32768, 60999), Some(2)), Level::Ok);
        assert_eq!(at((60000, 60999), Some(2)), Level::Warn);
        assert_eq!(at((60000, 60999), Some(1)), Level::Ok);
        assert_eq!(at((9, 1), None), Level::Warn);
    }
}
