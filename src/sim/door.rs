//! The port of a replica: open, closed (connects are refused), or full (connects hang).
//!
//! Owns the listening socket and hands each connection to a task of its own; on the replica's
//! thread.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::connection;
use super::replica::{DoorState, Replica};
use crate::net::{self, Listener, Stream};

/// Connections that wait to be accepted, as in uvicorn's default.
const BACKLOG: i32 = 2048;

/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Binds a port for one replica alone.
pub(super) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // Not for sharing: a port that another fleet has is an error. For opening again at once.
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Keeps the port in the state that the replica's fault asks for; ends with the thread.
pub(super) async fn keep(replica: Rc<Replica>, first: TcpListener) {
    let Ok(addr) = first.local_addr() else { return };
    let mut socket = Some(first);
    loop {
        let kept = match (replica.door.get(), socket.take()) {
            (DoorState::Refusing, _) => {
                changed(&replica).await;
                continue;
            }
            (_, Some(kept)) => kept,
            (_, None) => match bind(addr) {
                Ok(bound) => bound,
                Err(e) => {
                    eprintln!("expedite sim: port {}: {e}", addr.port());
                    net::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            },
        };
        if replica.door.get() == DoorState::Backlog {
            let filler = fill(&kept, addr);
            changed(&replica).await;
            drop(filler);
            let _ = SockRef::from(&kept).listen(BACKLOG);
        } else if let Err(e) = accept(&replica, &kept).await {
            eprintln!("expedite sim: port {}: {e}", addr.port());
            return;
        }
        if replica.door.get() == DoorState::Refusing {
            // The wait that is still armed holds the descriptor; this closes the port at once.
            let _ = SockRef::from(&kept).shutdown(std::net::Shutdown::Both);
        } else {
            socket = Some(kept);
        }
    }
}

/// Accepts until the state changes.
async fn accept(replica: &Rc<Replica>, socket: &TcpListener) -> io::Result<()> {
    let mut listener = Listener::from_std(socket.try_clone()?)?;
    loop {
        let next = {
            let mut next = pin!(listener.accept());
            poll_fn(|cx| match replica.door_changed.poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => next.as_mut().poll(cx).map(Some),
            })
            .await
        };
        match next {
            None if replica.door.get() == DoorState::Open => {}
            None => return Ok(()),
            Some(Ok(stream)) => net::spawn(serve(Rc::clone(replica), stream)),
            Some(Err(_)) => net::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(replica: Rc<Replica>, stream: Stream) {
    connection::serve(replica, stream).await;
}

async fn changed(replica: &Replica) {
    poll_fn(|cx| replica.door_changed.poll(cx)).await;
}

/// Shrinks the accept queue to one place and takes that place, so that the kernel drops further
/// SYNs.
fn fill(socket: &TcpListener, addr: SocketAddr) -> Option<TcpStream> {
    SockRef::from(socket).listen(0).ok()?;
    let filler = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP)).ok()?;
    filler.set_nonblocking(true).ok()?;
    // It goes on in the background; on loopback it is done at once.
    let _ = filler.connect(&addr.into());
    Some(filler.into())
}
