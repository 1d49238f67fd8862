//! What a ticket keeps of a request's way through the pool that prefills: who was asked, what was
//! handed over, and whether that is still there. State of one request, on its core.

use std::sync::Arc;

use super::Leg;
use crate::gateway::exchange::Attempt;
use crate::gateway::pick::Routed;
use crate::gateway::ticket::Ticket;
use crate::openai::Edits;
use crate::replicas::{Failure as ReplicaFailure, Replica};

/// What became of a request at the other pool.
#[derive(Default)]
pub(in crate::gateway) struct Legs {
    /// Lanes there that failed it, by index.
    pub(super) tried: Vec<usize>,
    /// The body with what was handed over, until it is used.
    pub(super) handed: Option<Box<Edits>>,
    /// From here on it is computed where it is decoded.
    pub(super) off: bool,
    /// Who has prefilled it, and the rank that the leg under way asks for.
    pub(super) replica: Option<Arc<Replica>>,
    pub(super) rank: Option<u32>,
    /// It was sent there, and is there now.
    pub(super) ran: bool,
    pub(super) under_way: bool,
    pub(super) took_ns: u64,
}

/// A decode attempt has failed: is what was handed over for it still there? It can be fetched once,
/// and an engine that cannot fetch it says no more than that it failed. So after such a word the
/// prompt is computed by whoever decodes it, be it the same replica, whose health it is not.
pub(in crate::gateway) fn decode_failed(ticket: &mut Ticket<'_>, why: &Attempt) {
    let replica = ticket.replica();
    let Some(legs) = ticket.legs.as_mut().filter(|legs| legs.handed.is_some()) else { return };
    match why {
        // It was sent nothing.
        Attempt::Failed(Some(ReplicaFailure::Refused) | None, _) => {}
        Attempt::Said(Some(ReplicaFailure::Erred), _) => {
            (legs.handed, legs.off) = (None, true);
            ticket.tried.pop();
            let same = |erred: &Arc<Replica>| replica.as_ref().is_some_and(|r| r.key == erred.key);
            ticket.erred.pop_if(|erred| same(erred));
        }
        _ => legs.handed = None,
    }
}

impl Ticket<'_> {
    /// Lanes of the prefill pool that have failed the request, by index.
    pub(in crate::gateway) fn legs_tried(&self) -> &[usize] {
        self.legs.as_ref().map_or(&[], |legs| legs.tried.as_slice())
    }

    /// The data-parallel rank that the leg under way asks for.
    pub(in crate::gateway) fn leg_rank(&self) -> Option<u32> {
        self.legs.as_ref().and_then(|legs| legs.rank)
    }

    /// The body for whoever decodes, with what was handed over.
    pub(in crate::gateway) fn handed_edits(&self) -> Option<&Edits> {
        self.legs.as_ref().and_then(|legs| legs.handed.as_deref())
    }

    /// Who has prefilled it for whoever decodes.
    pub(in crate::gateway) fn prefilled_by(&self) -> Option<&Replica> {
        let legs = self.legs.as_ref().filter(|legs| legs.handed.is_some())?;
        legs.replica.as_deref()
    }

    /// Is it being prefilled elsewhere now?
    pub(in crate::gateway) fn is_prefilling(&self) -> bool {
        self.legs.as_ref().is_some_and(|legs| legs.under_way)
    }

    /// Has an engine that prefills worked on it?
    pub(in crate::gateway) fn was_prefilled(&self) -> bool {
        self.legs.as_ref().is_some_and(|legs| legs.ran)
    }

    /// Time that the legs took, in ns.
    pub(in crate::gateway) fn legs_ns(&self) -> u64 {
        self.legs.as_ref().map_or(0, |legs| legs.took_ns)
    }

    /// Sent to a replica that prefills.
    pub(in crate::gateway) fn leg_sent(&mut self) {
        self.legs.iter_mut().for_each(|legs| legs.ran = true);
    }

    pub(super) fn leg_begins(&mut self) {
        self.legs.iter_mut().for_each(|legs| legs.under_way = true);
    }

    /// The leg that is to be done before it goes where it was picked for.
    pub(super) fn take_leg(&mut self) -> Option<Routed> {
        let leg = &mut self.routed_mut()?.leg;
        match std::mem::replace(leg, Leg::FellBack) {
            Leg::To(routed) => Some(*routed),
            other => {
                *leg = other;
                None
            }
        }
    }

    /// The request is over in the midst of a leg, which stays its phase; the time is the leg's.
    pub(super) fn leg_cut(&mut self, began_ns: u64) {
        let took_ns = self.leg_took(began_ns);
        self.legs.iter_mut().for_each(|legs| legs.took_ns = legs.took_ns.saturating_add(took_ns));
    }

    pub(super) fn leg_ended(&mut self, began_ns: u64, handed: Option<Box<Edits>>) {
        let took_ns = self.leg_took(began_ns);
        if let Some(routed) = self.routed_mut().filter(|_| handed.is_some()) {
            routed.leg = Leg::Done;
        }
        if let Some(legs) = &mut self.legs {
            (legs.off, legs.handed, legs.under_way) = (handed.is_none(), handed, false);
            legs.took_ns = legs.took_ns.saturating_add(took_ns);
        }
    }
}
