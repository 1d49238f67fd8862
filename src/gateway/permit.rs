//! The stage that lets a request start: at once, after a wait in the core's queue, or not at all.
//!
//! Whether it may is decided by `admission` on the prediction for the best replica, in the same
//! moment in which that replica is picked. A request that waits holds its reservation and no
//! replica; its client is watched. What is tried again after a failed attempt has its permit.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::connection::Client;
use super::core::Core;
use super::gate::Gate;
use super::pick::{self, Chosen, Routed};
use super::plan::Plan;
use super::reply::Failure;
use super::ticket::Ticket;
use super::waiting::{Bounds, Call, Wait};
use crate::admin::Stage;
use crate::admission::limits::{Asked, ever_fits};
use crate::admission::release::retry_after_ms;
use crate::admission::{Case, Limits, Predicted, Running, Standing, Verdict, Waiting, Why, judge};
use crate::prompt::Basis;
use crate::replicas::Lane;
use crate::routing::{Candidate, Pick};

/// What is asked of a prediction before a request may start.
pub(super) struct Door<'d> {
    core: &'d Core,
    gate: &'d Arc<Gate>,
    limits: Limits,
    /// Predictions of the first token are off by this factor; `None`: nothing is known of them.
    ttft_scale: Option<f64>,
    /// Predictions of later tokens are those of this pool.
    knows_tpot: bool,
    standing: Standing,
    tenant: usize,
    class: u64,
    tokens: u64,
    /// Tokens that one sequence is expected to have.
    output_tokens: f64,
    /// Prompt and answer at most of one sequence, and whether the prompt is counted.
    whole: Option<(u64, bool, u64)>,
    waited_ms: f64,
    /// It waits already, and it is its turn.
    called: bool,
    queue_ms_max: u64,
    pub headroom: f64,
    /// What was seen of the pool when last asked: what runs, and the KV tokens of all.
    running: Cell<Running>,
    pool_tokens: Cell<u64>,
}

/// Picks a replica for a request's first attempt once it may start.
pub(super) async fn pass<'p>(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &'p Plan<'_>,
    ticket: &mut Ticket<'_>,
) -> Result<(&'p Lane, Routed), Failure> {
    let gate = plan.published.gates.pool(plan.served.pool);
    let Some(gate) = gate.filter(|_| plan.endpoint.generates()) else {
        return match pick::pick(core, plan, ticket, None) {
            Chosen::Lane(lane, routed) => Ok((lane, routed)),
            _ => Err(Failure::NoHealthyReplica),
        };
    };
    let mut door = Door::new(core, plan, ticket, gate);
    ticket.stage_ended(Stage::Admission);
    let chosen = pick::pick(core, plan, ticket, Some(&door));
    let (lane, routed) = match chosen {
        Chosen::Lane(lane, routed) => (lane, routed),
        Chosen::Nobody => return Err(Failure::NoHealthyReplica),
        Chosen::Refused(failure) => return Err(door.refused(plan, failure)),
        Chosen::Wait(most_ms) => wait(core, client, plan, (ticket, &mut door), most_ms).await?,
    };
    let uncached = door.tokens_of(ticket).saturating_sub(routed.pick.cached_tokens);
    let now_ms = core.sweep.now_ms();
    let expected = (uncached, plan.output_tokens as f64);
    ticket.charged = Some(gate.charge(door.tenant, expected, now_ms));
    Ok((lane, routed))
}

/// Waits in the core's queue until there is a place.
async fn wait<'p>(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &'p Plan<'_>,
    (ticket, door): (&mut Ticket<'_>, &mut Door<'_>),
    most_ms: u64,
) -> Result<(&'p Lane, Routed), Failure> {
    let cells = core.pools.pool(&core.metrics, &plan.pool.name);
    let now_ms = core.sweep.now_ms();
    let waiting = Waiting {
        tenant: door.tenant,
        class: door.class,
        tokens: door.tokens,
        since_ms: now_ms,
        until_ms: now_ms.saturating_add(most_ms),
    };
    let bounds = Bounds {
        requests_max: plan.published.config.admission.queue_requests_max,
        tokens_max: door.pool_tokens.get(),
        long_ms: (door.queue_ms_max / 2).max(1),
    };
    let Some(wait) = Wait::enter(core, door.gate, cells, waiting, bounds) else {
        return Err(door.late(plan, Why::QueueFull));
    };
    client.deadline.set(most_ms.max(1));
    let found = turns(core, client, plan, (&mut *ticket, door), &wait).await;
    // A wait in vain was one too: its time is the queue's, and not the gateway's.
    ticket.queued(if found.is_ok() { wait.served() } else { wait.in_vain() });
    found
}

/// Looks for a place whenever it is called, until there is one or the wait is over.
async fn turns<'p>(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &'p Plan<'_>,
    (ticket, door): (&mut Ticket<'_>, &mut Door<'_>),
    wait: &Wait<'_>,
) -> Result<(&'p Lane, Routed), Failure> {
    loop {
        let called = poll_fn(|cx| {
            if client.poll_gone(cx, core).is_ready() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            if let Poll::Ready(call) = wait.poll_called(cx) {
                // It may have gone in this very turn, and the driver not told yet.
                let gone = client.has_gone(core);
                return Poll::Ready(if gone { Err(Failure::ClientGone) } else { Ok(Some(call)) });
            }
            client.deadline.poll(cx).map(|()| match core.sweep.ended() {
                true => Err(Failure::Stopping),
                false => Ok(None),
            })
        });
        match called.await? {
            None => return Err(door.late(plan, Why::QueueTime)),
            Some(Call::PushedOut) => return Err(door.late(plan, Why::QueueFull)),
            Some(Call::Look) => {}
        }
        door.look_again(ticket);
        match pick::pick(core, plan, ticket, Some(door)) {
            Chosen::Lane(lane, routed) => return Ok((lane, routed)),
            Chosen::Wait(_) => wait.again(),
            Chosen::Nobody => return Err(Failure::NoHealthyReplica),
            Chosen::Refused(failure) => return Err(door.refused(plan, failure)),
        }
    }
}

impl<'d> Door<'d> {
    fn new(core: &'d Core, plan: &Plan<'_>, ticket: &Ticket<'_>, gate: &'d Arc<Gate>) -> Door<'d> {
        let published = plan.published;
        let learned = published.learned.get(plan.served.pool);
        let ttft_scale = learned.and_then(|learned| learned.pool.ttft_scale());
        let knows_leg = plan.prefill.as_ref().is_some_and(|far| far.ttft_scale().is_some());
        let knows_tpot = learned.is_some_and(|learned| learned.pool.knows_tpot());
        let prompt = ticket.prompt();
        let prompt_tokens = prompt.map_or(0, |prompt| prompt.tokens);
        let output_tokens = plan.output_tokens as f64 / plan.sequences.max(1) as f64;
        let slo = published.config.pools.get(plan.served.pool).map(|pool| pool.slo);
        let limits = Limits::of(&Asked {
            slo_ttft_ms: slo.and_then(|slo| slo.ttft_ms),
            slo_tpot_ms: slo.and_then(|slo| slo.tpot_ms),
            tier_deadline_ms: published.gates.deadline_ms(plan.tenant),
            caller_ms: ticket.deadline_ms,
            prompt_tokens,
            output_tokens: plan.output_tokens_limit(),
        });
        let admission = &published.config.admission;
        let tenant = usize::try_from(plan.tenant).unwrap_or(0);
        let whole = |prompt: &crate::prompt::Prompt| {
            let exact = prompt.basis == Basis::Exact;
            (prompt.longest, exact, plan.output_tokens_max.unwrap_or(1))
        };
        Door {
            core,
            gate,
            limits: limits.believing(ttft_scale.is_some() || knows_leg, knows_tpot),
            ttft_scale,
            knows_tpot,
            standing: gate.counters.asks(tenant, core.sweep.now_ms()),
            tenant,
            class: plan.adapter.unwrap_or(0),
            tokens: prompt_tokens.saturating_add(plan.output_tokens),
            output_tokens,
            whole: prompt.map(whole),
            waited_ms: ticket.elapsed_ms(),
            called: false,
            queue_ms_max: admission.queue_ms_max,
            headroom: admission.headroom_ratio,
            running: Cell::default(),
            pool_tokens: Cell::new(0),
        }
    }

    fn tokens_of(&self, ticket: &Ticket<'_>) -> u64 {
        ticket.prompt().map_or(0, |prompt| prompt.tokens)
    }

    /// It is its turn.
    fn look_again(&mut self, ticket: &Ticket<'_>) {
        self.called = true;
        self.waited_ms = ticket.elapsed_ms();
        self.standing = self.gate.counters.asks(self.tenant, self.core.sweep.now_ms());
    }

    /// May the request start where it was picked for? `full`: that is where it would go if it had
    /// to, and nobody has room. `before_ms`: what is expected to pass before it goes there. `Some`:
    /// it may wait for so many ms.
    pub(super) fn judge(
        &self,
        pick: &Pick,
        (full, before_ms): (bool, f64),
        (candidates, block_tokens): (&[Candidate], u64),
    ) -> Result<Option<u64>, Failure> {
        self.fits(candidates, block_tokens)?;
        // Of what is not known yet nothing is believed.
        let scale = self.ttft_scale.unwrap_or(0.0);
        let (tpot_ms, fleet_tpot_ms) =
            if self.knows_tpot { (pick.tpot_ms, pick.fleet_tpot_ms) } else { (0.0, 0.0) };
        let predicted = Predicted {
            ttft_ms: pick.ttft_ms * scale + before_ms,
            prefill_ms: pick.prefill_ms * scale,
            tpot_ms,
            fleet_tpot_ms,
            output_tokens: self.output_tokens,
        };
        let open = || candidates.iter().filter(|candidate| candidate.eligible);
        let sum = |of: fn(&Candidate) -> u64| open().fold(0, |n: u64, c| n.saturating_add(of(c)));
        let running = Running {
            requests: sum(|candidate| candidate.requests),
            tokens: sum(|candidate| candidate.load_tokens),
            answer_ms: self.output_tokens * pick.tpot_ms,
        };
        self.running.set(running);
        self.pool_tokens.set(sum(|candidate| candidate.blocks).saturating_mul(block_tokens));
        let before = || self.core.queues.before(self.gate, self.class, self.tenant);
        let (behind, tokens_before) = if self.called { (false, 0) } else { before() };
        let verdict = judge(&Case {
            limits: &self.limits,
            predicted,
            full,
            behind,
            waited_ms: self.waited_ms,
            standing: self.standing,
            running,
            tokens: self.tokens,
            tokens_before,
            queue_ms_max: self.queue_ms_max,
        });
        match verdict {
            Verdict::Start => Ok(None),
            Verdict::Wait { most_ms } => Ok(Some(most_ms)),
            Verdict::Refuse { why, retry_after_ms } => {
                Err(Failure::Overloaded { why, retry_after_ms })
            }
        }
    }

    /// Could any replica that may take it ever hold it?
    fn fits(&self, candidates: &[Candidate], block_tokens: u64) -> Result<(), Failure> {
        let Some((prompt, counted, output)) = self.whole else { return Ok(()) };
        let known = candidates.iter().filter(|candidate| candidate.eligible);
        let blocks = known.map(|it| if it.blocks == 0 { u64::MAX } else { it.blocks });
        let capacity = match blocks.max() {
            None | Some(u64::MAX) => 0,
            Some(blocks) => blocks.saturating_mul(block_tokens),
        };
        match ever_fits(capacity, prompt, counted, output) {
            true => Ok(()),
            false => Err(Failure::NeverFits { capacity, tokens: prompt, output }),
        }
    }

    /// Its wait was in vain: the time is what it would take now.
    fn late(&self, plan: &Plan<'_>, why: Why) -> Failure {
        let room_ms = self.running.get().until_tokens(self.tokens);
        self.refused(plan, Failure::Overloaded { why, retry_after_ms: retry_after_ms(room_ms) })
    }

    /// Counts a refusal.
    fn refused(&self, plan: &Plan<'_>, failure: Failure) -> Failure {
        if let Failure::Overloaded { why, .. } = &failure {
            let cells = self.core.pools.pool(&self.core.metrics, &plan.pool.name);
            if let Some(cell) = cells.shed.get(*why as usize) {
                cell.inc();
            }
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use crate::admin::SHED_REASONS;
    use crate::admission::Why;

    #[test]
    fn every_reason_has_its_cell() {
        let labels: Vec<_> = Why::ALL.iter().map(|(why, label)| (*why as usize, *label)).collect();
        let cells: Vec<_> = SHED_REASONS.into_iter().enumerate().collect();
        assert_eq!(labels, cells);
    }
}
