//! NUMA nodes: which CPUs share a memory, which of them a network card is near, and so which CPUs
//! the cores get when nobody lists them. Reads `/sys` at start; holds nothing.

use super::tree::{Tree, list};

const NODES: &str = "sys/devices/system/node";
const CARDS: &str = "sys/class/net";

/// The nodes and their CPUs, by number; one of memory alone has none.
#[must_use]
pub fn nodes(tree: &Tree) -> Vec<(usize, Vec<usize>)> {
    let node = |name: &String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        Some((number, tree.cpus(&format!("{NODES}/{name}/cpulist"))?))
    };
    let mut nodes: Vec<_> = tree.names(NODES).iter().filter_map(node).collect();
    nodes.sort();
    nodes
}

/// The network cards that are up: no bridges, tunnels or `veth`, which have no device behind them.
#[must_use]
pub fn cards(tree: &Tree) -> Vec<String> {
    let up = |name: &String| {
        let state = tree.text(&format!("{CARDS}/{name}/operstate"));
        tree.has(&format!("{CARDS}/{name}/device")) && state.as_deref() != Some("down")
    };
    tree.names(CARDS).into_iter().filter(up).collect()
}

/// The node of a card, where the kernel knows it.
#[must_use]
pub fn node_of(tree: &Tree, card: &str) -> Option<usize> {
    // A machine with one node says -1.
    usize::try_from(tree.number(&format!("{CARDS}/{card}/device/numa_node"))?).ok()
}

/// What the cores run on when nobody lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auto {
    /// Of the CPUs that this process may use, all that are on one node.
    pub cpus: Vec<usize>,
    /// Why not the others, for the operator; `None` when there are none.
    pub why: Option<String>,
}

/// Chooses among the `allowed` CPUs: those of one node, since what cores share would else cross
/// between memories. The node is that of the fastest card (the first by name of equal ones); where
/// no card tells, that with the most allowed CPUs.
#[must_use]
pub fn auto(tree: &Tree, allowed: &[usize]) -> Auto {
    let own = |(number, cpus): (usize, Vec<usize>)| {
        let cpus: Vec<_> = cpus.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
        (!cpus.is_empty()).then_some((number, cpus))
    };
    let nodes: Vec<_> = nodes(tree).into_iter().filter_map(own).collect();
    if nodes.len() < 2 {
        return Auto { cpus: allowed.to_vec(), why: None };
    }
    let speed = |card: &String| tree.number(&format!("{CARDS}/{card}/speed")).unwrap_or(0);
    let placed = |card: String| {
        let node = node_of(tree, &card)?;
        let cpus = nodes.iter().find(|(number, _)| *number == node)?.1.clone();
        Some((speed(&card), card, node, cpus))
    };
    // The last of equal ones wins in both: hence from behind.
    let fastest = cards(tree).into_iter().rev().filter_map(placed).max_by_key(|card| card.0);
    let largest = nodes.iter().rev().max_by_key(|(_, cpus)| cpus.len());
    let (cpus, node, of) = match (fastest, largest) {
        (Some((_, card, node, cpus)), _) => (cpus, node, format!("that of card {card}")),
        (None, Some((node, cpus))) => (cpus.clone(), *node, "no card tells of its own".to_owned()),
        (None, None) => return Auto { cpus: allowed.to_vec(), why: None },
    };
    let others: Vec<_> = allowed.iter().copied().filter(|cpu| !cpus.contains(cpu)).collect();
    let why = format!(
        "cores {} are on NUMA node {node}, {of}; {} on others are left out, unless server.cores \
         lists them",
        list(&cpus),
        list(&others)
    );
    Auto { cpus, why: Some(why) }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
