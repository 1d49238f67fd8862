//! Everything about a request that an attempt needs, the same for each attempt.

use std::sync::Arc;

use super::body::Body;
use super::connection::Client;
use super::frames::Outgoing;
use super::prefill::Far;
use super::reply::Failure;
use super::shared::Published;
use super::ticket::Ticket;
use crate::admission::limits;
use crate::http1::{Method, RequestHead, Version, write};
use crate::openai::{Call, Edits, Endpoint};
use crate::replicas::adapters::adapter_hash;
use crate::replicas::{Pool, Replica, Served};
use crate::routing::Policy;
use crate::tenants::TenantRef;

/// Tokens that a request without a limit may take, for its time limit only.
const OUTPUT_TOKENS_DEFAULT: u64 = 1_000;

/// See the module.
pub(super) struct Plan<'p> {
    pub endpoint: Endpoint,
    pub stream: bool,
    pub outgoing: Outgoing,
    pub client_keeps: bool,
    /// Output tokens of one sequence that the request may take, if it says so.
    pub output_tokens_max: Option<u64>,
    /// Sequences that it asks for.
    pub sequences: u64,
    /// Output tokens that it is expected to make, over all its sequences.
    pub output_tokens: u64,
    /// A number of the caller's, for what is learned of its answers.
    pub tenant: u64,
    /// A hash of the adapter that it asks for.
    pub adapter: Option<u64>,
    pub take_usage_out: bool,
    pub edits: Edits,
    pub body: Body,
    content_type: Option<Vec<u8>>,
    pub served: Served,
    pub pool: Arc<Pool>,
    pub published: &'p Published,
    /// How its replica is chosen.
    pub policy: Policy,
    /// How its prompt may be prefilled elsewhere.
    pub prefill: Option<Box<Far<'p>>>,
    /// It is the part of another that only prefills.
    pub prefills: bool,
}

impl<'p> Plan<'p> {
    pub(super) fn new(
        client: &Client,
        head: &RequestHead,
        (endpoint, call, policy, tenant): (Endpoint, &Call, Policy, TenantRef),
        edits: Edits,
        body: Body,
        served: Served,
        published: &'p Published,
    ) -> Result<Plan<'p>, Failure> {
        let pool = published.fleet.pools.get(served.pool).ok_or(Failure::NoHealthyReplica)?;
        let learned = published.learned.get(served.pool).filter(|_| endpoint.generates());
        let most = call.output_tokens_max();
        let expected = learned.map_or(0.0, |it| it.pool.expected_tokens(most, tenant.index as u64));
        let own_type = head.content_type.filter(|_| endpoint.multipart());
        Ok(Plan {
            endpoint,
            stream: call.stream && endpoint.streams(),
            outgoing: match head.version {
                Version::Http11 => Outgoing::Chunked,
                Version::Http10 => Outgoing::Plain,
            },
            client_keeps: head.keep_alive,
            output_tokens_max: call.output_tokens_max(),
            sequences: call.sequences(),
            output_tokens: (expected * call.sequences() as f64) as u64,
            tenant: tenant.index as u64,
            adapter: served.adapter.as_deref().map(adapter_hash),
            take_usage_out: endpoint.usage_is_asked_for() && !call.client_asked_for_usage(),
            edits,
            body,
            content_type: own_type.map(|s| s.of(client.inbox.filled()).to_vec()),
            pool: Arc::clone(pool),
            served,
            published,
            policy,
            prefill: None,
            prefills: false,
        })
    }

    /// The same for a pool that only prefills, with `edits` of its own to the same body.
    pub(super) fn for_prefill(&self, edits: Edits, served: Served, pool: &Arc<Pool>) -> Plan<'p> {
        Plan {
            endpoint: self.endpoint,
            stream: false,
            outgoing: self.outgoing,
            client_keeps: self.client_keeps,
            output_tokens_max: Some(1),
            sequences: 1,
            output_tokens: 1,
            tenant: self.tenant,
            adapter: self.adapter,
            take_usage_out: false,
            edits,
            body: self.body.clone(),
            content_type: None,
            served,
            pool: Arc::clone(pool),
            published: self.published,
            policy: self.policy,
            prefill: None,
            prefills: true,
        }
    }

    /// Time until the first content must be there, in ms; 0 = any. An answer that is no stream is
    /// all there at once, so it gets the time of its tokens besides.
    pub(super) fn first_ms(&self) -> u64 {
        let timeouts = &self.published.timeouts;
        match (timeouts.first_token_ms, timeouts.next_token_ms) {
            (first, _) if self.stream || self.prefills || !self.endpoint.generates() => first,
            (0, _) | (_, 0) => 0,
            (first, next) => {
                let tokens = self.output_tokens_max.unwrap_or(OUTPUT_TOKENS_DEFAULT);
                first.saturating_add(next.saturating_mul(tokens))
            }
        }
    }

    /// By when its tier has it end, in ms since it came. An answer that comes all at once and has
    /// no limit may take as long as it is; of a stream its content shows that it goes on.
    pub(super) fn end_ms(&self) -> Option<u64> {
        if !self.stream && self.endpoint.generates() && self.output_tokens_max.is_none() {
            return None;
        }
        let base_ms = self.published.gates.deadline_ms(self.tenant);
        let pool = self.published.config.pools.get(self.served.pool)?;
        limits::end_ms(base_ms, pool.slo.tpot_ms, self.output_tokens_limit()).map(|ms| ms as u64)
    }

    /// Output tokens of one sequence: as many as it may take, or is expected to.
    pub(super) fn output_tokens_limit(&self) -> u64 {
        let expected = self.output_tokens as f64 / self.sequences.max(1) as f64;
        self.output_tokens_max.unwrap_or(expected as u64)
    }

    /// The request's head for `replica`, written anew from the fields that we allow.
    pub(super) fn write_head(
        &self,
        replica: &Replica,
        ticket: &Ticket<'_>,
        length: usize,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(384);
        // Every value below was checked by whoever parsed it; one that is unfit is left out.
        let _ = write::request_line(&mut out, Method::Post, self.endpoint.path());
        let _ = write::field(&mut out, "host", replica.authority.as_bytes());
        if let Some(key) = &self.pool.api_key {
            out.extend_from_slice(b"authorization: Bearer ");
            out.extend_from_slice(key.expose().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        let kind = self.content_type.as_deref().unwrap_or(b"application/json");
        let _ = write::field(&mut out, "content-type", kind);
        write::number_field(&mut out, "content-length", length as u64);
        let _ = write::field(&mut out, "accept-encoding", b"identity");
        let _ = write::field(&mut out, "x-request-id", ticket.request_id());
        let rank = if self.prefills { ticket.leg_rank() } else { ticket.rank() };
        if let Some(rank) = rank {
            write::number_field(&mut out, "x-data-parallel-rank", rank.into());
        }
        ticket.write_trace_context(&mut out);
        out.extend_from_slice(b"\r\n");
        out
    }
}
