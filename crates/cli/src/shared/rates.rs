//! Rates and losses between two samples of a path's counters.

use member::protocol::{Amount, Counters, Loss, PlaceLatency};
use pipeline::explain::{format_nanoseconds, rounded_duration};
use runtime::ledger::DropReason;
use serde::Serialize;
use streamline::report::count_with_unit;

/// Blocks and bytes per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Rate {
    pub(super) blocks: f64,
    pub(super) bytes: f64,
}

/// Computes the rate from two amounts sampled `ns` apart.
pub(super) fn compute_rate(before: Amount, now: Amount, ns: u64) -> Rate {
    let seconds = ns as f64 / 1e9;
    let each = |now: u64, before: u64| match seconds > 0.0 {
        true => now.saturating_sub(before) as f64 / seconds,
        false => 0.0,
    };
    Rate { blocks: each(now.blocks, before.blocks), bytes: each(now.bytes, before.bytes) }
}

/// Returns the total output of all sources.
pub(super) fn source_output(counters: &Counters) -> Amount {
    let sum =
        |a: Amount, b: Amount| Amount { blocks: a.blocks + b.blocks, bytes: a.bytes + b.bytes };
    counters.sources.iter().map(|source| source.given).fold(Amount::default(), sum)
}

/// Returns the number of lost blocks.
pub(super) fn lost_blocks(counters: &Counters) -> u64 {
    losses_by_location(counters).iter().map(|(_, n)| n).sum()
}

/// Returns the losses by location and reason, in descending order.
pub(super) fn losses_by_location(counters: &Counters) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    let mut add = |lost: &[Loss], place: &dyn Fn(&str) -> String| {
        let lost = lost.iter().filter(|lost| is_lost(lost));
        all.extend(lost.map(|lost| (place(&lost.why), lost.blocks.unwrap_or(0))));
    };
    for source in &counters.sources {
        add(&source.lost, &|why| format!("before {} ({why})", source.name));
    }
    for edge in &counters.edges {
        add(&edge.lost, &|why| format!("between {} and {} ({why})", edge.from, edge.to));
    }
    for filter in &counters.filters {
        add(&filter.lost, &|why| format!("in {} ({why})", filter.name));
    }
    all.retain(|(_, n)| *n > 0);
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

/// Returns true if a drop is a loss, as opposed to a drop that the request asked for. The text of
/// the reason decides.
fn is_lost(lost: &Loss) -> bool {
    DropReason::from_text(&lost.why).is_none_or(DropReason::is_lost)
}

/// Describes the latencies that exceed the bound of the request. Returns `None` if there are none.
pub(super) fn describe_latency(counters: &Counters) -> Option<String> {
    let latency = counters.latency.as_ref()?;
    let longest = |all: &[PlaceLatency]| {
        let late = all.iter().filter(|at| at.worst_ns > at.share_ns);
        late.max_by_key(|at| at.worst_ns - at.share_ns).cloned()
    };
    let took = |at: &PlaceLatency| {
        format!(
            "{} took {} of {}",
            at.name,
            rounded_duration(at.worst_ns),
            format_nanoseconds(at.share_ns)
        )
    };
    let (way, wait) = (longest(&latency.sinks), longest(&latency.waits));
    let late: u64 = latency.sinks.iter().map(|way| way.exceeded).sum();
    let kept = latency.waits.iter().any(|wait| wait.worst_ns > latency.asked_ns);
    if late == 0 && !kept {
        return None;
    }
    let places: Vec<String> = way.iter().chain(&wait).map(took).collect();
    Some(format!("late: {}; at most {}", count_with_unit(late, "block"), places.join(", ")))
}

/// Formats a number of blocks per second in at most six columns, such as `4012` or `1.25M`.
pub(super) fn short_rate(number: f64) -> String {
    match number {
        n if n < 9.95 && n > 0.0 => format!("{n:.1}"),
        n if n < 99_999.5 => format!("{n:.0}"),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n if n < 99.95e6 => format!("{:.2}M", n / 1e6),
        n if n < 999.5e6 => format!("{:.0}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use member::protocol::Source;

    #[test]
    fn rates_are_differences_over_time() {
        let amount = |blocks, bytes| Amount { blocks, bytes };
        let rate = compute_rate(amount(10, 1000), amount(30, 5000), 500_000_000);
        assert_eq!(rate, Rate { blocks: 40.0, bytes: 8000.0 });
        assert_eq!(compute_rate(amount(1, 1), amount(2, 2), 0), Rate::default());
        for (number, text) in
            [(0.0, "0"), (0.5, "0.5"), (4012.0, "4012"), (1_250_000.0, "1.25M"), (2e9, "2.0G")]
        {
            assert_eq!(short_rate(number), text);
        }
    }

    #[test]
    fn filtered_blocks_are_not_losses() {
        let lost = |why: &str, blocks| Loss { why: why.to_owned(), blocks };
        let source = Source {
            name: "rx".to_owned(),
            seen: None,
            given: Amount::default(),
            lost: vec![lost("ring", Some(3)), lost("nic", None), lost("filtered", Some(9))],
        };
        let counters = Counters { sources: vec![source], ..Counters::default() };
        assert!(losses_by_location(&counters).contains(&("before rx (ring)".to_owned(), 3)));
    }
}
