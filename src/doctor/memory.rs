//! Memory: large pages behind our back, and swap.

use super::{Finding, Findings};
use crate::runtime::tree::Tree;

const THP: &str = "sys/kernel/mm/transparent_hugepage/enabled";
/// Above this the kernel swaps a process out while it still has page cache to give up.
const SWAPPINESS: u64 = 10;

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Swap areas; `None`: cannot be read.
    pub swaps: Option<usize>,
    pub swappiness: Option<u64>,
}

impl Facts {
    pub(super) fn read(tree: &Tree) -> Facts {
        let chosen = |text: String| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
        Facts {
            huge_pages: tree.text(THP).and_then(chosen),
            // The first line is the heading.
            swaps: tree.text("proc/swaps").map(|text| text.lines().skip(1).count()),
            swappiness: tree.number("proc/sys/vm/swappiness"),
        }
    }
}

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::of("memory");
    match facts.huge_pages.as_deref() {
        Some("always") => found.warn(
            "thp",
            "always: small buffers take 2 MiB pages, and joining them stalls a core",
            format!("echo madvise > /{THP}"),
        ),
        Some(mode) => found.ok("thp", mode),
        None => found.unknown("thp", "cannot be read"),
    }
    match (facts.swaps, facts.swappiness) {
        (Some(0), _) => found.ok("swap", "none"),
        (Some(_), Some(swappiness)) if swappiness <= SWAPPINESS => {
            found.ok("swap", format!("there is some, and vm.swappiness is {swappiness}"));
        }
        (Some(_), _) => found.warn(
            "swap",
            "there is some: a core that waits for a page keeps all its streams waiting",
            "sysctl -w vm.swappiness=1   (or swapoff -a)",
        ),
        (None, _) => found.unknown("swap", "cannot be read"),
    }
    found.all
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn levels(
        huge_pages: Option<&str>,
        swaps: Option<usize>,
        swappiness: Option<u64>,
    ) -> [Level; 2] {
        let huge_pages = huge_pages.map(str::to_owned);
        let all = judge(&Facts { huge_pages, swaps, swappiness });
        [all[0].level, all[1].level]
    }

    #[test]
    fn large_pages_and_swap_have_their_bounds() {
        assert_eq!(levels(Some("madvise"), Some(0), Some(60)), [Level::Ok, Level::Ok]);
        assert_eq!(levels(Some("always"), Some(1), Some(60)), [Level::Warn, Level::Warn]);
        assert_eq!(levels(Some("never"), Some(1), Some(1)), [Level::Ok, Level::Ok]);
        assert_eq!(levels(None, None, None), [Level::Unknown, Level::Unknown]);
    }
}
