//! Loads adapters on demand (`adapters = "load"`): a core that has picked a replica which does not
//! list the adapter asks here, and the request goes on when the replica has it.
//!
//! One task for each order on the control thread, one order at a time for each replica. What this
//! process has loaded is kept within the replica's adapter slots: the one that has been idle the
//! longest is unloaded, never one in use, never one that was there before. A name leaves the
//! published list before it is unloaded, so that nobody is sent after it.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use xxhash_rust::xxh3::xxh3_64;

use super::client::Client;
use super::pool::Pool;
use super::replica::Replica;
use super::report::Report;
use super::shelf::{self, Shelved};
use crate::openai::models;
use crate::runtime::clock;

/// Orders that wait.
const WANTS_MAX: usize = 1_024;
/// A load reads gigabytes from a disk that may be far away.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// From a name's leaving the list to its unloading: requests that were sent before have entered
/// the ledger by then.
const LEAVE_TIME: Duration = Duration::from_millis(100);
/// A replica that refused to load an adapter is not asked for it again for so long.
const REFUSED_MS: u64 = 30_000;
/// Adapters of ours on a replica that does not tell its slots.
const SLOTS_DEFAULT: u32 = 8;

/// One order.
struct Want {
    pool: Arc<Pool>,
    replica: Arc<Replica>,
    adapter: Arc<str>,
    path: Arc<str>,
    done: Box<dyn FnOnce(Result<(), String>) + Send>,
}

/// The cores' way to the loader.
#[derive(Clone)]
pub struct Loader(mpsc::Sender<Want>);

/// The other end of a [`Loader`].
pub struct Wants(mpsc::Receiver<Want>);

/// A loader's two ends.
#[must_use]
pub fn channel() -> (Loader, Wants) {
    let (send, receive) = mpsc::channel(WANTS_MAX);
    (Loader(send), Wants(receive))
}

impl Loader {
    /// Wants `adapter` loaded from `path` on a replica of `pool`; `done` is called on the control
    /// thread, with what went wrong if it did. False: too many wait, and `done` is never called.
    #[must_use]
    pub fn want(
        &self,
        pool: &Arc<Pool>,
        replica: &Arc<Replica>,
        (adapter, path): (&Arc<str>, &Arc<str>),
        done: Box<dyn FnOnce(Result<(), String>) + Send>,
    ) -> bool {
        let want = Want {
            pool: Arc::clone(pool),
            replica: Arc::clone(replica),
            adapter: Arc::clone(adapter),
            path: Arc::clone(path),
            done,
        };
        self.0.try_send(want).is_ok()
    }
}

/// The hash by which adapters are told apart in ledgers and on replicas.
#[must_use]
pub fn adapter_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// What was loaded on one replica by this process.
#[derive(Default)]
struct Ours(Vec<Arc<str>>);

/// Serves orders until the task is dropped.
pub(super) async fn serve(mut wants: Wants, report: Rc<Report>) {
    let mut replicas: HashMap<usize, Rc<Mutex<Ours>>> = HashMap::new();
    while let Some(want) = wants.0.recv().await {
        replicas.retain(|_, ours| Rc::strong_count(ours) > 1 || ours.try_lock().is_ok());
        let ours = Rc::clone(replicas.entry(want.replica.key).or_default());
        let report = Rc::clone(&report);
        // At once, so that others who want it come here too instead of loading it elsewhere.
        want.replica.loads.expect(adapter_hash(&want.adapter), true);
        tokio::task::spawn_local(async move {
            let Want { pool, replica, adapter, path, done } = want;
            let mut ours = ours.lock().await;
            let load = Load { pool: &pool, replica: &replica, adapter: &adapter, path: &path };
            let result = load.run(&mut ours, &report).await;
            let hash = adapter_hash(&adapter);
            replica.loads.expect(hash, false);
            if let Err(what) = &result {
                replica.loads.refuse(hash, clock::now_ms().saturating_add(REFUSED_MS));
                report.warn(&format!("replica {} does not load {adapter}: {what}", replica.id));
            }
            done(result);
        });
    }
}

/// One load.
struct Load<'l> {
    pool: &'l Pool,
    replica: &'l Replica,
    adapter: &'l Arc<str>,
    path: &'l str,
}

impl Load<'_> {
    async fn run(&self, ours: &mut Ours, report: &Report) -> Result<(), String> {
        if self.replica.lists(self.adapter) {
            return Ok(());
        }
        let Some(addr) = self.replica.addr.load_full().map(|addr| *addr) else {
            return Err("its name is not resolved".to_owned());
        };
        let mut client = Client::new(self.replica, self.pool.api_key.as_ref());
        ours.0.retain(|name| self.replica.lists(name));
        self.make_room(ours, &mut client, addr, report).await?;
        let asked = serde_json::json!({"lora_name": &**self.adapter, "lora_path": self.path});
        let asked = asked.to_string();
        let answer = client.post(addr, "/v1/load_lora_adapter", asked, LOAD_TIMEOUT).await;
        match answer {
            Some((200, _)) => ours.0.push(Arc::clone(self.adapter)),
            // Somebody else was faster.
            Some((400, text)) if has(&text, b"already been loaded") => {}
            Some((status, text)) => {
                let text = String::from_utf8_lossy(&text).chars().take(200).collect::<String>();
                return Err(format!("{status} {text}"));
            }
            None => return Err("no answer in time".to_owned()),
        }
        // Its list tells the other cores; until then this order's own request goes ahead.
        let listed = client.get(addr, "/v1/models", ASK_TIMEOUT).await;
        if let Some(list) = listed.and_then(|(_, body)| models::parse(&body).ok()) {
            self.replica.models.store(Some(Arc::new(list)));
            report.changed();
        }
        report.info(&format!("replica {} has loaded {}", self.replica.id, self.adapter));
        Ok(())
    }

    /// Unloads one of ours when they fill the replica's slots.
    async fn make_room(
        &self,
        ours: &mut Ours,
        client: &mut Client,
        addr: std::net::SocketAddr,
        report: &Report,
    ) -> Result<(), String> {
        let room = match self.replica.signals.adapter_slots() {
            0 => SLOTS_DEFAULT,
            slots => slots,
        };
        let shelved: Vec<_> = ours.0.iter().map(|name| self.shelved(name)).collect();
        let victim = match shelf::victim(&shelved, room as usize) {
            Ok(None) => return Ok(()),
            Ok(Some(at)) => at,
            Err(shelf::Full) => return Err("every adapter that it has is in use".to_owned()),
        };
        let Some(name) = ours.0.get(victim).map(Arc::clone) else { return Ok(()) };
        let listed = self.replica.models.load_full();
        let left = listed.iter().flat_map(|list| list.iter()).filter(|e| *e.id != *name).cloned();
        self.replica.models.store(Some(Arc::new(left.collect())));
        report.changed();
        tokio::time::sleep(LEAVE_TIME).await;
        if self.shelved(&name).busy {
            self.replica.models.store(listed);
            report.changed();
            return Err("every adapter that it has is in use".to_owned());
        }
        let asked = serde_json::json!({"lora_name": &*name}).to_string();
        let answer = client.post(addr, "/v1/unload_lora_adapter", asked, ASK_TIMEOUT).await;
        ours.0.retain(|other| *other != name);
        match answer {
            Some((200 | 404, _)) => Ok(()),
            Some((status, _)) => Err(format!("{status} when {name} was to be unloaded")),
            None => Err(format!("no answer when {name} was to be unloaded")),
        }
    }

    fn shelved(&self, name: &str) -> Shelved {
        let (hash, now_ms) = (adapter_hash(name), clock::now_ms());
        let lanes = self.pool.lanes.iter().filter(|lane| lane.replica.key == self.replica.key);
        let mut shelved = Shelved { busy: false, idle_ms: u64::MAX };
        for lane in lanes {
            let (busy, idle_ms) = lane.ledger.adapter_use(hash, now_ms);
            shelved.busy |= busy;
            shelved.idle_ms = shelved.idle_ms.min(idle_ms.unwrap_or(u64::MAX));
        }
        shelved
    }
}

fn has(text: &[u8], words: &[u8]) -> bool {
    memchr::memmem::find(text, words).is_some()
}
