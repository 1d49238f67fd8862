//! The choice of cores, on recorded hosts.

use super::*;

use crate::runtime::host_tree::{SERVER, VM, unpack};

/// What is chosen on a recorded host with more files, of these CPUs.
fn chosen(host: &str, more: &str, allowed: &[usize]) -> Auto {
    let folder = tempfile::tempdir().unwrap();
    unpack(&format!("{host}\n{more}"), folder.path());
    auto(&Tree::at(folder.path()), allowed)
}

const ALL: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const SECOND: [usize; 8] = [4, 5, 6, 7, 12, 13, 14, 15];

#[test]
fn the_node_of_the_card_is_chosen_and_told() {
    let auto = chosen(SERVER, "", &ALL);
    assert_eq!(auto.cpus, SECOND);
    let why = auto.why.unwrap();
    for part in ["4-7,12-15", "node 1", "eth0", "0-3,8-11"] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn the_fastest_card_decides_and_else_the_first() {
    let other = "== sys/class/net/eth9/device/numa_node\n0\n== sys/class/net/eth9/operstate\nup";
    assert_eq!(chosen(SERVER, other, &ALL).cpus, SECOND);
    let fast = format!("{other}\n== sys/class/net/eth9/speed\n100000");
    assert_eq!(chosen(SERVER, &fast, &ALL).cpus, [0, 1, 2, 3, 8, 9, 10, 11]);
    let down = fast.replace("operstate\nup", "operstate\ndown");
    assert_eq!(chosen(SERVER, &down, &ALL).cpus, SECOND);
}

#[test]
fn without_a_card_that_tells_the_larger_node_is_chosen() {
    let none = "== sys/class/net/eth0/device/numa_node\n-1";
    assert_eq!(chosen(SERVER, none, &ALL).cpus, [0, 1, 2, 3, 8, 9, 10, 11]);
    assert_eq!(chosen(SERVER, none, &[0, 1, 4, 5, 6]).cpus, [4, 5, 6]);
}

#[test]
fn one_node_is_taken_whole() {
    let whole = |cpus: &[usize]| Auto { cpus: cpus.to_vec(), why: None };
    assert_eq!(chosen(VM, "", &[0, 1]), whole(&[0, 1]));
    // A cpuset on the node that is not the card's, and a kernel that tells nothing.
    assert_eq!(chosen(SERVER, "", &[0, 2]), whole(&[0, 2]));
    assert_eq!(chosen("", "", &[3, 5]), whole(&[3, 5]));
}
