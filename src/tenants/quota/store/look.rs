//! What an operator asks of a store from a command: how an account stands, another level, a new
//! beginning. Runs on a runtime of the command's own, never in a gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use redis::{Cmd, FromRedisValue, RedisError, Value};

use super::script::{Scripts, gateways, gateways_slot};
use super::shared::{Shared, Topology};
use super::topology::{ask, find};
use super::who::{keys_of, slot_of};
use crate::config::Quota;
use crate::tenants::quota::Limits;

/// How an account stands in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Whole tokens in the bucket, if there is one.
    pub tokens: Option<u64>,
    /// Sequences in flight, what gateways have taken ahead among them.
    pub in_flight: u64,
    /// Requests that have a lease of their own; ten thousand are looked at.
    pub requests: u64,
    /// Tokens and sequences that each gateway, by its name in the store, has taken ahead, as it
    /// last told.
    pub ahead: BTreeMap<String, (u64, u64)>,
}

/// A way to the store.
pub struct Desk {
    shared: Shared,
    topology: Topology,
    scripts: Scripts,
}

impl Desk {
    /// Finds the store of this configuration; `None`: there is none that gateways share.
    ///
    /// # Errors
    /// It cannot be found, in words that do not show the URL.
    pub async fn open(quota: &Quota) -> Result<Option<Desk>, String> {
        let Some(shared) = Shared::new(quota, 1, Box::new(|_, _| ()))? else { return Ok(None) };
        let found = find(&shared).await;
        let topology = found.ok_or_else(|| format!("{} cannot be found", shared.place.shown()))?;
        let scripts = Scripts::new(quota.lease_ms);
        Ok(Some(Desk { shared, topology, scripts }))
    }

    /// Gateways that are alive.
    ///
    /// # Errors
    /// The store does not answer, or not with that.
    pub async fn gateways(&self) -> Result<u64, String> {
        let count: u64 = self.ask(gateways_slot(), &gateways()).await?;
        Ok(count)
    }

    /// How an account stands; changes nothing.
    ///
    /// # Errors
    /// As [`Desk::gateways`].
    pub async fn show(&self, tenant: &str, name: &str, limits: &Limits) -> Result<Shown, String> {
        let call = self.scripts.look(&keys_of(tenant, name), "show", limits, 0);
        let (_, spent, in_flight, members, ahead): (u64, u64, u64, Vec<String>, Vec<String>) =
            self.ask(slot_of(tenant), &call).await?;
        let tokens = limits.bucket().map(|(_, burst)| burst.saturating_sub(spent.div_ceil(1_000)));
        let is_request = |member: &&String| member.starts_with('r');
        let requests = members.iter().step_by(2).filter(is_request).count() as u64;
        let ahead = ahead.chunks_exact(2).filter_map(|pair| match pair {
            [gateway, amounts] => {
                let mut amounts = amounts.split(':').map(|amount| amount.parse::<u64>().ok());
                let sequences = amounts.nth(1)??;
                let tokens = amounts.nth(1)??;
                Some((gateway.clone(), (tokens / 1_000, sequences)))
            }
            _ => None,
        });
        Ok(Shown { tokens, in_flight, requests, ahead: ahead.collect() })
    }

    /// From now on its bucket holds so many tokens.
    ///
    /// # Errors
    /// As [`Desk::gateways`].
    pub async fn set(
        &self,
        tenant: &str,
        name: &str,
        limits: &Limits,
        tokens: u64,
    ) -> Result<(), String> {
        let call = self.scripts.look(&keys_of(tenant, name), "set", limits, tokens);
        self.ask::<u64>(slot_of(tenant), &call).await.map(drop)
    }

    /// Its bucket is full and nothing is in flight, until those whose requests run say so again.
    ///
    /// # Errors
    /// As [`Desk::gateways`].
    pub async fn reset(&self, tenant: &str, name: &str) -> Result<(), String> {
        let call = self.scripts.look(&keys_of(tenant, name), "reset", &Limits::default(), 0);
        self.ask::<u64>(slot_of(tenant), &call).await.map(drop)
    }

    async fn ask<T: FromRedisValue>(&self, slot: u16, call: &Cmd) -> Result<T, String> {
        let place = &self.shared.place;
        let node = self.node(slot).ok_or("no node serves the tenant's slot")?;
        let info = place.info((&node.ip().to_string(), node.port()), true);
        let answer = match info {
            Some(info) => ask(info, call).await,
            None => None,
        };
        let silent = || format!("{} does not answer", place.shown());
        let value: Value = answer.ok_or_else(silent)?.map_err(|e| said(&e))?;
        T::from_redis_value(value).map_err(|_| format!("{} is no store", place.shown()))
    }

    fn node(&self, slot: u16) -> Option<SocketAddr> {
        match &self.topology {
            Topology::Unknown => None,
            Topology::Single(node) => Some(*node),
            Topology::Cluster(ranges) => {
                let range = ranges.iter().find(|(from, to, _)| (*from..=*to).contains(&slot));
                range.map(|(.., node)| *node)
            }
        }
    }
}

/// Never at length, which may quote what we sent.
fn said(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("the store answered {code}"),
        None => format!("the store: {}", error.category()),
    }
}
