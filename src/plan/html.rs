//! Policies side by side as one HTML page: bars and curves in inline SVG, nothing from elsewhere.

use std::fmt::Write as _;

use super::outcome::Outcome;
use super::report;
use super::scenario::Slo;
use super::svg::{COLOURS, HEIGHT, WIDTH, escape, frame, line, open, text};

/// Curves end at this multiple of their limit.
const LIMITS_SHOWN: f64 = 3.0;

/// The page. `title` is text, not HTML.
#[must_use]
pub fn page(title: &str, outcomes: &[Outcome], slo: &Slo) -> String {
    let mut out = open("expedite plan replay", "Policies side by side");
    let _ = writeln!(out, "<p>{}</p>", escape(title));
    rows(outcomes, &mut out);
    out.push_str("<div class=\"charts\">\n");
    let first = Chart {
        title: "Time to the first token, ms",
        limit: slo.ttft_ms,
        curves: outcomes.iter().map(|o| o.ttft_curve_ms.as_slice()).collect(),
    };
    let later = Chart {
        title: "Mean time of a later token, ms",
        limit: slo.tpot_ms,
        curves: outcomes.iter().map(|o| o.tpot_curve_ms.as_slice()).collect(),
    };
    first.draw(&mut out);
    later.draw(&mut out);
    bars(outcomes, &mut out);
    out.push_str("</div>\n</body></html>\n");
    out
}

fn rows(outcomes: &[Outcome], out: &mut String) {
    out.push_str("<div class=\"wide\"><table><thead><tr><th>policy</th>");
    for name in report::HEADER {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for (outcome, colour) in outcomes.iter().zip(COLOURS.iter().cycle()) {
        let name = outcome.policy.name();
        let _ = write!(
            out,
            "<tr><td><span class=\"swatch\" style=\"background:{colour}\"></span>{name}</td>"
        );
        for cell in report::cells(outcome) {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Quantile curves of the policies: share of the requests by time.
struct Chart<'a> {
    title: &'a str,
    /// Drawn as a line, in ms.
    limit: f64,
    /// Times at each hundredth.
    curves: Vec<&'a [f64]>,
}

impl Chart<'_> {
    fn draw(&self, out: &mut String) {
        let most = (self.limit * LIMITS_SHOWN).max(1e-9);
        let x = |ms: f64| 40.0 + (WIDTH - 60.0) * (ms / most).min(1.0);
        let y = |share: f64| HEIGHT - 40.0 - (HEIGHT - 70.0) * share;
        frame(self.title, out);
        for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
            line((x(0.0), y(share)), (x(most), y(share)), "var(--faint)", out);
            text((4.0, y(share) + 4.0), &format!("{:.0} %", share * 100.0), out);
        }
        for tick in 0..=6 {
            let ms = most * f64::from(tick) / 6.0;
            let label = format!("{ms:.0}");
            text((x(ms) - 3.5 * label.len() as f64, HEIGHT - 22.0), &label, out);
        }
        line((x(self.limit), y(0.0)), (x(self.limit), y(1.0)), "var(--limit)", out);
        text((x(self.limit) + 4.0, y(0.0) - 6.0), "limit", out);
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\""
            );
            for (i, &ms) in curve.iter().enumerate().filter(|&(_, &ms)| ms <= most) {
                let _ = write!(out, "{:.1},{:.1} ", x(ms), y(i as f64 / 100.0));
            }
            out.push_str("\"/>\n");
        }
        out.push_str("</svg>\n");
    }
}

/// Good requests beside those that came.
fn bars(outcomes: &[Outcome], out: &mut String) {
    let most = outcomes.iter().fold(1e-9, |most: f64, o| most.max(o.offered_rps));
    let height = (HEIGHT - 70.0) / outcomes.len().max(1) as f64;
    let width = |rps: f64| (WIDTH - 220.0) * rps / most;
    frame("Good requests of those that came, a second", out);
    for (i, (outcome, colour)) in outcomes.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let top = 40.0 + height * i as f64;
        let bar = |rps: f64, fill: &str, out: &mut String| {
            let _ = writeln!(
                out,
                "<rect x=\"130\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                 style=\"fill:{fill}\"/>",
                width(rps),
                height * 0.7
            );
        };
        bar(outcome.offered_rps, "var(--faint)", out);
        bar(outcome.good_rps, colour, out);
        text((8.0, top + height * 0.5), outcome.policy.name(), out);
        let share = format!("{:.1}", outcome.good_rps);
        text((136.0 + width(outcome.offered_rps), top + height * 0.5), &share, out);
    }
    out.push_str("</svg>\n");
}
