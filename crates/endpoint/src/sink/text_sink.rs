//! A buffered sink for formats that write text for each block.

use super::buffered_output::BufferedOutputFile;
use crate::{Failure, Sink};
use filter::{Amount, Batch, Block, Report, Time};

/// The format of a text sink: turns blocks into text.
pub(crate) trait BlockFormatter: Send {
    /// Appends the text for a block to `out`.
    fn append(&mut self, block: &Block<'_>, out: &mut BufferedOutputFile) -> Result<(), Failure>;
    /// Appends the text that remains after the last block.
    fn append_remainder(&mut self, _: &mut BufferedOutputFile) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the final report. Called after the output has been flushed for the last time.
    fn report(&self, out: &BufferedOutputFile) -> Report;
}

/// A sink that consists of a formatter and an output. Output to a terminal is flushed after every
/// batch.
#[derive(Debug)]
pub(crate) struct TextSink<F> {
    pub(crate) formatter: F,
    pub(crate) out: BufferedOutputFile,
}

impl<F: BlockFormatter> Sink for TextSink<F> {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.formatter.append(&block, &mut self.out)?;
            self.out.end_block(block.length())?;
        }
        if self.out.is_interactive() { self.out.flush() } else { Ok(()) }
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.out.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.formatter.append_remainder(&mut self.out)?;
        self.out.flush()?;
        Ok(self.formatter.report(&self.out))
    }

    fn take_longest_write(&mut self) -> u64 {
        self.out.take_longest_write()
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.out.amount_written())
    }
}
