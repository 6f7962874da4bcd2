//! Block-wise reads, and sleep announcements for readers of many streams.

use super::Input;
use crate::dbuf::ForeignBlockReader;
use crate::rate::SkippingReader;
use crate::wait::{BlockReadResult, ReadUntilMarkResult};
use crate::{Fault, ReaderCounts};
use abi::ring::reader;
use abi::ring::wait::THRESHOLD_ONLY;

impl Input {
    /// Copies the next block, as it was written, or the rest of a block that [`Input::read`] has
    /// begun. Does not block. Fails with [`Fault::TooLong`] if `out` is too short; the block then
    /// remains unread.
    pub fn read_block(&mut self, out: &mut [u8]) -> Result<BlockReadResult, Fault> {
        if self.unread_rest.is_none() && self.ring.walk().take_block(out) {
            return Ok(BlockReadResult::Block(out.len()));
        }
        loop {
            let taken = if self.is_lossy { self.ring.read(out)? } else { self.take_block(out)? };
            if let Some(length) = taken {
                return Ok(BlockReadResult::Block(length));
            }
            self.release();
            if !self.follow_switch()? {
                return Ok(if self.is_at_end()? {
                    BlockReadResult::End
                } else {
                    BlockReadResult::Nothing
                });
            }
        }
    }

    /// Takes the next block of a ring that overwrites, and copies its first bytes into `head`, as
    /// many as fit. [`Input::copy_opened_block`] copies other parts of the block. Does not block.
    /// Fails with [`Fault::Lossy`] if the ring does not overwrite.
    pub fn open_block(&mut self, head: &mut [u8]) -> Result<BlockReadResult, Fault> {
        if !self.is_lossy {
            return Err(Fault::Lossy);
        }
        self.opened_block = None;
        loop {
            if let Some(opened) = self.ring.walk().open_block(head)? {
                self.opened_block = Some(opened);
                return Ok(BlockReadResult::Block(opened.length as usize));
            }
            self.release();
            if !self.follow_switch()? {
                return Ok(if self.is_at_end()? {
                    BlockReadResult::End
                } else {
                    BlockReadResult::Nothing
                });
            }
        }
    }

    /// Copies bytes of the block taken by [`Input::open_block`], from `offset` on, until `out` is
    /// full. Returns false if the block does not have that many bytes, or is no longer in the ring
    /// because the writer has overwritten it or has continued in other memory. The contents of
    /// `out` are then unspecified.
    pub fn copy_opened_block(&mut self, offset: usize, out: &mut [u8]) -> bool {
        let walk = self.ring.walk();
        self.opened_block.is_some_and(|opened| walk.copy_part(&opened, offset, out))
    }

    /// Returns the sequence number of the next block, where the first block of the ring has number
    /// 0. Returns `None` if this reader joined later and has not passed a block yet.
    pub fn next_block_number(&mut self) -> Option<u64> {
        self.ring.walk().next_block_number()
    }

    /// Reads like [`Input::try_read`], but reports empty blocks as marks. Takes the next block if
    /// it is empty; bytes after an empty block are not copied in the same call. Fails with
    /// [`Fault::Lossy`] if the ring overwrites.
    pub fn read_until_mark(&mut self, out: &mut [u8]) -> Result<ReadUntilMarkResult, Fault> {
        if self.is_lossy {
            return Err(Fault::Lossy);
        }
        if !out.is_empty() && self.unread_rest.is_none() && self.ring.walk().take_block(out) {
            return Ok(ReadUntilMarkResult::Bytes(out.len()));
        }
        loop {
            match self.fill_until_mark(out, true)? {
                (0, true) => return Ok(ReadUntilMarkResult::Mark),
                (0, false) => {}
                (count, _) => return Ok(ReadUntilMarkResult::Bytes(count)),
            }
            self.release();
            if !self.follow_switch()? {
                return Ok(if self.is_at_end()? {
                    ReadUntilMarkResult::End
                } else {
                    ReadUntilMarkResult::Nothing
                });
            }
        }
    }

    /// Takes the next block if it is empty. Returns true if a block was taken, and always false if
    /// the ring overwrites.
    pub fn take_mark(&mut self) -> Result<bool, Fault> {
        if self.is_lossy || self.unread_rest.is_some() {
            return Ok(false);
        }
        let walk = self.ring.walk();
        match walk.find()? {
            Some(found) if found.unread_length() == 0 => {
                walk.pass_record(&found);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Skips and releases all blocks but the newest, including the rest of a block that
    /// [`Input::read`] has begun. Returns the number of skipped blocks, which is also added to the
    /// reader's `skipped` count.
    pub fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip(ForeignBlockReader::skip_to_latest)
    }

    /// Skips and releases all published blocks, including the rest of a block that [`Input::read`]
    /// has begun. Returns the number of skipped blocks, which is also added to the reader's
    /// `skipped` count.
    pub fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip(ForeignBlockReader::skip_to_now)
    }

    fn skip(
        &mut self,
        skip: impl Fn(&mut ForeignBlockReader) -> Result<u64, Fault>,
    ) -> Result<u64, Fault> {
        if let Some(rest) = self.unread_rest.take() {
            self.ring.walk().pass_record(&rest);
        }
        let before = self.ring.walk().side.released_position();
        let mut skipped = skip(&mut self.ring)?;
        while self.follow_switch()? {
            skipped += skip(&mut self.ring)?;
        }
        if self.ring.walk().side.released_position() != before {
            self.notify_writer();
        }
        Ok(skipped)
    }

    fn take_block(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let walk = self.ring.walk();
        let found = match self.unread_rest {
            Some(rest) => Some(rest),
            None => walk.find()?,
        };
        let Some(found) = found else { return Ok(None) };
        let (length, limit) = (found.unread_length(), out.len());
        let Some(to) = out.get_mut(..length) else {
            return Err(Fault::TooLong { length, limit });
        };
        walk.data().copy_out(found.unread_position(), to);
        self.unread_rest = None;
        walk.pass_record(&found);
        if walk.side.next - walk.side.released_position() >= super::release_interval(walk) {
            self.release();
        }
        Ok(Some(length))
    }

    /// Announces that the caller is about to sleep on the doorbell. Returns true if there is
    /// already something to read. The caller must call [`Input::announce_wake`] afterwards in
    /// either case.
    pub fn announce_sleep(&mut self) -> Result<bool, Fault> {
        // Wakes at any block, because a reader of many streams serves other streams in the
        // meantime.
        self.announce_sleep_until(1)
    }

    /// Announces a sleep like [`Input::announce_sleep`], and likewise requires a call to
    /// [`Input::announce_wake`] afterwards, but the caller is not woken before the writer flushes
    /// or a quarter of the ring is unread.
    pub fn announce_sleep_until_flush(&mut self) -> Result<bool, Fault> {
        let enough = self.ring.walk().side.capacity / 4;
        self.announce_sleep_until(enough)
    }

    /// Announces that the caller is about to sleep for a limited time, and need not be woken before
    /// a quarter of the ring is unread, even if the writer flushes. The caller must call
    /// [`Input::announce_wake`] afterwards.
    pub fn announce_pause(&mut self) {
        let side = &mut self.ring.walk().side;
        let until = side.next.saturating_add(side.capacity / 4);
        let index = side.index;
        if let Some(page) = side.store.readers.get(index) {
            self.sleeper.announce_sleep(page, reader::WAIT, until | THRESHOLD_ONLY);
        }
    }

    /// Returns true if the sleep announced by [`Input::announce_pause`] should end: a quarter of
    /// the ring is unread, the stream has ended, or the writer has notified the reader.
    /// Notifications are checked only if `drain` is true, because the check costs a system call.
    pub fn is_pause_over(&mut self, drain: bool) -> Result<bool, Fault> {
        let side = &mut self.ring.walk().side;
        let unread = side.refresh_published_position()?.saturating_sub(side.next);
        let is_over = unread >= side.capacity / 4 || side.is_closed();
        Ok(is_over || drain && self.drain_doorbell())
    }

    fn announce_sleep_until(&mut self, enough: u64) -> Result<bool, Fault> {
        let side = &mut self.ring.walk().side;
        let until = side.next.saturating_add(enough);
        let index = side.index;
        let Some(page) = side.store.readers.get(index) else { return Err(Fault::Abandoned) };
        self.sleeper.announce_sleep(page, reader::WAIT, until);
        self.is_readable()
    }

    /// Announces that the caller is awake. If `readable` is true, because the doorbell is readable,
    /// also drains one notification. Returns true if there was a notification.
    pub fn announce_wake(&mut self, readable: bool) -> bool {
        let notified = readable && self.drain_doorbell();
        let index = self.ring.walk().side.index;
        if let Some(page) = self.ring.walk().side.store.readers.get(index) {
            self.sleeper.announce_wake(page, reader::WAIT);
        }
        notified
    }
}

impl SkippingReader for Input {
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Ok(match self.read_block(out)? {
            BlockReadResult::Block(length) => Some(length),
            BlockReadResult::Nothing | BlockReadResult::End => None,
        })
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip_to_latest()
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip_to_now()
    }

    fn counts(&self) -> ReaderCounts {
        self.counts()
    }
}
