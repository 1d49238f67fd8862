//! One simulated replica: what it serves, what it counts, which fault it has.
//!
//! Lives on one thread; everything is `Cell` or `RefCell`. No sockets here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::cache::{BLOCK_TOKENS, PrefixCache};
use super::call::Prompt;
use super::config::{EngineKind, OnTerm, SimConfig};
use super::engine::Work;
use super::exact::Exact;
use super::fault::{Fault, Kind};
use super::fleet::Shared;
use super::pace::{Clock, EngineHost, Pace, Signal};
use super::stats::{Counters, Stats, add};

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
    cache: RefCell<PrefixCache>,
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
    ) -> Replica {
        let engine = match &config.engine {
            EngineKind::Fixed { .. } => None,
            EngineKind::Modelled(params) => {
                let mut params = params.clone();
                params.blocks = config.blocks;
                Some(Rc::new(EngineHost::new(params, clock)))
            }
        };
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
            cache: RefCell::new(PrefixCache::new(config.blocks)),
            fault: RefCell::default(),
            fault_left: Cell::new(0),
            in_flight: Cell::new(0),
            blocks_held: Cell::new(0),
            next_id: Cell::new(fastrand::u64(..)),
            config,
        }
    }

    /// Sets or clears the fault.
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
        self.fault_left.set(fault.count.unwrap_or(u64::MAX));
        *self.fault.borrow_mut() = (fault.kind != Kind::None).then(|| Rc::new(fault));
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
            Some(host) => host.load(),
            None => {
                let used = self.blocks_held.get() as f64 / self.config.blocks.max(1) as f64;
                (self.in_flight.get(), 0, used.min(1.0))
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let (running, waiting, _) = self.load();
        self.counters.copy(self.port, running, waiting)
    }

    /// Looks the prompt up in the prefix memory and remembers it.
    pub(super) fn visit_prefix(&self, salt: u64, prompt: &Prompt) -> u64 {
        self.cache.borrow_mut().visit_prompt(salt, prompt)
    }

    /// Takes a request into the engine.
    pub(super) fn admit(self: &Rc<Self>, work: Work, lora: Option<&str>) -> Ticket {
        add(&self.counters.prompt_tokens, work.prompt_tokens);
        add(&self.counters.cached_tokens, work.cached_tokens);
        add(&self.in_flight, 1);
        let tokens = work.prompt_tokens.saturating_add(work.output_tokens * work.width);
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        add(&self.blocks_held, blocks);
        if let Some(name) = lora {
            self.loras_busy.borrow_mut().push(name.to_owned());
        }
        let pace = match (&self.engine, &self.config.engine) {
            (Some(host), _) => Pace::book(host, work),
            (None, EngineKind::Fixed { ttft, itl }) => Pace::Fixed {
                first_us: self.clock.now_us() + ttft.as_micros() as u64,
                itl_us: itl.as_micros() as u64,
            },
            (None, EngineKind::Modelled(_)) => Pace::Fixed { first_us: 0, itl_us: 0 },
        };
        Ticket { replica: Rc::clone(self), pace, blocks, lora: lora.map(str::to_owned) }
    }
}

/// A request in the engine; dropping it releases all that it holds.
pub(super) struct Ticket {
    replica: Rc<Replica>,
    pub(super) pace: Pace,
    blocks: u64,
    lora: Option<String>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Replica { in_flight, blocks_held, loras_busy, .. } = &*self.replica;
        in_flight.set(in_flight.get().saturating_sub(1));
        blocks_held.set(blocks_held.get().saturating_sub(self.blocks));
        if let Some(name) = &self.lora {
            let mut busy = loras_busy.borrow_mut();
            if let Some(at) = busy.iter().position(|n| n == name) {
                busy.swap_remove(at);
            }
        }
    }
}
