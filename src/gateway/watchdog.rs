//! Names a core that stalls, and tells systemd that all turn.
//!
//! Each core stamps the time with every sweep, twenty times a second. One that has not for a second
//! is held by something that takes no turns: its connections wait, and the kernel goes on sending
//! new ones there. The log names it once a stall, and says when it is over. Runs on the control
//! thread, so that systemd's watchdog covers that one as well.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::shared::Shared;
use crate::admin::{self, Shard};
use crate::runtime::log::Log;
use crate::runtime::{clock, systemd};

/// Without a sweep for so long, a core stalls.
const STALL_MS: u64 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What has changed with a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Stalls { core: usize, for_ms: u64 },
    TurnsAgain { core: usize, after_ms: u64 },
}

/// Which cores stall.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    since: Vec<Option<u64>>,
    looked_ms: u64,
}

impl Stalls {
    /// Looks at the cores' last sweeps, in ms since process start; 0: none yet.
    pub(super) fn look(&mut self, now_ms: u64, beats: impl Iterator<Item = i64>) -> Vec<Change> {
        let mut changes = Vec::new();
        // Who looks late was held itself, and with it the whole process, most likely.
        let on_time = now_ms.saturating_sub(self.looked_ms) < STALL_MS / 2;
        self.looked_ms = now_ms;
        for (core, beat) in beats.enumerate() {
            if self.since.len() <= core {
                self.since.push(None);
            }
            let (Some(since), Ok(beat)) = (self.since.get_mut(core), u64::try_from(beat)) else {
                continue;
            };
            let for_ms = now_ms.saturating_sub(beat);
            match *since {
                None if on_time && beat > 0 && for_ms >= STALL_MS => {
                    *since = Some(beat);
                    changes.push(Change::Stalls { core, for_ms });
                }
                Some(begun) if beat > begun => {
                    *since = None;
                    let after_ms = beat.min(now_ms).saturating_sub(begun);
                    changes.push(Change::TurnsAgain { core, after_ms });
                }
                _ => {}
            }
        }
        changes
    }
}

fn say(log: &Log, change: Change) {
    match change {
        Change::Stalls { core, for_ms } => log.error(&format!(
            "core {core} stalls: for {for_ms} ms it has taken no turn, and its connections wait"
        )),
        Change::TurnsAgain { core, after_ms } => {
            log.warn(&format!("core {core} turns again after {after_ms} ms"));
        }
    }
}

/// Watches the cores until the task is dropped.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut stalls = Stalls::default();
    // Told twice as often as systemd wants it.
    let interval_ms = systemd::watchdog().map(|every| every.as_millis() as u64 / 2);
    let mut told_ms = 0;
    loop {
        let now_ms = clock::now_ms();
        let beats = shared.shards.iter().map(|shard: &Arc<Shard>| shard.beat_ms.get());
        let changes = stalls.look(now_ms, beats);
        changes.into_iter().for_each(|change| say(&shared.log, change));
        shared.log.tell_left_out();
        let due = interval_ms.is_some_and(|every| now_ms.saturating_sub(told_ms) >= every);
        // Until it has taken over, the gateway before is the one that is watched.
        let ours = !shared.flags.holding.load(Relaxed);
        if due && ours && admin::all_turn(&shared.shards, now_ms) {
            systemd::notify(systemd::ALIVE);
            told_ms = now_ms;
        }
        let look = interval_ms.map_or(LOOK_EVERY, |ms| LOOK_EVERY.min(Duration::from_millis(ms)));
        tokio::time::sleep(look.max(Duration::from_millis(10))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_named_once_and_its_end_told() {
        let mut stalls = Stalls::default();
        let mut look = |now_ms: u64, beats: [i64; 3]| {
            stalls.looked_ms = now_ms - 250;
            stalls.look(now_ms, beats.into_iter())
        };
        assert_eq!(look(900, [0, 0, 0]), [], "they have not begun");
        assert_eq!(look(5_000, [4_990, 4_001, 0]), []);
        let stalled = Change::Stalls { core: 1, for_ms: 1_001 };
        assert_eq!(look(5_002, [5_000, 4_001, 5_000]), [stalled]);
        assert_eq!(look(9_000, [8_990, 4_001, 8_990]), []);
        let over = Change::TurnsAgain { core: 1, after_ms: 4_999 };
        assert_eq!(look(9_010, [9_000, 9_000, 9_000]), [over]);
        let again = Change::Stalls { core: 1, for_ms: 1_000 };
        assert_eq!(look(10_000, [9_990, 9_000, 9_990]), [again]);
        // One that ends in a drain is done, and not stalled for ever.
        let over = Change::TurnsAgain { core: 1, after_ms: 1_500 };
        assert_eq!(look(10_500, [10_490, i64::MAX, 10_490]), [over]);
        assert_eq!(look(99_000, [98_990, i64::MAX, 98_990]), []);
    }

    #[test]
    fn when_all_was_held_no_core_is_named() {
        let mut stalls = Stalls::default();
        assert_eq!(stalls.look(5_000, [4_990, 4_980].into_iter()), []);
        assert_eq!(stalls.look(8_000, [4_990, 4_980].into_iter()), [], "the host, or a debugger");
        let changes = stalls.look(8_250, [8_200, 4_980].into_iter());
        assert_eq!(changes, [Change::Stalls { core: 1, for_ms: 3_270 }]);
    }
}
