//! Reads the few series that matter off a replica's metrics page (Prometheus text format 0.0.4).
//! Pure; runs on the control thread.
//!
//! The page is a peer's text: a value that no engine can mean (negative, not a number, 1e18) is
//! left out and counted, since a clamped one would make a liar look idle. vLLM 0.32 names; those
//! of 0.11 where they differ.

use super::signals::{Load, RANKS_MAX};

/// More requests than any engine holds: what is above is no count.
const REQUESTS_MAX: f64 = 1e6;
/// More blocks than any memory holds.
const BLOCKS_MAX: u64 = 1 << 40;

/// How lines begin that may matter: a page has hundreds of others.
const BEGINNINGS: [&[u8]; 9] = [
    b"vllm:num_requests_",
    b"vllm:kv_cache_usage_perc",
    b"vllm:gpu_cache_usage_perc",
    b"vllm:cache_config_info",
    b"vllm:lora_requests_info",
    b"vllm:engine_sleep_state",
    b"vllm:num_preemptions_total",
    b"vllm:prefix_cache_",
    b"process_start_time_seconds",
];

/// What a page tells.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    /// Load of each engine (data-parallel rank) whose gauges are all there and possible.
    pub loads: Vec<(u32, Load)>,
    /// The engines summed; `None` unless every one told its load.
    pub server: Option<Load>,
    /// Engines on the page when they are numbered from 0; 1 otherwise.
    pub ranks: u32,
    /// Values that no engine can mean.
    pub odd: u64,
    /// Tokens in a block.
    pub block_tokens: Option<u32>,
    /// KV blocks of one engine.
    pub blocks: Option<u64>,
    /// `enable_prefix_caching`.
    pub prefix_caching: Option<bool>,
    /// `prefix_caching_hash_algo`.
    pub hash_algorithm: Option<String>,
    /// Adapters that may run at once.
    pub adapter_slots: Option<u32>,
    /// Is any engine put to sleep?
    pub sleeping: Option<bool>,
    /// When the process began, in seconds since 1970.
    pub started_s: Option<f64>,
    /// Requests that lost their blocks to others, over all engines.
    pub preemptions: Option<u64>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: Option<u64>,
    /// Of these found.
    pub prefix_hits: Option<u64>,
}

/// One engine's gauges while the page is read.
#[derive(Default)]
struct Engine {
    rank: u32,
    running: Option<f64>,
    waiting: Option<f64>,
    deferred: Option<f64>,
    kv_usage: Option<f64>,
}

/// One line: `name{labels} value`.
struct Sample<'l> {
    name: &'l str,
    labels: &'l str,
    value: f64,
}

/// Reads a page.
pub(super) fn read(page: &[u8]) -> Told {
    let mut told = Told::default();
    let mut engines: Vec<Engine> = Vec::new();
    let mut rest = page;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let (line, left) = rest.split_at(end);
        rest = left.get(1..).unwrap_or_default();
        if !BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)) {
            continue;
        }
        let Some(sample) = std::str::from_utf8(line).ok().and_then(sample) else {
            continue;
        };
        told.take(&sample);
        gauge(&mut engines, &sample, &mut told.odd);
    }
    let numbered = engines.iter().all(|e| (e.rank as usize) < engines.len());
    told.ranks = if numbered { engines.len() as u32 } else { 1 };
    told.blocks = told.blocks.map(|all| all / u64::from(told.ranks.max(1)));
    let loads = engines.iter().map(|engine| Some((engine.rank, load(engine)?)));
    told.loads = loads.clone().flatten().collect();
    told.server = loads.collect::<Option<Vec<_>>>().and_then(|all| sum(&all));
    told
}

/// The name is the whole one, so that no other family's tail is mistaken for it.
fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_end();
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(rest) => rest.split_at_checked(labels_end(rest)?)?,
    };
    // A timestamp may follow the value.
    let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?;
    Some(Sample { name, labels, value: value.parse().ok()? })
}

/// Where the closing brace is; one within quotes does not close.
fn labels_end(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The raw value of a label. The values looked for hold no escapes.
fn label<'l>(mut labels: &'l str, wanted: &str) -> Option<&'l str> {
    loop {
        let (name, rest) = labels.split_once("=\"")?;
        let mut escaped = false;
        let end = rest.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        let (value, rest) = rest.split_at_checked(end)?;
        if name == wanted {
            return Some(value);
        }
        labels = rest.get(1..)?.trim_start_matches([',', ' ']);
    }
}

/// Adds a gauge to its engine; several served names of one engine are summed.
fn gauge(engines: &mut Vec<Engine>, sample: &Sample<'_>, odd: &mut u64) {
    let (share, most) = match sample.name {
        "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => (true, 1.01),
        "vllm:num_requests_running" | "vllm:num_requests_waiting" => (false, REQUESTS_MAX),
        "vllm:num_requests_waiting_by_reason" => (false, REQUESTS_MAX),
        _ => return,
    };
    let rank = label(sample.labels, "engine").map_or(Some(0), |text| text.parse().ok());
    let Some(rank) = rank else { return };
    let at = engines.iter().position(|engine| engine.rank == rank).unwrap_or_else(|| {
        engines.push(Engine { rank, ..Engine::default() });
        engines.len() - 1
    });
    let crowded = engines.len() > RANKS_MAX * 8;
    let Some(engine) = engines.get_mut(at).filter(|_| !crowded) else { return };
    let slot = match sample.name {
        "vllm:num_requests_running" => &mut engine.running,
        "vllm:num_requests_waiting" => &mut engine.waiting,
        "vllm:num_requests_waiting_by_reason" => match label(sample.labels, "reason") {
            Some("deferred") => &mut engine.deferred,
            _ => return,
        },
        _ => &mut engine.kv_usage,
    };
    // An impossible value stays: the sum with it is impossible too.
    if !(0.0..=most).contains(&sample.value) {
        *odd += 1;
        *slot = Some(f64::NAN);
        return;
    }
    let so_far = slot.unwrap_or(0.0);
    *slot = Some(if share { so_far.max(sample.value.min(1.0)) } else { so_far + sample.value });
}

fn load(engine: &Engine) -> Option<Load> {
    let count = |value: Option<f64>| value.filter(|v| v.is_finite()).map(|v| v as u64);
    let deferred = count(engine.deferred.or(Some(0.0)))?;
    let kv_usage = engine.kv_usage.filter(|v| v.is_finite())?;
    let (running, waiting) = (count(engine.running)?, count(engine.waiting)?);
    Some(Load { running, waiting, deferred, kv_usage })
}

/// Counts add up; of the shares the mean counts, since ranks have equal memories.
fn sum(loads: &[(u32, Load)]) -> Option<Load> {
    let mut all = Load::default();
    for (_, load) in loads {
        all.running += load.running;
        all.waiting += load.waiting;
        all.deferred += load.deferred;
        all.kv_usage += load.kv_usage;
    }
    all.kv_usage /= loads.len() as f64;
    (!loads.is_empty()).then_some(all)
}

impl Told {
    fn take(&mut self, sample: &Sample<'_>) {
        match sample.name {
            "vllm:cache_config_info" => self.cache(sample.labels),
            "vllm:lora_requests_info" => {
                let slots = label(sample.labels, "max_lora").and_then(|text| text.parse().ok());
                self.adapter_slots = slots.or(self.adapter_slots);
            }
            "vllm:engine_sleep_state" => {
                let awake = label(sample.labels, "sleep_state") == Some("awake");
                if awake && (sample.value == 0.0 || sample.value == 1.0) {
                    let asleep = sample.value == 0.0;
                    self.sleeping = Some(self.sleeping.unwrap_or(false) || asleep);
                }
            }
            "process_start_time_seconds" => {
                self.started_s = Some(sample.value).filter(|v| v.is_finite() && *v > 0.0);
            }
            "vllm:num_preemptions_total" => total(&mut self.preemptions, sample.value),
            "vllm:prefix_cache_queries_total" => total(&mut self.prefix_queries, sample.value),
            "vllm:prefix_cache_hits_total" => total(&mut self.prefix_hits, sample.value),
            _ => {}
        }
    }

    /// `num_gpu_blocks` counts all ranks of the server, on the line of each.
    fn cache(&mut self, labels: &str) {
        let number = |name| label(labels, name).and_then(|text| text.parse::<u64>().ok());
        let tokens = number("block_size").and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        self.block_tokens = tokens.or(self.block_tokens);
        let blocks = number("num_gpu_blocks").filter(|n| (1..BLOCKS_MAX).contains(n));
        self.blocks = blocks.or(self.blocks);
        self.prefix_caching = match label(labels, "enable_prefix_caching") {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => self.prefix_caching,
        };
        let algorithm = label(labels, "prefix_caching_hash_algo").filter(|name| name.len() <= 64);
        if let Some(algorithm) = algorithm {
            self.hash_algorithm = Some(algorithm.to_owned());
        }
    }
}

/// Adds to a counter summed over engines; what cannot be a count is left out.
fn total(slot: &mut Option<u64>, value: f64) {
    if (0.0..1e18).contains(&value) {
        *slot = Some(slot.unwrap_or(0).saturating_add(value as u64));
    }
}

#[cfg(test)]
#[path = "exposition_tests.rs"]
mod tests;
