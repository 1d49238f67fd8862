//! Sources of a pool's members: a file, a DNS name, a Kubernetes service.
//!
//! Each is one task on the control thread that sends the registry a list whenever it has changed.
//! A source that fails (a file half written, a name server that is down, an API that refuses)
//! sends nothing: the last good list stays, and one line says so until it is well again.

mod dns;
mod file;
mod health;
mod kubernetes;
mod lines;
mod slices;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::members::Listed;
use super::pool::PoolState;
use super::registry::Handle;
use super::report::Report;
use crate::config::{self, Discover};

pub use health::SourceHealth;

/// Between two tries at a source that fails: doubled each time, and then this much at most.
const RETRY_MAX: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_millis(500);

/// Follows the source of the pool at this index, if it names one. The task ends with its thread.
pub(super) fn follow(
    at: usize,
    pool: &config::Pool,
    state: &Arc<PoolState>,
    registry: Handle,
    report: Rc<Report>,
) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
    state.source.begin(pool.discover.as_ref().map(|discover| match discover {
        Discover::File(_) => "file",
        Discover::Dns(_) => "dns",
        Discover::Kubernetes(_) => "kubernetes",
    }));
    let discover = pool.discover.clone()?;
    let named = pool.tls.as_ref().map(|tls| tls.server_name.clone());
    let secured = named.and_then(|named| match &discover {
        // Its lines say themselves how they are spoken to.
        Discover::File(_) => None,
        Discover::Dns(dns) => Some((named, dns.name.trim_end_matches('.').to_owned())),
        Discover::Kubernetes(it) => Some((named, format!("{}.{}.svc", it.service, it.namespace))),
    });
    let outlet = Outlet {
        at,
        pool: pool.name.clone(),
        state: Arc::clone(state),
        registry,
        report,
        secured,
        last: None,
        trouble: None,
        failures: 0,
    };
    Some(match discover {
        Discover::File(path) => Box::pin(file::follow(path, outlet)),
        Discover::Dns(name) => Box::pin(dns::follow(name, outlet)),
        Discover::Kubernetes(service) => Box::pin(kubernetes::follow(service, outlet)),
    })
}

/// Where a source sends its lists and its troubles.
struct Outlet {
    at: usize,
    pool: String,
    state: Arc<PoolState>,
    registry: Handle,
    report: Rc<Report>,
    /// Who is listed by address alone speaks TLS: the name that the configuration says is in the
    /// certificates, and the one that it is otherwise.
    secured: Option<(Option<String>, String)>,
    last: Option<Vec<Listed>>,
    trouble: Option<String>,
    failures: u32,
}

impl Outlet {
    /// The source is well and lists these.
    async fn list(&mut self, mut list: Vec<Listed>) {
        self.failures = 0;
        if let Some((named, usual)) = &self.secured {
            for listed in &mut list {
                let replica = listed.replica.clone();
                let told = named.clone().or(replica.server_name.clone());
                listed.replica = replica.secured(told.as_ref().unwrap_or(usual));
            }
        }
        self.state.source.set_well(true);
        if self.trouble.take().is_some() {
            self.report.info(&format!("pool {}: its source is well again", self.pool));
        }
        if self.last.as_ref() != Some(&list) {
            self.last = Some(list.clone());
            self.registry.listed(self.at, list).await;
        }
    }

    /// The source fails; gives the time until the next try.
    fn fail(&mut self, what: String) -> Duration {
        let wait = RETRY_MIN.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.state.source.set_well(false);
        if self.trouble.as_ref() != Some(&what) {
            let stays = match &self.last {
                Some(list) => format!("its last list of {} stays", list.len()),
                None => "it lists nobody yet".to_owned(),
            };
            self.report.warn(&format!("pool {}: {what}; {stays}", self.pool));
            self.trouble = Some(what);
        }
        wait
    }
}
