//! The figures of a path during the last hour, as far as somebody looked.
//!
//! The last two minutes are kept at the rate of the samples, the hour before in steps of 5 s. A
//! path with 30 edges needs at most 0.4 MB.

use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use streamline::paths::Counters;
use streamline::paths::rates::{self, Rate};

/// Number of samples at full resolution: two minutes at two samples a second.
const RECENT_MAX: usize = 240;
/// Number of samples of the hour before.
const HOUR_MAX: usize = 720;
/// Interval between two samples of the hour, in ms.
const STEP_MS: u64 = 5000;
/// Maximum time between two samples of which rates are computed, in ms. Nobody looked in a longer
/// interval.
const GAP_MS: u64 = 15_000;

/// Rates of a path at one time: of its sources, and of each edge.
#[derive(Debug)]
struct Sample {
    time_ms: u64,
    values: Box<[[f32; 3]]>,
}

/// The history of one path.
#[derive(Debug, Default)]
pub struct History {
    recent: VecDeque<Sample>,
    hour: VecDeque<Sample>,
    last: Option<(u64, Arc<Counters>)>,
    last_step: Option<(u64, Arc<Counters>)>,
}

/// Columns for a plot. Times are in ms since 1970; a rate is missing after an interval in which
/// nobody looked.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Columns {
    /// Times of the samples, ascending.
    pub time_ms: Vec<u64>,
    /// Blocks per second.
    pub blocks: Vec<Option<f32>>,
    /// Bytes per second.
    pub bytes: Vec<Option<f32>>,
    /// Lost blocks per second.
    pub lost: Vec<Option<f32>>,
}

impl History {
    /// Adds the counters at a time.
    pub fn push(&mut self, time_ms: u64, counters: &Arc<Counters>) {
        let edges = |known: &Option<(u64, Arc<Counters>)>| {
            known.as_ref().is_some_and(|(_, before)| !has_same_edges(before, counters))
        };
        let is_old = |(_, before): &(u64, Arc<Counters>)| before.elapsed_ns == counters.elapsed_ns;
        if self.last.as_ref().is_some_and(is_old) {
            // The path has not sent counters since the last sample.
            return;
        }
        if edges(&self.last) {
            // The request was changed: the numbers of its edges now mean other edges.
            *self = Self::default();
        }
        add(&mut self.recent, RECENT_MAX, &mut self.last, (time_ms, counters));
        let due = self.last_step.as_ref().is_none_or(|(then, _)| time_ms >= then + STEP_MS);
        if due {
            add(&mut self.hour, HOUR_MAX, &mut self.last_step, (time_ms, counters));
        }
    }

    /// Returns the rates of an edge of the counters, or of the sources if `edge` is `None`.
    #[must_use]
    pub fn columns(&self, edge: Option<usize>) -> Columns {
        let begin = self.recent.front().map_or(u64::MAX, |sample| sample.time_ms);
        let hour = self.hour.iter().filter(|sample| sample.time_ms < begin);
        let mut columns = Columns::default();
        let mut last = None;
        for sample in hour.chain(&self.recent) {
            let Some([blocks, bytes, lost]) = sample.values.get(edge.map_or(0, |edge| edge + 1))
            else {
                continue;
            };
            if last.is_some_and(|last| sample.time_ms > last + GAP_MS) {
                columns.push(sample.time_ms - 1, [None; 3]);
            }
            last = Some(sample.time_ms);
            columns.push(sample.time_ms, [Some(*blocks), Some(*bytes), Some(*lost)]);
        }
        columns
    }
}

impl Columns {
    fn push(&mut self, time_ms: u64, [blocks, bytes, lost]: [Option<f32>; 3]) {
        self.time_ms.push(time_ms);
        self.blocks.push(blocks);
        self.bytes.push(bytes);
        self.lost.push(lost);
    }
}

/// Adds a sample, if the one before is known and not too old.
fn add(
    samples: &mut VecDeque<Sample>,
    most: usize,
    last: &mut Option<(u64, Arc<Counters>)>,
    (time_ms, counters): (u64, &Arc<Counters>),
) {
    if let Some((then, before)) = last.replace((time_ms, Arc::clone(counters)))
        && time_ms > then
        && time_ms - then <= GAP_MS
    {
        let values = rates_of(&before, counters);
        if samples.len() == most {
            samples.pop_front();
        }
        samples.push_back(Sample { time_ms, values });
    }
}

fn rates_of(before: &Counters, now: &Counters) -> Box<[[f32; 3]]> {
    let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns);
    let values = |rate: Rate, lost: u64| {
        let lost = if ns == 0 { 0.0 } else { lost as f64 * 1e9 / ns as f64 };
        [rate.blocks as f32, rate.bytes as f32, lost as f32]
    };
    let given = rates::compute_rate(rates::source_output(before), rates::source_output(now), ns);
    let lost = rates::lost_blocks(now).saturating_sub(rates::lost_blocks(before));
    let edges = before.edges.iter().zip(&now.edges).map(|(before, now)| {
        let lost = rates::lost_in(&now.lost).saturating_sub(rates::lost_in(&before.lost));
        values(rates::compute_rate(before.put, now.put, ns), lost)
    });
    std::iter::once(values(given, lost)).chain(edges).collect()
}

fn has_same_edges(one: &Counters, other: &Counters) -> bool {
    one.edges.len() == other.edges.len()
        && one
            .edges
            .iter()
            .zip(&other.edges)
            .all(|(one, other)| (&one.from, &one.to) == (&other.from, &other.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(blocks: u64, seconds: u64) -> Arc<Counters> {
        let given = serde_json::json!({ "blocks": blocks, "bytes": blocks * 100 });
        let source = serde_json::json!({ "name": "rx", "given": given, "lost": [] });
        let source = serde_json::from_value(source).unwrap();
        let elapsed_ns = seconds * 1_000_000_000;
        Arc::new(Counters { elapsed_ns, sources: vec![source], ..Counters::default() })
    }

    #[test]
    fn history_holds_rates_between_samples() {
        let mut history = History::default();
        for second in 0..4 {
            history.push(second * 1000, &counters(second * second * 10, second));
        }
        let columns = history.columns(None);
        assert_eq!(columns.time_ms, [1000, 2000, 3000]);
        assert_eq!(columns.blocks, [Some(10.0), Some(30.0), Some(50.0)]);
        assert_eq!(columns.bytes, [Some(1000.0), Some(3000.0), Some(5000.0)]);
        assert_eq!(columns.lost, [Some(0.0); 3]);
        assert_eq!(history.columns(Some(7)), Columns::default());
    }

    #[test]
    fn time_without_viewers_is_a_gap() {
        let mut history = History::default();
        for second in [0, 1, 100, 101] {
            history.push(second * 1000, &counters(second, second));
        }
        let columns = history.columns(None);
        assert_eq!(columns.time_ms, [1000, 100_999, 101_000]);
        assert_eq!(columns.blocks, [Some(1.0), None, Some(1.0)]);
    }

    #[test]
    fn history_is_bounded_to_an_hour() {
        let mut history = History::default();
        for half in 0..20_000 {
            history.push(half * 500, &counters(half, half / 2));
        }
        let columns = history.columns(None);
        assert!(columns.time_ms.len() <= RECENT_MAX + HOUR_MAX);
        let (first, last) = (columns.time_ms[0], *columns.time_ms.last().unwrap());
        assert!(last - first >= 3_590_000, "{} s", (last - first) / 1000);
    }
}
