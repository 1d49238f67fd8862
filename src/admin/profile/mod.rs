//! `/debug/profile`: where the process spends its CPU time, as folded stacks.
//!
//! A timer of CPU time takes samples (`net::Sampler`); what they hold is unwound and named here, on
//! a thread of its own, by the tables of frames that every build has, so that no frame pointers are
//! needed and nothing is understood in the signal's handler. Memory: a few MiB, and the symbols
//! while they are looked up.

mod image;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use framehop::{CacheNative, MayAllocateDuringUnwind, UnwindRegsNative, Unwinder, UnwinderNative};

use crate::net::{Sample, Sampler};

/// As long as a caller waits by default, and at most, in seconds.
const SECONDS: (u64, u64) = (10, 60);
/// Samples a second of CPU time: not in step with anything that happens a hundred times a second.
const HZ: (u32, u32) = (99, 250);
/// Between two looks at the samples: far fewer than there is room for.
const LOOK: Duration = Duration::from_millis(20);
const FRAMES_MAX: usize = 256;
/// The address that stands for the frames beyond what could be unwound.
const CUT: u64 = 0;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    seconds: u64,
    hz: u32,
}

/// A profile.
pub(super) struct Profile {
    /// A line a stack, from the thread's name to the innermost function: `a;b;c 12`.
    pub(super) folded: String,
    pub(super) samples: u64,
    /// For which there was no room.
    pub(super) lost: u64,
}

impl Asked {
    /// Of `seconds=10&hz=99`, each of which may be left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn of(query: &str) -> Result<Asked, String> {
        let mut asked = Asked { seconds: SECONDS.0, hz: HZ.0 };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = value.parse::<u32>().unwrap_or(0);
            match name {
                "seconds" if (1..=SECONDS.1).contains(&number.into()) => {
                    asked.seconds = number.into();
                }
                "hz" if (1..=HZ.1).contains(&number) => asked.hz = number,
                "seconds" => return Err(format!("seconds: from 1 to {}", SECONDS.1)),
                "hz" => return Err(format!("hz: from 1 to {}", HZ.1)),
                _ => return Err("only `seconds` and `hz` are known".to_owned()),
            }
        }
        Ok(asked)
    }

    /// Takes it; this thread waits. `None`: another profile is being taken.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn take(self) -> std::io::Result<Option<Profile>> {
        let mut stacks = Stacks::new();
        let Some(sampler) = Sampler::start(self.hz)? else { return Ok(None) };
        let end = Instant::now() + Duration::from_secs(self.seconds);
        while Instant::now() < end {
            std::thread::sleep(LOOK);
            sampler.take(|sample| stacks.add(&sample));
        }
        let lost = sampler.lost();
        drop(sampler);
        let samples = stacks.counts.values().sum();
        Ok(Some(Profile { folded: stacks.folded(), samples, lost }))
    }
}

/// Stacks as addresses, and how often each was seen.
struct Stacks {
    images: Vec<image::Image>,
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// The thread that looks at the samples is no part of the profile.
    own: i32,
    threads: HashMap<i32, String>,
    /// From the innermost frame outwards.
    counts: HashMap<(i32, Vec<u64>), u64>,
}

impl Stacks {
    fn new() -> Stacks {
        let images = image::images();
        let mut unwinder = UnwinderNative::new();
        for frames in images.iter().filter_map(image::Image::frames) {
            unwinder.add_module(frames);
        }
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let (cache, threads, counts) = (CacheNative::new(), HashMap::new(), HashMap::new());
        Stacks { images, unwinder, cache, own, threads, counts }
    }

    fn add(&mut self, sample: &Sample) {
        if sample.thread == self.own {
            return;
        }
        let name = || {
            let path = format!("/proc/self/task/{}/comm", sample.thread);
            let name = std::fs::read_to_string(path).unwrap_or_default();
            clean(name.trim_end())
        };
        self.threads.entry(sample.thread).or_insert_with(name);
        let frames = self.unwound(sample);
        let count = self.counts.entry((sample.thread, frames)).or_default();
        *count = count.saturating_add(1);
    }

    fn unwound(&mut self, sample: &Sample) -> Vec<u64> {
        let [at, sp, fp, _link] = sample.registers;
        #[cfg(target_arch = "x86_64")]
        let registers = UnwindRegsNative::new(at, sp, fp);
        #[cfg(target_arch = "aarch64")]
        let registers = UnwindRegsNative::new(_link, sp, fp);
        let mut word = |address: u64| {
            let offset = address.checked_sub(sp).filter(|offset| offset % 8 == 0).ok_or(())?;
            sample.stack.get((offset / 8) as usize).copied().ok_or(())
        };
        let mut frames = self.unwinder.iter_frames(at, registers, &mut self.cache, &mut word);
        let mut found = Vec::new();
        loop {
            match frames.next() {
                // For a frame that has called another this lies in the call, not behind it.
                Ok(Some(frame)) if found.len() < FRAMES_MAX => {
                    found.push(frame.address_for_lookup());
                }
                Ok(None) => return found,
                Ok(Some(_)) | Err(_) => break,
            }
        }
        found.push(CUT);
        found
    }

    fn folded(&self) -> String {
        let names = self.names();
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for ((thread, frames), count) in &self.counts {
            let thread = self.threads.get(thread).map_or("?", String::as_str);
            let functions = frames.iter().rev().filter_map(|at| names.get(at));
            let line = functions.fold(thread.to_owned(), |line, name| line + ";" + name);
            let sum = lines.entry(line).or_default();
            *sum = sum.saturating_add(*count);
        }
        lines.iter().map(|(line, count)| format!("{line} {count}\n")).collect()
    }

    fn names(&self) -> BTreeMap<u64, String> {
        let all: BTreeSet<u64> =
            self.counts.keys().flat_map(|(_, frames)| frames).copied().collect();
        let mut names = BTreeMap::new();
        for image in &self.images {
            let inside: Vec<u64> = all.iter().copied().filter(|at| image.holds(*at)).collect();
            if inside.is_empty() {
                continue;
            }
            let functions = image.functions(&inside);
            names.extend(inside.into_iter().map(|at| match functions.get(&at) {
                Some(name) => (at, clean(name)),
                None => (at, clean(image.name())),
            }));
        }
        let unknown = |at: u64| match at {
            CUT => (at, "[cut off]".to_owned()),
            _ => (at, format!("{at:#x}")),
        };
        let nameless: Vec<u64> = all.into_iter().filter(|at| !names.contains_key(at)).collect();
        names.extend(nameless.into_iter().map(unknown));
        names
    }
}

/// A frame of a folded line: no `;`, no line's end.
fn clean(name: &str) -> String {
    name.replace(|c: char| c == ';' || c.is_control(), ":")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_is_asked_for_has_bounds() {
        assert_eq!(Asked::of(""), Ok(Asked { seconds: 10, hz: 99 }));
        assert_eq!(Asked::of("hz=250&seconds=1"), Ok(Asked { seconds: 1, hz: 250 }));
        for wrong in ["seconds=0", "seconds=61", "hz=251", "hz=0", "hz", "hz=-1", "all=1"] {
            assert!(Asked::of(wrong).is_err(), "{wrong}");
        }
    }

    #[inline(never)]
    fn outer_of_the_test(goes: &AtomicBool) -> u64 {
        let mut sum = 1;
        while goes.load(Ordering::Relaxed) {
            sum = std::hint::black_box(inner_of_the_test(sum));
        }
        sum
    }

    #[inline(never)]
    fn inner_of_the_test(mut sum: u64) -> u64 {
        for n in 0..10_000_u64 {
            sum = std::hint::black_box(sum ^ n.wrapping_mul(sum));
        }
        sum
    }

    /// A signal may reach the threads of other tests: this one has a process of its own, in which
    /// it is true.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "EXPEDITE_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let command = command.args(["--exact", &format!("{module}::{test}")]).env(ALONE, "1");
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        false
    }

    #[test]
    fn a_busy_thread_is_seen_with_its_callers_and_one_profile_runs_at_a_time() {
        if !is_alone("a_busy_thread_is_seen_with_its_callers_and_one_profile_runs_at_a_time") {
            return;
        }
        let goes = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let busy = std::thread::Builder::new().name("busy;one".to_owned());
            busy.spawn_scoped(scope, || outer_of_the_test(&goes)).unwrap();
            // Until it has been on a processor, on however busy a machine.
            let asked = Asked { seconds: 1, hz: 99 };
            let mut seen = false;
            for _ in 0..20 {
                let sampler = Sampler::start(99).unwrap().expect("no other");
                assert!(asked.take().unwrap().is_none(), "two at a time");
                drop(sampler);
                let profile = asked.take().unwrap().expect("no other");
                let lines: Vec<&str> = profile.folded.lines().collect();
                let counts = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1);
                let sum: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
                assert_eq!(profile.samples, sum);
                seen = lines.iter().any(|line| {
                    let inner = line.find("::inner_of_the_test");
                    let outer = line.find("::outer_of_the_test");
                    line.starts_with("busy:one;") && outer.is_some() && outer < inner
                });
                if seen {
                    break;
                }
            }
            goes.store(false, Ordering::Relaxed);
            assert!(seen, "never in its functions");
        });
    }
}
