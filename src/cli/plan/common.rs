//! What the calculators of `expedite plan` share: the model and its GPUs, how a sheet is printed,
//! numbers from argv.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use super::super::{EXIT_USAGE, print};
use crate::engine::EngineParams;
use crate::plan::gpus::{GPUS, Gpu};
use crate::plan::page;
use crate::plan::presets::{PRESETS, Preset};
use crate::plan::roofline;
use crate::plan::shapes::Shape;
use crate::plan::sheet::Sheet;
use crate::plan::size::{GIB, Question, WeightType};

/// How it is printed
#[derive(clap::Args)]
pub(super) struct Output {
    /// One JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Write it as one HTML page too
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Largest `config.json` that is read.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

impl Output {
    /// Prints a sheet, or says why there is none.
    pub(super) fn print(&self, command: &str, sheet: Result<Sheet, String>) -> ExitCode {
        let sheet = match sheet {
            Ok(sheet) => sheet,
            Err(error) => {
                eprintln!("expedite {command}: {error}");
                return ExitCode::from(EXIT_USAGE);
            }
        };
        if let Some(path) = &self.html
            && let Err(error) = std::fs::write(path, page::page(&sheet))
        {
            eprintln!("expedite {command}: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        if self.json { print(&format!("{}\n", sheet.json())) } else { print(&sheet.text()) }
    }
}

/// A model and the GPUs of a replica
#[derive(clap::Args)]
pub(super) struct Model {
    /// A model by name: llama-3-8b, llama-3-70b, llama-3.1-8b, llama-3.1-70b, llama-3.1-405b,
    /// mistral-large, mixtral-8x7b, qwen3-8b, qwen3-32b, qwen3-30b-a3b, gpt-oss-120b, deepseek-r1
    #[arg(long, value_name = "NAME", value_parser = preset, group = "named_model")]
    pub(super) model: Option<&'static Preset>,
    /// The `config.json` of any other
    #[arg(long, value_name = "FILE", group = "named_model")]
    pub(super) model_config: Option<PathBuf>,
    /// a100-80g, h100-80g, h200-141g or l40s-48g
    #[arg(long, requires = "named_model", value_name = "NAME",
        value_parser = gpu, default_value = "h100-80g")]
    pub(super) gpu: &'static Gpu,
    /// Memory of a GPU as an engine sees it [default: the GPU's]
    #[arg(long, requires = "named_model", value_name = "GIB", value_parser = positive)]
    pub(super) gpu_gib: Option<f64>,
    /// GPUs of a replica (tensor parallelism)
    #[arg(long, requires = "named_model", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(super) gpus: u64,
    /// How weights are kept [default: as the config says, else fp16]
    #[arg(long, requires = "named_model", value_enum)]
    pub(super) weights: Option<Weights>,
    /// How the KV cache is kept
    #[arg(long, requires = "named_model", value_enum, default_value = "fp16")]
    pub(super) kv_cache: KvCache,
    /// Share of a GPU's memory that the engine takes (--gpu-memory-utilization)
    #[arg(long, requires = "named_model", default_value_t = 0.9, value_parser = utilization)]
    pub(super) utilization: f64,
    /// Tokens of a KV block
    #[arg(long, requires = "named_model", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) block_tokens: u64,
    /// Sequences that the engine runs (max_num_seqs) [default: vLLM's on this GPU]
    #[arg(long, requires = "named_model", value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(super) sequences_max: Option<u64>,
    /// Tokens of a step (max_num_batched_tokens) [default: vLLM's on this GPU]
    #[arg(long, requires = "named_model", value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) step_tokens: Option<u64>,
    /// Memory of a GPU for activations and all else [default: estimated]
    #[arg(long, requires = "named_model", value_name = "GIB", value_parser = not_negative)]
    pub(super) reserve_gib: Option<f64>,
}

/// A model on GPUs, and where its figures are from.
pub(super) struct Sized {
    pub(super) question: Question,
    pub(super) shape_source: String,
    pub(super) weights_source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Weights {
    #[value(alias = "bf16")]
    Fp16,
    #[value(alias = "int8")]
    Fp8,
    Int4,
    Mxfp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KvCache {
    #[value(alias = "auto", alias = "bf16")]
    Fp16,
    Fp8,
}

/// An engine whose figures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Profile {
    #[value(name = "a100-8b")]
    Small,
    #[value(name = "a100-70b-tp2")]
    Large,
}

impl Model {
    /// Whether a model was named at all.
    pub(super) fn is_given(&self) -> bool {
        self.model.is_some() || self.model_config.is_some()
    }

    /// The model on its GPUs, asked for sequences of `tokens`; the longest request has as many as
    /// the model's context unless it is told.
    pub(super) fn sized(&self, tokens: u64, longest: Option<u64>) -> Result<Sized, String> {
        let (shape, billions, shape_source) = self.shape()?;
        let (weights, weights_source) = self.weight_type(&shape)?;
        let mut gpu = self.gpu.clone();
        if let Some(gib) = self.gpu_gib {
            gpu.visible_bytes = gib * GIB;
        }
        let context = if shape.context_tokens_max > 0 { shape.context_tokens_max } else { tokens };
        let question = Question {
            billions,
            gpus: self.gpus,
            weights,
            kv_bytes: if self.kv_cache == KvCache::Fp8 { 1.0 } else { 2.0 },
            tokens,
            longest_tokens: longest.unwrap_or(context),
            utilization: self.utilization,
            block_tokens: self.block_tokens,
            sequences_max: self.sequences_max.unwrap_or(gpu.sequences_default),
            step_tokens_max: self.step_tokens.unwrap_or(gpu.step_tokens_default),
            reserve_bytes: self.reserve_gib.map(|gib| gib * GIB),
            gpu,
            shape,
        };
        Ok(Sized { question, shape_source, weights_source })
    }

    fn shape(&self) -> Result<(Shape, f64, String), String> {
        if let Some(preset) = self.model {
            let source = format!("config.json of {}", preset.source);
            return Ok((preset.shape()?, preset.nominal_billions, source));
        }
        let Some(path) = &self.model_config else {
            return Err("say --model NAME or --model-config FILE".to_owned());
        };
        let told = |error: String| format!("{}: {error}", path.display());
        let text = read(path).map_err(told)?;
        let name = path.display().to_string();
        let shape = Shape::parse(&name, &text).map_err(told)?;
        let billions = shape.parameters.total() / 1e9;
        Ok((shape, billions, "counted from its shape, as models of Llama's family have it".into()))
    }

    fn weight_type(&self, shape: &Shape) -> Result<(WeightType, &'static str), String> {
        if let Some(weights) = self.weights {
            let weights = match weights {
                Weights::Fp16 => WeightType::Bits16,
                Weights::Fp8 => WeightType::Bits8,
                Weights::Int4 => WeightType::Bits4,
                Weights::Mxfp4 => WeightType::Mxfp4,
            };
            return Ok((weights, "--weights"));
        }
        let source = "quantization_config of the model";
        match shape.quantization.as_deref() {
            None => Ok((WeightType::Bits16, "the model is not quantized")),
            Some("fp8") => Ok((WeightType::Bits8, source)),
            Some("awq" | "gptq") => Ok((WeightType::Bits4, source)),
            Some("mxfp4") => Ok((WeightType::Mxfp4, source)),
            Some(other) => Err(format!("quantization `{other}`: say how with --weights")),
        }
    }

    /// An engine: the profile, or the model's by its roofline. With its name, its source, the GPUs
    /// of a replica, the KV bytes of a token in all of them and where those are from.
    pub(super) fn engine(&self, profile: Profile) -> Result<Engine, String> {
        if !self.is_given() {
            let (params, gpus, kv, name) = match profile {
                Profile::Small => (EngineParams::a100_8b(), 1, 131_072.0, "a100-8b"),
                Profile::Large => (EngineParams::a100_70b_tp2(), 2, 327_680.0, "a100-70b-tp2"),
            };
            let source = "profiled: vidur, BLIS (StepModel)".to_owned();
            let kv_source = "the model's shape, 16 bits".to_owned();
            let name = name.to_owned();
            return Ok(Engine { params, name, source, gpus, kv_token_bytes: kv, kv_source });
        }
        let sized = self.sized(1, None)?;
        let asked = &sized.question;
        let params = roofline::engine(asked);
        if params.blocks == 0 {
            return Err(format!(
                "{} does not fit on {} x {}: see `expedite plan size`",
                asked.shape.name, asked.gpus, asked.gpu.name
            ));
        }
        let shape = &asked.shape;
        Ok(Engine {
            params,
            name: format!(
                "{} ({}) on {} x {}",
                shape.name,
                asked.weights.name(),
                asked.gpus,
                asked.gpu.name
            ),
            source: "roofline of shape and data sheet: an estimate".to_owned(),
            gpus: asked.gpus,
            kv_token_bytes: shape.kv_elements_a_layer() * shape.layers as f64 * asked.kv_bytes,
            kv_source: shape.attention_words(),
        })
    }
}

/// An engine and what is said of it.
pub(super) struct Engine {
    pub(super) params: EngineParams,
    pub(super) name: String,
    pub(super) source: String,
    pub(super) gpus: u64,
    pub(super) kv_token_bytes: f64,
    pub(super) kv_source: String,
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > CONFIG_BYTES_MAX {
        return Err(format!("{bytes} bytes: is this a config.json?"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

fn preset(name: &str) -> Result<&'static Preset, String> {
    let known = || PRESETS.map(|preset| preset.name).join(" ");
    Preset::of_name(name).ok_or_else(|| format!("is none of: {}; or --model-config", known()))
}

fn gpu(name: &str) -> Result<&'static Gpu, String> {
    let known = || GPUS.each_ref().map(|gpu| gpu.name).join(" ");
    Gpu::of_name(name).ok_or_else(|| format!("is none of: {}", known()))
}

/// A finite number of some size; the value must be within.
fn within(text: &str, fits: impl Fn(f64) -> bool, what: &'static str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|n: &f64| n.is_finite() && fits(*n)).ok_or(what)
}

pub(super) fn positive(text: &str) -> Result<f64, &'static str> {
    within(text, |n| n > 0.0 && n < 1e15, "must be a number above 0")
}

pub(super) fn not_negative(text: &str) -> Result<f64, &'static str> {
    within(text, |n| (0.0..1e15).contains(&n), "must be a number, 0 or above")
}

pub(super) fn share(text: &str) -> Result<f64, &'static str> {
    within(text, |n| (0.0..=1.0).contains(&n), "must be a share between 0 and 1")
}

fn utilization(text: &str) -> Result<f64, &'static str> {
    within(text, |n| n > 0.0 && n <= 1.0, "must be above 0 and at most 1")
}

/// A share below 1, as of a prompt that is cached.
pub(super) fn hit(text: &str) -> Result<f64, &'static str> {
    within(text, |n| (0.0..1.0).contains(&n), "must be a share below 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_model_and_gpu() {
        let command = <Model as clap::Args>::augment_args(clap::Command::new("x"));
        let help = command.clone().render_long_help().to_string();
        let words = help.split(|c: char| c.is_whitespace() || c == ',').collect::<Vec<_>>();
        let names = PRESETS.iter().map(|preset| preset.name).chain(GPUS.iter().map(|gpu| gpu.name));
        for name in names {
            assert!(words.contains(&name), "{name}: {help}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for bad in ["nan", "inf", "-1", "0", "1e300", "x", ""] {
            assert!(positive(bad).is_err(), "{bad}");
        }
        assert_eq!((not_negative("0"), utilization("1")), (Ok(0.0), Ok(1.0)));
        assert!(utilization("1.01").is_err() && utilization("0").is_err());
        assert!(hit("1").is_err() && share("1").is_ok() && hit("0.9").is_ok());
    }
}
