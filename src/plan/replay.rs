//! One run: a workload against a fleet in virtual time.
//!
//! A request comes to a gateway, which picks a replica after its own time; the network takes its
//! time each way; the engine says when the first token and the end are there. All of it on one
//! thread, in the order of time: the same seed gives the same run.

use std::sync::Arc;

use crate::engine::{Progress, Work};
use crate::prompt::blocks::BlockHash;
use crate::routing::{Pick, Policy};

use super::agenda::{Agenda, Event};
use super::books::Sums;
use super::endless::Endless;
use super::gateway::{Answer, Ask, Gateway, Sent};
use super::replica::Replica;
use super::scenario::{Crash, Scenario};
use super::tally::{End, Tally};
use super::workload::{Session, Turn, Workload, in_blocks_of};

/// Where a conversation's turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No request of it is under way.
    Idle,
    /// At the gateway, about to be sent.
    Picking,
    /// At the gateway: no replica has room.
    Held,
    /// Sent, nothing has come back.
    Sent,
    /// Its first token has come.
    Decoding,
}

/// A session under way: at most one request of it is.
#[derive(Clone, Debug)]
struct Conversation {
    session: usize,
    turn: usize,
    chain: Arc<[BlockHash]>,
    phase: Phase,
    /// Which sending its events belong to.
    sending: u32,
    attempts: u32,
    gateway: usize,
    /// What was last sent, and where.
    sent: Sent,
    arrived_us: u64,
    first_us: u64,
    /// It came after the warm-up.
    counts: bool,
}

/// A run under way.
pub(super) struct Run<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    now_us: u64,
    agenda: Agenda,
    gateways: Vec<Gateway>,
    replicas: Vec<Replica>,
    conversations: Vec<Conversation>,
    free: Vec<usize>,
    progress: Vec<Progress>,
    endless: Endless,
    /// Requests that came, and that ended.
    came: u64,
    gone: u64,
    /// Of those that came after the warm-up.
    tally: Tally,
}

/// Runs to the end; calls `tick` with the virtual time now and then.
pub(super) fn run(
    scenario: &Scenario,
    workload: &Workload,
    policy: Policy,
    tick: &mut dyn FnMut(u64),
) -> Tally {
    let mut run = Run::new(scenario, workload, policy);
    run.finish(tick);
    run.tally
}

impl<'a> Run<'a> {
    pub(super) fn new(scenario: &'a Scenario, workload: &'a Workload, policy: Policy) -> Run<'a> {
        let gateways = scenario.gateways.max(1);
        let factor = |replica: usize| {
            let slow = scenario.slow.iter().find(|slow| slow.replica == replica);
            slow.map_or(1.0, |slow| slow.factor)
        };
        let replicas = (0..scenario.replicas).map(|i| Replica::new(&scenario.engine, factor(i)));
        let mut run = Run {
            scenario,
            workload,
            now_us: 0,
            agenda: Agenda::default(),
            gateways: (0..gateways).map(|i| Gateway::new(scenario, policy, i)).collect(),
            replicas: replicas.collect(),
            conversations: Vec::new(),
            free: Vec::new(),
            progress: Vec::new(),
            endless: Endless::default(),
            came: 0,
            gone: 0,
            tally: Tally::default(),
        };
        run.prepare();
        run
    }

    fn prepare(&mut self) {
        if let Some(first) = self.workload.sessions.first() {
            self.agenda.at(first.start_us, Event::Start(0));
        }
        self.agenda.at(self.scenario.scrape_us, Event::Scrape);
        if self.scenario.gossip_us > 0 && self.gateways.len() > 1 {
            self.agenda.at(self.scenario.gossip_us, Event::Gossip);
        }
        for (index, &Crash { at_us, down_us, .. }) in self.scenario.crashes.iter().enumerate() {
            self.agenda.at(at_us, Event::Crash(index));
            let seen_us = at_us + down_us.min(Scenario::CRASH_SEEN_US);
            self.agenda.at(seen_us, Event::CrashSeen(index));
            self.agenda.at(at_us + down_us, Event::Back(index));
        }
    }

    /// Until every request has ended, or the time for that is over.
    pub(super) fn finish(&mut self, tick: &mut dyn FnMut(u64)) {
        let last_us = self.workload.end_us + Scenario::DRAIN_US;
        let mut until_tick = 0u32;
        while let Some((us, event)) = self.agenda.next().filter(|&(us, _)| us <= last_us) {
            self.now_us = us;
            self.handle(event);
            until_tick = until_tick.wrapping_add(1);
            if until_tick.is_multiple_of(4096) {
                tick(us);
            }
        }
        for slot in 0..self.conversations.len() {
            if self.phase(slot) != Phase::Idle {
                self.take_off(slot);
                self.leave_queue(slot);
                self.end(slot, End::Unfinished);
            }
        }
        self.tally.preemptions = self.replicas.iter().map(Replica::preemptions).sum();
        self.replicas.iter().for_each(|replica| replica.add_gaps(&mut self.tally.gaps));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(session) => self.start(session),
            Event::Turn(slot) => self.arrive(slot),
            Event::Pick(slot) => self.pick(slot),
            Event::Deliver(id) => self.deliver(id),
            Event::Step(replica) => self.step(replica),
            Event::First { id, cached_tokens } => self.first(id, cached_tokens),
            Event::End(id) => self.complete(id),
            Event::HoldOver(id) => self.hold_over(id),
            Event::Scrape => self.scrape(),
            Event::Gossip => self.gossip(),
            Event::Crash(crash) => {
                if let Some(replica) = self.crashed(crash) {
                    replica.crash();
                }
            }
            Event::CrashSeen(crash) => self.crash_seen(crash),
            Event::Back(crash) => self.back(crash),
        }
    }

    fn start(&mut self, index: usize) {
        let sessions = &self.workload.sessions;
        let Some(session) = sessions.get(index) else { return };
        if let Some(next) = sessions.get(index + 1) {
            self.agenda.at(next.start_us, Event::Start(index + 1));
        }
        let conversation = Conversation {
            session: index,
            turn: 0,
            chain: in_blocks_of(session.chain(), self.scenario.engine.block_tokens),
            phase: Phase::Idle,
            sending: 0,
            attempts: 0,
            gateway: 0,
            sent: Sent::default(),
            arrived_us: 0,
            first_us: 0,
            counts: true,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.conversations.push(conversation.clone());
                self.conversations.len() - 1
            }
        };
        if let Some(place) = self.conversations.get_mut(slot) {
            // Events of who was here before stay stale.
            *place = Conversation { sending: place.sending, ..conversation };
        }
        self.arrive(slot);
    }

    fn arrive(&mut self, slot: usize) {
        let number = self.came as usize;
        let gateways = self.gateways.len();
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        conversation.arrived_us = self.now_us;
        conversation.gateway = number % gateways;
        conversation.attempts = 0;
        conversation.phase = Phase::Picking;
        conversation.counts = self.now_us >= self.scenario.warmup_us;
        let counts = conversation.counts;
        let Some(session) = self.workload.sessions.get(conversation.session) else { return };
        let Some(turn) = session.turns.get(conversation.turn) else { return };
        self.came += 1;
        let endless_tokens = self.endless.ask(session, conversation.turn);
        if counts {
            self.tally.asks(session.tenant);
            self.tally.asked_tokens += u64::from(turn.prompt_tokens);
            self.tally.endless_tokens += endless_tokens;
        }
        self.agenda.at(self.now_us + self.scenario.gateway_us, Event::Pick(slot));
    }

    fn pick(&mut self, slot: usize) {
        let Some((session, turn)) = self.turn(slot) else { return };
        let Some(conversation) = self.conversations.get(slot) else { return };
        let ask = Ask {
            prompt_tokens: u64::from(turn.prompt_tokens),
            chain: conversation.chain.clone(),
            prompt_blocks: turn.prompt_blocks(self.scenario.engine.block_tokens),
            adapter: session.adapter,
            tenant: session.tenant as usize,
            slot,
            arrived_us: conversation.arrived_us,
        };
        let held = conversation.phase == Phase::Held;
        let Some(gateway) = self.gateways.get_mut(conversation.gateway) else { return };
        let answer = gateway.admit(&ask, held, self.now_us);
        match (&answer, held) {
            (Answer::Wait(_), true) => return,
            (Answer::Wait(most_ms), false) => gateway.enqueue(&ask, *most_ms, self.now_us),
            (answer, _) => {
                let sent = matches!(answer, Answer::Send(_));
                gateway.dequeue(slot, sent, self.now_us);
            }
        }
        match answer {
            Answer::Send(pick) => self.send(slot, &ask, &pick),
            Answer::Wait(most_ms) => self.hold(slot, most_ms),
            Answer::Refused => self.end(slot, End::Shed),
            Answer::Nobody => self.end(slot, End::Failed),
        }
    }

    fn send(&mut self, slot: usize, ask: &Ask, pick: &Pick) {
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        let Some(gateway) = self.gateways.get_mut(conversation.gateway) else { return };
        if ask.adapter != 0 && conversation.counts {
            self.tally.adapter_asked += 1;
            let there = gateway.has_adapter(pick.replica, ask.adapter);
            self.tally.adapter_resident += u64::from(there);
        }
        conversation.sent = gateway.dispatched(pick, ask, self.now_us);
        conversation.phase = Phase::Sent;
        conversation.attempts += 1;
        conversation.sending = conversation.sending.wrapping_add(1);
        let id = id(slot, conversation.sending);
        self.agenda.at(self.now_us + self.scenario.network_us, Event::Deliver(id));
    }

    fn deliver(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        let Some((session, turn)) = self.turn(slot) else { return };
        let Some(conversation) = self.conversations.get(slot) else { return };
        let work = Work {
            id,
            hashes: conversation.chain.clone(),
            prompt_tokens: u64::from(turn.prompt_tokens),
            output_tokens: u64::from(turn.output_tokens),
            width: 1,
            adapter: session.adapter,
            received_tokens: 0,
        };
        let index = conversation.sent.replica;
        let Some(replica) = self.replicas.get_mut(index) else { return };
        replica.submit(self.now_us, work);
        if let Some(us) = replica.newly_due() {
            self.agenda.at(us, Event::Step(index));
        }
    }

    fn step(&mut self, index: usize) {
        let Some(replica) = self.replicas.get_mut(index) else { return };
        if replica.scheduled_us != Some(self.now_us) {
            return;
        }
        replica.scheduled_us = None;
        replica.advance(self.now_us, &mut self.progress);
        if let Some(us) = replica.newly_due() {
            self.agenda.at(us, Event::Step(index));
        }
        for progress in self.progress.drain(..) {
            match progress {
                Progress::First { id, at_us, cached_tokens } => {
                    let event = Event::First { id, cached_tokens };
                    self.agenda.at(at_us + self.scenario.network_us, event);
                }
                Progress::Finished { id, at_us } => {
                    self.agenda.at(at_us + self.scenario.network_us, Event::End(id));
                }
            }
        }
    }

    fn first(&mut self, id: u64, cached_tokens: u64) {
        let Some(slot) = self.slot(id) else { return };
        let Some((_, turn)) = self.turn(slot) else { return };
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        conversation.phase = Phase::Decoding;
        conversation.first_us = self.now_us;
        if conversation.counts {
            self.tally.prompt_tokens += u64::from(turn.prompt_tokens);
            self.tally.cached_tokens += cached_tokens;
            self.tally.predicted_tokens += conversation.sent.cached_tokens;
        }
        let gateway = conversation.gateway;
        if let Some(gateway) = self.gateways.get_mut(gateway) {
            gateway.first(&conversation.sent, self.now_us);
        }
        self.try_held(gateway);
    }

    fn complete(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        let Some((_, turn)) = self.turn(slot) else { return };
        let Some(conversation) = self.conversations.get(slot) else { return };
        let Conversation { arrived_us, first_us, counts, .. } = *conversation;
        if counts {
            self.tally.output_tokens += u64::from(turn.output_tokens);
        }
        let tokens_after = u64::from(turn.output_tokens).saturating_sub(1);
        let ms = |us: u64| us as f64 / 1e3;
        let ttft_ms = ms(first_us - arrived_us);
        let tpot_ms = ms(self.now_us - first_us) / tokens_after.max(1) as f64;
        if let Some(gateway) = self.gateways.get_mut(conversation.gateway) {
            let tokens = u64::from(turn.output_tokens);
            gateway.answered(&conversation.sent, tokens, tpot_ms, self.now_us);
        }
        self.take_off(slot);
        self.end(slot, End::Completed { ttft_ms, tpot_ms });
    }

    /// Takes a request out of the books of its gateway.
    fn take_off(&mut self, slot: usize) {
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        conversation.sending = conversation.sending.wrapping_add(1);
        let first_us = match conversation.phase {
            Phase::Sent => None,
            Phase::Decoding => Some(conversation.first_us),
            Phase::Idle | Phase::Picking | Phase::Held => return,
        };
        let number = conversation.gateway;
        if let Some(gateway) = self.gateways.get_mut(number) {
            gateway.ended(&conversation.sent, first_us);
        }
        conversation.phase = Phase::Picking;
        self.try_held(number);
    }

    /// The one place where a request ends. Its session goes on; where no answer came, as if the
    /// client had got it elsewhere, so that every policy has the same sessions.
    fn end(&mut self, slot: usize, end: End) {
        let Some((session, turn)) = self.turn(slot) else { return };
        let whose = (session.tenant, u64::from(turn.prompt_tokens));
        self.gone += 1;
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        if conversation.counts {
            self.tally.end(end, whose, &self.scenario.slo);
        }
        conversation.phase = Phase::Idle;
        conversation.turn += 1;
        let answered_us = match end {
            End::Completed { .. } => self.now_us,
            _ => self.now_us + self.workload.token_us * u64::from(turn.output_tokens),
        };
        let next_us = answered_us + self.workload.think_us;
        if conversation.turn < session.turns.len() && next_us < self.workload.end_us {
            self.agenda.at(next_us, Event::Turn(slot));
        } else {
            conversation.chain = Arc::new([]);
            self.free.push(slot);
        }
    }

    fn hold(&mut self, slot: usize, most_ms: u64) {
        let Some(conversation) = self.conversations.get_mut(slot) else { return };
        conversation.phase = Phase::Held;
        conversation.sending = conversation.sending.wrapping_add(1);
        let id = id(slot, conversation.sending);
        self.agenda.at(self.now_us + most_ms * 1000, Event::HoldOver(id));
    }

    /// A gateway's held requests are tried in order; one that has to wait on holds up those that
    /// wait for the same.
    fn try_held(&mut self, number: usize) {
        let mut full = Vec::new();
        loop {
            let Some(gateway) = self.gateways.get(number) else { return };
            let Some(slot) = gateway.next_waiting(&full, self.now_us) else { return };
            self.pick(slot);
            if self.phase(slot) == Phase::Held {
                full.push(self.turn(slot).map_or(0, |(session, _)| session.adapter));
            }
        }
    }

    fn hold_over(&mut self, id: u64) {
        let Some(slot) = self.slot(id).filter(|&slot| self.phase(slot) == Phase::Held) else {
            return;
        };
        self.leave_queue(slot);
        self.end(slot, End::Shed);
    }

    fn leave_queue(&mut self, slot: usize) {
        let number = self.conversations.get(slot).map_or(0, |conversation| conversation.gateway);
        if let Some(gateway) = self.gateways.get_mut(number) {
            gateway.dequeue(slot, false, self.now_us);
        }
    }

    fn scrape(&mut self) {
        let counts = (self.scenario.warmup_us..self.workload.end_us).contains(&self.now_us);
        for (index, replica) in self.replicas.iter().enumerate() {
            let scraped = replica.scrape();
            if counts && replica.is_alive() {
                self.tally.kv.add(replica.kv_usage(), replica.kv_empty());
            }
            self.gateways.iter_mut().for_each(|gateway| gateway.scraped(index, scraped));
        }
        if self.is_going() {
            self.agenda.at(self.now_us + self.scenario.scrape_us, Event::Scrape);
        }
    }

    /// Each tells the others what it dispatched, and what it has in flight.
    fn gossip(&mut self) {
        let news: Vec<_> = self.gateways.iter_mut().map(Gateway::take_news).collect();
        for (to, gateway) in self.gateways.iter_mut().enumerate() {
            let others = news.iter().enumerate().filter(|&(from, _)| from != to);
            others.for_each(|(_, news)| gateway.hear(news, self.now_us));
        }
        for replica in 0..self.replicas.len() {
            let own: Vec<Sums> = self.gateways.iter().map(|g| g.own(replica)).collect();
            for (to, gateway) in self.gateways.iter_mut().enumerate() {
                let mut sums = Sums::default();
                let others = own.iter().enumerate().filter(|&(from, _)| from != to);
                others.for_each(|(_, own)| sums.add(own));
                gateway.set_others(replica, sums);
            }
        }
        if self.is_going() {
            self.agenda.at(self.now_us + self.scenario.gossip_us, Event::Gossip);
        }
    }

    /// Whether anything may still happen.
    fn is_going(&self) -> bool {
        self.now_us < self.workload.end_us || self.gone < self.came
    }

    fn crashed(&mut self, crash: usize) -> Option<&mut Replica> {
        let replica = self.scenario.crashes.get(crash)?.replica;
        self.replicas.get_mut(replica)
    }

    /// What the dead replica had is lost; what has not begun to answer is sent elsewhere.
    fn crash_seen(&mut self, crash: usize) {
        let Some(crash) = self.scenario.crashes.get(crash) else { return };
        self.gateways.iter_mut().for_each(|gateway| gateway.set_down(crash.replica, true));
        let lost: Vec<usize> = (0..self.conversations.len())
            .filter(|&slot| matches!(self.phase(slot), Phase::Sent | Phase::Decoding))
            .filter(|&slot| {
                self.conversations.get(slot).is_some_and(|c| c.sent.replica == crash.replica)
            })
            .collect();
        for slot in lost {
            let Some(conversation) = self.conversations.get(slot) else { continue };
            let (attempts, counts) = (conversation.attempts, conversation.counts);
            let again = self.phase(slot) == Phase::Sent && attempts < Scenario::ATTEMPTS_MAX;
            self.take_off(slot);
            if again {
                self.tally.retried += u64::from(counts);
                self.pick(slot);
            } else {
                self.end(slot, End::Failed);
            }
        }
    }

    fn back(&mut self, index: usize) {
        if let Some(replica) = self.crashed(index) {
            replica.come_back();
        }
        let Some(crash) = self.scenario.crashes.get(index) else { return };
        self.gateways.iter_mut().for_each(|gateway| gateway.set_down(crash.replica, false));
        (0..self.gateways.len()).for_each(|gateway| self.try_held(gateway));
    }

    fn phase(&self, slot: usize) -> Phase {
        self.conversations.get(slot).map_or(Phase::Idle, |conversation| conversation.phase)
    }

    /// The conversation that an event's name means, unless it is stale.
    fn slot(&self, id: u64) -> Option<usize> {
        let slot = (id & u64::from(u32::MAX)) as usize;
        let conversation = self.conversations.get(slot)?;
        (u64::from(conversation.sending) == id >> 32).then_some(slot)
    }

    fn turn(&self, slot: usize) -> Option<(&'a Session, Turn)> {
        let conversation = self.conversations.get(slot)?;
        let session = self.workload.sessions.get(conversation.session)?;
        session.turns.get(conversation.turn).map(|&turn| (session, turn))
    }
}

/// The name of a sending.
fn id(slot: usize, sending: u32) -> u64 {
    u64::from(sending) << 32 | slot as u64
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
