//! An engine that hangs up under thousands of requests: nothing of them is left, in counts or in
//! memory. Alone in its process, whose memory it measures.

mod common;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::ask;
use common::engine::{After, Engine};
use common::faults::{at_rest, hello, stream_for_acme};
use common::gateway::{Bed, Settings};

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("pages");
    pages * 4096
}

/// T34: an engine that hangs up before the first token, five thousand times.
#[test]
fn nothing_stays_of_requests_that_an_engine_dropped() {
    let nth = AtomicUsize::new(0);
    // One answer in three, so that the replica is not ejected for good.
    let engine = Engine::start(move |_, wire| match nth.fetch_add(1, SeqCst) % 3 {
        0 => wire.write_all(&hello()).map(|()| After::Keep),
        _ => Ok(After::Close),
    });
    let more = "[retry]\nattempts_max = 1\n".to_owned();
    let bed = Bed::start(&[engine.addr], Settings { more, ..Settings::default() });
    let addr = bed.addr;
    let drops = |total: usize| {
        while engine.count() < total {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        (0..60).for_each(|_| drop(ask(addr, &stream_for_acme())));
                    });
                }
            });
        }
    };
    drops(2_500);
    let warm = resident_bytes();
    drops(7_500);
    let grown = resident_bytes().saturating_sub(warm);
    println!("5,000 requests later the process is {} KiB larger", grown / 1024);
    at_rest(&bed);
    assert_eq!(bed.metric("expedite_pending_prefill_tokens", ""), 0.0);
    assert!(grown < 24 << 20, "{grown} bytes more, of which the engine's log is a part");
}
