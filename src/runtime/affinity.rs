//! Pinning a thread to a CPU, which CPUs there are, and threads that stand back.

use std::io;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lowest priority (setpriority(2)).
const NICE_MAX: i32 = 19;

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// There is no such CPU, or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Gives the calling thread the lowest priority: it runs when a CPU has nothing else to do, and at
/// a seventieth of the pace of whoever it shares one with.
pub fn yield_to_others() {
    // Linux takes 0 for the calling thread, not for all of the process. No kernel refuses a thread
    // that asks for less.
    let _ = setpriority_process(None, NICE_MAX);
}

/// The CPUs that this process may run on, in order.
///
/// # Errors
/// The kernel does not say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn a_thread_stands_back_alone() {
        let before = getpriority_process(None).unwrap();
        let there = std::thread::spawn(|| {
            yield_to_others();
            getpriority_process(None).unwrap()
        });
        assert_eq!((there.join().unwrap(), getpriority_process(None).unwrap()), (19, before));
    }

    #[test]
    fn a_thread_can_be_pinned_to_an_allowed_cpu() {
        let cpus = allowed().unwrap();
        let last = *cpus.last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert!(pin(CpuSet::MAX_CPU).is_err());
    }
}
