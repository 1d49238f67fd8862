//! Descriptors: how many this process may have open at once, and whether a socket could not be had
//! for the want of something here. Any thread; keeps nothing.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a gateway for tens of thousands of streams should have.
pub const ENOUGH: u64 = 65_536;

/// Raises the soft limit to the hard one. Nearly everywhere the soft one is 1,024, for programs
/// that wait by select(2): five hundred requests.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // Refused where `fs.nr_open` is below the hard limit: then it stays as it is, and is told.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// How many this process may have open at once; `u64::MAX` is "unlimited".
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// What this process or its host is out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Open files, of the process or of the host.
    Descriptors,
    /// Memory for sockets.
    Memory,
    /// Local ports to this address. Where IPv6 is off, the kernel says the same of IPv6 addresses.
    Ports,
}

impl Lack {
    /// The lack by which a socket could not be had, if that was the reason: it says nothing of
    /// the peer.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Lack> {
        match Errno::from_io_error(error)? {
            Errno::MFILE | Errno::NFILE => Some(Lack::Descriptors),
            Errno::NOBUFS | Errno::NOMEM => Some(Lack::Memory),
            Errno::ADDRNOTAVAIL => Some(Lack::Ports),
            _ => None,
        }
    }

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lack::Descriptors => "descriptors",
            Lack::Memory => "memory for sockets",
            Lack::Ports => "local ports",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_ours_is_told_from_what_a_peer_does() {
        let of = |errno: Errno| Lack::of(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!([Errno::MFILE, Errno::NFILE].map(of), [Some(Lack::Descriptors); 2]);
        assert_eq!([Errno::NOBUFS, Errno::NOMEM].map(of), [Some(Lack::Memory); 2]);
        assert_eq!(of(Errno::ADDRNOTAVAIL), Some(Lack::Ports));
        assert_eq!([Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::CONNRESET].map(of), [None; 3]);
        assert_eq!(Lack::of(&io::ErrorKind::InvalidData.into()), None);
    }
}
