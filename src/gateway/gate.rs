//! What all cores share of admission: for each pool what its tenants had and what waits, and what
//! each tenant's tier entitles it to. Relaxed atomics on the path, no lock. Made by the control
//! thread with each published fleet; a pool that stays keeps its counters.

use std::sync::Arc;

use crate::admission::queue::Total;
use crate::admission::{Counters, Share};
use crate::config::{Config, Tier};
use crate::replicas::Fleet;

/// One pool's.
pub(super) struct Gate {
    /// What its tenants had.
    pub counters: Counters,
    /// What waits for it at all cores.
    pub total: Total,
    shares: Vec<Share>,
    /// Whose these are.
    tenants: Vec<String>,
}

impl Gate {
    /// A tenant's request is sent: charges what it is expected to take.
    pub(super) fn charge(
        self: &Arc<Gate>,
        tenant: usize,
        (input_tokens, output_tokens): (u64, f64),
        now_ms: u64,
    ) -> Charged {
        self.counters.charge(tenant, input_tokens, output_tokens, now_ms);
        Charged { gate: Arc::clone(self), tenant, output_tokens }
    }
}

/// What a tenant was charged with for one request.
pub(super) struct Charged {
    gate: Arc<Gate>,
    tenant: usize,
    output_tokens: f64,
}

impl Charged {
    /// The answer had so many tokens.
    pub(super) fn correct(self, output_tokens: u64, now_ms: u64) {
        let Charged { gate, tenant, output_tokens: charged } = self;
        gate.counters.correct(tenant, charged, output_tokens as f64, now_ms);
    }
}

/// Every pool's, by index, and the tiers' deadlines by tenant.
pub(super) struct Gates {
    pools: Vec<Arc<Gate>>,
    deadlines_ms: Vec<u64>,
}

impl Gates {
    /// Of a configuration and its fleet; takes over what `old` knows.
    pub(super) fn new(config: &Config, fleet: &Fleet, old: Option<(&Fleet, &Gates)>) -> Gates {
        let tier = |name: &str| config.tiers.iter().find(|tier| tier.name == name);
        let tiers = || config.tenants.iter().map(|tenant| tier(&tenant.tier));
        let shares: Vec<Share> = match config.tenants.is_empty() {
            true => vec![share(tier("default"))],
            false => tiers().map(share).collect(),
        };
        let tenants: Vec<_> = config.tenants.iter().map(|tenant| tenant.id.clone()).collect();
        let deadline = |tier: Option<&Tier>| tier.map_or(0, |tier| tier.deadline_ms);
        let gate = |pool: &Arc<crate::replicas::Pool>| {
            let known = old.and_then(|(fleet, gates)| {
                let mut known = fleet.pools.iter().zip(&gates.pools);
                known.find(|(former, gate)| {
                    let same = gate.shares == shares && gate.tenants == tenants;
                    same && Arc::ptr_eq(&former.state, &pool.state)
                })
            });
            let new = || {
                let (counters, total) = (Counters::new(&shares), Total::default());
                let (shares, tenants) = (shares.clone(), tenants.clone());
                Arc::new(Gate { counters, total, shares, tenants })
            };
            known.map_or_else(new, |(_, gate)| Arc::clone(gate))
        };
        Gates {
            pools: fleet.pools.iter().map(gate).collect(),
            deadlines_ms: match config.tenants.is_empty() {
                true => vec![deadline(tier("default"))],
                false => tiers().map(deadline).collect(),
            },
        }
    }

    /// A pool's.
    pub(super) fn pool(&self, index: usize) -> Option<&Arc<Gate>> {
        self.pools.get(index)
    }

    /// The base of a tenant's deadline in ms; 0 = none.
    pub(super) fn deadline_ms(&self, tenant: u64) -> u64 {
        let at = usize::try_from(tenant).ok();
        at.and_then(|at| self.deadlines_ms.get(at)).copied().unwrap_or(0)
    }
}

fn share(tier: Option<&Tier>) -> Share {
    tier.map_or(Share { weight: 1.0, priority: 0 }, |tier| Share {
        weight: tier.weight,
        priority: u8::try_from(tier.priority).unwrap_or(u8::MAX),
    })
}
