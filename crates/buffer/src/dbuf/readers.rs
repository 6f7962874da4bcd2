//! Readers of a ring: those in the writer's process, and those that believe nothing. How either
//! goes from block to block is the matter of the ring ([`Walks`]); the invariants are those of
//! `dbuf`.

use super::walk::{FoundRecord, Walk};
use crate::cursor::Consumer;
use crate::trust::Trusted;
use crate::{Fault, Policy, Put, Taken};
use abi::Extent;
use std::fmt;

/// The steps of a reader through a ring; internal to this crate.
pub trait Walks: fmt::Debug {
    /// A block that was found and checked.
    type Found: Copy;

    /// Our side of the ring.
    fn side(&self) -> &Consumer;
    /// The same, to change it.
    fn side_mut(&mut self) -> &mut Consumer;
    /// The next block, if that can be said at once; never where the ring overwrites.
    #[inline]
    fn at_hand(&mut self) -> Option<Self::Found> {
        None
    }
    /// The next block, if one is shown.
    fn find(&mut self) -> Result<Option<Self::Found>, Fault>;
    /// Goes past it.
    fn pass(&mut self, found: &Self::Found);
    /// Returns the address and the length of its bytes.
    fn lies(&self, found: &Self::Found) -> (*const u8, usize);
    /// Copies the next block, takes it, and gives it back.
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;
    /// Copies the bytes of a place.
    fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault>;
    /// Passes over all blocks but the newest.
    fn skip_to_latest(&mut self) -> Result<u64, Fault>;
    /// Passes over all blocks.
    fn skip_to_now(&mut self) -> Result<u64, Fault>;
    /// Tells the writer that we need nothing before the next block.
    fn release(&mut self) {
        self.side_mut().release();
    }
}

/// A reader in the writer's process.
#[derive(Debug)]
pub struct Reader<W: Walks>(pub(super) W);

impl<W: Walks> Reader<W> {
    /// The next block, in place, without taking it; `None`: nothing is there. Not in a ring that
    /// overwrites ([`Fault::Lossy`]).
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(found) = self.held()? else { return Ok(None) };
        Ok(Some(self.look(&found)))
    }

    /// The next block, in place, and past it: [`Reader::release`] gives it back. For a batch: call
    /// it as often as wanted, with the reader borrowed for each block.
    #[inline]
    pub fn next_block(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(found) = self.held()? else { return Ok(None) };
        self.0.pass(&found);
        Ok(Some(self.look(&found)))
    }

    /// Passes over the next block without looking at it; answers whether there was one.
    pub fn skip(&mut self) -> Result<bool, Fault> {
        let found = self.held()?;
        if let Some(found) = &found {
            self.0.pass(found);
        }
        Ok(found.is_some())
    }

    /// Gives everything back that was passed: the writer may use the room.
    pub fn release(&mut self) {
        self.0.release();
    }

    #[inline]
    fn held(&mut self) -> Result<Option<W::Found>, Fault> {
        match self.0.at_hand() {
            Some(found) => Ok(Some(found)),
            None if self.0.side().policy == Policy::Overwrite => Err(Fault::Lossy),
            None => self.0.find(),
        }
    }

    #[inline]
    fn look(&self, found: &W::Found) -> &[u8] {
        kept(&self.0, found)
    }
}

/// A reader in another process than the writer's. All it gets are copies.
#[derive(Debug)]
pub struct Visitor<W: Walks>(pub(super) W);

impl<W: Walks> Visitor<W> {
    /// Copies the bytes that a rich pointer names into `out`, which must be as long. They must lie
    /// in what this reader has not released, or, where the ring overwrites, not have been lapped.
    pub fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        self.0.copy(place, out)
    }
}

impl Visitor<Walk> {
    /// The rest of a block that was found and not passed, in place. The writer is trusted to keep
    /// D2 (D6).
    #[inline]
    pub(crate) fn look(&self, found: &FoundRecord, _: Trusted) -> &[u8] {
        match self.0.side.policy {
            Policy::Overwrite => &[],
            Policy::Block | Policy::DropNew => kept(&self.0, found),
        }
    }
}

/// A block that was found and not passed, of a ring that does not overwrite and whose writer keeps
/// D2: it is in our process, or trusted.
#[inline]
fn kept<'a, W: Walks>(walk: &'a W, found: &W::Found) -> &'a [u8] {
    let (first, length) = walk.lies(found);
    // SAFETY: `find` checked that the block lies in the ring and is shown (D3); it is not behind
    // our published cursor, which cannot move while `walk` is borrowed (D4); what overwrites was
    // turned away by both callers.
    unsafe { std::slice::from_raw_parts(first, length) }
}

macro_rules! both {
    ($reader:ident) => {
        impl<W: Walks> $reader<W> {
            /// Copies the next block into `out`, takes it, and gives it back. `None`: nothing is
            /// there. Where `out` is too short the block stays.
            pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
                self.0.read(out)
            }

            /// Passes over all blocks but the newest; answers how many, which are counted as
            /// skipped.
            pub fn skip_to_latest(&mut self) -> Result<u64, Fault> {
                self.0.skip_to_latest()
            }

            /// Goes on with what is written from now on; answers how many blocks were skipped.
            pub fn skip_to_now(&mut self) -> Result<u64, Fault> {
                self.0.skip_to_now()
            }

            /// Returns true if the writer has closed the ring and everything has been read. A
            /// writer in another process that was killed closes nothing: its control socket reports
            /// that (RELIABILITY T10).
            pub fn is_finished(&mut self) -> Result<bool, Fault> {
                self.0.side_mut().ended()
            }

            /// Returns the counts of this side.
            #[must_use]
            pub fn count(&self) -> Taken {
                self.0.side().taken
            }

            /// Returns the counts that the writer has published, or claims.
            #[must_use]
            pub fn written(&self) -> Put {
                self.0.side().store.put()
            }
        }
    };
}

both!(Reader);
both!(Visitor);
