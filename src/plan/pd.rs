//! Prefill and decode on replicas of their own: what of a prompt's KV must cross the link, and
//! whether the fleet serves more by it, or its later tokens faster.
//!
//! The decoding replica pulls the KV when the prefill is over, so the transfer is added to the time
//! to the first token; what is gained is that no chunk of a prompt lengthens a step of decodes.

use crate::engine::EngineParams;

use super::fluid::{self, Limit, Load, Steady};
use super::scenario::Slo;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Every replica's engine, prefilling or decoding.
    pub engine: EngineParams,
    /// Replicas.
    pub replicas: u32,
    /// KV bytes of a token, all GPUs of a replica together.
    pub kv_token_bytes: f64,
    /// The requests.
    pub load: Load,
    /// The limits.
    pub slo: Slo,
    /// Link of a replica, one direction, in bytes/s.
    pub link_bytes_s: f64,
    /// Share of it that a transfer reaches.
    pub link_share: f64,
    /// Time of a transfer besides its bytes, in ms: the hand-over and its notices.
    pub handover_ms: f64,
}

/// A division of the replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Replicas that prefill; the others decode.
    pub prefill: u32,
    /// Requests a second of all, within the limits.
    pub rps: f64,
    /// What ends it: prefill, decode or link.
    pub limit: &'static str,
    /// Time to the first token at that rate, waiting for a prefill included.
    pub ttft_ms: f64,
    /// Time of a later token at that rate.
    pub tpot_ms: f64,
}

/// Whether it pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The fleet serves more within the limits.
    More,
    /// No more, but later tokens come faster at the same rate.
    Faster,
    /// Neither.
    No,
}

/// By so much more it must be to be worth a second kind of replica.
const WORTH: f64 = 1.05;
/// Nor does a prefill replica run fuller than this: its queue has no end at 1.
const BUSY_MAX: f64 = 0.95;

impl Question {
    /// Bytes that a request moves: the KV of its prompt.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.kv_token_bytes * self.load.prompt_tokens
    }

    /// Time to move them.
    #[must_use]
    pub fn transfer_ms(&self) -> f64 {
        self.handover_ms + self.bytes() / (self.link_bytes_s * self.link_share) * 1e3
    }

    /// Time to compute the prompt on a replica that does nothing else.
    #[must_use]
    pub fn prefill_ms(&self) -> f64 {
        let chunks = self.load.uncached_tokens() / self.engine.step_tokens_max.max(1) as f64;
        fluid::prefill_ms(&self.engine.step, &self.load, 0.0, chunks.ceil())
    }

    /// The longest step that a decode waits for: a whole chunk beside `decodes`.
    #[must_use]
    pub fn longest_step_ms(&self, decodes: f64) -> f64 {
        let chunk = (self.engine.step_tokens_max as f64 - decodes).max(1.0);
        let tokens = self.load.uncached_tokens().min(chunk);
        let hit = 1.0 - tokens / self.load.prompt_tokens.max(1.0);
        let one = Load { hit: hit.max(0.0), ..self.load };
        fluid::prefill_ms(&self.engine.step, &one, decodes, 1.0)
    }

    /// All replicas do both.
    #[must_use]
    pub fn together(&self) -> (Option<Steady>, Limit) {
        fluid::most(&self.engine, &self.load, &self.slo)
    }

    /// The step of replicas that only decode, at a rate each.
    fn decoding(&self, rps: f64) -> Option<Steady> {
        // Everything is there but the last token of the prompt, which is computed again.
        let hit = 1.0 - 1.0 / self.load.prompt_tokens.max(1.0);
        let steady = fluid::steady(&self.engine, &Load { hit, ..self.load }, rps).ok()?;
        // What was pulled is a request's own.
        let tokens = self.load.prompt_tokens + self.load.output_tokens / 2.0;
        let held = (steady.decodes + 1.0) * tokens;
        let room = self.engine.blocks as f64 * self.engine.block_tokens as f64;
        (held <= room && steady.step_ms <= self.slo.tpot_ms).then_some(steady)
    }

    /// The time to the first token with `prefill` replicas at a rate of all; `None` when they are
    /// too busy. Waiting is that of M/D/c (half of Sakasegawa's for M/M/c).
    fn ttft_ms(&self, prefill: u32, rps: f64, step_ms: f64) -> Option<f64> {
        let (servers, own) = (f64::from(prefill), self.prefill_ms());
        let busy = rps * own / 1e3 / servers;
        if busy > BUSY_MAX {
            return None;
        }
        let power = (2.0 * (servers + 1.0)).sqrt() - 1.0;
        let wait = own / 2.0 * busy.powf(power) / (servers * (1.0 - busy));
        let around = super::scenario::Scenario::new();
        let around_ms = (around.gateway_us + 2 * around.network_us) as f64 / 1e3;
        Some(around_ms + wait + own + self.transfer_ms() + 1.5 * step_ms)
    }

    /// The highest rate with `prefill` replicas of all.
    #[must_use]
    pub fn split(&self, prefill: u32) -> Option<Split> {
        let decode = self.replicas.checked_sub(prefill).filter(|&n| n > 0 && prefill > 0)?;
        let of = f64::from;
        let link_rps = self.link_bytes_s * self.link_share / self.bytes().max(1.0);
        let at = |rps: f64| {
            let steady = self.decoding(rps / of(decode)).ok_or("decode")?;
            if rps > link_rps * of(decode.min(prefill)) {
                return Err("link");
            }
            let ttft_ms = self.ttft_ms(prefill, rps, steady.step_ms).ok_or("prefill")?;
            let limit_ms = self.slo.ttft_limit_ms(self.load.prompt_tokens as u64);
            if ttft_ms > limit_ms {
                let alone = self.prefill_ms() + 1.5 * steady.step_ms;
                // Without the transfer it would be in time.
                let ends = if limit_ms > alone + self.transfer_ms() || limit_ms < alone {
                    "prefill"
                } else {
                    "transfer"
                };
                return Err(ends);
            }
            Ok((ttft_ms, steady.step_ms))
        };
        let (mut low, mut high, mut limit) = (1e-6, 1e6, "prefill");
        let mut best = at(low).ok()?;
        for _ in 0..80 {
            let middle = f64::midpoint(low, high);
            match at(middle) {
                Ok(times) => (best, low) = (times, middle),
                Err(why) => (limit, high) = (why, middle),
            }
        }
        Some(Split { prefill, rps: low, limit, ttft_ms: best.0, tpot_ms: best.1 })
    }

    /// Every split.
    #[must_use]
    pub fn splits(&self) -> Vec<Split> {
        (1..self.replicas).filter_map(|prefill| self.split(prefill)).collect()
    }

    /// The split with the highest rate.
    #[must_use]
    pub fn best(&self) -> Option<Split> {
        self.splits().into_iter().max_by(|a, b| a.rps.total_cmp(&b.rps))
    }

    /// Later tokens at the rate of all replicas together: as they are, and with the best split for
    /// them, if one carries that rate.
    #[must_use]
    pub fn tpot_at(&self, rps: f64) -> (Option<f64>, Option<f64>) {
        let each = rps / f64::from(self.replicas.max(1));
        let together = fluid::steady(&self.engine, &self.load, each).ok().map(|s| s.step_ms);
        let carrying = self.splits().into_iter().filter(|split| split.rps >= rps);
        let apart = carrying.filter_map(|split| {
            let decode = self.replicas.checked_sub(split.prefill)?;
            self.decoding(rps / f64::from(decode.max(1))).map(|steady| steady.step_ms)
        });
        (together, apart.min_by(f64::total_cmp))
    }

    /// Whether it pays.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let all = f64::from(self.replicas);
        let together = self.together().0.map_or(0.0, |steady| steady.rps * all);
        let apart = self.best().map_or(0.0, |split| split.rps);
        if apart > together * WORTH {
            return Verdict::More;
        }
        match self.tpot_at(together.min(apart)) {
            (Some(as_is), Some(split)) if as_is > split * WORTH && apart > 0.0 => Verdict::Faster,
            _ => Verdict::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Question {
        Question {
            engine: EngineParams::a100_8b(),
            replicas: 8,
            kv_token_bytes: 131_072.0,
            load: Load { prompt_tokens: 4096.0, output_tokens: 300.0, hit: 0.0 },
            slo: Slo { ttft_ms: 800.0, tpot_ms: 40.0 },
            link_bytes_s: 50e9,
            link_share: 1.0,
            handover_ms: 0.0,
        }
    }

    /// The blueprint's 2 GB: 160 ms at 100 Gbit/s, 40 ms at 400; NVLink 2.2 ms only if the sum of
    /// both directions is taken for one.
    #[test]
    fn two_gigabytes_take_what_the_blueprint_says_but_for_nvlink() {
        let ms = |link_bytes_s| {
            let load = Load { prompt_tokens: 1.0, ..asked().load };
            Question { link_bytes_s, kv_token_bytes: 2e9, load, ..asked() }.transfer_ms()
        };
        let near = |ms: f64, told: f64| (ms - told).abs() < 0.005;
        assert!(near(ms(12.5e9), 160.0) && near(ms(50e9), 40.0));
        assert!(near(ms(900e9), 2.222) && near(ms(450e9), 4.444));
        assert!(ms(900e9) > 2.2);
    }

    #[test]
    fn it_pays_where_later_tokens_are_tight_and_the_link_is_fast() {
        let loose = asked();
        let together = loose.together().0.expect("within").rps * 8.0;
        let best = loose.best().expect("a split");
        assert!(best.rps < together && loose.verdict() == Verdict::No, "{together} {best:?}");
        let tight = Question { slo: Slo { ttft_ms: 800.0, tpot_ms: 15.0 }, ..loose };
        let together = tight.together().0.expect("within").rps * 8.0;
        let best = tight.best().expect("a split");
        assert!(best.rps > together * 1.2 && tight.verdict() == Verdict::More, "{best:?}");
        assert!(best.ttft_ms <= 814.5 && best.tpot_ms <= 15.01);
        // 537 MB at 3 Gbit/s take longer than the first token may.
        let slow = Question { link_bytes_s: 0.375e9, ..tight };
        assert!(slow.transfer_ms() > 1400.0);
        assert_eq!((slow.best(), slow.verdict()), (None, Verdict::No));
    }

    #[test]
    fn cached_prompts_leave_nothing_to_gain() {
        let load = Load { prompt_tokens: 1800.0, output_tokens: 300.0, hit: 0.95 };
        let cached = Question { load, slo: Slo { ttft_ms: 400.0, tpot_ms: 50.0 }, ..asked() };
        assert_ne!(cached.verdict(), Verdict::More, "{:?}", cached.best());
    }

    #[test]
    fn more_prefill_replicas_never_wait_longer() {
        let asked = asked();
        let wait = |n| asked.ttft_ms(n, 5.0, 20.0);
        assert!(wait(3) > wait(4) && wait(4) > wait(6));
        assert_eq!(asked.ttft_ms(1, 100.0, 20.0), None);
        assert_eq!((asked.split(0), asked.split(8)), (None, None));
    }
}
