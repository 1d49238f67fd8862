//! One simulated gateway: the real picker over its own books and its own prefix index.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admission::limits::Asked;
use crate::admission::queue::Place;
use crate::admission::{
    Case, Counters, Limits, Predicted, Queue, Running, Share, Verdict, Waiting, judge,
};
use crate::engine::EngineParams;
use crate::prefix::{self, Index, Slot};
use crate::prompt::blocks::{BlockHash, reusable_tokens};
use crate::routing::fit::{Kind, Observation, Scale, Slowness};
use crate::routing::output::Lengths;
use crate::routing::{
    Candidate, Decision, FleetView, Model, Others, Pick, Picker, Policy, Request, Residency, Rng,
};

use super::adapters::Adapters;
use super::books::{Scraped, Sums, Weight};
use super::random::stream;
use super::scenario::Scenario;

/// The block of a prompt that ends here names its owner while nobody holds it: the first that
/// texts with the same preamble differ in, more often than not.
const OWNER_TOKENS: u64 = 64;
/// Answers from so many tokens on tell how fast a replica decodes.
const TPOT_TOKENS_MIN: u64 = 16;
/// A wait that is long: half of the longest.
const LONG_WAIT_MS: u64 = Scenario::QUEUE_MS_MAX / 2;
/// Bytes that an index may take.
const INDEX_BYTES_MAX: usize = 1 << 30;

/// A request as it reaches the gateway.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) prompt_tokens: u64,
    /// Hashes of the session's blocks; the prompt has the first `prompt_blocks`.
    pub(super) chain: Arc<[BlockHash]>,
    pub(super) prompt_blocks: usize,
    pub(super) adapter: u32,
    pub(super) tenant: usize,
    /// Which of the run's conversations it belongs to.
    pub(super) slot: usize,
    pub(super) arrived_us: u64,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// It is sent there.
    Send(Pick),
    /// It waits for room, for so many ms at most from now.
    Wait(u64),
    Refused,
    Nobody,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) replica: usize,
    pub(super) adapter: u32,
    tenant: usize,
    /// Tokens of the answer that its tenant was charged.
    charged: f64,
    /// Tokens of the prompt that the replica was thought to hold.
    pub(super) cached_tokens: u64,
    weight: Weight,
    at_us: u64,
    /// Predicted, and the slowness that the prediction took.
    ttft_ms: f64,
    tpot_ms: f64,
    slowness: f64,
}

/// What another gateway is told of a dispatch.
#[derive(Clone, Debug)]
pub(super) struct News {
    replica: usize,
    chain: Arc<[BlockHash]>,
    blocks: usize,
    adapter: u32,
}

/// One gateway.
pub(super) struct Gateway {
    picker: Picker,
    rng: Rng,
    engine: EngineParams,
    slo: super::scenario::Slo,
    shed: bool,
    ledger: bool,
    told: bool,
    index: Index,
    scale: Scale,
    lengths: Lengths,
    replicas: Vec<Known>,
    /// Leading blocks of the prompt at hand that each replica holds.
    depths: Vec<u32>,
    news: Vec<News>,
    headroom: f64,
    counters: Counters,
    queue: Queue,
    /// Where the conversations wait, by slot.
    places: BTreeMap<usize, Place>,
}

/// What the gateway knows of a replica.
#[derive(Debug, Default)]
struct Known {
    down: bool,
    own: Sums,
    /// What the other gateways said that they have in flight there.
    others: Sums,
    scraped: Scraped,
    /// Uncached tokens sent there since the metrics were read.
    since_scrape: u64,
    adapters: Adapters,
    slowness: Slowness,
}

impl Gateway {
    pub(super) fn new(scenario: &Scenario, policy: Policy, number: usize) -> Gateway {
        let index = Index::new(prefix::Limits {
            bytes_max: INDEX_BYTES_MAX,
            blocks_expected: scenario.engine.blocks.saturating_mul(scenario.replicas as u64),
            ..prefix::Limits::default()
        });
        index.write(|writer| {
            for replica in 0..scenario.replicas {
                writer.set_capacity(replica as Slot, scenario.engine.blocks);
            }
        });
        let known = || {
            let adapters = Adapters::new(scenario.engine.adapter_slots);
            Known { adapters, ..Known::default() }
        };
        Gateway {
            picker: Picker::new(policy),
            rng: stream(scenario.seed, 1000 + number as u64),
            engine: scenario.engine.clone(),
            slo: scenario.slo,
            shed: scenario.shed,
            // This policy is published for scraped numbers.
            ledger: scenario.ledger && policy != Policy::LlmD,
            told: scenario.gossip_us > 0 && scenario.gateways > 1,
            index,
            scale: Scale::default(),
            lengths: Lengths::new(),
            replicas: (0..scenario.replicas).map(|_| known()).collect(),
            depths: vec![0; scenario.replicas],
            news: Vec::new(),
            headroom: scenario.headroom,
            counters: Counters::new(&vec![
                Share { weight: 1.0, priority: 0 };
                scenario.tenants.max(1)
            ]),
            queue: Queue::default(),
            places: BTreeMap::new(),
        }
    }

    /// Chooses a replica, and says whether the request may start there now. `tried`: it waits
    /// already, and nobody is before it.
    pub(super) fn admit(&mut self, ask: &Ask, tried: bool, now_us: u64) -> Answer {
        let (pick, full) = match self.pick(ask, now_us) {
            Decision::Pick(pick) => (pick, false),
            Decision::Hold(pick) => (pick, true),
            Decision::Nobody => return Answer::Nobody,
        };
        let output_tokens = self.lengths.expect(None, 0).mean;
        let Pick { ttft_ms, tpot_ms, prefill_ms, fleet_tpot_ms, .. } = pick;
        let predicted = Predicted { ttft_ms, prefill_ms, tpot_ms, fleet_tpot_ms, output_tokens };
        let limits = if self.shed { self.limits(ask, output_tokens) } else { Limits::default() };
        let case = Case {
            limits: &limits,
            predicted,
            full,
            behind: !tried && self.queue.has_class(u64::from(ask.adapter)),
            waited_ms: (now_us - ask.arrived_us) as f64 / 1e3,
            standing: self.counters.asks(ask.tenant, now_us / 1000),
            running: self.running(output_tokens * tpot_ms),
            tokens: ask.prompt_tokens + output_tokens as u64,
            tokens_before: if tried {
                0
            } else {
                self.queue.tokens_before(ask.tenant, &self.counters)
            },
            queue_ms_max: Scenario::QUEUE_MS_MAX,
        };
        match judge(&case) {
            Verdict::Start => Answer::Send(pick),
            Verdict::Wait { most_ms } => Answer::Wait(most_ms),
            Verdict::Refuse { .. } => Answer::Refused,
        }
    }

    fn limits(&self, ask: &Ask, output_tokens: f64) -> Limits {
        Limits::of(&Asked {
            slo_ttft_ms: Some(self.slo.ttft_ms),
            slo_tpot_ms: Some(self.slo.tpot_ms),
            prompt_tokens: ask.prompt_tokens,
            output_tokens: output_tokens as u64,
            ..Asked::default()
        })
    }

    fn running(&self, answer_ms: f64) -> Running {
        let sums = self.replicas.iter().map(|known| known.own);
        let (requests, tokens) =
            sums.fold((0, 0), |(n, tokens), own| (n + own.requests, tokens + own.tokens));
        Running { requests, tokens, answer_ms }
    }

    /// A request waits from now on, `most_ms` at most.
    pub(super) fn enqueue(&mut self, ask: &Ask, most_ms: u64, now_us: u64) {
        let waiting = Waiting {
            tenant: ask.tenant,
            class: u64::from(ask.adapter),
            tokens: ask.prompt_tokens,
            since_ms: now_us / 1000,
            until_ms: now_us / 1000 + most_ms,
        };
        let place = self.queue.push(waiting, &self.counters);
        self.places.insert(ask.slot, place);
    }

    /// A request waits no more: it is sent, or it leaves.
    pub(super) fn dequeue(&mut self, slot: usize, sent: bool, now_us: u64) {
        let Some(place) = self.places.remove(&slot) else { return };
        if sent {
            self.queue.serve(&place, now_us / 1000, LONG_WAIT_MS, &self.counters);
        } else {
            self.queue.remove(&place);
        }
    }

    /// Who is tried next of those that wait, but for these adapters.
    pub(super) fn next_waiting(&self, but: &[u32], now_us: u64) -> Option<usize> {
        let skip = |class: u64| but.iter().any(|&adapter| u64::from(adapter) == class);
        let place = self.queue.next(now_us / 1000, LONG_WAIT_MS, &self.counters, skip)?;
        self.places.iter().find(|(_, other)| **other == place).map(|(slot, _)| *slot)
    }

    fn pick(&mut self, ask: &Ask, now_us: u64) -> Decision {
        let prompt = ask.chain.get(..ask.prompt_blocks).unwrap_or_default();
        self.index.depths(prompt, &mut self.depths);
        let block_tokens = self.engine.block_tokens;
        let owner_block = (OWNER_TOKENS / block_tokens.max(1)).saturating_sub(1) as usize;
        let owner = prompt.get(owner_block.min(prompt.len().saturating_sub(1)));
        let request = Request {
            prompt_tokens: ask.prompt_tokens,
            output_tokens: self.lengths.expect(None, 0).mean,
            output_tokens_max: 0,
            block_tokens: block_tokens as u32,
            ttft_limit_ms: self.slo.ttft_limit_ms(ask.prompt_tokens),
            tpot_limit_ms: self.slo.tpot_ms,
            adapter: ask.adapter != 0,
            owner_key: owner.map_or(0, |&hash| hash as u64),
            may_hold: true,
            headroom: self.headroom,
        };
        let model = Model { step: &self.engine.step, step_tokens_max: self.engine.step_tokens_max };
        let mut others = Others::default();
        if self.told {
            self.replicas.iter().for_each(|known| others.add(&known.others.told()));
        }
        let view = View {
            others,
            replicas: &self.replicas,
            depths: &self.depths,
            engine: &self.engine,
            ledger: self.ledger,
            told: self.told,
            adapter: ask.adapter,
            scale: &self.scale,
            most: reusable_tokens(ask.prompt_tokens, block_tokens),
            now_us,
        };
        self.picker.pick(&request, &view, &model, now_us, &mut self.rng)
    }

    /// A request goes where it was picked for; returns what its end needs.
    pub(super) fn dispatched(&mut self, pick: &Pick, ask: &Ask, now_us: u64) -> Sent {
        let output_tokens = self.lengths.expect(None, 0).mean;
        let weight = Weight {
            prefill_tokens: ask.prompt_tokens.saturating_sub(pick.cached_tokens),
            tokens: ask.prompt_tokens + output_tokens as u64,
            kv_tokens: ask.prompt_tokens + (output_tokens / 2.0) as u64,
        };
        let replica = pick.replica;
        let mut slowness = 1.0;
        if let Some(known) = self.replicas.get_mut(replica) {
            known.own.dispatch(&weight, pick.prefill_ms, now_us);
            known.since_scrape += weight.prefill_tokens;
            known.adapters.begin(ask.adapter, now_us);
            slowness = known.slowness.get(&self.scale, now_us / 1000);
        }
        let prompt = ask.chain.get(..ask.prompt_blocks).unwrap_or_default();
        self.index.dispatched(replica as Slot, prompt, now_us / 1000);
        if self.told {
            let (chain, blocks) = (ask.chain.clone(), ask.prompt_blocks);
            self.news.push(News { replica, chain, blocks, adapter: ask.adapter });
        }
        let (tenant, charged) = (ask.tenant, output_tokens);
        self.counters.charge(tenant, weight.prefill_tokens, charged, now_us / 1000);
        let Pick { cached_tokens, ttft_ms, tpot_ms, .. } = *pick;
        let (adapter, at_us) = (ask.adapter, now_us);
        Sent {
            replica,
            adapter,
            tenant,
            charged,
            weight,
            cached_tokens,
            ttft_ms,
            tpot_ms,
            slowness,
            at_us,
        }
    }

    /// Whether it believes that `replica` has the adapter loaded.
    pub(super) fn has_adapter(&self, replica: usize, adapter: u32) -> bool {
        let known = self.replicas.get(replica);
        known.is_some_and(|known| known.adapters.residency(adapter) == Residency::Resident)
    }

    /// The first token of a request has come.
    pub(super) fn first(&mut self, sent: &Sent, now_us: u64) {
        let Some(known) = self.replicas.get_mut(sent.replica) else { return };
        known.own.first(&sent.weight, now_us);
        let actual_ms = (now_us - sent.at_us) as f64 / 1e3;
        let predicted_ms = sent.ttft_ms / sent.slowness;
        let seen = Observation { kind: Kind::Ttft, predicted_ms, actual_ms };
        known.slowness.observe(&self.scale, seen, now_us / 1000);
    }

    /// A request has ended.
    pub(super) fn ended(&mut self, sent: &Sent, first_us: Option<u64>) {
        if let Some(known) = self.replicas.get_mut(sent.replica) {
            known.own.end(&sent.weight, first_us);
            known.adapters.end(sent.adapter);
        }
    }

    /// The request that has ended was complete.
    pub(super) fn answered(&mut self, sent: &Sent, tokens: u64, tpot_ms: f64, now_us: u64) {
        self.lengths.observe(None, 0, tokens);
        self.counters.correct(sent.tenant, sent.charged, tokens as f64, now_us / 1000);
        let Some(known) = self.replicas.get_mut(sent.replica) else { return };
        if tokens >= TPOT_TOKENS_MIN {
            let predicted_ms = sent.tpot_ms / sent.slowness;
            let seen = Observation { kind: Kind::Tpot, predicted_ms, actual_ms: tpot_ms };
            known.slowness.observe(&self.scale, seen, now_us / 1000);
        }
    }

    /// The metrics of a replica have been read.
    pub(super) fn scraped(&mut self, replica: usize, scraped: Scraped) {
        if let Some(known) = self.replicas.get_mut(replica) {
            known.scraped = scraped;
            known.since_scrape = 0;
        }
    }

    /// A replica's death shows, or its return. Its cache is empty either way.
    pub(super) fn set_down(&mut self, replica: usize, down: bool) {
        if let Some(known) = self.replicas.get_mut(replica) {
            known.down = down;
            known.scraped = Scraped::default();
            known.adapters.forget();
            known.slowness.reset();
        }
        self.index.write(|writer| writer.clear(replica as Slot));
    }

    /// What it has to tell the others since the last time.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Hears of the others' dispatches.
    pub(super) fn hear(&mut self, news: &[News], now_us: u64) {
        for News { replica, chain, blocks, adapter } in news {
            let prompt = chain.get(..*blocks).unwrap_or_default();
            self.index.dispatched(*replica as Slot, prompt, now_us / 1000);
            if let Some(known) = self.replicas.get_mut(*replica) {
                known.adapters.seen(*adapter, now_us);
            }
        }
    }

    /// What it has in flight at `replica`.
    pub(super) fn own(&self, replica: usize) -> Sums {
        self.replicas.get(replica).map_or(Sums::default(), |known| known.own)
    }

    /// Nothing is in flight, of its own and by its own books.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let idle = |known: &Known| known.own.is_zero() && known.adapters.busy() == 0;
        self.queue.is_empty() && self.places.is_empty() && self.replicas.iter().all(idle)
    }

    /// Hears what the others have in flight.
    pub(super) fn set_others(&mut self, replica: usize, sums: Sums) {
        if let Some(known) = self.replicas.get_mut(replica) {
            known.others = sums;
        }
    }
}

/// The fleet as the picker sees it for one request.
struct View<'a> {
    /// What the other gateways said that they have in flight, over the fleet.
    others: Others,
    replicas: &'a [Known],
    depths: &'a [u32],
    engine: &'a EngineParams,
    ledger: bool,
    told: bool,
    adapter: u32,
    scale: &'a Scale,
    /// Most tokens of the prompt that a cache can spare.
    most: u64,
    now_us: u64,
}

impl FleetView for View<'_> {
    fn len(&self) -> usize {
        self.replicas.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        let (Some(known), Some(&depth)) = (self.replicas.get(index), self.depths.get(index)) else {
            return Candidate { eligible: false, ..Candidate::default() };
        };
        let sums = known.own;
        let mut duty = sums;
        if self.told {
            duty.add(&known.others);
        }
        let block_tokens = self.engine.block_tokens.max(1);
        let blocks_since = known.since_scrape.div_ceil(block_tokens);
        let mut candidate = Candidate {
            eligible: !known.down,
            cached_tokens: (u64::from(depth) * block_tokens).min(self.most),
            pending_tokens: sums.pending_tokens,
            pending_requests: sums.pending_requests,
            decodes: sums.decodes,
            decode_kv_tokens: sums.decode_kv_tokens,
            decode_age_ms: sums.decode_age_ms(self.now_us),
            requests: sums.requests,
            load_tokens: sums.tokens,
            blocks: self.engine.blocks,
            blocks_used: known.scraped.blocks_used + blocks_since,
            sequences_max: self.engine.sequences_max,
            prefill_duty: duty.prefill_duty(self.now_us),
            adapter: known.adapters.residency(self.adapter),
            adapters_busy: known.adapters.busy(),
            adapter_slots: self.engine.adapter_slots,
            slowness: known.slowness.get(self.scale, self.now_us / 1000),
            ..Candidate::default()
        };
        if self.told {
            known.others.told().add_to(&mut candidate, &self.others, self.replicas.len());
        }
        if !self.ledger {
            known.scraped.show(&mut candidate, block_tokens);
        }
        candidate
    }

    fn lags(&self) -> bool {
        !self.ledger
    }
}

impl Scraped {
    /// What the metrics tell in the place of own accounts. They have no pending tokens: a request
    /// that waits counts as its share of what the running ones hold.
    fn show(&self, candidate: &mut Candidate, block_tokens: u64) {
        let kv_tokens = self.blocks_used * block_tokens;
        candidate.pending_requests = self.waiting;
        candidate.pending_tokens = self.waiting * kv_tokens / self.running.max(1);
        candidate.decodes = self.running;
        candidate.decode_kv_tokens = kv_tokens;
        candidate.requests = self.running + self.waiting;
        candidate.load_tokens = kv_tokens + candidate.pending_tokens;
        candidate.blocks_used = self.blocks_used;
    }
}
