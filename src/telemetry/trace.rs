//! The spans of one request while it is served: what began when, and how it ended. Plain data of
//! the request's core; times are ns on the clock of the process.

use std::sync::Arc;

/// Most spans of a request: a few stages, and three for each of ten attempts. What is beyond is
/// left out.
const SPANS_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Trace {
    /// Of the whole trace.
    pub trace_id: u128,
    /// The caller's span.
    pub parent: Option<u64>,
    /// The span of the request itself.
    pub root: u64,
    /// The flags that replicas get.
    pub flags: u8,
    /// When the request's head was there.
    pub started_ns: u64,
    /// What lies below the root, in the order of their beginnings.
    pub spans: Vec<Span>,
    /// Where in `spans` the attempt is that is under way.
    attempt: Option<usize>,
}

/// A part of a request.
#[derive(Debug)]
pub struct Span {
    /// Its id; not 0.
    pub id: u64,
    /// The span that it is part of.
    pub parent: u64,
    /// Its name, but for an attempt's.
    pub name: &'static str,
    /// It began.
    pub started_ns: u64,
    /// It ended.
    pub ended_ns: u64,
    /// Of an attempt: where it went.
    pub to: Option<To>,
    /// Why it failed, in a word.
    pub error: Option<&'static str>,
}

/// Where an attempt went.
#[derive(Debug)]
pub struct To {
    /// Id of the replica.
    pub replica: Arc<str>,
    /// Its `host:port`.
    pub authority: Box<str>,
    /// Its first content was there.
    pub first_token_ns: Option<u64>,
}

impl Trace {
    /// A trace that begins at `started_ns`.
    #[must_use]
    pub fn new(
        trace_id: u128,
        parent: Option<u64>,
        root: u64,
        flags: u8,
        started_ns: u64,
    ) -> Trace {
        let spans = Vec::with_capacity(12);
        Trace { trace_id, parent, root, flags, started_ns, spans, attempt: None }
    }

    /// A stage is over.
    pub fn stage(&mut self, name: &'static str, started_ns: u64, ended_ns: u64) {
        self.push(self.root, name, started_ns, ended_ns);
    }

    /// A stage of the attempt is over.
    pub fn attempt_stage(&mut self, name: &'static str, started_ns: u64, ended_ns: u64) {
        self.push(self.attempt_id(), name, started_ns, ended_ns);
    }

    /// An attempt begins.
    pub fn attempt(&mut self, now_ns: u64, replica: Arc<str>, authority: &str) {
        self.attempt = self.push(self.root, "attempt", now_ns, now_ns);
        if let Some(span) = self.current() {
            span.to = Some(To { replica, authority: authority.into(), first_token_ns: None });
        }
    }

    /// The attempt is over; `error`: why it came to nothing.
    pub fn attempt_ended(&mut self, now_ns: u64, error: Option<&'static str>) {
        if let Some(span) = self.current() {
            span.ended_ns = now_ns;
            span.error = error;
        }
        self.attempt = None;
    }

    /// The first content is there.
    pub fn first_token(&mut self, now_ns: u64) {
        if let Some(to) = self.current().and_then(|span| span.to.as_mut()) {
            to.first_token_ns.get_or_insert(now_ns);
        }
    }

    /// The span that whoever is asked now is part of.
    #[must_use]
    pub fn attempt_id(&self) -> u64 {
        self.attempt.and_then(|at| self.spans.get(at)).map_or(self.root, |span| span.id)
    }

    fn current(&mut self) -> Option<&mut Span> {
        self.attempt.and_then(|at| self.spans.get_mut(at))
    }

    fn push(
        &mut self,
        parent: u64,
        name: &'static str,
        started_ns: u64,
        ended_ns: u64,
    ) -> Option<usize> {
        let at = self.spans.len();
        if at >= SPANS_MAX {
            return None;
        }
        let id = id_of(self.root, at as u64 + 1);
        self.spans.push(Span { id, parent, name, started_ns, ended_ns, to: None, error: None });
        Some(at)
    }
}

/// The `n`-th id after a random one: a step of SplitMix64 (Steele, Lea, Flood 2014), a bijection,
/// so that ids of one request differ.
fn id_of(root: u64, n: u64) -> u64 {
    let mut z = root.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_below_what_they_are_part_of() {
        let mut trace = Trace::new(1, None, 7, 1, 100);
        assert_eq!(trace.attempt_id(), 7, "no attempt yet");
        trace.stage("auth", 100, 110);
        trace.attempt(120, "a".into(), "h:1");
        let first = trace.attempt_id();
        trace.attempt_stage("connect", 120, 125);
        trace.attempt_ended(130, Some("refused"));
        trace.attempt(131, "b".into(), "h:2");
        trace.first_token(140);
        trace.first_token(150);
        trace.attempt_ended(160, None);
        trace.first_token(170);
        let told: Vec<_> = trace.spans.iter().map(|s| (s.name, s.parent, s.ended_ns)).collect();
        assert_eq!(
            told,
            [("auth", 7, 110), ("attempt", 7, 130), ("connect", first, 125), ("attempt", 7, 160)]
        );
        assert_eq!(trace.spans[1].error, Some("refused"));
        assert_eq!(trace.spans[3].to.as_ref().unwrap().first_token_ns, Some(140));
        let mut ids: Vec<_> = trace.spans.iter().map(|span| span.id).chain([7]).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 5);
    }

    #[test]
    fn spans_are_bounded() {
        let mut trace = Trace::new(1, None, 7, 1, 0);
        (0..1000).for_each(|n| trace.attempt(n, "a".into(), "h:1"));
        trace.attempt_ended(2000, None);
        assert_eq!(trace.spans.len(), SPANS_MAX);
        assert_eq!(trace.attempt_id(), 7);
    }
}
