//! What is said to the store and what it answers: the scripts, their arguments, their replies.
//!
//! One script is one decision; the store runs it as a whole. Amounts go over the wire in
//! thousandths of a token, because a rate in tokens a second gives whole thousandths in whole
//! milliseconds: nothing is ever rounded.

use std::fmt::Write as _;

use redis::{Cmd, Script, cmd};

use super::advance::{Grant, Message};
use super::resp::Reply;
use super::who::Who;
use crate::tenants::quota::{Ask, Limits};

const MILLI: u64 = 1_000;
/// The key of the gateways that are alive.
const GATEWAYS: &str = "expedite:gateways";

/// The scripts, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Reserve,
    Settle,
    Renew,
    Advance,
    Beat,
    Look,
}

macro_rules! script {
    ($file:literal) => {
        concat!(include_str!("lua/common.lua"), include_str!(concat!("lua/", $file)))
    };
}

const SOURCES: [&str; 6] = [
    script!("reserve.lua"),
    script!("settle.lua"),
    script!("renew.lua"),
    script!("advance.lua"),
    script!("beat.lua"),
    script!("look.lua"),
];

/// How the scripts are called: by hash, or by source where the store does not know the hash.
pub struct Scripts {
    hashes: [String; 6],
    lease_ms: u64,
    /// Instead of the store's own time: for tests that travel in it.
    now_ms: std::cell::Cell<Option<u64>>,
}

impl Scripts {
    /// For leases of `lease_ms`.
    pub fn new(lease_ms: u64) -> Scripts {
        let hashes = SOURCES.map(|source| Script::new(source).get_hash().to_owned());
        Scripts { hashes, lease_ms, now_ms: std::cell::Cell::new(None) }
    }

    /// Every call from now on is made as at this time.
    pub fn at(&self, now_ms: u64) {
        self.now_ms.set(Some(now_ms));
    }

    /// What makes a store know them.
    pub fn load(&self) -> impl Iterator<Item = Cmd> {
        SOURCES.into_iter().map(|source| cmd("SCRIPT").arg("LOAD").arg(source).to_owned())
    }

    fn call(&self, which: Which, by_source: bool, keys: &[String]) -> Cmd {
        let n = which as usize;
        let mut call = cmd(if by_source { "EVAL" } else { "EVALSHA" });
        match by_source {
            true => call.arg(SOURCES.get(n)),
            false => call.arg(self.hashes.get(n)),
        };
        call.arg(keys.len()).arg(keys).arg(self.lease_ms);
        match self.now_ms.get() {
            Some(now_ms) => call.arg(now_ms),
            None => call.arg(""),
        };
        call
    }

    /// A decision.
    pub fn reserve(&self, by_source: bool, who: &Who, ask: &Ask) -> Cmd {
        let mut call = self.call(Which::Reserve, by_source, &who.keys);
        call.arg(member(ask)).arg(milli(ask.tokens)).arg(ask.sequences);
        who.limits().for_each(|limits| with_most(&mut call, limits));
        call
    }

    /// The end of a request that the store let in. `guard`: something of it may still be under way.
    pub fn settle(&self, by_source: bool, who: &Who, ask: &Ask, used: u64, guard: bool) -> Cmd {
        let mut call = self.call(Which::Settle, by_source, &who.keys);
        call.arg(member(ask)).arg(milli(used)).arg(if guard { "1" } else { "" });
        who.limits().for_each(|limits| with(&mut call, limits));
        call
    }

    /// They go on.
    pub fn renew(&self, by_source: bool, who: &Who, asks: &[Ask]) -> Cmd {
        let mut call = self.call(Which::Renew, by_source, &who.keys);
        call.arg(who.accounts.len());
        who.limits().for_each(|limits| with(&mut call, limits));
        for ask in asks {
            call.arg(member(ask));
        }
        call
    }

    /// What a gateway, known to the accounts as `name`, has taken ahead.
    pub fn advance(&self, by_source: bool, who: &Who, name: &str, it: &Message) -> Cmd {
        let mut call = self.call(Which::Advance, by_source, &who.keys);
        call.arg(name).arg(it.number).arg(if it.again { "1" } else { "" });
        for tokens in [it.give, it.over, it.debt, it.free, it.ask, it.least] {
            call.arg(milli(tokens));
        }
        call.arg(it.held).arg(it.wanted);
        who.limits().for_each(|limits| with_most(&mut call, limits));
        call
    }

    /// This gateway lives, or takes its leave.
    pub(super) fn beat(&self, by_source: bool, gateway: u64, bye: bool) -> Cmd {
        let mut call = self.call(Which::Beat, by_source, &[GATEWAYS.to_owned()]);
        call.arg(format!("{gateway:016x}"));
        if bye {
            call.arg("bye");
        }
        call
    }

    pub(super) fn look(&self, keys: &[String], what: &str, limits: &Limits, level: u64) -> Cmd {
        let mut call = self.call(Which::Look, true, keys);
        call.arg(what);
        with(&mut call, limits);
        call.arg(milli(level));
        call
    }
}

/// How many gateways there are, those that have died within a lease's time among them.
pub(super) fn gateways() -> Cmd {
    cmd("ZCARD").arg(GATEWAYS).to_owned()
}

/// The slot of the list of gateways, which has no hash tag.
pub(super) fn gateways_slot() -> u16 {
    super::slot::slot(GATEWAYS.as_bytes())
}

/// The name of a lease: all that settling it needs.
fn member(ask: &Ask) -> String {
    let mut name = String::with_capacity(56);
    let _ = write!(name, "r{:032x}:{}:{}", ask.id, ask.sequences, milli(ask.tokens));
    name
}

fn milli(tokens: u64) -> u64 {
    tokens.saturating_mul(MILLI)
}

fn with(call: &mut Cmd, limits: &Limits) {
    match limits.bucket() {
        Some((rate, burst)) => call.arg(rate).arg(milli(burst)),
        None => call.arg("").arg(""),
    };
}

fn with_most(call: &mut Cmd, limits: &Limits) {
    with(call, limits);
    match limits.in_flight_max {
        Some(most) => call.arg(most),
        None => call.arg(""),
    };
}

/// What a decision was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It may start.
    Taken,
    /// Too few tokens in the account of this number; they are there after so many ms.
    Tokens(usize, u64),
    /// Too many sequences in the account of this number; tokens would be there after so many ms.
    Sequences(usize, u64),
    /// This id has been settled already.
    Settled,
}

/// Spent thousandths and sequences in flight of each account, in the order of the keys.
pub type Stands = [Option<(u64, u64)>; 2];

/// Reads the reply to a decision.
#[must_use]
pub fn decided(reply: &Reply) -> Option<(Decided, Stands)> {
    let [code, which, wait, rest @ ..] = reply.items()? else { return None };
    let which = usize::try_from(which.int()?.checked_sub(1).unwrap_or(0).max(0)).ok()?;
    let wait_ms = u64::try_from(wait.int()?).ok()?;
    let decided = match code.int()? {
        0 => Decided::Taken,
        1 => Decided::Tokens(which, wait_ms),
        2 => Decided::Sequences(which, wait_ms),
        3 => Decided::Settled,
        _ => return None,
    };
    Some((decided, stands(rest)?))
}

/// Reads the reply to a settlement: in how many accounts there was something to settle.
#[must_use]
pub fn settled(reply: &Reply) -> Option<(u64, Stands)> {
    let [found, rest @ ..] = reply.items()? else { return None };
    Some((u64::try_from(found.int()?).ok()?, stands(rest)?))
}

/// Reads the reply about an advance.
#[must_use]
pub fn granted(reply: &Reply) -> Option<(Grant, Stands)> {
    let [tokens, sequences, rest @ ..] = reply.items()? else { return None };
    let number = |reply: &Reply| u64::try_from(reply.int()?).ok();
    let grant = Grant { tokens: number(tokens)? / MILLI, sequences: number(sequences)? };
    Some((grant, stands(rest)?))
}

fn stands(items: &[Reply]) -> Option<Stands> {
    let mut stands = [None; 2];
    let mut pairs = items.chunks_exact(2);
    for stand in &mut stands {
        *stand = match pairs.next() {
            Some([spent, flight]) => {
                Some((u64::try_from(spent.int()?).ok()?, u64::try_from(flight.int()?).ok()?))
            }
            _ => None,
        };
    }
    Some(stands)
}
