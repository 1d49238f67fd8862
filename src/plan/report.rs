//! Policies side by side: a table for people.

use std::fmt::Write as _;

use super::outcome::Outcome;

/// What the columns hold.
pub(super) const HEADER: [&str; 14] = [
    "offered",
    "good",
    "capacity",
    "TTFT p50",
    "p99",
    "in time",
    "TPOT p50",
    "p95",
    "in time",
    "hit",
    "shed",
    "failed",
    "KV used",
    "preempted",
];

/// A row each; shares in percent, times in ms, rates a second.
#[must_use]
pub fn table(title: &str, outcomes: &[Outcome]) -> String {
    let mut out = format!("{title}\n\n");
    let _ = write!(out, "{:<16}", "policy");
    for name in HEADER {
        let _ = write!(out, "{name:>10}");
    }
    out.push('\n');
    for outcome in outcomes {
        let _ = write!(out, "{:<16}", outcome.policy.name());
        for cell in cells(outcome) {
            let _ = write!(out, "{cell:>10}");
        }
        out.push('\n');
    }
    outcomes.iter().for_each(|outcome| tenants(outcome, &mut out));
    if let Some(first) = outcomes.first() {
        let _ = write!(
            out,
            "\nprompts: {:.0} tokens in the mean; a cache without end would spare {}\n",
            first.prompt_tokens_mean,
            percent(first.endless_hit_ratio),
        );
    }
    out
}

/// A row for each of several tenants.
fn tenants(outcome: &Outcome, out: &mut String) {
    if outcome.tenants.len() < 2 {
        return;
    }
    let name = outcome.policy.name();
    let _ = writeln!(
        out,
        "\n{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}",
        format!("{name}, tenant"),
        "offered",
        "good",
        "of them",
        "TTFT p99",
        "shed"
    );
    for (number, tenant) in outcome.tenants.iter().enumerate() {
        let share = tenant.good_rps / tenant.offered_rps.max(1e-9);
        let _ = writeln!(
            out,
            "{number:<16}{:>10.1}{:>10.1}{:>10}{:>10.0}{:>10}",
            tenant.offered_rps,
            tenant.good_rps,
            percent(share),
            tenant.ttft_p99_ms,
            tenant.shed
        );
    }
}

/// A policy's cells, in the order of [`HEADER`].
pub(super) fn cells(outcome: &Outcome) -> [String; 14] {
    [
        format!("{:.1}", outcome.offered_rps),
        format!("{:.1}", outcome.good_rps),
        outcome.capacity_rps.map_or("-".to_owned(), |rps| format!("{rps:.1}")),
        format!("{:.0}", outcome.ttft_p50_ms),
        format!("{:.0}", outcome.ttft_p99_ms),
        percent(outcome.ttft_ok_ratio),
        format!("{:.1}", outcome.tpot_p50_ms),
        format!("{:.1}", outcome.tpot_p95_ms),
        percent(outcome.tpot_ok_ratio),
        percent(outcome.hit_ratio),
        outcome.shed.to_string(),
        (outcome.failed + outcome.unfinished).to_string(),
        percent(outcome.kv_used_mean),
        outcome.preemptions.to_string(),
    ]
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
