//! The workload `mix`: a chat service with many system prompts, few of them popular.
//!
//! | what | law |
//! | --- | --- |
//! | system prompts | 400, popularity by Zipf 1; tokens lognormal, mean 900, sigma 0.85 |
//! | user text of a turn | lognormal, mean 230, sigma 0.9 |
//! | answer | lognormal, sigma 0.5; mean 297 as it comes out |
//! | sessions | 60 % one turn, 40 % three; 12 s between an answer's end and the next turn |
//! | arrivals | sessions are a Poisson process; its rate makes the rate of *requests* as asked |
//!
//! A turn's prompt is the prompt before it, its answer, and new user text.
//!
//! What these laws leave open is set so that, on the mean of seeds, a prompt has 1,736 tokens and
//! a cache without end would spare 79 % of them (`POPULAR_TOKENS`, `COLD_SHARE`). The sigmas are
//! set so that policies of other gateways come out near what another simulator published of them
//! on such traffic: round robin loses its first tokens to long cold prompts at half of the rate
//! that a cache-aware policy carries.
//!
//! A run begins with a busy service and empty caches: of the sessions that began before it those
//! turns are left that still come, so that the rate is the same from the first second to the last.

use fastrand::Rng;

use super::random::{Lengths, Zipf, exponential, mix, stream};
use super::workload::{BLOCK_TOKENS, Session, Text, Turn, Workload};

/// System prompts.
const PROMPTS: u32 = 400;
/// The system prompt that is hot, one of its own.
const HOT: u32 = PROMPTS;
/// Tokens of the system prompts, each counted once.
const SYSTEM: Lengths = Lengths { mean: 900.0, sigma: 0.85, min: 32, max: 6000 };
/// Mean tokens of the system prompts, each counted by its popularity: popular ones are longer.
const POPULAR_TOKENS: f64 = 1252.0;
/// Tokens of a turn's new user text.
const USER: Lengths = Lengths { mean: 230.0, sigma: 0.9, min: 4, max: 4000 };
/// Tokens of an answer.
const OUTPUT: Lengths = Lengths { mean: 295.0, sigma: 0.5, min: 4, max: 2048 };
/// Share of the sessions that have [`TURNS`] turns.
const MULTI_TURN: f64 = 0.4;
const TURNS: usize = 3;
/// Tokens of a prompt that is long and shares nothing.
pub(super) const LONG_TOKENS: u32 = 32_768;
/// Between the end of an answer and the next turn.
const THINK_US: u64 = 12_000_000;
/// What a first token is thought to take where only the start of a later turn is wanted.
const FIRST_US: u64 = 200_000;
/// Sessions begin so long before the run; what is older has ended.
const BEFORE_US: f64 = 120e6;
/// Of the sessions that are under way when the run begins, the share that brings a history, which
/// no replica holds any more; the others begin anew.
const COLD_SHARE: f64 = 0.6;

/// What is asked of the mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Everything that is drawn follows from it.
    pub seed: u64,
    /// Requests a second, later turns included.
    pub rate: f64,
    /// Seconds in which requests come.
    pub seconds: f64,
    /// Share of the sessions that use one and the same system prompt.
    pub hot: f64,
    /// Share of the requests that are long (32,768 tokens) and share nothing.
    pub long: f64,
    /// Adapters, by Zipf 1; each has system prompts of its own. 0 = the base model alone.
    pub adapters: u32,
    /// Tenants with equal shares of the traffic and system prompts of their own; 0 = 1.
    pub tenants: u32,
    /// The first tenant sends so many times its share; the others' requests are the same.
    pub flood: f64,
    /// What a token of an answer is thought to take, in ms, where only the start of a later turn
    /// is wanted: of a session that began before the run, or whose answer did not come.
    pub token_ms: f64,
}

/// What the sessions of a mix have in common.
struct Laws {
    mix: Mix,
    popularity: Zipf,
    adapters: Zipf,
    /// Which of its prompts an adapter is used with.
    hands: Zipf,
    /// Tokens of each system prompt, by rank.
    system: Vec<u32>,
    /// Share of the sessions that are long.
    long: f64,
}

impl Mix {
    /// The sessions.
    #[must_use]
    pub fn workload(&self) -> Workload {
        let laws = Laws::new(*self);
        let mut arrivals = stream(self.seed, 1);
        let end_us = self.seconds * 1e6;
        // Turns of a session in the mean, long ones included.
        let turns = laws.long + (1.0 - laws.long) * mean_turns();
        let gap_us = 1e6 * turns / self.rate;
        let mut sessions = Vec::with_capacity((self.seconds * self.rate / turns * 1.1) as usize);
        let mut at_us = 0.0;
        for index in 0.. {
            at_us += exponential(&mut arrivals) * gap_us;
            if at_us >= end_us {
                break;
            }
            sessions.push(laws.session(index, at_us as u64));
        }
        // Backwards from the beginning, so that what comes in the run does not depend on it.
        let mut before_us = 0.0;
        for index in 0.. {
            before_us += exponential(&mut arrivals) * gap_us;
            if before_us >= BEFORE_US {
                break;
            }
            let session = laws.session(u64::MAX - index, 0);
            let rest = laws.rest(session, before_us as u64, u64::MAX - index);
            sessions.extend(rest.filter(|rest| rest.start_us < end_us as u64));
        }
        self.flood(&laws, gap_us, &mut sessions);
        sessions.sort_by_key(|session| session.start_us);
        let token_us = (self.token_ms * 1e3) as u64;
        Workload { sessions, end_us: end_us as u64, think_us: THINK_US, token_us }
    }
}

impl Mix {
    /// Adds what the first tenant sends beyond its share.
    fn flood(&self, laws: &Laws, gap_us: f64, sessions: &mut Vec<Session>) {
        /// Its sessions are numbered from here.
        const FLOOD: u64 = 1 << 40;
        let (mut arrivals, mut at_us) = (stream(self.seed, 3), 0.0);
        let gap_us = gap_us * f64::from(self.tenants.max(1)) / (self.flood - 1.0);
        for index in FLOOD.. {
            at_us += exponential(&mut arrivals) * gap_us;
            if !(0.0..self.seconds * 1e6).contains(&at_us) {
                return;
            }
            sessions.push(laws.session(index, at_us as u64));
        }
    }

    /// Whose a session is.
    fn tenant(&self, index: u64, own: u64) -> u32 {
        let floods = (1 << 40..1 << 41).contains(&index);
        if floods { 0 } else { (mix(own ^ 0x7e) % u64::from(self.tenants.max(1))) as u32 }
    }

    /// What an answer is thought to take.
    fn answer_us(&self, turn: &Turn) -> u64 {
        FIRST_US + (self.token_ms * 1e3 * f64::from(turn.output_tokens)) as u64
    }
}

fn mean_turns() -> f64 {
    1.0 + MULTI_TURN * (TURNS - 1) as f64
}

impl Laws {
    fn new(mix: Mix) -> Laws {
        let popularity = Zipf::new(PROMPTS);
        let mut rng = stream(mix.seed, 2);
        let mut system: Vec<u32> = (0..PROMPTS).map(|_| SYSTEM.draw(&mut rng)).collect();
        scale(&mut system, SYSTEM.mean);
        lengthen_popular(&mut system, &popularity, &mut rng);
        system.push(POPULAR_TOKENS as u32);
        // So that of all requests the share is as asked: the others' sessions have more turns.
        let long = mix.long * mean_turns() / (1.0 - mix.long + mix.long * mean_turns());
        let hands = Zipf::new(PROMPTS / mix.adapters.clamp(1, PROMPTS));
        Laws { mix, popularity, adapters: Zipf::new(mix.adapters), hands, system, long }
    }

    /// A session as it is drawn; its draws depend on the seed and its number alone.
    fn session(&self, index: u64, start_us: u64) -> Session {
        let mut rng = stream(self.mix.seed, mix(index) | 1 << 63);
        let [long, hot, many] = [rng.f64(), rng.f64(), rng.f64()];
        let mut rank = self.popularity.draw(&mut rng);
        let mut adapter = 0;
        if self.mix.adapters > 0 {
            // The system prompts are dealt to the adapters; more adapters than prompts share them.
            let dealt = self.adapters.draw(&mut rng);
            rank = dealt % PROMPTS + self.mix.adapters * self.hands.draw(&mut rng);
            rank = if rank < PROMPTS { rank } else { dealt % PROMPTS };
            adapter = 1 + dealt;
        }
        let own = mix(self.mix.seed ^ mix(index));
        let tenant = self.mix.tenant(index, own);
        if long < self.long {
            let turn = Turn { prompt_tokens: LONG_TOKENS, output_tokens: OUTPUT.draw(&mut rng) };
            let text = Text::Shared { key: 0, blocks: 0, own };
            return Session { start_us, adapter, tenant, turns: [turn].into(), text };
        }
        if self.mix.tenants > 1 {
            // Neighbours in rank are dealt to different tenants: each has popular ones.
            let first = rank - rank % self.mix.tenants;
            rank = (first + tenant).min(PROMPTS - 1);
        }
        let rank = if hot < self.mix.hot { HOT } else { rank };
        let system = self.system.get(rank as usize).copied().unwrap_or_default();
        let mut prompt_tokens = system;
        let turns = (0..if many < MULTI_TURN { TURNS } else { 1 }).map(|_| {
            prompt_tokens += USER.draw(&mut rng);
            let turn = Turn { prompt_tokens, output_tokens: OUTPUT.draw(&mut rng) };
            prompt_tokens += turn.output_tokens;
            turn
        });
        let turns = turns.collect();
        let key = mix(self.mix.seed ^ mix(u64::from(rank) << 32 | u64::from(adapter)));
        let blocks = system / BLOCK_TOKENS as u32;
        Session { start_us, adapter, tenant, turns, text: Text::Shared { key, blocks, own } }
    }

    /// What is left in the run of a session that began `before_us` ahead of it.
    fn rest(&self, session: Session, before_us: u64, index: u64) -> Option<Session> {
        let (mut at_us, mut gone) = (0, 0);
        for turn in &session.turns {
            if at_us >= before_us {
                break;
            }
            at_us += self.mix.answer_us(turn) + THINK_US;
            gone += 1;
        }
        let start_us = at_us.checked_sub(before_us)?;
        let turns = session.turns.get(gone..).filter(|left| !left.is_empty())?;
        let cold = stream(self.mix.seed, mix(index) | 1 << 62).f64() < COLD_SHARE;
        let anew = session.turns.get(..turns.len()).unwrap_or_default();
        let turns = if cold { turns } else { anew }.into();
        Some(Session { start_us, turns, ..session })
    }
}

/// Scales lengths to a mean.
fn scale(lengths: &mut [u32], mean: f64) {
    let sum: f64 = lengths.iter().map(|&n| f64::from(n)).sum();
    let by = mean * lengths.len() as f64 / sum.max(1.0);
    lengths.iter_mut().for_each(|n| *n = (f64::from(*n) * by).round() as u32);
}

/// Exchanges lengths at random, the longer to the more popular, until the mean by popularity is
/// [`POPULAR_TOKENS`] (or the shorter, where chance made it longer already).
fn lengthen_popular(lengths: &mut [u32], popularity: &Zipf, rng: &mut Rng) {
    let share = |rank: usize| popularity.share(rank);
    let mut mean: f64 = lengths.iter().enumerate().map(|(i, &n)| share(i) * f64::from(n)).sum();
    for _ in 0..20_000 {
        let (a, b) = (rng.usize(..lengths.len()), rng.usize(..lengths.len()));
        let [Some(&long), Some(&short)] = [lengths.get(a), lengths.get(b)] else { return };
        let change = (share(a) - share(b)) * (f64::from(short) - f64::from(long));
        if (mean + change - POPULAR_TOKENS).abs() < (mean - POPULAR_TOKENS).abs() {
            lengths.swap(a, b);
            mean += change;
        }
        if (mean - POPULAR_TOKENS).abs() < 1.0 {
            return;
        }
    }
}

#[cfg(test)]
#[path = "mix_tests.rs"]
mod tests;
