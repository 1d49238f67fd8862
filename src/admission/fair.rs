//! What each tenant has had of a pool, in tokens: of an answer each counts double, since it takes
//! a step of its own (as in the virtual token counters of Sheng et al., OSDI 2024).
//!
//! Two measures of the same service, shared by all cores as relaxed atomics:
//!
//! - The *virtual counter* only grows, by tokens over the tenant's weight. A queue serves the least
//!   first, and lifts who comes back to the least of those that wait: there is no credit for time
//!   away.
//! - The *recent share* fades over some seconds. Where nothing waits but the fleet refuses, it is
//!   what decides who is refused: a tenant above its fair share is admitted up to a lower load than
//!   one within it, so that what a flood leaves is room for the others. It forgets, so that nobody
//!   pays for what was idle capacity an hour ago.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// An output token counts as so many.
const OUTPUT_WEIGHT: f64 = 2.0;
/// Virtual tokens in fixed point: parts of one.
const PARTS: f64 = 1024.0;
/// Time in ms over which what a tenant had fades.
const FADE_MS: f64 = 5_000.0;
/// A tenant counts as active in the span of so many ms in which it asks, and in the next.
const SPAN_MS: u64 = 5_000;
/// Fewer tokens than this in all say nothing of shares.
const TOKENS_MIN: f64 = 1_000.0;

/// A tenant's share counts as far above its fair one from this ratio on.
const FAR_ABOVE: f64 = 1.5;
/// Share of the bound on load up to which such a tenant is admitted.
const BOUND_FAR_ABOVE: f64 = 0.76;
/// The same for each step by which its tier comes behind the first that is active.
const BOUND_BEHIND: f64 = 0.9;
const BEHIND_MAX: i32 = 3;

/// What a tenant is entitled to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Against the others', above 0.
    pub weight: f64,
    /// Lower is served first.
    pub priority: u8,
}

/// How a tenant stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// What it had lately over its fair share of what all had.
    pub ratio: f64,
    /// Classes of priority by which it comes behind the first that is active.
    pub behind: u8,
}

impl Default for Standing {
    /// Nobody has more or less than another.
    fn default() -> Standing {
        Standing { ratio: 1.0, behind: 0 }
    }
}

impl Standing {
    /// The load up to which it is admitted, as a share of the usual bound.
    #[must_use]
    pub fn bound(&self) -> f64 {
        let above = ((self.ratio - 1.0) / (FAR_ABOVE - 1.0)).clamp(0.0, 1.0);
        let fair = 1.0 - above * (1.0 - BOUND_FAR_ABOVE);
        fair * BOUND_BEHIND.powi(i32::from(self.behind).min(BEHIND_MAX))
    }
}

/// An `f32` that fades, with the low half of the time at which it was written, in one word.
#[derive(Debug, Default)]
struct Fading(AtomicU64);

impl Fading {
    fn left(word: u64, now_ms: u64) -> f64 {
        let value = f64::from(f32::from_bits((word >> 32) as u32));
        let age_ms = (now_ms as u32).wrapping_sub(word as u32);
        // Another core's clock was read a moment later.
        if age_ms > u32::MAX / 2 { value } else { value * (-f64::from(age_ms) / FADE_MS).exp() }
    }

    fn get(&self, now_ms: u64) -> f64 {
        Fading::left(self.0.load(Relaxed), now_ms)
    }

    fn add(&self, tokens: f64, now_ms: u64) {
        let next = |word: u64| {
            let value = (Fading::left(word, now_ms) + tokens).max(0.0) as f32;
            Some(u64::from(value.to_bits()) << 32 | u64::from(now_ms as u32))
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, next);
    }
}

/// Who asks in a span of time.
#[derive(Debug, Default)]
struct Span {
    /// Its number in the upper half, the sum of weights in thousandths in the lower.
    weights: AtomicU64,
    /// Its number in the upper half, 255 less the least priority in the lower.
    first: AtomicU64,
}

/// What a word of the span `number` says; 0 when it is of another span.
fn of_span(word: u64, number: u32) -> u32 {
    if (word >> 32) as u32 == number { word as u32 } else { 0 }
}

impl Span {
    fn enter(&self, number: u32, share: &Share) {
        let upper = u64::from(number) << 32;
        let thousandths = (share.weight * 1e3) as u32;
        let _ = self.weights.fetch_update(Relaxed, Relaxed, |word| {
            Some(upper | u64::from(of_span(word, number).saturating_add(thousandths)))
        });
        let first = 255 - u32::from(share.priority);
        let _ = self.first.fetch_update(Relaxed, Relaxed, |word| {
            Some(upper | u64::from(of_span(word, number).max(first)))
        });
    }
}

#[derive(Debug)]
struct Tenant {
    share: Share,
    virtual_parts: AtomicU64,
    recent: Fading,
    /// The last span in which it asked, plus one.
    asked_in: AtomicU64,
}

/// The counters of a pool.
#[derive(Debug)]
pub struct Counters {
    tenants: Box<[Tenant]>,
    total: Fading,
    spans: [Span; 2],
}

impl Counters {
    /// For tenants with these shares; at least one. Who is none of them counts as the first.
    #[must_use]
    pub fn new(shares: &[Share]) -> Counters {
        let one = [Share { weight: 1.0, priority: 0 }];
        let shares = if shares.is_empty() { &one } else { shares };
        let tenant = |share: &Share| Tenant {
            share: Share { weight: share.weight.clamp(1e-3, 1e6), ..*share },
            virtual_parts: AtomicU64::new(0),
            recent: Fading::default(),
            asked_in: AtomicU64::new(0),
        };
        Counters {
            tenants: shares.iter().map(tenant).collect(),
            total: Fading::default(),
            spans: Default::default(),
        }
    }

    fn tenant(&self, tenant: usize) -> Option<&Tenant> {
        self.tenants.get(tenant).or(self.tenants.first())
    }

    /// What a tenant is entitled to.
    #[must_use]
    pub fn share(&self, tenant: usize) -> Share {
        self.tenant(tenant).map_or(Share { weight: 1.0, priority: 0 }, |it| it.share)
    }

    /// Its virtual counter.
    #[must_use]
    pub fn virtual_parts(&self, tenant: usize) -> u64 {
        self.tenant(tenant).map_or(0, |it| it.virtual_parts.load(Relaxed))
    }

    /// Lifts a virtual counter to at least `parts`.
    pub fn lift(&self, tenant: usize, parts: u64) {
        if let Some(tenant) = self.tenant(tenant) {
            tenant.virtual_parts.fetch_max(parts, Relaxed);
        }
    }

    /// A tenant asks at `now_ms`: how does it stand?
    pub fn asks(&self, tenant: usize, now_ms: u64) -> Standing {
        let Some(tenant) = self.tenant(tenant) else { return Standing::default() };
        let number = (now_ms / SPAN_MS) as u32;
        let [even, odd] = &self.spans;
        let (this, last) = if number.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        if tenant.asked_in.load(Relaxed) != u64::from(number) + 1
            && tenant.asked_in.swap(u64::from(number) + 1, Relaxed) != u64::from(number) + 1
        {
            this.enter(number, &tenant.share);
        }
        // A span that has just begun has seen few: the last one counts too.
        let both = |of: fn(&Span) -> &AtomicU64| {
            let before = of_span(of(last).load(Relaxed), number.wrapping_sub(1));
            of_span(of(this).load(Relaxed), number).max(before)
        };
        let weights = f64::from(both(|span| &span.weights)) / 1e3;
        let first = 255 - both(|span| &span.first).min(255);
        let total = self.total.get(now_ms);
        let fair = total * tenant.share.weight / weights.max(tenant.share.weight);
        Standing {
            ratio: if total < TOKENS_MIN { 1.0 } else { tenant.recent.get(now_ms) / fair },
            behind: tenant.share.priority.saturating_sub(first as u8),
        }
    }

    /// A request is sent: charges what it is expected to take.
    pub fn charge(&self, tenant: usize, input_tokens: u64, output_tokens: f64, now_ms: u64) {
        self.add(tenant, input_tokens as f64 + OUTPUT_WEIGHT * output_tokens, now_ms);
    }

    /// An answer was shorter or longer than was charged.
    pub fn correct(&self, tenant: usize, charged_tokens: f64, output_tokens: f64, now_ms: u64) {
        self.add(tenant, OUTPUT_WEIGHT * (output_tokens - charged_tokens), now_ms);
    }

    fn add(&self, tenant: usize, tokens: f64, now_ms: u64) {
        let Some(tenant) = self.tenant(tenant).filter(|_| tokens.is_finite()) else { return };
        let parts = (tokens.abs() * PARTS / tenant.share.weight) as u64;
        let _ = tenant.virtual_parts.fetch_update(Relaxed, Relaxed, |known| {
            Some(if tokens < 0.0 {
                known.saturating_sub(parts)
            } else {
                known.saturating_add(parts)
            })
        });
        tenant.recent.add(tokens, now_ms);
        self.total.add(tokens, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(tenants: usize) -> Counters {
        Counters::new(&vec![Share { weight: 1.0, priority: 0 }; tenants])
    }

    #[test]
    fn a_lone_tenant_is_never_above_its_share() {
        let counters = equal(5);
        for i in 0..1_000 {
            let standing = counters.asks(2, i * 20);
            assert!((standing.ratio - 1.0).abs() < 1e-3, "{standing:?}");
            counters.charge(2, 1_000, 300.0, i * 20);
        }
        assert_eq!(counters.asks(2, 20_000).bound(), 1.0);
    }

    #[test]
    fn who_floods_is_far_above_and_the_others_are_owed() {
        let counters = equal(8);
        let mut last = Vec::new();
        for i in 0..4_000u64 {
            // The first takes three of ten, the others one each.
            let tenant = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7][i as usize % 10];
            let standing = counters.asks(tenant, i * 5);
            counters.charge(tenant, 400, 300.0, i * 5);
            last.push((tenant, standing));
        }
        for (tenant, standing) in last.split_off(3_000) {
            let bound = standing.bound();
            let expected = if tenant == 0 { BOUND_FAR_ABOVE } else { 1.0 };
            assert_eq!(bound, expected, "tenant {tenant}: {standing:?}");
        }
        // Half a minute later nobody remembers.
        assert_eq!(counters.asks(0, 60_000).bound(), 1.0);
    }

    #[test]
    fn weights_and_priorities_count() {
        let counters = Counters::new(&[
            Share { weight: 4.0, priority: 0 },
            Share { weight: 1.0, priority: 2 },
        ]);
        for i in 0..500u64 {
            let tenant = usize::from(i % 5 == 4);
            counters.asks(tenant, i * 10);
            counters.charge(tenant, 1_000, 0.0, i * 10);
        }
        let [gold, free] = [counters.asks(0, 5_000), counters.asks(1, 5_000)];
        assert!((gold.ratio - 1.0).abs() < 0.05 && (free.ratio - 1.0).abs() < 0.05);
        assert_eq!((gold.behind, free.behind), (0, 2));
        assert!(free.bound() < gold.bound());
        assert_eq!(counters.virtual_parts(0), counters.virtual_parts(1));
        // Where the first class is silent the second is the first.
        assert_eq!(counters.asks(1, 30_000).behind, 0);
    }

    #[test]
    fn a_correction_takes_back_what_did_not_come() {
        let counters = equal(2);
        counters.charge(0, 100, 500.0, 0);
        counters.correct(0, 500.0, 200.0, 0);
        assert_eq!(counters.virtual_parts(0), ((100 + 400) as f64 * PARTS) as u64);
        counters.correct(0, 9e9, 0.0, 0);
        assert_eq!(counters.virtual_parts(0), 0);
        counters.charge(7, 10, f64::NAN, 0);
        assert_eq!(counters.virtual_parts(7), 0, "who is not known counts as the first");
    }

    #[test]
    fn threads_lose_nothing() {
        let counters = equal(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| counters.charge(1, 3, 1.0, 7)));
            }
        });
        assert_eq!(counters.virtual_parts(1), 40_000 * 5 * PARTS as u64);
        assert!((counters.total.get(7) - 200_000.0).abs() < 1.0);
    }
}
