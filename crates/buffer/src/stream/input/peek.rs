//! In-place reading of blocks from a writer that could write this process's memory anyway. [SL
//! §5.1, peek]
//!
//! The bytes are copied into the ring once and never out. The room of a block is not released
//! before the block is taken, so a slow caller stalls the writer like any slow reader.

use super::{Input, release_interval};
use crate::Fault;
use crate::dbuf::readers::BlockWalk as _;
use crate::dbuf::walk::CheckedRecord;

impl Input {
    /// Returns true if [`Input::peek`] is possible: the stream was opened as trusting, its segment
    /// was created by a process of the same user or of root, and the ring does not overwrite.
    #[must_use]
    pub const fn can_peek(&self) -> bool {
        self.trusted.is_some() && !self.lossy
    }

    /// Returns the rest of the next block in place, without taking it. Returns `None` if there is
    /// none yet, and an empty slice at the end of the stream. Fails with [`Fault::Foreign`] if the
    /// writer is not trusted, and with [`Fault::Lossy`] if the ring overwrites.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let (Some(trusted), false) = (self.trusted, self.lossy) else {
            return Err(if self.lossy { Fault::Lossy } else { Fault::Foreign });
        };
        if let Some(found) = self.whole_block() {
            return Ok(Some(self.ring.unread_bytes(&found, trusted)));
        }
        match self.find_nonempty()? {
            Some(found) => Ok(Some(self.ring.unread_bytes(&found, trusted))),
            None => Ok(self.is_at_end()?.then_some(&[])),
        }
    }

    /// Takes `count` bytes of the peeked block. If those are all its bytes, the next peek returns
    /// the next block.
    #[inline]
    pub fn take(&mut self, count: usize) {
        match self.whole_block() {
            Some(found) if count >= found.left() => self.ring.walk().pass_plain(&found),
            _ => self.take_some(count),
        }
        let walk = self.ring.walk();
        if walk.side.next - walk.side.released() >= release_interval(walk) {
            self.release();
        }
    }

    /// Returns the address and the length of the unread rest of the next block in the stream's
    /// memory, without taking it: of any writer, and under any policy. Returns `None` if there is
    /// no block yet, and length 0 at the end of the stream.
    ///
    /// The memory stays mapped until the next call that moves the position. An untrusted writer may
    /// change the bytes at any time, and a ring that overwrites may be overtaken: so this is a
    /// place and not a slice, and [`Input::take_checked`] reports afterwards if the bytes were
    /// intact.
    pub fn locate(&mut self) -> Result<Option<(*const u8, usize)>, Fault> {
        if self.lossy {
            return self.locate_lossy();
        }
        let found = match self.whole_block() {
            Some(found) => Some(found),
            None => self.find_nonempty()?,
        };
        match found {
            Some(found) => Ok(Some(self.ring.walk().location(&found))),
            None => Ok(self.is_at_end()?.then_some((std::ptr::null(), 0))),
        }
    }

    /// Takes `count` bytes of the located block; where the ring overwrites, the whole block.
    /// Returns false if the writer may have overwritten the block since [`Input::locate`]:
    /// everything that was made of its bytes must be discarded, and the block counts as lost.
    pub fn take_checked(&mut self, count: usize) -> Result<bool, Fault> {
        if self.lossy {
            return self.ring.walk().take_lossy();
        }
        self.take(count);
        Ok(true)
    }

    /// Returns true if the ring overwrites its oldest blocks.
    #[must_use]
    pub const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Implements [`Input::locate`] where the ring overwrites.
    fn locate_lossy(&mut self) -> Result<Option<(*const u8, usize)>, Fault> {
        loop {
            let walk = self.ring.walk();
            match walk.locate_lossy()? {
                Some(found) if found.left() > 0 => return Ok(Some(walk.location(&found))),
                Some(_) => _ = walk.take_lossy()?,
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
    fn take_some(&mut self, count: usize) {
        let Ok(Some(found)) = self.next_unread() else { return };
        let walk = self.ring.walk();
        self.rest = found.after(count);
        match self.rest {
            Some(_) => walk.disable_fast_path(),
            None => walk.pass(&found),
        }
    }

    /// Returns the next block if the fast path applies, the block is not empty, and none of its
    /// bytes have been taken.
    #[inline]
    fn whole_block(&mut self) -> Option<CheckedRecord> {
        let found = if self.rest.is_none() { self.ring.walk().next_plain() } else { None };
        found.filter(|found| found.left() > 0)
    }

    /// Returns the unread rest of the next block, if one is published.
    #[inline]
    fn next_unread(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        match self.rest {
            Some(rest) => Ok(Some(rest)),
            None => self.ring.walk().find(),
        }
    }

    /// Returns the unread rest of the next block that is not empty; follows a switch of segments.
    #[cold]
    fn find_nonempty(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        loop {
            match self.next_unread()? {
                Some(found) if found.left() > 0 => return Ok(Some(found)),
                Some(empty) => self.ring.walk().pass(&empty),
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
