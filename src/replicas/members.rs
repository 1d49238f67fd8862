//! Who is in each pool: what the sources list, what the operator adds and takes away. Pure; the
//! registry on the control thread owns it.
//!
//! A pool is the union of its sources. One address and one id are one replica, in one pool: a
//! second claim is refused and said once. Who is no longer listed drains: it gets nothing new and
//! leaves when its last request has ended. A source that fails lists nothing new here, so that its
//! last good list stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::config;

/// Replicas that one source of one pool may list.
pub(super) const LISTED_MAX: usize = 4_096;

/// Where a replica is listed; earlier ones win over later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `replicas` of the configuration, or `--replica`.
    Config,
    /// `discover` of the configuration.
    Discovered,
    /// `POST /replicas`.
    Admin,
}

impl Source {
    /// For pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Config => "config",
            Source::Discovered => "discovered",
            Source::Admin => "admin",
        }
    }
}

/// A replica as a source lists it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    pub replica: config::Replica,
    /// It is about to end: it finishes what it has.
    pub terminating: bool,
}

impl Listed {
    pub(super) fn new(replica: config::Replica) -> Listed {
        Listed { replica, terminating: false }
    }
}

/// A member of a pool as it is to be now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub replica: config::Replica,
    pub source: Source,
    pub draining: bool,
}

/// What the operator has said of an id that a source lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// Drain, then leave.
    Drain,
    /// Leave now.
    Now,
}

/// Why the operator's wish is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such pool; all names.
    NoPool(Vec<String>),
    /// There is no such replica.
    NoReplica,
    /// It clashes with one that is there, in words.
    Taken(String),
    /// The values are not those of a replica, in words.
    Invalid(String),
    /// The pool has as many as it can.
    Full,
}

/// All pools' lists.
#[derive(Debug, Default)]
pub(super) struct Members {
    lists: Vec<BTreeMap<Source, Vec<Listed>>>,
    current: Vec<Vec<Member>>,
    removals: HashMap<String, Removal>,
    complaints: BTreeSet<String>,
}

impl Members {
    /// With the configured lists.
    pub(super) fn new(pools: &[config::Pool]) -> Members {
        let configured = |pool: &config::Pool| {
            let listed = pool.replicas.iter().cloned().map(Listed::new).collect();
            BTreeMap::from([(Source::Config, listed)])
        };
        Members {
            lists: pools.iter().map(configured).collect(),
            current: vec![Vec::new(); pools.len()],
            ..Members::default()
        }
    }

    /// The pools are others now. One of the same name keeps what its sources and the operator have
    /// listed; what a source has listed goes with the key that names a source.
    pub(super) fn reconfigure(&mut self, before: &[config::Pool], after: &[config::Pool]) {
        let lists = std::mem::take(&mut self.lists);
        let current = std::mem::take(&mut self.current);
        let known =
            before.iter().map(|pool| pool.name.as_str()).zip(lists.into_iter().zip(current));
        let mut known: HashMap<&str, _> = known.collect();
        for pool in after {
            let (mut lists, current) = known.remove(pool.name.as_str()).unwrap_or_default();
            let listed = pool.replicas.iter().cloned().map(Listed::new).collect();
            lists.insert(Source::Config, listed);
            if pool.discover.is_none() {
                lists.remove(&Source::Discovered);
            }
            self.lists.push(lists);
            self.current.push(current);
        }
    }

    /// The members as last settled, by pool.
    pub(super) fn current(&self) -> &[Vec<Member>] {
        &self.current
    }

    /// A source's list of a pool is another.
    pub(super) fn listed(&mut self, pool: usize, source: Source, mut list: Vec<Listed>) {
        list.truncate(LISTED_MAX);
        if let Some(lists) = self.lists.get_mut(pool) {
            lists.insert(source, list);
        }
    }

    /// The operator adds a replica; one that was taken away comes back.
    pub(super) fn add(&mut self, pool: usize, replica: config::Replica) -> Result<(), Refused> {
        let members = self.current.iter().enumerate();
        let mut all = members.flat_map(|(at, list)| list.iter().map(move |m| (at, &m.replica)));
        let clash = all.find(|(_, there)| there.id == replica.id || there.url == replica.url);
        if let Some((at, there)) = clash {
            let same = at == pool && there.id == replica.id && there.url == replica.url;
            if !same {
                let what = format!("replica {} is there with {}", there.id, there.url);
                return Err(Refused::Taken(what));
            }
            if self.removals.remove(&there.id).is_none() && !self.is_leaving(pool, &replica.id) {
                return Err(Refused::Taken(format!("replica {} is there already", there.id)));
            }
        }
        self.removals.remove(&replica.id);
        let Some(lists) = self.lists.get_mut(pool) else { return Err(Refused::NoReplica) };
        let listed = lists.values().flatten().any(|l| l.replica.id == replica.id);
        let own = lists.entry(Source::Admin).or_default();
        if listed {
            return Ok(());
        }
        if own.len() >= LISTED_MAX {
            return Err(Refused::Full);
        }
        own.push(Listed::new(replica));
        Ok(())
    }

    /// The operator takes a replica away, after it has drained or at once.
    pub(super) fn remove(&mut self, id: &str, now: bool) -> Result<(), Refused> {
        if !self.current.iter().flatten().any(|member| member.replica.id == id) {
            return Err(Refused::NoReplica);
        }
        for own in self.lists.iter_mut().filter_map(|lists| lists.get_mut(&Source::Admin)) {
            own.retain(|listed| listed.replica.id != id);
        }
        let removal = if now { Removal::Now } else { Removal::Drain };
        self.removals.insert(id.to_owned(), removal);
        Ok(())
    }

    fn is_leaving(&self, pool: usize, id: &str) -> bool {
        let mut members = self.current.get(pool).into_iter().flatten();
        members.any(|member| member.replica.id == id && member.draining)
    }

    /// Settles who is a member now. `busy` tells whether a leaving replica still has requests.
    /// The lines are complaints that were not said before.
    pub(super) fn settle(&mut self, busy: impl Fn(&str) -> bool) -> (bool, Vec<String>) {
        let mut claims = Claims::default();
        let mut settled: Vec<Vec<Member>> = Vec::new();
        for lists in &self.lists {
            let listed = lists.iter().flat_map(|(source, list)| list.iter().map(|l| (*source, l)));
            settled.push(listed.filter_map(|(source, l)| claims.member(source, l)).collect());
            claims.pool += 1;
        }
        // A removal holds as long as a source goes on listing the replica, or it is still there.
        let there: HashSet<&str> =
            self.current.iter().flatten().map(|m| m.replica.id.as_str()).collect();
        self.removals
            .retain(|id, _| claims.ids.contains_key(id.as_str()) || there.contains(id.as_str()));
        for (members, before) in settled.iter_mut().zip(&self.current) {
            members.retain_mut(|member| match self.removals.get(&member.replica.id) {
                None => true,
                Some(Removal::Now) => false,
                Some(Removal::Drain) => {
                    member.draining = true;
                    busy(&member.replica.id)
                }
            });
            let gone = before.iter().filter(|member| {
                let id = member.replica.id.as_str();
                !claims.ids.contains_key(id)
                    && !claims.urls.contains_key(member.replica.url.as_str())
                    && self.removals.get(id) != Some(&Removal::Now)
                    && busy(id)
            });
            members.extend(gone.map(|member| Member { draining: true, ..member.clone() }));
        }
        let Claims { refused, .. } = claims;
        let news = refused.difference(&self.complaints).cloned().collect();
        let changed = settled != self.current;
        self.complaints = refused;
        self.current = settled;
        (changed, news)
    }
}

/// Ids and addresses as they are claimed, over all pools.
#[derive(Default)]
struct Claims<'l> {
    pool: usize,
    ids: HashMap<&'l str, (usize, &'l str)>,
    urls: HashMap<&'l str, (usize, &'l str)>,
    refused: BTreeSet<String>,
}

impl<'l> Claims<'l> {
    fn member(&mut self, source: Source, listed: &'l Listed) -> Option<Member> {
        let config::Replica { id, url, .. } = &listed.replica;
        let (by_id, by_url) = (self.ids.get(id.as_str()), self.urls.get(url.as_str()));
        if by_id.is_some() || by_url.is_some() {
            // Two sources of one pool may list one replica; anything else is a clash.
            let same = by_url.is_some_and(|(pool, _)| *pool == self.pool);
            if !same {
                let (_, owner) = by_id.or(by_url)?;
                let what = format!("replica {id} ({url}) is refused: it is there as {owner}");
                self.refused.insert(what);
            }
            return None;
        }
        self.ids.insert(id, (self.pool, url));
        self.urls.insert(url, (self.pool, id));
        let (replica, draining) = (listed.replica.clone(), listed.terminating);
        Some(Member { replica, source, draining })
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
