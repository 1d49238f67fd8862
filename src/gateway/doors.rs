//! The process's listening sockets: for each address as many as there are cores, opened here, or
//! given by the gateway before or by a service manager.
//!
//! Cores get copies of them; these here keep the queues alive while a core is started again, and
//! are what a successor gets. Each socket has a queue of its own that the kernel fills, so that
//! every one is accepted from by somebody, whatever the number of cores was before. Any thread may
//! use them; no core does.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, MutexGuard, PoisonError};

use socket2::SockRef;

use crate::net::{BACKLOG, bind_reuseport};

/// See the module.
pub(super) struct Doors {
    cores: usize,
    addrs: Vec<SocketAddr>,
    /// By address, then by core; a core that stays down has none.
    open: Mutex<Vec<Vec<Option<TcpListener>>>>,
}

/// Where sockets come from that were not opened here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// The gateway before, or nobody: this process may open more.
    Gateway,
    /// A service manager, whose sockets outlive this process. One more of ours would not: who
    /// waits in its queue at a restart would be refused.
    Manager,
}

impl Doors {
    /// Takes of `given` what `listen` names, and opens what is missing. What is left of `given` is
    /// closed here, and said: it belongs to an address that is no longer listened on.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub(super) fn open(
        listen: &[SocketAddr],
        cores: usize,
        mut given: Vec<TcpListener>,
        giver: Giver,
    ) -> io::Result<(Doors, Vec<SocketAddr>)> {
        let cores = cores.max(1);
        let (mut addrs, mut open) = (Vec::new(), Vec::new());
        for addr in listen {
            let mut sockets = take(&mut given, addr);
            let passed_on = !sockets.is_empty();
            if !passed_on {
                sockets.push(bind_reuseport(*addr)?);
            }
            // Port 0 is chosen once; the others bind the same.
            let bound = sockets.first().ok_or(io::ErrorKind::NotFound)?.local_addr()?;
            while sockets.len() < cores && !(passed_on && giver == Giver::Manager) {
                match bind_reuseport(bound) {
                    Ok(socket) => sockets.push(socket),
                    // Another user's, or one that does not share its port: cores share the socket.
                    Err(_) if passed_on => break,
                    Err(error) => return Err(error),
                }
            }
            for socket in &sockets {
                socket.set_nonblocking(true)?;
                SockRef::from(socket).listen(BACKLOG)?;
            }
            addrs.push(bound);
            open.push(sockets.into_iter().map(Some).collect());
        }
        let left = given.iter().filter_map(|socket| socket.local_addr().ok()).collect();
        Ok((Doors { cores, addrs, open: Mutex::new(open) }, left))
    }

    /// The bound addresses, in the order of the configuration.
    pub(super) fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Copies of the sockets that core `index` accepts from; none once they are closed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn of(&self, index: usize) -> io::Result<Vec<TcpListener>> {
        let open = self.lock();
        let mine = open.iter().flat_map(|sockets| {
            let share = share(sockets.len(), self.cores, index);
            share.filter_map(|n| sockets.get(n)?.as_ref())
        });
        mine.map(TcpListener::try_clone).collect()
    }

    /// Copies of all, for a successor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn all(&self) -> io::Result<Vec<TcpListener>> {
        self.lock().iter().flatten().flatten().map(TcpListener::try_clone).collect()
    }

    /// Core `index` stays down: the kernel sends nobody there any more.
    pub(super) fn abandon(&self, index: usize) {
        for sockets in self.lock().iter_mut() {
            let n = sockets.len();
            // A socket that is shared has others who accept from it.
            for at in share(n, self.cores, index).filter(|_| n >= self.cores) {
                if let Some(socket) = sockets.get_mut(at) {
                    *socket = None;
                }
            }
        }
    }

    /// Closes them here. Each is gone when its core has closed its copy, unless a successor has it.
    pub(super) fn close(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Option<TcpListener>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of `sockets` sockets core `index` of `cores` accepts from: together all of them.
fn share(sockets: usize, cores: usize, index: usize) -> impl Iterator<Item = usize> {
    let first = index.checked_rem(sockets.min(cores)).unwrap_or(sockets);
    (first..sockets).step_by(cores.max(1))
}

/// Takes out of `given` what listens where `addr` says; port 0 means any port, but one.
fn take(given: &mut Vec<TcpListener>, addr: &SocketAddr) -> Vec<TcpListener> {
    let listens = |socket: &TcpListener| {
        let is_listener = SockRef::from(socket).is_listener().unwrap_or(false);
        socket.local_addr().ok().filter(|_| is_listener)
    };
    let meant = |bound: &SocketAddr| {
        bound.ip() == addr.ip() && (addr.port() == 0 || bound.port() == addr.port())
    };
    let Some(first) = given.iter().filter_map(listens).find(meant) else { return Vec::new() };
    let same = |socket: &mut TcpListener| listens(socket) == Some(first);
    given.extract_if(.., same).collect()
}

/// Takes the admin's socket out of `given`, or binds it.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn admin(addr: SocketAddr, given: &mut Vec<TcpListener>) -> io::Result<TcpListener> {
    let socket = match take(given, &addr).into_iter().next() {
        Some(socket) => socket,
        None => TcpListener::bind(addr)?,
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn opened(cores: usize, given: Vec<TcpListener>, giver: Giver) -> Doors {
        let (doors, left) = Doors::open(&[LOOPBACK], cores, given, giver).unwrap();
        assert_eq!(left, []);
        doors
    }

    #[test]
    fn every_socket_is_somebodys_and_everybody_has_one() {
        for sockets in 1..9 {
            for cores in 1..9 {
                let mut accepted = vec![0; sockets];
                for index in 0..cores {
                    let share: Vec<_> = share(sockets, cores, index).collect();
                    assert!(!share.is_empty(), "core {index} of {cores}, {sockets} sockets");
                    share.iter().for_each(|&n| accepted[n] += 1);
                }
                assert!(accepted.iter().all(|&n| n > 0), "{sockets} sockets, {cores} cores");
                if sockets >= cores {
                    assert!(accepted.iter().all(|&n| n == 1), "{sockets} sockets, {cores} cores");
                }
            }
        }
        assert_eq!(share(0, 2, 1).count(), 0);
    }

    #[test]
    fn a_successor_gets_the_same_sockets_whatever_its_number_of_cores() {
        for (before, after) in [(1, 1), (4, 2), (1, 3), (3, 4)] {
            let old = opened(before, Vec::new(), Giver::Gateway);
            let new = opened(after, old.all().unwrap(), Giver::Gateway);
            assert_eq!(new.addrs(), old.addrs());
            assert_eq!(new.all().unwrap().len(), before.max(after));
            old.close();
            assert!(old.of(0).unwrap().is_empty());
            let of_cores: usize = (0..after).map(|n| new.of(n).unwrap().len()).sum();
            assert_eq!(of_cores, before.max(after), "{before} then {after}");
        }
    }

    #[test]
    fn a_managers_socket_is_shared_and_no_other_opened() {
        let theirs = TcpListener::bind(LOOPBACK).unwrap();
        let doors = opened(3, vec![theirs], Giver::Manager);
        assert_eq!(doors.all().unwrap().len(), 1);
        doors.abandon(0);
        assert!((0..3).all(|n| doors.of(n).unwrap().len() == 1));
    }

    #[test]
    fn what_is_not_listened_on_is_left_and_another_port_is_not_taken() {
        let (one, other) = (TcpListener::bind(LOOPBACK).unwrap(), TcpListener::bind(LOOPBACK));
        let other = other.unwrap();
        let (at, elsewhere) = (one.local_addr().unwrap(), other.local_addr().unwrap());
        let given = vec![other, one];
        let (doors, left) = Doors::open(&[at], 1, given, Giver::Gateway).unwrap();
        assert_eq!((doors.addrs(), left), (&[at][..], vec![elsewhere]));
    }

    #[test]
    fn a_core_that_stays_down_gets_nobody() {
        let doors = opened(2, Vec::new(), Giver::Gateway);
        doors.abandon(1);
        assert_eq!((doors.of(0).unwrap().len(), doors.of(1).unwrap().len()), (1, 0));
    }
}
