//! Gateways that cannot have told each other: what each decides alone still fits together.

use std::collections::HashSet;

use super::*;
use crate::engine::StepModel;
use crate::routing::{Picker, Policy};

const REPLICAS: usize = 8;
const GATEWAYS: usize = 4;

/// What one gateway has sent, by its own order of the replicas.
struct Gateway {
    /// Name of the replica at each index.
    names: Vec<u64>,
    pending: Vec<u64>,
    cached: Vec<u64>,
    picker: Picker,
    rng: Rng,
}

impl FleetView for Gateway {
    fn len(&self) -> usize {
        self.names.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        Candidate {
            key: self.names[index],
            pending_tokens: self.pending[index],
            cached_tokens: self.cached[index],
            ..Candidate::default()
        }
    }
}

impl Gateway {
    fn new(seed: u64) -> Gateway {
        let mut rng = Rng::with_seed(seed);
        let mut names: Vec<u64> = (1..=REPLICAS as u64).map(|n| n * 1_000_003).collect();
        rng.shuffle(&mut names);
        let [pending, cached] = [(); 2].map(|()| vec![0; REPLICAS]);
        Gateway { names, pending, cached, picker: Picker::new(Policy::Cost), rng }
    }

    /// Sends a prompt; the name of the replica that gets it.
    fn send(&mut self, prompt_tokens: u64, owner_key: u64, ttft_limit_ms: f64) -> u64 {
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        let request = Request {
            prompt_tokens,
            output_tokens: 300.0,
            output_tokens_max: 600,
            block_tokens: 16,
            ttft_limit_ms,
            tpot_limit_ms: 50.0,
            adapter: false,
            owner_key,
            may_hold: false,
            may_shed: false,
        };
        let (mut picker, mut rng) = (Picker::new(Policy::Cost), self.rng.fork());
        std::mem::swap(&mut picker, &mut self.picker);
        let decision = picker.pick(&request, self, &model, 0, &mut rng);
        self.picker = picker;
        let Decision::Pick(pick) = decision else { panic!("{decision:?}") };
        self.pending[pick.replica] += prompt_tokens - self.cached[pick.replica];
        self.names[pick.replica]
    }
}

/// ai-dynamo/dynamo#589 (T52), without a word between the gateways.
#[test]
fn different_prompts_at_all_gateways_at_once_stay_even() {
    for (tokens, seed) in [(540, 1), (540, 2), (1_800, 3), (1_800, 4)] {
        let mut keys = Rng::with_seed(seed);
        let mut sent = std::collections::HashMap::<u64, usize>::new();
        for gateway in 0..GATEWAYS {
            let mut gateway = Gateway::new(seed * 10 + gateway as u64);
            for _ in 0..2 * REPLICAS {
                *sent.entry(gateway.send(tokens, keys.u64(..), 400.0)).or_default() += 1;
            }
        }
        let most = *sent.values().max().expect("sent") as f64;
        let mean = (GATEWAYS * 2) as f64;
        assert!(most / mean <= 1.3, "{tokens} tokens: {sent:?}");
    }
}

/// llm-d-router#298 (T51) over several gateways: a new prefix of 8,000 tokens, 32 siblings at once.
#[test]
fn siblings_of_a_new_prefix_meet_at_one_replica() {
    for seed in 1..20 {
        let key = Rng::with_seed(seed).u64(..);
        let mut prefilled = HashSet::new();
        for gateway in 0..GATEWAYS {
            let mut gateway = Gateway::new(seed * 10 + gateway as u64);
            for _ in 0..8 {
                let name = gateway.send(8_200, key, 1_030.0);
                let index = gateway.names.iter().position(|other| *other == name);
                gateway.cached[index.expect("index")] = 8_000;
                prefilled.insert(name);
            }
        }
        assert_eq!(prefilled.len(), 1, "{prefilled:?}");
    }
}
