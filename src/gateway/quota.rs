//! The stage that takes a request's largest cost out of its caller's budget before it starts, and
//! what the rest of its life needs to settle that once.
//!
//! Cost: the tokens of its prompts, and for each sequence the most that it may generate. Runs on
//! the core; with the store in memory it awaits nothing, and with one that gateways share only what
//! they have not taken ahead.

use super::core::Core;
use super::prompt::{self, Asked};
use super::reply::{Failure, Head};
use super::shared::Published;
use super::ticket::Ticket;
use crate::admin::Stage;
use crate::openai::Endpoint;
use crate::prompt::{Basis, Prompt};
use crate::runtime::clock;
use crate::tenants::quota::store::{Client, Denied, Hold};
use crate::tenants::quota::{Ask, Budget, Refused, Standing};

/// An estimated prompt may have a quarter more tokens, and these of its template.
const TEMPLATE_TOKENS: u64 = 256;

/// What a request may cost at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Tokens.
    tokens: u64,
    /// Answers that are generated at once.
    sequences: u64,
    /// The limit on its answer that it must be sent with, since it names none.
    fill_in: Option<u64>,
}

/// What a request's caller may spend, and what the request itself holds of it. Dropped open, it
/// gives everything back.
#[derive(Default)]
pub(super) struct Spending {
    budget: Budget,
    held: Option<Held>,
    /// What the engine does for it costs nothing.
    free: bool,
    settled: Settled,
}

/// A reservation, and where it was made.
enum Held {
    /// In this process.
    Here(Ask),
    /// In the store that gateways share.
    Shared(Client, Hold),
}

/// What became of a reservation, for the record. Zeros before it is settled, and without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// Tokens that were taken at the start.
    pub reserved: u64,
    /// Of these given back.
    pub refunded: u64,
}

/// The most that a request can cost. `room`: what its prompt leaves of the context, when that is
/// known; `default`: the limit on an answer without one.
fn cost(
    asked: &Asked<'_>,
    prompt: &Prompt,
    budget: &Budget,
    (room, default): (Option<u64>, u64),
) -> Cost {
    let call = asked.call;
    if !asked.endpoint.generates() {
        let tokens = if is_free(asked.endpoint) { 0 } else { prompt.tokens };
        return Cost { tokens, sequences: 1, fill_in: None };
    }
    let sequences = call.sequences().saturating_mul(call.prompts().max(1) as u64);
    let (output, fill_in) = match (prompt::output_tokens(asked), budget.burst_tokens()) {
        (Some(named), _) => (named, None),
        (None, None) => (0, None),
        (None, Some(burst)) => {
            let payable = burst.saturating_sub(prompt.tokens).checked_div(sequences).unwrap_or(0);
            // A limit below what it asks for at least makes any engine refuse it.
            let least = call.min_tokens.map_or(1, |least| least.value.max(1));
            let most = default.min(payable).max(least);
            match (room, likely_room(asked, prompt)) {
                (Some(room), _) => (most.min(room), Some(most.min(room))),
                // More than the engine has room for it would refuse, and it stops there anyhow.
                (None, Some(likely)) if most > likely => (most, None),
                (None, _) => (most, Some(most)),
            }
        }
    };
    let tokens = prompt.tokens.saturating_add(output.saturating_mul(sequences));
    Cost { tokens, sequences, fill_in }
}

/// Counting tokens runs on no GPU.
pub(super) fn is_free(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Tokenize | Endpoint::Detokenize | Endpoint::CountTokens)
}

/// What a prompt whose count may be wrong leaves of the context all the same.
fn likely_room(asked: &Asked<'_>, prompt: &Prompt) -> Option<u64> {
    let counted = prompt.basis == Basis::Exact && !asked.pool.state.prompts.is_doubtful();
    let slack = if counted { 0 } else { (prompt.longest / 4).saturating_add(TEMPLATE_TOKENS) };
    let context = asked.served.context_tokens?;
    Some(context.saturating_sub(prompt.longest.saturating_add(slack)))
}

/// Reserves what a request can cost at most; a caller without limits pays nothing, not even time.
/// `room`: what its prompt leaves of the context, when that is known exactly. The limit on its
/// answer that it must be sent with, if it names none.
///
/// # Errors
/// The budget does not allow it.
pub(super) async fn reserve(
    core: &Core,
    asked: &Asked<'_>,
    (room, published): (Option<u64>, &Published),
    ticket: &mut Ticket<'_>,
) -> Result<Option<u64>, Failure> {
    let budget = &ticket.spending.budget;
    let Some(prompt) = ticket.prompt().filter(|_| !budget.is_unlimited()) else {
        return Ok(None);
    };
    let default = published.config.quota.output_tokens_default;
    let cost = cost(asked, prompt, budget, (room, default));
    let held = take(core, budget, &cost).await?;
    ticket.spending.held = Some(held);
    ticket.spending.free = is_free(asked.endpoint);
    ticket.stage_ended(Stage::Quota);
    Ok(cost.fill_in)
}

/// Takes `cost` out of `budget`, or refuses the request.
async fn take(core: &Core, budget: &Budget, cost: &Cost) -> Result<Held, Failure> {
    let id = u128::from(core.random()) << 64 | u128::from(core.random());
    let ask = Ask { id, tokens: cost.tokens, sequences: cost.sequences };
    let taken = match (&core.quota, &budget.who) {
        (Some(client), Some(who)) => match client.reserve(who, ask).await {
            Ok(hold) => Ok(Held::Shared(client.clone(), hold)),
            Err(Denied::Refused(_, refused)) => Err(refused),
            Err(Denied::Away) => return Err(Failure::QuotaUnavailable),
        },
        _ => budget.reserve(clock::now_ns(), &ask).map(|()| Held::Here(ask)),
    };
    match taken {
        Ok(held) => Ok(held),
        Err(refused) => {
            let [tokens, concurrency, size] = &core.metrics.quota_rejects;
            match refused {
                Refused::Tokens { .. } => tokens.inc(),
                Refused::Concurrency { .. } => concurrency.inc(),
                Refused::TooLarge { .. } | Refused::TooWide { .. } => size.inc(),
            }
            Err(Failure::Quota { refused, tokens: ask.tokens, sequences: ask.sequences })
        }
    }
}

impl Spending {
    /// Of a caller with this budget.
    pub(super) fn of(budget: Budget) -> Spending {
        Spending { budget, held: None, free: false, settled: Settled::default() }
    }

    /// Pays for the tokens that the engine `used` and gives back the rest, at the first call.
    /// `took_ms`: from the request's head to now.
    pub(super) fn settle(&mut self, used: u64, took_ms: u64) {
        let Some(held) = self.held.take() else { return };
        let used = if self.free { 0 } else { used };
        let reserved = match held {
            Held::Here(ask) => {
                self.budget.settle(clock::now_ns(), &ask, used);
                ask.tokens
            }
            Held::Shared(client, hold) => {
                let tokens = hold.tokens();
                client.settle(hold, used);
                tokens
            }
        };
        if used > 0 {
            self.budget.answered(took_ms);
        }
        let refunded = reserved.saturating_sub(used);
        self.settled = Settled { reserved, refunded };
    }

    /// What became of the reservation.
    pub(super) fn settled(&self) -> Settled {
        self.settled
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.settle(0, 0);
    }
}

/// Adds the fields `x-ratelimit-*` of a caller that is limited.
pub(super) fn write_standing(spending: &Spending, head: &mut Head<'_>) {
    if spending.budget.is_unlimited() {
        return;
    }
    let Standing { tokens, sequences } = spending.budget.standing(clock::now_ns());
    if let Some(requests) = sequences {
        head.number("x-ratelimit-limit-requests", requests.limit);
        head.number("x-ratelimit-remaining-requests", requests.remaining);
    }
    if let Some(tokens) = tokens {
        head.number("x-ratelimit-limit-tokens", tokens.limit);
        head.number("x-ratelimit-remaining-tokens", tokens.remaining);
        head.field("x-ratelimit-reset-tokens", duration(tokens.reset_ms).as_bytes());
    }
}

/// A duration as OpenAI writes it, which is Go's way: `6m0s`, `1.2s`, `120ms`.
pub(super) fn duration(ms: u64) -> String {
    let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let fraction = match ms {
        0 => String::new(),
        ms => format!(".{ms:03}").trim_end_matches('0').to_owned(),
    };
    match (h, m, s) {
        (0, 0, 0) if ms > 0 => format!("{ms}ms"),
        (0, 0, s) => format!("{s}{fraction}s"),
        (0, m, s) => format!("{m}m{s}{fraction}s"),
        (h, m, s) => format!("{h}h{m}m{s}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_openai_writes_them() {
        for (ms, text) in [
            (0, "0s"),
            (1, "1ms"),
            (120, "120ms"),
            (1000, "1s"),
            (1200, "1.2s"),
            (1234, "1.234s"),
            (59_999, "59.999s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
            (90_061_050, "25h1m1.05s"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
