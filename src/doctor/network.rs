//! Network cards: how their queues and interrupts are spread over the cores, and how near they are.
//!
//! Only cards with a device behind them count: bridges, tunnels and a container's `veth` do not.

use super::{Finding, Findings, Wish};
use crate::runtime::nodes;
use crate::runtime::tree::{Tree, list, mask};

const NET: &str = "sys/class/net";

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub cards: Vec<Card>,
    pub nodes: Vec<(usize, Vec<usize>)>,
}

/// A network card that is up.
#[derive(Clone, Debug, Default)]
pub(super) struct Card {
    pub name: String,
    /// Receive queues, and of these the ones whose packets are spread in software (RPS).
    pub rx: usize,
    pub spread: usize,
    /// Send queues, and of these the ones that certain CPUs use (XPS).
    pub tx: usize,
    pub mapped: usize,
    /// CPUs that the interrupts of its queues may go to, one entry an interrupt.
    pub interrupts: Vec<Vec<usize>>,
    pub node: Option<usize>,
}

impl Facts {
    pub(super) fn read(tree: &Tree) -> Facts {
        let cards = nodes::cards(tree).iter().map(|name| card(tree, name)).collect();
        Facts { cards, nodes: nodes::nodes(tree) }
    }
}

fn card(tree: &Tree, name: &str) -> Card {
    let folder = format!("{NET}/{name}");
    let queues = tree.names(&format!("{folder}/queues"));
    let of = |kind: &'static str| queues.iter().filter(move |queue| queue.starts_with(kind));
    let masked = |queue: &&String, file: &str| {
        let mask = tree.text(&format!("{folder}/queues/{queue}/{file}")).unwrap_or_default();
        mask.contains(|c: char| c.is_ascii_hexdigit() && c != '0')
    };
    // A virtio device's interrupts are its parent's.
    let folders = [format!("{folder}/device/msi_irqs"), format!("{folder}/device/../msi_irqs")];
    let irqs = folders.iter().map(|folder| tree.names(folder)).find(|irqs| !irqs.is_empty());
    let interrupts = irqs.unwrap_or_default().into_iter().filter(|irq| carries(tree, irq));
    Card {
        name: name.to_owned(),
        rx: of("rx-").count(),
        spread: of("rx-").filter(|queue| masked(queue, "rps_cpus")).count(),
        tx: of("tx-").count(),
        mapped: of("tx-").filter(|queue| masked(queue, "xps_cpus")).count(),
        interrupts: interrupts
            .filter_map(|irq| tree.cpus(&format!("proc/irq/{irq}/smp_affinity_list")))
            .collect(),
        node: nodes::node_of(tree, name),
    }
}

/// Is the interrupt one of a queue: not of the card's configuration or events?
fn carries(tree: &Tree, irq: &str) -> bool {
    let names = tree.names(&format!("proc/irq/{irq}"));
    let other = |name: &String| {
        let name = name.to_ascii_lowercase();
        ["config", "event", "async", "control", "mgmt"].iter().any(|word| name.contains(word))
    };
    !names.iter().any(other)
}

pub(super) fn judge(facts: &Facts, wish: &Wish) -> Vec<Finding> {
    let mut found = Findings::of("network");
    if facts.cards.is_empty() {
        found.unknown("queues", "no card with a device behind it can be seen (a container?)");
    }
    for card in &facts.cards {
        queues(card, wish, &mut found);
        rps(card, &mut found);
        interrupts(card, wish, &mut found);
        xps(card, &mut found);
        node(card, facts, wish, &mut found);
    }
    found.all
}

fn queues(card: &Card, wish: &Wish, found: &mut Findings) {
    let (name, cores) = (format!("queues {}", card.name), wish.cores.len());
    if card.rx == 0 {
        found.unknown(&name, "its queues cannot be seen");
    } else if card.rx >= cores {
        found.ok(&name, format!("{} for {cores} cores", card.rx));
    } else if card.spread == card.rx {
        found.ok(&name, format!("{} for {cores} cores, spread in software", card.rx));
    } else {
        let says = format!(
            "{} receive queue{} for {cores} cores: the kernel's part of all packets is done on as \
             few",
            card.rx,
            if card.rx == 1 { "" } else { "s" },
        );
        let mend = format!(
            "ethtool -L {0} combined {cores}   (or, where the card has no more: \
             for q in /{NET}/{0}/queues/rx-*; do echo {1} > $q/rps_cpus; done)",
            card.name,
            mask(&wish.cores),
        );
        found.warn(&name, says, mend);
    }
}

fn rps(card: &Card, found: &mut Findings) {
    let name = format!("rps {}", card.name);
    match (card.rx, card.spread) {
        (0, _) => found.unknown(&name, "its queues cannot be seen"),
        (_, 0) => found.ok(&name, "off: packets stay where the interrupt was"),
        (rx, spread) => found.ok(&name, format!("{spread} of {rx} queues are spread in software")),
    }
}

fn interrupts(card: &Card, wish: &Wish, found: &mut Findings) {
    let name = format!("irqs {}", card.name);
    if card.interrupts.is_empty() {
        found.unknown(&name, "its interrupts cannot be seen");
        return;
    }
    let mut cpus = card.interrupts.concat();
    cpus.sort_unstable();
    cpus.dedup();
    let says = format!("{} go to CPUs {}", card.interrupts.len(), list(&cpus));
    let same = card.interrupts.iter().all(|one| Some(one) == card.interrupts.first());
    let first = card.interrupts.first().map_or(0, Vec::len);
    // A pair of one receive and one send queue is one queue.
    let several = card.rx > 1 && wish.cores.len() > 1;
    if several && same && first == 1 {
        let says = format!("all {says}: one core does the work of all queues");
        found.warn(&name, says, "tuning/host apply --yes irqs   (and stop irqbalance)");
    } else {
        found.ok(&name, says);
    }
}

fn xps(card: &Card, found: &mut Findings) {
    let name = format!("xps {}", card.name);
    match (card.tx, card.mapped) {
        (0, _) => found.unknown(&name, "its send queues cannot be seen"),
        (1, _) => found.ok(&name, "one send queue for all CPUs"),
        (_, 0) => found.warn(
            &name,
            "no CPU has a send queue of its own: cores meet at the queues' locks",
            "tuning/host apply --yes xps",
        ),
        (tx, mapped) => found.ok(&name, format!("{mapped} of {tx} send queues belong to CPUs")),
    }
}

fn node(card: &Card, facts: &Facts, wish: &Wish, found: &mut Findings) {
    // With one node there is nothing to be far from.
    let Some(node) = card.node.filter(|_| facts.nodes.len() > 1) else { return };
    let near = facts.nodes.iter().find(|(number, _)| *number == node).map(|(_, cpus)| cpus);
    let Some(near) = near else { return };
    let name = format!("card-node {}", card.name);
    let far: Vec<_> = wish.cores.iter().copied().filter(|core| !near.contains(core)).collect();
    match far.is_empty() {
        true => found.ok(&name, format!("node {node}, as the cores")),
        false => found.warn(
            &name,
            format!("node {node}; cores {} are on another", list(&far)),
            format!("cores from {} in [server]", list(near)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::config::Driver;

    fn levels(card: Card, cores: &[usize]) -> Vec<(String, Level)> {
        let nodes = vec![(0, vec![0, 1]), (1, vec![2, 3])];
        let wish = Wish { cores: cores.to_vec(), listed: true, driver: Driver::Auto };
        let all = judge(&Facts { cards: vec![card], nodes }, &wish);
        all.into_iter().map(|finding| (finding.name, finding.level)).collect()
    }

    fn card() -> Card {
        Card {
            name: "e0".to_owned(),
            rx: 2,
            tx: 2,
            mapped: 2,
            interrupts: vec![vec![0], vec![1]],
            node: Some(0),
            ..Card::default()
        }
    }

    fn level(card: Card, cores: &[usize], name: &str) -> Level {
        let all = levels(card, cores);
        all.into_iter().find(|(one, _)| one == name).unwrap().1
    }

    #[test]
    fn a_spread_card_has_nothing_to_mend() {
        assert!(levels(card(), &[0, 1]).iter().all(|(_, level)| *level == Level::Ok));
    }

    #[test]
    fn few_queues_are_amiss_unless_spread_in_software() {
        let one = Card { rx: 1, ..card() };
        assert_eq!(level(one.clone(), &[0, 1], "queues e0"), Level::Warn);
        assert_eq!(level(one.clone(), &[0], "queues e0"), Level::Ok);
        assert_eq!(level(Card { spread: 1, ..one }, &[0, 1], "queues e0"), Level::Ok);
    }

    #[test]
    fn interrupts_on_one_cpu_are_amiss_where_there_are_several_queues() {
        let heap = Card { interrupts: vec![vec![0], vec![0]], ..card() };
        assert_eq!(level(heap.clone(), &[0, 1], "irqs e0"), Level::Warn);
        assert_eq!(level(heap.clone(), &[0], "irqs e0"), Level::Ok);
        assert_eq!(level(Card { rx: 1, ..heap }, &[0, 1], "irqs e0"), Level::Ok);
        let anywhere = Card { interrupts: vec![vec![0, 1], vec![0, 1]], ..card() };
        assert_eq!(level(anywhere, &[0, 1], "irqs e0"), Level::Ok);
    }

    #[test]
    fn a_card_of_another_node_is_far() {
        assert_eq!(level(card(), &[2, 3], "card-node e0"), Level::Warn);
        assert_eq!(level(Card { mapped: 0, ..card() }, &[0], "xps e0"), Level::Warn);
        assert_eq!(level(Card::default(), &[0], "queues "), Level::Unknown);
    }
}
