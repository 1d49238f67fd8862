//! Hot spots and imbalance: the cost against the cases on which published routers have failed, on
//! the gateway's own ledger and index without sockets, and a burst over sockets.

mod common;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use common::engine::{After, Engine, STREAM_HEAD, chunk, event};
use common::faults::{at_rest, whole_stream};
use common::gateway::{AUTH, Bed};
use common::{Client, eventually, post_with};
use expedite::engine::StepModel;
use expedite::prefix::{Index, Limits};
use expedite::prompt::blocks::{BlockHash, Root, of_tokens};
use expedite::replicas::{Dispatch, InFlight, Ledger};
use expedite::routing::{Candidate, Decision, FleetView, Model, Picker, Policy, Request, Rng};

/// Lanes without engines: what a gateway knows of them.
struct Lanes {
    ledgers: Vec<Arc<Ledger>>,
    index: Index,
    picker: Picker,
    rng: Rng,
    step: StepModel,
}

struct Seen(Vec<Candidate>);

impl FleetView for Seen {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn candidate(&self, index: usize) -> Candidate {
        self.0[index]
    }
}

/// The blocks of a prompt of `tokens` tokens of which the first `shared` are those of `prefix` and
/// the rest those of `own`.
fn chain(prefix: u32, shared: usize, own: u32, tokens: usize) -> Vec<BlockHash> {
    let ids: Vec<u32> = (0..tokens).map(|i| if i < shared { prefix } else { own }).collect();
    let mut hashes = Vec::new();
    of_tokens(Root::new(None, None), &ids, 16, &mut hashes);
    hashes
}

impl Lanes {
    fn new(n: usize, seed: u64) -> Lanes {
        Lanes {
            ledgers: (0..n).map(|_| Arc::new(Ledger::new(1))).collect(),
            index: Index::new(Limits::default()),
            picker: Picker::new(Policy::Cost),
            rng: Rng::with_seed(seed),
            step: StepModel::a100_8b(),
        }
    }

    fn dispatch(&self, lane: usize, tokens: u64, cached: u64, hashes: &[BlockHash]) -> InFlight {
        self.index.dispatched(lane as u16, hashes, 0);
        let brings = Dispatch {
            prompt_tokens: tokens,
            cached_tokens: cached,
            output_tokens: 300,
            sequences: 1,
            ..Dispatch::default()
        };
        self.ledgers[lane].enter(0, &brings, 0)
    }

    /// Sends a request where the policy says; its lane.
    fn send(&mut self, tokens: u64, hashes: &[BlockHash]) -> (usize, InFlight) {
        let mut depths = vec![0; self.ledgers.len()];
        self.index.depths(hashes, &mut depths);
        let seen = self.ledgers.iter().zip(&depths).map(|(ledger, depth)| {
            let sums = ledger.own(0);
            Candidate {
                cached_tokens: (u64::from(*depth) * 16).min(tokens - 1),
                pending_tokens: sums.pending_tokens,
                pending_requests: sums.pending_requests,
                decodes: sums.decodes,
                decode_kv_tokens: sums.decode_kv_tokens,
                requests: sums.requests,
                load_tokens: sums.tokens,
                blocks: 27_900,
                blocks_used: sums.held_tokens / 16,
                ..Candidate::default()
            }
        });
        let seen = Seen(seen.collect());
        let request = Request {
            prompt_tokens: tokens,
            output_tokens: 300.0,
            block_tokens: 16,
            ttft_limit_ms: 400.0,
            tpot_limit_ms: 50.0,
            owner_key: hashes.get(7).map_or(0, |hash| *hash as u64),
            ..Request::default()
        };
        let model = Model { step: &self.step, step_tokens_max: 2_048 };
        let decision = self.picker.pick(&request, &seen, &model, 0, &mut self.rng);
        let Decision::Pick(pick) = decision else { panic!("{decision:?}") };
        let cached = seen.0[pick.replica].cached_tokens;
        (pick.replica, self.dispatch(pick.replica, tokens, cached, hashes))
    }
}

fn running(mut entry: InFlight) -> InFlight {
    entry.first_token(0);
    entry
}

/// T48: A is busy with prompts that nobody shares, B idle with a large tree: new prompts go to B.
#[test]
fn a_large_cache_does_not_repel_new_prompts() {
    let mut lanes = Lanes::new(2, 1);
    let busy =
        (0..40).map(|n| running(lanes.dispatch(0, 1_000, 0, &chain(0, 0, 9_000 + n, 1_000))));
    let _busy: Vec<_> = busy.collect();
    let waiting = (0..4).map(|n| lanes.dispatch(0, 1_000, 0, &chain(0, 0, 9_500 + n, 1_000)));
    let _waiting: Vec<_> = waiting.collect();
    for n in 0..300 {
        drop(lanes.dispatch(1, 2_000, 0, &chain(0, 0, 20_000 + n, 2_000)));
    }
    let (mut to_b, mut held) = (0, VecDeque::new());
    for n in 0..100 {
        let (lane, entry) = lanes.send(1_000, &chain(0, 0, 50_000 + n, 1_000));
        to_b += usize::from(lane == 1);
        held.push_back(running(entry));
        if held.len() > 10 {
            held.pop_front();
        }
    }
    assert!(to_b >= 90, "{to_b} of 100 went to the idle one");
}

/// T49: one of eight carries three times the load of the others; sessions on the seven stay.
#[test]
fn one_hot_lane_does_not_scatter_the_sessions_of_the_others() {
    let mut lanes = Lanes::new(8, 2);
    let mut load = Vec::new();
    for lane in 0..8_u32 {
        for n in 0..if lane == 0 { 60 } else { 20 } {
            let hashes = chain(0, 0, 1_000 * lane + n, 1_000);
            load.push(running(lanes.dispatch(lane as usize, 1_000, 0, &hashes)));
        }
    }
    // Twenty sessions a lane, each with two thousand tokens of its own behind it.
    let session = |lane: u32, n: u32, turn: u32| chain(70_000 + 100 * lane + n, 2_000, turn, 2_200);
    for (lane, n) in (0..8).flat_map(|lane| (0..20).map(move |n| (lane, n))) {
        drop(lanes.dispatch(lane as usize, 2_200, 0, &session(lane, n, 1)));
    }
    let mut moved = 0;
    for (n, lane) in (0..20).flat_map(|n| (1..8).map(move |lane| (n, lane))) {
        let (chosen, _) = lanes.send(2_200, &session(lane, n, 2));
        moved += usize::from(chosen != lane as usize);
    }
    assert!(moved <= 3, "{moved} of 140 sessions of the seven moved");
    // New prompts avoid the hot one.
    let to_hot = (0..100).filter(|n| lanes.send(1_000, &chain(0, 0, 90_000 + n, 1_000)).0 == 0);
    let to_hot = to_hot.count();
    assert!(to_hot <= 2, "{to_hot} of 100 went to the hot one");
}

/// T50: nothing is shared and all are equal: as even as each in turn.
#[test]
fn without_reuse_the_spread_is_that_of_round_robin() {
    let mut lanes = Lanes::new(8, 3);
    let mut counts = [0_u32; 8];
    let mut held = VecDeque::new();
    for n in 0..1_600 {
        let (lane, entry) = lanes.send(1_000, &chain(0, 0, 10_000 + n, 1_000));
        counts[lane] += 1;
        held.push_back(entry);
        if held.len() > 160 {
            held.pop_front();
        }
        if let Some(entry) = held.iter_mut().rev().nth(8) {
            entry.first_token(0);
        }
    }
    assert!(counts.iter().all(|count| (190..=210).contains(count)), "{counts:?}");
}

/// T51: 32 requests with one new prefix of 8 thousand tokens in a burst over eight lanes. A lane
/// computes the prefix once in some 0.6 s, within the limit of a prompt of that length; more than
/// two of them computing it would be waste.
#[test]
fn a_burst_of_siblings_goes_where_the_first_went() {
    let engines: Vec<_> = (0..8)
        .map(|_| {
            Engine::start(|_, wire| {
                std::thread::sleep(std::time::Duration::from_millis(500));
                wire.write_all(STREAM_HEAD)?;
                wire.write_all(&chunk(&event("x")))?;
                let rest = whole_stream(&[]);
                wire.write_all(&rest[STREAM_HEAD.len()..]).map(|()| After::Keep)
            })
        })
        .collect();
    let addrs: Vec<_> = engines.iter().map(|engine| engine.addr).collect();
    let bed = Bed::of(&addrs);
    // Four bytes a token, as long as nothing is known.
    let shared = (0..6_400).map(|n| format!("{n:04} ")).collect::<String>();
    let mut clients: Vec<_> = (0..32)
        .map(|n| {
            let body = format!(
                "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":20,\"messages\":\
                 [{{\"role\":\"user\",\"content\":\"{shared} Question {n}?\"}}]}}"
            );
            let mut client = Client::connect(bed.addr);
            client.send(&post_with("/v1/chat/completions", AUTH, &body));
            client
        })
        .collect();
    eventually("all are dispatched", || engines.iter().map(Engine::count).sum::<usize>() == 32);
    let counts: Vec<_> = engines.iter().map(Engine::count).filter(|count| *count > 0).collect();
    assert!(counts.len() <= 2, "{counts:?}: so many computed the prefix");
    clients.iter_mut().for_each(|client| assert_eq!(client.response().status(), 200));
    drop(clients);
    at_rest(&bed);
}
