//! Sinks that write text: a few lines about each block, gathered, and shown when nothing comes.

use super::out::Out;
use crate::{Failure, Sink};
use filter::{Amount, Batch, Block, Report, Time};

/// The text written about blocks.
pub(crate) trait Text: Send {
    /// Returns the output.
    fn out(&self) -> &Out;
    /// The same, to be appended to.
    fn out_mut(&mut self) -> &mut Out;
    /// Appends what there is to say about a block.
    fn tell(&mut self, block: &Block<'_>) -> Result<(), Failure>;
    /// Returns the final report, when everything is out.
    fn report(&self) -> Report;
}

/// The sink that writes it. Where a person looks on nothing waits for more.
#[derive(Debug)]
pub(crate) struct Written<T>(pub(crate) T);

impl<T: Text> Sink for Written<T> {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.0.tell(&block)?;
            self.0.out_mut().ended(block.length())?;
        }
        let out = self.0.out_mut();
        if out.is_interactive() { out.flush() } else { Ok(()) }
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.0.out_mut().flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.0.out_mut().flush()?;
        Ok(self.0.report())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.0.out().written())
    }
}
