//! One simulated replica: what it serves, what it counts, which fault it has.
//!
//! Lives on one thread; everything is `Cell` or `RefCell`. No sockets here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{Part, PrefixCache};
use super::config::{EngineKind, OnTerm, SimConfig};
use super::exact::Exact;
use super::fault::{Fault, Kind};
use super::fleet::Shared;
use super::kv_events::KvEvents;
use super::pace::{Booking, Clock, EngineHost, Pace, Signal};
use super::stats::{Counters, Stats, add};
use crate::engine::{Chain, Engine, KvEvent, Work};

/// An adapter that the replica has loaded.
#[derive(Clone)]
pub(super) struct Lora {
    pub(super) name: String,
    pub(super) path: String,
}

/// Whether the port takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoorState {
    Open,
    Refusing,
    Backlog,
}

/// See the module.
pub(super) struct Replica {
    pub(super) port: u16,
    pub(super) config: Arc<SimConfig>,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Clock,
    pub(super) counters: Counters,
    pub(super) engine: Option<Rc<EngineHost>>,
    /// The thread's real tokenizer.
    pub(super) exact: Option<Rc<Exact>>,
    pub(super) loras: RefCell<Vec<Lora>>,
    /// Adapter names with requests in flight, for `lora_requests_info`.
    pub(super) loras_busy: RefCell<Vec<String>>,
    pub(super) door: Cell<DoorState>,
    pub(super) door_changed: Signal,
    /// Rises with each change of the fault, so that a stall knows that it is over.
    pub(super) fault_epoch: Cell<u64>,
    pub(super) terminating: Cell<Option<OnTerm>>,
    /// What is published of the cache, where it is.
    pub(super) kv_events: Option<KvEvents>,
    /// A restart is due.
    restarting: Cell<bool>,
    /// Scratch.
    told: RefCell<Vec<KvEvent>>,
    /// Names of adapters by number.
    lora_numbers: RefCell<Vec<String>>,
    cache: PrefixCache,
    fault: RefCell<Option<Rc<Fault>>>,
    fault_left: Cell<u64>,
    in_flight: Cell<u64>,
    blocks_held: Cell<u64>,
    next_id: Cell<u64>,
}

impl Replica {
    pub(super) fn new(
        port: u16,
        config: Arc<SimConfig>,
        shared: Arc<Shared>,
        clock: Clock,
        exact: Option<Rc<Exact>>,
        kv_events: Option<KvEvents>,
    ) -> Replica {
        let engine = match &config.engine {
            EngineKind::Fixed { .. } => None,
            EngineKind::Modelled(params) => {
                let mut params = params.clone();
                params.blocks = config.blocks;
                params.block_tokens = config.block_tokens;
                params.adapter_slots = config.loras_max;
                Some(Rc::new(EngineHost::new(params, clock)))
            }
        };
        let cache = PrefixCache::new(config.blocks, config.block_tokens);
        if kv_events.is_some() {
            cache.record_events();
            engine.iter().for_each(|host| host.engine().record_events(true));
        }
        let loras = config.loras.iter();
        let loras = loras.map(|(name, path)| Lora { name: name.clone(), path: path.clone() });
        Replica {
            port,
            shared,
            clock,
            counters: Counters::new(),
            engine,
            exact,
            loras: RefCell::new(loras.collect()),
            loras_busy: RefCell::default(),
            door: Cell::new(DoorState::Open),
            door_changed: Signal::default(),
            fault_epoch: Cell::new(0),
            terminating: Cell::new(None),
            kv_events,
            restarting: Cell::new(false),
            told: RefCell::default(),
            lora_numbers: RefCell::default(),
            cache,
            fault: RefCell::default(),
            fault_left: Cell::new(0),
            in_flight: Cell::new(0),
            blocks_held: Cell::new(0),
            next_id: Cell::new(fastrand::u64(..)),
            config,
        }
    }

    /// Sets or clears the fault; one of KV events without them is none.
    pub(super) fn set_fault(&self, fault: Fault) {
        self.fault_epoch.set(self.fault_epoch.get() + 1);
        let door = match fault.kind {
            Kind::Refuse => DoorState::Refusing,
            Kind::Backlog => DoorState::Backlog,
            _ => DoorState::Open,
        };
        if self.door.replace(door) != door {
            self.door_changed.ring();
        }
        if let Some(kv_events) = &self.kv_events {
            kv_events.publisher.set_fault(fault.kind, fault.count.unwrap_or(u64::MAX));
            self.restarting.set(fault.kind == Kind::KvRestart);
            self.restart();
        }
        self.fault_left.set(fault.count.unwrap_or(u64::MAX));
        let none = fault.kind == Kind::None || fault.is_of_events();
        *self.fault.borrow_mut() = (!none).then(|| Rc::new(fault));
    }

    /// The fault that strikes a request of `path`, counted down.
    pub(super) fn strike(&self, path: &[u8], generation: bool) -> Option<Rc<Fault>> {
        let mut slot = self.fault.borrow_mut();
        let fault = slot.as_ref()?;
        let meant = fault.path.as_ref().map_or(generation, |only| only.as_bytes() == path);
        if fault.is_state() || !meant || self.fault_left.get() == 0 {
            return None;
        }
        self.fault_left.set(self.fault_left.get() - 1);
        if self.fault_left.get() == 0 { slot.take() } else { Some(Rc::clone(fault)) }
    }

    /// Whether nothing may be sent.
    pub(super) fn frozen(&self) -> bool {
        self.fault.borrow().as_ref().is_some_and(|f| f.kind == Kind::Freeze)
    }

    /// What the load gauges are to say, if they lie.
    pub(super) fn lie(&self) -> Option<String> {
        let fault = self.fault.borrow();
        let lying = fault.as_ref().filter(|f| f.kind == Kind::LyingGauges)?;
        Some(lying.value.clone().unwrap_or_else(|| "NaN".to_owned()))
    }

    /// A number that no other request of this replica has.
    pub(super) fn fresh_id(&self) -> u64 {
        let id = self.next_id.get().wrapping_add(1);
        self.next_id.set(id);
        super::token::mix(id, 1)
    }

    /// Running, waiting, share of KV blocks in use by live requests.
    pub(super) fn load(&self) -> (u64, u64, f64) {
        match &self.engine {
            Some(host) => {
                let engine = host.engine();
                (engine.running(), engine.waiting(), engine.kv_usage())
            }
            None => {
                let used = self.blocks_held.get() as f64 / self.config.blocks.max(1) as f64;
                (self.in_flight.get(), 0, used.min(1.0))
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let (running, waiting, _) = self.load();
        let kv_held = self.shared.transfers.held_by(self.port);
        Stats { kv_held, ..self.counters.copy(self.port, running, waiting) }
    }

    /// Forgets the prefix cache; false while requests hold blocks of it.
    pub(super) fn reset_prefix_cache(&self) -> bool {
        match &self.engine {
            Some(host) => host.engine().reset_prefix_cache(),
            None => {
                let done = self.cache.reset();
                self.publish_visits();
                done
            }
        }
    }

    /// Publishes what the engine has told of its cache.
    pub(super) fn stepped(&self, engine: &mut Engine) {
        let Some(kv_events) = &self.kv_events else { return };
        let mut told = self.told.borrow_mut();
        engine.take_events(&mut told);
        kv_events.publish(engine.steps(), &told);
        told.clear();
        self.restart_engine(engine);
    }

    /// Forgets everything as after a restart, if one is due; what runs ends first.
    fn restart(&self) {
        match &self.engine {
            Some(host) => self.restart_engine(&mut host.engine()),
            None if self.restarting.take() => {
                self.cache.reset();
                self.cache.take_events(&mut Vec::new());
                self.kv_events.iter().for_each(KvEvents::restart);
            }
            None => {}
        }
    }

    fn restart_engine(&self, engine: &mut Engine) {
        if self.restarting.get() && engine.running() + engine.waiting() == 0 {
            self.restarting.set(false);
            engine.restart();
            self.kv_events.iter().for_each(KvEvents::restart);
        }
    }

    fn publish_visits(&self) {
        let Some(kv_events) = &self.kv_events else { return };
        let mut told = self.told.borrow_mut();
        self.cache.take_events(&mut told);
        kv_events.publish(0, &told);
        told.clear();
    }

    /// The number of an adapter, from 1.
    fn lora_number(&self, name: &str) -> u32 {
        let mut numbers = self.lora_numbers.borrow_mut();
        let at = numbers.iter().position(|known| known == name).unwrap_or_else(|| {
            numbers.push(name.to_owned());
            numbers.len() - 1
        });
        at as u32 + 1
    }

    /// Takes the prompts of a request into the engine.
    pub(super) fn admit(
        self: &Rc<Self>,
        parts: Vec<Part>,
        lora: Option<&str>,
        salt: Option<&str>,
    ) -> Ticket {
        let prompt_tokens = parts.iter().map(|part| part.prompt_tokens).sum();
        add(&self.counters.prompt_tokens, prompt_tokens);
        add(&self.in_flight, 1);
        let answers = |part: &Part| part.output_tokens.saturating_mul(part.width);
        let tokens = parts.iter().map(|part| part.prompt_tokens.saturating_add(answers(part)));
        let tokens = tokens.fold(0, u64::saturating_add);
        let blocks = tokens.div_ceil(self.config.block_tokens);
        add(&self.blocks_held, blocks);
        if let Some(name) = lora {
            self.loras_busy.borrow_mut().push(name.to_owned());
        }
        let lora_number = lora.map_or(0, |name| self.lora_number(name));
        let named: Vec<(u64, Part)> =
            parts.into_iter().map(|part| (self.fresh_id(), part)).collect();
        if let Some(kv_events) = &self.kv_events {
            for (id, part) in &named {
                kv_events.begins(*id, part, lora.map(|name| (lora_number, name)), salt);
            }
        }
        let ids = named.iter().map(|(id, _)| *id).collect();
        let (pace, visits) = self.begin(named, lora_number);
        let cached_tokens = visits.iter().map(|visit| visit.cached_tokens).sum();
        let replica = Rc::clone(self);
        let lora = lora.map(str::to_owned);
        Ticket { replica, pace, ids, visits, cached_tokens, blocks, lora }
    }

    /// Into the engine, or on a schedule of its own with a visit to the prefix memory.
    fn begin(self: &Rc<Self>, named: Vec<(u64, Part)>, adapter: u32) -> (Pace, Vec<Visit>) {
        let (ttft, itl) = match (&self.engine, &self.config.engine) {
            (Some(host), _) => {
                let book = |(id, part): (u64, Part)| {
                    let Part { chain: hashes, prompt_tokens, output_tokens, width, .. } = part;
                    let received_tokens = part.received_tokens;
                    let work = Work {
                        id,
                        hashes,
                        prompt_tokens,
                        output_tokens,
                        width,
                        adapter,
                        received_tokens,
                    };
                    Booking::new(host, work)
                };
                return (Pace::Engine(named.into_iter().map(book).collect()), Vec::new());
            }
            (None, EngineKind::Fixed { ttft, itl }) => (*ttft, *itl),
            (None, EngineKind::Modelled(_)) => (Duration::ZERO, Duration::ZERO),
        };
        // Who computes nothing of the prompt has its first token with the next step.
        let received = named.iter().all(|(_, part)| part.received_tokens > 0);
        let first = if received { itl } else { ttft };
        let visit = |(id, part): (u64, Part)| {
            let Part { chain, prompt_tokens, output_tokens, .. } = part;
            let cached_tokens = self.cache.visit(id, &chain, prompt_tokens);
            Visit { id, chain, prompt_tokens, output_tokens, cached_tokens }
        };
        let visits = named.into_iter().map(visit).collect();
        self.publish_visits();
        let (first_us, itl_us) =
            (self.clock.now_us() + first.as_micros() as u64, itl.as_micros() as u64);
        (Pace::Fixed { first_us, itl_us }, visits)
    }
}

/// A prompt that the prefix memory has seen.
struct Visit {
    id: u64,
    chain: Chain,
    prompt_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
}

/// A request in the engine; dropping it releases all that it holds.
pub(super) struct Ticket {
    replica: Rc<Replica>,
    pub(super) pace: Pace,
    ids: Vec<u64>,
    visits: Vec<Visit>,
    /// Of the visits.
    cached_tokens: u64,
    blocks: u64,
    lora: Option<String>,
}

impl Ticket {
    /// Tokens of the prompts that came from the cache, counted; to be asked once, with the first
    /// token.
    pub(super) fn count_cached(&self) -> u64 {
        let cached = self.cached_tokens + self.pace.cached_tokens();
        add(&self.replica.counters.cached_tokens, cached);
        cached
    }

    /// The prefix memory sees the answers so far.
    fn remember_answers(&self) {
        let ready = self.pace.ready(self.replica.clock.now_us());
        for visit in &self.visits {
            // The last token of an answer was never an input.
            let inputs = ready.min(visit.output_tokens).saturating_sub(1);
            let tokens = visit.prompt_tokens.saturating_add(inputs);
            self.replica.cache.extend(visit.id, &visit.chain, tokens);
        }
        self.replica.publish_visits();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.remember_answers();
        let Replica { in_flight, blocks_held, loras_busy, .. } = &*self.replica;
        in_flight.set(in_flight.get().saturating_sub(1));
        blocks_held.set(blocks_held.get().saturating_sub(self.blocks));
        if let Some(name) = &self.lora {
            let mut busy = loras_busy.borrow_mut();
            if let Some(at) = busy.iter().position(|n| n == name) {
                busy.swap_remove(at);
            }
        }
        if let Some(kv_events) = &self.replica.kv_events {
            let steps = self.replica.engine.as_ref().map(|host| host.engine().steps());
            for id in &self.ids {
                match steps {
                    Some(steps) => kv_events.ends(*id, steps),
                    None => kv_events.forget(*id),
                }
            }
        }
    }
}
