//! The three things that safe code cannot have: the descriptor of a runtime socket, for direct
//! system calls; a file that is memory, for what must outlive the process at the price of a store;
//! and the listeners that a service manager has opened for us.
//!
//! A descriptor is borrowed on the thread of its core. Words are atomics: any thread may use them.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
