//! Whether the source of a pool's members is well, for the metrics page. The source's task on the
//! control thread writes it, the page reads it; no I/O.

use std::sync::{Mutex, PoisonError};

/// Of one pool.
#[derive(Debug, Default)]
pub struct SourceHealth(Mutex<Option<(&'static str, bool)>>);

impl SourceHealth {
    /// From now on a source of this kind is followed, which is not well before its first list; or
    /// none is.
    pub(super) fn begin(&self, kind: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = kind.map(|kind| (kind, false));
    }

    pub(super) fn set_well(&self, is_well: bool) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, well)) = &mut *told {
            *well = is_well;
        }
    }

    /// The kind of source (`file`, `dns`, `kubernetes`), and whether its last answer was a list.
    #[must_use]
    pub fn told(&self) -> Option<(&'static str, bool)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_not_well_before_its_first_list_nor_when_another_takes_its_place() {
        let health = SourceHealth::default();
        health.set_well(true);
        assert_eq!(health.told(), None);
        health.begin(Some("file"));
        assert_eq!(health.told(), Some(("file", false)));
        health.set_well(true);
        assert_eq!(health.told(), Some(("file", true)));
        health.begin(Some("dns"));
        assert_eq!(health.told(), Some(("dns", false)));
        health.begin(None);
        assert_eq!(health.told(), None);
    }
}
