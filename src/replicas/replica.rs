//! One vLLM server, as all threads share it.
//!
//! Names and address are set once; what changes are atomics and swapped pointers, so that a
//! replica keeps its identity, evidence and load from one published fleet to the next. The control
//! thread writes what it learns, cores write what they see of their own requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use super::health::Health;
use super::signals::Signals;
use crate::config;
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
    /// Share relative to the pool's other replicas.
    pub weight: f64,
    /// Where to connect; `None` until its name is resolved. The control thread writes it.
    pub addr: ArcSwapOption<SocketAddr>,
    /// May it be sent work?
    pub health: Health,
    /// Its `/v1/models`, as last learned; `None` until it answered once.
    pub models: ArcSwapOption<Vec<Entry>>,
    /// What it tells of itself, each with its age.
    pub signals: Signals,
}

impl Replica {
    /// A replica that nothing is known of yet.
    #[must_use]
    pub fn new(from: &config::Replica) -> Replica {
        static KEYS: AtomicUsize = AtomicUsize::new(0);
        let ip = from.host.parse().ok().map(|ip| Arc::new(SocketAddr::new(ip, from.port)));
        Replica {
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            id: from.id.as_str().into(),
            authority: from.authority().to_owned(),
            host: from.host.clone(),
            port: from.port,
            zone: from.zone.clone(),
            weight: from.weight,
            addr: ArcSwapOption::from(ip),
            health: Health::default(),
            models: ArcSwapOption::empty(),
            signals: Signals::default(),
        }
    }

    /// Is it the one that `listed` means? Another address or weight is another replica, so that
    /// nothing learned of the one is believed of the other.
    #[must_use]
    pub fn is(&self, listed: &config::Replica) -> bool {
        *self.id == *listed.id
            && self.authority == listed.authority()
            && (self.weight - listed.weight).abs() < f64::EPSILON
    }
}
