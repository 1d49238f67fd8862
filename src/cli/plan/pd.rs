//! `plan pd`: whether prefill and decode on replicas of their own pay.

use std::process::ExitCode;

use super::common::{Model, Output, Profile, hit, not_negative, positive, share};
use crate::plan::Slo;
use crate::plan::fluid::Load;
use crate::plan::pd::Question;
use crate::plan::pd_sheet;
use crate::plan::sheet::Sheet;

/// When prefill and decode apart pay: KV bytes over the link against the time of the prefill
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite plan pd --prompt-tokens 4096 --link-gbit 400 --slo-ttft-ms 800 --slo-tpot-ms 15
  expedite plan pd --engine a100-70b-tp2 --link-gbit 100 --slo-ttft-ms 2000 --slo-tpot-ms 100
  expedite plan pd --model llama-3.1-70b --gpus 4 --weights fp8 --replicas 16 --html pd.html

Replicas are of one kind. Without --model the engine is one that was profiled.")]
pub(super) struct Args {
    /// A profiled engine
    #[arg(long, value_enum, default_value = "a100-8b",
        conflicts_with_all = ["model", "model_config"])]
    engine: Profile,
    #[command(flatten)]
    model: Model,
    /// Replicas, to be divided
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=512))]
    replicas: u32,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    prompt_tokens: u32,
    /// Tokens of an answer
    #[arg(long, default_value_t = 300,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    output_tokens: u32,
    /// Share of a prompt that is cached where it is prefilled
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = hit)]
    hit: f64,
    /// Link of a replica in one direction
    #[arg(long, value_name = "GBIT", default_value_t = 400.0, value_parser = positive)]
    link_gbit: f64,
    /// Share of the link that a transfer reaches
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    link_share: f64,
    /// Time of a transfer besides its bytes
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = not_negative)]
    handover_ms: f64,
    /// Limit on the time to the first token
    #[arg(long, value_name = "MS", default_value_t = 400.0, value_parser = positive)]
    slo_ttft_ms: f64,
    /// Limit on the mean time of the tokens after it
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    slo_tpot_ms: f64,
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    args.output.print("plan pd", sheet(args))
}

fn sheet(args: &Args) -> Result<Sheet, String> {
    if args.link_share <= 0.0 {
        return Err("--link-share 0: nothing crosses such a link".to_owned());
    }
    let engine = args.model.engine(args.engine)?;
    let asked = Question {
        engine: engine.params,
        replicas: args.replicas,
        kv_token_bytes: engine.kv_token_bytes,
        load: Load {
            prompt_tokens: f64::from(args.prompt_tokens),
            output_tokens: f64::from(args.output_tokens),
            hit: args.hit,
        },
        slo: Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms },
        link_bytes_s: args.link_gbit * 1e9 / 8.0,
        link_share: args.link_share,
        handover_ms: args.handover_ms,
    };
    Ok(pd_sheet::sheet(&asked, (&engine.name, &engine.source, &engine.kv_source)))
}
