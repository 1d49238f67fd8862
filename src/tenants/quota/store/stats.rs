//! What goes wrong with a store, and how often: one set of cells a core.

use crate::runtime::cells::{Counter, Gauge, Histogram};

/// Why the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No answer in time.
    Timeout,
    /// The connection ended.
    Closed,
    /// No connection to be had, or nobody knows where the store is.
    Connect,
    /// The answer is not a store's.
    Garbage,
    /// The user or password is not accepted, or may not do this.
    Auth,
    /// A replica: the master is elsewhere.
    ReadOnly,
    /// No memory, or no disk, left to write.
    Full,
    /// It reads its data, or is busy with somebody's script.
    Loading,
    /// Somebody else has put another kind of value under our key.
    WrongType,
    /// The cluster does not serve the slot.
    Cluster,
    /// Anything else.
    Other,
}

impl Trouble {
    /// All, with the label of the metric and words for the log.
    pub const ALL: [(Trouble, &'static str, &'static str); 11] = [
        (Trouble::Timeout, "timeout", "it does not answer in time"),
        (Trouble::Closed, "closed", "it closed the connection"),
        (Trouble::Connect, "connect", "it cannot be reached"),
        (Trouble::Garbage, "garbage", "what answers is not a store"),
        (Trouble::Auth, "auth", "it does not accept the user or password"),
        (Trouble::ReadOnly, "readonly", "it is a replica"),
        (Trouble::Full, "full", "it cannot write"),
        (Trouble::Loading, "loading", "it is loading or busy"),
        (Trouble::WrongType, "wrongtype", "a key of ours holds something else"),
        (Trouble::Cluster, "cluster", "the cluster does not serve the slot"),
        (Trouble::Other, "other", "it answered with an error"),
    ];

    /// What an error reply means, by its first word.
    pub(super) fn of_error(text: &str) -> Trouble {
        match text.split(' ').next().unwrap_or_default() {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Trouble::Auth,
            "READONLY" => Trouble::ReadOnly,
            "OOM" | "MISCONF" | "NOREPLICAS" => Trouble::Full,
            "LOADING" | "BUSY" => Trouble::Loading,
            "WRONGTYPE" => Trouble::WrongType,
            "CLUSTERDOWN" | "MASTERDOWN" | "CROSSSLOT" => Trouble::Cluster,
            _ => Trouble::Other,
        }
    }

    /// Whether all decisions meet it, not only those of one account.
    pub(super) fn of_store(self) -> bool {
        !matches!(self, Trouble::WrongType | Trouble::Other)
    }

    pub(super) fn words(self) -> &'static str {
        Trouble::ALL.get(self as usize).map_or("", |(_, _, words)| words)
    }
}

/// Cells of one core.
#[derive(Debug, Default)]
pub struct Stats {
    /// 1: decisions are made by the store or from what it gave ahead.
    pub up: Gauge,
    /// Round trips of decisions.
    pub seconds: Histogram,
    /// Decisions by round trip.
    pub asked: Counter,
    /// Decisions from what was taken ahead.
    pub ahead: Counter,
    /// Decisions while the store was away.
    pub alone: Counter,
    /// Settlements that could not be told.
    pub lost: Counter,
    errors: [Counter; 11],
}

impl Stats {
    /// How often that was so.
    #[must_use]
    pub fn errors(&self, trouble: Trouble) -> &Counter {
        let [
            timeout,
            closed,
            connect,
            garbage,
            auth,
            readonly,
            full,
            loading,
            kind,
            cluster,
            other,
        ] = &self.errors;
        match trouble {
            Trouble::Timeout => timeout,
            Trouble::Closed => closed,
            Trouble::Connect => connect,
            Trouble::Garbage => garbage,
            Trouble::Auth => auth,
            Trouble::ReadOnly => readonly,
            Trouble::Full => full,
            Trouble::Loading => loading,
            Trouble::WrongType => kind,
            Trouble::Cluster => cluster,
            Trouble::Other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_in_their_order() {
        for (n, (trouble, _, words)) in Trouble::ALL.into_iter().enumerate() {
            assert_eq!((trouble as usize, trouble.words()), (n, words));
        }
        let code = |text| Trouble::of_error(text);
        assert_eq!(code("READONLY You can't write"), Trouble::ReadOnly);
        assert_eq!(code("OOM command not allowed"), Trouble::Full);
        assert_eq!(code("ERR user_script:1"), Trouble::Other);
        assert!(!code("WRONGTYPE Operation").of_store());
    }
}
