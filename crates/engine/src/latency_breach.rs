//! Messages about latency breaches.

use pipeline::explain::{format_nanoseconds, format_rounded_duration};
use runtime::latency::LatencyBreach;

/// Formats a latency breach for the user. Names the age of the late block, its sink, the latency
/// bound, and the wait that exceeded its share of the bound the most.
#[must_use]
pub fn describe_breach(breach: &LatencyBreach) -> String {
    let over = |ns: u64| format_rounded_duration(ns.saturating_sub(breach.asked_ns));
    let asked = format_nanoseconds(breach.asked_ns).replace(' ', "");
    match (&breach.late_sink, &breach.worst_wait) {
        (Some((sink, age)), wait) => {
            let (old, late) = (format_rounded_duration(*age), over(*age));
            let wait = wait.as_ref().map_or_else(String::new, |(place, waited, share)| {
                format!(
                    "; {place}: waited {}, permitted {}",
                    format_rounded_duration(*waited),
                    format_rounded_duration(*share)
                )
            });
            let taken = format!("a block was {old} old when `{sink}` received it");
            format!("{taken}, {late} over --latency={asked}{wait}")
        }
        (None, Some((place, waited, _))) => {
            let (waited, late) = (format_rounded_duration(*waited), over(*waited));
            format!("{place}: a block has waited for {waited}, {late} over --latency={asked}")
        }
        (None, None) => "no block is late".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v14_breach_names_sink_place_and_bound() {
        const MS: u64 = 1_000_000;
        let way = Some(("b".to_owned(), 14 * MS));
        let wait = Some(("a → b".to_owned(), 12 * MS, 4 * MS));
        let text = "a block was 14.0 ms old when `b` received it, 4.00 ms over --latency=10ms; a → \
                    b: waited 12.0 ms, permitted 4.00 ms";
        assert_eq!(
            describe_breach(&LatencyBreach { asked_ns: 10 * MS, late_sink: way, worst_wait: wait }),
            text
        );
        let wait = Some(("a → b".to_owned(), 11 * MS, 4 * MS));
        let text = "a → b: a block has waited for 11.0 ms, 1.00 ms over --latency=10ms";
        assert_eq!(
            describe_breach(&LatencyBreach {
                asked_ns: 10 * MS,
                late_sink: None,
                worst_wait: wait
            }),
            text
        );
    }
}
