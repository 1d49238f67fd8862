//! What all cores and the control thread share: published snapshots, flags, metric shards, the
//! way to the usage writer. Nothing here is locked on the path of a request.

use std::sync::Arc;

use super::addresses::Addresses;
use super::bodies::Bodies;
use super::decisions::Decisions;
use super::gate::Gates;
use super::learned::Learned;
use super::poison::Poisons;
use super::side::Side;
use crate::admin::{Flags, Reloads, Shard};
use crate::config::{Config, HalfClose, QuotaStore, Retry, Timeouts};
use crate::net::{Driver, Identity};
use crate::prompt::segments::SegmentCache;
use crate::replicas::Fleet;
use crate::replicas::adapters::Loader;
use crate::replicas::share::Stats;
use crate::routing::Policy;
use crate::runtime::clock;
use crate::runtime::log::Log;
use crate::runtime::snapshot::Snapshot;
use crate::telemetry::{AccessLog, Traces};
use crate::tenants::{Accounts, KeyTable, OPEN_TENANT, Salts, TenantRef, quota};
use crate::usage::UsageSink;

/// Configuration and fleet, published as one so that a request sees both of one moment.
pub(super) struct Published {
    /// Pools, replicas, names.
    pub fleet: Arc<Fleet>,
    /// What is known of each pool, by index.
    pub learned: Vec<Learned>,
    /// What admission knows of each pool.
    pub gates: Gates,
    /// Who may call.
    pub keys: KeyTable,
    /// What they may spend; goes on when this is published anew.
    pub accounts: Arc<Accounts>,
    /// Names of the tenants, by index; "open" when there are none.
    tenants: Vec<Arc<str>>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Retry limits.
    pub retry: Retry,
    /// Cache salts of the tenants, where they do not share cached prefixes.
    salts: Option<Salts>,
    /// How a pool chooses, unless a caller that may has asked for another way.
    pub policy: Policy,
    /// Largest request body in bytes.
    pub body_bytes_max: usize,
    /// Longest answer that is no stream, in bytes.
    pub answer_bytes_max: u64,
    /// Most connections of a client's address; 0 = any.
    pub connections_max: u32,
    /// Most bytes of bodies that are held at once; `None`: by the machine's memory.
    pub bodies_bytes_max: Option<u64>,
    /// A client that has ended its direction may still read.
    pub half_close_allowed: bool,
    /// The checked configuration itself.
    pub config: Arc<Config>,
}

impl Published {
    /// From a configuration and the fleet built from it; takes over what was learned by `old`.
    #[must_use]
    pub(super) fn new(
        config: Arc<Config>,
        fleet: Arc<Fleet>,
        old: Option<&Published>,
    ) -> Published {
        let learned = fleet.pools.iter().zip(&config.pools).map(|(pool, settings)| {
            let known = old.and_then(|old| {
                let mut known = old.fleet.pools.iter().zip(&old.learned);
                known.find(|(former, _)| Arc::ptr_eq(&former.state, &pool.state))
            });
            Learned::new(pool, settings, known.map(|(pool, learned)| (&**pool, learned)))
        });
        let known = old.map(|old| (&*old.fleet, &old.gates));
        Published {
            learned: learned.collect(),
            gates: Gates::new(&config, &fleet, known),
            fleet,
            keys: KeyTable::new(&config.tenants),
            salts: config
                .cache_salt_secret
                .as_ref()
                .and_then(|secret| Salts::new(secret, &config.tenants)),
            accounts: match old {
                Some(old) if Arc::ptr_eq(&old.config, &config) => Arc::clone(&old.accounts),
                old => {
                    let old = old.map(|old| &*old.accounts);
                    let shared = config.quota.store != QuotaStore::Memory;
                    Arc::new(Accounts::new(&config.tenants, shared, old, clock::now_ns()))
                }
            },
            tenants: match config.tenants.as_slice() {
                [] => vec![OPEN_TENANT.into()],
                tenants => tenants.iter().map(|t| t.id.as_str().into()).collect(),
            },
            timeouts: config.timeouts,
            retry: config.retry,
            policy: Policy::of_name(config.routing.policy.name()).unwrap_or_default(),
            body_bytes_max: config.server.body_bytes_max,
            answer_bytes_max: config.server.answer_bytes_max,
            connections_max: config.server.connections_per_address_max,
            // One body must have room, however little is meant for all.
            bodies_bytes_max: config
                .server
                .bodies_bytes_max
                .map(|max| max.max(config.server.body_bytes_max as u64)),
            half_close_allowed: config.server.half_close == HalfClose::Allow,
            config,
        }
    }
}

impl Published {
    /// The index of the tenant with that id.
    pub(super) fn tenant_index(&self, id: &str) -> Option<usize> {
        self.tenants.iter().position(|tenant| **tenant == *id)
    }

    /// The caller's name.
    pub(super) fn tenant(&self, caller: TenantRef) -> Arc<str> {
        self.tenants.get(caller.index).map_or_else(|| OPEN_TENANT.into(), Arc::clone)
    }

    /// The policy for a request whose field `x-gateway-policy` is `asked`; `None`: the caller may
    /// choose, and there is no policy of that name.
    pub(super) fn policy(&self, caller: TenantRef, asked: Option<&[u8]>) -> Option<Policy> {
        let tenant = || self.config.tenants.get(caller.index);
        let may =
            self.config.routing.policy_header || tenant().is_some_and(|t| t.may_choose_policy);
        match asked.filter(|_| may) {
            None => Some(self.policy),
            Some(name) => Policy::of_name(std::str::from_utf8(name).ok()?),
        }
    }

    /// Do requests get a cache salt of their tenant's?
    pub(super) fn salts(&self) -> bool {
        self.salts.is_some()
    }

    /// The cache salt of the tenant of that index for a request that came with the salt `own`;
    /// `None` where the caller's own is the only one.
    pub(super) fn salt(&self, tenant: usize, own: Option<&str>) -> Option<String> {
        self.salts.as_ref()?.of(tenant, own)
    }

    /// May the caller use the pool of that name?
    pub(super) fn may_use(&self, caller: TenantRef, pool: &str) -> bool {
        let open = self.config.tenants.is_empty();
        open || self.config.tenants.get(caller.index).is_some_and(|t| t.may_use(pool))
    }
}

/// The shared state of one gateway process.
pub(super) struct Shared {
    /// Configuration and fleet.
    pub published: Arc<Snapshot<Published>>,
    /// What TLS clients are shown, if clients speak TLS.
    pub identity: Option<Arc<Snapshot<Identity>>>,
    /// The driver that the cores run on.
    pub driver: Driver,
    /// One metric shard a core.
    pub shards: Vec<Arc<Shard>>,
    /// The last decisions of each core.
    pub decisions: Vec<Decisions>,
    /// Where usage records go.
    pub usage: UsageSink,
    /// The access log, if there is one.
    pub access: Option<AccessLog>,
    /// Where traces go, if anywhere.
    pub traces: Option<Arc<Traces>>,
    /// Threads that render and encode what would hold a core too long.
    pub side: Side<SegmentCache>,
    /// Threads that read such bodies and write such lists.
    pub readers: Side<()>,
    /// What became of sharing with other gateways.
    pub share: Arc<Stats>,
    /// Connections of each client's address.
    pub addresses: Arc<Addresses>,
    /// Bytes of request bodies that are held.
    pub bodies: Arc<Bodies>,
    /// Requests that have ended engines.
    pub poisons: Poisons,
    /// What came of reloads.
    pub reloads: Arc<Reloads>,
    /// The store of budgets that other gateways ask too, if there is one.
    pub quota: Option<Arc<quota::store::Shared>>,
    /// The way to what loads adapters.
    pub loader: Loader,
    /// Where log lines go.
    pub log: Arc<Log>,
    /// Drain and stop.
    pub flags: Arc<Flags>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn configuration_and_routing_name_the_same_policies() {
        let names = config::Policy::ALL.map(config::Policy::name);
        assert_eq!(names.len(), Policy::ALL.len());
        assert!(names.iter().all(|name| Policy::of_name(name).is_some()), "{names:?}");
        assert_eq!(Policy::default().name(), names[0]);
    }
}
