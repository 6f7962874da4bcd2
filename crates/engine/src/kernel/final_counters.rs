//! Final counters and filter state of a request in the kernel, in memory and as text that is sent
//! to another process.

use super::fused_tree::KernelCounters;
use super::taps::OpenTaps;
use super::tree::{ExitBlocks, RequestTree};
use endpoint::source::kernel::ArcCounts;
use filter::Amount;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The final counters and filter state of a request in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalCounters {
    pub(super) counted: KernelCounters,
    /// The final state of the request's filters, by step number.
    pub(super) states: HashMap<usize, Vec<u8>>,
    /// Number of doorbell notifications that programs have sent for the request.
    #[serde(rename = "bells")]
    pub(super) notifications: u64,
    /// For a request at a user's sockets, the number of packets that were skipped because all
    /// memory regions of their processor were in use.
    pub(super) busy: u64,
    /// The taps that were open when the counters were read.
    #[serde(default)]
    pub(super) taps: OpenTaps,
    /// Number of the request's program runs that the kernel measured, and their total time in ns.
    pub(super) measured: (u64, u64),
    /// True if the counters are unknown, because the process that ran the request ended without
    /// reporting them.
    #[serde(skip)]
    pub(super) lost: bool,
}

impl FinalCounters {
    /// Returns the empty counters of a request whose serving process ended without a report.
    #[must_use]
    pub fn lost_counters() -> Self {
        Self { lost: true, ..Self::default() }
    }

    /// Returns lower bounds for the counters of a request whose own counters are lost, derived from
    /// the frames that arrived.
    pub(super) fn lower_bounds(tree: &RequestTree, arrived: &[ArcCounts]) -> Self {
        let handed = |number: usize| {
            let Some(ArcCounts { taken, lapped, unread, .. }) = arrived.get(number) else {
                return Amount::default();
            };
            Amount { blocks: taken.blocks + lapped + unread, bytes: taken.bytes }
        };
        let handed: Vec<Amount> = (0..tree.exits.len()).map(handed).collect();
        let mut entered = vec![Amount::default(); tree.steps.len()];
        let mut passed = vec![Amount::default(); tree.steps.len() + 1];
        let most = |to: &mut Amount, of: Amount| {
            to.blocks = to.blocks.max(of.blocks);
            to.bytes = to.bytes.max(of.bytes);
        };
        for (exit, amount) in tree.exits.iter().zip(&handed) {
            if matches!(exit.which, ExitBlocks::Classes(_)) {
                most(&mut passed[exit.from.map_or(0, |step| step + 1)], *amount);
            }
        }
        // A step has a higher number than its predecessor, so reverse order visits successors
        // first.
        for (number, step) in tree.steps.iter().enumerate().rev() {
            let exits = tree.exits.iter().zip(&handed);
            let unsure = exits.filter(|(exit, _)| {
                exit.from == Some(number) && matches!(exit.which, ExitBlocks::Unsure)
            });
            let all = unsure.fold(passed[number + 1], |sum, (_, unsure)| sum + *unsure);
            entered[number] = all;
            most(&mut passed[step.from.map_or(0, |step| step + 1)], all);
        }
        let (ran, unselected) = (passed[0], vec![Amount::default(); passed.len()]);
        let rest = KernelCounters::default();
        let counted = KernelCounters { ran, entered, passed, unselected, handed, ..rest };
        Self { counted, lost: true, ..Self::default() }
    }

    /// Returns the taps that were open when the counters were read.
    #[must_use]
    pub const fn open_taps(&self) -> &OpenTaps {
        &self.taps
    }

    /// Formats the counters and the state as JSON.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the text written by [`Self::to_text`]. Returns `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn amount(blocks: u64, bytes: u64) -> Amount {
        Amount { blocks, bytes }
    }

    #[test]
    fn printed_final_counters_parse_to_the_same_counters() {
        let counted = KernelCounters {
            ran: amount(7, 700),
            entered: vec![amount(6, 600), amount(0, 0)],
            passed: vec![amount(5, u64::MAX)],
            unselected: Vec::new(),
            handed: vec![amount(1, 2); 31],
            failed: vec![amount(0, 0), amount(1, 64)],
            left: [1, 2, 3],
            reasons: HashMap::from([(1, HashMap::from([("not udp".to_owned(), 9)]))]),
        };
        let taps = OpenTaps::from_indices([2, 5]);
        let states = HashMap::from([(0, vec![0, 255, 16]), (3, Vec::new())]);
        let ended = FinalCounters {
            counted,
            states,
            notifications: 2,
            busy: 4,
            taps,
            measured: (9, 900),
            lost: false,
        };
        assert_eq!(FinalCounters::from_text(&ended.to_text()), Some(ended));
        for wrong in ["", "{}", "[]", "?"] {
            assert_eq!(FinalCounters::from_text(wrong), None, "{wrong}");
        }
    }
}
