//! The one place that turns a runtime socket into a descriptor for direct system calls.
//!
//! Owns nothing. Runs on the thread of the socket's core.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Borrows the descriptor of a runtime socket for as long as the socket is borrowed.
pub(super) fn fd<T: AsRawFd>(socket: &T) -> BorrowedFd<'_> {
    // SAFETY: `socket` owns the descriptor and outlives the borrow, so it stays open meanwhile.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}
