//! Requests that end engines: one that two replicas did not survive is sent to no third one, and
//! who sends it again within a minute is refused.
//!
//! A replica that breaks off says little: it may be restarted, or its network gone. So a death is
//! an engine that says so itself, or a replica that broke off and whose port then refuses. Nothing
//! here is looked at while no such request is known. Shared by the cores; locked for moments.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use xxhash_rust::xxh3::xxh3_64;

use super::core::Core;
use super::exchange::Attempt;
use crate::net;
use crate::replicas::Replica;

/// Replicas that a request may end.
const DEATHS_MAX: usize = 2;
/// A request is refused for so long.
const BARRED_MS: u64 = 60_000;
/// Requests that are remembered at once.
const REQUESTS_MAX: usize = 1_024;
/// A port that does not answer a connect within this time refuses nothing.
const LOOK_MS: u64 = 200;
/// How vLLM says that its engine is dead.
const ENGINE_DEAD: &str = "EngineCore encountered an issue";

/// What is barred, by a hash of its body, until when.
#[derive(Default)]
pub(super) struct Poisons {
    known: AtomicUsize,
    until_ms: Mutex<HashMap<u64, u64>>,
}

impl Poisons {
    /// Is this body barred at `now_ms`?
    pub(super) fn bars(&self, body: &[u8], now_ms: u64) -> bool {
        if self.known.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut barred = self.until_ms.lock().unwrap_or_else(PoisonError::into_inner);
        barred.retain(|_, until_ms| now_ms < *until_ms);
        self.known.store(barred.len(), Ordering::Relaxed);
        barred.contains_key(&xxh3_64(body))
    }

    fn bar(&self, body: &[u8], now_ms: u64) {
        let mut barred = self.until_ms.lock().unwrap_or_else(PoisonError::into_inner);
        barred.retain(|_, until_ms| now_ms < *until_ms);
        if barred.len() < REQUESTS_MAX {
            barred.insert(xxh3_64(body), now_ms.saturating_add(BARRED_MS));
        }
        self.known.store(barred.len(), Ordering::Relaxed);
    }
}

/// The replicas that broke off under a request, and whether their engines said that they are dead.
#[derive(Default)]
pub(super) struct Fallen(Vec<(Arc<Replica>, bool)>);

impl Fallen {
    /// Enters how an attempt at `replica` has failed. True: the request has ended as many engines
    /// as it may, and is barred from here on.
    pub(super) async fn saw(
        &mut self,
        core: &Core,
        replica: Option<&Arc<Replica>>,
        why: &Attempt,
        body: &[u8],
    ) -> bool {
        let Some((replica, said)) = replica.zip(death(why)) else { return false };
        self.0.push((Arc::clone(replica), said));
        if self.0.len() < DEATHS_MAX {
            return false;
        }
        let mut dead = Vec::new();
        for (replica, said) in &self.0 {
            if *said || refuses(core, replica).await {
                dead.push(&*replica.id);
            }
        }
        if dead.len() < DEATHS_MAX {
            return false;
        }
        core.shared.poisons.bar(body, core.sweep.now_ms());
        core.shared.log.warn(&format!(
            "a request has ended the engines of {}: it is sent to no other, and refused for {} s",
            dead.join(" and "),
            BARRED_MS / 1000
        ));
        true
    }
}

/// May the replica have died of it? `Some(true)`: its engine says so.
fn death(why: &Attempt) -> Option<bool> {
    match why {
        Attempt::Said(_, message) if message.contains(ENGINE_DEAD) => Some(true),
        why if why.broke_off() => Some(false),
        _ => None,
    }
}

async fn refuses(core: &Core, replica: &Replica) -> bool {
    let Some(addr) = replica.addr.load_full() else { return false };
    let mut connecting = std::pin::pin!(net::connect(*addr));
    let late = core.sweep.deadline();
    late.set(LOOK_MS);
    poll_fn(|cx| {
        if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
            return Poll::Ready(done.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused));
        }
        late.poll(cx).map(|()| false)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_barred_for_its_time_and_no_other_is() {
        let poisons = Poisons::default();
        assert!(!poisons.bars(b"a", 0));
        poisons.bar(b"a", 1_000);
        assert!(poisons.bars(b"a", 1_000) && !poisons.bars(b"b", 1_000));
        poisons.bar(b"b", 30_000);
        assert!(!poisons.bars(b"a", 1_000 + BARRED_MS) && poisons.bars(b"b", 1_000 + BARRED_MS));
        for n in 0..2 * REQUESTS_MAX {
            poisons.bar(&n.to_le_bytes(), 100_000);
        }
        assert_eq!(poisons.known.load(Ordering::Relaxed), REQUESTS_MAX);
    }
}
