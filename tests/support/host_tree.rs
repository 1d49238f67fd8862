//! A host's `/proc` and `/sys` as one text: `== PATH` lines, each with a file below it. Lines
//! before the first are remarks.

use std::path::Path;

/// This repository's virtual machine, as recorded.
pub(crate) const VM: &str = include_str!("../data/hosts/vm-2-cpus.tree");
/// A server with two sockets on which much is amiss.
pub(crate) const SERVER: &str = include_str!("../data/hosts/server-2-sockets.tree");

/// Writes the files below `root`.
pub(crate) fn unpack(tree: &str, root: &Path) {
    for part in format!("\n{tree}").split("\n== ").skip(1) {
        let (path, text) = part.split_once('\n').unwrap_or((part, ""));
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        std::fs::write(path, format!("{text}\n")).expect("file");
    }
}
