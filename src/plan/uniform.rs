//! Like requests for a sweep over the hit ratio: prompts of one length that begin with one of a
//! few shared texts, answers lognormal, arrivals Poisson. Nothing else differs between two ratios.

use super::random::{Lengths, Zipf, exponential, mix, stream};
use super::workload::{BLOCK_TOKENS, Session, Text, Turn, Workload};

/// Shared texts, popular by Zipf 1: few enough that each replica can hold all of them, many enough
/// that it matters who does.
const TEXTS: u32 = 32;
/// Deviation of the logarithm of an answer's length, as the mix has it.
const OUTPUT_SIGMA: f64 = 0.5;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    /// Everything that is drawn follows from it.
    pub seed: u64,
    /// Requests a second.
    pub rate: f64,
    /// Seconds in which requests come.
    pub seconds: f64,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Mean tokens of an answer.
    pub output_tokens: u32,
    /// Share of the prompt that others begin with too.
    pub shared: f64,
}

impl Uniform {
    /// The requests, each a session of its own.
    #[must_use]
    pub fn workload(&self) -> Workload {
        let mut arrivals = stream(self.seed, 11);
        let texts = Zipf::new(TEXTS);
        let mean = f64::from(self.output_tokens);
        let lengths = Lengths { mean, sigma: OUTPUT_SIGMA, min: 1, max: 16 * self.output_tokens };
        let shared_tokens = f64::from(self.prompt_tokens) * self.shared.clamp(0.0, 1.0);
        let blocks = (shared_tokens / BLOCK_TOKENS as f64) as u32;
        let end_us = (self.seconds * 1e6) as u64;
        let mut sessions = Vec::new();
        let mut at_us = 0.0;
        for index in 0.. {
            at_us += exponential(&mut arrivals) * 1e6 / self.rate;
            if at_us >= self.seconds * 1e6 {
                break;
            }
            let mut rng = stream(self.seed, mix(index) | 1 << 61);
            let key = mix(self.seed ^ u64::from(texts.draw(&mut rng)));
            let output_tokens = lengths.draw(&mut rng);
            let turn = Turn { prompt_tokens: self.prompt_tokens, output_tokens };
            let text = Text::Shared { key, blocks, own: mix(self.seed ^ mix(index)) };
            let start_us = at_us as u64;
            sessions.push(Session { start_us, adapter: 0, tenant: 0, turns: [turn].into(), text });
        }
        Workload { sessions, end_us, think_us: 0, token_us: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_what_was_asked_and_no_more() {
        let of = |shared| {
            let (seed, rate, seconds) = (3, 50.0, 40.0);
            Uniform { seed, rate, seconds, prompt_tokens: 2048, output_tokens: 300, shared }
        };
        let sessions = of(0.75).workload().sessions;
        assert!((1800..2200).contains(&sessions.len()), "{}", sessions.len());
        let turns = sessions.iter().map(|s| f64::from(s.turns[0].output_tokens));
        let mean = turns.sum::<f64>() / sessions.len() as f64;
        assert!((285.0..315.0).contains(&mean), "{mean}");
        let key = |s: &Session| match s.text {
            Text::Shared { key, blocks, .. } => (key, blocks),
            Text::Named { .. } => unreachable!(),
        };
        let alike = |a: &&Session| key(a) == key(&sessions[0]);
        let alike: Vec<_> = sessions.iter().filter(alike).take(2).collect();
        let (a, b) = (alike[0].chain(), alike[1].chain());
        assert_eq!((key(alike[0]).1, &a[..96]), (96, &b[..96]));
        assert!(a[96..128].iter().all(|hash| !b.contains(hash)));
        // The same requests come at the same times, whatever they share.
        let starts = |shared| of(shared).workload().sessions.into_iter().map(|s| s.start_us);
        assert!(starts(0.0).eq(starts(0.75)));
    }
}
