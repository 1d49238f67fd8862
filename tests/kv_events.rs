//! KV events over real ZeroMQ connections on loopback (faults, T99): what is lost, reordered,
//! restarted or garbled costs exactness of that replica alone, and comes back.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expedite::prefix::{Index, Limits, Slot};
use expedite::prompt::blocks::{self, Root};
use expedite::replicas::events::feed::{Feed, Host};
use expedite::replicas::events::source::Source;
use expedite::replicas::events::state::{Mode, State, Why};
use expedite::replicas::events::subscribe::follow;
use kv_engine::Engine;
use kv_wire::{Form, Stored, batch, cleared, recorded, removed};

#[allow(dead_code)] // Each test uses its part.
#[path = "support/kv_engine.rs"]
mod kv_engine;
#[allow(dead_code)] // Each test uses its part.
#[path = "support/kv_wire.rs"]
mod kv_wire;

const BLOCK: u32 = 4;
const EXACT: Mode = Mode::Exact;
const INCOMPLETE: Mode = Mode::Approximate(Why::Incomplete);

/// A pool of one index, and what its replicas say.
struct Pool {
    index: Index,
    block_tokens: Cell<u32>,
    blocks: Cell<u64>,
    said: RefCell<Vec<String>>,
}

/// One replica or rank of it.
struct Member {
    pool: Rc<Pool>,
    slot: Slot,
}

impl Host for Member {
    fn index(&self) -> &Index {
        &self.pool.index
    }
    fn slot(&self) -> Slot {
        self.slot
    }
    fn block_tokens(&self) -> u32 {
        self.pool.block_tokens.get()
    }
    fn blocks(&self) -> u64 {
        self.pool.blocks.get()
    }
    fn say(&self, _bad: bool, line: &str) {
        self.pool.said.borrow_mut().push(format!("{}: {line}", self.slot));
    }
}

impl Pool {
    fn new() -> Rc<Pool> {
        let index = Index::new(Limits::default());
        let block_tokens = Cell::new(BLOCK);
        Rc::new(Pool { index, block_tokens, blocks: Cell::new(1000), said: RefCell::default() })
    }

    fn of(block_tokens: u32) -> Rc<Pool> {
        let pool = Pool::new();
        pool.block_tokens.set(block_tokens);
        pool
    }

    /// Follows an engine in the background.
    fn follow(self: &Rc<Pool>, slot: Slot, source: Source) -> Arc<State> {
        let state = Arc::new(State::default());
        let host = Member { pool: Rc::clone(self), slot };
        let feed = Feed::new(host, Arc::clone(&state), source.rank);
        tokio::task::spawn_local(follow(source, feed));
        state
    }

    /// Leading blocks of `tokens` that each slot holds.
    fn depths(&self, tokens: &[u32]) -> [u32; 3] {
        let (mut chain, mut out) = (Vec::new(), [0; 3]);
        blocks::of_tokens(Root::new(None, None), tokens, BLOCK as usize, &mut chain);
        self.index.depths(&chain, &mut out);
        out
    }

    fn said(&self, part: &str) -> usize {
        self.said.borrow().iter().filter(|line| line.contains(part)).count()
    }
}

fn source(engine: &Engine, replay: bool) -> Source {
    Source {
        rank: None,
        host: "127.0.0.1".to_owned(),
        port: engine.port,
        replay_port: replay.then_some(engine.replay_port),
        topic: String::new(),
    }
}

/// Runs a script on a runtime as the control thread has it.
fn run(script: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, script);
}

/// Waits until something holds; it is given half a minute.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Tokens of block `n`, and of blocks one after another.
fn ids(blocks: impl IntoIterator<Item = u64>) -> Vec<u32> {
    blocks.into_iter().flat_map(|n| [n as u32 * 3 + 1; BLOCK as usize]).collect()
}

/// Block `n` of one long sequence, that the engine calls `n + 1`, stored.
fn grows(n: u64) -> Vec<u8> {
    let stored = Stored::new(&[n + 1], n, u64::from(BLOCK), &ids([n]));
    batch(vec![stored.event(Form::Map)], 0)
}

fn drops(n: u64) -> Vec<u8> {
    batch(vec![removed(&[n + 1], Form::Map)], 0)
}

/// An engine that has published blocks `0..count`, and a replica that knows them.
async fn followed(pool: &Rc<Pool>, count: u64, replay: bool) -> (Engine, Arc<State>) {
    let engine = Engine::start().await;
    let state = pool.follow(0, source(&engine, replay));
    until("a subscription", || engine.subscribers() == 1).await;
    if replay {
        until("the first replay", || state.mode() == EXACT).await;
    }
    for n in 0..count {
        engine.publish(n, &grows(n)).await;
    }
    until("all blocks", || pool.depths(&ids(0..count))[0] == count as u32).await;
    assert_eq!(state.mode(), EXACT);
    (engine, state)
}

#[test]
fn events_become_an_exact_index() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 60, true).await;
        engine.publish(60, &drops(59)).await;
        engine.publish(61, &drops(58)).await;
        until("two fewer", || pool.depths(&ids(0..60))[0] == 58).await;
        assert_eq!((state.live(), state.counter("message"), state.counter("gap")), (58, 62, 0));
        assert_eq!(pool.depths(&ids(0..60))[1..], [0, 0], "of that replica alone");
        engine.publish(62, &batch(vec![cleared(Form::Map)], 0)).await;
        until("a cleared cache", || pool.depths(&ids(0..60))[0] == 0).await;
        assert_eq!((state.mode(), state.live()), (EXACT, 0));
        engine.publish(63, &grows(0)).await;
        until("a new beginning", || pool.depths(&ids(0..60))[0] == 1).await;
        assert!(state.heard_ms() > 0);
        assert_eq!(pool.said("exact"), 1, "{:?}", pool.said.borrow());
    });
}

#[test]
fn a_lost_message_is_replayed() {
    for old_replay in [false, true] {
        run(async move {
            let pool = Pool::new();
            let engine = Engine::at(0, 0, old_replay).await;
            let state = pool.follow(0, source(&engine, true));
            until("the first replay", || state.mode() == EXACT).await;
            for n in 0..60 {
                match n {
                    57 => engine.keep(n, &grows(n)),
                    _ => engine.publish(n, &grows(n)).await,
                }
            }
            until("all blocks", || pool.depths(&ids(0..60))[0] == 60).await;
            let counted = ["gap", "purge", "restart", "orphan"].map(|name| state.counter(name));
            assert_eq!((counted, state.mode()), ([1, 0, 0, 0], EXACT));
        });
    }
}

#[test]
fn what_nothing_replays_costs_that_replica_until_it_is_known_again() {
    run(async {
        let pool = Pool::new();
        pool.blocks.set(100);
        let other = Engine::start().await;
        let quiet = pool.follow(1, source(&other, false));
        until("a subscription", || other.subscribers() == 1).await;
        other.publish(0, &grows(0)).await;
        let (engine, state) = followed(&pool, 57, false).await;
        engine.publish(58, &grows(58)).await;
        until("a purge", || state.mode() == INCOMPLETE).await;
        assert_eq!(pool.depths(&ids(0..60)), [0, 1, 0]);
        assert_eq!((state.counter("purge"), state.counter("orphan")), (1, 1));
        assert_eq!(quiet.mode(), EXACT);
        assert_eq!(pool.said("0: its prefix index is approximate: its first"), 1);
        // Its own dispatches go on being remembered.
        let mut chain = Vec::new();
        blocks::of_tokens(Root::new(None, None), &ids(0..5), BLOCK as usize, &mut chain);
        pool.index.dispatched(0, &chain, 1);
        assert_eq!(pool.depths(&ids(0..5)), [5, 1, 0]);
        // New sequences fill its cache: nine tenths of its blocks are known again.
        for n in 0..90_u64 {
            let stored = Stored::new(&[1000 + n], 0, u64::from(BLOCK), &ids([5000 + n]));
            engine.publish(59 + n, &batch(vec![stored.event(Form::Map)], 0)).await;
        }
        until("exact again", || state.mode() == EXACT).await;
        for n in [0, 45, 89] {
            assert_eq!(pool.depths(&ids([5000 + n]))[0], 1);
        }
        assert_eq!(pool.said("0: its prefix index is exact: 90 blocks"), 1);
    });
}

#[test]
fn a_replay_that_does_not_reach_back_is_half_of_the_truth() {
    run(async {
        let pool = Pool::new();
        let engine = Engine::start().await;
        // Heard from message 40 on: the sequence's beginning is not known, a new one is.
        (0..50).for_each(|n| engine.keep(n, &grows(n)));
        engine.forget_before(40);
        let other = Stored::new(&[900], 0, u64::from(BLOCK), &ids([900])).event(Form::Map);
        engine.keep(50, &batch(vec![other], 0));
        let state = pool.follow(0, source(&engine, true));
        until("a subscription", || engine.subscribers() == 1).await;
        engine.publish(51, &grows(51)).await;
        until("the message", || state.counter("message") == 12).await;
        assert_eq!((state.mode(), state.live(), state.counter("orphan")), (INCOMPLETE, 1, 11));
        // Whatever it held, it holds nothing now.
        engine.publish(52, &batch(vec![cleared(Form::Map)], 0)).await;
        until("exact", || state.mode() == EXACT).await;
    });
}

#[test]
fn a_late_gateway_is_told_what_is_buffered() {
    run(async {
        let pool = Pool::new();
        let engine = Engine::start().await;
        (0..500).for_each(|n| engine.keep(n, &grows(n)));
        let state = pool.follow(0, source(&engine, true));
        until("all blocks", || pool.depths(&ids(0..500))[0] == 500).await;
        until("exact", || state.mode() == EXACT).await;
        // An engine that has published nothing holds nothing.
        let silent = Engine::start().await;
        let state = pool.follow(1, source(&silent, true));
        until("exact", || state.mode() == EXACT).await;
        assert_eq!(state.counter("message"), 0);
    });
}

#[test]
fn stragglers_and_doubles_are_dropped() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 10, true).await;
        // 10 and 11 change places: 10 is had by a replay, and is late when it comes.
        engine.keep(10, &grows(10));
        engine.publish(11, &grows(11)).await;
        until("both", || pool.depths(&ids(0..12))[0] == 12).await;
        engine.send(10, &grows(10)).await;
        engine.send(11, &grows(11)).await;
        engine.send(4, &drops(3)).await;
        engine.publish(12, &grows(12)).await;
        until("all blocks", || pool.depths(&ids(0..13))[0] == 13).await;
        // 11 itself was replayed with 10.
        assert_eq!((state.counter("stale"), state.counter("gap"), state.live()), (4, 1, 13));
        assert_eq!(state.mode(), EXACT);
    });
}

#[test]
fn a_restart_empties_what_is_known() {
    run(async {
        let pool = Pool::new();
        // Behind a proxy that keeps the connection: the number goes back to 0.
        let (engine, state) = followed(&pool, 30, true).await;
        engine.forget_before(u64::MAX);
        engine.publish(0, &grows(0)).await;
        until("one block", || pool.depths(&ids(0..30))[0] == 1).await;
        assert_eq!((state.counter("restart"), state.mode()), (1, EXACT));
        // The process ends, its port is closed, another takes its place.
        let (port, replay_port) = engine.stop();
        until("no blocks", || pool.depths(&ids(0..30))[0] == 0).await;
        let engine = Engine::at(port, replay_port, false).await;
        until("a subscription", || engine.subscribers() == 1).await;
        (0..3).for_each(|n| engine.keep(n, &grows(n)));
        engine.publish(3, &grows(3)).await;
        until("four blocks", || pool.depths(&ids(0..30))[0] == 4).await;
        assert_eq!((state.counter("restart"), state.mode()), (2, EXACT));
        assert_eq!(state.counter("purge"), 0);
    });
}

#[test]
fn a_quick_new_process_is_told_from_a_lost_connection() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 20, true).await;
        // The connection blinks, the process is the same: nothing is forgotten.
        engine.keep(20, &grows(20));
        engine.cut();
        until("a subscription", || engine.subscribers() == 1).await;
        until("what was missed", || pool.depths(&ids(0..21))[0] == 21).await;
        assert_eq!((state.counter("restart"), state.mode()), (0, EXACT));
        // It blinks again, and behind it is a process that has published more by now.
        engine.forget_before(u64::MAX);
        let root = Stored::new(&[1], 0, u64::from(BLOCK), &ids([700])).event(Form::Map);
        engine.keep(0, &batch(vec![root], 0));
        (1..40).for_each(|n| engine.keep(n, &batch(vec![], 0)));
        engine.cut();
        until("a new process", || state.counter("restart") == 1).await;
        until("its block", || pool.depths(&ids([700]))[0] == 1).await;
        assert_eq!(pool.depths(&ids(0..21))[0], 0);
        until("exact", || state.mode() == EXACT).await;
    });
}

#[test]
fn without_a_replay_a_blink_keeps_and_a_gap_purges() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 20, false).await;
        engine.cut();
        until("a subscription", || engine.subscribers() == 1).await;
        engine.publish(20, &grows(20)).await;
        until("the next block", || pool.depths(&ids(0..21))[0] == 21).await;
        engine.cut();
        until("a subscription", || engine.subscribers() == 1).await;
        engine.publish(22, &grows(22)).await;
        until("a purge", || state.counter("purge") == 1).await;
        assert_eq!(pool.depths(&ids(0..21))[0], 0);
        // Lower numbers on a new connection are of a new process.
        engine.cut();
        until("a subscription", || engine.subscribers() == 1).await;
        engine.publish(0, &grows(0)).await;
        until("a block", || pool.depths(&ids([0]))[0] == 1).await;
        assert_eq!((state.counter("restart"), state.mode()), (1, EXACT));
    });
}

#[test]
fn ranks_are_kept_apart() {
    run(async {
        let pool = Pool::new();
        let engines = [Engine::start().await, Engine::start().await];
        let mut states = Vec::new();
        for (rank, engine) in engines.iter().enumerate() {
            let source = Source { rank: Some(rank as u32), ..source(engine, true) };
            states.push(pool.follow(rank as Slot, source));
            until("a subscription", || engine.subscribers() == 1).await;
        }
        let stored = |n: u64, rank: u64| {
            let stored = Stored::new(&[n + 1], n, u64::from(BLOCK), &ids([n]));
            batch(vec![stored.event(Form::Array)], rank)
        };
        for n in 0..3 {
            engines[0].publish(n, &stored(n, 0)).await;
        }
        engines[1].publish(0, &stored(0, 1)).await;
        until("both", || pool.depths(&ids(0..3)) == [3, 1, 0]).await;
        // What claims to be of another rank is not taken for this one's.
        engines[1].publish(1, &stored(1, 0)).await;
        until("told", || states[1].mode() == Mode::Approximate(Why::OtherRank)).await;
        assert_eq!((pool.depths(&ids(0..3))[0], states[0].mode()), (3, EXACT));
        assert_eq!(states[1].counter("other_rank"), 1);
    });
}

#[test]
fn other_hashes_other_sizes_and_garbage() {
    run(async {
        // Hashes of 32 bytes, as recorded, in blocks of 32.
        let pool = Pool::of(32);
        let engine = Engine::start().await;
        let text = include_str!("data/kv_events/bytes.hex");
        recorded(text).iter().for_each(|(seq, payload)| engine.keep(*seq, payload));
        let state = pool.follow(0, source(&engine, true));
        until("all of it", || state.counter("message") == 12).await;
        until("exact", || state.mode() == EXACT).await;
        assert_eq!((state.live(), pool.index.blocks()), (72, 70));
        // The same in a pool of other blocks: of no use, and said.
        let other = Pool::of(16);
        let state = other.follow(0, source(&engine, true));
        until("told", || state.mode() == Mode::Approximate(Why::BlockSize)).await;
        assert_eq!((state.live(), state.counter("other_size")), (0, 72));
        assert!(other.said("another size") == 1);
        // Learned later, the pool's size is taken up.
        other.block_tokens.set(32);
        until("exact", || state.mode() == EXACT).await;
        assert_eq!(other.index.blocks(), 70);

        let pool = Pool::new();
        let (engine, state) = followed(&pool, 5, true).await;
        for (seq, garbage) in [(5, &b"\xc1"[..]), (6, b""), (7, b"{\"a\": 1}"), (8, &[0x91; 5000])]
        {
            engine.publish(seq, garbage).await;
        }
        let mut frames = Vec::new();
        expedite::zmtp::message(&mut frames, &[b"only one"]);
        engine.raw(&frames).await;
        until("counted", || state.counter("garbage") == 5).await;
        assert_eq!((state.mode(), pool.depths(&ids(0..5))[0]), (INCOMPLETE, 0));
        engine.publish(9, &batch(vec![cleared(Form::Map)], 0)).await;
        until("exact", || state.mode() == EXACT).await;
    });
}

#[test]
fn a_length_that_is_only_claimed_ends_the_connection_not_the_process() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 5, true).await;
        for bits in [36, 46, 62] {
            let disconnects = state.counter("disconnect");
            engine.raw(&[&[2][..], &(1_u64 << bits).to_be_bytes()].concat()).await;
            until("a new connection", || state.counter("disconnect") > disconnects).await;
            engine.cut();
            until("a subscription", || engine.subscribers() == 1).await;
        }
        engine.publish(5, &grows(5)).await;
        until("the next block", || pool.depths(&ids(0..6))[0] == 6).await;
        assert_eq!((state.counter("restart"), state.mode()), (0, EXACT));
    });
}

#[test]
fn a_flood_without_end_stays_within_the_cap_and_starves_nobody() {
    run(async {
        let pool = Pool::new();
        pool.blocks.set(5_000);
        let engine = Engine::start().await;
        let state = pool.follow(0, source(&engine, false));
        until("a subscription", || engine.subscribers() == 1).await;
        let turns = Rc::new(Cell::new(0_u64));
        let turn = Rc::clone(&turns);
        tokio::task::spawn_local(async move {
            loop {
                turn.set(turn.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        // 60,000 blocks stored, none removed, from an engine that has 5,000.
        for message in 0..60_u64 {
            let stored = |n: u64| {
                let key = message * 1000 + n + 1;
                Stored::new(&[key], 0, u64::from(BLOCK), &ids([key])).event(Form::Map)
            };
            engine.send(message, &batch((0..1000).map(stored).collect(), 0)).await;
            assert!(state.live() <= 6_250 && pool.index.blocks() <= 6_250);
        }
        until("all of it", || state.counter("message") == 60).await;
        assert!(state.counter("overflow") > 5 && state.live() <= 6_250);
        assert!(turns.get() > 60, "others had {} turns", turns.get());
    });
}

#[test]
fn wrong_ports_and_absent_engines_are_said_once() {
    run(async {
        let pool = Pool::new();
        let engine = Engine::start().await;
        let wrong = Source { port: engine.replay_port, ..source(&engine, false) };
        let state = pool.follow(0, wrong);
        until("tries", || state.counter("disconnect") > 2).await;
        assert_eq!(pool.said("0: its KV events at 127.0.0.1"), 1);
        assert_eq!(pool.said("is it the right port?"), 1);
        let (port, _) = engine.stop();
        let gone = Source {
            rank: None,
            host: "127.0.0.1".into(),
            port,
            replay_port: None,
            topic: String::new(),
        };
        let state = pool.follow(1, gone);
        until("stale", || state.mode() == Mode::Approximate(Why::Unreachable)).await;
        assert_eq!(pool.said("1: its KV events at"), 1);
        assert_eq!(pool.said("1: its prefix index is approximate: its KV events cannot"), 1);
    });
}

#[test]
fn hits_that_do_not_happen_end_the_exact_mode() {
    run(async {
        let pool = Pool::new();
        let (engine, state) = followed(&pool, 5, true).await;
        let verdicts = (0..64).filter_map(|_| state.check.observe(true, 1000, 0)).count();
        assert_eq!(verdicts, 1);
        engine.publish(5, &grows(5)).await;
        until("told", || state.mode() == Mode::Approximate(Why::Mismatch)).await;
        assert_eq!((pool.depths(&ids(0..5))[0], pool.said("do not agree")), (0, 1));
        // Another process may do better.
        engine.forget_before(u64::MAX);
        engine.publish(0, &grows(0)).await;
        until("exact", || state.mode() == EXACT).await;
        assert!(!state.check.is_mismatched());
    });
}

#[test]
fn another_implementation_of_zeromq_is_understood() {
    use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};
    run(async {
        let message = |frames: &[&[u8]]| {
            let mut message = ZmqMessage::from(frames[0].to_vec());
            frames[1..].iter().for_each(|frame| message.push_back(frame.to_vec().into()));
            message
        };
        let mut publisher = zeromq::PubSocket::new();
        let port = |endpoint: &zeromq::Endpoint| match endpoint {
            zeromq::Endpoint::Tcp(_, port) => *port,
            other => panic!("{other:?}"),
        };
        let events = port(&publisher.bind("tcp://127.0.0.1:0").await.unwrap());
        let mut router = zeromq::RouterSocket::new();
        let replays = port(&router.bind("tcp://127.0.0.1:0").await.unwrap());
        let all = recorded(include_str!("data/kv_events/int.hex"));
        let (early, late) = all.split_at(30);
        let kept = early.to_vec();
        tokio::task::spawn_local(async move {
            while let Ok(asked) = router.recv().await {
                let peer = asked.get(0).unwrap().to_vec();
                assert_eq!((asked.len(), asked.get(1).unwrap().len()), (3, 0));
                let from = u64::from_be_bytes(asked.get(2).unwrap()[..].try_into().unwrap());
                for (seq, payload) in kept.iter().filter(|(seq, _)| *seq >= from) {
                    let frames: [&[u8]; 5] = [&peer, b"", b"kv", &seq.to_be_bytes(), payload];
                    router.send(message(&frames)).await.unwrap();
                }
                router.send(message(&[&peer, b"", b"", &[0xff; 8], b""])).await.unwrap();
            }
        });
        let pool = Pool::of(32);
        let source = Source {
            rank: Some(0),
            host: "localhost".into(),
            port: events,
            replay_port: Some(replays),
            topic: "kv".into(),
        };
        let state = pool.follow(0, source);
        until("the replay", || state.counter("message") == 30 && state.mode() == EXACT).await;
        for (seq, payload) in late {
            publisher.send(message(&[b"kv", &seq.to_be_bytes(), payload])).await.unwrap();
            publisher.send(message(&[b"other", &[9; 8], b"not subscribed to"])).await.unwrap();
        }
        until("all of it", || state.counter("message") == 40).await;
        assert_eq!((state.live(), state.counter("garbage"), state.counter("gap")), (82, 0, 0));
        assert_eq!(pool.index.blocks(), 68);
    });
}
