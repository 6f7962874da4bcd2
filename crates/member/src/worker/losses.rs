//! Reports of losses for the daemon's log.

use crate::protocol::Counters;
use std::time::Duration;

/// Interval between two samples of the counters for reports of losses. Each sample wakes the spaces
/// of the path once.
const LOSS_SAMPLE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of locations that a report of losses names.
const LOSS_LOCATIONS_MAX: usize = 3;

/// The losses of a path at the last sample, and the time of the next sample.
#[derive(Debug)]
pub(super) struct LossWatch {
    /// Monotonic time at which the losses are sampled next, in ns.
    pub(super) due: u64,
    /// Number of lost blocks at the last sample.
    last_lost: u64,
}

impl LossWatch {
    /// Creates the record of losses for a path that starts at the monotonic time `now`, in ns.
    pub(super) const fn new(now: u64) -> Self {
        Self { due: now + LOSS_SAMPLE_INTERVAL.as_nanos() as u64, last_lost: 0 }
    }

    /// Samples the losses and schedules the next sample. Returns a sentence about the blocks lost
    /// since the previous sample, or `None` if there are none.
    pub(super) fn sample(&mut self, counters: &Counters, now: u64) -> Option<String> {
        self.due = now + LOSS_SAMPLE_INTERVAL.as_nanos() as u64;
        let places = counters.losses_by_location();
        let total: u64 = places.iter().map(|(_, blocks)| blocks).sum();
        let fresh = total.saturating_sub(self.last_lost);
        self.last_lost = total;
        if fresh == 0 {
            return None;
        }
        let named = places.iter().take(LOSS_LOCATIONS_MAX);
        let named: Vec<String> = named.map(|(place, n)| format!("{n} {place}")).collect();
        Some(format!("{fresh} blocks since the last report, {total} in all: {}", named.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Amount, Filter, Loss, Source};
    use runtime::ledger::DropReason;

    fn counters(lost: &[(&str, u64)]) -> Counters {
        let loss =
            |(why, blocks): &(&str, u64)| Loss { why: (*why).to_owned(), blocks: Some(*blocks) };
        let lost = lost.iter().map(loss).collect();
        let source =
            Source { name: "rx".to_owned(), observed: None, given: Amount::default(), lost };
        Counters { sources: vec![source], ..Counters::default() }
    }

    #[test]
    fn only_new_losses_are_reported() {
        let mut watch = LossWatch::new(0);
        let asked = DropReason::ByRequest.text();
        assert_eq!(watch.sample(&counters(&[(asked, 50)]), 1), None, "the request asked for it");
        let message = watch.sample(&counters(&[("ring", 4), ("driver", 5)]), 2).unwrap();
        assert_eq!(
            message,
            "9 blocks since the last report, 9 in all: 5 before rx (driver), 4 before rx (ring)"
        );
        assert_eq!(watch.sample(&counters(&[("ring", 4), ("driver", 5)]), 3), None);
        let message = watch.sample(&counters(&[("ring", 6), ("driver", 5)]), 4).unwrap();
        assert!(message.starts_with("2 blocks since the last report, 11 in all"), "{message}");
        assert_eq!(watch.due, 4 + 60_000_000_000);
    }

    #[test]
    fn drops_in_an_operand_are_not_counted_as_losses() {
        let lost = vec![Loss { why: "malformed".to_owned(), blocks: Some(2) }];
        let filter = |operand| Filter {
            name: "ip".to_owned(),
            lost: lost.clone(),
            operand,
            ..Filter::default()
        };
        let sample = |operand| {
            let counters = Counters { filters: vec![filter(operand)], ..Counters::default() };
            let listed: u64 = counters.losses_by_location().iter().map(|(_, blocks)| blocks).sum();
            assert_eq!(counters.lost_blocks(), listed);
            LossWatch::new(0).sample(&counters, 1)
        };
        assert_eq!(sample(true), None);
        let message = "2 blocks since the last report, 2 in all: 2 in ip (malformed)";
        assert_eq!(sample(false).as_deref(), Some(message));
    }
}
