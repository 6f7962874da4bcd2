//! The input half of a program: a sink that writes to the program's standard input.
//!
//! The viewed bytes of the blocks form one stream. Each batch is written with one system call,
//! without a copy in this process. A full pipe blocks the space, as a full ring does. After the
//! program has closed its standard input, further blocks are dropped, which is not an error.

use super::child::Process;
use crate::failure::failure_from_io_error;
use crate::{DropReason, Failure, Sink};
use filter::{Amount, Batch, LANES, Report, Time};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::AsFd as _;
use std::process::ChildStdin;
use std::sync::Arc;

/// A sink that writes to the standard input of a program.
#[derive(Debug)]
pub(super) struct ProgramInput {
    pipe: Option<ChildStdin>,
    process: Arc<Process>,
    written: Amount,
    ended: Amount,
    holes: Amount,
}

impl ProgramInput {
    pub(super) fn new(pipe: ChildStdin, process: Arc<Process>) -> Self {
        // No other process has this end of the pipe, so the flag affects only this process.
        let nonblocking = OFlags::NONBLOCK;
        let _ = fcntl_getfl(&pipe).and_then(|flags| fcntl_setfl(&pipe, flags | nonblocking));
        let (written, ended, holes) = Default::default();
        Self { pipe: Some(pipe), process, written, ended, holes }
    }

    /// Writes all bytes, blocking while the pipe is full. Returns the number of bytes that were
    /// written, which is smaller than requested if the program has closed its standard input. If
    /// the path was stopped and the program reads nothing, kills the program and fails.
    fn write(&mut self, mut rest: &mut [IoSlice<'_>]) -> Result<u64, Failure> {
        let mut written = 0;
        // Removes empty slices at the front, so that an empty list means completion.
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
                    self.process.record_closed_input();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if let Err(error) = self.process.stop_flag().wait_until_writable(pipe.as_fd()) {
                        self.process.kill();
                        return Err(self.failure(&error));
                    }
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
        Ok(written)
    }

    fn failure(&self, error: &io::Error) -> Failure {
        failure_from_io_error("write to", &self.process.command, error)
    }

    /// Counts a block after a write. `length` is the length of the block, and `present` is the
    /// number of its bytes that are not missing. `written` is the number of bytes written. The
    /// block counts as a hole if bytes are missing, as written if all bytes were written, and
    /// otherwise as dropped. Bytes that were not written count as dropped.
    fn count_block(&mut self, length: u32, present: u64, written: u64) {
        if u64::from(length) > present {
            self.holes.add_block(length);
            return;
        }
        let counter = if written == present { &mut self.written } else { &mut self.ended };
        counter.blocks += 1;
        self.written.bytes += written;
        self.ended.bytes += present - written;
    }
}

impl Sink for ProgramInput {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut slices = [IoSlice::new(&[]); LANES];
        let mut lanes = 0;
        for (slice, (_, block)) in slices.iter_mut().zip(batch.blocks()) {
            *slice = IoSlice::new(block.bytes());
            lanes += 1;
        }
        let mut written = self.write(slices.get_mut(..lanes).unwrap_or_default())?;
        for (_, block) in batch.blocks() {
            let present = block.bytes().len() as u64;
            let out = present.min(written);
            written -= out;
            self.count_block(block.length(), present, out);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.pipe = None;
        Ok(Report::default())
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        vec![(DropReason::ProgramEnded, self.ended), (DropReason::Hole, self.holes)]
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}
