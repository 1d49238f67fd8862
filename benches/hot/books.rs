//! What the books cost: budgets, admission, metrics, records.

use std::hint::black_box;
use std::sync::Arc;

use expedite::admission::limits::Asked;
use expedite::admission::{Case, Limits, Predicted, Running, Standing, Verdict, judge};
use expedite::runtime::cells::Histogram;
use expedite::tenants::quota::{Account, Ask, Budget, Limits as Bounds};
use expedite::tenants::{KeyDigest, KeyId};
use expedite::usage::{Outcome, SmallId, TokensSource, UsageRecord};

use crate::rounds::Round;

/// A reservation of a tenant with a key of its own limit, and its settlement.
pub(crate) fn quota() -> Option<Round> {
    let bounds = Bounds {
        tokens_per_second: Some(1_000_000),
        burst_tokens: Some(1_000_000_000),
        in_flight_max: Some(1_000),
    };
    let account = |name| Some(Arc::new(Account::new(name, bounds, 0)));
    let budget = Budget { tenant: account("t"), key: account("t/k"), who: None };
    let ask = Ask { id: 7, tokens: 4_096, sequences: 1 };
    Some(Box::new(move |round| {
        let now_ns = (round + 1) * 1_000_000;
        assert!(black_box(&budget).reserve(now_ns, black_box(&ask)).is_ok());
        budget.settle(now_ns, black_box(&ask), 1_000);
    }))
}

/// May it start: within its limits, with room.
pub(crate) fn admission() -> Option<Round> {
    let asked = Asked {
        slo_ttft_ms: Some(400.0),
        slo_tpot_ms: Some(50.0),
        tier_deadline_ms: 30_000,
        prompt_tokens: 1_800,
        output_tokens: 300,
        ..Asked::default()
    };
    let predicted =
        Predicted { ttft_ms: 100.0, tpot_ms: 30.0, output_tokens: 300.0, ..Predicted::default() };
    Some(Box::new(move |_| {
        let limits = Limits::of(black_box(&asked));
        let case = Case {
            limits: &limits,
            predicted,
            full: false,
            behind: false,
            waited_ms: 0.0,
            standing: Standing::default(),
            running: Running { requests: 100, tokens: 200_000, answer_ms: 10_000.0 },
            tokens: 2_000,
            tokens_before: 0,
            queue_ms_max: 2_000,
        };
        assert_eq!(judge(black_box(&case)), Verdict::Start);
    }))
}

/// One entry of a histogram, of 1 us to 100 s.
pub(crate) fn histogram() -> Option<Round> {
    let cells = Histogram::default();
    Some(Box::new(move |round| {
        black_box(&cells).observe_ns(black_box(10_u64.pow(3 + round as u32 % 9)));
    }))
}

/// A line of the usage log.
pub(crate) fn usage_record() -> Option<Round> {
    let record = UsageRecord {
        ts_unix_ms: 1_767_225_599_123,
        request_id: SmallId::new("0198b2f4-61de-7c8a-9f10-5f6a0c2d4e81").expect("short"),
        tenant: "acme".into(),
        key_id: key_id(),
        model: Some("gpt-4o".into()),
        pool: Some("llama-8b".into()),
        adapter: None,
        replica: Some("llama-8b/10.0.0.7:8000".into()),
        endpoint: "/v1/chat/completions",
        stream: true,
        outcome: Outcome::Ok,
        status: 200,
        input_tokens: Some(1_812),
        cached_tokens: Some(1_408),
        output_tokens: Some(297),
        tokens_source: Some(TokensSource::Engine),
        reserved_tokens: Some(2_324),
        refunded_tokens: Some(215),
        cost: Some(0.000_481_2),
        attempts: 1,
        queue_ms: Some(0.0),
        gateway_ms: Some(0.137),
        ttft_ms: Some(83.512),
        tpot_ms: Some(21.034),
        total_ms: Some(6_330.907),
        predicted_cached_tokens: Some(1_408),
        predicted_ttft_ms: Some(79.25),
    };
    let mut out = Vec::new();
    Some(Box::new(move |_| {
        out.clear();
        black_box(&record).write_json(&mut out);
        assert_eq!((out.first(), out.last()), (Some(&b'{'), Some(&b'\n')));
    }))
}

fn key_id() -> KeyId {
    KeyDigest::of(b"sk-0123456789abcdef01234567").key_id()
}
