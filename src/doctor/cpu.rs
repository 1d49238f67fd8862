//! The CPUs of the cores: whether they may be used, whom they are shared with, how they sleep.

use super::{Finding, Findings, Wish};
use crate::runtime::nodes;
use crate::runtime::tree::{Tree, cpus, field, list};

const CPU: &str = "sys/devices/system/cpu";
/// An idle state that takes longer to leave is felt in the time between two events.
const WAKE_US: u64 = 50;

/// What was read. Of the per-CPU lists only the wished cores are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub allowed: Vec<usize>,
    pub isolated: Option<Vec<usize>>,
    pub nohz_full: Option<Vec<usize>>,
    /// Governor of each core that has one.
    pub governors: Vec<(usize, String)>,
    /// Of each core that tells: its slowest idle state in use, and how long it takes to leave, us.
    pub idle: Vec<(usize, String, u64)>,
    /// CPUs that share a physical core with each wished one, itself among them.
    pub siblings: Vec<(usize, Vec<usize>)>,
    /// NUMA nodes and their CPUs.
    pub nodes: Vec<(usize, Vec<usize>)>,
    /// `kernel.numa_balancing`.
    pub balancing: Option<u64>,
}

/// The CPUs that this process may use.
pub(super) fn allowed(tree: &Tree) -> Vec<usize> {
    let status = tree.text("proc/self/status").unwrap_or_default();
    cpus(field(&status, "Cpus_allowed_list").unwrap_or_default())
}

impl Facts {
    pub(super) fn read(tree: &Tree, allowed: Vec<usize>, wish: &Wish) -> Facts {
        let of = |cpu: &usize, file: &str| format!("{CPU}/cpu{cpu}/{file}");
        let cores = &wish.cores;
        let governor = |cpu: &usize| Some((*cpu, tree.text(&of(cpu, "cpufreq/scaling_governor"))?));
        let sharing =
            |cpu: &usize| Some((*cpu, tree.cpus(&of(cpu, "topology/thread_siblings_list"))?));
        Facts {
            allowed,
            isolated: tree.cpus(&format!("{CPU}/isolated")),
            nohz_full: tree.cpus(&format!("{CPU}/nohz_full")),
            governors: cores.iter().filter_map(governor).collect(),
            idle: cores.iter().filter_map(|cpu| slowest(tree, *cpu)).collect(),
            siblings: cores.iter().filter_map(sharing).collect(),
            nodes: nodes::nodes(tree),
            balancing: tree.number("proc/sys/kernel/numa_balancing"),
        }
    }
}

/// The idle state of a CPU, of those in use, that takes longest to leave.
fn slowest(tree: &Tree, cpu: usize) -> Option<(usize, String, u64)> {
    let folder = format!("{CPU}/cpu{cpu}/cpuidle");
    let states = tree.names(&folder);
    let used = states.iter().filter(|state| {
        state.starts_with("state") && tree.number(&format!("{folder}/{state}/disable")) == Some(0)
    });
    let timed = used.filter_map(|state| {
        let latency = tree.number(&format!("{folder}/{state}/latency"))?;
        Some((cpu, tree.text(&format!("{folder}/{state}/name"))?, latency))
    });
    timed.max_by_key(|(.., latency)| *latency)
}

pub(super) fn judge(facts: &Facts, wish: &Wish) -> Vec<Finding> {
    let mut found = Findings::of("cpu");
    cores(facts, wish, &mut found);
    governor(facts, &mut found);
    match facts.idle.iter().max_by_key(|(.., latency)| *latency) {
        Some((cpu, state, us)) if *us > WAKE_US => found.warn(
            "cstates",
            format!("CPU {cpu} takes {us} us to come back from {state}"),
            "tuning/host apply --yes cstates   (or cpupower idle-set -D 50)",
        ),
        Some((_, state, us)) => found.ok("cstates", format!("{state} at most, left in {us} us")),
        None => found.unknown("cstates", "not told here: the host or the firmware decides"),
    }
    isolation(facts, wish, &mut found);
    siblings(facts, wish, &mut found);
    numa(facts, wish, &mut found);
    match facts.balancing {
        None => found.unknown("numa-balancing", "this kernel has none, or it cannot be read"),
        Some(n) if n > 0 && facts.nodes.len() > 1 => found.warn(
            "numa-balancing",
            "on: pages are unmapped to see who uses them, which stops pinned cores for nothing",
            "sysctl -w kernel.numa_balancing=0",
        ),
        Some(_) => found.ok("numa-balancing", "off, or nothing to balance"),
    }
    found.all
}

fn cores(facts: &Facts, wish: &Wish, found: &mut Findings) {
    if facts.allowed.is_empty() {
        found.unknown("cores", "the kernel does not tell which CPUs may be used");
        return;
    }
    let barred: Vec<_> =
        wish.cores.iter().copied().filter(|c| !facts.allowed.contains(c)).collect();
    let says = format!("{} of the allowed {}", list(&wish.cores), list(&facts.allowed));
    match barred.is_empty() {
        true => found.ok("cores", says),
        false => found.fail(
            "cores",
            format!(
                "server.cores names {}, and only {} may be used",
                list(&barred),
                list(&facts.allowed)
            ),
            format!("cores = [{}], or widen the cpuset", join(&facts.allowed)),
        ),
    }
}

fn governor(facts: &Facts, found: &mut Findings) {
    let slow: Vec<_> = facts.governors.iter().filter(|(_, name)| name != "performance").collect();
    let cpus: Vec<_> = slow.iter().map(|(cpu, _)| *cpu).collect();
    match (facts.governors.is_empty(), slow.first()) {
        (true, _) => found.unknown("governor", "not told here: the host decides"),
        (false, None) => found.ok("governor", "performance"),
        (false, Some((_, name))) => found.warn(
            "governor",
            format!("{name} on {}: a core that slept starts slowly", list(&cpus)),
            "cpupower frequency-set -g performance",
        ),
    }
}

fn isolation(facts: &Facts, wish: &Wish, found: &mut Findings) {
    match facts.isolated.as_deref() {
        None => found.unknown("isolated", "cannot be read"),
        Some([]) => found.ok("isolated", "no CPU is kept from the scheduler; others may run here"),
        Some(isolated) => {
            let outside = wish.cores.iter().any(|cpu| !isolated.contains(cpu));
            match outside {
                false => found.ok("isolated", format!("the cores are: {}", list(isolated))),
                true => found.warn(
                    "isolated",
                    format!("{} are kept free, and not all cores are there", list(isolated)),
                    format!("cores = [{}] in [server]", join(isolated)),
                ),
            }
        }
    }
    match facts.nohz_full.as_deref() {
        None => found.unknown("nohz-full", "this kernel does not have it, or does not tell"),
        Some([]) => found.ok("nohz-full", "none: each core is ticked while it works"),
        Some(cpus) => found.ok("nohz-full", format!("{} run without a tick", list(cpus))),
    }
}

fn siblings(facts: &Facts, wish: &Wish, found: &mut Findings) {
    if facts.siblings.is_empty() {
        found.unknown("smt", "cannot be read");
        return;
    }
    let shared = |(cpu, with): &&(usize, Vec<usize>)| {
        with.iter().any(|other| other != cpu && wish.cores.contains(other))
    };
    let doubled: Vec<_> = facts.siblings.iter().filter(shared).map(|(cpu, _)| *cpu).collect();
    let first = |(cpu, with): &&(usize, Vec<usize>)| {
        !with.iter().any(|other| other < cpu && wish.cores.contains(other))
    };
    let alone: Vec<_> = facts.siblings.iter().filter(first).map(|(cpu, _)| *cpu).collect();
    let says = format!("cores {} share physical ones in pairs", list(&doubled));
    match (doubled.is_empty(), wish.listed) {
        (true, _) => found.ok("smt", "each core has a physical one"),
        (false, true) => found.warn("smt", says, format!("cores = [{}]", join(&alone))),
        (false, false) => {
            found.ok("smt", format!("{says}; for even latency list {}", list(&alone)));
        }
    }
}

fn numa(facts: &Facts, wish: &Wish, found: &mut Findings) {
    let on = |cpu: &usize| facts.nodes.iter().find(|(_, cpus)| cpus.contains(cpu));
    let mut used: Vec<_> = wish.cores.iter().filter_map(on).collect();
    used.sort();
    used.dedup();
    match (used.as_slice(), facts.nodes.len()) {
        ([], _) => found.unknown("numa", "the kernel tells of no nodes"),
        ([(node, _)], _) => found.ok("numa", format!("all cores are on node {node}")),
        ([(first, cpus), ..], _) => {
            let own: Vec<_> = wish.cores.iter().copied().filter(|c| cpus.contains(c)).collect();
            let says = "the cores are on several nodes; what they share crosses between them";
            found.warn("numa", says, format!("cores = [{}]   (those of node {first})", join(&own)));
        }
    }
}

/// CPUs as a list in the configuration.
pub(super) fn join(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
