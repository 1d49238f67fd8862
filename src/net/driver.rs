//! Which driver a core runs on, and its set-up.
//!
//! io_uring with `SINGLE_ISSUER | DEFER_TASKRUN | COOP_TASKRUN`: completions are only run when the
//! core asks for them, so no interrupt of ours lands in the middle of a request. It is probed with
//! the very flags that we use, because container runtimes forbid io_uring by their default seccomp
//! profile and a silent fall-back would hide that.

use std::fmt;
use std::io;

use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

/// Ring entries: each open stream keeps two polls in flight, and a full ring is only flushed, so
/// this bounds a burst between two turns, not the number of connections.
const RING_ENTRIES: u32 = 4096;

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring, or epoll with a warning.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// epoll.
    Epoll,
}

/// The driver that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

impl Driver {
    /// Name as printed at start and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Driver::IoUring => "io_uring",
            Driver::Epoll => "epoll",
        }
    }
}

/// io_uring cannot be had: the cause and what mends it.
#[derive(Debug)]
pub struct DriverError {
    cause: io::Error,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mend = match self.cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "forbidden here: set sysctl kernel.io_uring_disabled=0, or run the container with \
                 a seccomp profile that allows io_uring_setup, io_uring_enter, io_uring_register"
            }
            Some(libc::ENOSYS) => "this kernel has none: Linux 6.1 or newer is needed",
            Some(libc::EINVAL) => "this kernel lacks DEFER_TASKRUN: Linux 6.1 or newer is needed",
            Some(libc::ENOMEM) => "not enough locked memory: raise `ulimit -l`",
            Some(libc::EMFILE | libc::ENFILE) => "no descriptor left: raise `ulimit -n`",
            _ => "see the error",
        };
        write!(f, "io_uring cannot be set up: {} ({mend})", self.cause)
    }
}

impl std::error::Error for DriverError {}

fn ring() -> io_uring::Builder {
    let mut builder = io_uring::IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun();
    builder
}

impl DriverChoice {
    /// Probes what this host allows. The second value is the reason for a fall-back, to be said
    /// aloud.
    ///
    /// # Errors
    /// io_uring was demanded and is not to be had.
    pub fn resolve(self) -> Result<(Driver, Option<DriverError>), DriverError> {
        if self == DriverChoice::Epoll || std::env::var_os("MONOIO_FORCE_LEGACY_DRIVER").is_some() {
            return Ok((Driver::Epoll, None));
        }
        match ring().build(8) {
            Ok(_) => Ok((Driver::IoUring, None)),
            Err(cause) if self == DriverChoice::IoUring => Err(DriverError { cause }),
            Err(cause) => Ok((Driver::Epoll, Some(DriverError { cause }))),
        }
    }
}

/// What the kernel's ring can do beyond what the cores need of it, for the operator.
///
/// # Errors
/// io_uring is not to be had.
pub fn ring_features() -> Result<Vec<&'static str>, DriverError> {
    let ring = ring().build(8).map_err(|cause| DriverError { cause })?;
    let has = ring.params();
    let all = [
        ("one mapping", has.is_feature_single_mmap()),
        ("no dropped completions", has.is_feature_nodrop()),
        ("fast poll", has.is_feature_fast_poll()),
        ("timeouts by argument", has.is_feature_ext_arg()),
        ("native workers", has.is_feature_native_workers()),
    ];
    Ok(all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect())
}

/// Runs `main` and every task that it spawns on this thread until `main` ends.
///
/// # Errors
/// The ring or epoll cannot be set up.
pub fn run<F: Future>(driver: Driver, main: F) -> io::Result<F::Output> {
    match driver {
        Driver::IoUring => {
            let builder = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring());
            Ok(builder.with_entries(RING_ENTRIES).enable_timer().build()?.block_on(main))
        }
        Driver::Epoll => {
            let builder = RuntimeBuilder::<LegacyDriver>::new();
            Ok(builder.enable_timer().build()?.block_on(main))
        }
    }
}
