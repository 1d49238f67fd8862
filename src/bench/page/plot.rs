//! A chart with two axes as inline SVG: scales, ticks, curves, cells, rules, a legend. Pure.

use std::fmt::Write as _;

use crate::plan::svg::{COLOURS, escape, line, text};

/// Small enough that its letters can be read on a phone, where it is as wide as the screen.
pub(super) const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 62.0;
/// Points of a curve nearer than this to the last one, in pixels, are left out.
const NEAR: f64 = 0.7;
/// A scale is logarithmic when its ends are at least so far apart.
const LOG_FROM: f64 = 30.0;

/// What an axis shows.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    label: &'static str,
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// From 0 to at least `high`.
    pub(super) fn linear(label: &'static str, high: f64) -> Axis {
        let high = if high > 0.0 && high.is_finite() { high } else { 1.0 };
        let step = step(high);
        Axis { label, low: 0.0, high: (high / step - 1e-9).ceil() * step, log: false }
    }

    /// From 0 to exactly `high`.
    pub(super) fn up_to(label: &'static str, high: f64) -> Axis {
        Axis { high: if high > 0.0 { high } else { 1.0 }, ..Axis::linear(label, high) }
    }

    /// Logarithmic when the ends are far apart, else from 0.
    pub(super) fn spread(label: &'static str, low: f64, high: f64) -> Axis {
        if low > 0.0 && high / low >= LOG_FROM {
            Axis::log(label, low, high)
        } else {
            Axis::linear(label, high)
        }
    }

    /// Logarithmic between two ends above 0.
    pub(super) fn log(label: &'static str, low: f64, high: f64) -> Axis {
        Axis { label, low, high: high.max(low * 1.01), log: true }
    }

    /// Where a value lies, from 0 to 1; what is outside lies at the end.
    fn share(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step(self.high);
            return (0..=((self.high / step + 1e-9) as u32)).map(|i| f64::from(i) * step).collect();
        }
        let decades = (self.high / self.low).log10();
        let parts: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = self.low.log10().floor() as i32;
        let all = (first..first + 16).flat_map(|e| parts.iter().map(move |p| p * 10f64.powi(e)));
        let inside = self.low * 0.999..=self.high * 1.001;
        all.filter(|tick| inside.contains(tick)).collect()
    }
}

/// A round distance of ticks, four to eight of them up to `high`.
fn step(high: f64) -> f64 {
    let raw = high / 4.0;
    let decade = 10f64.powf(raw.log10().floor());
    let parts = [5.0, 2.0, 1.0].map(|part| part * decade);
    parts.into_iter().find(|part| *part <= raw).unwrap_or(decade)
}

/// A tick as people read it.
fn told(tick: f64) -> String {
    match tick {
        tick if tick >= 1e6 => format!("{}M", trimmed(tick / 1e6)),
        tick if tick >= 1e4 => format!("{}k", trimmed(tick / 1e3)),
        tick => trimmed(tick),
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// One chart under way.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    out: String,
    legend_x: f64,
}

impl Plot {
    pub(super) fn new(title: &str, x: Axis, y: Axis) -> Plot {
        let mut out = format!(
            "<svg role=\"img\" viewBox=\"0 0 {WIDTH} {HEIGHT}\"><title>{0}</title>\
             <text x=\"8\" y=\"18\" font-weight=\"bold\">{0}</text>\n",
            escape(title)
        );
        let label = |at: (f64, f64), words: &str, anchor: &str, out: &mut String| {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                at.0,
                at.1,
                escape(words)
            );
        };
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut plot = Plot { x, y, out: String::new(), legend_x: LEFT };
        for tick in plot.y.ticks() {
            let y = plot.at(0.0, tick).1;
            line((LEFT, y), (right, y), "var(--faint)", &mut out);
            label((LEFT - 6.0, y + 4.0), &told(tick), "end", &mut out);
        }
        for tick in plot.x.ticks() {
            let x = plot.at(tick, 0.0).0;
            line((x, bottom), (x, bottom + 4.0), "var(--rule)", &mut out);
            label((x, bottom + 17.0), &told(tick), "middle", &mut out);
        }
        line((LEFT, bottom), (right, bottom), "var(--rule)", &mut out);
        label((right, bottom + 33.0), plot.x.label, "end", &mut out);
        label((right, TOP - 6.0), plot.y.label, "end", &mut out);
        plot.out = out;
        plot
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let (wide, high) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        (LEFT + wide * self.x.share(x), TOP + high * (1.0 - self.y.share(y)))
    }

    /// A curve through points, in a colour of the palette; named in the legend.
    pub(super) fn curve(
        &mut self,
        name: &str,
        colour: usize,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let colour = COLOURS[colour % COLOURS.len()];
        let mut path = String::new();
        let (mut last, mut left_out) = ((f64::MIN, f64::MIN), None);
        for (x, y) in points {
            let here = self.at(x, y);
            if (here.0 - last.0).abs() < NEAR && (here.1 - last.1).abs() < NEAR {
                left_out = Some(here);
                continue;
            }
            left_out = None;
            last = here;
            let _ = write!(path, "{:.1},{:.1} ", here.0, here.1);
        }
        if let Some(end) = left_out {
            let _ = write!(path, "{:.1},{:.1} ", end.0, end.1);
        }
        let style = format!("stroke:{colour};stroke-width:1.6");
        let _ = writeln!(
            self.out,
            "<polyline fill=\"none\" style=\"{style}\" points=\"{}\"/>",
            path.trim_end()
        );
        let (x, y) = (self.legend_x, HEIGHT - 12.0);
        line((x, y - 4.0), (x + 16.0, y - 4.0), colour, &mut self.out);
        text((x + 21.0, y), name, &mut self.out);
        self.legend_x += 34.0 + 6.6 * name.chars().count() as f64;
    }

    /// Marks points, each with what it says when it is pointed at.
    pub(super) fn dots(
        &mut self,
        colour: usize,
        points: impl IntoIterator<Item = (f64, f64, String)>,
    ) {
        let colour = COLOURS[colour % COLOURS.len()];
        for (x, y, says) in points {
            let (x, y) = self.at(x, y);
            let _ = writeln!(
                self.out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" style=\"fill:{colour}\">\
                 <title>{}</title></circle>",
                escape(&says)
            );
        }
    }

    /// A cell from one corner to the other, the denser the nearer `share` is to 1.
    pub(super) fn cell(&mut self, from: (f64, f64), to: (f64, f64), share: f64) {
        let (left, low) = self.at(from.0, from.1);
        let (right, high) = self.at(to.0, to.1);
        let _ = writeln!(
            self.out,
            "<rect x=\"{left:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
             style=\"fill:{};fill-opacity:{:.2}\"/>",
            (right - left).max(0.5),
            (low - high).max(0.5),
            COLOURS[0],
            0.06 + 0.94 * share
        );
    }

    /// A limit across the axis of values.
    pub(super) fn limit_y(&mut self, value: f64) {
        if value <= self.y.high {
            let (from, to) = (self.at(self.x.low, value), self.at(self.x.high, value));
            line(from, to, "var(--limit)", &mut self.out);
            text((from.0 + 4.0, from.1 - 4.0), "limit", &mut self.out);
        }
    }

    /// A limit upright.
    pub(super) fn limit_x(&mut self, value: f64) {
        if value <= self.x.high {
            let (from, to) = (self.at(value, self.y.low), self.at(value, self.y.high));
            line(from, to, "var(--limit)", &mut self.out);
            text((to.0 + 4.0, to.1 + 10.0), "limit", &mut self.out);
        }
    }

    /// Words where the legend is.
    pub(super) fn note(&mut self, words: &str) {
        text((self.legend_x, HEIGHT - 12.0), words, &mut self.out);
    }

    pub(super) fn end(self) -> String {
        self.out + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for high in [0.001, 0.7, 1.0, 3.0, 99.0, 100.0, 12_345.0, 1e7] {
            let axis = Axis::linear("x", high);
            let ticks = axis.ticks();
            assert!((4..=9).contains(&ticks.len()), "{high}: {ticks:?}");
            assert!(axis.high >= high && axis.high <= high * 1.5, "{high}: {}", axis.high);
            assert!((ticks[ticks.len() - 1] - axis.high).abs() < axis.high * 1e-6);
        }
        assert_eq!(Axis::log("x", 0.3, 40.0).ticks(), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(Axis::log("x", 1.0, 1e5).ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        let told = [0.0, 0.05, 2.5, 9000.0, 20_000.0, 2.5e6].map(told);
        assert_eq!(told, ["0", "0.05", "2.5", "9000", "20k", "2.5M"]);
    }

    #[test]
    fn what_lies_outside_is_drawn_at_the_end() {
        let axis = Axis::log("x", 1.0, 100.0);
        let shares = [0.0, 1.0, 10.0, 100.0, 1e9].map(|value| axis.share(value));
        assert_eq!(shares, [0.0, 0.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn a_curve_keeps_its_ends_and_leaves_out_what_nobody_sees() {
        let mut plot = Plot::new("a < b", Axis::linear("x", 10.0), Axis::linear("y", 10.0));
        plot.curve("c & d", 0, (0..100_000).map(|i| (f64::from(i) / 1e4, 5.0)));
        let svg = plot.end();
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let points: Vec<&str> = points.split(' ').collect();
        assert!((300..700).contains(&points.len()), "{}", points.len());
        assert!(points[0].starts_with("52.0,") && points[points.len() - 1].starts_with("426.0,"));
        assert!(svg.contains("a &lt; b") && svg.contains("c &amp; d") && svg.ends_with("</svg>\n"));
    }
}
