//! The half of a program to which blocks go: a sink over its standard input.
//!
//! In: blocks. Out: their viewed bytes, one behind the other, one system call per batch and nothing
//! copied by us. A full pipe makes the space wait, as a full ring would. A program that has closed
//! its end takes nothing more: what comes then is dropped, and not a mistake.

use super::Process;
use crate::fail::failed;
use crate::{DropReason, Failure, Sink};
use filter::{Amount, Batch, LANES, Report, Time};
use std::io::{ErrorKind, IoSlice, Write};
use std::process::ChildStdin;
use std::sync::Arc;

/// The standard input of a program.
#[derive(Debug)]
pub(super) struct Input {
    pipe: Option<ChildStdin>,
    process: Arc<Process>,
    written: Amount,
    ended: Amount,
    holes: Amount,
}

impl Input {
    pub(super) fn new(pipe: ChildStdin, process: Arc<Process>) -> Self {
        let (written, ended, holes) = Default::default();
        Self { pipe: Some(pipe), process, written, ended, holes }
    }

    /// Writes all of it, and answers how many bytes were written before the other end was closed.
    fn write(&mut self, mut rest: &mut [IoSlice<'_>]) -> Result<u64, Failure> {
        let mut written = 0;
        // What is empty at the front is taken off, so that nothing left means done.
        IoSlice::advance_slices(&mut rest, 0);
        while let (Some(pipe), false) = (&mut self.pipe, rest.is_empty()) {
            match pipe.write_vectored(rest) {
                Ok(count) => {
                    written += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    self.pipe = None;
                    self.process.hear_no_more();
                }
                Err(error) => return Err(failed("write to", &self.process.command, &error)),
            }
        }
        Ok(written)
    }

    /// Counts a block of which so many bytes were written.
    fn count(&mut self, length: u32, here: u64, written: u64) {
        if u64::from(length) > here {
            self.holes.add(length);
            return;
        }
        let whole = if written == here { &mut self.written } else { &mut self.ended };
        whole.blocks += 1;
        self.written.bytes += written;
        self.ended.bytes += here - written;
    }
}

impl Sink for Input {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut slices = [IoSlice::new(&[]); LANES];
        let mut lanes = 0;
        for (slice, (_, block)) in slices.iter_mut().zip(batch.blocks()) {
            *slice = IoSlice::new(block.bytes());
            lanes += 1;
        }
        let mut written = self.write(slices.get_mut(..lanes).unwrap_or_default())?;
        for (_, block) in batch.blocks() {
            let here = block.bytes().len() as u64;
            let out = here.min(written);
            written -= out;
            self.count(block.length(), here, out);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.pipe = None;
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        vec![(DropReason::ProgramEnded, self.ended), (DropReason::NeverSeen, self.holes)]
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}
