//! Validation and consumption of ring entries, all of which are untrusted (RELIABILITY T3, T4).

use super::{CurrentEntry, Input, UNMAPPED_OFFSET};
use crate::interface::StreamReader as _;
use crate::view::count_leading_inside;
use abi::RichPointer;
use abi::ring::writer;
use buffer::Fault;
use buffer::atomic::load_acquire;

/// A pointer that has not been validated, with facts about its dbuf if the dbuf is mapped. The
/// facts are the length of the dbuf in bytes, and true if its bytes need no lease.
pub(super) type UnvalidatedPointer = (RichPointer, Option<(usize, bool)>);

/// Number of times that a reader of an overwriting ring tries to read a block before it reports
/// that no block is available.
const READ_ATTEMPTS_MAX: usize = 8;

impl CurrentEntry {
    #[inline]
    pub(super) const fn unread_length(&self) -> usize {
        self.pointer.length() as usize - self.consumed
    }

    /// Returns a pointer to the unread part of the entry.
    pub(super) fn unread_pointer(&self) -> RichPointer {
        let done = u32::try_from(self.consumed).unwrap_or(0);
        self.pointer.subrange(done, self.pointer.length() - done)
    }
}

impl Input {
    /// Copies, translates and validates the next entry of the ring, after skipping empty entries.
    /// Returns `None` if no entry is published.
    #[inline]
    pub(super) fn validate_next_entry(&mut self) -> Result<Option<CurrentEntry>, Fault> {
        match self.current {
            Some(current) if current.dbuf_offset == UNMAPPED_OFFSET => {
                let at = self.validate_pointer(current.pointer)?;
                let first = self.in_place_address(current.pointer, at);
                self.current = Some(CurrentEntry { dbuf_offset: at, in_place: first, ..current });
                return Ok(self.current);
            }
            Some(_) => return Ok(self.current),
            None => {}
        }
        loop {
            if self.ring.cursor.available_position()? == self.ring.cursor.next {
                return Ok(None);
            }
            let pointer = self.ring.pointer_at_position(self.ring.cursor.next);
            let at = self.validate_pointer(pointer)?;
            if pointer.length() > 0 {
                let in_place = self.in_place_address(pointer, at);
                self.current =
                    Some(CurrentEntry { pointer, dbuf_offset: at, consumed: 0, in_place });
                return Ok(self.current);
            }
            self.advance_past_entry(pointer);
        }
    }

    /// Returns the unread part of the next entry for forwarding, without mapping its dbuf. Returns
    /// `None` if no entry is published. A hole, or an entry with flags, is passed, counted as lost
    /// and reported as [`Fault::Hole`].
    pub(super) fn next_unmapped_entry(&mut self) -> Result<Option<UnvalidatedPointer>, Fault> {
        loop {
            let pointer = match self.current {
                Some(current) => current.unread_pointer(),
                None if self.ring.cursor.available_position()? == self.ring.cursor.next => {
                    return Ok(None);
                }
                None => self.ring.pointer_at_position(self.ring.cursor.next),
            };
            if pointer.flags() != 0 || pointer.is_hole() {
                return Err(self.skip_invalid_entry(Fault::Hole));
            }
            if pointer.length() > 0 {
                let view = self.translation.mapped(pointer.dbuf());
                return Ok(Some((pointer, view.map(|view| (view.len(), view.needs_no_lease())))));
            }
            self.advance_past_entry(pointer);
        }
    }

    /// Validates a pointer from the ring. Returns the offset of its bytes in the dbuf, or fails
    /// with the fault.
    #[inline]
    fn validate_pointer(&mut self, pointer: RichPointer) -> Result<usize, Fault> {
        // No flags are defined: an entry with flags comes from an unknown version.
        if pointer.flags() != 0 {
            return Err(Fault::UnknownDbuf(pointer.dbuf()));
        }
        self.translation.resolve(pointer).map(|(_, at)| at)
    }

    /// Copies pointers from the ring and validates them, up to the first invalid one. Returns the
    /// number of pointers copied.
    pub(super) fn copy_pointers(&mut self, out: &mut [RichPointer]) -> Result<usize, Fault> {
        let side = &mut self.ring.cursor;
        let next = side.next;
        let available = side.available_position()?.wrapping_sub(next);
        let count = out.len().min(usize::try_from(available).unwrap_or(usize::MAX));
        let out = out.get_mut(..count).unwrap_or_default();
        if count == 0 {
            self.is_at_end()?;
            return Ok(0);
        }
        self.ring.copy_published_pointers(next, out);
        let (mut good, mut bytes) = (0, 0);
        while let Some(first) = out.get(good) {
            // One table lookup for all adjacent pointers into the same dbuf.
            let fits = match self.validate_pointer(*first) {
                Ok(_) => {
                    let rest = out.get(good..).unwrap_or_default();
                    let view = self.translation.mapped(first.dbuf());
                    view.map_or((0, 0), |view| {
                        count_leading_inside(rest, |pointer| view.nonzero_if_outside(pointer))
                    })
                }
                Err(fault) if good == 0 => return Err(self.skip_invalid_entry(fault)),
                Err(_) => break,
            };
            // The first pointer is valid, and so are the following ones accepted by the table.
            good += fits.0.max(1);
            bytes += fits.1.max(u64::from(first.length()));
        }
        self.ring.cursor.next += good as u64;
        self.ring.cursor.taken.blocks += good as u64;
        self.ring.cursor.taken.bytes += bytes;
        self.owed_bytes += bytes;
        Ok(good)
    }

    /// Consumes `count` bytes of the current entry, and moves to the next entry once all of its
    /// bytes are consumed.
    #[inline]
    pub(super) fn advance(&mut self, current: CurrentEntry, count: usize) {
        if count < current.unread_length() {
            self.current = Some(CurrentEntry { consumed: current.consumed + count, ..current });
        } else {
            self.advance_past_entry(current.pointer);
        }
    }

    /// Moves past the next entry of the ring, which contains `pointer`, and counts its block as
    /// taken.
    #[inline]
    pub(super) fn advance_past_entry(&mut self, pointer: RichPointer) {
        (self.current, self.lent) = (None, None);
        self.is_staged = false;
        self.keeper.clear_peek();
        self.ring.cursor.next += 1;
        self.ring.cursor.taken.blocks += 1;
        self.ring.cursor.taken.bytes += u64::from(pointer.length());
        self.owed_bytes += u64::from(pointer.length());
    }

    /// Moves past the next entry of the ring because of `fault`, counts the entry as lost, and
    /// returns the fault. Does not move if the ring is damaged.
    pub(super) fn skip_invalid_entry(&mut self, fault: Fault) -> Fault {
        let broken = matches!(fault, Fault::Poisoned { .. } | Fault::Damaged { .. });
        if !broken {
            (self.current, self.lent) = (None, None);
            self.is_staged = false;
            self.ring.cursor.next += 1;
            self.ring.cursor.taken.lost += 1;
            self.owed_bytes += 1;
            self.release_consumed_if_due();
        }
        fault
    }

    /// Copies the bytes of the current entry into the staging buffer, unless they are already
    /// there.
    pub(super) fn stage_current_entry(&mut self, current: CurrentEntry) -> Result<(), Fault> {
        if self.is_staged {
            return Ok(());
        }
        self.staging.resize(current.pointer.length() as usize, 0);
        if let Some(view) = self.translation.mapped(current.pointer.dbuf()) {
            view.copy(current.dbuf_offset, &mut self.staging)?;
        }
        self.is_staged = true;
        Ok(())
    }

    /// Publishes the peeked entry and the address of its bytes to the outputs that follow this
    /// input.
    pub(super) fn publish_peek(&mut self, current: CurrentEntry) {
        let direct = current.in_place.is_some();
        let Some(view) = self.translation.mapped(current.pointer.dbuf()) else { return };
        let address =
            if direct { view.address() + current.dbuf_offset + current.consumed } else { 0 };
        let rest = current.unread_pointer();
        let view = Some((view.len(), view.needs_no_lease()));
        self.keeper.set_peek(self.ring.cursor.next, rest, address, view);
    }

    /// Copies one block into `out`, from a ring that overwrites. Returns its length in bytes, 0 at
    /// the end of the stream, or `None` if no block is published.
    pub(super) fn read_lossy(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let Some(length) = self.stage_lossy_block()? else {
            return Ok(self.is_at_end()?.then_some(0));
        };
        let limit = out.len();
        let Some(to) = out.get_mut(..length) else { return Err(Fault::TooLong { length, limit }) };
        to.copy_from_slice(self.staging.get(..length).unwrap_or_default());
        self.take(length);
        Ok(Some(length))
    }

    pub(super) fn peek_lossy_block(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.stage_lossy_block()?.is_none() {
            return Ok(self.is_at_end()?.then_some(&[]));
        }
        let done = self.current.map_or(0, |current| current.consumed);
        Ok(Some(self.staging.get(done..).unwrap_or_default()))
    }

    /// Copies the next block into the staging buffer, from a ring that overwrites. Retries if the
    /// writer has meanwhile begun to overwrite the entry or its bytes (F2 of `flight`). Returns the
    /// length of the block in bytes, or `None` if no block is published or the writer has lapped
    /// the reader in each of [`READ_ATTEMPTS_MAX`] attempts.
    fn stage_lossy_block(&mut self) -> Result<Option<usize>, Fault> {
        for _ in 0..READ_ATTEMPTS_MAX {
            if let (Some(current), true) = (self.current, self.is_staged) {
                return Ok(Some(current.unread_length()));
            }
            let start = self.ring.cursor.next;
            // The writer may have lapped us: its position is read in each attempt.
            if self.ring.cursor.refresh_published_position()? == start {
                return Ok(None);
            }
            let looked = self.validate_next_entry().and_then(|current| {
                current.map(|current| self.stage_current_entry(current)).transpose()?;
                Ok(current)
            });
            if self.ring.cursor.is_overtaken(start) {
                (self.current, self.is_staged) = (None, false);
                self.skip_to_safe_entry(start)?;
                continue;
            }
            match looked {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(fault) => return Err(self.skip_invalid_entry(fault)),
            }
        }
        Ok(None)
    }

    /// Skips, from position `start`, to an entry that the writer will not overwrite soon, if
    /// possible half a lap behind the published position. Counts the skipped entries as lost.
    fn skip_to_safe_entry(&mut self, start: u64) -> Result<(), Fault> {
        let capacity = self.ring.cursor.store.capacity;
        let commit = self.ring.cursor.refresh_published_position()?;
        let reserve = load_acquire(self.ring.cursor.store.writer.word(writer::RESERVED_POSITION));
        // The writer's announcement is untrusted beyond its published position.
        let safe = reserve.saturating_sub(capacity).max(commit.saturating_sub(capacity / 2));
        let next = safe.clamp(start, commit);
        self.ring.cursor.taken.lost += next - start;
        self.ring.cursor.next = next;
        Ok(())
    }
}
