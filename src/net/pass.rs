//! Open sockets from one process to another, over a Unix socket (`SCM_RIGHTS`).
//!
//! Owns nothing and never waits: the caller's socket blocks or does not. Descriptors are handed on
//! as they are: both processes then hold the same socket, with the same queue behind it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors that go with one piece of bytes; the kernel takes 253.
pub const FDS_A_MESSAGE: usize = 64;

/// Sends some of `bytes` and, with the first of them, all of `fds`. How many bytes went.
///
/// # Errors
/// The peer has gone, the socket would block, or there are more than [`FDS_A_MESSAGE`].
pub fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.len() <= FDS_A_MESSAGE;
    if !fits || (!fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes, and appends what descriptors came with them. 0 bytes: the peer has ended.
///
/// # Errors
/// The socket's own, or that it would block.
pub fn receive_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_listener_that_was_passed_on_keeps_its_queue() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Already in the queue of a socket that its first owner then closes.
        let mut client = TcpStream::connect(addr).unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        assert_eq!(send_with(&here, b".", &[listener.as_fd()]).unwrap(), 1);
        drop(listener);
        here.write_all(b"rest\n").unwrap();
        drop(here);
        let (mut bytes, mut fds, mut piece) = (Vec::new(), Vec::new(), [0; 16]);
        while let n @ 1.. = receive_with(&there, &mut piece, &mut fds).unwrap() {
            bytes.extend_from_slice(&piece[..n]);
        }
        assert_eq!((bytes.as_slice(), fds.len()), (&b".rest\n"[..], 1));
        let listener = TcpListener::from(fds.remove(0));
        let (mut served, _) = listener.accept().unwrap();
        served.write_all(b"hello").unwrap();
        let mut word = [0; 5];
        client.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"hello");
    }

    #[test]
    fn more_than_fit_into_a_message_are_refused() {
        let (here, _there) = UnixStream::pair().unwrap();
        let many = vec![here.as_fd(); FDS_A_MESSAGE + 1];
        assert!(send_with(&here, b".", &many).is_err());
        assert!(send_with(&here, b".", &many[1..]).is_ok());
    }
}
