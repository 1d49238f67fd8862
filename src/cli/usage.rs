//! `usage sum`: tokens and money over usage logs.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use serde_json::{Map, Value, json};

use super::{EXIT_USAGE, print};
use crate::config::Price;
use crate::usage::sum::{By, Query, Sums, Totals, is_time};

const BLOCK_BYTES: usize = 1 << 20;
/// A line longer than this is no record of ours.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Nothing is drawn before, and then so often.
const QUIET: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);

/// Sums over usage records
#[derive(clap::Args)]
#[command(after_help = "Example:\n  expedite usage sum usage.jsonl* --by tenant,model")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Sum(SumArgs),
}

/// Requests, tokens and money, by tenant, model or else
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite usage sum usage.jsonl* --by tenant,model
  expedite usage sum usage.jsonl --by day,pool --since 2026-01-01 --until 2026-02-01 --json
  zstdcat usage.jsonl.*.zst | expedite usage sum - --by tenant --price prices.toml

Input counts all tokens of prompts, cached those of them that a prefix cache gave. Money is the
records' own cost; with --price it is reckoned anew from a file with a table for each pool,
[pool.NAME] with input, cached and output per million tokens. Lines that are no records are counted
and told. A list of open requests (usage.open.jsonl) may stand among the files: outcome is open.")]
struct SumArgs {
    /// Usage logs, also packed with gzip; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// tenant, key_id, model, pool, adapter, replica, endpoint, outcome, tokens_source, status,
    /// stream, month, day, hour
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tenant,model")]
    by: Vec<String>,
    /// Only records that ended at this time (UTC) or later, such as 2026-01-31T12:00
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only records that ended before
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Prices by pool that stand in for the records' own cost
    #[arg(long, value_name = "FILE")]
    price: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let Command::Sum(args) = args.command;
    let query = match query(&args) {
        Ok(query) => query,
        Err(what) => {
            eprintln!("expedite: {what}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let mut sums = Sums::new(query);
    let mut progress = Progress::over(&args.files);
    for file in &args.files {
        if let Err(error) = read(file, &mut sums, &mut progress) {
            progress.clear();
            eprintln!("expedite: cannot read {}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    progress.clear();
    if !args.json {
        for (n, what) in [
            (sums.foreign, "lines are no usage records and are not counted"),
            (sums.torn, "files end in the middle of a line, which is not counted"),
            (sums.total().unpriced, "records have tokens and no price"),
        ] {
            if n > 0 {
                eprintln!("expedite: {n} {what}");
            }
        }
    }
    print(&if args.json { as_json(&args, &sums) } else { as_table(&args, &sums) })
}

fn query(args: &SumArgs) -> Result<Query, String> {
    let mut by = Vec::new();
    for name in &args.by {
        by.push(By::of_name(name.trim()).ok_or_else(|| {
            let names: Vec<_> = By::names().collect();
            format!("--by {name}: not one of {}", names.join(", "))
        })?);
    }
    let time = |name: &str, text: &Option<String>| match text {
        Some(text) if !is_time(text) => {
            Err(format!("--{name} {text}: no time such as 2026-01-31 or 2026-01-31T12:00:00Z"))
        }
        text => Ok(text.as_ref().map(|text| text.trim_end_matches('Z').to_owned())),
    };
    Ok(Query {
        by,
        since: time("since", &args.since)?,
        until: time("until", &args.until)?,
        prices: args.price.as_deref().map(prices).transpose()?,
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    pool: HashMap<String, PoolPrice>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolPrice {
    input: f64,
    cached: Option<f64>,
    output: f64,
}

fn prices(path: &Path) -> Result<HashMap<String, Price>, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    let file: PriceFile = toml::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
    let mut prices = HashMap::new();
    for (pool, PoolPrice { input, cached, output }) in file.pool {
        let price = Price { input, cached: cached.unwrap_or(input), output };
        if [price.input, price.cached, price.output].iter().any(|p| !p.is_finite() || *p < 0.0) {
            return Err(format!("{name}: a price of pool \"{pool}\" is no amount of money"));
        }
        prices.insert(pool, price);
    }
    Ok(prices)
}

fn read(path: &Path, sums: &mut Sums, progress: &mut Progress) -> io::Result<()> {
    let plain: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path)?),
    };
    let counted = Counted { inner: plain, progress };
    let mut buffered = BufReader::with_capacity(BLOCK_BYTES, counted);
    // Known by its first bytes, whatever its name.
    let packed = io::BufRead::fill_buf(&mut buffered)?.starts_with(&[0x1f, 0x8b]);
    match packed {
        true => feed(MultiGzDecoder::new(buffered), sums),
        false => feed(buffered, sums),
    }
}

fn feed(mut from: impl Read, sums: &mut Sums) -> io::Result<()> {
    let (mut bytes, mut filled) = (vec![0; 2 * BLOCK_BYTES], 0);
    loop {
        if filled == bytes.len() {
            if filled > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            bytes.resize(filled * 2, 0);
        }
        let n = match from.read(&mut bytes[filled..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        filled += n;
        if n == 0 {
            sums.end(&bytes[..filled]);
            return Ok(());
        }
        let done = sums.feed(&bytes[..filled]);
        bytes.copy_within(done..filled, 0);
        filled -= done;
    }
}

/// Counts what was read, and draws it.
struct Counted<'p, R> {
    inner: R,
    progress: &'p mut Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(to)?;
        self.progress.add(n as u64);
        Ok(n)
    }
}

struct Progress {
    begun: Instant,
    drawn: Option<Instant>,
    done: u64,
    /// 0 = not known.
    total: u64,
    shown: bool,
}

impl Progress {
    fn over(files: &[PathBuf]) -> Progress {
        let sizes: Option<Vec<u64>> = files
            .iter()
            .map(|file| Some(std::fs::metadata(file).ok().filter(|of| of.is_file())?.len()))
            .collect();
        let total = sizes.map_or(0, |sizes| sizes.iter().sum());
        let shown = io::stderr().is_terminal();
        Progress { begun: Instant::now(), drawn: None, done: 0, total, shown }
    }

    fn add(&mut self, n: u64) {
        self.done += n;
        let due = self.drawn.is_none_or(|at| at.elapsed() >= REDRAW);
        if !self.shown || !due || self.begun.elapsed() < QUIET {
            return;
        }
        self.drawn = Some(Instant::now());
        let mib = self.done >> 20;
        let _ = match self.total {
            0 => write!(io::stderr(), "\r\x1b[K{mib} MiB read"),
            total => {
                let share = (self.done as f64 / total as f64).min(1.0);
                let bar = "#".repeat((share * 30.0) as usize);
                write!(io::stderr(), "\r\x1b[K[{bar:<30}] {mib} of {} MiB", total >> 20)
            }
        };
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn as_json(args: &SumArgs, sums: &Sums) -> String {
    let group = |names: &[Option<String>], totals: &Totals| {
        let mut fields = Map::new();
        for (name, value) in args.by.iter().zip(names) {
            fields.insert(name.clone(), json!(value));
        }
        for (name, value) in [
            ("requests", json!(totals.requests)),
            ("input_tokens", json!(totals.input_tokens)),
            ("cached_tokens", json!(totals.cached_tokens)),
            ("output_tokens", json!(totals.output_tokens)),
            ("cost", json!(totals.cost.value())),
            ("unpriced", json!(totals.unpriced)),
        ] {
            fields.insert(name.to_owned(), value);
        }
        if args.price.is_some() {
            let [input, cached, output] = totals.parts.map(|part| part.value());
            let parts = json!({ "input": input, "cached": cached, "output": output });
            fields.insert("cost_of".to_owned(), parts);
        }
        Value::Object(fields)
    };
    let groups: Vec<_> = sums.groups().iter().map(|(names, sum)| group(names, sum)).collect();
    let out = json!({
        "groups": groups,
        "total": group(&[], &sums.total()),
        "records": sums.records,
        "foreign_lines": sums.foreign,
        "torn_files": sums.torn,
    });
    format!("{out}\n")
}

fn as_table(args: &SumArgs, sums: &Sums) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut header = args.by.clone();
    header.extend(["requests", "input", "cached", "output", "cost"].map(str::to_owned));
    if args.price.is_some() {
        header.extend(["of input", "of cached", "of output"].map(str::to_owned));
    }
    rows.push(header);
    let figures = |totals: &Totals| {
        let counts =
            [totals.requests, totals.input_tokens, totals.cached_tokens, totals.output_tokens];
        let mut row: Vec<String> = counts.map(|n| n.to_string()).into();
        row.push(format!("{:.6}", totals.cost.value()));
        if args.price.is_some() {
            row.extend(totals.parts.map(|part| format!("{:.6}", part.value())));
        }
        row
    };
    for (names, totals) in sums.groups() {
        let mut row: Vec<String> =
            names.into_iter().map(|name| name.unwrap_or_else(|| "-".to_owned())).collect();
        row.extend(figures(totals));
        rows.push(row);
    }
    let mut total = vec![String::new(); args.by.len()];
    if let Some(first) = total.first_mut() {
        *first = "total".to_owned();
    }
    total.extend(figures(&sums.total()));
    rows.push(total);
    aligned(&rows, args.by.len())
}

/// Columns of one width each; the first `names` to the left, figures to the right.
fn aligned(rows: &[Vec<String>], names: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |n: usize| rows.iter().filter_map(|row| row.get(n)).map(|s| s.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|n| width(n).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let clean: String =
                cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let cell =
                if n < names { format!("{clean:<width$}") } else { format!("{clean:>width$}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
