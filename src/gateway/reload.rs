//! A new configuration in the place of the old one, while requests go on.
//!
//! Runs on the control thread, one reload at a time. The file is read and checked whole, tokenizers
//! that are new are loaded, and then everything is published at once; a file with a mistake changes
//! nothing. A request keeps the configuration that it began with. Pools, replicas and tenants that
//! stay under their name keep ledgers, connections, caches and what they have spent. Certificates
//! are read anew for connections to come; open ones keep theirs.
//!
//! What was set up before the first request cannot change under it: listeners, cores, the usage
//! log, the stores. Such keys keep their old value until the next start, and that is said.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::identity;
use super::models::Loaded;
use super::shared::Shared;
use crate::config::{Config, ConfigErrors};
use crate::net::Identity;
use crate::replicas::Files;
use crate::replicas::registry::Handle;
use crate::runtime::systemd;

/// Reads the configuration again.
pub type Reopen = Arc<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// What came of a reload: the keys that wait for the next start, or why nothing has changed.
pub type Reloaded = Result<Vec<&'static str>, String>;

/// Orders that wait; more are refused.
const ORDERS_MAX: usize = 8;

/// The way to the task that reloads, for any thread.
#[derive(Clone)]
pub(super) struct Reloader(mpsc::Sender<oneshot::Sender<Reloaded>>);

/// The other end.
pub(super) struct Reloads(mpsc::Receiver<oneshot::Sender<Reloaded>>);

pub(super) fn channel() -> (Reloader, Reloads) {
    let (send, receive) = mpsc::channel(ORDERS_MAX);
    (Reloader(send), Reloads(receive))
}

impl Reloader {
    /// Asks for a reload; what comes of it comes through the receiver, which fails when the
    /// gateway ends or too many wait.
    pub(super) fn ask(&self) -> oneshot::Receiver<Reloaded> {
        let (answer, answered) = oneshot::channel();
        // A refused order drops its answer, and the receiver tells.
        let _ = self.0.try_send(answer);
        answered
    }
}

/// Carries reloads out, until the task is dropped.
pub(super) async fn serve(
    shared: Arc<Shared>,
    registry: Handle,
    (mut reloads, reopen): (Reloads, Option<Reopen>),
    mut loaded: Loaded,
) {
    while let Some(answer) = reloads.0.recv().await {
        systemd::notify_reloading();
        let came = match &reopen {
            Some(reopen) => {
                let came = reload(&shared, &registry, Arc::clone(reopen), loaded).await;
                loaded = came.1;
                came.0
            }
            None => Err("this gateway was started without a file: nothing to reload".to_owned()),
        };
        match &came {
            Ok(waiting) => {
                shared.reloads.done();
                shared.log.info("the configuration was reloaded");
                for key in waiting {
                    shared.log.warn(&format!("{key} has changed: it waits for the next start"));
                }
            }
            Err(why) => {
                shared.reloads.refused();
                shared.log.warn(&format!("the configuration was not reloaded: {why}"));
            }
        }
        systemd::notify(systemd::READY);
        let _ = answer.send(came);
    }
}

/// Gives the loaded models back, whatever comes of it.
async fn reload(
    shared: &Arc<Shared>,
    registry: &Handle,
    reopen: Reopen,
    mut loaded: Loaded,
) -> (Reloaded, Loaded) {
    let of = Arc::clone(shared);
    // A tokenizer takes seconds.
    let read = tokio::task::spawn_blocking(move || {
        let read = read(&of, &reopen, &mut loaded);
        (read, loaded)
    });
    let Ok((read, loaded)) = read.await else {
        return (Err("reading it has panicked".to_owned()), Loaded::default());
    };
    let (config, waiting, files, identity) = match read {
        Ok(read) => read,
        Err(why) => return (Err(why), loaded),
    };
    config.warnings.iter().for_each(|warning| shared.log.warn(warning));
    let reconfigured = registry.reconfigure(Arc::new(config), files).await;
    let ended = |_| "the registry has ended".to_owned();
    if let (Ok(()), Some(cell), Some(new)) = (&reconfigured, &shared.identity, identity) {
        cell.publish(new);
    }
    (reconfigured.map(|()| waiting).map_err(ended), loaded)
}

type Read = (Config, Vec<&'static str>, Files, Option<Identity>);

fn read(shared: &Shared, reopen: &Reopen, loaded: &mut Loaded) -> Result<Read, String> {
    let mut config = reopen().map_err(|errors| errors.to_string())?;
    let waiting = keep_what_is_fixed(&mut config, &shared.published.load().config);
    // Read again also when no name has changed: certificates are renewed in place.
    let identity = identity::load(&config).map_err(|error| error.to_string())?;
    let files = loaded.files(&config, &shared.log)?;
    let remark = identity.as_ref().and_then(|identity| identity::remark(&config, identity));
    config.warnings.extend(remark);
    Ok((config, waiting, files, identity))
}

/// Gives what is fixed at the start its old value; the keys that would have changed.
fn keep_what_is_fixed(new: &mut Config, old: &Config) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    let (server, before) = (&mut new.server, &old.server);
    keep("listen in [server]", &mut server.listen, &before.listen, &mut waiting);
    keep("admin in [server]", &mut server.admin, &before.admin, &mut waiting);
    keep("handover in [server]", &mut server.handover, &before.handover, &mut waiting);
    keep("cores in [server]", &mut server.cores, &before.cores, &mut waiting);
    if server.tls.is_some() != before.tls.is_some() {
        keep("tls in [server]", &mut server.tls, &before.tls, &mut waiting);
    }
    keep("driver in [server]", &mut server.driver, &before.driver, &mut waiting);
    keep("[usage]", &mut new.usage, &old.usage, &mut waiting);
    keep("share in [routing]", &mut new.share, &old.share, &mut waiting);
    keep("store in [quota]", &mut new.quota.store, &old.quota.store, &mut waiting);
    let (ours, theirs) = (&mut new.quota, &old.quota);
    keep("on_store_down in [quota]", &mut ours.on_store_down, &theirs.on_store_down, &mut waiting);
    keep("timeout_ms in [quota]", &mut ours.timeout_ms, &theirs.timeout_ms, &mut waiting);
    keep("lease_ms in [quota]", &mut ours.lease_ms, &theirs.lease_ms, &mut waiting);
    keep("[log]", &mut new.log, &old.log, &mut waiting);
    keep("[otel]", &mut new.otel, &old.otel, &mut waiting);
    waiting
}

fn keep<T: PartialEq + Clone>(
    key: &'static str,
    new: &mut T,
    old: &T,
    waiting: &mut Vec<&'static str>,
) {
    if new != old {
        new.clone_from(old);
        waiting.push(key);
    }
}
