//! Looking at blocks in place: of a writer that could write our memory anyway. [SL §5.1, peek]
//!
//! Copied in once and never out. The writer does not get the room back before the block is taken,
//! so who takes long holds it up as a slow reader does.

use super::{Input, often};
use crate::Fault;
use crate::dbuf::walk::FoundRecord;

impl Input {
    /// Returns true if [`Input::peek`] works here: the stream was opened trusting, its segment was
    /// made by a process of our own user or of root, and the ring does not overwrite.
    #[must_use]
    pub const fn looks_in_place(&self) -> bool {
        self.trusted.is_some() && !self.lossy
    }

    /// The rest of the next block, in place, without taking it; good until the next call. `None`:
    /// nothing is there; no bytes: the stream has ended. [`Fault::Foreign`] of whom we do not
    /// trust, [`Fault::Lossy`] where the ring overwrites.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let (Some(trusted), false) = (self.trusted, self.lossy) else {
            return Err(if self.lossy { Fault::Lossy } else { Fault::Foreign });
        };
        if let Some(found) = self.whole() {
            return Ok(Some(self.ring.look(&found, trusted)));
        }
        match self.look_further()? {
            Some(found) => Ok(Some(self.ring.look(&found, trusted))),
            None => Ok(self.is_at_end()?.then_some(&[])),
        }
    }

    /// Takes so many bytes of what was peeked at; all of it: the next peek shows the next block.
    #[inline]
    pub fn take(&mut self, count: usize) {
        match self.whole() {
            Some(found) if count >= found.left() => self.ring.walk().pass_at_hand(&found),
            _ => self.take_some(count),
        }
        let walk = self.ring.walk();
        if walk.side.next - walk.side.released() >= often(walk) {
            self.give_back();
        }
    }

    #[cold]
    fn take_some(&mut self, count: usize) {
        let Ok(Some(found)) = self.next() else { return };
        let walk = self.ring.walk();
        self.rest = found.behind(count);
        match self.rest {
            Some(_) => walk.doubt(),
            None => walk.pass(&found),
        }
    }

    /// The next block, if it was seen to be there and nothing of it has been taken.
    #[inline]
    fn whole(&mut self) -> Option<FoundRecord> {
        let found = if self.rest.is_none() { self.ring.walk().at_hand() } else { None };
        found.filter(|found| found.left() > 0)
    }

    /// Returns the rest of the next block, if it was found to be there.
    #[inline]
    fn next(&mut self) -> Result<Option<FoundRecord>, Fault> {
        match self.rest {
            Some(rest) => Ok(Some(rest)),
            None => self.ring.walk().find(),
        }
    }

    /// The same, past blocks without bytes and into the next segment.
    #[cold]
    fn look_further(&mut self) -> Result<Option<FoundRecord>, Fault> {
        loop {
            match self.next()? {
                Some(found) if found.left() > 0 => return Ok(Some(found)),
                Some(empty) => self.ring.walk().pass(&empty),
                None => {
                    self.give_back();
                    if !self.go_on()? {
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
