//! `expedite doctor` as it is run.

use std::net::TcpListener;

use serde_json::Value;

use crate::command::expedite;
use crate::host_tree::{SERVER, VM, unpack};

/// Exit code and report of a run on this tree, with this configuration if any.
fn run(tree: &str, config: Option<&str>) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    unpack(tree, &root);
    let root = root.display().to_string();
    let mut args = vec!["doctor", "--json", "--root", &root];
    if let Some(text) = config {
        std::fs::write(folder.path().join("gateway.toml"), text).unwrap();
        args.extend(["--config", "gateway.toml"]);
    }
    let output = expedite(folder.path(), &args, "");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), report)
}

/// How a finding stands.
fn level(report: &Value, name: &str) -> String {
    let all = report["findings"].as_array().expect("findings");
    let found = all.iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report:#}"))["level"].as_str().unwrap().to_owned()
}

#[test]
fn warnings_alone_are_no_failure() {
    let (code, report) = run(VM, None);
    assert_eq!((code, report["fail"].as_u64()), (0, Some(0)));
    assert_eq!(level(&report, "descriptors"), "warn");
}

#[test]
fn an_empty_host_is_unknown_and_no_failure() {
    let (code, report) = run("", None);
    assert_eq!((code, report["fail"].as_u64()), (0, Some(0)));
    assert!(report["unknown"].as_u64().unwrap() > 15, "{report:#}");
}

#[test]
fn what_a_configuration_needs_is_looked_for() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let config = format!(
        "[server]\nlisten = [\"{taken}\"]\nadmin = \"127.0.0.1:0\"\ncores = [99]\n\
         [[pool]]\nname = \"p\"\nreplicas = [{{ url = \"http://{taken}\", id = \"r\" }}]\n\
         tokenizer = \"nowhere\"\n[usage]\npath = \"no/folder/usage.jsonl\"\n",
    );
    let (code, report) = run(SERVER, Some(&config));
    assert_eq!(code, 1);
    for name in [&format!("listen {taken}"), "cores", "tokenizer p", "usage"] {
        assert_eq!(level(&report, name), "fail", "{name}");
    }
    assert_eq!(level(&report, "admin 127.0.0.1:0"), "ok");
    assert_eq!(level(&report, "replica r"), "ok");
    assert_eq!(level(&report, "smt"), "unknown", "CPU 99 is not in the tree");
}

#[test]
fn a_wrong_configuration_is_wrong_usage() {
    assert_eq!(run("", Some("[server]\nlissten = []\n")).0, 2);
}
