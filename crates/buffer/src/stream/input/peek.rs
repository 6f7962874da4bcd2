//! In-place reading of blocks, from a writer that could write this process's memory anyway. [SL
//! §5.1, peek]
//!
//! The writer copies the bytes into the ring, and the reader never copies them out. The room of a
//! block is not released before the reader has taken the block, so a slow caller stalls the writer
//! just like any slow reader.

use super::{Input, release_interval};
use crate::Fault;
use crate::dbuf::readers::BlockWalk as _;
use crate::dbuf::walk::CheckedRecord;

impl Input {
    /// Returns true if [`Input::peek`] is possible: the stream was opened as trusting, its segment
    /// was created by a process of the same user or of root, and the ring does not overwrite.
    #[must_use]
    pub const fn can_peek(&self) -> bool {
        self.trust_proof.is_some() && !self.is_lossy
    }

    /// Returns the unread bytes of the next block in place, without taking them. Returns `None` if
    /// no block is published, and an empty slice at the end of the stream. Fails with
    /// [`Fault::Foreign`] if the writer is not trusted, and with [`Fault::Lossy`] if the ring
    /// overwrites.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let (Some(trusted), false) = (self.trust_proof, self.is_lossy) else {
            return Err(if self.is_lossy { Fault::Lossy } else { Fault::Foreign });
        };
        if let Some(found) = self.untouched_block() {
            return Ok(Some(self.ring.unread_bytes(&found, trusted)));
        }
        match self.find_nonempty_block()? {
            Some(found) => Ok(Some(self.ring.unread_bytes(&found, trusted))),
            None => Ok(self.is_at_end()?.then_some(&[])),
        }
    }

    /// Takes `count` bytes of the peeked block. If no byte of the block remains, the next peek
    /// returns the next block.
    #[inline]
    pub fn take(&mut self, count: usize) {
        match self.untouched_block() {
            Some(found) if count >= found.unread_length() => {
                self.ring.walk().pass_on_fast_path(&found)
            }
            _ => self.take_slowly(count),
        }
        let walk = self.ring.walk();
        if walk.side.next - walk.side.released_position() >= release_interval(walk) {
            self.release();
        }
    }

    /// Returns the address and the length of the next block's unread bytes in the stream's memory,
    /// without taking them. Works with any writer and any policy. Returns `None` if no block is
    /// published, and length 0 at the end of the stream.
    ///
    /// The memory stays mapped until the next call that moves the position. An untrusted writer may
    /// change the bytes at any time, and so may any writer of a ring that overwrites. The result is
    /// therefore an address and not a slice, and [`Input::take_checked`] reports afterwards whether
    /// the bytes were intact.
    pub fn locate(&mut self) -> Result<Option<(*const u8, usize)>, Fault> {
        if self.is_lossy {
            return self.locate_in_lossy_ring();
        }
        let found = match self.untouched_block() {
            Some(found) => Some(found),
            None => self.find_nonempty_block()?,
        };
        match found {
            Some(found) => Ok(Some(self.ring.walk().location(&found))),
            None => Ok(self.is_at_end()?.then_some((std::ptr::null(), 0))),
        }
    }

    /// Takes `count` bytes of the located block, or the entire block if the ring overwrites.
    /// Returns false if the writer may have overwritten the block since [`Input::locate`]. The
    /// block then counts as lost, and the caller must discard every result derived from its bytes.
    pub fn take_checked(&mut self, count: usize) -> Result<bool, Fault> {
        if self.is_lossy {
            return self.ring.walk().take_unless_overwritten();
        }
        self.take(count);
        Ok(true)
    }

    /// Returns true if the ring overwrites its oldest blocks.
    #[must_use]
    pub const fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// Implements [`Input::locate`] for a ring that overwrites.
    fn locate_in_lossy_ring(&mut self) -> Result<Option<(*const u8, usize)>, Fault> {
        loop {
            let walk = self.ring.walk();
            match walk.locate_in_lossy_ring()? {
                Some(found) if found.unread_length() > 0 => return Ok(Some(walk.location(&found))),
                Some(_) => _ = walk.take_unless_overwritten()?,
                None => {
                    self.release();
                    if !self.follow_switch()? {
                        return Ok(self.is_at_end()?.then_some((std::ptr::null(), 0)));
                    }
                }
            }
        }
    }

    #[cold]
    fn take_slowly(&mut self, count: usize) {
        let Ok(Some(found)) = self.next_unread_block() else { return };
        let walk = self.ring.walk();
        self.unread_rest = found.advanced_by(count);
        match self.unread_rest {
            Some(_) => walk.disable_fast_path(),
            None => walk.pass_record(&found),
        }
    }

    /// Returns the next block if the fast path applies, the block is not empty, and none of its
    /// bytes have been taken. Returns `None` otherwise.
    #[inline]
    fn untouched_block(&mut self) -> Option<CheckedRecord> {
        let found =
            if self.unread_rest.is_none() { self.ring.walk().find_on_fast_path() } else { None };
        found.filter(|found| found.unread_length() > 0)
    }

    /// Returns the unread rest of the next block, or `None` if no block is published.
    #[inline]
    fn next_unread_block(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        match self.unread_rest {
            Some(rest) => Ok(Some(rest)),
            None => self.ring.walk().find(),
        }
    }

    /// Returns the unread rest of the next block that is not empty, following a switch of segments
    /// if necessary. Returns `None` if no such block is published.
    #[cold]
    fn find_nonempty_block(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        loop {
            match self.next_unread_block()? {
                Some(found) if found.unread_length() > 0 => return Ok(Some(found)),
                Some(empty) => self.ring.walk().pass_record(&empty),
                None => {
                    self.release();
                    if !self.follow_switch()? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
