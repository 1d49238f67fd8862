//! What threads share: the clock, published snapshots, metric cells, the log. Nothing here waits.

pub mod affinity;
pub mod cells;
pub mod clock;
pub mod descriptors;
pub mod files;
pub mod log;
pub mod memory;
pub mod nodes;
pub mod seldom;
pub mod snapshot;
pub mod systemd;
pub mod tree;

/// Recorded hosts, for the tests of what reads them.
#[cfg(test)]
#[path = "../../tests/support/host_tree.rs"]
pub(crate) mod host_tree;
