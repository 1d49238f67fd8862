//! What the cores of a gateway share about a store: where it is, who we are, who else is there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use super::stats::{Stats, Trouble};
use super::url::Place;
use crate::config::{OnStoreDown, Quota, QuotaStore};
use crate::runtime::snapshot::Snapshot;

/// Where the servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// Nobody has said so yet.
    Unknown,
    /// One server.
    Single(SocketAddr),
    /// Ranges of slots, both ends within, and who has them.
    Cluster(Vec<(u16, u16, SocketAddr)>),
}

/// Said once when the store goes and once when it is back: is it a warning, and the line.
pub type Say = Box<dyn Fn(bool, &str) + Send + Sync>;

/// See the module.
pub struct Shared {
    pub(super) place: Place,
    pub(super) timeout_ms: u64,
    pub(super) lease_ms: u64,
    pub(super) on_down: OnStoreDown,
    /// Who we are: drawn at random.
    pub(super) gateway: u64,
    pub(super) topology: Arc<Snapshot<Topology>>,
    /// Somebody has met a server that is not where it was.
    pub(super) moved: Notify,
    /// Gateways alive, as the store last told.
    pub(super) gateways: AtomicU64,
    pub(super) beat_due_ms: AtomicU64,
    /// Connections of cores that are down.
    away: AtomicI64,
    stats: Vec<Arc<Stats>>,
    say: Say,
}

impl Shared {
    /// For a gateway of so many cores; `None`: the store is this process. Connects to nothing.
    ///
    /// # Errors
    /// The URL cannot be used; the words do not show it.
    pub fn new(quota: &Quota, cores: usize, say: Say) -> Result<Option<Shared>, String> {
        let QuotaStore::Redis(url) = &quota.store else { return Ok(None) };
        let place = Place::parse(url.expose())?;
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|e| format!("no random numbers: {e}"))?;
        let first = match (&place.layout, place.hosts.as_slice()) {
            // An address needs nobody to look it up.
            (super::url::Layout::Single, [(host, port)]) => {
                let ip = host.parse::<IpAddr>();
                ip.map_or(Topology::Unknown, |ip| Topology::Single((ip, *port).into()))
            }
            _ => Topology::Unknown,
        };
        Ok(Some(Shared {
            place,
            timeout_ms: quota.timeout_ms,
            lease_ms: quota.lease_ms,
            on_down: quota.on_store_down,
            gateway: u64::from_le_bytes(id),
            topology: Arc::new(Snapshot::new(first)),
            moved: Notify::new(),
            gateways: AtomicU64::new(1),
            beat_due_ms: AtomicU64::new(0),
            away: AtomicI64::new(0),
            stats: (0..cores.max(1)).map(|_| Arc::default()).collect(),
            say,
        }))
    }

    /// The cells of a core.
    #[must_use]
    pub fn stats(&self) -> &[Arc<Stats>] {
        &self.stats
    }

    /// Gateways that the store knows to be alive, this one with them.
    #[must_use]
    pub fn gateways(&self) -> u64 {
        self.gateways.load(Relaxed).max(1)
    }

    /// A core's connection went down.
    pub(super) fn went(&self, why: Trouble) {
        if self.away.fetch_add(1, Relaxed) == 0 {
            let so = match self.on_down {
                OnStoreDown::Local => "by local limits",
                OnStoreDown::Refuse => "limited tenants are refused",
            };
            let (place, why) = (self.place.shown(), why.words());
            (self.say)(true, &format!("the quota store {place} is away ({why}): {so}"));
        }
    }

    /// It is back.
    pub(super) fn came(&self) {
        if self.away.fetch_sub(1, Relaxed) == 1 {
            (self.say)(false, &format!("the quota store {} is back", self.place.shown()));
        }
    }
}
