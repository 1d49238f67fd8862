//! What a tenant may spend: tokens by a bucket, sequences in flight by a count.
//!
//! A request *reserves* its largest cost before it starts ([`Account::reserve`]) and *settles* once
//! at its end ([`Account::settle`]): what the engine did is paid, the rest goes back. A tenant has
//! one account, and one more for each of its keys that has limits of its own; a request passes both
//! or neither ([`Budget`]).
//!
//! Pure: time is an argument, state is a few atomics that all cores share and none waits for.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod account;
mod bucket;
mod budget;
pub mod store;

pub use account::{Account, Counts};
pub use budget::Budget;

/// What an account may spend. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How fast the bucket fills, in tokens a second. Without it there is no bucket.
    pub tokens_per_second: Option<u64>,
    /// Size of the bucket in tokens; by default [`BURST_SECONDS`] of the rate.
    pub burst_tokens: Option<u64>,
    /// Sequences that may be in flight at once: a request with `n` = 4 is four.
    pub in_flight_max: Option<u64>,
}

/// A bucket holds this many seconds of its rate when no burst is set.
pub const BURST_SECONDS: u64 = 10;

impl Limits {
    /// Rate and size of the bucket in tokens a second and tokens, when tokens are limited.
    pub fn bucket(&self) -> Option<(u64, u64)> {
        let rate = self.tokens_per_second?.max(1);
        let burst = self.burst_tokens.unwrap_or_else(|| rate.saturating_mul(BURST_SECONDS));
        Some((rate, burst))
    }

    /// Whether anything is limited at all.
    pub fn any(&self) -> bool {
        self.tokens_per_second.is_some() || self.in_flight_max.is_some()
    }
}

/// What a request wants to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Of the reservation; unique over all gateways. The store `memory` has no use for it.
    pub id: u128,
    /// The most that it can cost.
    pub tokens: u64,
    /// How many answers it asks for.
    pub sequences: u64,
}

/// Why a reservation was refused. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It costs more than the bucket can ever hold.
    TooLarge {
        /// What the bucket holds when full.
        burst_tokens: u64,
    },
    /// It asks for more sequences than may ever be in flight.
    TooWide {
        /// How many may be.
        in_flight_max: u64,
    },
    /// The bucket holds less than it costs.
    Tokens {
        /// After this time it passes, if nobody else spends.
        retry_after_ms: u64,
    },
    /// Too many sequences are in flight.
    Concurrency {
        /// When enough of them should have ended, by how long answers took lately.
        retry_after_ms: u64,
    },
}

/// How an account stands, for the fields `x-ratelimit-*` of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Of its bucket, when tokens are limited.
    pub tokens: Option<TokenStanding>,
    /// Of its sequences, when they are limited.
    pub sequences: Option<SequenceStanding>,
}

/// How a bucket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenStanding {
    /// Tokens that it holds when full.
    pub limit: u64,
    /// Tokens in it now.
    pub remaining: u64,
    /// Until it is full, in milliseconds, if nobody spends.
    pub reset_ms: u64,
}

/// How many sequences may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStanding {
    /// How many may be in flight at once.
    pub limit: u64,
    /// How many more may start now.
    pub remaining: u64,
}

#[cfg(test)]
mod tests;
