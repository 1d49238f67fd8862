//! `bench diff`: two results of `bench --json` side by side.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::super::{EXIT_USAGE, print};
use crate::bench::diff::{self, Diff};

/// Compare two results: ratios with their spread
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite bench diff before.json after.json
  expedite bench diff a1.json,a2.json,a3.json b1.json,b2.json,b3.json")]
pub(super) struct Args {
    /// Results of `expedite bench --json`; several runs of one side with commas between
    #[arg(value_name = "A.json[,...]")]
    a: String,
    /// The other side
    #[arg(value_name = "B.json[,...]")]
    b: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. Whatever the ratios are, it has done its work.
pub(super) fn run(args: &Args) -> ExitCode {
    let sides = read(&args.a).and_then(|a| Ok((a, read(&args.b)?)));
    let (a, b) = match sides {
        Ok(sides) => sides,
        Err(error) => {
            eprintln!("expedite bench diff: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let diff = Diff::of(&a, &b);
    if args.json {
        return print(&format!("{:#}\n", diff.json()));
    }
    print(&diff.table([&args.a, &args.b]))
}

fn read(names: &str) -> Result<Vec<Value>, String> {
    let one = |name: &str| {
        let told = |error: String| format!("{name}: {error}");
        let text = std::fs::read_to_string(Path::new(name)).map_err(|e| told(e.to_string()))?;
        diff::read(&text).map_err(told)
    };
    let named: Vec<_> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if named.is_empty() {
        return Err(format!("no file is named in \"{names}\""));
    }
    named.into_iter().map(one).collect()
}
