//! A drain's steps: not ready, a moment for load balancers to notice, no more connections, time for
//! what is open, the end. Runs on the control thread.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::doors::Doors;
use crate::admin::Flags;
use crate::runtime::systemd;

/// After readiness is gone, load balancers get this long to notice before listeners close.
const NOTICE: Duration = Duration::from_millis(500);
/// Then open requests get this long to finish.
const GRACE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Waits for a drain to begin and takes it through its steps.
pub(super) async fn when_asked(flags: &Flags, doors: &Doors) {
    while !flags.draining.load(Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
    // After a hand-over the service goes on, in another process.
    if flags.handed_over_ms.load(Relaxed) == 0 {
        systemd::notify(systemd::STOPPING);
    }
    wait(NOTICE, || flags.stop_now.load(Relaxed) || flags.listeners_closed.load(Relaxed)).await;
    // Ours first: the cores' copies are then the last, and close the sockets.
    doors.close();
    flags.listeners_closed.store(true, Relaxed);
    wait(GRACE, || flags.stop_now.load(Relaxed) || flags.cores_ended.load(Relaxed)).await;
    flags.stop_now.store(true, Relaxed);
}

async fn wait(patience: Duration, over: impl Fn() -> bool) {
    let mut left = patience;
    while !left.is_zero() && !over() {
        tokio::time::sleep(LOOK).await;
        left = left.saturating_sub(LOOK);
    }
}
