//! The registry: who is in the fleet. One task on the control thread owns it.
//!
//! Sources and the admin listener send it orders; it settles the members, publishes a new
//! [`Fleet`] when they change or when a watcher has learned a name, and keeps one watcher for each
//! replica. A replica that stays is the same [`Replica`] in every fleet, so that ledgers, evidence
//! and connections survive.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::adapters::{self, Wants};
use super::discover;
use super::fleet::{Files, Fleet};
use super::followers::Followers;
use super::members::{LISTED_MAX, Listed, Members, Refused, Source};
use super::pool::LANES_MAX;
use super::probe::Watcher;
use super::replica::Replica;
use super::report::{Lines, Report};
use crate::config::{self, Config};
use crate::runtime::clock;

/// Orders that wait.
const ORDERS_MAX: usize = 256;
/// While somebody drains, it is looked so often whether the last request has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(100);
/// What is learned within this time is published together.
const GATHER: Duration = Duration::from_millis(5);

type Answer = Result<(), Refused>;

/// What the registry is asked to do.
enum Order {
    /// Pools are meant by their place in the configuration of that generation.
    Listed {
        generation: u64,
        pool: usize,
        list: Vec<Listed>,
    },
    Reconfigure {
        config: Arc<Config>,
        files: Files,
        answer: oneshot::Sender<Answer>,
    },
    Add {
        pool: String,
        replica: config::Replica,
        answer: oneshot::Sender<Answer>,
    },
    Remove {
        id: String,
        now: bool,
        answer: oneshot::Sender<Answer>,
    },
}

/// The way to the registry, for any thread.
#[derive(Clone)]
pub struct Handle {
    orders: mpsc::Sender<Order>,
    /// Of the configuration that a source was started by.
    generation: u64,
}

/// The other end of a [`Handle`].
pub struct Orders(mpsc::Receiver<Order>);

/// A handle and the orders that come through it.
#[must_use]
pub fn channel() -> (Handle, Orders) {
    let (send, receive) = mpsc::channel(ORDERS_MAX);
    (Handle { orders: send, generation: 0 }, Orders(receive))
}

impl Handle {
    /// Adds a replica to the pool of that name.
    ///
    /// # Errors
    /// It is refused.
    pub async fn add(&self, pool: &str, replica: config::Replica) -> Result<(), Refused> {
        let pool = pool.to_owned();
        self.ask(|answer| Order::Add { pool, replica, answer }).await
    }

    /// Takes the replica with this id away: after it has drained, or at once.
    ///
    /// # Errors
    /// There is none.
    pub async fn remove(&self, id: &str, now: bool) -> Result<(), Refused> {
        let id = id.to_owned();
        self.ask(|answer| Order::Remove { id, now, answer }).await
    }

    /// From here on the fleet is as `config` has it, with what these files hold.
    ///
    /// # Errors
    /// The registry has ended.
    pub async fn reconfigure(&self, config: Arc<Config>, files: Files) -> Result<(), Refused> {
        self.ask(|answer| Order::Reconfigure { config, files, answer }).await
    }

    async fn ask(
        &self,
        order: impl FnOnce(oneshot::Sender<Answer>) -> Order,
    ) -> Result<(), Refused> {
        let ended = || Refused::Invalid("the registry has ended".to_owned());
        let (answer, answered) = oneshot::channel();
        self.orders.send(order(answer)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }

    /// A source's list of a pool.
    pub(super) async fn listed(&self, pool: usize, list: Vec<Listed>) {
        // It ends with the process only.
        let generation = self.generation;
        let _ = self.orders.send(Order::Listed { generation, pool, list }).await;
    }
}

/// Where new fleets go.
pub type Publish = Box<dyn Fn(&Arc<Config>, Arc<Fleet>)>;

/// See the module.
pub struct Registry {
    config: Arc<Config>,
    fleet: Arc<Fleet>,
    members: Members,
    watchers: HashMap<usize, AbortHandle>,
    followers: Followers,
    /// The tasks of the pools' sources, and how often they were started anew.
    sources: Vec<AbortHandle>,
    generation: u64,
    /// Pools whose source has told its first list: who comes later joins a running fleet.
    settled: HashSet<String>,
    report: Rc<Report>,
    publish: Publish,
}

impl Registry {
    /// Over the fleet that was built from `config`; new ones go to `publish`, lines to `log`.
    #[must_use]
    pub fn new(config: Arc<Config>, fleet: Arc<Fleet>, publish: Publish, log: Lines) -> Registry {
        Registry {
            members: Members::new(&config.pools),
            config,
            fleet,
            watchers: HashMap::new(),
            followers: Followers::default(),
            sources: Vec::new(),
            generation: 0,
            settled: HashSet::new(),
            report: Rc::new(Report::new(log)),
            publish,
        }
    }

    /// Runs until the task is dropped, within a `LocalSet`.
    pub async fn run(mut self, handle: Handle, mut orders: Orders, wants: Wants) {
        self.members.settle(|_| false);
        self.watch();
        self.follow_sources(&handle);
        tokio::task::spawn_local(adapters::serve(wants, Rc::clone(&self.report)));
        loop {
            let draining = self.members.current().iter().flatten().any(|m| m.draining);
            let report = Rc::clone(&self.report);
            tokio::select! {
                Some(order) = orders.0.recv() => self.obey(order, &handle),
                () = report.change() => {
                    tokio::time::sleep(GATHER).await;
                    self.republish(false);
                }
                () = tokio::time::sleep(DRAIN_LOOK), if draining => self.settle(false),
            }
        }
    }

    /// Starts each pool's source, and ends those of the configuration before.
    fn follow_sources(&mut self, handle: &Handle) {
        self.sources.drain(..).for_each(|source| source.abort());
        let handle = Handle { generation: self.generation, ..handle.clone() };
        for (at, (pool, now)) in self.config.pools.iter().zip(&self.fleet.pools).enumerate() {
            let report = Rc::clone(&self.report);
            let source = discover::follow(at, pool, &now.state, handle.clone(), report);
            if let Some(source) = source {
                self.sources.push(tokio::task::spawn_local(source).abort_handle());
            }
        }
    }

    fn obey(&mut self, order: Order, handle: &Handle) {
        match order {
            Order::Listed { generation, pool, list } if generation == self.generation => {
                let Some(settings) = self.config.pools.get(pool) else { return };
                if list.len() > LISTED_MAX {
                    let (name, all) = (&settings.name, list.len());
                    self.report.warn(&format!(
                        "pool {name}: its source lists {all} replicas, {LISTED_MAX} at most are \
                         taken: the last ones get no request"
                    ));
                }
                let late = !self.settled.insert(settings.name.clone());
                self.members.listed(pool, Source::Discovered, list);
                self.settle(late);
            }
            // Of a source that has been ended since.
            Order::Listed { .. } => {}
            Order::Reconfigure { config, files, answer } => {
                self.reconfigure(config, &files, handle);
                let _ = answer.send(Ok(()));
            }
            Order::Add { pool, replica, answer } => {
                let at = self.config.pools.iter().position(|p| p.name == pool);
                let id = replica.id.clone();
                let done = match at {
                    Some(at) => self.members.add(at, replica),
                    None => {
                        let names = self.config.pools.iter().map(|p| p.name.clone());
                        Err(Refused::NoPool(names.collect()))
                    }
                };
                if done.is_ok() {
                    self.report.info(&format!("replica {id} is added to pool {pool} by the admin"));
                    self.settle(true);
                }
                let _ = answer.send(done);
            }
            Order::Remove { id, now, answer } => {
                let done = self.members.remove(&id, now);
                if done.is_ok() {
                    let how = if now { "at once" } else { "after it has drained" };
                    self.report.info(&format!("replica {id} is taken away {how} by the admin"));
                    self.settle(true);
                }
                let _ = answer.send(done);
            }
        }
    }

    /// Settles the members and publishes what has changed; `late`: who is new joins a fleet that
    /// runs already.
    fn settle(&mut self, late: bool) {
        let (changed, complaints) = self.settle_members();
        complaints.iter().for_each(|line| self.report.warn(line));
        if changed {
            self.republish(late);
        }
    }

    fn settle_members(&mut self) -> (bool, Vec<String>) {
        let busy = |id: &str| {
            let pools = self.fleet.pools.iter();
            let mut replicas = pools.flat_map(|p| p.replicas.iter().map(move |r| (p, r)));
            replicas.any(|(pool, replica)| *replica.id == *id && pool.in_flight(replica).0 > 0)
        };
        self.members.settle(busy)
    }

    /// The pools are those of `config` from here on. What stays under its name stays what it is;
    /// requests under way keep what they hold.
    fn reconfigure(&mut self, config: Arc<Config>, files: &Files, handle: &Handle) {
        self.members.reconfigure(&self.config.pools, &config.pools);
        self.settled.retain(|name| config.pools.iter().any(|pool| pool.name == *name));
        self.config = config;
        self.generation = self.generation.wrapping_add(1);
        // Their keys may be others; what they have learned is with the replicas.
        self.watchers.drain().for_each(|(_, watcher)| watcher.abort());
        let (_, complaints) = self.settle_members();
        complaints.iter().for_each(|line| self.report.warn(line));
        let (before, wanted) = (Arc::clone(&self.fleet), self.wanted());
        let fleet = before.reconfigured(&self.config, files, &wanted, clock::now_ms());
        self.publish_after(&before, fleet, true);
        self.follow_sources(handle);
    }

    /// The members of each pool as they are to be now.
    fn wanted(&self) -> Vec<Vec<config::Replica>> {
        let lists = self.members.current().iter();
        lists.map(|list| list.iter().map(|m| m.replica.clone()).collect()).collect()
    }

    fn republish(&mut self, late: bool) {
        let before = Arc::clone(&self.fleet);
        let fleet = before.with_members(&self.wanted(), &self.config, clock::now_ms());
        self.publish_after(&before, fleet, late);
    }

    fn publish_after(&mut self, before: &Fleet, fleet: Fleet, late: bool) {
        let known: HashMap<_, _> = replicas(before).map(|r| (r.key, r)).collect();
        self.fleet = Arc::new(fleet);
        for (pool, members) in self.fleet.pools.iter().zip(self.members.current()) {
            for (replica, member) in pool.replicas.iter().zip(members) {
                replica.set_source(member.source);
                replica.health.set_draining(member.draining);
                if !known.contains_key(&replica.key) {
                    if late {
                        replica.health.join_late();
                    }
                    let Replica { id, authority, .. } = &**replica;
                    let (pool, scheme) = (&pool.name, if replica.secure { "https://" } else { "" });
                    self.report
                        .info(&format!("replica {id} ({scheme}{authority}) joins pool {pool}"));
                }
            }
        }
        self.warn_of_missing_lanes(before);
        let stays: HashSet<_> = replicas(&self.fleet).map(|r| r.key).collect();
        for replica in known.values().filter(|replica| !stays.contains(&replica.key)) {
            self.report.info(&format!("replica {} has left", replica.id));
        }
        (self.publish)(&self.config, Arc::clone(&self.fleet));
        self.watch();
    }

    /// Says which pools have more replicas and ranks than lanes, when that has changed.
    fn warn_of_missing_lanes(&self, before: &Fleet) {
        for pool in &self.fleet.pools {
            let former = before.pools.iter().find(|former| former.name == pool.name);
            let missing = pool.lanes_missing();
            if missing > 0 && former.is_none_or(|former| former.lanes_missing() != missing) {
                let name = &pool.name;
                self.report.warn(&format!(
                    "pool {name}: {missing} of its replicas and ranks get no request, since a pool \
                     has at most {LANES_MAX}"
                ));
            }
        }
    }

    /// One watcher for each replica of the fleet, and one follower for each lane's events; none for
    /// those that have left.
    fn watch(&mut self) {
        self.followers.keep(&self.fleet, &self.config, &self.report);
        let stays: HashSet<_> = replicas(&self.fleet).map(|r| r.key).collect();
        self.watchers.retain(|key, watcher| {
            let stays = stays.contains(key);
            if !stays {
                watcher.abort();
            }
            stays
        });
        for pool in &self.fleet.pools {
            for replica in &pool.replicas {
                let (report, key) = (&self.report, pool.api_key.as_ref());
                self.watchers.entry(replica.key).or_insert_with(|| {
                    let watcher = Watcher::new(replica, &pool.state, key, report);
                    tokio::task::spawn_local(watcher.run()).abort_handle()
                });
            }
        }
    }
}

fn replicas(fleet: &Fleet) -> impl Iterator<Item = &Arc<Replica>> {
    fleet.pools.iter().flat_map(|pool| &pool.replicas)
}
