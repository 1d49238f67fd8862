//! What is told of a request besides its record: the trace that it is part of, and its line in the
//! access log. Part of [`super`], on the request's core; nothing of it happens where neither is on.

use super::Ticket;
use crate::admin::Stage;
use crate::gateway::exchange::Attempt;
use crate::http1::write;
use crate::openai::Endpoint;
use crate::replicas::Replica;
use crate::runtime::cells::Exemplar;
use crate::runtime::clock;
use crate::telemetry::{Parent, Request, Trace, Traces, is_state};
use crate::usage::Outcome;

/// The trace context of a request.
#[derive(Default)]
pub(super) struct Context {
    /// The caller's, and the field as it came.
    parent: Option<(Parent, Box<[u8]>)>,
    /// The list of other systems' states, as it came.
    state: Option<Box<[u8]>>,
    /// Ours, where requests are traced.
    own: Option<Parent>,
    /// What is recorded of it.
    trace: Option<Box<Trace>>,
}

impl Context {
    /// From the fields of a head that was there at `started_ns`. A caller's context that is broken
    /// is as none (W3C Trace Context, section 4.3).
    pub(super) fn of(
        traces: Option<&Traces>,
        (parent, state): (Option<&[u8]>, Option<&[u8]>),
        random: impl FnMut() -> u64,
        started_ns: u64,
    ) -> Context {
        let parent = parent.and_then(|field| Some((Parent::parse(field)?, field.into())));
        let state = state.filter(|field| parent.is_some() && is_state(field)).map(Into::into);
        let own = traces.map(|traces| traces.begin(parent.as_ref().map(|(it, _)| it), random));
        let caller = parent.as_ref().map(|(parent, _)| parent.span_id);
        let trace = own.filter(Parent::is_sampled).map(|own| {
            Box::new(Trace::new(own.trace_id, caller, own.span_id, own.flags, started_ns))
        });
        Context { parent, state, own, trace }
    }

    fn ours_or_callers(&self) -> Option<&Parent> {
        self.own.as_ref().or(self.parent.as_ref().map(|(parent, _)| parent))
    }
}

impl Ticket<'_> {
    /// Will the request be told of?
    pub(super) fn tells(&self) -> bool {
        self.context.trace.is_some() || self.core.shared.access.is_some()
    }

    /// The head was not read: there is nothing to trace, and no method to tell.
    pub(in crate::gateway) fn unread(&mut self) {
        self.context = Context::default();
        self.is_unread = true;
    }

    /// Appends the trace context for the replica: as part of ours, or the caller's as it came.
    pub(in crate::gateway) fn write_trace_context(&self, out: &mut Vec<u8>) {
        let Context { parent, state, own, trace } = &self.context;
        match (own, parent) {
            (Some(own), _) => {
                let span_id = trace.as_ref().map_or(own.span_id, |trace| trace.attempt_id());
                let ours = Parent { span_id, ..*own }.to_field();
                let _ = write::field(out, "traceparent", &ours);
            }
            (None, Some((_, field))) => {
                let _ = write::field(out, "traceparent", field);
            }
            (None, None) => return,
        }
        if let Some(state) = state {
            let _ = write::field(out, "tracestate", state);
        }
    }

    /// A stage is over that was under way since `since_ns`.
    pub(super) fn trace_stage(&mut self, stage: Stage, since_ns: u64, now_ns: u64) {
        let Some(trace) = &mut self.context.trace else { return };
        match stage {
            Stage::Connect => trace.attempt_stage(stage.label(), since_ns, now_ns),
            _ => trace.stage(stage.label(), since_ns, now_ns),
        }
    }

    pub(super) fn trace_queue(&mut self, waited_ns: u64, now_ns: u64) {
        if let Some(trace) = &mut self.context.trace {
            trace.stage("queue", now_ns.saturating_sub(waited_ns), now_ns);
        }
    }

    pub(super) fn trace_leg(&mut self, began_ns: u64, now_ns: u64) {
        if let Some(trace) = &mut self.context.trace {
            trace.stage("prefill", began_ns, now_ns);
        }
    }

    pub(super) fn trace_attempt(&mut self, replica: &Replica) {
        if let Some(trace) = &mut self.context.trace {
            trace.attempt(self.stage_at_ns, replica.id.clone(), &replica.authority);
        }
    }

    pub(super) fn trace_first_token(&mut self, now_ns: u64) {
        if let Some(trace) = &mut self.context.trace {
            trace.first_token(now_ns);
        }
    }

    /// The attempt has come to nothing; the time that it took is none of the next stage's.
    pub(in crate::gateway) fn attempt_failed(&mut self, why: &Attempt) {
        self.stage_at_ns = clock::now_ns();
        if let Some(sent_ns) = self.sent_ns.filter(|_| !self.connecting) {
            self.failed_ns = self.stage_at_ns.saturating_sub(sent_ns);
        }
        if let Some(trace) = &mut self.context.trace {
            trace.attempt_ended(self.stage_at_ns, Some(why.reason()));
        }
    }

    /// The exemplar that the wait for its first content makes, where others record its trace too.
    pub(super) fn exemplar(&self, ttft_ns: u64) -> Option<Exemplar> {
        let of = self.context.ours_or_callers().filter(|of| of.is_sampled())?;
        Some(Exemplar { trace_id: of.trace_id, ns: ttft_ns, unix_ms: clock::unix_ms() })
    }

    /// The request is over, and everything is known of it that will be.
    pub(super) fn tell(&mut self) {
        if !self.tells() {
            return;
        }
        let request = self.told();
        let (access, traces) = (&self.core.shared.access, &self.core.shared.traces);
        // Whoever has no key cannot crowd out the traces of others, nor does a balancer's question.
        let is_ours = self.who.is_some() && self.endpoint != Some(Endpoint::Health);
        let trace = self.context.trace.take().filter(|_| is_ours);
        if let (Some(mut trace), Some(traces)) = (trace, traces) {
            let error = match request.outcome {
                Some(Outcome::Ok) | None => None,
                Some(outcome) => Some(outcome.as_str()),
            };
            trace.attempt_ended(request.ended_ns, error);
            traces.ended(*trace, request.clone());
        }
        if let Some(access) = access {
            access.push(request);
        }
    }

    fn told(&self) -> Request {
        let call = self.call.as_ref();
        let now = clock::now_ns();
        let (who, key_id) = match &self.who {
            Some((key_id, tenant)) => (Some(tenant.clone()), *key_id),
            None => (None, crate::tenants::KeyId::OPEN),
        };
        let tokens = match self.outcome {
            Some(outcome) => {
                let (input, output) = self.used(outcome);
                [Some(input), self.usage.and_then(|usage| usage.cached_tokens), Some(output)]
            }
            None => [None; 3],
        };
        Request {
            method: if self.is_unread { "-" } else { self.head.method.as_str() },
            route: self.endpoint.map(Endpoint::route_name),
            operation: self.endpoint.and_then(Endpoint::operation),
            status: self.status,
            tenant: who,
            key_id,
            request_id: self.id,
            // An unknown model is whatever a caller wrote: only its usage record tells that.
            model: self.model.clone().filter(|_| call.is_some()),
            pool: call.map(|call| call.pool.name.clone()),
            adapter: call.and_then(|call| call.adapter.clone()),
            replica: self.replica.as_ref().map(|replica| replica.id.clone()),
            stream: self.stream,
            outcome: self.outcome,
            attempts: self.attempts,
            ended_unix_ns: clock::unix_ns(),
            ended_ns: now,
            total_ns: now.saturating_sub(self.started_ns),
            ttft_ns: self.first_content_ns.map(|at| at.saturating_sub(self.started_ns)),
            queue_ns: self.queue_ns,
            bytes_in: u64::from(self.head.head_bytes).saturating_add(self.body_bytes),
            bytes_out: self.sent_bytes,
            tokens,
            trace_id: self.context.ours_or_callers().map(|of| of.trace_id),
        }
    }
}
