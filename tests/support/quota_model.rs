//! What a store of budgets has to do, told plainly: one account, its bucket, and who is in flight.
//!
//! Time in ms and amounts in thousandths of a token, as the scripts have them. In flight is what
//! the leases say, summed each time; a second count of every id's charges and refunds shows that
//! each happened once.

#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};

use expedite::tenants::quota::store::Message;
use expedite::tenants::quota::{Ask, Limits};

#[derive(Clone, Copy, Debug)]
struct Lease {
    until: u64,
    sequences: u64,
    cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ahead {
    until: u64,
    number: u64,
    reply: [u64; 2],
}

/// One account.
#[derive(Debug)]
pub(crate) struct Account {
    rate: u64,
    burst: Option<u64>,
    most: u64,
    spent: u64,
    at: Option<u64>,
    /// Spent without asking, to be paid by the refill.
    owed: u64,
    /// What the last silence has brought, and until when that matters.
    gap: (u64, u64),
    leases: BTreeMap<u128, Lease>,
    settled: BTreeMap<u128, u64>,
    ahead: BTreeMap<String, Ahead>,
    charged: HashMap<u128, u32>,
    refunded: HashMap<u128, u32>,
}

/// Accounts that decide together.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) lease_ms: u64,
    pub(crate) accounts: Vec<Account>,
}

impl Account {
    pub(crate) fn new(limits: &Limits) -> Account {
        let (rate, burst) = limits.bucket().map_or((0, None), |(r, b)| (r, Some(b * 1000)));
        Account {
            rate,
            burst,
            most: limits.in_flight_max.unwrap_or(u64::MAX),
            spent: 0,
            at: None,
            owed: 0,
            gap: (0, 0),
            leases: BTreeMap::new(),
            settled: BTreeMap::new(),
            ahead: BTreeMap::new(),
            charged: HashMap::new(),
            refunded: HashMap::new(),
        }
    }

    /// Brings it to this time.
    fn open(&mut self, now: u64, lease_ms: u64) {
        let at = self.at.replace(now).unwrap_or(now);
        if self.burst.is_some() {
            let gain = now.saturating_sub(at) * self.rate;
            let paid = self.owed.min(gain);
            self.owed -= paid;
            let before = self.spent;
            self.spent = self.spent.saturating_sub(gain - paid);
            if now >= at + 100 {
                self.gap = (before - self.spent, now + lease_ms);
            } else if now >= self.gap.1 {
                self.gap.0 = 0;
            }
        }
        // A clock that was set back makes no lease longer than it is.
        let last = if now < at { now + lease_ms } else { u64::MAX };
        self.leases.values_mut().for_each(|lease| lease.until = lease.until.min(last));
        self.settled.values_mut().for_each(|until| *until = (*until).min(last));
        self.ahead.values_mut().for_each(|ahead| ahead.until = ahead.until.min(last));
        self.leases.retain(|_, lease| lease.until > now);
        self.settled.retain(|_, until| *until > now);
        self.ahead.retain(|_, ahead| ahead.until > now);
    }

    pub(crate) fn flight(&self) -> u64 {
        let ahead: u64 = self.ahead.values().map(|ahead| ahead.reply[1]).sum();
        self.leases.values().map(|lease| lease.sequences).sum::<u64>() + ahead
    }

    /// Thousandths that it has too few.
    fn missing(&self, cost: u64) -> u64 {
        self.burst.map_or(0, |burst| (self.spent + cost).saturating_sub(burst))
    }

    fn holds(&self) {
        assert!(self.burst.is_none_or(|burst| self.spent <= burst), "below zero: {self:?}");
        for counts in [&self.charged, &self.refunded] {
            assert!(counts.values().all(|n| *n <= 1), "twice: {self:?}");
        }
    }

    /// Full, and nothing in flight.
    pub(crate) fn at_rest(&self) -> bool {
        self.spent == 0 && self.owed == 0 && self.flight() == 0
    }
}

impl Model {
    fn stands(&self, mut reply: Vec<u64>) -> Vec<u64> {
        for account in &self.accounts {
            account.holds();
            reply.extend([account.spent, account.flight()]);
        }
        reply
    }

    fn open(&mut self, now: u64) {
        let lease_ms = self.lease_ms;
        self.accounts.iter_mut().for_each(|account| account.open(now, lease_ms));
    }

    pub(crate) fn reserve(&mut self, now: u64, ask: &Ask) -> Vec<u64> {
        self.open(now);
        let cost = ask.tokens * 1000;
        let mut reply = vec![0, 0, 0];
        let again = self.accounts.iter().any(|account| account.leases.contains_key(&ask.id));
        for (n, account) in self.accounts.iter().enumerate().rev() {
            if account.settled.contains_key(&ask.id) {
                reply = vec![3, n as u64 + 1, 0];
            }
        }
        for (n, account) in self.accounts.iter().enumerate() {
            let n = n as u64 + 1;
            if reply[0] != 0 || again {
                break;
            } else if account.flight() + ask.sequences > account.most {
                reply = vec![2, n, 0];
            } else if account.missing(cost) > 0 {
                reply = vec![1, n, 0];
            }
        }
        if reply[0] == 1 || reply[0] == 2 {
            let waits = self.accounts.iter().filter(|account| account.burst.is_some());
            let waits = waits.map(|account| match account.missing(cost) {
                0 => 0,
                missing => (missing + account.owed).div_ceil(account.rate),
            });
            reply[2] = waits.max().unwrap_or(0);
        }
        if reply[0] == 0 && !again {
            for account in &mut self.accounts {
                account.spent += if account.burst.is_some() { cost } else { 0 };
                let until = now + self.lease_ms;
                let lease = Lease { until, sequences: ask.sequences, cost };
                account.leases.insert(ask.id, lease);
                *account.charged.entry(ask.id).or_default() += 1;
            }
        }
        self.stands(reply)
    }

    pub(crate) fn settle(&mut self, now: u64, ask: &Ask, used: u64, guard: bool) -> Vec<u64> {
        self.open(now);
        let mut found = 0;
        for account in &mut self.accounts {
            let lease = account.leases.remove(&ask.id);
            if let Some(lease) = lease {
                found += 1;
                if let Some(burst) = account.burst {
                    account.spent =
                        (account.spent + used * 1000).saturating_sub(lease.cost).min(burst);
                    *account.refunded.entry(ask.id).or_default() += 1;
                }
            }
            if guard || lease.is_none() {
                account.settled.insert(ask.id, now + self.lease_ms);
            }
        }
        self.stands(vec![found])
    }

    /// How many were there again.
    pub(crate) fn renew(&mut self, now: u64, asks: &[Ask]) -> u64 {
        self.open(now);
        let mut again = 0;
        for account in &mut self.accounts {
            for ask in asks.iter().filter(|ask| !account.settled.contains_key(&ask.id)) {
                let until = now + self.lease_ms;
                let lease = Lease { until, sequences: ask.sequences, cost: ask.tokens * 1000 };
                again += u64::from(account.leases.insert(ask.id, lease).is_none());
            }
        }
        again
    }

    pub(crate) fn advance(&mut self, now: u64, name: &str, it: &Message) -> Vec<u64> {
        self.open(now);
        let [give, over, debt, free, ask, least] =
            [it.give, it.over, it.debt, it.free, it.ask, it.least].map(|tokens| tokens * 1000);
        let mut granted = ask;
        let mut total = it.held.max(it.wanted);
        let known = self.accounts.iter().find_map(|account| account.ahead.get(name));
        let same = known.filter(|ahead| ahead.number == it.number).map(|ahead| ahead.reply);
        for account in &mut self.accounts {
            let had = account.ahead.get(name).map_or(0, |ahead| ahead.reply[1]);
            let others = account.flight() - had;
            if let Some(burst) = account.burst
                && same.is_none()
            {
                if account.ahead.contains_key(name) || !it.again {
                    account.spent = account.spent.saturating_sub(give);
                }
                account.spent = (account.spent + over).min(burst);
                let taken = debt.min(account.gap.0);
                account.gap.0 -= taken;
                let covered = taken.min(burst - account.spent);
                account.spent += covered;
                account.owed = (account.owed + taken - covered).min(burst);
                let part = (burst - account.spent) / 1000 / 32 * 1000;
                granted = granted.min(part.saturating_sub(free));
            }
            if account.most != u64::MAX {
                let spare = account.most.saturating_sub(others + it.held) / 8;
                total = total.min(it.held + if spare < 4 { 0 } else { spare });
            }
        }
        if granted + free < least {
            total = it.held;
        }
        if granted + free < least || total < 1 {
            granted = 0;
        }
        let reply = same.unwrap_or([granted, total]);
        for account in &mut self.accounts {
            if same.is_none() && account.burst.is_some() {
                account.spent += granted;
            }
            let until = now + self.lease_ms;
            account.ahead.insert(name.to_owned(), Ahead { until, number: it.number, reply });
        }
        self.stands(reply.to_vec())
    }

    /// What every history comes to: after a lease's time and a bucket's, all is as at first.
    pub(crate) fn rests(&mut self, now: u64) -> Vec<u64> {
        self.open(now);
        self.stands(vec![])
    }
}
