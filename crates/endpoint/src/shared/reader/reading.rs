//! Reading of the messages that the process of a shared prefix has put into its ring. The blocks of
//! admitted sessions are copied into the pool.

use super::{MessageOutcome, RESERVED_BYTES_MIN, Shared};
use crate::message::{self, HEAD_BYTES, MESSAGE_MAX, MessageDefect};
use crate::shared::sessions::{Admission, STAMP_BYTES, SharedStamp};
use crate::{Failure, Intake, TakenClasses};
use abi::{Entry, Extent};
use buffer::Fault;
use buffer::pool::Draft;
use buffer::stream::{BlockRead, Input, Wanted};

impl Shared {
    /// Reads one message, and emits its block if the block's session is admitted.
    pub(super) fn read_message(
        &mut self,
        intake: &mut Intake<'_>,
    ) -> Result<MessageOutcome, Failure> {
        if let Some(deferred) = self.deferred.take() {
            return self.emit_deferred(intake, deferred);
        }
        let Some(input) = &mut self.input else { return Ok(MessageOutcome::WriterEnded) };
        if self.end_number.is_some_and(|last| self.next >= last) {
            return Ok(MessageOutcome::End);
        }
        let mut room = RESERVED_BYTES_MIN;
        loop {
            let Some(mut draft) = intake.pool.draft(room, room) else {
                return Ok(MessageOutcome::Full);
            };
            let wants = |bytes: &[u8]| wanted_part(bytes, &intake.taken);
            let read = match input.read_wanted(&mut draft, STAMP_BYTES + HEAD_BYTES, &wants) {
                Ok(read) => read,
                Err(Fault::TooLong { length, .. }) if room < length => {
                    drop(draft);
                    room = length.min(STAMP_BYTES + MESSAGE_MAX);
                    continue;
                }
                Err(Fault::Abandoned) => return Ok(MessageOutcome::WriterEnded),
                Err(fault) => return Err(self.invalid_message(&fault)),
            };
            self.next = input.next_number().unwrap_or(self.next);
            self.untaken += read.passed;
            self.has_read |= read.passed > 0;
            return match read.read {
                BlockRead::Block(length) => {
                    self.has_read = true;
                    self.accept_block((draft, length, read.is_whole), intake)
                }
                BlockRead::End => Ok(MessageOutcome::End),
                BlockRead::Nothing if read.passed > 0 => Ok(MessageOutcome::Emitted),
                BlockRead::Nothing if self.end_number.is_some() => Ok(MessageOutcome::End),
                BlockRead::Nothing => Ok(MessageOutcome::Nothing),
            };
        }
    }

    /// Emits a block if its session is admitted. The draft in the pool contains the complete
    /// message or only its head.
    fn accept_block(
        &mut self,
        (draft, length, is_whole): (Draft<'_>, usize, bool),
        intake: &mut Intake<'_>,
    ) -> Result<MessageOutcome, Failure> {
        let length = if is_whole { length } else { length.min(STAMP_BYTES + HEAD_BYTES) };
        let bytes = draft.get(..length).unwrap_or_default();
        let read = SharedStamp::read(bytes).ok_or(MessageDefect::Short);
        let (stamp, block) = read.map_err(|defect| self.invalid_message(&defect))?;
        let checked = match is_whole {
            true => message::read(block, 1).map(|(entry, _)| entry),
            false => message::unchecked_entry(block).ok_or(MessageDefect::Short),
        };
        let entry = checked.map_err(|defect| self.invalid_message(&defect))?;
        if !self.admit(stamp, &entry) {
            return Ok(MessageOutcome::Emitted);
        }
        if !is_whole {
            self.untaken += 1;
            return Ok(MessageOutcome::Emitted);
        }
        if self.created.len() >= intake.room() {
            self.deferred = Some(bytes.to_vec());
            return Ok(MessageOutcome::Emitted);
        }
        let place = draft.commit(length);
        self.emit_in_order(intake, place, entry)
    }

    /// Returns true if a block belongs to a session or message whose first block this reader has
    /// seen. Counts the blocks for which it returns false.
    fn admit(&mut self, stamp: SharedStamp, entry: &Entry) -> bool {
        let counts = self.input.as_ref().map(Input::counts).unwrap_or_default();
        let before = std::mem::replace(&mut self.lost_before_block, counts.lost);
        if self.first_number.is_none() {
            self.first_number = Some(counts.skipped);
            self.sessions.messages.join(counts.skipped);
        }
        let is_gap = counts.lost != before;
        match self.sessions.admit(stamp, entry, is_gap, &mut self.created) {
            Admission::Follows => return true,
            Admission::Unbegun => self.unbegun += 1,
            Admission::Headless => self.lost_before += 1,
        }
        false
    }

    /// Emits the block of the deferred message.
    fn emit_deferred(
        &mut self,
        intake: &mut Intake<'_>,
        deferred: Vec<u8>,
    ) -> Result<MessageOutcome, Failure> {
        let copied = intake.pool.append(deferred.len(), |room| {
            room.copy_from_slice(&deferred);
            deferred.len()
        });
        let Some((place, _)) = copied else {
            self.deferred = Some(deferred);
            return Ok(MessageOutcome::Full);
        };
        let block = deferred.get(STAMP_BYTES..).unwrap_or_default();
        let (entry, _) = message::read(block, 1).map_err(|defect| self.invalid_message(&defect))?;
        self.emit_in_order(intake, place, entry)
    }

    /// Emits a block whose message is in the pool, after the blocks that were created to precede
    /// it.
    fn emit_in_order(
        &mut self,
        intake: &mut Intake<'_>,
        place: Extent,
        entry: Entry,
    ) -> Result<MessageOutcome, Failure> {
        self.emit_created(intake);
        let head = u32::try_from(STAMP_BYTES + HEAD_BYTES).unwrap_or(u32::MAX);
        let mut entry = message::located_entry(
            entry,
            intake.pool.id(),
            place.within(head, place.length().saturating_sub(head)),
        );
        entry.context.origin = self.origin;
        self.emitted.add(entry.pointer.length());
        intake.put_entry(entry);
        Ok(MessageOutcome::Emitted)
    }
}

/// Returns the part of a block that the source must read. If no arc selects the class of a message,
/// its fragments are not read at all. For other blocks that no arc selects, only the head is read,
/// because it contains the position at which the session continues.
fn wanted_part(bytes: &[u8], taken: &TakenClasses<'_>) -> Wanted {
    let Some((stamp, block)) = SharedStamp::read(bytes) else { return Wanted::Block };
    match message::unchecked_class(block).is_none_or(|class| taken.contains(class)) {
        true => Wanted::Block,
        false if stamp.framed => Wanted::Nothing,
        false => Wanted::Head,
    }
}
