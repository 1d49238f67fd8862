//! How much memory this process may have.

use super::tree::{Tree, field};

/// Folders of control groups (v2) that this process may be in, the innermost first.
#[must_use]
pub fn group_folders(tree: &Tree) -> Vec<String> {
    let groups = tree.text("proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.map(|path| format!("sys/fs/cgroup{}", path.trim_end_matches('/')));
    // With a namespace of its own, a container's group is the root of what it sees.
    own.into_iter().chain(["sys/fs/cgroup".to_owned()]).collect()
}

/// The least of the machine's memory, the limits of the control groups and that of the address
/// space, in bytes; `None`: nothing is known.
#[must_use]
pub fn limit_bytes(tree: &Tree) -> Option<u64> {
    let text = tree.text("proc/meminfo").unwrap_or_default();
    let of_machine = field(&text, "MemTotal")
        .and_then(|value| value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024));
    let limits = tree.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
    let of_process = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let of_groups = group_folders(tree);
    let of_groups = of_groups.iter().filter_map(|at| tree.number(&format!("{at}/memory.max")));
    of_groups.chain(of_machine).chain(of_process).min()
}

#[cfg(test)]
mod tests {
    use super::super::host_tree::unpack;
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let folder = tempfile::tempdir().expect("folder");
        let limit = |files: &str| {
            unpack(files, folder.path());
            limit_bytes(&Tree::at(folder.path()))
        };
        assert_eq!(limit(""), None);
        let memory = "== proc/meminfo\nMemTotal:       1024 kB\nMemFree: 3 kB\n";
        assert_eq!(limit(memory), Some(1 << 20));
        let groups = "== proc/self/cgroup\n0::/a/b\n== sys/fs/cgroup/a/b/memory.max\nmax\n\
                      == sys/fs/cgroup/memory.max\n900000\n";
        assert_eq!(limit(groups), Some(900_000));
        assert_eq!(limit("== sys/fs/cgroup/a/b/memory.max\n800000\n"), Some(800_000));
        let limits = "== proc/self/limits\nMax cpu time  unlimited unlimited seconds\n\
                      Max address space         700000      unlimited   bytes\n";
        assert_eq!(limit(limits), Some(700_000));
        assert_eq!(limit(&limits.replace("700000", "unlimited")), Some(800_000));
    }
}
