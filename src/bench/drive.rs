//! One thread of a bench: its schedule, its connections, its counts.
//!
//! Every request is a task. In a closed loop a task is a connection that asks again and again; in
//! an open loop the dispatcher starts one at its due time on an idle connection, or a new one.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::answer::Answer;
use super::failure::{Failure, Kind};
use super::metronome::{self, Metronome};
use super::prompt::Prompts;
use super::tally::{Measured, Tally};
use super::wire::{Request, Wire};
use super::{Live, Load, Options, Target};
use crate::net::{self, Driver};
use crate::runtime::clock;

/// How often a thread looks whether it has been told to stop or has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What a thread measured.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) target: Tally,
    pub(super) direct: Option<Tally>,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

/// One of the two endpoints, with what is known of it.
#[derive(Default)]
struct Side {
    tally: RefCell<Tally>,
    idle: RefCell<Vec<Wire>>,
}

struct Thread {
    options: Arc<Options>,
    live: Arc<Live>,
    index: usize,
    prompts: RefCell<Prompts>,
    sides: [Side; 2],
    begin_ns: u64,
    /// End of the last answer, or when the rest was given up.
    end_ns: Cell<u64>,
    /// Requests that may still begin.
    budget: u64,
    begun: Cell<u64>,
    /// Tasks that have not ended.
    busy: Cell<u64>,
}

/// Runs the share of thread `index` and returns when its last request has ended.
pub(super) fn run(
    driver: Driver,
    index: usize,
    options: &Arc<Options>,
    live: Arc<Live>,
) -> io::Result<Share> {
    let begin_ns = clock::now_ns();
    let thread = Rc::new(Thread {
        live,
        index,
        prompts: RefCell::new(Prompts::new(options, index)),
        sides: Default::default(),
        begin_ns,
        end_ns: Cell::new(begin_ns),
        budget: options.requests.map_or(u64::MAX, |n| share(n, index, options.threads)),
        begun: Cell::new(0),
        busy: Cell::new(0),
        options: Arc::clone(options),
    });
    net::run(driver, Rc::clone(&thread).watch())??;
    let take = |side: &Side| std::mem::take(&mut *side.tally.borrow_mut());
    let [target, direct] = &thread.sides;
    Ok(Share {
        target: take(target),
        direct: thread.options.direct.is_some().then(|| take(direct)),
        begin_ns,
        end_ns: thread.end_ns.get(),
    })
}

/// Of `n` things, those of thread `index` of `threads`.
fn share(n: u64, index: usize, threads: usize) -> u64 {
    let (index, threads) = (index as u64, threads as u64);
    n / threads + u64::from(index < n % threads)
}

impl Thread {
    /// Starts the load and waits for its end, or for the word to stop.
    async fn watch(self: Rc<Self>) -> io::Result<()> {
        let (index, threads) = (self.index, self.options.threads);
        match self.options.load {
            Load::Concurrency(n) => {
                for _ in 0..share(n as u64, index, threads) {
                    self.spawn(Rc::clone(&self).closed_loop());
                }
            }
            Load::Rate(rate) => {
                let period_ns = 1e9 * threads as f64 / rate;
                let lasting = self.options.duration.as_nanos() as f64 / period_ns;
                let count = (lasting.ceil() as u64).min(self.budget);
                // The threads take turns.
                let start_ns = self.begin_ns + (period_ns * index as f64 / threads as f64) as u64;
                let metronome = Metronome::start(start_ns, period_ns, count)?;
                let dispatching = Rc::clone(&self).open_loop(metronome, start_ns, period_ns, count);
                self.spawn(dispatching);
            }
        }
        while self.busy.get() > 0 && !self.live.stop.load(Relaxed) {
            net::sleep(LOOK).await;
        }
        if self.busy.get() > 0 {
            self.end_ns.set(clock::now_ns());
        }
        Ok(())
    }

    /// Spawns a task that counts as busy until it ends.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let thread = Rc::clone(self);
        self.busy.set(self.busy.get() + 1);
        net::spawn(async move {
            task.await;
            thread.busy.set(thread.busy.get() - 1);
        });
    }

    /// One connection a side, used in turn.
    async fn closed_loop(self: Rc<Self>) {
        let end_ns = self.begin_ns.saturating_add(self.options.duration.as_nanos() as u64);
        let mut wires = [None, None];
        while clock::now_ns() < end_ns && self.begun.get() < self.budget {
            let (side, request) = self.next(clock::now_ns());
            let wire = wires[side].take();
            let wire = self.serve(side, wire, request).await;
            if wire.is_none() {
                // A server that refuses at once is not asked a million times.
                net::sleep(LOOK).await;
            }
            wires[side] = wire;
        }
    }

    async fn open_loop(
        self: Rc<Self>,
        mut metronome: Metronome,
        start_ns: u64,
        period_ns: f64,
        count: u64,
    ) {
        let mut i = 0;
        while i < count {
            let due_ns = metronome::due_ns(start_ns, period_ns, i);
            if due_ns > clock::now_ns() {
                metronome.beat().await;
                continue;
            }
            i += 1;
            let (side, request) = self.next(due_ns);
            let wire = self.idle(side);
            let thread = Rc::clone(&self);
            self.spawn(async move {
                if let Some(wire) = thread.serve(side, wire, request).await {
                    thread.sides[side].idle.borrow_mut().push(wire);
                }
            });
        }
    }

    /// The next request and its side: 0 the target, 1 the direct one.
    fn next(&self, due_ns: u64) -> (usize, Request) {
        // The threads begin on different sides.
        let i = self.begun.replace(self.begun.get() + 1) + self.index as u64;
        let (side, pair, target) = match &self.options.direct {
            Some(direct) if i % 2 == 1 => (1, i / 2, direct),
            Some(_) => (0, i / 2, &self.options.target),
            None => (0, i, &self.options.target),
        };
        (side, self.prompts.borrow_mut().next(target, pair, due_ns))
    }

    /// An idle connection that the server has kept; the one used last, so that few are open.
    fn idle(&self, side: usize) -> Option<Wire> {
        let mut idle = self.sides[side].idle.borrow_mut();
        std::iter::from_fn(|| idle.pop()).find_map(|mut wire| wire.is_idle().then_some(wire))
    }

    fn target(&self, side: usize) -> &Target {
        match (&self.options.direct, side) {
            (Some(direct), 1) => direct,
            _ => &self.options.target,
        }
    }

    /// Sends one request, counts what comes of it, and hands the connection back if it lives on.
    async fn serve(&self, side: usize, wire: Option<Wire>, request: Request) -> Option<Wire> {
        let tally = &self.sides[side].tally;
        let due_ns = request.expected.due_ns;
        let asked = self.ask(side, wire, &request);
        let judged = monoio::time::timeout(self.options.timeout, asked).await;
        let ended_ns = clock::now_ns();
        self.end_ns.set(ended_ns);
        self.live.done.fetch_add(1, Relaxed);
        match judged.unwrap_or_else(|_| Err(Failure::new(Kind::Timeout, "given up"))) {
            Ok((measured, wire)) => {
                let total_ns = ended_ns.saturating_sub(due_ns);
                tally.borrow_mut().complete(total_ns, &measured);
                wire
            }
            Err(failure) => {
                self.live.failed.fetch_add(1, Relaxed);
                tally.borrow_mut().fail(failure);
                None
            }
        }
    }

    async fn ask(
        &self,
        side: usize,
        wire: Option<Wire>,
        request: &Request,
    ) -> Result<(Measured, Option<Wire>), Failure> {
        let mut wire = match wire {
            Some(wire) => wire,
            None => Wire::connect(self.target(side).addr)
                .await
                .map_err(|e| Failure::new(Kind::Connect, e))?,
        };
        let tally = &self.sides[side].tally;
        let late_ns = clock::now_ns().saturating_sub(request.expected.due_ns);
        tally.borrow_mut().lateness.record_ns(late_ns);
        let mut answer = Answer::new(request.expected);
        let keep = wire.exchange(request, &mut answer, tally).await?;
        Ok((answer.finish()?, keep.then_some(wire)))
    }
}
