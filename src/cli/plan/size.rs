//! `plan size`: what fits on a replica's GPUs.

use std::process::ExitCode;

use super::common::{Model, Output};
use crate::plan::size_sheet;

/// What fits on a replica: weights, KV cache, sequences
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite plan size --model llama-3-70b --gpus 8 --weights fp8 --kv-cache fp8 --tokens 8192
  expedite plan size --model llama-3-70b --gpu a100-80g --gpus 2 --tokens 2100 --longest 36000
  expedite plan size --model-config config.json --gpus 4 --json --html size.html

It reckons as vLLM does at start-up, for each GPU: a share of its memory, less weights, less the
peak of a profiled step, divided into blocks. Rules of thumb stand beside it.")]
pub(super) struct Args {
    #[command(flatten)]
    model: Model,
    /// Tokens of a sequence, prompt and answer
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    tokens: u64,
    /// Tokens of the longest request [default: the model's context]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    longest: Option<u64>,
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    let sized = args.model.sized(args.tokens, args.longest);
    let sheet = sized
        .map(|sized| size_sheet::sheet(&sized.question, &sized.shape_source, sized.weights_source));
    args.output.print("plan size", sheet)
}
