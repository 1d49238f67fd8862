//! Whether the source of a pool's members is well, for the metrics page. The source's task on the
//! control thread writes it, anyone reads it; no I/O.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Of one pool; a pool without a source has none to tell.
#[derive(Debug, Default)]
pub struct SourceHealth {
    kind: OnceLock<&'static str>,
    is_well: AtomicBool,
}

impl SourceHealth {
    /// A source of this kind is followed from now on; it is not well before its first list.
    pub(super) fn begin(&self, kind: &'static str) {
        let _ = self.kind.set(kind);
    }

    pub(super) fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Relaxed);
    }

    /// The kind of source (`file`, `dns`, `kubernetes`), and whether its last answer was a list.
    #[must_use]
    pub fn told(&self) -> Option<(&'static str, bool)> {
        Some((self.kind.get()?, self.is_well.load(Relaxed)))
    }
}
