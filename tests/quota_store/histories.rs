//! Random histories, reply by reply: gateways that die, clocks that jump an hour, replies that are
//! lost, questions that are asked twice or arrive late.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use expedite::tenants::quota::store::{Message, Reply, Scripts, Who, parse};
use expedite::tenants::quota::{Account, Ask, Limits};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::quota_model::{self, Model};
use super::redis_server::Redis;

const LEASE_MS: u64 = 10_000;
/// What arrives later than this, by a connection that has ended, does not arrive.
const LATE_MS: u64 = 3_000;
const GATEWAYS: usize = 3;
/// Steps over all histories: `EXPEDITE_QUOTA_STEPS` asks for more.
const STEPS: usize = 20_000;
const STEPS_A_HISTORY: usize = 400;

#[derive(Clone, Debug)]
enum Step {
    /// A gateway lets a request start, by the tenant's account or the key's too.
    Reserve {
        gateway: usize,
        tokens: u64,
        sequences: u64,
    },
    /// One whose caller has given it up before it arrives.
    Late {
        tokens: u64,
    },
    /// A request ends; sometimes nobody hears that it did, and it is said again.
    Settle {
        which: usize,
        used: u64,
        unheard: bool,
    },
    Renew {
        gateway: usize,
    },
    /// A gateway wants something ahead, or gives it back.
    Ahead {
        gateway: usize,
        give: u64,
        over: u64,
        debt: u64,
        ask: u64,
        held: u64,
        wanted: u64,
    },
    /// A gateway was not heard, and says it again, however late.
    Unheard {
        gateway: usize,
    },
    /// Something of before arrives once more, by a connection that has ended meanwhile.
    Again {
        back: usize,
    },
    Pass {
        ms: u64,
    },
    /// The clock jumps by so many ms.
    Jump {
        ms: i64,
    },
    Kill {
        gateway: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let gateway = 0..GATEWAYS;
    prop_oneof![
        8 => (gateway.clone(), prop_oneof![0..50_u64, 0..1200_u64], 0..4_u64)
            .prop_map(|(gateway, tokens, sequences)| Step::Reserve { gateway, tokens, sequences }),
        1 => (0..900_u64).prop_map(|tokens| Step::Late { tokens }),
        6 => (any::<usize>(), 0..1500_u64, any::<bool>())
            .prop_map(|(which, used, unheard)| Step::Settle { which, used, unheard }),
        2 => gateway.clone().prop_map(|gateway| Step::Renew { gateway }),
        3 => (gateway.clone(), 0..60_u64, 0..20_u64, 0..200_u64, 0..60_u64, 0..3_u64, 0..9_u64)
            .prop_map(|(gateway, give, over, debt, ask, held, wanted)| {
                Step::Ahead { gateway, give, over, debt, ask, held, wanted }
            }),
        1 => gateway.clone().prop_map(|gateway| Step::Unheard { gateway }),
        3 => (1..6_usize).prop_map(|back| Step::Again { back }),
        6 => (0..4_000_u64).prop_map(|ms| Step::Pass { ms }),
        1 => prop_oneof![-3_600_000..3_600_000_i64, -5_000..5_000_i64]
            .prop_map(|ms| Step::Jump { ms }),
        1 => gateway.prop_map(|gateway| Step::Kill { gateway }),
    ]
}

#[derive(Clone)]
enum Said {
    Reserve(Ask),
    Settle(Ask, u64),
    Renew(Vec<Ask>),
    Ahead(usize, Message),
}

/// What a history has come to, in the model, and what is still to be asked of the server.
struct World<'s> {
    scripts: &'s Scripts,
    who: Arc<Who>,
    model: Model,
    now: u64,
    ids: u128,
    /// Ended by nobody yet: the gateway and the request.
    open: Vec<(usize, Ask)>,
    /// With the time, what a connection that ends may still hold.
    said: Vec<(u64, Said)>,
    numbers: [u64; GATEWAYS],
    last: [Option<Message>; GATEWAYS],
    bytes: Vec<u8>,
    expected: Vec<Vec<u64>>,
}

impl World<'_> {
    fn say(&mut self, said: Said, again: bool) {
        self.scripts.at(self.now);
        let (scripts, who) = (self.scripts, &self.who);
        // The server may have forgotten the scripts: they come by source now and then.
        let by_source = self.expected.len().is_multiple_of(97);
        let (call, expected) = match &said {
            Said::Reserve(ask) => {
                (scripts.reserve(by_source, who, ask), self.model.reserve(self.now, ask))
            }
            Said::Settle(ask, used) => (
                scripts.settle(by_source, who, ask, *used, again),
                self.model.settle(self.now, ask, *used, again),
            ),
            Said::Renew(asks) => {
                (scripts.renew(by_source, who, asks), vec![self.model.renew(self.now, asks)])
            }
            Said::Ahead(gateway, message) => {
                let message = Message { again, ..*message };
                let name = format!("g{gateway}");
                let expected = self.model.advance(self.now, &name, &message);
                (scripts.advance(by_source, who, &name, &message), expected)
            }
        };
        call.write_packed_command(&mut self.bytes);
        self.expected.push(expected);
        if !again {
            self.said.push((self.now, said));
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Reserve { gateway, tokens, sequences } => {
                self.ids += 1;
                let ask = Ask { id: self.ids << 64 | 7, tokens, sequences };
                self.say(Said::Reserve(ask), false);
                if self.expected.last().is_some_and(|reply| reply[0] == 0) {
                    self.open.push((gateway, ask));
                }
            }
            Step::Late { tokens } => {
                self.ids += 1;
                let ask = Ask { id: self.ids << 64, tokens, sequences: 1 };
                self.say(Said::Settle(ask, 0), true);
                self.say(Said::Reserve(ask), true);
            }
            Step::Settle { which, used, unheard } => {
                if self.open.is_empty() {
                    return;
                }
                let (_, ask) = self.open.swap_remove(which % self.open.len());
                self.say(Said::Settle(ask, used), false);
                if unheard {
                    self.say(Said::Settle(ask, used), true);
                }
            }
            Step::Renew { gateway } => {
                let own = self.open.iter().filter(|(owner, _)| *owner == gateway);
                let asks: Vec<_> = own.map(|(_, ask)| *ask).collect();
                if !asks.is_empty() {
                    self.say(Said::Renew(asks), false);
                }
            }
            Step::Ahead { gateway, give, over, debt, ask, held, wanted } => {
                self.numbers[gateway] += 1;
                let number = self.numbers[gateway];
                let (free, least) = (give / 2, ask / 2);
                let again = false;
                let message =
                    Message { number, again, give, over, debt, free, ask, least, held, wanted };
                self.last[gateway] = Some(message);
                self.say(Said::Ahead(gateway, message), false);
            }
            Step::Unheard { gateway } => {
                if let Some(message) = self.last[gateway] {
                    self.say(Said::Ahead(gateway, message), true);
                }
            }
            Step::Again { back } => self.again(back),
            Step::Pass { ms } => {
                self.now += ms;
                self.said.retain(|(at, _)| self.now - at < LATE_MS);
            }
            Step::Jump { ms } => {
                self.now = self.now.saturating_add_signed(ms);
                // What a dead connection still held is long read by then.
                self.said.clear();
            }
            Step::Kill { gateway } => self.open.retain(|(owner, _)| *owner != gateway),
        }
    }

    /// A reservation or renewal that arrives once more after its request was settled with a guard,
    /// as after every connection that ended; an advance only as the last of its gateway.
    fn again(&mut self, back: usize) {
        let Some(at) = self.said.len().checked_sub(back) else { return };
        let (_, said) = self.said[at].clone();
        match &said {
            Said::Reserve(ask) => {
                // Whoever asks again ends with a guard.
                let ask = *ask;
                if self.open.iter().any(|(_, open)| open.id == ask.id) {
                    self.open.retain(|(_, open)| open.id != ask.id);
                    self.say(said.clone(), true);
                    self.say(Said::Settle(ask, 0), true);
                    self.say(said, true);
                }
            }
            Said::Ahead(gateway, message) if message.number == self.numbers[*gateway] => {
                self.say(said, true);
            }
            Said::Settle(..) => self.say(said, true),
            Said::Ahead(..) | Said::Renew(_) => {}
        }
    }

    /// Everybody ends or is dead for long.
    fn rest(&mut self) {
        for (_, ask) in std::mem::take(&mut self.open) {
            self.say(Said::Settle(ask, 1), false);
        }
        self.now += 4_000_000;
        let ask = Ask { id: 1, tokens: 0, sequences: 0 };
        self.say(Said::Reserve(ask), false);
        self.say(Said::Settle(ask, 0), false);
        self.now += LEASE_MS;
        self.model.rests(self.now);
        assert!(self.model.accounts.iter().all(quota_model::Account::at_rest), "{:?}", self.model);
    }

    /// Asks the server all of it and compares every reply.
    fn compare(&mut self, mut wire: &TcpStream) {
        let mut sending = wire.try_clone().expect("socket");
        let bytes = std::mem::take(&mut self.bytes);
        let sent = std::thread::spawn(move || sending.write_all(&bytes));
        let (mut inbox, mut space) = (Vec::new(), [0; 65_536]);
        for (n, expected) in self.expected.drain(..).enumerate() {
            let reply = loop {
                if let Some((reply, length)) = parse(&inbox).expect("a reply") {
                    inbox.drain(..length);
                    break reply;
                }
                let n = wire.read(&mut space).expect("server");
                assert!(n > 0, "the server has closed");
                inbox.extend_from_slice(&space[..n]);
            };
            let numbers: Option<Vec<u64>> = match &reply {
                Reply::Int(n) => Some(vec![*n as u64]),
                Reply::Array(items) => items
                    .iter()
                    .map(|item| if let Reply::Int(n) = item { Some(*n as u64) } else { None })
                    .collect(),
                _ => None,
            };
            assert_eq!(numbers, Some(expected), "reply {n}: {reply:?}");
        }
        sent.join().expect("thread").expect("sent");
    }
}

fn limits(rate: u64, burst: u64, most: u64) -> Limits {
    Limits {
        tokens_per_second: (rate > 0).then_some(rate),
        burst_tokens: (rate > 0).then_some(burst),
        in_flight_max: (most > 0).then_some(most),
    }
}

#[test]
fn every_reply_of_a_random_history_is_the_model_s() {
    let redis = Redis::start();
    let wire = TcpStream::connect(("127.0.0.1", redis.port)).expect("server");
    let scripts = Scripts::new(LEASE_MS);
    let mut loading = redis::Client::open(redis.url()).and_then(|client| client.get_connection());
    let loading = loading.as_mut().expect("server");
    scripts.load().for_each(|load| load.exec(loading).expect("a script"));
    let asked = std::env::var("EXPEDITE_QUOTA_STEPS").ok().and_then(|n| n.parse().ok());
    let cases = (asked.unwrap_or(STEPS) / STEPS_A_HISTORY) as u32;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let histories = std::cell::Cell::new(0);
    let shapes = prop_oneof![
        Just(((50, 1_000, 0), None)),
        Just(((3, 100, 5), None)),
        Just(((0, 0, 4), None)),
        Just(((0, 0, 80), None)),
        Just(((100, 2_000, 12), Some((7, 1_000, 6)))),
        Just(((1_000_000_000, 1_000_000_000_000, 0), Some((0, 0, 3)))),
    ];
    let history = (shapes, proptest::collection::vec(step(), STEPS_A_HISTORY));
    let ran = TestRunner::new(config).run(&history, |((tenant, key), steps)| {
        histories.set(histories.get() + 1);
        let name = format!("t{}{{}}%", histories.get());
        let of = |name: &str, (rate, burst, most)| {
            Arc::new(Account::new(name, limits(rate, burst, most), 0))
        };
        let mut accounts = vec![of(&name, tenant)];
        accounts.extend(key.map(|key| of(&format!("{name}/k"), key)));
        let who = Arc::new(Who::new(&name, &accounts).expect("limits"));
        let model = accounts.iter().map(|a| quota_model::Account::new(a.limits())).collect();
        let mut world = World {
            scripts: &scripts,
            who,
            model: Model { lease_ms: LEASE_MS, accounts: model },
            now: 1_700_000_000_000,
            ids: 0,
            open: vec![],
            said: vec![],
            numbers: [0; GATEWAYS],
            last: [None; GATEWAYS],
            bytes: vec![],
            expected: vec![],
        };
        steps.iter().for_each(|step| world.step(step));
        world.rest();
        world.compare(&wire);
        Ok(())
    });
    ran.expect("every reply is the model's");
}
