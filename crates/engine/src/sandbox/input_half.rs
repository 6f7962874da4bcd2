//! The input half of a sandboxed filter: a sink that sends blocks to the filter's process over a
//! stream.
//!
//! Blocks are copied into a ring that the process can only read. While the ring is full, the space
//! waits, as long as the process makes progress. When the process exits, the blocks that it has not
//! consumed and all later blocks are dropped.

use super::limits::{BLOCK_TOO_LONG, FILTER_ENDED};
use super::message::{self, MESSAGE_SIZE_MAX};
use super::state::{self, StateRecord};
use super::supervisor::Supervisor;
use buffer::Fault;
use buffer::stream::Output;
use endpoint::process::Process;
use endpoint::{DropReason, Failure, Sink};
use filter::{Amount, Batch, Block, Report, Time};
use runtime::space::saved_state::SavedState;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// The node that sends the input of a sandboxed filter to the filter's process.
#[derive(Debug)]
pub(crate) struct InputHalf {
    /// The stream to the process, or `None` after the stream has ended.
    output: Option<Output>,
    supervisor: Arc<Supervisor>,
    process: Arc<Process>,
    written: Amount,
    ended: Amount,
    long: Amount,
    /// Block messages that the process has not consumed, oldest first: the number of each message,
    /// and the length of the block's view in bytes.
    in_flight: VecDeque<(u64, u32)>,
}

impl InputHalf {
    pub(super) fn new(output: Output, supervisor: Arc<Supervisor>, process: Arc<Process>) -> Self {
        let (written, ended, long) = Default::default();
        let in_flight = VecDeque::new();
        Self { output: Some(output), supervisor, process, written, ended, long, in_flight }
    }

    /// Sends one block to the process. Blocks until the ring has room. Counts the block as dropped
    /// if it is too long or the process has exited.
    fn send_block(&mut self, block: &Block<'_>) {
        let length = message::message_length(block);
        if length > MESSAGE_SIZE_MAX {
            self.long.add_block(block.length());
        } else if self.output.is_some() && self.write_block(block, length) {
            self.written.add_block(block.length());
            let number = self.output.as_ref().map_or(0, |output| output.counts().blocks);
            self.in_flight.push_back((number, block.length()));
        } else {
            self.ended.add_block(block.length());
        }
    }

    /// Writes a block. Blocks until the ring has room. Returns false if the process has exited.
    fn write_block(&mut self, block: &Block<'_>, length: usize) -> bool {
        self.write_with(length, false, &mut |room| message::write(block, room))
    }

    /// Writes a message to the process. Blocks until the ring has room. `has_room` is true if the
    /// ring for the process's output has room; the process then has no reason to wait. Returns
    /// false if the process has exited.
    fn write_with(
        &mut self,
        length: usize,
        has_room: bool,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        loop {
            if self.supervisor.is_over() {
                self.close_process_input();
                return false;
            }
            let Some(output) = &mut self.output else { return false };
            let put = match output.is_ready(length) {
                Ok(true) => output.write_with(length, &mut *write),
                Ok(false) => output.wait(length).map(|_| false),
                Err(fault) => Err(fault),
            };
            match put {
                Ok(true) => return true,
                Ok(false) => {
                    self.report_progress();
                    self.supervisor.check_progress(has_room);
                }
                Err(fault) => self.handle_fault(fault),
            }
        }
    }

    /// Requests the filter's state at this point of the stream, after all blocks sent so far.
    /// Returns false if the ring has no room for the request; the caller must then try again. Fails
    /// with the reason if the process has exited.
    pub(crate) fn request_state(&mut self) -> Result<bool, String> {
        self.try_send_record(&StateRecord::Save)
    }

    /// Cancels an earlier request for the filter's state. The filter continues unchanged.
    pub(crate) fn cancel_state_request(&mut self) {
        // If the ring is full, input is pending, and any input makes the filter continue.
        let _ = self.try_send_record(&StateRecord::Resume);
    }

    fn try_send_record(&mut self, record: &StateRecord<'_>) -> Result<bool, String> {
        let message = record.encode();
        let Some(output) = self.output.as_mut().filter(|_| !self.supervisor.is_over()) else {
            self.close_process_input();
            return Err(self.supervisor.end_reason());
        };
        let put = match output.is_ready(message.len()) {
            Ok(true) => output.write(&message),
            other => other,
        };
        output.flush();
        match put {
            Ok(put) => {
                self.report_progress();
                Ok(put)
            }
            Err(fault) => {
                self.handle_fault(fault);
                Err(self.supervisor.end_reason())
            }
        }
    }

    /// Sends the state of another filter, which must precede all blocks. Blocks until the ring has
    /// room for all of it. Fails with the reason if the process has exited or a message is too
    /// long.
    pub(crate) fn send_saved_state(&mut self, saved: &SavedState) -> Result<(), String> {
        self.supervisor.set_owes_reply(true);
        let sent =
            state::send_state(saved, &mut |message| self.write_message(message).then_some(()));
        match sent {
            Some(()) => {
                self.flush();
                Ok(())
            }
            None if self.supervisor.is_over() => Err(self.supervisor.end_reason()),
            None => {
                Err("has a session, or holds a block, that is longer than a ring accepts".into())
            }
        }
    }

    /// Writes a message. Blocks until the ring has room. Returns false if the process has exited.
    fn write_message(&mut self, message: &[u8]) -> bool {
        // The process writes nothing until it has received the entire state, so it has room.
        self.write_with(message.len(), true, &mut |room| {
            room.copy_from_slice(message);
            message.len()
        })
    }

    fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
        self.report_progress();
    }

    /// Returns the number of blocks that the process has accepted. Blocks that the process had not
    /// consumed at its end do not count.
    pub(crate) const fn blocks_sent(&self) -> u64 {
        self.written.blocks
    }

    /// Ends the stream and the process, because the filter continues in another process or thread.
    pub(crate) fn end_stream(&mut self) {
        // The state includes all input, so no block is left unconsumed.
        self.in_flight.clear();
        self.supervisor.kill_without_report();
        self.close_process_input();
    }

    /// Ends the stream because of a fault. Kills the process if it caused the fault.
    fn handle_fault(&mut self, fault: Fault) {
        match fault {
            // The process has ended, and its exit status contains the reason.
            Fault::Abandoned => self.supervisor.wait_short_interval(),
            fault => self
                .supervisor
                .kill(format!("was ended because it reported an invalid read position: {fault}")),
        }
        self.close_process_input();
    }

    /// Reports the progress of the process to the supervisor. Kills the process if it claims to
    /// have consumed more messages than it was sent.
    fn report_progress(&mut self) {
        let Some(output) = &self.output else { return };
        let put = output.counts().blocks;
        let taken = output.reader_counts(0).map_or(0, |taken| taken.blocks);
        if taken > put {
            // Progress to an impossible position is ignored.
            self.supervisor.kill(
                "was ended because it reported an invalid read position: beyond the blocks that it \
                 had received",
            );
            return;
        }
        while self.in_flight.front().is_some_and(|(number, _)| *number <= taken) {
            self.in_flight.pop_front();
        }
        self.supervisor.set_input_counts(put, taken);
    }

    /// Ends the input stream of the process, and counts the blocks that the process has not
    /// consumed as dropped.
    fn close_process_input(&mut self) {
        self.report_progress();
        self.output = None;
        for (_, length) in self.in_flight.drain(..) {
            self.ended.add_block(length);
            self.written.blocks -= 1;
            self.written.bytes -= u64::from(length);
        }
    }
}

impl Sink for InputHalf {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.send_block(&block);
        }
        if self.output.is_some() {
            self.flush();
        }
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.report_progress();
        Ok(())
    }

    /// Blocks until the process has consumed its input or has ended. Then closes the input, so that
    /// the process releases its held blocks and exits.
    fn finish(&mut self) -> Result<Report, Failure> {
        self.report_progress();
        while !self.in_flight.is_empty() && self.output.is_some() {
            if self.supervisor.is_over() {
                self.close_process_input();
                break;
            }
            self.supervisor.check_progress(false);
            self.supervisor.wait_short_interval();
            self.report_progress();
        }
        // The stream ends here: the process releases its held blocks and exits.
        self.supervisor.record_input_end();
        self.output = None;
        Ok(Report::default())
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        vec![(FILTER_ENDED.into(), self.ended), (BLOCK_TOO_LONG.into(), self.long)]
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}
