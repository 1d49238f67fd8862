//! What operators stand on: `expedite doctor`, `tuning/host`, the dashboard and the alerts, the
//! files of `scripts/deploy`, the status page, profiles, the admin secret, each held against what
//! the program really does.

#[path = "../support/command.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
mod debug;
mod deploy;
mod doctor;
mod ends;
mod exposition;
#[path = "../support/host_tree.rs"]
mod host_tree;
mod observability;
#[allow(dead_code)] // Each test uses its part.
#[path = "../support/service.rs"]
mod service;
mod starved;
mod status;
mod tuning;

use std::path::{Path, PathBuf};

/// A file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The text of a file of the repository.
fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).expect(path)
}
