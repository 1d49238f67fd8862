//! `/metrics` of a replica: the series of vLLM 0.32 that a gateway reads, by their own names and
//! labels. Made anew for each scrape from the replica's counters.

use std::fmt::Write;

use super::date;
use super::replica::Replica;

/// Appends the text.
pub(super) fn write(replica: &Replica, out: &mut Vec<u8>) {
    let mut text = String::with_capacity(4096);
    let labels = format!("engine=\"0\",model_name=\"{}\"", replica.config.model);
    let mut page = Page { text: &mut text, labels };
    gauges(replica, &mut page);
    counters(replica, &mut page);
    infos(replica, &mut page);
    out.extend_from_slice(text.as_bytes());
}

struct Page<'t> {
    text: &'t mut String,
    labels: String,
}

impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: &str) {
        let _ = writeln!(self.text, "vllm:{name}{{{}{more}}} {value}", self.labels);
    }

    fn counter(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        self.family(name, "counter", help);
        for (more, value) in samples {
            self.sample(name, more, &format!("{:?}", *value as f64));
        }
    }
}

fn gauges(replica: &Replica, page: &mut Page<'_>) {
    let (running, waiting, usage) = replica.load();
    let lie = replica.lie();
    let say = |value: f64| lie.clone().unwrap_or_else(|| format!("{value:?}"));
    page.family("num_requests_running", "gauge", "Number of requests in model execution batches.");
    page.sample("num_requests_running", "", &say(running as f64));
    page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
    page.sample("num_requests_waiting", "", &say(waiting as f64));
    let name = "num_requests_waiting_by_reason";
    page.family(name, "gauge", "Number of waiting requests by reason.");
    let deferred = replica.engine.as_ref().map_or(0, |host| host.engine().waiting_for_adapter());
    page.sample(name, ",reason=\"capacity\"", &say(waiting.saturating_sub(deferred) as f64));
    page.sample(name, ",reason=\"deferred\"", &say(deferred as f64));
    page.family("engine_sleep_state", "gauge", "Engine sleep state.");
    for (state, on) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
        let more = format!(",sleep_state=\"{state}\"");
        page.sample("engine_sleep_state", &more, &format!("{on:?}"));
    }
    page.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    page.sample("kv_cache_usage_perc", "", &say(usage));
}

fn counters(replica: &Replica, page: &mut Page<'_>) {
    let counters = &replica.counters;
    let (prompt, cached) = (counters.prompt_tokens.get(), counters.cached_tokens.get());
    let queries = "Prefix cache queries, in terms of number of queried tokens.";
    page.counter("prefix_cache_queries_total", queries, &[("", prompt)]);
    let hits = "Prefix cache hits, in terms of number of cached tokens.";
    page.counter("prefix_cache_hits_total", hits, &[("", cached)]);
    let help = "Cumulative number of preemption from the engine.";
    let preemptions = replica.engine.as_ref().map_or(0, |host| host.engine().preemptions());
    page.counter("num_preemptions_total", help, &[("", preemptions)]);
    page.counter("prompt_tokens_total", "Number of prefill tokens processed.", &[("", prompt)]);
    page.counter(
        "prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        &[
            (",source=\"local_compute\"", prompt.saturating_sub(cached)),
            (",source=\"local_cache_hit\"", cached),
            (",source=\"external_kv_transfer\"", 0),
        ],
    );
    let help = "Number of cached prompt tokens.";
    page.counter("prompt_tokens_cached_total", help, &[("", cached)]);
    let help = "Number of generation tokens processed.";
    page.counter("generation_tokens_total", help, &[("", counters.completion_tokens.get())]);
    page.counter(
        "request_success_total",
        "Count of successfully processed requests.",
        &[
            (",finished_reason=\"stop\"", counters.finished_stop.get()),
            (",finished_reason=\"length\"", counters.finished_length.get()),
            (",finished_reason=\"abort\"", 0),
            (",finished_reason=\"error\"", 0),
            (",finished_reason=\"repetition\"", 0),
        ],
    );
}

fn infos(replica: &Replica, page: &mut Page<'_>) {
    let mut busy = replica.loras_busy.borrow().clone();
    busy.sort();
    busy.dedup();
    let names = busy.join(",");
    let loras_max = replica.config.loras_max;
    page.family("lora_requests_info", "gauge", "Running stats on lora requests.");
    let now = date::unix_seconds() as f64;
    let _ = writeln!(
        page.text,
        "vllm:lora_requests_info{{max_lora=\"{loras_max}\",running_lora_adapters=\"{names}\",\
         waiting_lora_adapters=\"{names}\"}} {now:?}"
    );
    let (blocks, block_tokens) = (replica.config.blocks, replica.config.block_tokens);
    let tokens = blocks * block_tokens;
    page.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    let _ = writeln!(
        page.text,
        "vllm:cache_config_info{{block_size=\"{block_tokens}\",cache_dtype=\"auto\",\
         enable_prefix_caching=\"True\",engine=\"0\",gpu_memory_utilization=\"0.9\",\
         kv_cache_size_tokens=\"{tokens}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
         prefix_caching_hash_algo=\"sha256\",sliding_window=\"None\"}} 1.0"
    );
}
