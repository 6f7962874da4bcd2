//! The output half of a sandboxed filter: a source that receives blocks from the filter's process
//! over a stream.
//!
//! Messages are untrusted: each is copied first and then checked. An invalid message ends the
//! process, not the path. The source ends when its stream ends.

use super::message::{self, MESSAGE_SIZE_MAX, MessageDefect};
use super::state::{SandboxCounters, StateCollector, StateRecord};
use super::supervisor::{CHECK_INTERVAL, Supervisor};
use buffer::Fault;
use buffer::stream::{BlockReadResult, Input};
use endpoint::process::Process;
use endpoint::{Failure, Intake, Origins, Source, SourceCounters, SourceProperties, SourceStatus};
use filter::{Amount, Counts, Description};
use runtime::space::saved_state::SavedState;
use std::any::Any;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The node that receives the output of a sandboxed filter from the filter's process.
#[derive(Debug)]
pub(crate) struct OutputHalf {
    /// The stream from the process, or `None` after the stream has ended.
    input: Option<Input>,
    /// The latest message from the process, until its block has been copied to a pool.
    message: Vec<u8>,
    pending: Option<usize>,
    /// Sources of the path. Each block from the process must name one of them as its origin.
    origins: Origins,
    given: Amount,
    /// True if this reader has announced to the process that it sleeps.
    asleep: bool,
    /// Number of times that the process has woken this reader since the process last sent a block.
    empty_wakeups: u32,
    /// The parts of the filter's state that have been received so far. `None` if the state was not
    /// requested.
    gathering: Option<StateCollector>,
    /// The latest counters that the filter has reported.
    account: SandboxCounters,
    counts: Counts,
    description: &'static Description,
    supervisor: Arc<Supervisor>,
    process: Arc<Process>,
}

/// Interval between two checks of the process's progress while the process has no pending work.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of consecutive times that the process may wake this reader without sending a
/// block. The process is killed if it exceeds this number.
const EMPTY_WAKEUPS_MAX: u32 = 10_000;

impl OutputHalf {
    pub(super) fn new(
        input: Input,
        origins: Origins,
        description: &'static Description,
        supervisor: Arc<Supervisor>,
        process: Arc<Process>,
    ) -> Self {
        let (input, message, pending) = (Some(input), vec![0; MESSAGE_SIZE_MAX], None);
        let (given, asleep, empty_wakeups, gathering) = (Amount::default(), false, 0, None);
        let account = SandboxCounters::default();
        let counts = account.to_counts(description);
        Self {
            input,
            message,
            pending,
            origins,
            given,
            asleep,
            empty_wakeups,
            gathering,
            account,
            counts,
            description,
            supervisor,
            process,
        }
    }

    /// Prepares to receive the filter's state, which follows the filter's blocks in the stream.
    pub(crate) fn expect_state(&mut self) {
        self.supervisor.set_owes_reply(true);
        self.gathering =
            Some(StateCollector::new(self.description.state.held_max, self.origins.count()));
    }

    /// Returns the filter's state, its reported counters, and the number of its output blocks, or
    /// `None` if a part of them has not arrived yet. Fails with the reason if the stream has ended.
    pub(crate) fn take_state(
        &mut self,
    ) -> Result<Option<(SavedState, SandboxCounters, u64)>, String> {
        if self.input.is_none() {
            return Err(self.supervisor.end_reason());
        }
        let known = self.gathering.take_if(|gathering| gathering.is_done());
        let Some(known) = known.and_then(StateCollector::into_state) else { return Ok(None) };
        self.supervisor.set_owes_reply(false);
        Ok(Some((known, self.account.clone(), self.given.blocks)))
    }

    /// Blocks until more messages from the process may be available, for at most
    /// [`CHECK_INTERVAL`]. `asked` is true if the request for the filter's state has been sent. If
    /// it is false, or if there is no memory for a message, waits only for a short interval,
    /// because no notification announces room in a ring or free memory.
    pub(crate) fn wait_for_messages(&self, asked: bool) {
        match &self.input {
            Some(input) if asked && self.asleep => {
                sys::poll::wait_until_readable(&[input.as_fd()], Some(CHECK_INTERVAL));
            }
            _ => self.supervisor.wait_short_interval(),
        }
    }

    /// Cancels the request for the filter's state, and discards the parts received so far.
    pub(crate) fn cancel_state(&mut self) {
        self.supervisor.set_owes_reply(false);
        self.gathering = None;
    }

    /// Blocks until the filter confirms that its state is restored. Fails with the reason if its
    /// process exits or misbehaves.
    pub(crate) fn wait_until_restored(&mut self) -> Result<(), String> {
        while let Some(input) = &mut self.input {
            match input.read_block(&mut self.message) {
                Ok(BlockReadResult::Block(length)) => {
                    let message = self.message.get(..length).unwrap_or_default();
                    if StateRecord::read(message) == Some(Ok(StateRecord::Restored)) {
                        self.supervisor.set_owes_reply(false);
                        return Ok(());
                    }
                    self.supervisor
                        .kill("was ended because it sent output before its state was restored");
                }
                Ok(BlockReadResult::Nothing) => {
                    self.supervisor.check_progress(true);
                    if self.supervisor.is_over() {
                        break;
                    }
                    if let Err(fault) = input.wait(Some(CHECK_INTERVAL)) {
                        self.handle_fault(fault);
                    }
                }
                Ok(BlockReadResult::End) => break,
                Err(fault) => drop(self.handle_fault(fault)),
            }
        }
        self.release_stream();
        Err(self.supervisor.end_reason())
    }

    /// Ends the stream and the process, because the filter continues in another process or thread.
    pub(crate) fn end_stream(&mut self) {
        self.supervisor.kill_without_report();
        self.release_stream();
    }

    /// Consumes the latest message if it is a state record or a report of counters. Returns false,
    /// and consumes nothing, if the message is an output block.
    fn consume_record(&mut self, length: usize) -> Result<bool, MessageDefect> {
        let message = self.message.get(..length).unwrap_or_default();
        match (StateRecord::read(message), &mut self.gathering) {
            // The process sends its counters before the state and at its end.
            (Some(Ok(StateRecord::Account(account))), _) => {
                self.counts = account.to_counts(self.description);
                self.account = account;
            }
            (record, Some(gathering)) if gathering.accepts(record.is_some()) => {
                gathering.add_message(message)?;
            }
            (Some(_), _) => return Err(MessageDefect::StateRecord),
            (None, _) => return Ok(false),
        }
        self.pending = None;
        Ok(true)
    }

    /// Copies the next message of the process, if there is one. If the previous message is still to
    /// be processed, copies nothing. Returns the length of the message to process.
    fn next(&mut self) -> Result<BlockReadResult, Fault> {
        if let Some(length) = self.pending {
            return Ok(BlockReadResult::Block(length));
        }
        let Some(input) = &mut self.input else { return Ok(BlockReadResult::End) };
        let piece = input.read_block(&mut self.message)?;
        if let BlockReadResult::Block(length) = piece {
            self.pending = Some(length);
            self.empty_wakeups = 0;
            self.supervisor.count_output_message();
        }
        Ok(piece)
    }

    /// Withdraws the announcement that this reader sleeps, if there is one. Counts the wake-up.
    /// Kills the process after more than [`EMPTY_WAKEUPS_MAX`] wake-ups without a block.
    fn withdraw_sleep_notice(&mut self) {
        let Some(input) = self.input.as_mut().filter(|_| self.asleep) else { return };
        self.asleep = false;
        self.empty_wakeups += u32::from(input.announce_wake(true));
        if self.empty_wakeups > EMPTY_WAKEUPS_MAX {
            self.supervisor.kill("was ended because it kept sending notifications without blocks");
        }
    }

    /// Announces to the process that this reader is about to sleep. Returns true if a message has
    /// arrived in the meantime; the reader must then not sleep.
    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        let Some(input) = &mut self.input else { return Ok(false) };
        self.asleep = true;
        input.announce_sleep()
    }

    /// Ends the stream because of a fault. Kills the process if it caused the fault.
    fn handle_fault(&mut self, fault: Fault) -> SourceStatus {
        match fault {
            // The process ended without closing its stream, and its exit status contains the
            // reason.
            Fault::Abandoned => self.supervisor.wait_short_interval(),
            fault => {
                self.supervisor.kill(format!("was ended because it wrote invalid output: {fault}"));
            }
        }
        self.release_stream()
    }

    /// Releases the stream, which ends this source.
    fn release_stream(&mut self) -> SourceStatus {
        self.input = None;
        self.pending = None;
        self.message = Vec::new();
        SourceStatus::End
    }
}

impl Source for OutputHalf {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let mut gave = false;
        self.withdraw_sleep_notice();
        while intake.room() > 0 {
            let length = match self.next() {
                Ok(BlockReadResult::Block(length)) => length,
                Ok(BlockReadResult::Nothing) if gave => break,
                Ok(BlockReadResult::Nothing) => match self.announce_sleep() {
                    Ok(false) => break,
                    Ok(true) => {
                        self.withdraw_sleep_notice();
                        continue;
                    }
                    Err(fault) => return Ok(self.handle_fault(fault)),
                },
                Ok(BlockReadResult::End) => {
                    self.supervisor.record_output_end();
                    return Ok(self.release_stream());
                }
                Err(fault) => return Ok(self.handle_fault(fault)),
            };
            match self.consume_record(length) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(lie) => {
                    self.supervisor.kill(format!("was ended because it sent invalid state: {lie}"));
                    return Ok(self.release_stream());
                }
            }
            let message = self.message.get(..length).unwrap_or_default();
            match message::copy_into_intake(message, self.origins.count(), intake) {
                Ok(Some(length)) => {
                    self.given.add_block(length);
                    self.pending = None;
                    gave = true;
                }
                Ok(None) => {
                    let until = Some(intake.now);
                    let wait = SourceStatus::Wait { until, readable: false };
                    return Ok(if gave { SourceStatus::Blocks } else { wait });
                }
                Err(lie) => {
                    self.supervisor
                        .kill(format!("was ended because it sent an invalid block: {lie}"));
                    return Ok(self.release_stream());
                }
            }
        }
        if gave {
            return Ok(SourceStatus::Blocks);
        }
        self.supervisor.check_progress(true);
        let look =
            if self.supervisor.has_pending_work() { CHECK_INTERVAL } else { IDLE_CHECK_INTERVAL };
        let look = u64::try_from(look.as_nanos()).unwrap_or(u64::MAX);
        let until = Some(intake.now.saturating_add(look));
        Ok(SourceStatus::Wait { until, readable: true })
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters { counts: Some(self.counts.clone()), ..SourceCounters::lossless(self.given) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.input.as_ref()?.as_fd())
    }

    fn stop(&mut self) -> bool {
        self.input.is_some()
    }

    fn close(&mut self) {
        // The stream is released first, so that the resulting errors are not attributed to the
        // process.
        if self.input.take().is_some() {
            self.supervisor.kill_without_report();
        }
    }

    fn properties(&self) -> SourceProperties {
        let process = Some(Arc::clone(&self.process));
        SourceProperties { process, ..SourceProperties::default() }
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}
