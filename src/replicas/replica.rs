//! One vLLM server, as all threads share it.
//!
//! Names and address are set once; what changes are atomics and swapped pointers, so that a
//! replica keeps its identity, evidence and load from one published fleet to the next. The control
//! thread writes what it learns, cores write what they see of their own requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use super::health::{Health, State};
use super::members::Source;
use super::shelf::Loads;
use super::signals::Signals;
use super::silence::Silence;
use crate::config;
use crate::net::{Peer, Trust};
use crate::openai::models::Entry;

/// One vLLM server.
pub struct Replica {
    /// A number of its own within this process, for what a core keeps by replica.
    pub key: usize,
    /// Stable name, unique over all pools.
    pub id: Arc<str>,
    /// `host:port` for the `Host` field.
    pub authority: String,
    /// Host to resolve.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Failure zone, if told.
    pub zone: Option<String>,
    /// Where to connect; `None` until its name is resolved. The control thread writes it.
    pub addr: ArcSwapOption<SocketAddr>,
    /// It is spoken to with TLS.
    pub secure: bool,
    /// By what: whom its pool believes, under its name. `None`: nothing to believe it by.
    pub peer: ArcSwapOption<Peer>,
    /// May it be sent work?
    pub health: Health,
    /// Its `/v1/models`, as last learned; `None` until it answered once.
    pub models: ArcSwapOption<Vec<Entry>>,
    /// What it tells of itself, each with its age.
    pub signals: Signals,
    /// Who waits there, and for how long nothing has come.
    pub silence: Arc<Silence>,
    /// Adapters that it is loading, or would not load.
    pub loads: Loads,
    /// Its answers have the ids of their requests.
    repeats_ids: AtomicBool,
    source: AtomicU8,
    /// Bits of a float.
    weight: AtomicU64,
}

impl Replica {
    /// A replica that nothing is known of yet, to which `cores` cores send.
    #[must_use]
    pub fn new(from: &config::Replica, cores: usize) -> Replica {
        static KEYS: AtomicUsize = AtomicUsize::new(0);
        let ip = from.host.parse().ok().map(|ip| Arc::new(SocketAddr::new(ip, from.port)));
        Replica {
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            id: from.id.as_str().into(),
            authority: from.authority().to_owned(),
            host: from.host.clone(),
            port: from.port,
            zone: from.zone.clone(),
            addr: ArcSwapOption::from(ip),
            secure: from.is_secure(),
            peer: ArcSwapOption::empty(),
            health: Health::default(),
            models: ArcSwapOption::empty(),
            signals: Signals::default(),
            silence: Arc::new(Silence::new(cores)),
            loads: Loads::default(),
            repeats_ids: AtomicBool::new(false),
            source: AtomicU8::new(Source::Config as u8),
            weight: AtomicU64::new(from.weight.to_bits()),
        }
    }

    /// Share relative to the pool's other replicas.
    #[must_use]
    pub fn weight(&self) -> f64 {
        f64::from_bits(self.weight.load(Ordering::Relaxed))
    }

    /// The weight is another from now on.
    pub(super) fn set_weight(&self, weight: f64) {
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
    }

    /// From now on it is believed, if it speaks TLS, when `trust` believes it under its name: the
    /// one that its source tells, or else that of its pool, or its host.
    pub(super) fn set_peer(
        &self,
        trust: Option<&Trust>,
        pool_name: Option<&str>,
        listed: &config::Replica,
    ) {
        let name = listed.server_name.as_deref().or(pool_name).unwrap_or(&self.host);
        if !self.secure {
            return;
        }
        // One that joins a pool of others later is believed by what the system trusts.
        let trust = trust.cloned().or_else(Trust::usual);
        self.peer.store(trust.and_then(|trust| trust.peer(name)).map(Arc::new));
    }

    /// What to begin TLS with; `None`: it is spoken to without.
    ///
    /// # Errors
    /// It speaks TLS, and there is nothing to believe it by.
    pub fn peer(&self) -> Result<Option<Arc<Peer>>, &'static str> {
        if !self.secure {
            return Ok(None);
        }
        let peer = self.peer.load_full().ok_or("no root certificates to believe it by");
        peer.map(Some)
    }

    /// May an answer with this `x-request-id` be one to the request that was sent under `asked`?
    /// Not if the replica is known to repeat ids, as vLLM does with `--enable-request-id-headers`.
    #[must_use]
    pub fn may_answer(&self, asked: &[u8], answered: Option<&[u8]>) -> bool {
        answered.is_none_or(|id| id == asked) || !self.repeats_ids.load(Ordering::Relaxed)
    }

    /// Notes whether its answers have the ids of their requests.
    pub(super) fn set_repeats_ids(&self, does: bool) {
        self.repeats_ids.store(does, Ordering::Relaxed);
    }

    /// Is it the one that `listed` means? Another address is another replica, so that
    /// nothing learned of the one is believed of the other.
    #[must_use]
    pub fn is(&self, listed: &config::Replica) -> bool {
        let same = self.authority == listed.authority() && self.secure == listed.is_secure();
        same && *self.id == *listed.id
    }

    /// Does it list a model or adapter of this name, as last learned?
    #[must_use]
    pub fn lists(&self, name: &str) -> bool {
        self.models.load().as_ref().is_some_and(|list| list.iter().any(|e| e.id == name))
    }

    /// Who lists it.
    #[must_use]
    pub fn source(&self) -> Source {
        let is = |source: &Source| *source as u8 == self.source.load(Ordering::Relaxed);
        [Source::Discovered, Source::Admin].into_iter().find(is).unwrap_or(Source::Config)
    }

    /// Enters who lists it.
    pub(super) fn set_source(&self, source: Source) {
        self.source.store(source as u8, Ordering::Relaxed);
    }

    /// May it be sent a request now?
    #[must_use]
    pub fn eligible(&self, now_ms: u64) -> bool {
        self.addr.load().is_some() && self.health.eligible(now_ms) && !self.signals.sleeping(now_ms)
    }

    /// What the page and the metrics show.
    #[must_use]
    pub fn state(&self, now_ms: u64) -> State {
        match self.health.state(now_ms) {
            State::Up | State::Joining if self.signals.sleeping(now_ms) => State::Sleeping,
            state => state,
        }
    }
}
