//! The rates of a path during the last hour. Only times at which a browser showed the page have
//! rates.
//!
//! The last two minutes are stored at the full sampling rate, and the hour before them in steps of
//! 5 s. The edges of a path that no viewer has selected have a sample only every 5 s. A path with
//! 30 edges needs at most 0.4 MB.

use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use streamline::paths::rates;
use streamline::paths::{Amount, Counters, Totals};

/// Number of samples at full resolution: two minutes at two samples a second.
const RECENT_SAMPLES_MAX: usize = 240;
/// Number of samples for the hour before the last two minutes.
const HOUR_SAMPLES_MAX: usize = 720;
/// Interval between two samples for the hour before the last two minutes, in ms.
const HOUR_SAMPLE_INTERVAL_MS: u64 = 5000;
/// Maximum time between two samples from which a rate is computed, in ms. A longer gap means that
/// no browser was showing the page, so no rate is computed across it.
const RATE_INTERVAL_MS_MAX: u64 = 15_000;

/// The rates of a path at one point in time. Each element of `values` contains a key, and the rates
/// of blocks, bytes and lost blocks per second. In a sample of the edges, the key is the index of
/// an edge in the plan. A sample of the path's sources has a single element with the key 0.
#[derive(Debug)]
struct Sample {
    time_ms: u64,
    values: Box<[(usize, [f32; 3])]>,
}

/// The total numbers of blocks, bytes and lost blocks since the start of a path: either of its
/// sources, or of each edge.
#[derive(Debug)]
struct CumulativeTotals {
    elapsed_ns: u64,
    values: BTreeMap<usize, (Amount, u64)>,
}

/// The samples of a path, either of its sources or of its edges. The samples of the last two
/// minutes have the full rate; those of the hour before have a lower rate.
#[derive(Debug, Default)]
struct RateSeries {
    recent: VecDeque<Sample>,
    hour: VecDeque<Sample>,
    last: Option<(u64, Arc<CumulativeTotals>)>,
    last_step: Option<(u64, Arc<CumulativeTotals>)>,
}

/// The rates of one path during the last hour.
#[derive(Debug, Default)]
pub struct History {
    sources: RateSeries,
    edges: RateSeries,
    /// Counters at the last sample of the edges, with which the next sample is compared; `None`
    /// before the first sample.
    counters: Option<Arc<Counters>>,
}

/// Columns of equal length for a plot. Times are in ms since 1970. A row whose rates are `None`
/// marks an interval in which no browser showed the page.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RateColumns {
    /// Times of the samples, ascending.
    pub time_ms: Vec<u64>,
    /// Blocks per second at each of these times. `None` marks an interval without samples.
    pub blocks: Vec<Option<f32>>,
    /// Bytes per second at each of these times. `None` marks an interval without samples.
    pub bytes: Vec<Option<f32>>,
    /// Lost blocks per second at each of these times. `None` marks an interval without samples.
    pub lost: Vec<Option<f32>>,
}

impl History {
    /// Adds the totals at the time `time_ms`.
    pub fn push_totals(&mut self, time_ms: u64, totals: &Totals) {
        let values = BTreeMap::from([(0, (totals.given, totals.lost))]);
        self.sources.push(time_ms, CumulativeTotals { elapsed_ns: totals.elapsed_ns, values });
    }

    /// Adds the counters of the edges at the time `time_ms`. If the edges have changed, discards
    /// the earlier samples of edges.
    pub fn push_edges(&mut self, time_ms: u64, counters: &Arc<Counters>) {
        let before = self.counters.replace(Arc::clone(counters));
        if before.is_some_and(|before| !have_same_edges(&before, counters)) {
            // The request has changed, so an index may now refer to another edge.
            self.edges = RateSeries::default();
        }
        let values = rates::edge_totals(counters);
        self.edges.push(time_ms, CumulativeTotals { elapsed_ns: counters.elapsed_ns, values });
    }

    /// Returns the rates of the edge with this index in the plan, or of the sources if `edge` is
    /// `None`.
    #[must_use]
    pub fn columns(&self, edge: Option<usize>) -> RateColumns {
        match edge {
            None => self.sources.columns(0),
            Some(edge) => self.edges.columns(edge),
        }
    }
}

impl RateSeries {
    /// Adds the sums at the time `time_ms`. Does nothing if the running time in `sums` equals that
    /// of the last sample, because the path has then sent no new sums.
    fn push(&mut self, time_ms: u64, sums: CumulativeTotals) {
        let last = self.last.as_ref();
        if last.is_some_and(|(_, last)| last.elapsed_ns == sums.elapsed_ns) {
            return;
        }
        let sums = Arc::new(sums);
        add_rates(&mut self.recent, RECENT_SAMPLES_MAX, &mut self.last, (time_ms, &sums));
        let due = self
            .last_step
            .as_ref()
            .is_none_or(|(then, _)| time_ms >= then + HOUR_SAMPLE_INTERVAL_MS);
        if due {
            add_rates(&mut self.hour, HOUR_SAMPLES_MAX, &mut self.last_step, (time_ms, &sums));
        }
    }

    fn columns(&self, index: usize) -> RateColumns {
        let begin = self.recent.front().map_or(u64::MAX, |sample| sample.time_ms);
        let hour = self.hour.iter().filter(|sample| sample.time_ms < begin);
        let mut columns = RateColumns::default();
        let mut last = None;
        for sample in hour.chain(&self.recent) {
            let place = sample.values.binary_search_by_key(&index, |(number, _)| *number);
            let Ok((_, [blocks, bytes, lost])) = place.map(|at| &sample.values[at]) else {
                continue;
            };
            if last.is_some_and(|last| sample.time_ms > last + RATE_INTERVAL_MS_MAX) {
                columns.push(sample.time_ms - 1, [None; 3]);
            }
            last = Some(sample.time_ms);
            columns.push(sample.time_ms, [Some(*blocks), Some(*bytes), Some(*lost)]);
        }
        columns
    }
}

impl RateColumns {
    fn push(&mut self, time_ms: u64, [blocks, bytes, lost]: [Option<f32>; 3]) {
        self.time_ms.push(time_ms);
        self.blocks.push(blocks);
        self.bytes.push(bytes);
        self.lost.push(lost);
    }
}

/// Adds the rates since the previous sums, `last`, to `samples`, and replaces `last` by the new
/// time and sums. Adds nothing if `last` is `None` or more than [`RATE_INTERVAL_MS_MAX`] ago.
/// Removes the oldest sample if there are already `most` samples.
fn add_rates(
    samples: &mut VecDeque<Sample>,
    most: usize,
    last: &mut Option<(u64, Arc<CumulativeTotals>)>,
    (time_ms, sums): (u64, &Arc<CumulativeTotals>),
) {
    if let Some((then, before)) = last.replace((time_ms, Arc::clone(sums)))
        && time_ms > then
        && time_ms - then <= RATE_INTERVAL_MS_MAX
    {
        let values = rates_between(&before, sums);
        if samples.len() == most {
            samples.pop_front();
        }
        samples.push_back(Sample { time_ms, values });
    }
}

fn rates_between(before: &CumulativeTotals, now: &CumulativeTotals) -> Box<[(usize, [f32; 3])]> {
    let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns);
    let values = now.values.iter().filter_map(|(index, (now, lost))| {
        let (before, lost_before) = before.values.get(index)?;
        let rate = rates::compute_rate(*before, *now, ns);
        let lost = rates::compute_loss_rate(*lost_before, *lost, ns);
        Some((*index, [rate.blocks as f32, rate.bytes as f32, lost as f32]))
    });
    values.collect()
}

fn have_same_edges(one: &Counters, other: &Counters) -> bool {
    let pairs = || one.edges.iter().zip(&other.edges);
    one.edges.len() == other.edges.len()
        && pairs().all(|(one, other)| {
            (one.edge, &one.from, &one.to) == (other.edge, &other.from, &other.to)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(blocks: u64, seconds: u64) -> Totals {
        let given = Amount { blocks, bytes: blocks * 100 };
        Totals { elapsed_ns: seconds * 1_000_000_000, given, lost: 0 }
    }

    /// Returns the counters of edges. Each edge is a tuple of its index, start, end and number of
    /// blocks.
    fn counters(edges: &[(usize, &str, &str, u64)], seconds: u64) -> Arc<Counters> {
        let amount = |blocks: u64| serde_json::json!({ "blocks": blocks, "bytes": 0 });
        let edges = edges.iter().map(|(number, from, to, blocks)| {
            serde_json::json!({
                "edge": number, "from": from, "to": to, "kind": "call",
                "put": amount(*blocks), "taken": amount(*blocks), "resident": amount(0),
                "lost": [{ "why": "ring", "blocks": blocks / 2 }],
            })
        });
        let edges = serde_json::from_value(edges.collect()).unwrap();
        let elapsed_ns = seconds * 1_000_000_000;
        Arc::new(Counters { elapsed_ns, edges, ..Counters::default() })
    }

    #[test]
    fn edges_have_rates_until_the_request_changes() {
        let mut history = History::default();
        for second in 0..3 {
            let edges = [(0, "rx", "a", second), (1, "rx", "b", second * 4)];
            history.push_edges(second * 1000, &counters(&edges, second));
        }
        let columns = history.columns(Some(1));
        assert_eq!((columns.blocks, columns.lost), (vec![Some(4.0); 2], vec![Some(2.0); 2]));
        assert_eq!(history.columns(Some(2)), RateColumns::default());
        history.push_edges(3000, &counters(&[(0, "rx", "b", 9)], 3));
        assert_eq!(history.columns(Some(0)), RateColumns::default());
    }

    #[test]
    fn edge_through_a_ring_has_the_rate_at_which_it_is_entered() {
        let mut history = History::default();
        for second in 0..3 {
            // The counters are not in the order of the plan.
            let edges = [
                (1, "sample", "ring to thread1", second * 8),
                (1, "ring to thread1", "ring from thread0", second * 6),
                (1, "ring from thread0", "pcap", second * 4),
                (0, "rx", "sample", second * 100),
            ];
            history.push_edges(second * 1000, &counters(&edges, second));
        }
        let columns = history.columns(Some(1));
        assert_eq!((columns.blocks, columns.lost), (vec![Some(8.0); 2], vec![Some(9.0); 2]));
        assert_eq!(history.columns(Some(0)).blocks, vec![Some(100.0); 2]);
    }

    #[test]
    fn history_holds_rates_between_samples() {
        let mut history = History::default();
        for second in 0..4 {
            history.push_totals(second * 1000, &totals(second * second * 10, second));
        }
        let columns = history.columns(None);
        assert_eq!(columns.time_ms, [1000, 2000, 3000]);
        assert_eq!(columns.blocks, [Some(10.0), Some(30.0), Some(50.0)]);
        assert_eq!(columns.bytes, [Some(1000.0), Some(3000.0), Some(5000.0)]);
        assert_eq!(columns.lost, [Some(0.0); 3]);
        assert_eq!(history.columns(Some(7)), RateColumns::default());
    }

    #[test]
    fn time_without_viewers_leaves_a_gap_in_the_history() {
        let mut history = History::default();
        for second in [0, 1, 100, 101] {
            history.push_totals(second * 1000, &totals(second, second));
        }
        let columns = history.columns(None);
        assert_eq!(columns.time_ms, [1000, 100_999, 101_000]);
        assert_eq!(columns.blocks, [Some(1.0), None, Some(1.0)]);
    }

    #[test]
    fn history_is_bounded_to_an_hour() {
        let mut history = History::default();
        for half in 0..20_000 {
            let sample = Totals { elapsed_ns: half * 500_000_000, ..totals(half, 0) };
            history.push_totals(half * 500, &sample);
        }
        let columns = history.columns(None);
        assert!(columns.time_ms.len() <= RECENT_SAMPLES_MAX + HOUR_SAMPLES_MAX);
        let (first, last) = (columns.time_ms[0], *columns.time_ms.last().unwrap());
        assert!(last - first >= 3_590_000, "{} s", (last - first) / 1000);
    }
}
