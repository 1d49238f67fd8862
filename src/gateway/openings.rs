//! The events that open a stream, by attempt: what one replica's stream has opened for the client
//! is not opened again by the next one's. On the request's core; knows no bytes, only what events
//! are.

use crate::openai::Opener;

/// Most openers before the content; what comes after them is content. Replicas send up to four.
const OPENINGS_MAX: usize = 64;

/// What opens one attempt's stream.
#[derive(Default)]
pub(super) struct Openings {
    /// Of earlier attempts, not yet repeated by this one.
    unrepeated: Vec<Opener>,
    /// Passed on since they were last taken.
    new: Vec<Opener>,
    passed: usize,
}

/// What becomes of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// The client has it.
    Again,
    /// It is passed on.
    New,
    /// It is passed on, and nothing can be asked elsewhere after it.
    OverLimit,
    /// The client was told of something else in its place.
    Unlike,
}

impl Openings {
    /// Of a stream whose client has these already.
    pub(super) fn behind(earlier: &[Opener]) -> Openings {
        Openings { unrepeated: earlier.to_vec(), new: Vec::new(), passed: earlier.len() }
    }

    /// An opening comes, before any content.
    pub(super) fn judge(&mut self, it: Opener) -> Opened {
        if let Some(at) = self.unrepeated.iter().position(|earlier| *earlier == it) {
            self.unrepeated.remove(at);
            return Opened::Again;
        }
        let in_place = |earlier: &Opener| earlier.what == it.what && earlier.place == it.place;
        if it.is_structure() && self.unrepeated.iter().any(in_place) {
            return Opened::Unlike;
        }
        if self.passed >= OPENINGS_MAX {
            return Opened::OverLimit;
        }
        self.passed += 1;
        self.new.push(it);
        Opened::New
    }

    /// Content may come: everything that the client was told of is there for it to go into.
    pub(super) fn is_even(&self) -> bool {
        !self.unrepeated.iter().any(Opener::is_structure)
    }

    /// Moves what was passed on to `opened`, which outlives the attempt.
    pub(super) fn take(&mut self, opened: &mut Vec<Opener>) {
        opened.append(&mut self.new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(what: &'static str, of: &'static str, index: u32) -> Opener {
        Opener { what, of, place: [index, 0] }
    }

    #[test]
    fn each_is_passed_on_once_whatever_the_order() {
        let (created, item) = (opening("created", "", 0), opening("item", "message", 0));
        let (ping, second) = (opening("ping", "", 0), opening("item", "message", 1));
        let mut first = Openings::default();
        assert_eq!([created, ping].map(|it| first.judge(it)), [Opened::New; 2]);
        let mut opened = Vec::new();
        first.take(&mut opened);
        // What was not sent is not taken, and what was passed on twice is left out twice.
        first.judge(item);
        assert_eq!(opened, [created, ping]);
        let mut next = Openings::behind(&opened);
        let judged = [item, ping, created, ping, second].map(|it| next.judge(it));
        use Opened::{Again, New};
        assert_eq!(judged, [New, Again, Again, New, New]);
        assert!(next.is_even());
        next.take(&mut opened);
        assert_eq!(opened, [created, ping, item, ping, second]);
    }

    #[test]
    fn what_was_opened_must_be_opened_the_same_way() {
        let text = opening("block", "text", 0);
        let mut next = Openings::behind(&[text]);
        assert!(!next.is_even(), "no content before it");
        assert_eq!(next.judge(opening("block", "thinking", 0)), Opened::Unlike);
        assert_eq!(next.judge(text), Opened::Again);
        assert!(next.is_even());
        assert!(Openings::behind(&[opening("ping", "", 0)]).is_even(), "it carries nothing");
    }

    #[test]
    fn endless_openings_are_no_longer_kept() {
        let mut openings = Openings::default();
        for index in 0..64 {
            assert_eq!(openings.judge(opening("block", "text", index)), Opened::New);
        }
        assert_eq!(openings.judge(opening("block", "text", 64)), Opened::OverLimit);
    }
}
