//! What happened when: counts by slot of time, the first tokens of each, and a map of the gaps
//! between events. Owned by one thread; no I/O, no clock.
//!
//! A slot is a second. A run of more than [`SLOTS_MAX`] of them goes on with slots of twice the
//! width, so that what is kept is bounded however long it lasts.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Slots before their width doubles.
const SLOTS_MAX: usize = 600;
/// The longest time told apart: an hour.
const MICROS_MAX: u64 = 3_600_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Rows of the map of gaps, two to a doubling: the last one begins at three minutes.
const ROWS: usize = 56;
/// Two digits: these are for a curve, the report's own quantiles have four.
const DIGITS: u8 = 2;

/// One slot.
#[derive(Clone, Debug)]
struct Slot {
    due: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    events: u64,
    /// Of the requests that were due in it, in us.
    ttft: Option<Histogram<u32>>,
    gaps: [u32; ROWS],
}

impl Default for Slot {
    fn default() -> Slot {
        let (due, completed, failed, cancelled, events) = (0, 0, 0, 0, 0);
        Slot { due, completed, failed, cancelled, events, ttft: None, gaps: [0; ROWS] }
    }
}

/// What became of a request, for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became {
    Due,
    Completed,
    Failed,
    Cancelled,
}

/// The slots of a run.
#[derive(Clone, Debug)]
pub struct Series {
    origin_ns: u64,
    width_ns: u64,
    slots: Vec<Slot>,
}

impl Default for Series {
    fn default() -> Series {
        Series::from(0)
    }
}

impl Series {
    /// Slots from `origin_ns` on.
    pub(super) fn from(origin_ns: u64) -> Series {
        Series { origin_ns, width_ns: SECOND_NS, slots: Vec::new() }
    }

    /// Counts a request at `at_ns`.
    pub(super) fn count(&mut self, at_ns: u64, what: Became) {
        let slot = self.slot(at_ns);
        match what {
            Became::Due => slot.due += 1,
            Became::Completed => slot.completed += 1,
            Became::Failed => slot.failed += 1,
            Became::Cancelled => slot.cancelled += 1,
        }
    }

    /// A first token came `ttft_ns` after `due_ns`.
    pub(super) fn first(&mut self, due_ns: u64, ttft_ns: u64) {
        let slot = self.slot(due_ns);
        let ttft = slot.ttft.get_or_insert_with(first_tokens);
        // It grows to what is recorded, and an hour is within what it can grow to.
        let _ = ttft.record((ttft_ns / 1000).clamp(1, MICROS_MAX));
    }

    /// An event came at `at_ns`, `gap_ns` after the one before it if it was not the first.
    pub(super) fn event(&mut self, at_ns: u64, gap_ns: Option<u64>) {
        let slot = self.slot(at_ns);
        slot.events += 1;
        if let Some(gap_ns) = gap_ns {
            slot.gaps[row(gap_ns / 1000)] += 1;
        }
    }

    fn slot(&mut self, at_ns: u64) -> &mut Slot {
        let after_ns = at_ns.saturating_sub(self.origin_ns);
        while after_ns / self.width_ns >= SLOTS_MAX as u64 {
            self.widen();
        }
        let index = (after_ns / self.width_ns) as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    /// Makes one slot of two.
    fn widen(&mut self) {
        self.width_ns *= 2;
        let narrow = std::mem::take(&mut self.slots);
        for (i, slot) in narrow.into_iter().enumerate() {
            match self.slots.get_mut(i / 2) {
                Some(wide) => wide.add(slot),
                None => self.slots.push(slot),
            }
        }
    }

    /// Adds another thread's, which began at the same moment.
    pub(super) fn add(&mut self, mut other: Series) {
        if self.slots.is_empty() {
            *self = other;
            return;
        }
        while self.width_ns < other.width_ns {
            self.widen();
        }
        while other.width_ns < self.width_ns {
            other.widen();
        }
        self.slots.resize_with(self.slots.len().max(other.slots.len()), Slot::default);
        self.slots.iter_mut().zip(other.slots).for_each(|(slot, other)| slot.add(other));
    }

    /// One array a thing, an entry a slot; times in milliseconds, null where there is none.
    pub(super) fn json(&self) -> Value {
        let counts = |of: fn(&Slot) -> u64| self.slots.iter().map(of).collect::<Vec<_>>();
        let times = |q: f64| {
            let at =
                |ttft: &Histogram<u32>| ttft.value_at_quantile(q).min(ttft.max()) as f64 / 1000.0;
            self.slots.iter().map(|slot| slot.ttft.as_ref().map(at)).collect::<Vec<_>>()
        };
        json!({
            "slot_seconds": self.width_ns as f64 / 1e9,
            "due": counts(|slot| slot.due),
            "completed": counts(|slot| slot.completed),
            "failed": counts(|slot| slot.failed),
            "cancelled": counts(|slot| slot.cancelled),
            "events": counts(|slot| slot.events),
            "median_ttft_ms": times(0.5),
            "p99_ttft_ms": times(0.99),
        })
    }

    /// Gaps between events by slot and length: `counts[slot][row]`, row `r` from `edges_us[r]` up
    /// to `edges_us[r + 1]`. Only the rows that are used.
    pub(super) fn gaps_json(&self) -> Value {
        let used = |row: &usize| self.slots.iter().any(|slot| slot.gaps[*row] > 0);
        let (first, last) = ((0..ROWS).find(used), (0..ROWS).rfind(used));
        let (Some(first), Some(last)) = (first, last) else {
            return json!({ "edges_us": [], "counts": [] });
        };
        let counts: Vec<_> = self.slots.iter().map(|slot| &slot.gaps[first..=last]).collect();
        let edges: Vec<_> = (first..=last + 1).map(edge_us).collect();
        json!({ "edges_us": edges, "counts": counts })
    }
}

impl Slot {
    fn add(&mut self, other: Slot) {
        self.due += other.due;
        self.completed += other.completed;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.events += other.events;
        match (&mut self.ttft, other.ttft) {
            (Some(own), Some(other)) => own.add(&other).expect("it grows as it has to"),
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
        self.gaps.iter_mut().zip(other.gaps).for_each(|(own, other)| *own += other);
    }
}

fn first_tokens() -> Histogram<u32> {
    let mut histogram = Histogram::new(DIGITS).expect("two digits are in range");
    histogram.auto(true);
    histogram
}

/// The row of a gap: where its first two binary digits put it. The first row begins at 0.
fn row(us: u64) -> usize {
    let octave = us.max(1).ilog2() as usize;
    let upper = octave > 0 && us >> (octave - 1) & 1 == 1;
    (2 * octave + usize::from(upper)).saturating_sub(1).min(ROWS - 1)
}

/// Where a row begins; the first one, for a logarithmic scale, at a microsecond.
fn edge_us(row: usize) -> u64 {
    if row == 0 {
        return 1;
    }
    let octave = 1u64 << row.div_ceil(2);
    octave + if row.is_multiple_of(2) { octave / 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_what_lies_between_its_edges() {
        for us in (0..5000).chain([99_999, 1 << 20, (1 << 27) + 5]) {
            let row = row(us);
            assert!(us == 0 || edge_us(row) <= us && us < edge_us(row + 1), "{us}: {row}");
        }
        assert_eq!(row(u64::MAX / 1000), ROWS - 1);
    }

    #[test]
    fn slots_widen_and_nothing_is_lost() {
        let mut series = Series::from(SECOND_NS);
        for second in 0..2000u64 {
            let at_ns = SECOND_NS + second * SECOND_NS + 1;
            series.count(at_ns, Became::Due);
            series.first(at_ns, 5_000_000);
            series.event(at_ns, (second > 0).then_some(1_000_000));
        }
        let json = series.json();
        assert_eq!(json["slot_seconds"], 4.0);
        let due: Vec<u64> = serde_json::from_value(json["due"].clone()).unwrap();
        assert_eq!((due.len(), due.iter().sum::<u64>()), (500, 2000));
        assert!(json["p99_ttft_ms"][499].as_f64().is_some_and(|ms| (4.9..5.1).contains(&ms)));
        let gaps = series.gaps_json();
        assert_eq!(gaps["edges_us"], json!([768, 1024]));
        let sum: u64 = (0..500).map(|slot| gaps["counts"][slot][0].as_u64().unwrap()).sum();
        assert_eq!(sum, 1999);
    }

    #[test]
    fn threads_add_up_whatever_their_widths() {
        let (mut long, mut short) = (Series::from(0), Series::from(0));
        long.count(700 * SECOND_NS, Became::Completed);
        short.count(3 * SECOND_NS, Became::Failed);
        short.event(3 * SECOND_NS, None);
        short.add(long.clone());
        long.add(Series::from(0));
        let json = short.json();
        assert_eq!((&json["slot_seconds"], &json["failed"][1]), (&json!(2.0), &json!(1)));
        assert_eq!((&json["completed"][350], &json["events"][1]), (&json!(1), &json!(1)));
        assert_eq!(json["median_ttft_ms"][0], Value::Null);
        assert_eq!(short.gaps_json()["counts"], json!([]));
        assert_eq!(long.json()["completed"][350], 1);
    }
}
