//! Listening sockets: one a core on the same port, spread by the kernel (`SO_REUSEPORT`).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::net::{TcpListener, TcpStream};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::ready::{Wait, slot};
use super::stream::Stream;
use super::sys::fd;

/// Connections that the kernel keeps for us until they are accepted (`net.core.somaxconn` caps
/// it): a burst of a second at the reference load.
pub const BACKLOG: i32 = 4096;

/// Binds `addr` so that every core can bind it again.
///
/// # Errors
/// The address is taken by another program or not ours.
pub fn bind_reuseport(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The listening socket of one core.
pub struct Listener {
    socket: Rc<TcpListener>,
    readable: Box<dyn Wait>,
    may_accept: bool,
}

impl Listener {
    /// Takes over a bound socket on this core.
    ///
    /// # Errors
    /// The runtime cannot register it.
    pub fn from_std(socket: std::net::TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        let socket = Rc::new(TcpListener::from_std(socket)?);
        let waited = Rc::clone(&socket);
        let readable = slot(move || {
            let socket = Rc::clone(&waited);
            async move { socket.readable(false).await }
        });
        Ok(Listener { socket, readable, may_accept: true })
    }

    /// The next connection. Giving the wait up loses none: an accepted socket is returned in the
    /// same poll.
    ///
    /// # Errors
    /// No descriptor or memory left (the caller pauses), or the listener is dead.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            if !self.may_accept {
                if self.readable.poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.may_accept = true;
            }
            match rustix::net::accept_with(fd(&*self.socket), flags) {
                Ok(socket) => {
                    let socket = TcpStream::from_std(std::net::TcpStream::from(socket));
                    return Poll::Ready(socket.map(|socket| Stream::new(socket, true)));
                }
                Err(Errno::WOULDBLOCK) => self.may_accept = false,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(e) => {
                    self.may_accept = false;
                    return Poll::Ready(Err(e.into()));
                }
            }
        }
    }

    /// As [`poll_accept`](Self::poll_accept), to be awaited.
    ///
    /// # Errors
    /// As [`poll_accept`](Self::poll_accept).
    pub async fn accept(&mut self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The next accept asks the socket itself, whatever the ring has said: before a close, so that
    /// nobody who waits in the queue is reset.
    pub fn look_again(&mut self) {
        self.may_accept = true;
    }

    /// Makes the next accept wait for the ring, so that a flood of connections leaves the others
    /// of this core a turn.
    pub fn breathe(&mut self) {
        self.may_accept = false;
    }

    /// The bound address.
    ///
    /// # Errors
    /// The socket is dead.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
