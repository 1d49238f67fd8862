//! A pool: replicas that serve the same base model. Immutable; a change of its members makes a new
//! one, while its [`PoolState`] lives on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::discover::SourceHealth;
use super::events::state::{Mode, State};
use super::ledger::Ledger;
use super::replica::Replica;
use super::share::Outbox;
use super::signals::RANKS_MAX;
use crate::config;
use crate::net::Trust;
use crate::openai::models::Entry;
use crate::prefix::{Index, Limits, SLOTS_MAX, Slot};
use crate::prompt::model::Model;
use crate::prompt::standing::Standing;
use crate::runtime::seldom::Seldom;

/// Lanes that a pool can have: as many as its index has slots.
pub const LANES_MAX: usize = SLOTS_MAX;
const _: () = assert!(LANES_MAX == config::REPLICAS_MAX);
/// Names of models and adapters that a pool remembers.
const NAMES_MAX: usize = 4_096;
/// A slot that was given up is not given out again for so long, so that a request which still
/// holds an older pool cannot credit a newcomer with what the former owner holds.
const SLOT_REST_MS: u64 = 60_000;

/// What can be sent a request: a replica, or one of its data-parallel ranks.
#[derive(Clone)]
pub struct Lane {
    /// The server.
    pub replica: Arc<Replica>,
    /// Its index in [`Pool::replicas`].
    pub member: usize,
    /// The rank to ask for (`X-data-parallel-rank`); `None` without data parallelism.
    pub rank: Option<u32>,
    /// Its number for the prefix index.
    pub slot: Slot,
    /// A hash of the replica's id and the rank, for what gateways decide alike.
    pub key: u64,
    /// What we have in flight there.
    pub ledger: Arc<Ledger>,
    /// How its blocks are known.
    pub known: Arc<State>,
}

/// Replicas that serve the same base model.
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Its replicas, draining ones too; an index here is a [`Lane::member`].
    pub replicas: Vec<Arc<Replica>>,
    /// What a request is sent to; an index here is what routing picks.
    pub lanes: Vec<Lane>,
    /// What outlives a change of members.
    pub state: Arc<PoolState>,
    /// Configured key for its replicas.
    pub api_key: Option<config::Secret>,
    /// Prices for usage records.
    pub price: Option<config::Price>,
    /// Whom it believes where replicas speak TLS.
    pub(super) trust: Option<Trust>,
    /// The name in their certificates, where that is not their host.
    pub(super) server_name: Option<String>,
    /// Tokenizer and template, when configured.
    pub(super) model: Option<Arc<Model>>,
    /// Configured tokens in a block of the KV cache.
    pub(super) block_tokens: Option<u32>,
    /// Sequences that one of its engines runs at once, where configured; 0 = learned by each.
    pub sequences_max: u64,
    /// Of a decode pool: index of the pool that prefills for it.
    pub prefills_at: Option<usize>,
}

impl Pool {
    /// The same pool with these members. Whoever was one under the same id and address stays who
    /// it is.
    #[must_use]
    pub(super) fn with_members(&self, members: &[config::Replica], now_ms: u64) -> Pool {
        let known: HashMap<&str, _> = self.replicas.iter().map(|r| (&*r.id, r)).collect();
        let replica = |listed: &config::Replica| {
            let kept = known.get(listed.id.as_str()).copied();
            let kept = kept.filter(|replica| replica.is(listed));
            if let Some(kept) = kept {
                kept.set_weight(listed.weight);
            }
            let new = || Arc::new(Replica::new(listed, self.state.cores));
            let replica = kept.map_or_else(new, Arc::clone);
            replica.set_peer(self.trust.as_ref(), self.server_name.as_deref(), listed);
            replica
        };
        let replicas: Vec<_> = members.iter().map(replica).collect();
        Pool {
            name: Arc::clone(&self.name),
            lanes: self.state.lanes(&replicas, now_ms),
            replicas,
            state: Arc::clone(&self.state),
            api_key: self.api_key.clone(),
            price: self.price,
            trust: self.trust.clone(),
            server_name: self.server_name.clone(),
            model: self.model.clone(),
            block_tokens: self.block_tokens,
            sequences_max: self.sequences_max,
            prefills_at: self.prefills_at,
        }
    }

    /// How its prompts are counted: `exact`, `estimate`, or `fell_back` to estimates.
    #[must_use]
    pub fn prompt_mode(&self) -> &'static str {
        match &self.model {
            None => "estimate",
            Some(_) if self.state.prompts.fell_back() => "fell_back",
            Some(_) => "exact",
        }
    }

    /// What turns its prompts into the engine's tokens, as long as its counts can be trusted.
    #[must_use]
    pub fn model(&self) -> Option<&Arc<Model>> {
        self.model.as_ref().filter(|_| !self.state.prompts.fell_back())
    }

    /// A hash of its chat template, for logs; 0 without one.
    #[must_use]
    pub fn template_digest(&self) -> u64 {
        self.model.as_ref().map_or(0, |model| model.template_digest())
    }

    /// Bytes of its tokenizer's tables, shared with pools that name the same; 0 without one.
    #[must_use]
    pub fn tokenizer_bytes(&self) -> usize {
        self.model.as_ref().map_or(0, |model| model.tokenizer().bytes())
    }

    /// What a lane's entries in the prefix index come from: the engine's events, our own
    /// dispatches, or these by chunks of text where tokens are not known.
    #[must_use]
    pub fn prefix_mode(&self, lane: &Lane) -> Mode {
        if self.prefix_is_text() { Mode::Text } else { lane.known.mode() }
    }

    /// Are the entries in its prefix index chunks of text, since its tokens are not known?
    #[must_use]
    pub fn prefix_is_text(&self) -> bool {
        self.model().is_none()
    }

    /// Tokens in a block of its replicas' KV cache, as configured or learned; 0 = not known, or
    /// the replicas differ, so that no block of one is a block of another.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        if let Some(configured) = self.block_tokens {
            return configured;
        }
        let learned = self.replicas.iter().map(|r| r.signals.block_tokens());
        let mut learned = learned.filter(|tokens| *tokens != 0);
        let first = learned.next().unwrap_or(0);
        if learned.all(|tokens| tokens == first) { first } else { 0 }
    }

    /// Replicas and ranks that have no lane, since there are more of them than [`LANES_MAX`]: they
    /// get no request.
    #[must_use]
    pub fn lanes_missing(&self) -> usize {
        let wanted = self.replicas.iter().enumerate().flat_map(ranks).count();
        wanted.saturating_sub(self.lanes.len())
    }

    /// Requests and tokens that we have in flight at a replica, over its lanes.
    #[must_use]
    pub fn in_flight(&self, replica: &Replica) -> (u64, u64) {
        let lanes = self.lanes.iter().filter(|lane| lane.replica.key == replica.key);
        lanes.fold((0, 0), |(requests, tokens), lane| {
            let (more, heavier) = (lane.ledger.requests(), lane.ledger.tokens());
            (requests.wrapping_add(more), tokens.wrapping_add(heavier))
        })
    }
}

/// What of a pool outlives a change of its members.
pub struct PoolState {
    /// How far counts of its prompts can be trusted.
    pub prompts: Standing,
    /// Which lane holds which blocks.
    pub index: Index,
    /// What other gateways are told of its dispatches.
    pub outbox: Outbox,
    /// Whether the source of its members is well.
    pub source: SourceHealth,
    /// That its pair does not prefill for it.
    pub unpaired_said: Seldom,
    cores: usize,
    seats: Mutex<Seats>,
    /// Models and adapters that any replica has listed, in order.
    names: Mutex<Vec<Entry>>,
}

/// Which replica and rank has which slot, and what goes with it.
#[derive(Default)]
struct Seats {
    taken: HashMap<(usize, u32), Seat>,
    /// Given up, with the time since when; the oldest first.
    resting: VecDeque<(Slot, u64)>,
    /// Slots below were given out once.
    next: Slot,
}

/// What a lane keeps while it lives.
#[derive(Clone)]
struct Seat {
    slot: Slot,
    ledger: Arc<Ledger>,
    known: Arc<State>,
}

impl PoolState {
    /// The state of a new pool whose lanes `cores` cores write.
    #[must_use]
    pub fn new(cores: usize) -> PoolState {
        PoolState {
            prompts: Standing::default(),
            // A seed that callers cannot know, so that no prompts can be made to crowd one place.
            index: Index::new(Limits {
                seed: getrandom::u64().unwrap_or_default(),
                ..Limits::default()
            }),
            outbox: Outbox::default(),
            source: SourceHealth::default(),
            unpaired_said: Seldom::default(),
            cores,
            seats: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Cores that write its lanes.
    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// Remembers what replicas list now, and gives all that was ever listed. A name that comes
    /// back takes the place of what it was.
    pub(super) fn remember<'l>(
        &self,
        lists: impl Iterator<Item = &'l Arc<Vec<Entry>>>,
    ) -> Vec<Entry> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in lists.flat_map(|list| list.iter()) {
            match names.iter().position(|known| known.id == entry.id) {
                Some(at) => {
                    let known = names.get_mut(at).filter(|known| !known.same(entry));
                    known.into_iter().for_each(|known| known.clone_from(entry));
                }
                None if names.len() < NAMES_MAX => names.push(entry.clone()),
                None => {}
            }
        }
        names.clone()
    }

    /// Has any replica ever listed a model?
    #[must_use]
    pub(super) fn remembers(&self) -> bool {
        !self.names.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The lanes of `replicas`: who had one keeps its slot and ledger.
    fn lanes(&self, replicas: &[Arc<Replica>], now_ms: u64) -> Vec<Lane> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: Vec<_> = replicas.iter().enumerate().flat_map(ranks).collect();
        let keys = wanted.iter().map(|(_, replica, rank)| (replica.key, rank.unwrap_or(0)));
        let keys: HashSet<_> = keys.collect();
        let gone = seats.taken.extract_if(|key, _| !keys.contains(key));
        let mut gone: Vec<Slot> = gone.map(|(_, seat)| seat.slot).collect();
        gone.sort_unstable();
        for slot in gone {
            self.index.write(|writer| writer.clear(slot));
            seats.resting.push_back((slot, now_ms));
        }
        let lanes = wanted.into_iter().filter_map(|(member, replica, rank)| {
            // The first rank takes over from the server as a whole when ranks become known.
            let seat = (replica.key, rank.unwrap_or(0));
            let Seat { slot, ledger, known } = seats.seat(seat, self.cores, now_ms)?;
            // A whole server and its first rank have the same name: ranks become known later.
            let key = xxh3_64_with_seed(replica.id.as_bytes(), rank.unwrap_or(0).into());
            Some(Lane { replica: Arc::clone(replica), member, rank, slot, key, ledger, known })
        });
        lanes.collect()
    }
}

/// The lanes that a replica has, by rank.
fn ranks(
    (member, replica): (usize, &Arc<Replica>),
) -> impl Iterator<Item = (usize, &Arc<Replica>, Option<u32>)> {
    let ranks = replica.signals.ranks();
    let apart = (2..=RANKS_MAX as u32).contains(&ranks);
    let count = if apart { ranks } else { 1 };
    (0..count).map(move |rank| (member, replica, apart.then_some(rank)))
}

impl Seats {
    fn seat(&mut self, key: (usize, u32), cores: usize, now_ms: u64) -> Option<Seat> {
        if let Some(seat) = self.taken.get(&key) {
            return Some(seat.clone());
        }
        let seat = Seat {
            slot: self.free_slot(now_ms)?,
            ledger: Arc::new(Ledger::new(cores)),
            known: Arc::default(),
        };
        self.taken.insert(key, seat.clone());
        Some(seat)
    }

    fn free_slot(&mut self, now_ms: u64) -> Option<Slot> {
        let rested = |(_, since): &(Slot, u64)| now_ms.saturating_sub(*since) >= SLOT_REST_MS;
        if self.resting.front().is_some_and(rested) {
            return self.resting.pop_front().map(|(slot, _)| slot);
        }
        if usize::from(self.next) < LANES_MAX {
            self.next = self.next.saturating_add(1);
            return Some(self.next.saturating_sub(1));
        }
        self.resting.pop_front().map(|(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Dispatch;
    use super::*;

    fn replica(id: &str) -> Arc<Replica> {
        let listed = config::Replica {
            url: format!("http://{id}:1"),
            host: id.to_owned(),
            port: 1,
            id: id.to_owned(),
            zone: None,
            weight: 1.0,
            server_name: None,
        };
        Arc::new(Replica::new(&listed, 1))
    }

    fn tokens(prompt_tokens: u64) -> Dispatch {
        Dispatch { prompt_tokens, ..Dispatch::default() }
    }

    fn slots(state: &PoolState, replicas: &[Arc<Replica>], now_ms: u64) -> Vec<Slot> {
        state.lanes(replicas, now_ms).iter().map(|lane| lane.slot).collect()
    }

    #[test]
    fn who_stays_keeps_slot_and_ledger_and_a_freed_slot_rests() {
        let state = PoolState::new(1);
        let all = [replica("a"), replica("b"), replica("c")];
        let before = state.lanes(&all, 0);
        assert_eq!(slots(&state, &all, 0), [0, 1, 2]);
        let _entry = before[2].ledger.enter(0, &tokens(50), 0);
        let after = state.lanes(&all[2..], 1_000);
        assert_eq!((after[0].slot, after[0].member, after[0].ledger.tokens()), (2, 0, 50));
        let (d, e) = (replica("d"), replica("e"));
        assert_eq!(slots(&state, &[Arc::clone(&all[2]), Arc::clone(&d)], 2_000), [2, 3]);
        let three = [Arc::clone(&all[2]), d, e];
        assert_eq!(slots(&state, &three, 1_000 + SLOT_REST_MS), [2, 3, 0]);
    }

    #[test]
    fn what_is_past_the_limit_has_no_lane_and_is_counted() {
        let text = "[[pool]]\nname = \"p\"\ndiscover = { file = \"none\" }\n";
        let config = config::Config::from_text("test.toml", text).unwrap();
        let fleet = super::super::Fleet::new(&config, 1, &super::super::Files::default(), 0);
        let mut pool = fleet.pools[0].with_members(&[], 0);
        assert_eq!(pool.lanes_missing(), 0);
        pool.replicas = vec![replica("a"); LANES_MAX / 8 + 1];
        for (n, place) in pool.replicas.iter_mut().enumerate() {
            *place = replica(&n.to_string());
            place.signals.set_ranks(8);
        }
        pool.lanes = pool.state.lanes(&pool.replicas, 0);
        assert_eq!((pool.lanes.len(), pool.lanes_missing()), (LANES_MAX, 8));
    }

    #[test]
    fn each_rank_has_a_lane_and_the_first_takes_over() {
        let state = PoolState::new(1);
        let one = [replica("a")];
        let whole = state.lanes(&one, 0);
        let _entry = whole[0].ledger.enter(0, &tokens(9), 0);
        one[0].signals.set_ranks(2);
        let lanes = state.lanes(&one, 1);
        let shown: Vec<_> = lanes.iter().map(|l| (l.rank, l.slot, l.ledger.tokens())).collect();
        assert_eq!(shown, [(Some(0), 0, 9), (Some(1), 1, 0)]);
        one[0].signals.set_ranks(RANKS_MAX as u32 + 1);
        assert_eq!(state.lanes(&one, 2)[0].rank, None);
    }
}
