//! What systemd and a service tell each other: state by datagrams (`NOTIFY_SOCKET`), how often it
//! wants to hear that all is well (`WATCHDOG_USEC`), how many sockets it has opened (`LISTEN_FDS`).
//!
//! Owns nothing; any thread may use it. Without systemd nothing happens. After sd_notify(3),
//! sd_watchdog_enabled(3) and sd_listen_fds(3).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Requests are served, or served again by the new configuration.
pub const READY: &str = "READY=1";
/// It has begun to end.
pub const STOPPING: &str = "STOPPING=1";
/// All of it turns.
pub const ALIVE: &str = "WATCHDOG=1";

/// Tells the service manager, if there is one. That nobody hears it is no failure.
pub fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send(&socket, state);
    }
}

/// A new configuration is being read: [`READY`] ends that.
pub fn notify_reloading() {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let usec = at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1000);
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
}

/// The service is another process from now on, of the same unit.
pub fn notify_main_pid(pid: i32) {
    notify(&format!("MAINPID={pid}"));
}

fn send(socket: &OsStr, state: &str) -> std::io::Result<()> {
    let addr = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let from = UnixDatagram::unbound()?;
    // A manager that does not read must not hold us up.
    from.set_nonblocking(true)?;
    from.send_to_addr(state.as_bytes(), &addr).map(drop)
}

/// After so long without [`ALIVE`] the manager ends this process; `None`: it does not wait for it.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    let mine = pid_is_ours(std::env::var("WATCHDOG_PID").ok().as_deref(), true);
    let usec = std::env::var("WATCHDOG_USEC").ok()?.parse().ok().filter(|&usec| usec > 0)?;
    mine.then_some(Duration::from_micros(usec))
}

/// How many sockets were passed to this process, from descriptor 3 up.
#[must_use]
pub fn passed() -> usize {
    let ours = pid_is_ours(std::env::var("LISTEN_PID").ok().as_deref(), false);
    let count = std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse().ok());
    count.filter(|_| ours).unwrap_or(0)
}

/// What a manager meant for one process stays in the environment of those that it starts.
pub const MEANT_FOR_ONE: [&str; 5] =
    ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "WATCHDOG_PID"];

fn pid_is_ours(meant: Option<&str>, unset: bool) -> bool {
    meant.map_or(unset, |pid| pid.parse() == Ok(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_states_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let name = format!("expedite-test-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&addr).unwrap();
        send(OsStr::new(&format!("@{name}")), "MAINPID=7").unwrap();
        for (socket, want) in [(by_path, READY), (by_name, "MAINPID=7")] {
            let mut bytes = [0; 64];
            let n = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], want.as_bytes());
        }
        assert!(send(OsStr::new("relative/none"), READY).is_err());
    }

    #[test]
    fn what_was_meant_for_another_process_is_not_taken() {
        let ours = std::process::id().to_string();
        for (meant, unset, want) in [
            (Some(ours.as_str()), false, true),
            (Some("1"), true, false),
            (Some("x"), true, false),
            (None, true, true),
            (None, false, false),
        ] {
            assert_eq!(pid_is_ours(meant, unset), want, "{meant:?}");
        }
    }
}
