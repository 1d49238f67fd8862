//! What is entered into the books of a request, and what they teach: its usage record, the tokens
//! it is charged, its share of the core's metrics; our count of its prompt and what was predicted
//! of it held against what came. Part of [`super`], on the request's core.

use std::sync::Arc;

use super::super::quota::is_free;
use super::{Ticket, ms};
use crate::admin::{OPERATIONS, PoolCells, Stage};
use crate::openai::Endpoint;
use crate::prompt::Basis;
use crate::prompt::standing::Verdict;
use crate::replicas::events::check;
use crate::runtime::clock;
use crate::tenants::KeyId;
use crate::usage::{Outcome, TokensSource, UsageRecord};

impl Ticket<'_> {
    pub(super) fn record(
        &self,
        (endpoint, key_id, tenant): (Endpoint, KeyId, Arc<str>),
        outcome: Outcome,
        now: u64,
    ) -> UsageRecord {
        let call = self.call.as_ref();
        let usage = self.usage;
        let free = is_free(endpoint);
        let (input, output) = if free { (0, 0) } else { self.used(outcome) };
        let settled = self.spending.settled();
        let cached = usage.and_then(|u| u.cached_tokens);
        let price = call.and_then(|c| c.pool.price);
        UsageRecord {
            ts_unix_ms: clock::unix_ms(),
            request_id: self.id,
            tenant,
            key_id,
            model: self.model.clone(),
            pool: call.map(|c| Arc::clone(&c.pool.name)),
            adapter: call.and_then(|c| c.adapter.clone()),
            replica: self.replica.as_ref().map(|r| Arc::clone(&r.id)),
            endpoint: endpoint.name(),
            stream: self.stream,
            outcome,
            status: self.status,
            input_tokens: Some(input),
            cached_tokens: cached,
            output_tokens: Some(output),
            tokens_source: Some(match usage {
                Some(_) => TokensSource::Engine,
                None => TokensSource::Gateway,
            }),
            reserved_tokens: Some(settled.reserved),
            refunded_tokens: Some(settled.refunded),
            cost: price.map(|p| {
                let hit = cached.unwrap_or(0).min(input);
                let tokens = (input - hit) as f64 * p.input
                    + hit as f64 * p.cached
                    + output as f64 * p.output;
                tokens / 1e6
            }),
            attempts: self.attempts,
            queue_ms: Some(ms(self.queue_ns)),
            gateway_ms: Some(ms(self.gateway_ns(now))),
            ttft_ms: self.first_content_ns.map(|at| ms(at.saturating_sub(self.started_ns))),
            tpot_ms: self.tpot_ns(output).map(ms),
            total_ms: Some(ms(now.saturating_sub(self.started_ns))),
            predicted_cached_tokens: self.routed.as_ref().map(|r| r.pick.cached_tokens),
            predicted_ttft_ms: self.predicted_ttft_ms(),
        }
    }

    /// Tokens of input and output that the engine worked on: its own word, or what we saw. A
    /// request that it refused, or failed or let wait before any content, costs nothing; one whose
    /// caller would not wait any longer is paid as one that has left.
    pub(super) fn used(&self, outcome: Outcome) -> (u64, u64) {
        if let Some(usage) = self.usage {
            return (usage.prompt_tokens, usage.completion_tokens);
        }
        // Each content event counts as a token (vLLM may merge some), or four bytes of an answer
        // that is no stream.
        let output = self.seen.content_events.max(self.wrote_bytes.div_ceil(4));
        let worked = matches!(
            outcome,
            Outcome::Ok | Outcome::ClientCancelled | Outcome::Truncated | Outcome::Deadline
        ) && !self.kept_waiting;
        let sent = self.sent_ns.is_some() || self.was_prefilled();
        let ran = sent && (worked || output > 0);
        let counted = self.prompt.as_ref().map(|prompt| prompt.tokens);
        let input = self.seen.prompt_tokens.or(counted).filter(|_| ran);
        (input.unwrap_or(0), output)
    }

    /// Holds our count of the prompt against the engine's, and learns from it.
    pub(super) fn check_count(&self, endpoint: Endpoint, engines: u64) {
        let (Some(call), Some(prompt)) = (&self.call, &self.prompt) else { return };
        if !endpoint.generates() {
            return; // Others add what is no part of a prompt, and count several together.
        }
        let standing = &call.pool.state.prompts;
        standing.learn(call.text_bytes, engines);
        if prompt.basis != Basis::Exact {
            return;
        }
        let kind = match endpoint {
            Endpoint::ChatCompletions => 0,
            Endpoint::Completions => 2,
            Endpoint::Responses => 4,
            Endpoint::Messages => 6,
            _ => 8,
        };
        let kind = kind | u32::from(call.tools);
        let (pool, ours) = (&call.pool.name, prompt.tokens);
        let what = match standing.check(ours, engines, kind) {
            Verdict::Same | Verdict::Differs => return,
            Verdict::DiffersAnew => "the first such difference for this kind of request",
            Verdict::FellBack => {
                "its counts keep differing: from here on they are estimates. Are tokenizer and \
                 template those of the engine?"
            }
        };
        let tools = if call.tools { " with tools" } else { "" };
        self.core.shared.log.warn(&format!(
            "pool {pool}: a prompt of {}{tools} has {ours} tokens here and {engines} in the \
             engine (template {:016x}); {what}",
            endpoint.name(),
            call.pool.template_digest(),
        ));
    }

    /// The whole wait for the first content as the last attempt's choice predicted it.
    fn predicted_ttft_ms(&self) -> Option<f64> {
        let predicted_ms = self.routed.as_ref()?.pick.ttft_ms;
        let before_ms = ms(self.sent_ns?.saturating_sub(self.started_ns));
        (predicted_ms > 0.0).then_some(before_ms + predicted_ms)
    }

    /// The first content of a stream came at `now`.
    pub(super) fn learn_first(&self, now: u64) {
        let (Some(routed), Some(sent_ns)) = (&self.routed, self.sent_ns) else { return };
        routed.first_token(self.core, ms(now.saturating_sub(sent_ns)), self.core.sweep.now_ms());
    }

    /// The books are closed: what the answer teaches.
    pub(super) fn learn_answer(&self, record: &UsageRecord, now: u64) {
        let (Some(routed), Some(usage), Outcome::Ok) = (&self.routed, self.usage, record.outcome)
        else {
            return;
        };
        if self.endpoint.is_some_and(Endpoint::generates) {
            routed.answer(usage.completion_tokens);
        }
        // An estimate of a text's share is no evidence against an index.
        let counted = self.prompt().is_some_and(|prompt| prompt.basis == Basis::Exact);
        let verdict = usage.cached_tokens.filter(|_| counted).and_then(|n| routed.cached(n));
        if let (Some(verdict), Some(replica)) = (verdict, &self.replica) {
            let line = format!("replica {}: {}", replica.id, verdict.reason());
            match verdict {
                check::Verdict::Agrees => self.core.shared.log.info(&line),
                _ => self.core.shared.log.warn(&line),
            }
        }
        let (tokens, now_ms) = (usage.completion_tokens, now / 1_000_000);
        if !record.stream && tokens > 0 {
            // An answer that comes whole does not say when it began.
            let took_ns = self.sent_ns.map_or(0, |sent_ns| now.saturating_sub(sent_ns));
            routed.whole_answer(tokens, ms(took_ns), now_ms);
        } else if let Some(tpot_ns) = self.tpot_ns(tokens) {
            routed.later_tokens(tokens, ms(tpot_ns), now_ms);
        }
    }

    /// Time before the replica was written to, but for the queue, for who prefilled, and for what
    /// client and replicas took before; all of it when none was.
    fn gateway_ns(&self, now: u64) -> u64 {
        let spent = self.sent_ns.unwrap_or(now).saturating_sub(self.started_ns);
        spent
            .saturating_sub(self.queue_ns)
            .saturating_sub(self.legs_ns())
            .saturating_sub(self.theirs_ns)
    }

    /// Time of a later token. Not known where all came at once, as an answer that is no stream.
    fn tpot_ns(&self, output: u64) -> Option<u64> {
        let first = self.first_content_ns?;
        let per_token =
            self.last_content_ns.saturating_sub(first).checked_div(output.checked_sub(1)?);
        per_token.filter(|&ns| ns > 0)
    }

    pub(super) fn count(&self, record: &UsageRecord, now: u64) {
        let metrics = &self.core.metrics;
        metrics.stage(Stage::Total).observe_ns(self.gateway_ns(now));
        let pool = record.pool.as_ref().unwrap_or(&self.core.no_pool);
        let cells = self.core.pools.pool(metrics, pool);
        self.core.pools.count(&cells, pool, record.endpoint, record.outcome);
        cells.input.add(record.input_tokens.unwrap_or(0));
        cells.cached.add(record.cached_tokens.unwrap_or(0));
        cells.output.add(record.output_tokens.unwrap_or(0));
        // Only where the engine told: sums of the same requests can be compared.
        if let (Some(hit), Some(predicted)) = (record.cached_tokens, record.predicted_cached_tokens)
        {
            cells.hits_predicted.add(predicted);
            cells.hits_actual.add(hit);
        }
        if let Some(at) = self.first_content_ns {
            let ttft_ns = at.saturating_sub(self.started_ns);
            cells.ttft.observe_ns(ttft_ns);
            self.exemplar(ttft_ns).into_iter().for_each(|it| cells.ttft_exemplars.put(it));
        }
        if let Some(tpot) = self.tpot_ns(record.output_tokens.unwrap_or(0)) {
            cells.tpot.observe_ns(tpot);
        }
        self.count_genai(&cells, record, now);
    }

    fn count_genai(&self, cells: &PoolCells, record: &UsageRecord, now: u64) {
        let operation = self.endpoint.and_then(Endpoint::operation);
        let at = OPERATIONS.iter().position(|name| Some(*name) == operation);
        let Some(cells) = at.and_then(|at| cells.genai.get(at)) else { return };
        let [well, failed] = &cells.duration;
        let total_ns = now.saturating_sub(self.started_ns);
        if record.outcome != Outcome::Ok {
            return failed.observe_ns(total_ns);
        }
        well.observe_ns(total_ns);
        if let Some(at) = self.first_content_ns.filter(|_| record.stream) {
            cells.ttft.observe_ns(at.saturating_sub(self.started_ns));
        }
        if let Some(tpot) = self.tpot_ns(record.output_tokens.unwrap_or(0)) {
            cells.tpot.observe_ns(tpot);
        }
        // Only what an engine counted is known to be billed.
        if let (Some(usage), [input, output]) = (self.usage, &cells.tokens) {
            input.observe(usage.prompt_tokens);
            output.observe(usage.completion_tokens);
        }
    }
}
