//! The writers outside the path that add blocks to one node.

use endpoint::external_writers::WriterSource;
use endpoint::{DropReason, Source as _};
use filter::Amount;
use std::fmt;

/// The writers that add blocks to the output of one node.
#[derive(Default)]
pub struct WriterPort {
    pub(super) writers: Vec<WriterSource>,
    /// Amount written by those writers that have ended.
    ended: Amount,
    /// Losses of writers that have ended, by reason.
    lost: Vec<(DropReason, Amount)>,
}

impl fmt::Debug for WriterPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterPort").field("writers", &self.writers.len()).finish_non_exhaustive()
    }
}

impl WriterPort {
    /// Returns the amount that all writers have written so far, including losses.
    pub(super) fn written_amount(&self) -> Amount {
        let given = self.writers.iter().map(|writer| writer.counters().given);
        let lost = self.losses().map(|(_, amount)| amount);
        given.chain(lost).fold(self.ended, |sum, amount| sum + amount)
    }

    /// Returns the blocks and bytes that the node accepted from writers but dropped before they
    /// left the node, by reason. A reason may occur several times.
    pub fn losses(&self) -> impl Iterator<Item = (DropReason, Amount)> {
        let open = self.writers.iter().flat_map(|writer| writer.losses());
        self.lost.iter().chain(open).copied()
    }

    /// Counts all bytes that the node has not read from its writers as lost, for the reason `why`.
    pub(super) fn discard_unread_bytes(&mut self, why: DropReason) {
        self.writers.iter_mut().for_each(|writer| writer.discard(why));
    }

    /// Removes a writer that has ended.
    pub(super) fn remove(&mut self, writer: usize) {
        if writer < self.writers.len() {
            let writer = self.writers.remove(writer);
            self.ended += writer.counters().given;
            for (why, amount) in writer.losses() {
                match self.lost.iter_mut().find(|(known, _)| known == why) {
                    Some((_, sum)) => *sum += *amount,
                    None => self.lost.push((*why, *amount)),
                }
            }
        }
    }
}
