//! Formatting of rates and latencies.

use member::protocol::{Counters, GaugeLatency};
use pipeline::explain::{format_nanoseconds, format_rounded_duration};
use streamline::report::format_count;

pub(super) use streamline::paths::rates::{Rate, compute_rate, total_source_output, update_totals};

/// Describes the latencies that exceed the bound of the request (`--latency`): the number of late
/// blocks, and the sink and the waiting time that exceed their limits by the most. Returns `None`
/// if nothing exceeds the bound.
pub(super) fn describe_latency(counters: &Counters) -> Option<String> {
    let latency = counters.latency.as_ref()?;
    let longest = |all: &[GaugeLatency]| {
        let late = all.iter().filter(|at| at.worst_ns > at.share_ns);
        late.max_by_key(|at| at.worst_ns - at.share_ns).cloned()
    };
    let took = |at: &GaugeLatency| {
        format!(
            "{} took {} of {}",
            at.name,
            format_rounded_duration(at.worst_ns),
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
    Some(format!("late: {}; at most {}", format_count(late, "block"), places.join(", ")))
}

/// Formats a number of blocks per second in at most six columns, such as `4012` or `1.25M`.
pub(crate) fn format_rate_short(number: f64) -> String {
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

    #[test]
    fn rates_are_formatted_in_six_columns() {
        for (number, text) in
            [(0.0, "0"), (0.5, "0.5"), (4012.0, "4012"), (1_250_000.0, "1.25M"), (2e9, "2.0G")]
        {
            assert_eq!(format_rate_short(number), text);
        }
    }
}
