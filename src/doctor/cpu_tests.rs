//! Judgements about CPUs, from facts.

use super::super::Level;
use super::*;
use crate::config::Driver;

fn wish(cores: &[usize], listed: bool) -> Wish {
    Wish { cores: cores.to_vec(), listed, driver: Driver::Auto }
}

fn facts() -> Facts {
    Facts {
        allowed: (0..8).collect(),
        isolated: Some(vec![]),
        nohz_full: Some(vec![]),
        governors: vec![(0, "performance".to_owned()), (1, "performance".to_owned())],
        idle: vec![(0, "C1".to_owned(), 2)],
        siblings: vec![(0, vec![0, 4]), (1, vec![1, 5])],
        nodes: vec![(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])],
        balancing: Some(0),
    }
}

fn one(facts: &Facts, wish: &Wish, name: &str) -> (Level, String) {
    let all = judge(facts, wish);
    let found = all.into_iter().find(|finding| finding.name == name).unwrap();
    (found.level, found.mend.unwrap_or_default())
}

#[test]
fn a_quiet_host_has_nothing_to_mend() {
    let all = judge(&facts(), &wish(&[0, 1], true));
    assert!(all.iter().all(|finding| finding.level == Level::Ok), "{all:?}");
}

#[test]
fn nothing_read_is_unknown() {
    let all = judge(&Facts::default(), &wish(&[], false));
    assert!(all.iter().all(|finding| finding.level == Level::Unknown), "{all:?}");
}

#[test]
fn a_core_that_may_not_be_used_fails() {
    let (level, mend) = one(&facts(), &wish(&[7, 8], true), "cores");
    assert_eq!((level, mend.starts_with("cores = [0, 1, 2")), (Level::Fail, true));
}

#[test]
fn slow_governors_and_deep_sleep_are_told() {
    let slow = Facts {
        governors: vec![(0, "performance".to_owned()), (1, "powersave".to_owned())],
        idle: vec![(0, "C1".to_owned(), 2), (1, "C6".to_owned(), 133)],
        ..facts()
    };
    assert_eq!(one(&slow, &wish(&[0, 1], true), "governor").0, Level::Warn);
    assert_eq!(one(&slow, &wish(&[0, 1], true), "cstates").0, Level::Warn);
}

#[test]
fn isolated_cpus_should_be_the_cores() {
    let kept = Facts { isolated: Some(vec![2, 3]), ..facts() };
    assert_eq!(one(&kept, &wish(&[2, 3], true), "isolated").0, Level::Ok);
    let (level, mend) = one(&kept, &wish(&[0, 1], false), "isolated");
    assert_eq!((level, mend.as_str()), (Level::Warn, "cores = [2, 3] in [server]"));
}

#[test]
fn two_cores_on_a_physical_one_are_amiss_when_listed() {
    let pairs = Facts {
        siblings: vec![(0, vec![0, 4]), (1, vec![1, 5]), (4, vec![0, 4]), (5, vec![1, 5])],
        ..facts()
    };
    assert_eq!(one(&pairs, &wish(&[0, 1, 4, 5], false), "smt").0, Level::Ok);
    let (level, mend) = one(&pairs, &wish(&[0, 1, 4, 5], true), "smt");
    assert_eq!((level, mend.as_str()), (Level::Warn, "cores = [0, 1]"));
}

#[test]
fn cores_on_several_nodes_are_told_with_those_of_one() {
    let (level, mend) = one(&facts(), &wish(&[1, 2, 3], true), "numa");
    assert_eq!((level, mend.as_str()), (Level::Warn, "cores = [1]   (those of node 0)"));
    assert_eq!(one(&facts(), &wish(&[2, 3], true), "numa").0, Level::Ok);
}
