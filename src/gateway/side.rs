//! Threads beside the cores, for what would hold a core too long and cannot be cut into turns: a
//! slow template over a long chat, a run of text without a place to cut.
//!
//! The queue is bounded: a caller that finds it full is refused, so that work cannot pile up. Jobs
//! own what they read. A job whose caller has gone is not begun; one that panics is lost, and its
//! caller hears of it. The threads run beside the cores' CPUs where the machine has any left; where
//! it has not, the scheduler gives them what the cores leave.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crossbeam_queue::ArrayQueue;

use crate::net::{Bell, Ringer};
use crate::runtime::affinity;

/// Jobs that wait, over all threads.
const QUEUE_MAX: usize = 256;
/// Cores that one thread serves: long prompts are rare, and each is bounded.
const CORES_A_THREAD: usize = 4;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The way to the threads; each keeps a state `S` of its own (its caches).
pub(super) struct Side<S> {
    queue: SyncSender<Job<S>>,
}

/// The queue is full, or the threads are gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

/// The job is lost: it panicked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lost;

impl<S: 'static> Side<S> {
    /// Starts the threads for `cores` cores. They end when the last [`Side`] does.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(
        cores: usize,
        state: impl Fn() -> S + Clone + Send + 'static,
    ) -> std::io::Result<Side<S>> {
        let (queue, jobs) = sync_channel::<Job<S>>(QUEUE_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..cores.div_ceil(CORES_A_THREAD).max(1) {
            let (jobs, state) = (Arc::clone(&jobs), state.clone());
            thread::Builder::new().name("side".to_owned()).spawn(move || work(&jobs, state))?;
        }
        Ok(Side { queue })
    }

    /// Gives `job` to a thread; the answer comes with a ring of `bell`.
    ///
    /// # Errors
    /// [`Busy`].
    pub(super) fn submit<T: Send + 'static>(
        &self,
        bell: &Bell,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<Answer<T>, Busy> {
        let slot = Arc::new(ArrayQueue::new(1));
        let reply = Reply { slot: Some(Arc::clone(&slot)), ringer: bell.ringer() };
        let job = move |state: &mut S| reply.give(|| job(state));
        match self.queue.try_send(Box::new(job)) {
            Ok(()) => Ok(Answer { slot }),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Busy),
        }
    }
}

fn work<S>(jobs: &Mutex<Receiver<Job<S>>>, state: impl Fn() -> S) {
    affinity::yield_to_others();
    let mut kept = state();
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if std::panic::catch_unwind(AssertUnwindSafe(|| job(&mut kept))).is_err() {
            // What a panic left behind is not to be trusted.
            kept = state();
        }
    }
}

/// The thread's end of a job.
struct Reply<T> {
    slot: Option<Arc<ArrayQueue<T>>>,
    ringer: Ringer,
}

impl<T> Reply<T> {
    /// Does the work, unless nobody waits for it any more.
    fn give(self, work: impl FnOnce() -> T) {
        let Some(slot) = self.slot.as_ref() else { return };
        if Arc::strong_count(slot) > 1 {
            let _ = slot.push(work());
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        // In this order: whoever hears the ring sees the answer, or that there will be none.
        self.slot = None;
        self.ringer.ring();
    }
}

/// The caller's end of a job. Dropping it gives the job up.
pub(super) struct Answer<T> {
    slot: Arc<ArrayQueue<T>>,
}

impl<T> Answer<T> {
    /// The answer if it is there: to be looked for at each ring.
    ///
    /// # Errors
    /// [`Lost`].
    pub(super) fn take(&self) -> Result<Option<T>, Lost> {
        let over = Arc::strong_count(&self.slot) == 1;
        match self.slot.pop() {
            Some(answer) => Ok(Some(answer)),
            None if over => Err(Lost),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{self, DriverChoice};
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Runs `test` on a core with a bell that is listened to.
    fn on_a_core<T: 'static, F: Future<Output = T>>(test: impl FnOnce(Rc<Bell>) -> F) -> T {
        let (driver, _) = DriverChoice::Auto.resolve().unwrap();
        let ran = net::run(driver, async {
            let bell = Rc::new(Bell::new().unwrap());
            let listener = Rc::clone(&bell);
            net::spawn(async move { listener.listen(|| false).await });
            test(bell).await
        });
        ran.unwrap()
    }

    async fn wait<T>(bell: &Bell, answer: &Answer<T>) -> Result<T, Lost> {
        loop {
            if let Some(answer) = answer.take()? {
                return Ok(answer);
            }
            bell.rung().await;
        }
    }

    #[test]
    fn a_job_is_done_elsewhere_and_answered() {
        let sum = on_a_core(|bell| async move {
            let side = Side::start(1, || 40).unwrap();
            let here = thread::current().id();
            let answer = side.submit(&bell, move |kept| {
                assert_ne!(thread::current().id(), here);
                *kept += 1;
                *kept
            });
            let first = wait(&bell, &answer.unwrap()).await.unwrap();
            let second = side.submit(&bell, |kept| *kept + 1).unwrap();
            (first, wait(&bell, &second).await.unwrap())
        });
        assert_eq!(sum, (41, 42), "a thread keeps its state");
    }

    #[test]
    fn a_panic_is_told_and_the_thread_goes_on() {
        let outcome = on_a_core(|bell| async move {
            let side = Side::start(1, || 1).unwrap();
            let lost = side.submit(&bell, |kept: &mut i32| {
                *kept = 99;
                std::panic::resume_unwind(Box::new("as asked"))
            });
            let lost: Answer<()> = lost.unwrap();
            let lost = wait(&bell, &lost).await;
            let next = side.submit(&bell, |kept| *kept).unwrap();
            (lost, wait(&bell, &next).await)
        });
        assert_eq!(outcome, (Err(Lost), Ok(1)));
    }

    #[test]
    fn a_full_queue_refuses_and_a_job_given_up_is_not_begun() {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        on_a_core(|bell| async move {
            let side = Side::start(1, || ()).unwrap();
            let gate = Arc::new(Mutex::new(()));
            let held = gate.lock().unwrap();
            let wait_for = Arc::clone(&gate);
            let first = side.submit(&bell, move |()| drop(wait_for.lock()));
            let first = first.unwrap();
            let mut waiting = Vec::new();
            loop {
                let count = Arc::clone(&count);
                let job = move |(): &mut ()| count.fetch_add(1, Ordering::Relaxed);
                match side.submit(&bell, job) {
                    Ok(answer) => waiting.push(answer),
                    Err(Busy) => break,
                }
            }
            assert!((QUEUE_MAX - 1..=QUEUE_MAX).contains(&waiting.len()));
            let last = waiting.pop().unwrap();
            waiting.clear();
            drop(held);
            wait(&bell, &first).await.unwrap();
            wait(&bell, &last).await.unwrap();
        });
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }
}
