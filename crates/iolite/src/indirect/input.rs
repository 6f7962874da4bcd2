//! The reading end of an indirect stream, which reads through pointers to the bytes. [SL §5.3.2]
//!
//! Each pointer is copied from the ring once, translated, and validated (`view`). Then its bytes
//! are copied, or read in place if that is sound. Validity of a peeked slice (D10, *weak move*):
//!
//! | memory | ring that blocks or drops new | ring that overwrites |
//! |---|---|---|
//! | frozen dbuf | in place, until the next call; the bytes never change | the same |
//! | dbuf and ring of trusted processes | in place until [`Input::take`] | copied |
//! | any other memory, and files | a copy, until the next call | the same |
//!
//! Handing out `&[u8]` in place is sound because of V1 to V4 of `view` and:
//! - I1 The peeked entry is at `next`, and the published cursor of this reader is not beyond it:
//!   the cursor moves only in methods that take `&mut self`, and never beyond `next`.
//! - I2 A trusted writer holds the bytes of an entry until this reader's cursor has passed the
//!   entry (F1, F2 of `flight`, in the writer's process). By I1, the writer thus holds the bytes as
//!   long as the slice borrows the reader.
//! - I3 The dbuf of a current entry that is read in place stays in the reader's table while the
//!   entry is current: a table line is replaced only when a pointer is validated, and then either
//!   no entry is current or the current entry is not read in place.

use super::Offer;
use super::held_segments::FollowedInputState;
use super::lent_block::{BlockHolder, LentBlock};
use crate::interface::StreamReader;
use crate::view::{InPlaceAddress, Space, TranslationCache};
use abi::RichPointer;
use abi::ring::{reader, writer};
use buffer::ibuf::{self, EntryColumns};
use buffer::share::OfferRefusal;
use buffer::signal::SpinState;
use buffer::stream::WaitResult;
use buffer::wait::{Notifier, Sleeper, Urgency};
use buffer::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use sys::doorbell::{PeerState, SocketDoorbell};

mod entry;

/// A reader of an indirect stream.
#[derive(Debug)]
pub struct Input {
    ring: ibuf::PointerReader,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    notifier: Notifier,
    translation: TranslationCache,
    /// True if the writer of the ring is trusted, so that its memory may be read in place (V3).
    is_trusted: bool,
    policy: OverflowPolicy,
    current: Option<CurrentEntry>,
    /// Pointer of the entry at the read position, if the entry is lent for forwarding and its dbuf
    /// is not mapped; otherwise `None`.
    lent: Option<RichPointer>,
    /// Copy of the current entry's bytes.
    staging: Vec<u8>,
    /// True if `staging` holds the bytes of the current entry.
    is_staged: bool,
    /// Number of consumed entries after which they are released to the writer: an eighth of the
    /// ring.
    release_interval: u64,
    /// Number of bytes in consumed entries that have not been released to the writer yet.
    owed_bytes: u64,
    /// True once the writer's process has exited, with or without closing the ring.
    writer_exited: bool,
    spin: SpinState,
    /// True if this process may run on one processor only. The writer then runs on the same
    /// processor.
    is_on_one_processor: bool,
    keeper: Arc<FollowedInputState>,
    #[cfg(test)]
    pub(crate) late: buffer::late_event::LateEvent,
}

/// The entry at the read position of the ring, after the validation of its pointer.
#[derive(Clone, Copy, Debug)]
struct CurrentEntry {
    pointer: RichPointer,
    /// Offset of the entry's bytes in the dbuf.
    dbuf_offset: usize,
    /// Number of bytes of the entry that the caller has consumed.
    consumed: usize,
    /// Address of the entry's first byte if the entry is read in place; otherwise `None`.
    in_place: Option<InPlaceAddress>,
}

/// Value of `dbuf_offset` for an entry that has been lent for forwarding without mapping its dbuf.
const UNMAPPED_OFFSET: usize = usize::MAX;
/// Number of consumed bytes after which entries are released to the writer, even if only few
/// entries have been consumed.
const UNRELEASED_BYTES_MAX: u64 = 64 << 10;

impl Input {
    /// Validates the offer of an indirect stream and opens the reading end. `space` maps the dbufs
    /// to which the pointers refer.
    pub fn open(offer: Offer, space: &Space) -> Result<Self, OfferRefusal> {
        let ring = offer.ring.open_pointer_reader()?;
        match ring.columns() {
            EntryColumns::Pointer => Ok(Self::new(ring, offer.doorbell, space)),
            EntryColumns::Metadata | EntryColumns::Marks => {
                Err(OfferRefusal::Descriptors(Offer::DESCRIPTOR_COUNT))
            }
        }
    }

    fn new(ring: ibuf::PointerReader, doorbell: SocketDoorbell, space: &Space) -> Self {
        let store = &ring.cursor.store;
        let (policy, capacity) = (store.policy, store.capacity);
        let is_trusted =
            sys::descriptor::peer_uid_and_gid(&doorbell).is_ok_and(|(user, _)| space.trusts(user));
        Self {
            ring,
            doorbell,
            sleeper: Sleeper::default(),
            notifier: Notifier::default(),
            translation: TranslationCache::new(space.clone()),
            is_trusted,
            policy,
            current: None,
            lent: None,
            staging: Vec::new(),
            is_staged: false,
            release_interval: (capacity / 8).max(1),
            owed_bytes: 0,
            writer_exited: false,
            spin: SpinState::default(),
            is_on_one_processor: buffer::stream::has_single_processor(),
            keeper: FollowedInputState::new(capacity),
            #[cfg(test)]
            late: buffer::late_event::LateEvent::default(),
        }
    }

    /// Sets the number of times that the reader polls the ring before it sleeps. 0 suits a reader
    /// that shares its processor with the writer. By default the number adapts to how often polling
    /// succeeds.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spin.fix_polls(spins);
    }

    /// Implements [`Input::peek`] for an entry that is not current or cannot be read in place.
    fn validate_and_peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.policy == OverflowPolicy::Overwrite {
            return self.peek_lossy_block();
        }
        let current = match self.validate_next_entry() {
            Ok(Some(current)) => current,
            Ok(None) => return Ok(self.is_at_end()?.then_some(&[])),
            Err(fault) => return Err(self.skip_invalid_entry(fault)),
        };
        if self.keeper.is_followed() {
            self.publish_peek(current);
        }
        if current.in_place.is_some() {
            return Ok(self.in_place_bytes());
        }
        if let Err(fault) = self.stage_current_entry(current) {
            return Err(self.skip_invalid_entry(fault));
        }
        Ok(Some(self.staging.get(current.consumed..).unwrap_or_default()))
    }

    /// Returns the unread part of the current entry, or `None` if the entry is not read in place.
    #[inline]
    fn in_place_bytes(&self) -> Option<&[u8]> {
        let current = self.current.as_ref()?;
        let first = current.in_place?;
        // SAFETY: `validate_next_entry` has located the pointer in a dbuf that is in our table
        // (I3). The dbuf is frozen, or its owner and the ring's writer are trusted and the ring
        // does not overwrite (`in_place_address`): then the entry is at `next` and not released as
        // long as we are borrowed (I1, I2).
        Some(unsafe { first.bytes(current.consumed, current.unread_length()) })
    }

    /// Returns the address of the byte at offset `at` of the pointer's dbuf. The offset must have
    /// been validated for `pointer`. Returns `None` if the entry may not be read in place.
    fn in_place_address(&self, pointer: RichPointer, at: usize) -> Option<InPlaceAddress> {
        let view = self.translation.mapped(pointer.dbuf())?;
        let keeps =
            self.policy != OverflowPolicy::Overwrite && (view.is_frozen() || self.is_trusted);
        if keeps { view.in_place_address(at) } else { None }
    }

    /// Copies and consumes the pointers of published blocks, after validating that each refers to
    /// mapped memory. A later call releases the entries. Fails with [`Fault::Lossy`] in a ring that
    /// overwrites. Returns the number of pointers, which is 0 if no block is published. Stops
    /// before an invalid pointer, for which the next call returns the fault.
    pub fn take_pointers(&mut self, out: &mut [RichPointer]) -> Result<usize, Fault> {
        if self.policy == OverflowPolicy::Overwrite {
            return Err(Fault::Lossy);
        }
        self.release_consumed_if_due();
        if let (Some(current), Some(first)) = (self.current, out.first_mut()) {
            *first = current.unread_pointer();
            self.advance_past_entry(current.pointer);
            return Ok(1);
        }
        self.copy_pointers(out)
    }

    /// Sleeps until there is input, one of the other descriptors is ready, or `limit` has passed.
    fn sleep_until_input_or_descriptor(
        &mut self,
        others: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<WaitResult, Fault> {
        let slept = match self.announce_sleep() {
            Ok(WaitResult::NotReady) => {
                let doorbell = std::iter::once(self.doorbell.as_fd());
                let all: Vec<_> = doorbell.chain(others.iter().copied()).collect();
                sys::poll::wait_until_readable(&all, limit);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(fault),
        };
        self.withdraw_sleep();
        slept?;
        Ok(if self.is_readable()? { WaitResult::Ready } else { WaitResult::NotReady })
    }

    /// Announces that the caller is about to sleep on the descriptor, so that the writer notifies
    /// the caller of new input. The caller must not sleep if this returns [`WaitResult::Ready`],
    /// and must call [`Input::withdraw_sleep`] afterwards in either case.
    pub fn announce_sleep(&mut self) -> Result<WaitResult, Fault> {
        let side = &self.ring.cursor;
        let until = side.next.saturating_add(side.store.capacity / 4);
        if let Some(page) = side.store.readers.get(side.index) {
            self.sleeper.announce_sleep(page, reader::WAIT, until);
        }
        Ok(if self.is_readable()? { WaitResult::Ready } else { WaitResult::NotReady })
    }

    /// Ends [`Input::announce_sleep`]: withdraws the announcement and drains the doorbell's
    /// notifications.
    pub fn withdraw_sleep(&mut self) {
        self.writer_exited |= self.doorbell.clear() == PeerState::Gone;
        let side = &self.ring.cursor;
        if let Some(page) = side.store.readers.get(side.index) {
            self.sleeper.announce_wake(page, reader::WAIT);
        }
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[must_use]
    pub const fn counts(&self) -> ReaderCounts {
        self.ring.counts()
    }

    /// Returns the counts that the writer has published. They are not validated.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.ring.writer_counts()
    }

    /// Returns the number of blocks that this reader has consumed but not released.
    #[must_use]
    pub const fn unreleased_blocks(&self) -> u64 {
        self.ring.cursor.next - self.ring.cursor.released_position()
    }

    pub(super) const fn followed_state(&self) -> &Arc<FollowedInputState> {
        &self.keeper
    }

    /// Returns the space that maps memory for this input.
    #[must_use]
    pub const fn space(&self) -> &Space {
        self.translation.space()
    }

    /// Returns true if a read would not block: there is input, or the stream has ended.
    fn is_readable(&mut self) -> Result<bool, Fault> {
        if self.current.is_some() || self.writer_exited {
            return Ok(true);
        }
        let side = &mut self.ring.cursor;
        Ok(side.has_more()? || side.is_finished()?)
    }

    /// Returns true at the end of the stream, false if input may follow. Call this when there is no
    /// input. Fails with [`Fault::Abandoned`] if the writer has died.
    fn is_at_end(&mut self) -> Result<bool, Fault> {
        self.release_consumed();
        #[cfg(test)]
        if self.late.fire() {
            self.writer_exited |= self.doorbell.clear() == PeerState::Gone;
        }
        if self.ring.is_finished()? {
            return Ok(true);
        }
        // Entries published between our check and the writer's death are still read.
        let published = self.ring.cursor.has_more()?;
        if self.writer_exited && !published { Err(Fault::Abandoned) } else { Ok(false) }
    }

    #[inline]
    fn release_consumed_if_due(&mut self) {
        if self.owed_bytes >= UNRELEASED_BYTES_MAX
            || self.unreleased_blocks() >= self.release_interval
        {
            self.release_consumed();
        }
    }
}

impl StreamReader for Input {
    /// Reads available bytes of several blocks into `out`. The rest of a block is left for the next
    /// call. Returns the number of bytes, 0 at the end of the stream, or `None` if no block is
    /// published.
    ///
    /// An invalid pointer is a fault: its entry is passed and counted as lost, and the next call
    /// continues after it. In a ring that overwrites, each call reads one entire block, and fails
    /// with [`Fault::TooLong`] if `out` is too short.
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if out.is_empty() {
            return Ok(Some(0));
        }
        if self.policy == OverflowPolicy::Overwrite {
            return self.read_lossy(out);
        }
        let mut count = 0;
        while count < out.len() {
            // One call reads only entries that are known to be available.
            if count > 0 && self.current.is_none() && self.ring.cursor.has_read_all() {
                break;
            }
            let current = match self.validate_next_entry() {
                Ok(Some(current)) => current,
                Ok(None) => break,
                // Bytes already copied are returned first; the fault occurs again in the next call.
                Err(_) if count > 0 => break,
                Err(fault) => return Err(self.skip_invalid_entry(fault)),
            };
            let to = out.get_mut(count..).unwrap_or_default();
            let length = to.len().min(current.unread_length());
            let (to, _) = to.split_at_mut(length);
            if let Some(view) = self.translation.mapped(current.pointer.dbuf()) {
                match view.copy(current.dbuf_offset + current.consumed, to) {
                    Ok(()) => {}
                    Err(_) if count > 0 => break,
                    Err(fault) => return Err(self.skip_invalid_entry(fault)),
                }
            }
            count += length;
            self.advance(current, length);
        }
        self.release_consumed_if_due();
        if count > 0 { Ok(Some(count)) } else { self.is_at_end().map(|end| end.then_some(0)) }
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        match &self.current {
            Some(current) if current.in_place.is_some() && !self.keeper.is_followed() => {
                Ok(self.in_place_bytes())
            }
            _ => self.validate_and_peek(),
        }
    }

    fn copied_read_max(&mut self) -> Result<usize, Fault> {
        if self.policy == OverflowPolicy::Overwrite || self.is_staged {
            return Ok(0);
        }
        match self.validate_next_entry() {
            Ok(Some(current)) if current.in_place.is_none() => Ok(current.unread_length()),
            // The peek reports any fault.
            _ => Ok(0),
        }
    }

    #[inline]
    fn take(&mut self, count: usize) {
        match (self.current, self.lent) {
            (Some(current), _) => self.advance(current, count.min(current.unread_length())),
            (None, Some(lent)) if count >= lent.length() as usize => self.advance_past_entry(lent),
            (None, Some(pointer)) => {
                let (dbuf_offset, consumed, in_place) = (UNMAPPED_OFFSET, count, None);
                self.current = Some(CurrentEntry { pointer, dbuf_offset, consumed, in_place });
            }
            (None, None) => return,
        }
        self.release_consumed_if_due();
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        let (mut spin, taken) = (self.spin, self.ring.cursor.next);
        let found = spin.poll(self.is_on_one_processor, taken, || self.is_readable());
        self.spin = spin;
        if found? {
            return Ok(WaitResult::Ready);
        }
        self.release_consumed();
        self.sleep_until_input_or_descriptor(&[], limit)
    }

    fn lend(&mut self, max: usize) -> Result<Option<LentBlock<'_>>, Fault> {
        if self.policy == OverflowPolicy::Overwrite {
            return Ok(None);
        }
        let Some((whole, view)) = self.next_unmapped_entry()? else { return Ok(None) };
        let short = whole.length().min(u32::try_from(max).unwrap_or(u32::MAX));
        let pointer = whole.subrange(0, short);
        self.lent = Some(whole);
        self.keeper.set_peek(self.ring.cursor.next, pointer, 0, view);
        Ok(Some(LentBlock { pointer, holder: BlockHolder::Entry(&self.keeper) }))
    }

    fn has_lending_ended(&mut self) -> Result<Option<bool>, Fault> {
        if self.policy == OverflowPolicy::Overwrite {
            return Ok(None);
        }
        if self.current.is_some() || self.ring.cursor.has_more()? {
            return Ok(Some(false));
        }
        self.is_at_end().map(Some)
    }

    /// Releases consumed entries, except those claimed by an output, and notifies a waiting writer.
    /// Reads do this before they wait, and after each eighth of the ring or 64 KB. Returns the
    /// number of blocks still unreleased.
    fn release_consumed(&mut self) -> u64 {
        self.owed_bytes = 0;
        let side = &mut self.ring.cursor;
        let next = side.next;
        // F5: not beyond entries that an output still needs.
        let limit = if self.keeper.is_followed() {
            next.min(self.keeper.oldest_needed_position())
        } else {
            next
        };
        if limit <= side.released_position() {
            return self.unreleased_blocks();
        }
        side.next = limit;
        // Informs the writer, which sizes its memory by the processor (`buffer::scale`).
        side.set_processor(sys::machine::current_processor() as u64);
        side.release();
        side.next = next;
        if self.notifier.is_due(&side.store.writer, writer::WAIT, limit, Urgency::More) {
            self.writer_exited |= self.doorbell.notify() == PeerState::Gone;
        }
        self.unreleased_blocks()
    }

    fn wait_for_input_or_descriptors(
        &mut self,
        others: &[BorrowedFd<'_>],
    ) -> Result<WaitResult, Fault> {
        self.sleep_until_input_or_descriptor(others, None)
    }
}

impl AsFd for Input {
    /// Returns the doorbell for polling with other descriptors. It becomes readable when the writer
    /// publishes after [`Input::announce_sleep`] has found no input.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // Wakes a sleeping writer, so that it notices the reader's departure.
        self.ring.cursor.leave();
        let _ = self.doorbell.notify();
    }
}
