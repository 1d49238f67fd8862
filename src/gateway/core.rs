//! One pinned core: its runtime, listeners, accept loop, sweep and drain.
//!
//! A core owns everything that a request touches: connections, idle upstream connections, buffers,
//! time limits and its metric shard. It shares nothing that is written on the hot path and never
//! waits for a lock or another thread.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use super::addresses::Counted;
use super::buffer::BufferPool;
use super::connection;
use super::idle::IdlePool;
use super::pick::Pickers;
use super::retry::RetryBudget;
use super::shared::{Published, Shared};
use super::sweep::{SWEEP_MS, Sweep};
use super::waiting::Queues;
use crate::admin::{PoolIndex, Shard};
use crate::net::{self, Bell, Identity, Listener, Stream};
use crate::prompt::segments::SegmentCache;
use crate::runtime::clock;
use crate::runtime::seldom::Seldom;
use crate::runtime::snapshot::{Held, Reader};
use crate::tenants::quota::store::Client;

/// Accepts in one turn before the connections get theirs.
const ACCEPTS_A_TURN: u32 = 32;
/// Pause when the process is out of descriptors: closing idle connections frees some meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of text and token ids that a core keeps of prompts: some eight thousand prompts' worth.
pub(super) const SEGMENT_BYTES_MAX: usize = 64 << 20;

/// Sweeps in which connections tell their clients that the gateway ends, and write their records.
const LAST_SWEEPS: u32 = 20;

/// Connections that a core still accepts from a queue before it closes the listener.
const LAST_ACCEPTS: u32 = 1024;
/// Idle connections live so long after a hand-over, so that a client which uses its connections
/// learns by an answer's `connection: close`, and not by a reset, that this one ends.
const HANDED_IDLE_MS: u64 = 5_000;

/// At the end the store of budgets gets this long to hear what goes back.
const LAST_WORDS_MS: u64 = 500;

/// What the tasks of one core share.
pub(super) struct Core {
    pub index: usize,
    pub shared: Arc<Shared>,
    published: RefCell<Reader<Published>>,
    /// What TLS clients are shown, if clients speak TLS.
    identity: Option<RefCell<Reader<Identity>>>,
    pub sweep: Rc<Sweep>,
    pub buffers: BufferPool,
    /// Parts of prompts whose tokens this core knows.
    pub segments: RefCell<SegmentCache>,
    /// Wakes this core's tasks from elsewhere, and lets long work take turns.
    pub bell: Rc<Bell>,
    pub idle: IdlePool,
    pub retries: RetryBudget,
    pub metrics: Arc<Shard>,
    pub pools: PoolIndex,
    /// The pool label of requests that never found one.
    pub no_pool: Arc<str>,
    pub rng: RefCell<fastrand::Rng>,
    pub pickers: Pickers,
    /// The way to the store of budgets that gateways share, if there is one.
    pub quota: Option<Client>,
    /// Requests that wait for room.
    pub queues: Queues,
    /// Something of the core's own has panicked: it must be started again.
    failed: Cell<bool>,
    /// Client connections of this core.
    connections: Cell<usize>,
    /// Listeners that it accepts from.
    listeners: Cell<usize>,
    /// The `date` field's line, renewed once a second.
    pub date: RefCell<String>,
}

impl Core {
    fn new(index: usize, shared: Arc<Shared>) -> std::io::Result<Rc<Core>> {
        let metrics = shared.shards.get(index).map(Arc::clone).unwrap_or_default();
        let core = Core {
            index,
            published: RefCell::new(Reader::new(Arc::clone(&shared.published))),
            identity: shared.identity.clone().map(|it| RefCell::new(Reader::new(it))),
            sweep: Rc::new(Sweep::default()),
            buffers: BufferPool::default(),
            segments: RefCell::new(SegmentCache::new(SEGMENT_BYTES_MAX)),
            bell: Rc::new(Bell::new()?),
            idle: IdlePool::default(),
            retries: RetryBudget::default(),
            metrics,
            pools: PoolIndex::default(),
            no_pool: "-".into(),
            rng: RefCell::new(fastrand::Rng::new()),
            pickers: Pickers::default(),
            quota: shared.quota.clone().map(|store| Client::start(store, index)),
            queues: Queues::default(),
            failed: Cell::new(false),
            connections: Cell::new(0),
            listeners: Cell::new(0),
            date: RefCell::new(String::new()),
            shared,
        };
        Ok(Rc::new(core))
    }

    /// Configuration and fleet as last published.
    pub(super) fn published(&self) -> Held<Published> {
        self.published.borrow_mut().get()
    }

    /// What a new client's TLS begins with; `None`: clients speak without.
    pub(super) fn identity(&self) -> Option<Held<Identity>> {
        self.identity.as_ref().map(|identity| identity.borrow_mut().get())
    }

    pub(super) fn draining(&self) -> bool {
        self.shared.flags.draining.load(Relaxed)
    }

    /// May an idle connection be closed? In a drain at once. After a hand-over only when there was
    /// time to tell it with an answer that its connection ends: its next request may be on its way.
    pub(super) fn closes_idle(&self) -> bool {
        let handed_ms = self.shared.flags.handed_over_ms.load(Relaxed);
        let told = clock::now_ms().saturating_sub(handed_ms) >= HANDED_IDLE_MS;
        self.draining() && (handed_ms == 0 || told || self.shared.flags.stop_now.load(Relaxed))
    }

    /// A fresh uniform number.
    pub(super) fn random(&self) -> u64 {
        self.rng.borrow_mut().u64(..)
    }
}

/// Runs core `index` until the drain is over.
///
/// # Errors
/// The driver or a listener cannot be set up.
pub(super) fn run(
    index: usize,
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
) -> std::io::Result<()> {
    live(index, shared, listeners, beat)
}

/// Sets a core up; it lives as long as `heart` beats.
fn live<H: Future<Output = ()>>(
    index: usize,
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    heart: impl FnOnce(Rc<Core>) -> H,
) -> std::io::Result<()> {
    let driver = shared.driver;
    net::run(driver, async move {
        let core = Core::new(index, shared)?;
        warm(&core);
        tick(&core);
        let (bell, sweep) = (Rc::clone(&core.bell), Rc::clone(&core.sweep));
        net::spawn(async move { bell.listen(|| sweep.ended()).await });
        for socket in listeners {
            let listener = Listener::from_std(socket)?;
            let core = Rc::clone(&core);
            core.listeners.set(core.listeners.get() + 1);
            net::spawn(async move {
                if panics(accept(Rc::clone(&core), listener)).await {
                    core.failed.set(true);
                }
                core.listeners.set(core.listeners.get() - 1);
            });
        }
        let failed = panics(heart(Rc::clone(&core))).await || core.failed.get();
        core.metrics.panics.add(u64::from(failed));
        end(&core).await;
        if failed {
            return Err(std::io::Error::other("a panic outside of its connections"));
        }
        // Who ends in a drain does not stall.
        core.metrics.beat_ms.set(i64::MAX);
        Ok(())
    })?
}

/// Builds what the tokenizers keep for each thread, so that no caller waits for it.
fn warm(core: &Core) {
    let published = core.published();
    let models = published.fleet.pools.iter().filter_map(|pool| pool.model());
    models.for_each(|model| model.tokenizer().warm());
}

/// The core's heart: it sweeps, and ends the core after a drain.
async fn beat(core: Rc<Core>) {
    loop {
        let planned_ns = clock::now_ns().saturating_add(SWEEP_MS.saturating_mul(1_000_000));
        net::sleep(Duration::from_millis(SWEEP_MS)).await;
        // The timer's own tick of 1 ms is no stall.
        let late_ns = clock::now_ns().saturating_sub(planned_ns).saturating_sub(1_000_000);
        core.metrics.loop_stall.observe_ns(late_ns);
        tick(&core);
        let over = core.failed.get() || core.shared.flags.stop_now.load(Relaxed);
        let idle = core.listeners.get() == 0 && core.connections.get() == 0;
        if over || (core.draining() && idle) {
            return;
        }
    }
}

/// Brings every task to its end, and with them their sockets: a listener that the runtime left
/// open would be given connections that nobody accepts.
async fn end(core: &Rc<Core>) {
    core.sweep.end();
    core.bell.ringer().ring();
    for _ in 0..LAST_SWEEPS {
        tick(core);
        // Each task holds the core.
        if Rc::strong_count(core) == 1 {
            break;
        }
        net::sleep(Duration::from_millis(SWEEP_MS)).await;
    }
    core.idle.clear();
    core.metrics.idle_upstreams.set(0);
    if let Some(quota) = &core.quota {
        quota.close(LAST_WORDS_MS).await;
    }
}

fn tick(core: &Rc<Core>) {
    let now_ms = clock::now_ms();
    core.sweep.run(now_ms);
    core.idle.sweep(now_ms);
    core.queues.released(now_ms);
    core.metrics.beat_ms.set(i64::try_from(now_ms).unwrap_or(i64::MAX));
    core.metrics.idle_upstreams.set(core.idle.len() as i64);
    let parts = core.segments.borrow().stats();
    let [known, new] = &core.metrics.parts;
    known.set(parts.hits as i64);
    new.set(parts.misses as i64);
    core.metrics.part_bytes.set(parts.bytes as i64);
    core.metrics.cpu_ns.set(i64::try_from(clock::thread_cpu_ns()).unwrap_or(i64::MAX));
    let unix_s = clock::unix_ms() / 1000;
    super::reply::write_date(&mut core.date.borrow_mut(), unix_s);
}

async fn accept(core: Rc<Core>, mut listener: Listener) {
    let closing = core.sweep.deadline();
    let (mut in_turn, mut last) = (0, LAST_ACCEPTS);
    let said = Seldom::default();
    loop {
        closing.set(SWEEP_MS);
        let accepted = poll_fn(|cx| {
            let flags = &core.shared.flags;
            if core.sweep.ended() {
                return Poll::Ready(None);
            }
            if flags.listeners_closed.load(Relaxed) {
                return Poll::Ready(last_of(&mut listener, cx, &mut last));
            }
            if closing.poll(cx).is_ready() {
                closing.set(SWEEP_MS);
                let _ = closing.poll(cx);
            }
            // Whoever comes waits in the queue meanwhile, or is the other process's.
            if flags.holding.load(Relaxed) {
                return Poll::Pending;
            }
            listener.poll_accept(cx).map(Some)
        });
        match accepted.await {
            None => return,
            Some(Ok(stream)) => {
                in_turn += 1;
                if in_turn == ACCEPTS_A_TURN {
                    in_turn = 0;
                    listener.breathe();
                }
                let Ok(counted) = counted(&core, &stream) else {
                    core.metrics.crowded_connections.inc();
                    continue;
                };
                let serve = connection::serve(Rc::clone(&core), stream);
                let counting = async move {
                    let _counted = counted;
                    serve.await;
                };
                net::spawn(fenced(Rc::clone(&core), counting));
            }
            Some(Err(error)) => {
                core.metrics.accept_errors.inc();
                if said.due(clock::now_ms()) {
                    core.shared.log.warn(&format!("cannot accept a connection: {error}"));
                }
                core.idle.clear();
                net::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Before a listener is closed: who is in its queue already, since the close would reset them.
fn last_of(
    listener: &mut Listener,
    cx: &mut Context<'_>,
    left: &mut u32,
) -> Option<std::io::Result<Stream>> {
    *left = left.checked_sub(1)?;
    listener.look_again();
    match listener.poll_accept(cx) {
        Poll::Ready(Ok(stream)) => Some(Ok(stream)),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

/// Its place among those of its address, where there is a limit to them.
///
/// # Errors
/// There are as many already.
fn counted(core: &Core, stream: &Stream) -> Result<Option<Counted>, ()> {
    let max = core.published().connections_max;
    if max == 0 {
        return Ok(None);
    }
    // Who has gone already has no address, and nothing to be counted.
    let Ok(addr) = stream.peer_addr() else { return Ok(None) };
    core.shared.addresses.count(addr.ip(), max).map(Some).ok_or(())
}

/// One connection under the panic fence: a panic ends it, is counted and logged, and harms nobody
/// else on the core. It counts from this call on, so that a drain does not overlook it.
fn fenced(core: Rc<Core>, serve: impl Future<Output = ()>) -> impl Future<Output = ()> {
    core.connections.set(core.connections.get() + 1);
    core.metrics.client_connections.set(core.connections.get() as i64);
    async move {
        if panics(serve).await {
            core.metrics.panics.inc();
        }
        core.connections.set(core.connections.get() - 1);
        core.metrics.client_connections.set(core.connections.get() as i64);
    }
}

/// Does `work` to its end. True: it panicked, and is gone.
async fn panics(work: impl Future<Output = ()>) -> bool {
    let mut work = Box::pin(work);
    let panicked = caught(work.as_mut()).await.is_none();
    if panicked {
        // Dropping what panicked may panic again; its sockets close all the same.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(work)));
    }
    panicked
}

/// What comes of `work`; `None`: it panicked.
pub(super) async fn caught<T>(mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|cx| match std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Some(done)),
        Err(_) => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
