//! A sink that only counts blocks. It implements `discard` and `drop`, and replaces sinks that have
//! run in the kernel.

use crate::source::kernel::frames_in_place::FramesInPlace;
use crate::{DropReason, Failure, Sink};
use filter::{Amount, Batch, Report, Time};
use std::sync::Arc;

/// A sink that only counts the blocks it receives, for the ledger.
#[derive(Debug, Default)]
pub(super) struct CountingSink {
    pub(super) consumed: Amount,
    /// True if the counted blocks are reported as dropped on purpose.
    pub(super) counts_as_dropped: bool,
    /// Frames that the kernel did not send, with the reason; `None` unless the sink ran in the
    /// kernel and frames were refused.
    pub(super) refused: Option<(DropReason, Amount)>,
}

impl Sink for CountingSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        self.consumed += batch.amount_in_lanes(batch.live_lanes());
        Ok(())
    }

    fn accepts_in_place(&mut self, _: &Arc<FramesInPlace>) -> bool {
        true
    }

    fn reads_bytes(&self) -> bool {
        false
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let Amount { blocks, bytes } = self.consumed;
        let rows = [("blocks", blocks), ("bytes", bytes)];
        Ok(if self.counts_as_dropped { Report::default() } else { Report::from_rows(rows) })
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(if self.counts_as_dropped { Amount::default() } else { self.consumed })
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        let by_request = self.counts_as_dropped.then_some((DropReason::ByRequest, self.consumed));
        by_request.into_iter().chain(self.refused).collect()
    }
}
