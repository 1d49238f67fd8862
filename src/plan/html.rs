//! Policies side by side as one HTML page: bars and curves in inline SVG, nothing from elsewhere.

use std::fmt::Write as _;

use super::outcome::Outcome;
use super::report;
use super::scenario::Slo;

/// Told apart by most eyes (Okabe and Ito), repeated when there are more policies.
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c8c00"];
/// Size of a chart of curves.
pub(super) const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
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

/// The beginning of a page, up to and with its heading. Nothing of it is fetched from elsewhere.
pub(super) fn open(title: &str, heading: &str) -> String {
    let (title, heading) = (escape(title), escape(heading));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n\
         body{{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1180px;\
         padding:0 1em}}\n\
         table{{border-collapse:collapse}}th,td{{text-align:right;padding:.2em .7em;\
         border-bottom:1px solid #ccc}}th:first-child,td:first-child,.words{{text-align:left}}\n\
         .wide{{overflow-x:auto}}.warning{{border-left:4px solid #d55e00;padding-left:.7em}}\n\
         .charts{{display:flex;flex-wrap:wrap;gap:1em}}svg{{max-width:100%;height:auto}}\
         svg text{{font:12px system-ui,sans-serif}}\n\
         .swatch{{display:inline-block;width:.8em;height:.8em;margin-right:.5em}}\n\
         </style></head><body>\n<h1>{heading}</h1>\n"
    )
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
            line((x(0.0), y(share)), (x(most), y(share)), "#ddd", out);
            text((4.0, y(share) + 4.0), &format!("{:.0} %", share * 100.0), out);
        }
        for tick in 0..=6 {
            let ms = most * f64::from(tick) / 6.0;
            text((x(ms) - 8.0, HEIGHT - 22.0), &format!("{ms:.0}"), out);
        }
        line((x(self.limit), y(0.0)), (x(self.limit), y(1.0)), "#b00", out);
        text((x(self.limit) + 4.0, y(0.0) - 6.0), "limit", out);
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let _ = write!(out, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"");
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
                "<rect x=\"130\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
                width(rps),
                height * 0.7
            );
        };
        bar(outcome.offered_rps, "#ddd", out);
        bar(outcome.good_rps, colour, out);
        text((8.0, top + height * 0.5), outcome.policy.name(), out);
        let share = format!("{:.1}", outcome.good_rps);
        text((136.0 + width(outcome.offered_rps), top + height * 0.5), &share, out);
    }
    out.push_str("</svg>\n");
}

fn frame(title: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<svg role=\"img\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\
         <title>{0}</title><text x=\"8\" y=\"18\" font-weight=\"bold\">{0}</text>",
        escape(title)
    );
}

fn line(from: (f64, f64), to: (f64, f64), colour: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

pub(super) fn text(at: (f64, f64), words: &str, out: &mut String) {
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", at.0, at.1, escape(words));
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
