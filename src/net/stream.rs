//! One TCP connection of a core.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::net::TcpStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::ready::{Wait, slot};
use super::sys::fd;

/// The largest number of buffers that one vectored send passes on.
pub const SEND_SLICES_MAX: usize = 16;

/// A connected socket: `TCP_NODELAY`, non-blocking, readiness first.
///
/// Dropping it shuts the connection down at once in both directions, so that the peer sees the
/// end even while a readiness wait still holds the descriptor.
pub struct Stream {
    socket: Rc<TcpStream>,
    readable: Box<dyn Wait>,
    writable: Option<Box<dyn Wait>>,
    /// What the last call told about the receive queue: false = it was empty, so a wait comes
    /// before the next attempt and saves a call that would only say EAGAIN.
    may_read: bool,
    may_write: bool,
    shut: bool,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, may_read: bool) -> Stream {
        // Refused only on a socket that is already dead; the first call on it says so.
        let _ = socket.set_nodelay(true);
        let socket = Rc::new(socket);
        let waited = Rc::clone(&socket);
        let readable = slot(move || {
            let socket = Rc::clone(&waited);
            async move { socket.readable(false).await }
        });
        Stream { socket, readable, writable: None, may_read, may_write: true, shut: false }
    }

    /// Takes over a connected standard socket.
    ///
    /// # Errors
    /// The runtime cannot register it.
    pub fn from_std(socket: std::net::TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(Stream::new(TcpStream::from_std(socket)?, true))
    }

    /// Ready when [`try_recv`](Self::try_recv) is worth a call: bytes, end or failure may wait.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.may_read {
            return Poll::Ready(());
        }
        if self.readable.poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.may_read = true;
        Poll::Ready(())
    }

    /// Receives into `space` without waiting. `Ok(None)`: nothing there. `Ok(Some(0))`: the peer
    /// has ended its direction.
    ///
    /// # Errors
    /// The connection is reset or otherwise dead.
    pub fn try_recv(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        let room = space.len();
        loop {
            match rustix::net::recv(fd(&*self.socket), &mut *space, RecvFlags::DONTWAIT) {
                Ok((n, _)) => {
                    // A short read has emptied the queue. An end stays readable.
                    self.may_read = n == room || n == 0;
                    return Ok(Some(n));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    self.may_read = false;
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives into `space` when the socket is ready.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            match self.try_recv(space) {
                Ok(None) => {}
                Ok(Some(n)) => return Poll::Ready(Ok(n)),
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// Receives into `space`, waiting for bytes or the end.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv).
    pub async fn recv(&mut self, space: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_recv(cx, space)).await
    }

    /// Makes the next read wait for the ring even if bytes are there: a busy connection gives the
    /// others of its core a turn. (A task that only wakes itself would starve the timers.)
    pub fn breathe(&mut self) {
        self.may_read = false;
    }

    /// Sends what the socket takes of `slices` (at most 16 are looked at); waits while it is full.
    ///
    /// # Errors
    /// The connection is reset or otherwise dead.
    pub fn poll_send_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            if !self.may_write {
                if self.poll_writable(cx).is_pending() {
                    return Poll::Pending;
                }
                self.may_write = true;
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match slices {
                [one] => rustix::net::send(fd(&*self.socket), one, flags),
                _ => {
                    let some = slices.get(..SEND_SLICES_MAX).unwrap_or(slices);
                    let mut none = SendAncillaryBuffer::default();
                    rustix::net::sendmsg(fd(&*self.socket), some, &mut none, flags)
                }
            };
            match sent {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => self.may_write = false,
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }

    /// Sends what the socket takes of `bytes`; waits while it is full.
    ///
    /// # Errors
    /// As [`poll_send_vectored`](Self::poll_send_vectored).
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// As [`poll_send_vectored`](Self::poll_send_vectored); an unknown part has been sent then.
    pub async fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = std::future::poll_fn(|cx| self.poll_send(cx, bytes)).await?;
            bytes = bytes.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let socket = &self.socket;
        let wait = self.writable.get_or_insert_with(|| {
            let waited = Rc::clone(socket);
            slot(move || {
                let socket = Rc::clone(&waited);
                async move { socket.writable(false).await }
            })
        });
        wait.poll(cx)
    }

    /// Tells the peer that nothing more comes, and goes on receiving. Never used upstream: vLLM
    /// takes a half-closed connection for a client that left.
    pub fn shut_write(&mut self) {
        let _ = rustix::net::shutdown(fd(&*self.socket), Shutdown::Write);
    }

    /// Ends the connection in both directions now.
    pub fn shut(&mut self) {
        if !self.shut {
            self.shut = true;
            let _ = rustix::net::shutdown(fd(&*self.socket), Shutdown::Both);
        }
    }

    /// Makes the close that follows a reset instead of an orderly end: the simulator's fault.
    pub fn reset_on_close(&mut self) {
        let zero = Some(std::time::Duration::ZERO);
        let _ = socket2::SockRef::from(&fd(&*self.socket)).set_linger(zero);
        // A shutdown before the close would send an orderly end first.
        self.shut = true;
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Address of this end.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Puts `pieces` but for their first `skip` bytes into `slices`; answers those that it filled.
pub fn fill_slices<'s, 'a>(
    slices: &'s mut [IoSlice<'a>],
    pieces: impl Iterator<Item = &'a [u8]>,
    mut skip: usize,
) -> &'s [IoSlice<'a>] {
    let mut n = 0;
    for piece in pieces {
        let rest = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        if rest.is_empty() {
            continue;
        }
        let Some(slot) = slices.get_mut(n) else { break };
        *slot = IoSlice::new(rest);
        n += 1;
    }
    slices.get(..n).unwrap_or_default()
}

/// Connects to `addr`. It has no time limit of its own; the attempt may be given up at any time.
///
/// # Errors
/// Refused, unreachable, or no descriptor left.
pub async fn connect(addr: SocketAddr) -> io::Result<Stream> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let waiting = match socket.connect(&addr.into()) {
        Ok(()) => false,
        Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => true,
        Err(e) => return Err(e),
    };
    let socket: std::net::TcpStream = socket.into();
    let mut stream = Stream::new(TcpStream::from_std(socket)?, false);
    if waiting {
        std::future::poll_fn(|cx| stream.poll_writable(cx)).await;
        if let Some(e) = socket2::SockRef::from(&fd(&*stream.socket)).take_error()? {
            return Err(e);
        }
    }
    Ok(stream)
}
