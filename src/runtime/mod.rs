//! What threads share: the clock, published snapshots, metric cells, the log. Nothing here waits.

pub mod affinity;
pub mod cells;
pub mod clock;
pub mod files;
pub mod log;
pub mod nodes;
pub mod snapshot;
pub mod systemd;
pub mod tree;
