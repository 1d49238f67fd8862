//! The books of one request: its id, its times, what it used; closed into exactly one usage record.
//!
//! A ticket that is dropped open (its connection's task panicked) writes its record too.

mod books;
mod told;

use std::cell::Cell;
use std::sync::Arc;

use self::told::Context;
use super::core::Core;
use super::frames::Seen;
use super::gate::Charged;
use super::ids::{hex, is_valid_id, new_id};
use super::pick::Routed;
use super::plan::Plan;
use super::poison::Fallen;
use super::prefill::Legs;
use super::quota::Spending;
use super::reply::{Failure, Head};
use crate::admin::{Phase, Stage};
use crate::http1::{RequestHead, ResponseHead, Version};
use crate::openai::{Call, Endpoint, Opener, Usage};
use crate::prompt::Prompt;
use crate::replicas::{Dispatch, Lane, Pool, Replica, Served};
use crate::runtime::clock;
use crate::tenants::KeyId;
use crate::usage::{Opening, Outcome, Slot, SmallId};

/// A model's name stands in the books with so many characters; an unknown one may have any.
const MODEL_CHARS_MAX: usize = 256;
/// The caller's own limit on the wait for the first content.
const CALLERS_LIMIT: &str = "x-request-deadline-ms";
/// What its tier leaves it, to its end.
const TIERS_LIMIT: &str = "tier.deadline_ms";

/// See the module.
pub(super) struct Ticket<'t> {
    pub core: &'t Core,
    pub head: &'t RequestHead,
    pub attempts: u32,
    /// Lanes tried, by index in the pool.
    pub tried: Vec<usize>,
    /// Replicas whose engine answered with an error of its own; theirs, if another can serve it.
    pub erred: Vec<Arc<Replica>>,
    /// A byte of the answer was sent: what fails now fails in band.
    pub head_sent: bool,
    /// An event of the engine's was passed on.
    pub passed_on: bool,
    /// The events among them that opened the answer.
    pub opened: Vec<Opener>,
    /// What an answer's head has said, or will: the connection ends with it.
    told_close: Cell<Option<bool>>,
    /// What the caller may spend, and what this request holds of it.
    pub spending: Spending,
    /// What its tenant's share of the pool was charged.
    pub charged: Option<Charged>,
    /// Replicas that broke off under it.
    pub fallen: Fallen,
    /// A limit of ours ended it: the engine took too long.
    kept_waiting: bool,
    /// The caller's own limit on the wait for the first content, in ms.
    pub deadline_ms: Option<u64>,
    /// By when its tier has it end, in ms since it came: without content by then it has failed.
    pub tier_ms: Option<u64>,
    /// What became of it at the pool that prefills for its own, if one may.
    pub legs: Option<Box<Legs>>,
    /// How long it waited for room.
    queue_ns: u64,
    /// What of the time before the last attempt's writing was the client's, or its replicas'.
    theirs_ns: u64,
    /// The last attempt failed after it had been written to for so long.
    failed_ns: u64,
    /// Bytes of its body, and of what the client's socket took of the answer.
    pub body_bytes: u64,
    pub sent_bytes: u64,
    /// The endpoint that it met, and who calls.
    endpoint: Option<Endpoint>,
    who: Option<(KeyId, Arc<str>)>,
    is_unread: bool,
    outcome: Option<Outcome>,
    id: SmallId,
    context: Context,
    started_ns: u64,
    stage_at_ns: u64,
    /// When the last attempt's replica was written to.
    sent_ns: Option<u64>,
    connecting: bool,
    /// Since when the replica has sent no content, by the sweep's clock.
    quiet_since_ms: u64,
    first_content_ns: Option<u64>,
    last_content_ns: u64,
    seen: Seen,
    /// Of an answer that is no stream, where the engine does not count for itself.
    wrote_bytes: u64,
    usage: Option<Usage>,
    /// The model that was asked for, by its name there, and whether as a stream.
    model: Option<Arc<str>>,
    stream: bool,
    call: Option<Called>,
    prompt: Option<Prompt>,
    caller: Option<(Endpoint, KeyId, Arc<str>)>,
    slot: Option<Slot>,
    pub replica: Option<Arc<Replica>>,
    /// Its data-parallel rank that was picked.
    rank: Option<u32>,
    /// Where the last attempt went, and what was predicted of it.
    routed: Option<Routed>,
    answer_type: Vec<u8>,
    retry_after: Option<Vec<u8>>,
    status: u16,
}

/// What was asked for.
struct Called {
    pool: Arc<Pool>,
    adapter: Option<Arc<str>>,
    /// For the pool's standing: the text's size, and the kind of request.
    text_bytes: u64,
    tools: bool,
}

impl<'t> Ticket<'t> {
    /// Opens the books for a request whose head is `head`, its bytes at the start of `bytes`.
    pub(super) fn open(core: &'t Core, bytes: &[u8], head: &'t RequestHead) -> Ticket<'t> {
        let now = clock::now_ns();
        let asked = head.request_id.map(|s| s.of(bytes)).filter(|id| is_valid_id(id));
        let asked = asked.and_then(|id| SmallId::new(std::str::from_utf8(id).ok()?));
        let field = |span: Option<crate::http1::Span>| span.map(|s| s.of(bytes));
        let context = (field(head.traceparent), field(head.tracestate));
        let traces = core.shared.traces.as_deref();
        let deadline = head.deadline_ms.and_then(|s| std::str::from_utf8(s.of(bytes)).ok());
        core.metrics.in_flight.add(1);
        Ticket {
            core,
            head,
            attempts: 0,
            tried: Vec::new(),
            erred: Vec::new(),
            head_sent: false,
            passed_on: false,
            opened: Vec::new(),
            told_close: Cell::new(None),
            spending: Spending::default(),
            id: asked.unwrap_or_else(|| new_id(core)),
            context: Context::of(traces, context, || core.random(), now),
            body_bytes: 0,
            sent_bytes: 0,
            endpoint: None,
            who: None,
            is_unread: false,
            outcome: None,
            deadline_ms: deadline.and_then(|text| text.parse().ok()).filter(|&ms| ms > 0),
            tier_ms: None,
            started_ns: now,
            stage_at_ns: now,
            queue_ns: 0,
            theirs_ns: 0,
            failed_ns: 0,
            legs: None,
            charged: None,
            fallen: Fallen::default(),
            kept_waiting: false,
            sent_ns: None,
            connecting: false,
            quiet_since_ms: core.sweep.now_ms(),
            first_content_ns: None,
            last_content_ns: now,
            seen: Seen::default(),
            wrote_bytes: 0,
            usage: None,
            model: None,
            stream: false,
            call: None,
            prompt: None,
            caller: None,
            slot: None,
            replica: None,
            rank: None,
            routed: None,
            answer_type: Vec::new(),
            retry_after: None,
            status: 0,
        }
    }

    /// The id under which the request is known everywhere.
    pub(super) fn request_id(&self) -> &[u8] {
        self.id.as_str().as_bytes()
    }

    /// The same, to be kept.
    pub(super) fn id(&self) -> SmallId {
        self.id
    }

    /// The stage that was under way has ended.
    pub(super) fn stage_ended(&mut self, stage: Stage) {
        let now = clock::now_ns();
        let since = std::mem::replace(&mut self.stage_at_ns, now);
        self.core.metrics.stage(stage).observe_ns(now.saturating_sub(since));
        self.trace_stage(stage, since, now);
    }

    /// The endpoint is known.
    pub(super) fn routed_to(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint);
    }

    /// The caller is known.
    pub(super) fn met(&mut self, key_id: KeyId, tenant: impl FnOnce() -> Arc<str>) {
        if self.tells() {
            self.who = Some((key_id, tenant()));
        }
    }

    /// Endpoint and caller are known: from here on there is a record.
    pub(super) fn caller(&mut self, endpoint: Endpoint, key_id: KeyId, tenant: Arc<str>) {
        self.caller = Some((endpoint, key_id, tenant));
    }

    /// Takes the record's place in the usage log's ring. From here on a kill leaves a trace.
    pub(super) fn reserve(&mut self) -> Result<(), Failure> {
        let Some((endpoint, key_id, tenant)) = &self.caller else { return Ok(()) };
        let slot = self.core.shared.usage.reserve(&self.opening(*endpoint, *key_id, tenant));
        self.slot = Some(slot.map_err(|_| Failure::UsageUnavailable)?);
        Ok(())
    }

    /// What is known of the request when its record begins.
    fn opening<'a>(&'a self, endpoint: Endpoint, key_id: KeyId, tenant: &'a str) -> Opening<'a> {
        let started_unix_ms = clock::unix_ms();
        let (request_id, endpoint) = (&self.id, endpoint.name());
        Opening { started_unix_ms, request_id, tenant, key_id, endpoint }
    }

    /// The body was read.
    pub(super) fn asked(&mut self, call: &Call, body: &[u8]) {
        let shown = |name: &str| match name.char_indices().nth(MODEL_CHARS_MAX) {
            Some((end, _)) => name.get(..end).unwrap_or_default().into(),
            None => name.into(),
        };
        self.model = call.model_name(body).map(shown);
        self.stream = call.stream;
    }

    /// Who serves it is known.
    pub(super) fn called(&mut self, call: &Call, served: &Served, pool: &Arc<Pool>) {
        self.call = Some(Called {
            pool: Arc::clone(pool),
            adapter: served.adapter.clone(),
            text_bytes: call.text_bytes as u64,
            tools: call.tools > 0,
        });
    }

    /// The call's prompts are known.
    pub(super) fn prompted(&mut self, prompt: Prompt) {
        self.prompt = Some(prompt);
    }

    /// The call's prompts, once they are known.
    pub(super) fn prompt(&self) -> Option<&Prompt> {
        self.prompt.as_ref()
    }

    /// What an attempt brings to its lane.
    pub(super) fn dispatch(&self, plan: &Plan<'_>) -> Dispatch {
        let pick = self.routed.as_ref().map(|routed| routed.pick).unwrap_or_default();
        let tokens = self.prompt().map_or(0, |prompt| prompt.tokens);
        // What is handed over is nobody's to compute there.
        let handed_over = self.routed.as_ref().is_some_and(|it| it.leg.is_handed_over());
        Dispatch {
            prompt_tokens: tokens,
            cached_tokens: if handed_over { tokens } else { pick.cached_tokens },
            output_tokens: plan.output_tokens,
            sequences: plan.sequences,
            prefill_ms: if handed_over { 0.0 } else { pick.prefill_ms },
            adapter: plan.adapter,
        }
    }

    /// Where the last attempt went, and what was predicted of it.
    pub(super) fn routed_mut(&mut self) -> Option<&mut Routed> {
        self.routed.as_mut()
    }

    /// A leg elsewhere that began at `began_ns` is over: no stage's time. How long it took, in ns.
    pub(super) fn leg_took(&mut self, began_ns: u64) -> u64 {
        self.stage_at_ns = clock::now_ns();
        let took_ns = self.stage_at_ns.saturating_sub(began_ns);
        self.trace_leg(began_ns, self.stage_at_ns);
        if let Some(call) = &self.call {
            let cells = self.core.pools.pool(&self.core.metrics, &call.pool.name);
            cells.prefill_legs.observe_ns(took_ns);
        }
        took_ns
    }

    /// Where the last attempt went.
    pub(super) fn replica(&self) -> Option<Arc<Replica>> {
        self.replica.clone()
    }

    /// When the first token is predicted, in ms from dispatch; 0 = no prediction.
    pub(super) fn first_token_due_ms(&self) -> u64 {
        let predicted_ms = self.routed.as_ref().map_or(0.0, |routed| routed.pick.ttft_ms);
        predicted_ms.ceil() as u64
    }

    /// When the first byte of the answer is predicted, in ms from dispatch: an answer that is no
    /// stream comes when it is whole.
    pub(super) fn first_byte_expected_ms(&self, plan: &Plan<'_>) -> f64 {
        let Some(pick) = self.routed.as_ref().map(|routed| &routed.pick) else { return 0.0 };
        let tokens = plan.output_tokens as f64 / plan.sequences.max(1) as f64;
        pick.ttft_ms + if plan.stream { 0.0 } else { pick.tpot_ms * tokens }
    }

    /// Since its head was there, in ms.
    pub(super) fn elapsed_ms(&self) -> f64 {
        ms(clock::now_ns().saturating_sub(self.started_ns))
    }

    /// It waited so long for room; no stage's time.
    pub(super) fn queued(&mut self, waited_ns: u64) {
        self.queue_ns = waited_ns;
        self.stage_at_ns = clock::now_ns();
        self.trace_queue(waited_ns, self.stage_at_ns);
    }

    /// An attempt at a replica begins.
    pub(super) fn attempt(&mut self, lane: &Lane, routed: Routed) {
        self.attempts += 1;
        self.tried.push(routed.pick.replica);
        self.replica = Some(Arc::clone(&lane.replica));
        self.rank = lane.rank;
        self.routed = Some(routed);
        self.connecting = true;
        self.stage_ended(Stage::Route);
        self.trace_attempt(&lane.replica);
    }

    /// The replica has a connection and is being written to.
    pub(super) fn sending(&mut self) {
        self.connecting = false;
        self.stage_ended(Stage::Connect);
        self.sent_ns = Some(self.stage_at_ns);
        self.theirs_ns = self.theirs_ns.saturating_add(std::mem::take(&mut self.failed_ns));
        self.quiet_since_ms = self.core.sweep.now_ms();
    }

    /// So much time has just gone by waiting for the client's body, or for a replica to get ready:
    /// it belongs to no stage.
    pub(super) fn waited_for_them(&mut self, waited_ns: u64) {
        self.theirs_ns = self.theirs_ns.saturating_add(waited_ns);
        self.stage_at_ns = self.stage_at_ns.saturating_add(waited_ns);
    }

    /// The replica's head is there: keeps the fields that the client gets.
    pub(super) fn answered(&mut self, head: &ResponseHead, bytes: &[u8]) {
        self.answer_type.clear();
        self.answer_type.extend_from_slice(head.content_type.map_or(b"", |s| s.of(bytes)));
        self.retry_after = head.retry_after.map(|s| s.of(bytes).to_vec());
        if !self.head_sent {
            self.status = head.status;
        }
    }

    /// The answer is a refusal of this status and type that came inside of a 200.
    pub(super) fn answered_as(&mut self, status: u16, kind: &[u8]) {
        self.answer_type = kind.to_vec();
        if !self.head_sent {
            self.status = status;
        }
    }

    /// The head of a stream is on its way to the client.
    pub(super) fn head_went(&mut self) {
        self.head_sent = true;
        self.status = 200;
    }

    /// What is left of a limit in ms on the replica's silence; 0 = none. Comments and roles do not
    /// end a silence: an engine that hangs may send them for ever.
    pub(super) fn left_ms(&self, limit_ms: u64) -> u64 {
        let quiet_ms = self.core.sweep.now_ms().saturating_sub(self.quiet_since_ms);
        if limit_ms == 0 { 0 } else { limit_ms.saturating_sub(quiet_ms).max(1) }
    }

    /// The soonest of a limit in ms (0 = none), the caller's own and its tier's, with its name.
    pub(super) fn sooner(&self, limit_ms: u64, name: &'static str) -> (u64, &'static str) {
        if self.deadline_ms.or(self.tier_ms).is_none() {
            return (limit_ms, name);
        }
        let spent_ms = self.elapsed_ms() as u64;
        let left = |ms: u64| ms.saturating_sub(spent_ms).max(1);
        let own = |ms: Option<u64>, name| ms.map(|ms| (left(ms), name));
        let limit = (limit_ms > 0).then_some((limit_ms, name));
        [limit, own(self.deadline_ms, CALLERS_LIMIT), own(self.tier_ms, TIERS_LIMIT)]
            .into_iter()
            .flatten()
            .min_by_key(|(ms, _)| *ms)
            .unwrap_or((0, name))
    }

    /// The caller's time limit or its tier's has passed: no other replica can help.
    pub(super) fn is_late(&self) -> bool {
        let spent_ms = self.elapsed_ms() as u64;
        [self.deadline_ms, self.tier_ms].into_iter().flatten().any(|ms| spent_ms >= ms)
    }

    /// Is a limit of this name the request's own, and no replica's fault?
    pub(super) fn owns(limit: &str) -> bool {
        [CALLERS_LIMIT, TIERS_LIMIT].contains(&limit)
    }

    /// What was seen of the stream so far was passed on; the last of it came at `came_ns`.
    pub(super) fn relayed(&mut self, seen: &Seen, came_ns: u64) {
        let now = clock::now_ns();
        self.core.metrics.stage(Stage::Relay).observe_ns(now.saturating_sub(came_ns));
        self.saw(seen, now);
    }

    /// What was seen of the stream up to `now`.
    pub(super) fn saw(&mut self, seen: &Seen, now: u64) {
        if seen.content_events > self.seen.content_events {
            self.last_content_ns = now;
            if self.first_content_ns.is_none() {
                self.first_content_ns = Some(now);
                self.trace_first_token(now);
                self.learn_first(now);
            }
            self.quiet_since_ms = self.core.sweep.now_ms();
        }
        self.passed_on |= seen.events > 0;
        self.seen = *seen;
        if seen.usage.is_some() {
            self.usage = seen.usage;
        }
    }

    /// What the engine says that it used for an answer that is no stream.
    pub(super) fn engine_used(&mut self, usage: Option<Usage>) {
        self.usage = usage;
    }

    /// So many bytes were generated, of an answer that is no stream and may tell no usage.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.wrote_bytes = bytes;
    }

    /// An answer that was generated is whole.
    pub(super) fn whole(&mut self) {
        let now = clock::now_ns();
        self.first_content_ns.get_or_insert(now);
        self.last_content_ns = now;
    }

    /// Events of the engine's last stream that were passed on.
    pub(super) fn events_sent(&self) -> u64 {
        self.seen.events
    }

    /// Content was passed on.
    pub(super) fn content_sent(&self) -> bool {
        self.seen.content_events > 0
    }

    /// The data-parallel rank that the last attempt asks for.
    pub(super) fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The client's side of an answer is chunked.
    pub(super) fn chunked(&self) -> bool {
        self.head.version == Version::Http11
    }

    /// The connection ends with this answer. (HTTP/1.0 could keep it by an extension that no
    /// client of this API needs.) What the answer's head has told holds to its end: the client may
    /// send its next request right behind it, also when a drain has begun meanwhile.
    pub(super) fn closes(&self) -> bool {
        let keeps = self.head.keep_alive && self.head.version == Version::Http11;
        let closes = self.told_close.get().unwrap_or_else(|| !keeps || self.core.draining());
        self.told_close.set(Some(closes));
        closes
    }

    /// Begins the head of an answer that is no stream, with the engine's type, and its advice to
    /// come back or ours.
    pub(super) fn head_of_answer<'o>(&self, out: &'o mut Vec<u8>, status: u16) -> Head<'o> {
        let mut head = Head::new(out, status, self);
        if !self.answer_type.is_empty() {
            head.field("content-type", &self.answer_type);
        }
        match &self.retry_after {
            Some(retry_after) => head.field("retry-after", retry_after),
            None if matches!(status, 429 | 503) => head.number("retry-after", 1),
            None => {}
        }
        self.write_routing(&mut head);
        head
    }

    /// Adds the fields that tell where the request went.
    pub(super) fn write_routing(&self, head: &mut Head<'_>) {
        if let Some(replica) = &self.replica {
            head.field("x-gateway-assigned-node", replica.id.as_bytes());
        }
        if let Some(replica) = self.prefilled_by() {
            head.field("x-gateway-prefill-node", replica.id.as_bytes());
        }
        if let Some(routed) = &self.routed {
            if let Some(hash) = routed.prefix_hash {
                head.field("x-gateway-prefix-hash", &hex(hash));
            }
            head.number("x-gateway-cached-tokens", routed.pick.cached_tokens);
        }
        head.number("x-gateway-attempts", self.attempts.into());
    }

    /// The request failed before the first byte of an answer.
    pub(super) fn failed(&mut self, failure: &Failure) {
        if !self.head_sent {
            self.status = failure.status();
        }
        self.kept_waiting_by(failure);
        self.ended(failure.outcome());
    }

    /// Nothing is to be paid for a wait that a limit of ours has ended.
    pub(super) fn kept_waiting_by(&mut self, failure: &Failure) {
        self.kept_waiting = matches!(failure, Failure::Deadline(limit) if *limit != CALLERS_LIMIT);
    }

    /// The gateway itself has answered.
    pub(super) fn answered_here(&mut self) {
        self.status = 200;
        self.ended(Outcome::Ok);
    }

    /// The client went away at `noticed_ns`, and its exchange has just been closed.
    pub(super) fn cancelled(&self, noticed_ns: Option<u64>) {
        let Some(noticed_ns) = noticed_ns.filter(|_| self.attempts > 0) else { return };
        let phase = match &self.call {
            _ if self.is_prefilling() => Phase::Prefill,
            _ if self.connecting => Phase::Connect,
            Some(_) if !self.stream => Phase::Answer,
            _ if self.content_sent() => Phase::Stream,
            _ => Phase::FirstToken,
        };
        let took = clock::now_ns().saturating_sub(noticed_ns);
        self.core.metrics.cancel(phase).observe_ns(took);
    }

    /// The engine is done with the request: it pays for what was done, and only once.
    pub(super) fn settle(&mut self, outcome: Outcome) {
        let (input, output) = self.used(outcome);
        self.spending.settle(input.saturating_add(output), self.elapsed_ms() as u64);
    }

    /// Closes the books.
    pub(super) fn ended(&mut self, outcome: Outcome) {
        let Some(caller) = self.caller.take() else { return };
        self.outcome = Some(outcome);
        self.settle(outcome);
        let now = clock::now_ns();
        let (endpoint, key_id) = (caller.0, caller.1);
        let record = self.record(caller, outcome, now);
        if let (Some(usage), Outcome::Ok) = (self.usage, outcome) {
            self.check_count(endpoint, usage.prompt_tokens);
        }
        if let Some(charged) = self.charged.take() {
            charged.correct(record.output_tokens.unwrap_or(0), self.core.sweep.now_ms());
        }
        self.count(&record, now);
        self.learn_answer(&record, now);
        // Refused before a place was taken: one more try, so that refusals are on record too.
        let slot = self.slot.take().or_else(|| {
            let opening = self.opening(endpoint, key_id, &record.tenant);
            self.core.shared.usage.reserve(&opening).ok()
        });
        if let Some(slot) = slot {
            slot.push(record);
        }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.core.metrics.in_flight.add(-1);
        self.ended(Outcome::UpstreamError);
        self.tell();
    }
}
