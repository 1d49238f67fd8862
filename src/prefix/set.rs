//! A set of holders in one word: up to four numbers in order, or where its bits are.
//!
//! Pure values. Equal sets of up to four are equal words, so that a reader who goes along a chain
//! sees at one comparison that nothing has changed. The top byte is not the set's: the table
//! counts in it.

/// Bits of a holder's number, and so how many numbers there are.
const ID_BITS: u32 = 13;
/// Holders' numbers are below this.
pub(super) const IDS_MAX: usize = 1 << ID_BITS;
/// Holders in the word itself at most.
pub(super) const INLINE_MAX: u32 = 4;
/// The word's bits that are a set's.
pub(super) const SET_BITS: u64 = (1 << 56) - 1;

const TAG_SHIFT: u32 = INLINE_MAX * ID_BITS;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
const TAG_SPILLED: u64 = 5;

/// The word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    /// Nobody.
    pub(super) const EMPTY: Set = Set(0);

    /// From a stored word.
    #[inline]
    pub(super) fn of_bits(word: u64) -> Set {
        Set(word & SET_BITS)
    }

    /// The stored word, its top byte 0.
    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// The set whose bits are in `cell`.
    pub(super) fn spilled(cell: u32) -> Set {
        Set(TAG_SPILLED << TAG_SHIFT | u64::from(cell))
    }

    /// Where its bits are, when they are not here.
    #[inline]
    pub(super) fn cell(self) -> Option<u32> {
        (self.0 >> TAG_SHIFT == TAG_SPILLED).then_some(self.0 as u32)
    }

    /// Holders in the word: 0 when they are elsewhere.
    #[inline]
    pub(super) fn len(self) -> u32 {
        let tag = self.0 >> TAG_SHIFT;
        if tag == TAG_SPILLED { 0 } else { tag as u32 }
    }

    /// The holders in the word, ascending.
    #[inline]
    pub(super) fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.len()).map(move |at| (self.0 >> (at * ID_BITS) & ID_MASK) as u16)
    }

    /// Whether the word itself names `id`.
    #[inline]
    pub(super) fn names(self, id: u16) -> bool {
        self.ids().any(|held| held == id)
    }

    /// The set of these, as many as there is room for; ascending.
    pub(super) fn of(ids: impl Iterator<Item = u16>) -> Set {
        let (mut word, mut len) = (0, 0);
        for id in ids.take(INLINE_MAX as usize) {
            word |= u64::from(id) << (len * ID_BITS);
            len += 1;
        }
        Set(word | u64::from(len) << TAG_SHIFT)
    }

    /// With `id`, which it does not name yet; nothing when the word is full.
    pub(super) fn with(self, id: u16) -> Option<Set> {
        if self.len() == INLINE_MAX || self.cell().is_some() {
            return None;
        }
        let below = self.ids().filter(|&held| held < id);
        let above = self.ids().filter(|&held| held > id);
        Some(Set::of(below.chain([id]).chain(above)))
    }

    /// Without `id`.
    pub(super) fn without(self, id: u16) -> Set {
        Set::of(self.ids().filter(|&held| held != id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_four_in_order() {
        let mut set = Set::EMPTY;
        for id in [8191, 0, 77, 3] {
            set = set.with(id).unwrap();
        }
        assert_eq!(set.ids().collect::<Vec<_>>(), [0, 3, 77, 8191]);
        assert!(set.names(77) && !set.names(4) && set.cell().is_none());
        assert_eq!(set.with(5), None);
        assert_eq!(Set::of_bits(set.bits() | 0xff << 56), set);
        let less = set.without(3).without(0);
        assert_eq!(less, Set::EMPTY.with(77).unwrap().with(8191).unwrap());
        assert_eq!(less.without(77).without(8191), Set::EMPTY);
    }

    #[test]
    fn a_cell_is_told_from_holders() {
        let set = Set::spilled(u32::MAX);
        assert_eq!((set.cell(), set.len(), set.with(1)), (Some(u32::MAX), 0, None));
        assert_eq!(Set::EMPTY.cell(), None);
    }
}
