//! What a pick costs: 64 and 1,000 candidates, each policy, on one core.
//!
//! `cargo bench --bench routing`. Each pick's result is checked; a wrong one ends the bench.

use std::hint::black_box;
use std::time::Instant;

use expedite::engine::StepModel;
use expedite::routing::{Decision, Model, Picker, Policy, Rng};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{fleet, request};

/// Picks that are timed, each alone.
const PICKS: usize = 20_000;

/// Times of single picks in ns, sorted.
fn measure(policy: Policy, count: usize) -> Vec<u64> {
    let mut rng = Rng::with_seed(count as u64);
    let mut view = fleet(count, &mut rng);
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    let mut picker = Picker::new(policy);
    let mut times = Vec::with_capacity(PICKS);
    for i in 0..PICKS {
        // Something moves between two picks, as in a fleet at work.
        let moved = rng.usize(..count);
        view.0[moved].requests = rng.u64(40..120);
        let request = request(&mut rng);
        let begun = Instant::now();
        let decision =
            picker.pick(black_box(&request), black_box(&view), &model, i as u64, &mut rng);
        times.push(begun.elapsed().as_nanos() as u64);
        match decision {
            Decision::Pick(pick) => {
                assert!(view.0[pick.replica].eligible, "{policy:?} picked one that is down");
                assert!(pick.ttft_ms > 0.0 && pick.ttft_ms.is_finite(), "{pick:?}");
            }
            other => panic!("{policy:?}: {other:?} from a fleet with room"),
        }
    }
    times.sort_unstable();
    times
}

fn main() {
    println!("{:16} {:>22} {:>22}", "ns a pick", "64: median / p99", "1,000: median / p99");
    for policy in Policy::ALL {
        let columns = [64, 1000].map(|count| {
            let times = measure(policy, count);
            format!("{} / {}", times[PICKS / 2], times[PICKS * 99 / 100])
        });
        println!("{:16} {:>22} {:>22}", policy.name(), columns[0], columns[1]);
    }
}
