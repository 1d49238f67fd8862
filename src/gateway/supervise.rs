//! Starts the cores, pins them, and starts one again that has died.
//!
//! A panic under a connection's fence costs that connection. One outside it (our own accept loop,
//! the runtime) ends the core's thread; the others go on, and a new one takes its place within a
//! second, on the same listeners: who came meanwhile has waited in their queues.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use super::doors::Doors;
use super::shared::Shared;
use crate::runtime::affinity;

/// Between two looks at the cores.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a core's thread runs: [`super::core::run`], but for tests.
pub(super) type Run = fn(usize, Arc<Shared>, Vec<TcpListener>) -> std::io::Result<()>;

/// The running cores.
pub(super) struct Cores {
    run: Run,
    shared: Arc<Shared>,
    cpus: Vec<usize>,
    doors: Arc<Doors>,
    threads: Vec<Option<JoinHandle<std::io::Result<()>>>>,
}

impl Cores {
    /// Starts a pinned thread on each of `cpus`, which does `run` with its share of `doors`.
    ///
    /// # Errors
    /// A thread cannot be started, or no descriptor is left.
    pub(super) fn start(
        shared: Arc<Shared>,
        cpus: Vec<usize>,
        doors: Arc<Doors>,
        run: Run,
    ) -> std::io::Result<Cores> {
        let mut cores = Cores { run, shared, cpus, doors, threads: Vec::new() };
        for index in 0..cores.cpus.len() {
            let thread = cores.spawn(index, cores.doors.of(index)?)?;
            cores.threads.push(Some(thread));
        }
        Ok(cores)
    }

    fn spawn(
        &self,
        index: usize,
        listeners: Vec<TcpListener>,
    ) -> std::io::Result<JoinHandle<std::io::Result<()>>> {
        let shared = Arc::clone(&self.shared);
        let (run, cpu) = (self.run, self.cpus.get(index).copied());
        std::thread::Builder::new().name(format!("core-{index}")).spawn(move || {
            if let Some(cpu) = cpu
                && let Err(error) = affinity::pin(cpu)
            {
                shared.log.warn(&format!("core {index} is not pinned to CPU {cpu}: {error}"));
            }
            run(index, shared, listeners)
        })
    }

    /// Watches the cores until all have ended after a drain.
    pub(super) fn watch(mut self) {
        while self.threads.iter().any(Option::is_some) {
            std::thread::sleep(LOOK_EVERY);
            for index in 0..self.threads.len() {
                self.look(index);
            }
        }
        self.shared.flags.cores_ended.store(true, Relaxed);
    }

    fn look(&mut self, index: usize) {
        let Some(place) = self.threads.get_mut(index) else { return };
        if !place.as_ref().is_some_and(JoinHandle::is_finished) {
            return;
        }
        let ended = place.take().map(JoinHandle::join);
        let log = &self.shared.log;
        match ended {
            Some(Ok(Ok(()))) => return,
            Some(Ok(Err(error))) => log.error(&format!("core {index} ended: {error}")),
            _ => {
                self.shared.flags.panics.fetch_add(1, Relaxed);
                log.error(&format!("core {index} panicked"));
            }
        }
        if self.shared.flags.draining.load(Relaxed) {
            return;
        }
        let again = self.doors.of(index).and_then(|listeners| self.spawn(index, listeners));
        match again {
            Ok(thread) => {
                self.shared.log.warn(&format!("core {index} was started again"));
                if let Some(place) = self.threads.get_mut(index) {
                    *place = Some(thread);
                }
            }
            Err(error) => {
                self.doors.abandon(index);
                self.shared.log.error(&format!("core {index} stays down: {error}"));
            }
        }
    }
}
