//! What a pick costs: 64 and 1,000 candidates, each policy, on one core.
//!
//! `cargo bench --bench routing`. Each pick's result is checked; a wrong one ends the bench.

use std::hint::black_box;
use std::time::Instant;

use expedite::engine::StepModel;
use expedite::routing::{
    Candidate, Decision, FleetView, Model, Picker, Policy, Request, Residency, Rng,
};

/// Picks that are timed, each alone.
const PICKS: usize = 20_000;

struct Fleet(Vec<Candidate>);

impl FleetView for Fleet {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        self.0[index]
    }
}

/// A loaded fleet; one in eight holds a part of the prompt, one in sixteen is down.
fn fleet(count: usize, rng: &mut Rng) -> Fleet {
    let one = |index: usize| {
        let decodes = rng.u64(40..120);
        let pending = rng.u64(0..3);
        Candidate {
            key: index as u64 + 1,
            eligible: index % 16 != 5,
            cached_tokens: if index.is_multiple_of(8) { rng.u64(0..108) * 16 } else { 0 },
            pending_tokens: pending * rng.u64(100..1500),
            pending_requests: pending,
            decodes,
            decode_kv_tokens: decodes * 1900,
            requests: decodes + pending,
            load_tokens: (decodes + pending) * 2040,
            blocks: 27_900,
            blocks_used: decodes * 119,
            prefill_duty: 0.1 + 0.2 * rng.f64(),
            adapter: Residency::Resident,
            ..Candidate::default()
        }
    };
    Fleet((0..count).map(one).collect())
}

fn request(rng: &mut Rng) -> Request {
    Request {
        prompt_tokens: rng.u64(1600..1900),
        output_tokens: 297.0,
        block_tokens: 16,
        ttft_limit_ms: 400.0,
        tpot_limit_ms: 50.0,
        owner_key: rng.u64(1..),
        ..Request::default()
    }
}

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
