//! What `plan replay` may change of a profiled engine: the settings that an operator chooses.

use crate::engine::EngineParams;
use crate::plan::workload::BLOCK_TOKENS;

/// Settings of each replica's engine
#[derive(clap::Args)]
#[command(next_help_heading = "Settings of the engines")]
pub(super) struct Knobs {
    /// Tokens of a step (max_num_batched_tokens) [default: 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    batch_tokens: Option<u64>,
    /// Sequences that run (max_num_seqs) [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    sequences_max: Option<u64>,
    /// Tokens of a KV block, a multiple of 16 [default: 16]
    #[arg(long, value_name = "TOKENS", value_parser = block_size)]
    block_size: Option<u64>,
    /// KV blocks of a replica [default: as many as the profile's memory holds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    blocks: Option<u64>,
    /// Share of a replica's KV blocks that stays free where others run (`serve` keeps 0.15)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = headroom)]
    pub(super) headroom: f64,
}

impl Knobs {
    /// The engine with these settings.
    pub(super) fn of(&self, profile: EngineParams) -> EngineParams {
        let block_tokens = self.block_size.unwrap_or(profile.block_tokens).max(1);
        let room = profile.blocks.saturating_mul(profile.block_tokens);
        EngineParams {
            blocks: self.blocks.unwrap_or(room / block_tokens),
            block_tokens,
            step_tokens_max: self.batch_tokens.unwrap_or(profile.step_tokens_max),
            sequences_max: self.sequences_max.unwrap_or(profile.sequences_max),
            ..profile
        }
    }
}

fn block_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("must be a multiple of {BLOCK_TOKENS} between {BLOCK_TOKENS} and 4096");
    let size = text.parse().ok().filter(|n: &u64| (BLOCK_TOKENS..=4096).contains(n));
    size.filter(|n| n.is_multiple_of(BLOCK_TOKENS)).ok_or_else(wrong)
}

fn headroom(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=0.9).contains(n));
    number.ok_or("must be a share from 0 to 0.9")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_blocks_are_fewer_in_the_same_memory() {
        let knobs = Knobs {
            batch_tokens: None,
            sequences_max: Some(64),
            block_size: Some(64),
            blocks: None,
            headroom: 0.0,
        };
        let engine = knobs.of(EngineParams::a100_8b());
        assert_eq!((engine.block_tokens, engine.blocks), (64, 27_900 / 4));
        assert_eq!((engine.step_tokens_max, engine.sequences_max), (2048, 64));
        let told = Knobs { blocks: Some(100), ..knobs };
        assert_eq!(told.of(EngineParams::a100_8b()).blocks, 100);
        for bad in ["0", "8", "24", "8192", "x"] {
            assert!(block_size(bad).is_err(), "{bad}");
        }
        assert_eq!(block_size("48"), Ok(48));
        assert!(headroom("0.95").is_err() && headroom("nan").is_err());
    }
}
