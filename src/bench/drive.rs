//! One thread of a bench: its schedule, its connections, its counts.
//!
//! Every conversation is a task. In a closed loop a task is a connection that asks again and again;
//! in an open loop the dispatcher starts one at its due time on an idle connection, or a new one.
//! Most conversations have one request. Where there are more, a later one is due when the user has
//! read the answer: nobody can be late with it but the server, whose answer it waits for.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::answer::Answer;
use super::failure::{Failure, Kind};
use super::metronome::Metronome;
use super::prompt::{Prompts, Talk};
use super::schedule::{Place, Schedule};
use super::tally::{Measured, Tally};
use super::wire::{Request, Wire};
use super::{Live, Load, Options, Target};
use crate::net::{self, Driver};
use crate::plan::random::mix;
use crate::runtime::clock;

/// How often a thread looks whether it has been told to stop or has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Timers tick once a millisecond: a later turn may be so late without being counted as late.
const TICK_NS: u64 = 2_000_000;
/// What an answer is thought to take before the first one has come.
const ANSWER_NS: u64 = 20_000_000;

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
    /// Conversations that have begun.
    talks: Cell<u64>,
    /// Tasks that have not ended.
    busy: Cell<u64>,
    /// What an answer takes of late.
    answer_ns: Cell<u64>,
}

/// What has become of a request.
struct Served {
    /// The connection, if it lives on.
    wire: Option<Wire>,
    /// The answer was right, so that the conversation can go on.
    right: bool,
}

/// Runs the share of thread `index` and returns when its last request has ended.
pub(super) fn run(
    driver: Driver,
    index: usize,
    options: &Arc<Options>,
    live: Arc<Live>,
) -> io::Result<Share> {
    let begin_ns = clock::now_ns();
    let side = || Side { tally: Tally::from(live.origin_ns).into(), ..Side::default() };
    let thread = Rc::new(Thread {
        sides: [side(), side()],
        live,
        index,
        prompts: RefCell::new(Prompts::new(options, index)),
        begin_ns,
        end_ns: Cell::new(begin_ns),
        budget: options.requests.map_or(u64::MAX, |n| share(n, index, options.threads)),
        begun: Cell::new(0),
        talks: Cell::new(0),
        busy: Cell::new(0),
        answer_ns: Cell::new(ANSWER_NS),
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
        match &self.options.load {
            Load::Concurrency(n) => {
                for _ in 0..share(*n as u64, self.index, self.options.threads) {
                    self.spawn(Rc::clone(&self).closed_loop());
                }
            }
            Load::Rate(_) | Load::Trace(_) => {
                let schedule = self.schedule();
                let metronome = Metronome::start(schedule.clone())?;
                self.spawn(Rc::clone(&self).open_loop(metronome, schedule));
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

    /// When conversations begin in an open loop.
    fn schedule(&self) -> Schedule {
        let turns = u64::from(self.options.turns.max(1));
        let place = Place {
            index: self.index,
            threads: self.options.threads,
            begin_ns: self.begin_ns,
            duration_ns: self.duration_ns(),
            most: self.budget.div_ceil(turns),
        };
        match &self.options.load {
            Load::Trace(workload) => {
                let times = workload.sessions.iter().map(|s| s.start_us.saturating_mul(1000));
                Schedule::listed(&times.collect::<Vec<_>>().into(), place)
            }
            Load::Rate(rate) => {
                let Options { spacing, seed, run, .. } = *self.options;
                Schedule::of(rate / turns as f64, spacing, seed ^ mix(run), place)
            }
            Load::Concurrency(_) => Schedule::listed(&[].into(), place),
        }
    }

    fn duration_ns(&self) -> u64 {
        u64::try_from(self.options.duration.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether another request may begin.
    fn may_begin(&self) -> bool {
        let end_ns = self.begin_ns.saturating_add(self.duration_ns());
        clock::now_ns() < end_ns && self.begun.get() < self.budget
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
        let mut wires = [None, None];
        while self.may_begin() {
            let mut talk = self.begin();
            loop {
                let request = self.next(&mut talk, clock::now_ns());
                let wire = wires[talk.side].take();
                let served = self.serve(&mut talk, wire, request).await;
                wires[talk.side] = served.wire;
                if !served.right {
                    // A server that refuses at once is not asked a million times.
                    net::sleep(LOOK).await;
                    break;
                }
                if !self.is_asked_again(&talk).await {
                    break;
                }
            }
        }
    }

    async fn open_loop(self: Rc<Self>, mut metronome: Metronome, schedule: Schedule) {
        for due_ns in schedule {
            while due_ns > clock::now_ns() {
                metronome.beat().await;
            }
            if self.begun.get() >= self.budget {
                return;
            }
            let mut talk = self.begin();
            let request = self.next(&mut talk, due_ns);
            let wire = self.idle(talk.side);
            self.spawn(Rc::clone(&self).converse(talk, request, wire));
        }
    }

    /// A conversation of an open loop, from its first request on.
    async fn converse(self: Rc<Self>, mut talk: Talk, mut request: Request, first: Option<Wire>) {
        let mut wire = first;
        loop {
            let served = self.serve(&mut talk, wire, request).await;
            if let Some(wire) = served.wire {
                self.sides[talk.side].idle.borrow_mut().push(wire);
            }
            let due_ns = clock::now_ns().saturating_add(self.options.think.as_nanos() as u64);
            if !served.right || !self.is_asked_again(&talk).await {
                return;
            }
            // The tick of the timer is not the server's.
            let due_ns = clock::now_ns().min(due_ns.saturating_add(TICK_NS));
            request = self.next(&mut talk, due_ns);
            wire = self.idle(talk.side);
        }
    }

    /// Waits until the user has read the answer; false: the conversation has ended.
    async fn is_asked_again(&self, talk: &Talk) -> bool {
        if !talk.goes_on() {
            return false;
        }
        if !self.options.think.is_zero() {
            net::sleep(self.options.think).await;
        }
        self.may_begin()
    }

    /// The next conversation.
    fn begin(&self) -> Talk {
        let number = self.talks.replace(self.talks.get() + 1);
        // The threads begin on different sides.
        let i = number + self.index as u64;
        let (side, pair) = match self.options.direct {
            Some(_) => ((i % 2) as usize, i / 2),
            None => (0, i),
        };
        let place = self.index + number as usize * self.options.threads;
        self.prompts.borrow_mut().begin(side, pair, place)
    }

    /// The next request of a conversation.
    fn next(&self, talk: &mut Talk, due_ns: u64) -> Request {
        self.begun.set(self.begun.get() + 1);
        self.prompts.borrow_mut().next(talk, self.target(talk.side), due_ns)
    }

    /// An idle connection that the server has kept; the one used last, so that few are open.
    fn idle(&self, side: usize) -> Option<Wire> {
        let mut idle = self.sides[side].idle.borrow_mut();
        let now_ns = clock::now_ns();
        std::iter::from_fn(|| idle.pop()).find_map(|mut wire| wire.is_idle(now_ns).then_some(wire))
    }

    fn target(&self, side: usize) -> &Target {
        match (&self.options.direct, side) {
            (Some(direct), 1) => direct,
            _ => &self.options.target,
        }
    }

    /// Sends one request, counts what comes of it, and hands the connection back if it lives on.
    async fn serve(&self, talk: &mut Talk, wire: Option<Wire>, request: Request) -> Served {
        let tally = &self.sides[talk.side].tally;
        let due_ns = request.expected.due_ns;
        tally.borrow_mut().send(due_ns);
        let after = |share: f64| Duration::from_nanos((self.answer_ns.get() as f64 * share) as u64);
        let cancel = request.cancel_at.map(after).filter(|time| *time < self.options.timeout);
        let asked = self.ask(talk, wire, &request);
        let judged = monoio::time::timeout(cancel.unwrap_or(self.options.timeout), asked).await;
        let ended_ns = clock::now_ns();
        self.end_ns.set(ended_ns);
        let too_long = if cancel.is_some() { Kind::Cancelled } else { Kind::Timeout };
        match judged.unwrap_or_else(|_| Err(Failure::new(too_long, "given up"))) {
            Ok((measured, wire)) => {
                let taken_ns = ended_ns.saturating_sub(due_ns);
                self.answer_ns.set((self.answer_ns.get() * 7 + taken_ns) / 8);
                self.live.completed(&measured);
                tally.borrow_mut().complete(due_ns, ended_ns, &measured, &self.options.slo);
                Served { wire, right: true }
            }
            Err(failure) if failure.kind == Kind::Cancelled => {
                self.live.done.fetch_add(1, Relaxed);
                tally.borrow_mut().cancel(ended_ns);
                Served { wire: None, right: false }
            }
            Err(failure) => {
                self.live.done.fetch_add(1, Relaxed);
                self.live.failed.fetch_add(1, Relaxed);
                tally.borrow_mut().fail(ended_ns, failure);
                Served { wire: None, right: false }
            }
        }
    }

    async fn ask(
        &self,
        talk: &mut Talk,
        wire: Option<Wire>,
        request: &Request,
    ) -> Result<(Measured, Option<Wire>), Failure> {
        let mut wire = match wire {
            Some(wire) => wire,
            None => Wire::connect(self.target(talk.side))
                .await
                .map_err(|e| Failure::new(Kind::Connect, e))?,
        };
        let tally = &self.sides[talk.side].tally;
        let late_ns = clock::now_ns().saturating_sub(request.expected.due_ns);
        tally.borrow_mut().lateness.record_ns(late_ns);
        let mut answer = Answer::new(request.expected);
        let keep = wire.exchange(request, &mut answer, tally).await?;
        let measured = answer.finish()?;
        let asked = request.bytes.get(request.text.clone()).unwrap_or_default();
        talk.said(self.options.api, asked, answer.said());
        Ok((measured, keep.then_some(wire)))
    }
}
