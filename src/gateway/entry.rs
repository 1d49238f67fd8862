//! How a process gets its sockets and when it opens up: fresh ones, those of a service manager, or
//! those of the gateway before, which serves until this one can.
//!
//! Opened on the thread that starts the gateway, then the control thread's.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

use tokio::sync::watch;

use super::doors::{self, Doors, Giver};
use super::handover::{self, Handed, Host, Post};
use super::shared::Shared;
use crate::admin::{self, View};
use crate::config::Config;
use crate::net::inherited_listeners;
use crate::runtime::systemd;

/// See the module.
pub(super) struct Entry {
    pub(super) doors: Arc<Doors>,
    pub(super) admin: Option<TcpListener>,
    /// The gateway before, if it is there.
    pub(super) handed: Option<Handed>,
    /// Where a successor is waited for.
    post: Option<Post>,
}

impl Entry {
    /// Asks the gateway before for its sockets, or takes a service manager's, and binds the rest.
    /// While there is one before, no core accepts anybody.
    ///
    /// # Errors
    /// What cannot be had, in words for the operator.
    pub(super) fn open(config: &Config, shared: &Shared) -> Result<Entry, String> {
        let server = &config.server;
        // Before anything of ours listens.
        let passed = inherited_listeners(systemd::passed());
        let path = server.handover.as_deref().map(Path::new);
        let at = |e| format!("cannot use handover in [server]: {e}");
        let mut handed = path.map(handover::ask).transpose().map_err(at)?.flatten();
        let post = path.map(Post::open).transpose().map_err(at)?;
        let (mut given, giver) = match &mut handed {
            Some(handed) => (std::mem::take(&mut handed.clients), Giver::Gateway),
            None if passed.is_empty() => (passed, Giver::Gateway),
            None => (passed, Giver::Manager),
        };
        let mut of_admin: Vec<_> =
            handed.as_mut().and_then(|h| h.admin.take()).into_iter().collect();
        let of_admin = if handed.is_some() { &mut of_admin } else { &mut given };
        let admin = server.admin.map(|addr| {
            let admin = doors::admin(addr, of_admin);
            admin.map_err(|e| format!("cannot listen on {addr} (admin): {e}"))
        });
        let admin = admin.transpose()?;
        let opened = Doors::open(&server.listen, shared.shards.len(), given, giver);
        let (doors, left) =
            opened.map_err(|e| format!("cannot listen on {}: {e}", list(&server.listen)))?;
        if !left.is_empty() {
            let left = list(&left);
            let log = &shared.log;
            log.warn(&format!("{left}: passed to this process and not in [server], now closed"));
        }
        shared.flags.holding.store(handed.is_some(), Relaxed);
        Ok(Entry { doors: Arc::new(doors), admin, handed, post })
    }

    /// Where the admin listens.
    pub(super) fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    /// Serves the admin, takes over from the gateway before, says in `open` that this one serves,
    /// or why it does not, and waits for a successor.
    pub(super) async fn open_up(
        self,
        shared: Arc<Shared>,
        view: Option<Arc<View>>,
        open: mpsc::Sender<Result<(), String>>,
    ) {
        let Entry { doors, admin, handed, post } = self;
        let succeeds = handed.is_some();
        if let Some(handed) = handed
            && let Err(why) = handed.take_over(&shared).await
        {
            let _ = open.send(Err(why));
            return;
        }
        let (gone_tx, gone) = watch::channel(false);
        let copy = admin.as_ref().and_then(|admin| admin.try_clone().ok());
        if let (Some(admin), Some(view)) = (admin, view) {
            let shared = Arc::clone(&shared);
            tokio::task::spawn_local(async move {
                if let Err(error) = admin::serve(admin, view, gone).await {
                    shared.log.error(&format!("the admin listener cannot be served: {error}"));
                }
            });
        }
        let mut post = post;
        let published = match post.as_mut().map_or(Ok(()), Post::publish) {
            // Who has taken over serves all the same.
            Err(error) if succeeds => {
                shared.log.error(&format!("no successor can find this gateway: {error}"));
                Ok(())
            }
            other => other.map_err(|e| format!("cannot use handover in [server]: {e}")),
        };
        let _ = open.send(published);
        if let Some(post) = post {
            Host { shared, doors, admin: copy, gone: gone_tx }.wait(post).await;
        }
    }
}

fn list(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
