//! The things that safe code cannot have: the descriptor of a runtime socket, for direct system
//! calls; a file that is memory, for what must outlive the process at the price of a store; the
//! listeners that a service manager has opened for us; what the allocator says of its heap; and
//! samples of threads that run, for a profile.
//!
//! A descriptor is borrowed on the thread of its core. Words are atomics: any thread may use them.
//! Samples are taken by a signal, on any thread, while there is a `Sampler`.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Borrows the descriptor of a runtime socket for as long as the socket is borrowed.
pub(super) fn fd<T: AsRawFd>(socket: &T) -> BorrowedFd<'_> {
    // SAFETY: `socket` owns the descriptor and outlives the borrow, so it stays open meanwhile.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// The first descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const FIRST_PASSED: RawFd = 3;

/// The listeners among the `count` descriptors that this process was started with, from 3 up, as
/// systemd passes them; once, before the process opens anything that listens. They are closed for
/// programs that this one starts.
pub fn inherited_listeners(count: usize) -> Vec<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let count = RawFd::try_from(count).unwrap_or(0).min(1024);
    let mut listeners = Vec::new();
    for number in FIRST_PASSED..FIRST_PASSED.saturating_add(count) {
        // SAFETY: borrowed for the next three calls only, which fail if it is not open.
        let passed = unsafe { BorrowedFd::borrow_raw(number) };
        let closed = rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC);
        let listens = rustix::net::sockopt::socket_acceptconn(passed).unwrap_or(false);
        if closed.is_ok() && listens {
            // SAFETY: nothing of ours listens yet, so that it is the manager's, passed to this
            // process alone (the caller has checked `LISTEN_PID`), and it is taken only once.
            listeners.push(unsafe { TcpListener::from_raw_fd(number) });
        }
    }
    listeners
}

/// A file as 64-bit words in memory. What is stored is in the file at once for everybody, also for
/// who comes after a `kill -9` of this process; only a crash of the host can lose it.
///
/// Whoever cuts the file short while it is in use ends this process (SIGBUS), as with every mapped
/// file: keep it where nobody else writes.
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it owns its mapping, which is tied to no thread.
unsafe impl Send for SharedWords {}
// SAFETY: it gives out nothing but shared references to atomics.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `words` words of `file`, which gets that long, with room for all of it
    /// allocated: a store can then not fail for want of space.
    ///
    /// # Errors
    /// No room, no right to write, or no such thing on this file system.
    pub fn of(file: &File, words: usize) -> io::Result<SharedWords> {
        let Some(bytes) = words.checked_mul(size_of::<AtomicU64>()).filter(|&bytes| bytes > 0)
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        allocate(file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a fresh range, so that no memory of ours is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        let start = NonNull::new(start?.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, words })
    }

    /// The words. Others may have the file mapped as well.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, begins at a page, hence aligned, and lives as long
        // as `self`; any bits are a valid word, and who else maps the file changes it atomically.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

/// Gives the file so many bytes of room, which an empty file gets as zeros.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Some file systems can only be written to (NFS 3, ZFS).
        Err(Errno::OPNOTSUPP) => {
            for at in (file.metadata()?.len()..bytes).step_by(ZEROS.len()) {
                let n = ZEROS.len().min((bytes - at) as usize);
                file.write_all_at(ZEROS.get(..n).unwrap_or_default(), at)?;
            }
            Ok(())
        }
        done => Ok(done?),
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<AtomicU64>();
        // SAFETY: the range is ours alone, and no reference to it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

/// What the program's allocator (mimalloc) has from the system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// May be written to now. What is free of it goes back within moments.
    pub committed_bytes: u64,
    /// The most that ever was.
    pub committed_max_bytes: u64,
}

/// The heap as it is now; nothing of it is in use in a program with another allocator.
#[must_use]
pub fn heap() -> Heap {
    let mut told = [0_usize; 8];
    let [elapsed, user, system, rss, rss_max, committed, committed_max, faults] = &mut told;
    // SAFETY: each pointer is to a number that is ours alone, and all are written before it ends.
    unsafe {
        libmimalloc_sys::mi_process_info(
            elapsed,
            user,
            system,
            rss,
            rss_max,
            committed,
            committed_max,
            faults,
        );
    }
    Heap { committed_bytes: *committed as u64, committed_max_bytes: *committed_max as u64 }
}

/// Words of a stack that a sample keeps: 64 KiB, the whole of it but in a debug build.
const STACK_WORDS: usize = 8192;
/// Samples between two looks at them: more than a timer can make in the time.
const SLOTS: usize = 64;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;

/// Registers that a stack is unwound from: instruction, stack and frame pointer, link register
/// (aarch64).
pub type Registers = [u64; 4];

struct Slot {
    state: AtomicU32,
    thread: AtomicI32,
    registers: [AtomicU64; 4],
    bytes: AtomicUsize,
    stack: Box<[AtomicU64]>,
}

static SAMPLES: OnceLock<Box<[Slot]>> = OnceLock::new();
/// This process's memory as a file, which tells where a stack ends.
static MEMORY: OnceLock<File> = OnceLock::new();
static SAMPLING: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

/// A thread as it was when the timer struck: nothing of it is understood yet.
pub struct Sample {
    /// The kernel's number of the thread.
    pub thread: i32,
    /// Its registers.
    pub registers: Registers,
    /// Words from its stack pointer up; none where the system forbids to read them.
    pub stack: Vec<u64>,
}

/// Takes a sample of whichever thread runs each time that the process has used so much CPU time,
/// until it is dropped; one at a time in a process.
///
/// The handler of the signal (`SIGPROF`) copies registers and a piece of the stack, and does
/// nothing else: it takes no lock, allocates nothing, unwinds nothing, and has the system read the
/// stack, which says where it ends instead of failing. System calls that are interrupted begin
/// anew, or return to loops that begin them anew.
pub struct Sampler(());

impl Sampler {
    /// Begins, with `hz` samples a second of CPU time; `None`: another one runs.
    ///
    /// # Errors
    /// The system refuses the handler or the timer.
    pub fn start(hz: u32) -> io::Result<Option<Sampler>> {
        let slots = SAMPLES.get_or_init(|| (0..SLOTS).map(|_| Slot::new()).collect());
        if SAMPLING.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let sampler = Sampler(());
        for slot in slots {
            // Of the sampler before.
            let _ = slot.state.compare_exchange(FULL, FREE, Ordering::AcqRel, Ordering::Relaxed);
        }
        LOST.store(0, Ordering::Relaxed);
        if let Ok(memory) = File::open("/proc/self/mem") {
            MEMORY.get_or_init(|| memory);
        }
        listen_to_the_timer()?;
        set_timer(1_000_000 / hz.clamp(1, 1_000_000))?;
        Ok(Some(sampler))
    }

    /// Samples since the last call.
    pub fn take(&self, mut each: impl FnMut(Sample)) {
        for slot in SAMPLES.get().into_iter().flatten() {
            if slot.state.load(Ordering::Acquire) == FULL {
                each(slot.read());
                slot.state.store(FREE, Ordering::Release);
            }
        }
    }

    /// Samples for which there was no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        LOST.load(Ordering::Relaxed)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // The handler stays: a signal that is on its way finds it, and that nobody wants a sample.
        let _ = set_timer(0);
        SAMPLING.store(false, Ordering::Release);
    }
}

impl Slot {
    fn new() -> Slot {
        Slot {
            state: AtomicU32::new(FREE),
            thread: AtomicI32::new(0),
            registers: Default::default(),
            bytes: AtomicUsize::new(0),
            stack: (0..STACK_WORDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn read(&self) -> Sample {
        let words = self.bytes.load(Ordering::Relaxed) / size_of::<u64>();
        let stack = self.stack.iter().take(words).map(|word| word.load(Ordering::Relaxed));
        let registers = self.registers.each_ref().map(|one| one.load(Ordering::Relaxed));
        Sample { thread: self.thread.load(Ordering::Relaxed), registers, stack: stack.collect() }
    }

    /// In the handler.
    fn fill(&self, registers: Registers) {
        for (slot, value) in self.registers.iter().zip(registers) {
            slot.store(value, Ordering::Relaxed);
        }
        // SAFETY: it has no arguments and cannot fail.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        let memory = MEMORY.get().map_or(-1, |file| file.as_raw_fd());
        let room = self.stack.len() * size_of::<u64>();
        // SAFETY: the system writes no more than that, to atomics that only who fills the slot
        // touches; it checks itself what can be read, and a descriptor that is none is an error.
        let got = unsafe {
            let into = self.stack.as_ptr().cast_mut().cast();
            libc::pread(memory, into, room, registers[1] as libc::off_t)
        };
        self.bytes.store(usize::try_from(got).unwrap_or(0), Ordering::Relaxed);
    }
}

extern "C" fn on_timer(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(slots) = SAMPLES.get().filter(|_| SAMPLING.load(Ordering::Acquire)) else { return };
    // SAFETY: a handler with SA_SIGINFO is given the interrupted thread's context.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else { return };
    // SAFETY: the address of this thread's `errno`, which is its own.
    let errno = unsafe { *libc::__errno_location() };
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let all = (0..slots.len()).filter_map(|n| slots.get(first.wrapping_add(n) % slots.len()));
    let is_free = |slot: &&Slot| {
        let (taken, not) = (Ordering::Acquire, Ordering::Relaxed);
        slot.state.compare_exchange(FREE, FILLING, taken, not).is_ok()
    };
    match { all }.find(is_free) {
        Some(slot) => {
            slot.fill(registers(context));
            slot.state.store(FULL, Ordering::Release);
        }
        None => {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
    // SAFETY: as above; the code that was interrupted may be about to read it.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let of = |register: libc::c_int| {
        let values = &context.uc_mcontext.gregs;
        values.get(register as usize).map_or(0, |value| *value as u64)
    };
    [of(libc::REG_RIP), of(libc::REG_RSP), of(libc::REG_RBP), 0]
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let of = &context.uc_mcontext;
    [of.pc, of.sp, of.regs[29], of.regs[30]]
}

fn listen_to_the_timer() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_timer;
    // SAFETY: all zeros is a valid one: no flags, nobody's handler, no signal masked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the shape that SA_SIGINFO asks for and does only what a handler may.
    match unsafe { libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Each so many microseconds of CPU time; 0: no longer.
fn set_timer(every_us: u32) -> io::Result<()> {
    let every = libc::timeval {
        tv_sec: (every_us / 1_000_000).into(),
        tv_usec: (every_us % 1_000_000).into(),
    };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: both are valid for the call; the value before is not asked for.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// The safe twin: the same bytes by reading and writing the file.
    #[test]
    fn words_are_the_bytes_of_the_file_both_ways() {
        let file = tempfile::tempfile().unwrap();
        let map = SharedWords::of(&file, 1000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8000);
        assert!(map.words().iter().all(|word| word.load(Relaxed) == 0));
        for (n, word) in map.words().iter().enumerate() {
            word.store((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), Relaxed);
        }
        let mut bytes = vec![0; 8000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        for (n, word) in bytes.chunks_exact(8).enumerate() {
            let want = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(u64::from_ne_bytes(word.try_into().unwrap()), want);
        }
        file.write_all_at(&77_u64.to_ne_bytes(), 999 * 8).unwrap();
        assert_eq!(map.words()[999].load(Relaxed), 77);
        drop(map);
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[999 * 8..], 77_u64.to_ne_bytes());
    }

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(SharedWords::of(&file, 0).is_err());
        assert!(SharedWords::of(&file, usize::MAX).is_err());
        assert!(SharedWords::of(&file, 1 << 58).is_err(), "a petabyte and more");
        assert!(SharedWords::of(&File::open("/dev/null").unwrap(), 8).is_err());
    }
}
