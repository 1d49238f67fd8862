//! `expedite doctor`: is this host ready for the gateway, and what mends it where it is not.
//!
//! Each area reads its facts from files below a root (`/`, or a recorded tree in tests) and judges
//! them apart from that, so that a judgement is a function of facts. What cannot be read, in a
//! container or without rights, is unknown and never a failure. Runs on the calling thread, changes
//! nothing but for one file that it creates beside the usage log and removes. Nothing here panics
//! on what a file says.
//!
//! The names of findings are those of the settings of `tuning/host`, where there is one.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod clock;
mod container;
mod cpu;
mod kernel;
mod memory;
mod network;
mod place;
mod report;
mod sockets;
#[cfg(test)]
mod tests;

use crate::config::{Config, Cores, Driver};
use crate::net;
use crate::runtime::nodes;

pub use crate::runtime::tree::Tree;
pub use report::Report;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It cannot be seen from here.
    Unknown,
    /// The gateway runs, but slower, or for fewer clients.
    Warn,
    /// The gateway does not start, or not as configured.
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about, in one word.
    pub area: &'static str,
    /// Name of the setting, unique in a report but for a network card's, which name the card.
    pub name: String,
    /// How it stands.
    pub level: Level,
    /// What was found, and what it means.
    pub says: String,
    /// The command or change that mends it; there is one whenever something is amiss.
    pub mend: Option<String>,
}

/// The findings of one area under way.
struct Findings {
    area: &'static str,
    all: Vec<Finding>,
}

impl Findings {
    fn of(area: &'static str) -> Findings {
        Findings { area, all: Vec::new() }
    }

    fn add(&mut self, name: &str, level: Level, says: impl Into<String>, mend: Option<String>) {
        let (area, name, says) = (self.area, name.to_owned(), says.into());
        self.all.push(Finding { area, name, level, says, mend });
    }

    fn ok(&mut self, name: &str, says: impl Into<String>) {
        self.add(name, Level::Ok, says, None);
    }

    fn unknown(&mut self, name: &str, says: impl Into<String>) {
        self.add(name, Level::Unknown, says, None);
    }

    fn warn(&mut self, name: &str, says: impl Into<String>, mend: impl Into<String>) {
        self.add(name, Level::Warn, says, Some(mend.into()));
    }

    fn fail(&mut self, name: &str, says: impl Into<String>, mend: impl Into<String>) {
        self.add(name, Level::Fail, says, Some(mend.into()));
    }
}

/// What the gateway is to run on.
#[derive(Clone, Debug)]
struct Wish {
    /// CPUs of its cores.
    cores: Vec<usize>,
    /// The configuration lists them.
    listed: bool,
    driver: Driver,
}

impl Wish {
    /// By the configuration; without one, what the gateway takes of itself.
    fn of(tree: &Tree, config: Option<&Config>, allowed: &[usize]) -> Wish {
        let driver = config.map_or(Driver::Auto, |config| config.server.driver);
        match config.map(|config| &config.server.cores) {
            Some(Cores::List(cores)) => Wish { cores: cores.clone(), listed: true, driver },
            Some(Cores::Auto) | None => {
                Wish { cores: nodes::auto(tree, allowed).cpus, listed: false, driver }
            }
        }
    }
}

/// Examines the host below `tree`'s root, and for a configuration the place where it would run.
pub fn examine(tree: &Tree, config: Option<&Config>) -> Report {
    let probe = net::ring_features().map_err(|error| error.to_string());
    let mut all = host(tree, config, probe, clock::steering());
    all.extend(config.map(place::findings).unwrap_or_default());
    Report::of(all)
}

/// What the files below the root and two probes tell.
fn host(
    tree: &Tree,
    config: Option<&Config>,
    probe: Result<Vec<&'static str>, String>,
    steering: Option<f64>,
) -> Vec<Finding> {
    let allowed = cpu::allowed(tree);
    let wish = Wish::of(tree, config, &allowed);
    let mut all = kernel::judge(&kernel::Facts::read(tree, probe), &wish);
    all.extend(clock::judge(&clock::Facts::read(tree, steering)));
    all.extend(sockets::judge(&sockets::Facts::read(tree)));
    all.extend(network::judge(&network::Facts::read(tree), &wish));
    all.extend(cpu::judge(&cpu::Facts::read(tree, allowed, &wish), &wish));
    all.extend(memory::judge(&memory::Facts::read(tree)));
    all.extend(container::judge(&container::Facts::read(tree), &wish));
    all
}
