//! The metrics that OpenTelemetry's GenAI conventions name, beside ours: what a dashboard made for
//! any model server looks for. Their labels are pools, models of pools and three operations.

use std::sync::Arc;

use super::exposition::{Labels, Page};
use super::metrics::by_pool;
use super::server::View;
use super::shard::{GenAi, OPERATIONS, PoolCells};
use crate::runtime::cells::{BOUNDS_TOKENS, Histogram, Sum};

/// A pool and an operation that it was asked for.
struct Served<'v> {
    pool: &'v str,
    /// The name that its engines know the model by.
    model: String,
    operation: &'static str,
    /// Where it is in [`PoolCells::genai`], on each core.
    at: usize,
    cells: &'v [Arc<PoolCells>],
}

impl Served<'_> {
    fn each(&self) -> impl Iterator<Item = &GenAi> {
        self.cells.iter().filter_map(|cells| cells.genai.get(self.at))
    }

    fn sum(&self, of: impl Fn(&GenAi) -> &Histogram) -> Sum {
        let mut sum = Sum::default();
        self.each().for_each(|genai| sum.add(of(genai)));
        sum
    }

    /// Its labels, and one more.
    fn labels<'l>(&'l self, more: Option<(&'static str, &'l str)>) -> Vec<(&'static str, &'l str)> {
        let own = [
            ("pool", self.pool),
            ("gen_ai_operation_name", self.operation),
            ("gen_ai_provider_name", "vllm"),
            ("gen_ai_request_model", &self.model),
        ];
        own.into_iter().chain(more).collect()
    }
}

/// A histogram of time: its name, its help, where it is.
type Time = (&'static str, &'static str, fn(&GenAi) -> &Histogram);

const TIMES: [Time; 2] = [
    ("gen_ai_server_time_to_first_token_seconds", "Head to first content, of streams.", |g| {
        &g.ttft
    }),
    ("gen_ai_server_time_per_output_token_seconds", "Per token after the first.", |g| &g.tpot),
];

pub(super) fn genai(page: &mut Page, view: &View) {
    let all = by_pool(view);
    let fleet = (view.fleet)();
    let mut served = Vec::new();
    for (pool, cells) in &all {
        let known = fleet.resolve(Some(&**pool)).ok().map(|served| served.upstream.to_string());
        for (at, operation) in OPERATIONS.into_iter().enumerate() {
            let model = known.clone().unwrap_or_else(|| pool.to_string());
            let one = Served { pool, model, operation, at, cells };
            let requests = one.sum(|genai| &genai.duration[0]).count();
            if requests + one.sum(|genai| &genai.duration[1]).count() > 0 {
                served.push(one);
            }
        }
    }
    for (name, help, of) in TIMES {
        page.family(name, "histogram", help);
        for one in &served {
            page.histogram(name, &one.labels(None), &one.sum(of));
        }
    }
    let name = "gen_ai_server_request_duration_seconds";
    page.family(name, "histogram", "Head to end.");
    for one in &served {
        page.histogram(name, &one.labels(None), &one.sum(|genai| &genai.duration[0]));
        let failed = one.labels(Some(("error_type", "_OTHER")));
        page.histogram(name, &failed, &one.sum(|genai| &genai.duration[1]));
    }
    let name = "gen_ai_client_token_usage";
    page.family(name, "histogram", "Tokens of a request.");
    for one in &served {
        for (at, kind) in ["input", "output"].into_iter().enumerate() {
            tokens(page, name, &one.labels(Some(("gen_ai_token_type", kind))), one, at);
        }
    }
}

fn tokens(page: &mut Page, name: &str, labels: Labels<'_>, one: &Served<'_>, at: usize) {
    let mut buckets = [0_u64; BOUNDS_TOKENS.len() + 1];
    let mut total = 0_u64;
    for tokens in one.each().filter_map(|genai| genai.tokens.get(at)) {
        for (sum, bucket) in buckets.iter_mut().zip(&tokens.buckets) {
            *sum = sum.wrapping_add(bucket.get());
        }
        total = total.wrapping_add(tokens.sum.get());
    }
    page.tokens(name, labels, &buckets, total);
}
