//! `tuning/host` on a recorded tree: dry runs change nothing, what it applies satisfies the doctor,
//! and undo takes it back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use expedite::config::Config;
use expedite::doctor::{Level, Tree, examine};

use crate::host_tree::{SERVER, unpack};
use crate::repository;

/// Runs the script on a tree; its output and exit code.
fn host(root: &Path, args: &[&str]) -> (String, i32) {
    let mut command = Command::new("bash");
    command.arg(repository("tuning/host")).args(args);
    if !args.contains(&"list") {
        command.arg("--root").arg(root);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said + &String::from_utf8_lossy(&output.stderr), output.status.code().unwrap())
}

/// Every file below a folder, by path.
fn files(root: &Path) -> BTreeMap<String, String> {
    let (mut all, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                let name = path.strip_prefix(root).unwrap().display().to_string();
                all.insert(name, std::fs::read_to_string(path).unwrap().trim().to_owned());
            }
        }
    }
    all
}

/// Names of the settings.
fn settings() -> Vec<String> {
    let (list, code) = host(Path::new(""), &["list"]);
    assert_eq!(code, 0, "{list}");
    list.lines().map(|line| line.split('|').next().unwrap().to_owned()).collect()
}

/// What the doctor says of the tree for a gateway on the four CPUs of node 1, by setting.
fn doctor(root: &Path) -> BTreeMap<String, Level> {
    let text = "[server]\ncores = [4, 5, 6, 7]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"none\"\n\
                [[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
                [usage]\npath = \"none\"\n";
    let config = Config::from_text("test.toml", text).unwrap();
    let findings = examine(&Tree::at(root), Some(&config), None).findings;
    let name = |name: &str| name.split(' ').next().unwrap().to_owned();
    findings.into_iter().map(|finding| (name(&finding.name), finding.level)).collect()
}

#[test]
fn what_is_applied_satisfies_the_doctor_and_can_be_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    unpack(SERVER, root);
    let before = files(root);
    let (said, code) = host(root, &["show", "--cores", "4-7"]);
    assert!(code == 0 && said.contains("128, should be 4096"), "{said}");
    let (said, code) = host(root, &["apply", "--cores", "4-7"]);
    assert!(code == 0 && said.contains("nothing was changed"), "{said}");
    assert_eq!(files(root), before, "a dry run changes nothing");

    let (said, code) = host(root, &["apply", "--yes", "--cores", "4-7"]);
    assert_eq!(code, 0, "{said}");
    let levels = doctor(root);
    // The limits of login sessions are not those of a process that runs already.
    for name in settings().iter().filter(|name| !["descriptors", "memlock"].contains(&&***name)) {
        assert!(levels[name] < Level::Warn, "{name} is still amiss: {said}");
    }
    let (said, _) = host(root, &["apply", "--cores", "4-7"]);
    assert!(!said.contains(", should be"), "a second run finds all as it should be: {said}");

    let (said, code) = host(root, &["undo"]);
    assert!(code == 0 && said.contains("would be: 128"), "{said}");
    let (said, code) = host(root, &["undo", "--yes"]);
    assert_eq!(code, 0, "{said}");
    let mut after = files(root);
    // The kernel writes all choices; a plain file keeps the one that was put back.
    let choices = "sys/kernel/mm/transparent_hugepage/enabled".to_owned();
    assert_eq!(after.insert(choices.clone(), before[&choices].clone()), Some("always".to_owned()));
    assert_eq!(after, before);
}

#[test]
fn every_setting_is_one_that_the_doctor_knows_and_the_guide_explains() {
    let folder = tempfile::tempdir().unwrap();
    unpack(SERVER, folder.path());
    let (levels, guide) = (doctor(folder.path()), crate::text("tuning/README.md"));
    for name in settings() {
        assert!(levels.contains_key(&name), "{name}");
        assert!(guide.contains(&format!("\n### {name}\n")), "{name}");
    }
}

#[test]
fn wrong_usage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["apply", "no-such"][..],
        &["apply", "--cores", "x"],
        &["show", "--nic", "none0"],
        &["show", "--what"],
        &["do"],
    ] {
        let (said, code) = host(folder.path(), args);
        assert_eq!(code, 2, "{args:?}: {said}");
    }
}
