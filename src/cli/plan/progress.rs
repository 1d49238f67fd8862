//! Runs in virtual time beside each other, a thread each, as many as there are cores, and a line
//! about them on a terminal. What comes out does not depend on the threads.

use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A progress line appears after this time.
const QUIET: Duration = Duration::from_secs(2);
const REDRAW: Duration = Duration::from_millis(200);

/// How far the runs are.
#[derive(Default)]
struct Progress {
    runs: AtomicU64,
    virtual_us: AtomicU64,
}

/// What `job` makes of each place below `count`, in order. It calls its second argument with the
/// virtual time in us now and then; a time before the last one begins another run.
pub(super) fn beside<T: Send>(
    count: usize,
    job: impl Fn(usize, &mut dyn FnMut(u64)) -> T + Sync,
) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, progress) = (AtomicUsize::new(0), Progress::default());
    let mut made: Vec<(usize, T)> = Vec::new();
    std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let place = next.fetch_add(1, Relaxed);
                if place >= count {
                    return done;
                }
                done.push((place, told(&progress, |tick| job(place, tick))));
            }
        };
        let workers: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        watch(|| workers.iter().all(|worker| worker.is_finished()), &progress);
        for worker in workers {
            match worker.join() {
                Ok(done) => made.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    made.sort_by_key(|(place, _)| *place);
    made.into_iter().map(|(_, made)| made).collect()
}

/// Runs `job` with a tick that adds to `progress`.
fn told<T>(progress: &Progress, job: impl FnOnce(&mut dyn FnMut(u64)) -> T) -> T {
    let mut before_us = 0;
    job(&mut |now_us: u64| {
        if now_us < before_us {
            progress.runs.fetch_add(1, Relaxed);
            before_us = 0;
        }
        progress.virtual_us.fetch_add(now_us - before_us, Relaxed);
        before_us = now_us;
    })
}

/// Waits for the end, and draws a line about it on a terminal.
fn watch(is_over: impl Fn() -> bool, progress: &Progress) {
    let begun = Instant::now();
    let stderr = std::io::stderr();
    let mut drawn = None;
    while !is_over() {
        std::thread::sleep(Duration::from_millis(2));
        let due = drawn.is_none_or(|at: Instant| at.elapsed() >= REDRAW);
        if stderr.is_terminal() && begun.elapsed() >= QUIET && due {
            drawn = Some(Instant::now());
            let virtual_s = progress.virtual_us.load(Relaxed) / 1_000_000;
            let runs = progress.runs.load(Relaxed);
            let pace = virtual_s as f64 / begun.elapsed().as_secs_f64();
            let _ = write!(
                stderr.lock(),
                "\r\x1b[K{runs} runs over, {virtual_s} s of virtual time, {pace:.0} x real time"
            );
        }
    }
    if drawn.is_some() {
        let _ = write!(stderr.lock(), "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_comes_in_order() {
        let made = beside(20, |place, tick| {
            tick(place as u64);
            place * place
        });
        assert_eq!(made, (0..20).map(|place| place * place).collect::<Vec<_>>());
        assert!(beside(0, |place, _| place).is_empty());
    }
}
