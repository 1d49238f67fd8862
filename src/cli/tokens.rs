//! `tokens`: exact tokens and block hashes of texts and request bodies, as the gateway counts them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::Failed;
use crate::config::Config;
use crate::openai::{Call, Endpoint, Prompt, read_call};
use crate::prompt::blocks::Root;
use crate::prompt::model::{Ask, Model, Source, Text};
use crate::prompt::segments::SegmentCache;
use crate::prompt::work::{Terms, Work};
use crate::runtime::clock;

/// Bytes of parts of prompts that are kept from one line to the next.
const CACHE_BYTES: usize = 64 << 20;

/// Count the exact tokens of a text or of a request body
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite tokens --tokenizer tokenizers/qwen3 notes.txt
  expedite tokens --tokenizer tokenizers/qwen3 --chat --json body.json
  expedite tokens --config gateway.toml --pool llama-8b --chat --lines bodies.jsonl

A text is counted as /v1/completions would count it. With --chat the file is a request body: with
`messages` a chat, with `prompt` a completion, with `input` a response. --json prints count, ids
and blocks: the chained hashes of the prompt's full blocks, as the gateway routes by them.")]
pub(super) struct Args {
    /// Folder with tokenizer.json and the chat template, or tekken.json
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    tokenizer: Option<PathBuf>,
    /// A chat template that stands in for the folder's own
    #[arg(long, value_name = "FILE", requires = "tokenizer")]
    chat_template: Option<PathBuf>,
    /// Take the tokenizer of a pool of this file
    #[arg(long, value_name = "FILE", conflicts_with = "tokenizer", requires = "pool")]
    config: Option<PathBuf>,
    /// The pool
    #[arg(long, value_name = "NAME", requires = "config")]
    pool: Option<String>,
    /// The file is a request body in JSON
    #[arg(long)]
    chat: bool,
    /// Each line of the file is a text or body of its own
    #[arg(long)]
    lines: bool,
    /// Do not add the tokenizer's own tokens around a text (BOS, EOS)
    #[arg(long, conflicts_with = "chat")]
    no_special: bool,
    /// Tokens in a block
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,
    /// Tokens of context, for truncate_prompt_tokens -1
    #[arg(long, value_name = "N")]
    context: Option<u64>,
    /// Print a line of JSON for each: count, ids, blocks
    #[arg(long)]
    json: bool,
    /// The file; `-` or nothing is standard input
    file: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let (model, input) = match model(&args).and_then(|model| Ok((model, input(&args)?))) {
        Ok(both) => both,
        Err((code, what)) => {
            eprintln!("expedite: {what}");
            return ExitCode::from(code);
        }
    };
    let mut cache = SegmentCache::new(CACHE_BYTES);
    let (mut out, mut failed) = (String::new(), false);
    let texts: Vec<(usize, &str)> = match args.lines {
        true => lines(&input).collect(),
        false => vec![(1, &input)],
    };
    for (n, text) in texts {
        match counted(&args, &model, text, &mut cache) {
            Ok(counted) => out.push_str(&counted.shown(args.json, args.block_size)),
            Err(what) => {
                failed = true;
                let line = if args.lines { format!("line {n}: ") } else { String::new() };
                eprintln!("expedite: {line}{what}");
                if args.json {
                    out.push_str(&format!("{}\n", json!({ "error": what })));
                }
            }
        }
    }
    let printed = super::print(&out);
    if failed { ExitCode::FAILURE } else { printed }
}

/// The lines of a file that hold anything, each with its number in the file.
fn lines(input: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(input.lines()).filter(|(_, line)| !line.trim().is_empty())
}

fn model(args: &Args) -> Result<Model, Failed> {
    let load = |folder: &Path, template: Option<&Path>| {
        Model::load(folder, template)
            .map_err(|what| (1, format!("cannot load a tokenizer: {what}")))
    };
    if let Some(folder) = &args.tokenizer {
        return load(folder, args.chat_template.as_deref());
    }
    let usage = |what: String| (super::EXIT_USAGE, what);
    let config = Config::load(args.config.as_deref().unwrap_or(Path::new("")));
    let config = config.map_err(|errors| usage(errors.to_string()))?;
    let name = args.pool.as_deref().unwrap_or_default();
    let pool = config.pools.iter().find(|pool| pool.name == name);
    let pool = pool.ok_or_else(|| usage(format!("there is no pool \"{name}\"")))?;
    let folder = pool.tokenizer.as_deref();
    let folder = folder.ok_or_else(|| usage(format!("pool \"{name}\" has no tokenizer")))?;
    load(Path::new(folder), pool.chat_template.as_deref().map(Path::new))
}

fn input(args: &Args) -> Result<String, Failed> {
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let read = match file {
        Some(file) => std::fs::read_to_string(file),
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
    };
    let name = file.map_or("standard input".to_owned(), |file| file.display().to_string());
    read.map_err(|error| (1, format!("cannot read {name}: {error}")))
}

/// What is known of one text or body.
struct Counted {
    count: u64,
    basis: &'static str,
    ids: Vec<Vec<u32>>,
    blocks: Vec<String>,
}

impl Counted {
    fn shown(&self, as_json: bool, block_size: u32) -> String {
        if !as_json {
            let (n, blocks) = (self.count, self.blocks.len());
            return format!("{n} tokens, {blocks} full blocks of {block_size} ({})\n", self.basis);
        }
        let ids = match self.ids.as_slice() {
            [ids] => json!(ids),
            lists => Value::from(lists.to_vec()),
        };
        let fields = json!({
            "count": self.count, "basis": self.basis, "ids": ids, "blocks": self.blocks,
        });
        format!("{fields}\n")
    }
}

fn counted(
    args: &Args,
    model: &Model,
    text: &str,
    cache: &mut SegmentCache,
) -> Result<Counted, String> {
    let call;
    let (endpoint, source) = if args.chat {
        let (endpoint, read) = body(text.as_bytes())?;
        call = read;
        let unix_s = i64::try_from(clock::unix_ms() / 1000).unwrap_or(0);
        let ask = Ask { endpoint, call: &call, body: text.as_bytes(), unix_s };
        (endpoint, model.source(&ask).map_err(|why| why.to_string())?)
    } else {
        call = Call::default();
        let piece = Text { text: text.to_owned(), add_special: !args.no_special, parts: vec![] };
        (Endpoint::Completions, Source::of(piece))
    };
    let blocks = (Root::new(None, None), args.block_size);
    let terms = Terms::new(endpoint, &call, args.context, blocks);
    let mut work = Work::new(Some(model.tokenizer()), source, terms);
    work.rest(cache).map_err(|error| error.to_string())?;
    let (prompt, ids) = work.finish();
    Ok(Counted {
        count: prompt.tokens,
        basis: prompt.basis.name(),
        ids,
        blocks: prompt.hashes.iter().map(|hash| format!("{hash:032x}")).collect(),
    })
}

/// The endpoint that a body is for, by its fields, and what was read of it.
fn body(bytes: &[u8]) -> Result<(Endpoint, Call), String> {
    let read = |endpoint| read_call(endpoint, bytes).map_err(|error| error.to_string());
    let tokenize = read(Endpoint::Tokenize)?;
    let endpoint = match tokenize {
        Call { messages_span: Some(_), .. } => Endpoint::ChatCompletions,
        Call { prompt: Prompt::None, .. } => Endpoint::Responses,
        _ => Endpoint::Completions,
    };
    Ok((endpoint, read(endpoint)?))
}
