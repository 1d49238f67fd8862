//! Requests that wait for room: bounded, and in the order in which they are tried.
//!
//! The order: the tier's priority; then the tenant with the least virtual counter (Sheng et al.,
//! OSDI 2024); then the earliest deadline. A tenant that comes to an empty line is lifted to the
//! least of those that wait, so that nobody saves up. Strict priority starves by its nature: of
//! every few requests that are served one is the oldest of those that have waited for long.
//!
//! A class names what a request waits for (an adapter's slot, or blocks): one that finds no room
//! holds up its class and no other. Owned by one core; a queue holds no replica and no clock. Each
//! request's own limit on its wait is with its owner, who takes it out.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::fair::Counters;

/// Of so many that are served while somebody has waited for long, one is such a one.
const LIFT_EVERY: u32 = 8;

/// A request that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Whose it is.
    pub tenant: usize,
    /// What it waits for.
    pub class: u64,
    /// Tokens that it needs room for.
    pub tokens: u64,
    /// Since when, in ms.
    pub since_ms: u64,
    /// When it must have been sent, in ms.
    pub until_ms: u64,
}

/// The name of a request in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    tenant: usize,
    class: u64,
    until_ms: u64,
    number: u64,
}

/// One tenant's requests of one class, by deadline and then by age.
#[derive(Debug)]
struct Line {
    tenant: usize,
    class: u64,
    requests: BTreeMap<(u64, u64), Waiting>,
    tokens: u64,
}

impl Line {
    fn first(&self) -> Option<(Place, &Waiting)> {
        let (&(until_ms, number), waiting) = self.requests.first_key_value()?;
        let Line { tenant, class, .. } = *self;
        Some((Place { tenant, class, until_ms, number }, waiting))
    }
}

/// The requests that wait at one core for one pool.
#[derive(Debug, Default)]
pub struct Queue {
    lines: Vec<Line>,
    numbers: u64,
    requests: usize,
    tokens: u64,
    /// The virtual counter of the last that was served.
    floor: u64,
    /// Served since one that had waited for long.
    since_lift: u32,
}

impl Queue {
    /// Requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Tokens that they need room for.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Does anybody wait for the same?
    #[must_use]
    pub fn has_class(&self, class: u64) -> bool {
        self.lines.iter().any(|line| line.class == class)
    }

    /// Puts a request in.
    pub fn push(&mut self, waiting: Waiting, counters: &Counters) -> Place {
        let Waiting { tenant, class, until_ms, .. } = waiting;
        if !self.lines.iter().any(|line| line.tenant == tenant) {
            let least = self.lines.iter().map(|line| counters.virtual_parts(line.tenant)).min();
            counters.lift(tenant, least.unwrap_or(self.floor));
        }
        let number = self.numbers;
        self.numbers = self.numbers.wrapping_add(1);
        self.requests = self.requests.saturating_add(1);
        self.tokens = self.tokens.saturating_add(waiting.tokens);
        let same = |line: &&mut Line| (line.tenant, line.class) == (tenant, class);
        match self.lines.iter_mut().find(same) {
            Some(line) => {
                line.tokens = line.tokens.saturating_add(waiting.tokens);
                line.requests.insert((until_ms, number), waiting);
            }
            None => {
                let requests = BTreeMap::from([((until_ms, number), waiting)]);
                self.lines.push(Line { tenant, class, requests, tokens: waiting.tokens });
            }
        }
        Place { tenant, class, until_ms, number }
    }

    /// Who is tried next at `now_ms`, but for classes that `skip` says have no room. `long_ms` is a
    /// wait that is long.
    pub fn next(
        &self,
        now_ms: u64,
        long_ms: u64,
        counters: &Counters,
        skip: impl Fn(u64) -> bool,
    ) -> Option<Place> {
        let open = || self.lines.iter().filter(|line| !skip(line.class));
        if self.since_lift.saturating_add(1) >= LIFT_EVERY {
            let aged = open().filter_map(Line::first).filter(|(_, w)| is_long(w, now_ms, long_ms));
            if let Some((place, _)) = aged.min_by_key(|(place, w)| (w.since_ms, place.number)) {
                return Some(place);
            }
        }
        let order = |line: &&Line| {
            let first = line.requests.first_key_value().map(|(key, _)| *key);
            let parts = counters.virtual_parts(line.tenant);
            (counters.share(line.tenant).priority, parts, first)
        };
        open().min_by_key(order)?.first().map(|(place, _)| place)
    }

    /// Takes out one that is sent at `now_ms`; false when it was not there.
    pub fn serve(&mut self, place: &Place, now_ms: u64, long_ms: u64, counters: &Counters) -> bool {
        let Some(waiting) = self.remove(place) else { return false };
        self.floor = self.floor.max(counters.virtual_parts(place.tenant));
        let first = self.lines.iter().filter_map(Line::first);
        let passed = first.filter(|(_, other)| is_long(other, now_ms, long_ms)).count() > 0;
        self.since_lift = match is_long(&waiting, now_ms, long_ms) {
            true => 0,
            false => self.since_lift.saturating_add(u32::from(passed)),
        };
        true
    }

    /// Takes out one that is not sent.
    pub fn remove(&mut self, place: &Place) -> Option<Waiting> {
        let same = |line: &Line| (line.tenant, line.class) == (place.tenant, place.class);
        let at = self.lines.iter().position(same)?;
        let line = self.lines.get_mut(at)?;
        let waiting = line.requests.remove(&(place.until_ms, place.number))?;
        line.tokens = line.tokens.saturating_sub(waiting.tokens);
        if line.requests.is_empty() {
            self.lines.swap_remove(at);
        }
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(waiting.tokens);
        Some(waiting)
    }

    /// Who makes room in a full queue for one more of `tenant`: the last of whoever has the most
    /// requests in it by weight, behind or beside it in priority, and at least two more than it.
    #[must_use]
    pub fn pushed_out_by(&self, tenant: usize, counters: &Counters) -> Option<Place> {
        let mine = counters.share(tenant);
        let behind = |line: &&Line| counters.share(line.tenant).priority >= mine.priority;
        let greediest = self.lines.iter().filter(behind).max_by(|a, b| {
            self.greed(a.tenant, counters).total_cmp(&self.greed(b.tenant, counters))
        })?;
        let owner = counters.share(greediest.tenant);
        let more = self.greed(greediest.tenant, counters)
            > self.greed(tenant, counters) + 1.0 / mine.weight + 1.0 / owner.weight;
        let (&(until_ms, number), _) = greediest.requests.last_key_value()?;
        let Line { tenant: theirs, class, .. } = *greediest;
        let ranks = owner.priority > mine.priority || (theirs != tenant && more);
        ranks.then_some(Place { tenant: theirs, class, until_ms, number })
    }

    fn greed(&self, tenant: usize, counters: &Counters) -> f64 {
        let lines = self.lines.iter().filter(|line| line.tenant == tenant);
        let requests: usize = lines.map(|line| line.requests.len()).sum();
        requests as f64 / counters.share(tenant).weight
    }

    /// Tokens that are served before one more request of `tenant`: all that come first by priority,
    /// and of each other tenant as many by weight as it has waiting itself.
    #[must_use]
    pub fn tokens_before(&self, tenant: usize, counters: &Counters) -> u64 {
        let mine = counters.share(tenant);
        let own = self.lines.iter().filter(|line| line.tenant == tenant);
        let own = own.fold(0, |sum: u64, line| sum.saturating_add(line.tokens));
        let mut before = own as f64;
        for line in self.lines.iter().filter(|line| line.tenant != tenant) {
            let theirs = counters.share(line.tenant);
            let tokens = line.tokens as f64;
            before += match theirs.priority.cmp(&mine.priority) {
                std::cmp::Ordering::Less => tokens,
                std::cmp::Ordering::Equal => tokens.min(own as f64 * theirs.weight / mine.weight),
                std::cmp::Ordering::Greater => 0.0,
            };
        }
        before as u64
    }
}

fn is_long(waiting: &Waiting, now_ms: u64, long_ms: u64) -> bool {
    now_ms.saturating_sub(waiting.since_ms) >= long_ms
}

/// What waits for a pool at all cores together, within its bounds.
#[derive(Debug, Default)]
pub struct Total {
    requests: AtomicU64,
    tokens: AtomicU64,
}

impl Total {
    /// Requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Tokens that they need room for.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    /// One more, if it is within the bounds (0 tokens = no bound on them); true when it is.
    pub fn enter(&self, tokens: u64, requests_max: u64, tokens_max: u64) -> bool {
        let one_more = |n: u64| (n < requests_max).then_some(n.saturating_add(1));
        if self.requests.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            return false;
        }
        let fits = |n: u64| {
            let after = n.saturating_add(tokens);
            (tokens_max == 0 || n == 0 || after <= tokens_max).then_some(after)
        };
        let entered = self.tokens.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if !entered {
            self.requests.fetch_sub(1, Relaxed);
        }
        entered
    }

    /// One less; exactly once for each that entered.
    pub fn leave(&self, tokens: u64) {
        self.requests.fetch_sub(1, Relaxed);
        self.tokens.fetch_sub(tokens, Relaxed);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
