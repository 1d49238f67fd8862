//! Lengths of prompts and answers: one number, or a law that each is drawn by. Plain values.

use std::fmt;
use std::str::FromStr;

use crate::plan::random;

/// No prompt and no answer is longer, in tokens.
pub const TOKENS_MAX: u64 = 4_000_000;

/// A law of lengths, in tokens. Written `836`, `uniform:100-400` or `lognormal:230,0.9`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// All alike.
    Fixed(u64),
    /// From the first to the second, each as often.
    Uniform(u64, u64),
    /// By the median and the standard deviation of the logarithm.
    Lognormal(f64, f64),
}

impl Lengths {
    /// One length, at most [`TOKENS_MAX`].
    pub(super) fn draw(&self, rng: &mut fastrand::Rng) -> u64 {
        match *self {
            Lengths::Fixed(tokens) => tokens.min(TOKENS_MAX),
            Lengths::Uniform(least, most) => rng.u64(least..=most.max(least)).min(TOKENS_MAX),
            Lengths::Lognormal(median, sigma) => {
                let mean = median * (sigma * sigma / 2.0).exp();
                let law = random::Lengths { mean, sigma, min: 1, max: TOKENS_MAX as u32 };
                u64::from(law.draw(rng))
            }
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(tokens) => write!(f, "{tokens}"),
            Lengths::Uniform(least, most) => write!(f, "uniform:{least}-{most}"),
            Lengths::Lognormal(median, sigma) => write!(f, "lognormal:{median},{sigma}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let form = || {
            format!(
                "`{text}`: say a number of tokens up to {TOKENS_MAX}, uniform:LEAST-MOST, or \
                 lognormal:MEDIAN,SIGMA"
            )
        };
        let tokens = |word: &str| word.trim().parse().ok().filter(|n| *n <= TOKENS_MAX);
        let read = match text.split_once(':') {
            None => tokens(text).map(Lengths::Fixed),
            Some(("uniform", law)) => law.split_once('-').and_then(|(least, most)| {
                let (least, most) = (tokens(least)?, tokens(most)?);
                (least <= most).then_some(Lengths::Uniform(least, most))
            }),
            Some(("lognormal", law)) => law.split_once(',').and_then(|(median, sigma)| {
                let number = |word: &str| word.trim().parse::<f64>().ok();
                let median = number(median).filter(|n| (1.0..=TOKENS_MAX as f64).contains(n))?;
                let sigma = number(sigma).filter(|n| (0.0..=5.0).contains(n))?;
                Some(Lengths::Lognormal(median, sigma))
            }),
            Some(_) => None,
        };
        read.ok_or_else(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read_and_told_as_it_was_written() {
        for text in ["836", "0", "uniform:100-400", "lognormal:230,0.9"] {
            assert_eq!(text.parse::<Lengths>().expect("a law").to_string(), text);
        }
        let bad = [
            "",
            "x",
            "-1",
            "5000000",
            "uniform:4-3",
            "uniform:4",
            "lognormal:0,1",
            "lognormal:9",
            "lognormal:9,-1",
            "lognormal:9,nan",
            "normal:9,1",
        ];
        for text in bad {
            assert!(text.parse::<Lengths>().expect_err(text).contains("lognormal:"), "{text}");
        }
    }

    #[test]
    fn lengths_follow_their_law() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut draws = |law: Lengths, expected: f64| {
            let mut draws: Vec<u64> = (0..20_001).map(|_| law.draw(&mut rng)).collect();
            draws.sort_unstable();
            let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
            assert!((mean / expected - 1.0).abs() < 0.05, "{law}: {mean}");
            draws
        };
        assert_eq!(draws(Lengths::Fixed(7), 7.0)[20_000], 7);
        let uniform = draws(Lengths::Uniform(10, 20), 15.0);
        assert_eq!((uniform[0], uniform[20_000]), (10, 20));
        let lognormal = draws(Lengths::Lognormal(200.0, 0.8), 200.0 * 0.32f64.exp());
        assert!((190..210).contains(&lognormal[10_000]), "{}", lognormal[10_000]);
        // One sigma above the median: 84 % are below 200 e^0.8.
        let above = lognormal.iter().filter(|&&n| n as f64 > 200.0 * 0.8f64.exp()).count();
        assert!((0.14..0.18).contains(&(above as f64 / 20_001.0)), "{above}");
    }
}
