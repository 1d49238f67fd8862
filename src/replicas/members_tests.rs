//! Lists that come, go and clash.

use super::*;

fn replica(id: &str, port: u16) -> config::Replica {
    config::Replica {
        url: format!("http://10.0.0.1:{port}"),
        host: "10.0.0.1".to_owned(),
        port,
        id: id.to_owned(),
        zone: None,
        weight: 1.0,
        server_name: None,
    }
}

fn list(ports: &[u16]) -> Vec<Listed> {
    ports.iter().map(|port| Listed::new(replica(&format!("r{port}"), *port))).collect()
}

fn two_pools() -> Members {
    Members {
        lists: vec![BTreeMap::new(), BTreeMap::new()],
        current: vec![Vec::new(); 2],
        ..Members::default()
    }
}

/// Ids of a pool; those that drain in brackets.
fn shown(members: &Members, pool: usize) -> Vec<String> {
    let name = |member: &Member| match member.draining {
        true => format!("({})", member.replica.id),
        false => member.replica.id.clone(),
    };
    members.current()[pool].iter().map(name).collect()
}

#[test]
fn a_pool_is_the_union_of_its_sources() {
    let mut members = two_pools();
    members.listed(0, Source::Config, list(&[1, 2]));
    members.listed(0, Source::Discovered, list(&[2, 3]));
    assert_eq!(members.settle(|_| false), (true, Vec::new()));
    assert_eq!(shown(&members, 0), ["r1", "r2", "r3"]);
    assert_eq!(members.current()[0][1].source, Source::Config);
    assert_eq!(members.settle(|_| false), (false, Vec::new()), "nothing new");
}

#[test]
fn who_is_no_longer_listed_drains_and_leaves() {
    let mut members = two_pools();
    members.listed(0, Source::Discovered, list(&[1, 2]));
    members.settle(|_| true);
    members.listed(0, Source::Discovered, list(&[2]));
    assert!(members.settle(|_| true).0);
    assert_eq!(shown(&members, 0), ["r2", "(r1)"]);
    members.listed(0, Source::Discovered, list(&[1, 2]));
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["r1", "r2"], "listed again");
    members.listed(0, Source::Discovered, Vec::new());
    members.settle(|id| id == "r2");
    assert_eq!(shown(&members, 0), ["(r2)"]);
    assert!(members.settle(|_| false).0);
    assert!(shown(&members, 0).is_empty());
}

#[test]
fn a_terminating_replica_drains_as_long_as_it_is_listed() {
    let mut members = two_pools();
    let ending = Listed { terminating: true, ..Listed::new(replica("r1", 1)) };
    members.listed(0, Source::Discovered, vec![ending]);
    members.settle(|_| false);
    assert_eq!(shown(&members, 0), ["(r1)"]);
}

#[test]
fn clashes_are_refused_and_said_once() {
    let mut members = two_pools();
    members.listed(0, Source::Config, list(&[1]));
    members.listed(1, Source::Config, list(&[1, 2]));
    let (_, said) = members.settle(|_| false);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((shown(&members, 0).len(), shown(&members, 1)), (1, vec!["r2".to_owned()]));
    assert!(members.settle(|_| false).1.is_empty(), "said already");
    members.listed(1, Source::Discovered, vec![Listed::new(replica("r2", 9))]);
    assert_eq!(members.settle(|_| false).1.len(), 1, "one id, two addresses");
    assert_eq!(shown(&members, 1), ["r2"]);
}

#[test]
fn another_address_under_the_same_id_takes_its_place() {
    let mut members = two_pools();
    members.listed(0, Source::Discovered, vec![Listed::new(replica("a", 1))]);
    members.settle(|_| true);
    members.listed(0, Source::Discovered, vec![Listed::new(replica("a", 2))]);
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["a"]);
    assert_eq!(members.current()[0][0].replica.port, 2);
}

#[test]
fn the_operator_adds_drains_and_takes_back() {
    let mut members = two_pools();
    members.listed(0, Source::Config, list(&[1]));
    members.settle(|_| true);
    assert_eq!(members.add(0, replica("x", 7)), Ok(()));
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["r1", "x"]);
    assert!(matches!(members.add(0, replica("x", 7)), Err(Refused::Taken(_))));
    assert!(matches!(members.add(1, replica("y", 7)), Err(Refused::Taken(_))));
    assert_eq!(members.remove("nobody", false), Err(Refused::NoReplica));
    // A configured one: the removal holds against its source.
    members.remove("r1", false).expect("there");
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["(r1)", "x"]);
    members.settle(|_| false);
    assert_eq!(shown(&members, 0), ["x"]);
    members.settle(|_| false);
    assert_eq!(members.add(0, replica("r1", 1)), Ok(()));
    members.settle(|_| false);
    assert_eq!(shown(&members, 0), ["r1", "x"]);
}

#[test]
fn the_operators_own_leaves_at_once_or_drained() {
    let mut members = two_pools();
    for port in [1, 2] {
        members.add(0, replica(&format!("r{port}"), port)).expect("added");
    }
    members.settle(|_| true);
    members.remove("r1", true).expect("there");
    members.remove("r2", false).expect("there");
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["(r2)"]);
    assert_eq!(members.add(0, replica("r2", 2)), Ok(()), "taken back while it drains");
    members.settle(|_| true);
    assert_eq!(shown(&members, 0), ["r2"]);
}

#[test]
fn a_removal_is_forgotten_when_its_source_lets_go() {
    let mut members = two_pools();
    members.listed(0, Source::Discovered, list(&[1]));
    members.settle(|_| false);
    members.remove("r1", true).expect("there");
    members.settle(|_| false);
    assert!(shown(&members, 0).is_empty());
    members.listed(0, Source::Discovered, Vec::new());
    members.settle(|_| false);
    members.settle(|_| false);
    members.listed(0, Source::Discovered, list(&[1]));
    members.settle(|_| false);
    assert_eq!(shown(&members, 0), ["r1"]);
}
