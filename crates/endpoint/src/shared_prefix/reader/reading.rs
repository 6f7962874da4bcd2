//! Reading of the bundles that the process of a shared prefix has written to its ring. The index of
//! a bundle is copied first. Then the frames of the selected blocks are copied into the pool.

use super::{DeferredBlock, ReadBlocksOutcome, SharedSource};
use crate::message::{self, MessageDefect};
use crate::shared_prefix::bundle::BundleCursor;
use crate::shared_prefix::sessions::{Admission, SharedStamp};
use crate::{Failure, Intake};
use abi::{Entry, Extent, RichPointer};
use buffer::Fault;
use buffer::stream::BlockReadResult;

impl SharedSource {
    /// Reads as many blocks of one bundle as fit into the intake, and emits the blocks whose
    /// sessions are admitted. If a block has been deferred, emits only that block.
    pub(super) fn read_blocks(
        &mut self,
        intake: &mut Intake<'_>,
    ) -> Result<ReadBlocksOutcome, Failure> {
        if let Some(deferred) = self.deferred.take() {
            return Ok(self.emit_deferred_block(intake, deferred));
        }
        if self.bundle.remaining_blocks() == 0 {
            match self.open_bundle()? {
                ReadBlocksOutcome::Emitted => self.copy_items_if_needed(intake),
                other => return Ok(other),
            }
        }
        while self.bundle.remaining_blocks() > 0 && intake.room() > 0 && self.deferred.is_none() {
            match self.read_block(intake)? {
                ReadBlocksOutcome::Emitted => {}
                other => return Ok(other),
            }
        }
        Ok(ReadBlocksOutcome::Emitted)
    }

    /// Opens the next bundle of the ring: copies the beginning of the bundle from the ring, and
    /// decodes it. Returns the reason if there is no next bundle.
    fn open_bundle(&mut self) -> Result<ReadBlocksOutcome, Failure> {
        let Some(input) = &mut self.input else { return Ok(ReadBlocksOutcome::WriterEnded) };
        if self.end_number.is_some_and(|last| self.next_bundle >= last) {
            return Ok(ReadBlocksOutcome::End);
        }
        let read = match input.open_block(self.bundle.begin_bundle()) {
            Ok(read) => read,
            Err(Fault::Abandoned) => return Ok(ReadBlocksOutcome::WriterEnded),
            Err(fault) => return Err(self.invalid_message_failure(&fault)),
        };
        self.next_bundle = input.next_block_number().unwrap_or(self.next_bundle);
        let length = match read {
            BlockReadResult::Block(length) => length,
            BlockReadResult::End => return Ok(ReadBlocksOutcome::End),
            BlockReadResult::Nothing if self.end_number.is_some() => {
                return Ok(ReadBlocksOutcome::End);
            }
            BlockReadResult::Nothing => return Ok(ReadBlocksOutcome::Nothing),
        };
        (self.has_read, self.silent_exits) = (true, 0);
        let begun = self.bundle.decode(length).and_then(|()| self.count_gap());
        begun.map_err(|defect| self.invalid_message_failure(&defect))?;
        Ok(ReadBlocksOutcome::Emitted)
    }

    /// Counts the blocks that were overwritten in the ring between the last block read and the
    /// current bundle. Fails if the number of the bundle's first block is lower than expected.
    fn count_gap(&mut self) -> Result<(), MessageDefect> {
        let first = self.bundle.first;
        match self.next_block.replace(first) {
            None => self.sessions.messages.record_join(first),
            Some(next) => {
                let lost = first.checked_sub(next).ok_or(MessageDefect::StateRecord)?;
                self.lost = self.lost.saturating_add(lost);
                self.is_gap |= lost > 0;
            }
        }
        Ok(())
    }

    /// Copies the stamps and entries of the blocks in the current bundle, which complete the
    /// bundle's index. If the bundle holds fragments of messages and no arc selects any of their
    /// classes, skips all blocks of the bundle instead. Blocks of streams are always read, because
    /// they contain the position at which the session continues.
    fn copy_items_if_needed(&mut self, intake: &Intake<'_>) {
        let mut classes = self.bundle.classes();
        if self.bundle.holds_fragments()
            && !classes.any(|class| intake.selected_classes.contains(class))
        {
            drop(classes);
            let left = self.bundle.remaining_blocks() as u64;
            self.untaken += left;
            self.next_block = self.next_block.map(|next| next + left);
            self.bundle.skip_remaining_blocks();
            return;
        }
        drop(classes);
        let Some((from, room)) = self.bundle.reserve_item_room() else { return };
        if !self.input.as_mut().is_some_and(|input| input.copy_opened_block(from, room)) {
            // The rest of the bundle has been overwritten. The next bundle reveals the number of
            // lost blocks.
            self.bundle.skip_remaining_blocks();
        }
    }

    /// Reads the next block of the bundle. Emits the block if an arc selects its class and its
    /// session or message is admitted; otherwise counts it. If the intake has no room, defers the
    /// block. Returns [`ReadBlocksOutcome::Full`] if the pool has no memory.
    fn read_block(&mut self, intake: &mut Intake<'_>) -> Result<ReadBlocksOutcome, Failure> {
        let invalid = |defect| self.invalid_message_failure(&defect);
        let (stamp, entry, frame) = self.bundle.next().map_err(invalid)?;
        let is_taken = intake.selected_classes.contains(entry.pointer.class);
        if !is_taken && stamp.holds_fragments {
            self.untaken += 1;
            self.advance_past_block(frame.end);
            return Ok(ReadBlocksOutcome::Emitted);
        }
        let length = frame.len();
        let entry = message::validate_entry(entry, length, 1).map_err(invalid)?;
        if !is_taken {
            self.advance_past_block(frame.end);
            self.untaken += u64::from(self.admit(stamp, &entry));
            return Ok(ReadBlocksOutcome::Emitted);
        }
        let without_bytes = intake.without_bytes && self.placeholder_dbuf.is_some();
        let mut draft = None;
        if !without_bytes && !entry.pointer.is_hole() {
            // A block without bytes still needs an address.
            let room = length.max(1);
            let Some(mut copied) = intake.pool.draft(room, room) else {
                return Ok(ReadBlocksOutcome::Full);
            };
            let to = copied.get_mut(..length).unwrap_or_default();
            if !self.input.as_mut().is_some_and(|input| input.copy_opened_block(frame.start, to)) {
                // The rest of the bundle has been overwritten.
                self.bundle.skip_remaining_blocks();
                return Ok(ReadBlocksOutcome::Emitted);
            }
            draft = Some(copied);
        }
        self.advance_past_block(frame.end);
        if !self.admit(stamp, &entry) {
            return Ok(ReadBlocksOutcome::Emitted);
        }
        if self.created_blocks.len() >= intake.room() {
            let bytes = draft.and_then(|draft| draft.get(..length).map(<[u8]>::to_vec));
            self.deferred = Some(DeferredBlock { entry, bytes });
            return Ok(ReadBlocksOutcome::Emitted);
        }
        let place = draft.map(|draft| draft.commit(length.max(1)));
        self.emit_block_in_order(intake, place, entry);
        Ok(ReadBlocksOutcome::Emitted)
    }

    /// Marks the next block of the current bundle as processed. `frame_end` is the offset at which
    /// the frame of this block ends.
    fn advance_past_block(&mut self, frame_end: usize) {
        self.bundle.advance(frame_end);
        self.next_block = self.next_block.map(|next| next + 1);
    }

    /// Returns true if a block belongs to a session or message whose first block this reader has
    /// seen. Counts the blocks for which it returns false.
    fn admit(&mut self, stamp: SharedStamp, entry: &Entry) -> bool {
        let is_gap = std::mem::take(&mut self.is_gap);
        match self.sessions.admit(stamp, entry, is_gap, &mut self.created_blocks) {
            Admission::Admitted => return true,
            Admission::BeginningMissed => self.unbegun += 1,
            Admission::FragmentLost => self.lost += 1,
        }
        false
    }

    /// Emits the deferred block. If the pool has no memory for it, defers the block again and
    /// returns [`ReadBlocksOutcome::Full`].
    fn emit_deferred_block(
        &mut self,
        intake: &mut Intake<'_>,
        deferred: DeferredBlock,
    ) -> ReadBlocksOutcome {
        let Some(bytes) = &deferred.bytes else {
            let mut entry = deferred.entry;
            if !intake.without_bytes && !entry.pointer.is_hole() {
                // A filter that reads bytes was added after the block had been deferred without its
                // bytes.
                let hole = RichPointer::hole(entry.pointer.length());
                entry.pointer = hole.with_class(entry.pointer.class);
            }
            self.emit_block_in_order(intake, None, entry);
            return ReadBlocksOutcome::Emitted;
        };
        let copied = intake.pool.append(bytes.len().max(1), |room| {
            room.get_mut(..bytes.len()).unwrap_or_default().copy_from_slice(bytes);
            bytes.len().max(1)
        });
        let Some((place, _)) = copied else {
            self.deferred = Some(deferred);
            return ReadBlocksOutcome::Full;
        };
        self.emit_block_in_order(intake, Some(place), deferred.entry);
        ReadBlocksOutcome::Emitted
    }

    /// Emits a block that was read from the ring, after any blocks in `created` that must precede
    /// it. `place` is the location of the block's frame in the pool, or `None` if the frame was not
    /// copied.
    fn emit_block_in_order(
        &mut self,
        intake: &mut Intake<'_>,
        place: Option<Extent>,
        entry: Entry,
    ) {
        self.emit_created_blocks(intake);
        let captured = entry.marks.captured;
        let mut entry = match (place, self.placeholder_dbuf) {
            (Some(place), _) => {
                message::entry_or_hole_at(entry, intake.pool.id(), place.subrange(0, captured))
            }
            (None, Some(absent)) => {
                message::entry_or_hole_at(entry, absent, Extent::new(0, captured))
            }
            (None, None) => message::entry_without_frame(entry),
        };
        intake.in_place |= place.is_none() && !entry.pointer.is_hole();
        entry.context.origin = self.origin;
        self.emitted.add_block(entry.pointer.length());
        intake.append_block_entry(entry);
    }

    /// Counts the unread blocks in the ring: the rest of the current bundle, and all bundles after
    /// it whose numbers are below `last`.
    pub(super) fn count_unread(&mut self, last: u64) {
        let mut unread = self.bundle.remaining_blocks() as u64;
        self.next_block = self.next_block.map(|next| next + unread);
        self.bundle = BundleCursor::default();
        while self.next_bundle < last
            && matches!(self.open_bundle(), Ok(ReadBlocksOutcome::Emitted))
        {
            let left = self.bundle.remaining_blocks() as u64;
            unread += left;
            self.next_block = self.next_block.map(|next| next + left);
            self.bundle.skip_remaining_blocks();
        }
        self.unread = unread;
    }
}
