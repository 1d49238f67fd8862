//! Follows the KV events of each lane of the fleet: one task a lane, begun and ended with it.
//!
//! Part of the registry, on the control thread. A source is the configured one, or the one that
//! the engine tells of itself; a pool whose prompts are not tokenized has no use for any.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::events::feed::{Feed, Host};
use super::events::source::{self, Source};
use super::events::subscribe;
use super::fleet::Fleet;
use super::pool::{Lane, Pool, PoolState};
use super::replica::Replica;
use super::report::Report;
use crate::config;
use crate::prefix::{Index, Slot};

/// One lane's task.
struct Follower {
    source: Source,
    task: AbortHandle,
}

/// All followers, by the lane's replica and rank.
#[derive(Default)]
pub(super) struct Followers {
    tasks: HashMap<(usize, Option<u32>), Follower>,
    /// Tokens in a block, by pool, as they are now.
    block_tokens: Vec<Rc<Cell<u32>>>,
}

impl Followers {
    /// Begins, ends and leaves alone, so that each lane of `fleet` with a source is followed.
    pub(super) fn keep(&mut self, fleet: &Fleet, config: &config::Config, report: &Rc<Report>) {
        self.block_tokens.resize_with(fleet.pools.len(), Rc::default);
        let mut wanted = HashMap::new();
        let settings = fleet.pools.iter().zip(&config.pools).zip(&self.block_tokens);
        for ((pool, settings), block_tokens) in settings {
            block_tokens.set(pool.block_tokens());
            if pool.prefix_is_text() {
                continue;
            }
            for lane in &pool.lanes {
                if let Some(source) = source_of(lane, settings) {
                    let key = (lane.replica.key, lane.rank);
                    wanted.insert(key, (source, pool, lane, block_tokens));
                }
            }
        }
        self.tasks.retain(|key, follower| {
            let stays = wanted.get(key).is_some_and(|(source, ..)| *source == follower.source);
            if !stays {
                follower.task.abort();
            }
            stays
        });
        for (key, (source, pool, lane, block_tokens)) in wanted {
            self.tasks.entry(key).or_insert_with(|| {
                let member = Member::new(pool, lane, block_tokens, report);
                let feed = Feed::new(member, Arc::clone(&lane.known), lane.rank);
                let task = tokio::task::spawn_local(subscribe::follow(source.clone(), feed));
                Follower { source, task: task.abort_handle() }
            });
        }
    }
}

/// Where a lane's engine publishes: as configured, with the replay that it tells, or as it tells.
fn source_of(lane: &Lane, settings: &config::Pool) -> Option<Source> {
    let facts = lane.replica.signals.facts.load_full();
    let mut told = facts.iter().flat_map(|facts| &facts.event_sources);
    let told = told.find(|source| source.rank.unwrap_or(0) == lane.rank.unwrap_or(0));
    let Some(template) = &settings.kv_events else {
        return told.map(|source| Source { rank: lane.rank, ..source.clone() });
    };
    let source = source::configured(template, None, &lane.replica.host, lane.rank)?;
    let replay_port = told.and_then(|told| told.replay_port);
    Some(Source { replay_port, ..source })
}

/// What a feed needs of its lane.
struct Member {
    state: Arc<PoolState>,
    slot: Slot,
    rank: Option<u32>,
    replica: Arc<Replica>,
    block_tokens: Rc<Cell<u32>>,
    report: Rc<Report>,
}

impl Member {
    fn new(pool: &Pool, lane: &Lane, block_tokens: &Rc<Cell<u32>>, report: &Rc<Report>) -> Member {
        Member {
            state: Arc::clone(&pool.state),
            slot: lane.slot,
            rank: lane.rank,
            replica: Arc::clone(&lane.replica),
            block_tokens: Rc::clone(block_tokens),
            report: Rc::clone(report),
        }
    }
}

impl Host for Member {
    fn index(&self) -> &Index {
        &self.state.index
    }

    fn slot(&self) -> Slot {
        self.slot
    }

    fn block_tokens(&self) -> u32 {
        self.block_tokens.get()
    }

    fn blocks(&self) -> u64 {
        self.replica.signals.gauges(self.rank).blocks()
    }

    fn say(&self, bad: bool, line: &str) {
        let rank = self.rank.map(|rank| format!(" rank {rank}")).unwrap_or_default();
        let line = format!("replica {}{rank}: {line}", self.replica.id);
        if bad { self.report.warn(&line) } else { self.report.info(&line) }
    }
}
