//! `plan cost`: a fleet of one's own against an API.

use std::process::ExitCode;

use super::common::{Output, not_negative, positive, share};
use crate::plan::cost::Question;
use crate::plan::cost_sheet;
use crate::plan::documents;
use crate::plan::sheet::Sheet;

/// Dollars a million tokens, self-hosted against an API; where they meet; month by month
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite plan cost --tokens-day 500e6 --gpu-hour 2.5 --gpus 8 --replica-tps 4000 --peak 2
  expedite plan cost --tokens-day 100e6 --gpu-hour 4.55 --gpus 8 --replicas 1
  expedite plan cost --documents

Prices of the API are GPT-4o's unless told. --replica-tps is what a replica makes within your
limits: ask `plan capacity`, better `bench`.")]
pub(super) struct Args {
    /// What two published design sketches say of money, reckoned anew
    #[arg(long, conflicts_with_all = ["tokens_day", "gpu_hour"])]
    documents: bool,
    /// Prompt and answer tokens of a mean day
    #[arg(long, value_name = "N", value_parser = positive, required_unless_present = "documents")]
    tokens_day: Option<f64>,
    /// Share of them that are answers
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, value_parser = share)]
    output_share: f64,
    /// The API's price of a million prompt tokens
    #[arg(long, value_name = "DOLLARS", default_value_t = 2.5, value_parser = not_negative)]
    api_input: f64,
    /// The API's price of a million answer tokens
    #[arg(long, value_name = "DOLLARS", default_value_t = 10.0, value_parser = not_negative)]
    api_output: f64,
    /// Price of a GPU for an hour
    #[arg(long, value_name = "DOLLARS", value_parser = positive,
        required_unless_present = "documents")]
    gpu_hour: Option<f64>,
    /// GPUs of a replica
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    gpus: u32,
    /// Output tokens a second that a replica makes within the limits
    #[arg(long, value_name = "RATE", value_parser = positive)]
    replica_tps: Option<f64>,
    /// Replicas [default: as many as the peak takes, and the spare ones]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: Option<u32>,
    /// Replicas more than the peak takes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    spare: u32,
    /// Rate at the peak over the mean
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    peak: f64,
    /// People, network, storage: dollars a month
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.0, value_parser = not_negative)]
    other_month: f64,
    /// Dollars once
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.0, value_parser = not_negative)]
    setup: f64,
    /// Growth of the volume a month: 0.1 = 10 %
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, allow_negative_numbers = true)]
    growth: f64,
    /// Months looked at
    #[arg(long, default_value_t = 12)]
    months: u32,
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    args.output.print("plan cost", sheet(args))
}

fn sheet(args: &Args) -> Result<Sheet, String> {
    if args.documents {
        return Ok(documents::sheet());
    }
    let asked = Question {
        tokens_day: args.tokens_day.unwrap_or(0.0),
        output_share: args.output_share,
        api_input: args.api_input,
        api_output: args.api_output,
        gpu_hour: args.gpu_hour.unwrap_or(0.0),
        gpus_a_replica: f64::from(args.gpus),
        replica_tps: args.replica_tps,
        replicas: args.replicas.map(f64::from),
        spare: f64::from(args.spare),
        peak: args.peak,
        other_month: args.other_month,
        setup: args.setup,
        growth: args.growth,
        months: args.months,
    };
    asked.check()?;
    Ok(cost_sheet::sheet(&asked))
}
