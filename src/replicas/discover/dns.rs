//! `discover = { dns = "name:port" }`: the addresses of a name, or the targets of an SRV record
//! when the name begins with `_`. Asked again when the answer's time to live is over.
//!
//! An answer without addresses counts as a failure: a name server that loses its records must not
//! empty a pool. The resolver is hickory's, on this thread's runtime; `/etc/hosts` is read too.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::{Resolver, TokioResolver};

use super::super::members::Listed;
use super::Outlet;
use crate::config::{self, DnsName};

/// An answer is believed no shorter and no longer than this, whatever its time to live.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(60);
/// One question.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// What was found, and until when it holds.
type Found = (Vec<Listed>, Instant);

/// Follows the name until the task is dropped.
pub(super) async fn follow(name: DnsName, mut outlet: Outlet) {
    let mut resolver = None;
    loop {
        let found = match resolver.take().map_or_else(|| open(name.server), Ok) {
            Ok(ready) => {
                let found = ask(&ready, &name).await;
                resolver = Some(ready);
                found
            }
            Err(what) => Err(what),
        };
        let wait = match found {
            Ok((list, until)) => {
                outlet.list(list).await;
                until.saturating_duration_since(Instant::now()).clamp(TTL_MIN, TTL_MAX)
            }
            Err(what) => {
                // The system's name servers may be others by now.
                resolver = None;
                outlet.fail(format!("{} cannot be resolved: {what}", name.name))
            }
        };
        tokio::time::sleep(wait).await;
    }
}

fn open(server: Option<SocketAddr>) -> Result<TokioResolver, String> {
    let builder = match server {
        None => Resolver::builder_tokio().map_err(|e| e.to_string())?,
        Some(server) => {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut c| {
                c.port = server.port();
                c
            });
            let server = NameServerConfig::new(server.ip(), true, connections.into());
            let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };
    let mut builder = builder;
    let options = builder.options_mut();
    // How long an answer holds is decided here.
    options.cache_size = 0;
    // A server of both families is one replica.
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.timeout = ASK_TIMEOUT;
    options.attempts = 1;
    builder.build().map_err(|e| e.to_string())
}

async fn ask(resolver: &TokioResolver, name: &DnsName) -> Result<Found, String> {
    let found = match name.port {
        Some(port) => addresses(resolver, &name.name, port).await,
        None => targets(resolver, &name.name).await,
    };
    let (mut list, until) = found?;
    if list.is_empty() {
        return Err("no addresses".to_owned());
    }
    // Servers turn the order of their answers.
    list.sort_by(|a, b| a.replica.id.cmp(&b.replica.id));
    list.dedup_by(|a, b| a.replica.id == b.replica.id);
    Ok((list, until))
}

async fn addresses(resolver: &TokioResolver, name: &str, port: u16) -> Result<Found, String> {
    let found = resolver.lookup_ip(name).await.map_err(|e| e.to_string())?;
    let list = found.iter().filter_map(|ip| replica(ip, port, None)).collect();
    Ok((list, found.valid_until()))
}

/// The targets of the best priority, each by its first address; a target that does not resolve is
/// left out.
async fn targets(resolver: &TokioResolver, name: &str) -> Result<Found, String> {
    let found = resolver.srv_lookup(name).await.map_err(|e| e.to_string())?;
    let mut until = found.valid_until();
    let records = found.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(srv) => Some(srv),
        _ => None,
    });
    let records: Vec<_> = records.collect();
    let best = records.iter().map(|srv| srv.priority).min();
    let mut list = Vec::new();
    for srv in records.iter().filter(|srv| Some(srv.priority) == best) {
        let target = srv.target.to_utf8();
        let Ok(found) = resolver.lookup_ip(target.as_str()).await else { continue };
        until = until.min(found.valid_until());
        let host = target.trim_end_matches('.');
        // IPv4 first: servers are commonly bound to 0.0.0.0.
        let ip = found.iter().find(IpAddr::is_ipv4).or_else(|| found.iter().next());
        list.extend(ip.and_then(|ip| replica(ip, srv.port, Some(host))));
    }
    Ok((list, until))
}

/// The replica at an address, which may be that of a `host` with a name.
fn replica(ip: IpAddr, port: u16, host: Option<&str>) -> Option<Listed> {
    let url = format!("http://{}", SocketAddr::new(ip, port));
    let replica = config::Replica::parse(&url).ok()?;
    let id = host.map(|host| format!("{host}:{port}")).filter(|id| config::is_replica_id(id));
    let id = id.unwrap_or_else(|| replica.id.clone());
    let server_name = host.map(str::to_owned);
    Some(Listed::new(config::Replica { id, server_name, ..replica }))
}
