//! Whole hosts from recorded trees, and files that nobody would write.

use std::collections::BTreeMap;

use super::*;

use crate::runtime::host_tree::{SERVER, VM, unpack};

/// The levels by name of what is found on a host.
fn levels(tree: &str, config: Option<&str>) -> BTreeMap<String, Level> {
    let folder = tempfile::tempdir().unwrap();
    unpack(tree, folder.path());
    let config = config.map(|text| Config::from_text("test.toml", text).unwrap());
    let all = host(&Tree::at(folder.path()), config.as_ref(), Ok(vec!["fast poll"]), Some(0.0));
    assert!(all.iter().all(|f| f.mend.is_some() == (f.level >= Level::Warn)), "{all:#?}");
    let count = all.len();
    let levels: BTreeMap<_, _> = all.into_iter().map(|f| (f.name, f.level)).collect();
    assert_eq!(levels.len(), count, "names are unique");
    levels
}

/// The names at a level, sorted.
fn at(levels: &BTreeMap<String, Level>, level: Level) -> Vec<&str> {
    levels.iter().filter(|(_, one)| **one == level).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_recorded_machine_is_told_as_it_was() {
    let levels = levels(VM, None);
    let warned = ["descriptors", "queues eth0", "slow-start"];
    assert_eq!(at(&levels, Level::Warn), warned);
    assert_eq!(at(&levels, Level::Fail), Vec::<&str>::new());
    let unknown = ["clock-drift", "cpu-throttled", "governor", "nohz-full"];
    assert_eq!(at(&levels, Level::Unknown), unknown);
}

#[test]
fn a_server_as_distributions_ship_it_has_much_to_mend() {
    let pool = "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n";
    let config = format!("[server]\ncores = [0, 1, 8, 4, 5, 16]\n{pool}");
    let levels = levels(SERVER, Some(&config));
    assert_eq!(at(&levels, Level::Fail), ["cores"]);
    let warned = [
        "card-node eth0",
        "clock-source",
        "cpu-quota",
        "cpu-throttled",
        "cstates",
        "governor",
        "irqs eth0",
        "isolated",
        "numa",
        "numa-balancing",
        "ports",
        "queues eth0",
        "slow-start",
        "smt",
        "somaxconn",
        "swap",
        "syn-backlog",
        "thp",
        "xps eth0",
    ];
    assert_eq!(at(&levels, Level::Warn), warned);
}

#[test]
fn cores_that_nobody_lists_are_on_one_node_and_near_the_card() {
    let levels = levels(SERVER, None);
    for name in ["cores", "numa", "card-node eth0"] {
        assert_eq!(levels.get(name), Some(&Level::Ok), "{name}");
    }
}

#[test]
fn an_empty_tree_is_unknown_throughout() {
    let levels = levels("", None);
    let known = at(&levels, Level::Ok);
    assert_eq!(known, ["io-uring"], "the probe alone does not come from the tree");
    assert!(at(&levels, Level::Warn).is_empty() && at(&levels, Level::Fail).is_empty());
}

#[test]
fn files_that_nobody_would_write_stop_nothing() {
    for junk in ["", "\u{fffd}", "-1", "18446744073709551616", "18446744073709551615", "0-", ": ["]
    {
        for tree in [VM, SERVER] {
            let odd = tree.lines().map(|line| match line.starts_with("== ") {
                true => format!("\n{line}"),
                false => format!("\n{junk}"),
            });
            levels(&odd.collect::<String>(), None);
        }
    }
}

#[test]
fn the_report_of_this_machine_names_what_mends_it() {
    let report = examine(&Tree::at("/"), None, None);
    let text = report.text();
    for finding in &report.findings {
        assert!(text.contains(&finding.says), "{text}");
        assert!(finding.mend.as_ref().is_none_or(|mend| text.contains(mend)), "{text}");
    }
    let json = report.json();
    assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
    let sum: u64 =
        ["ok", "unknown", "warn", "fail"].map(|l| json[l].as_u64().unwrap()).iter().sum();
    assert_eq!(sum as usize, report.findings.len());
}
