//! The writers outside the path that belong to one node.

use endpoint::Source;
use filter::Amount;
use std::fmt;

/// The writers at the output of one node.
#[derive(Default)]
pub struct WriterPort {
    pub(super) writers: Vec<Box<dyn Source>>,
    /// Blocks of the writers that have ended.
    ended: Amount,
}

impl fmt::Debug for WriterPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterPort").field("writers", &self.writers.len()).finish_non_exhaustive()
    }
}

impl WriterPort {
    /// Returns the blocks of all writers so far.
    pub(super) fn written(&self) -> Amount {
        let given = self.writers.iter().map(|writer| writer.counters().given);
        given.fold(self.ended, |sum, given| sum + given)
    }

    /// Removes a writer that has ended.
    pub(super) fn remove(&mut self, writer: usize) {
        if writer < self.writers.len() {
            self.ended += self.writers.remove(writer).counters().given;
        }
    }
}
