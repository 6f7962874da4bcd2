//! Editing block by block: the gateway before every change. [SL §6.1], [Th §5.3.3,
//! `slblock_writable`]
//!
//! An author who changes bytes writes [`Edit`]. What it is given shows one block and nothing else
//! of the turn, so that nobody has a view of the bytes while they are changed; the space decides
//! what a request to write means, and the filter cannot tell:
//!
//! | who else sees the block | its size | what happens |
//! |---|---|---|
//! | nobody | any | **direct**: it is changed where it lies |
//! | somebody, or it is not ours | small, or all is written | **copy** into local memory |
//! | somebody | large, a part is written | **copy on write** of the part: fragments |
//! | anybody | a new block is made of it | **append** ([`Editable::replace`]): nothing is copied |
//!
//! Fragments leave only where those behind take them. Nothing is copied before the filter asks to
//! write. A change of the view alone
//! ([`Editable::narrow`]) is one of metadata, and touches no byte. [Th §5.3.1]

use super::state::State;
use super::traits::Report;
use super::turn::{Keep, Tell};
use abi::{BlockMetadata, Class, Marks, RichPointer};
use std::fmt;
use std::ops::Range;

/// Changes blocks, one at a time, and keeps them in their lanes.
pub trait Edit: Send {
    /// Looks at a block, changes it if it must, and answers its class.
    fn edit(&mut self, block: &mut Editable<'_>, cx: &mut Tell<'_>) -> Class;
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// Services of a space for a block that is edited. Implemented by the engine; filters never name
/// it.
pub trait Workbench {
    /// The frame as it is now.
    fn frame(&mut self) -> &[u8];
    /// These bytes of the frame, to be changed. `None`: there is no memory for a copy.
    fn write(&mut self, range: Range<usize>, keep: Keep) -> Option<&mut [u8]>;
    /// Room for a new block of at most so many bytes in place of this one.
    fn replace(&mut self, room: usize) -> Option<&mut [u8]>;
}

/// One block that may be changed.
pub struct Editable<'e> {
    /// The view, with the class with which the block came.
    pub pointer: RichPointer,
    /// Offsets of the view and the layers in the frame.
    pub marks: Marks,
    /// Time, session and origin.
    pub context: BlockMetadata,
    bench: &'e mut (dyn Workbench + 'e),
    /// Used length of a new block, in bytes.
    used: Option<usize>,
    lost: bool,
}

impl fmt::Debug for Editable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Editable").field("pointer", &self.pointer).finish_non_exhaustive()
    }
}

impl<'e> Editable<'e> {
    /// A block on this bench.
    pub fn new(
        (pointer, marks, context): (RichPointer, Marks, BlockMetadata),
        bench: &'e mut (dyn Workbench + 'e),
    ) -> Self {
        Self { pointer, marks, context, bench, used: None, lost: false }
    }

    /// The class with which the block came: what most edits answer.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.pointer.class
    }

    /// The number of viewed bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.pointer.length() as usize
    }

    /// The viewed bytes, with what was changed so far.
    pub fn bytes(&mut self) -> &[u8] {
        let view = self.view();
        if let Some(used) = self.used {
            return self.bench.frame().get(..used).unwrap_or_default();
        }
        self.bench.frame().get(view).unwrap_or_default()
    }

    /// The viewed bytes, to be changed, whatever that takes. `None`: there is no memory for a copy;
    /// the block is then lost, and counted.
    pub fn write(&mut self, keep: Keep) -> Option<&mut [u8]> {
        self.write_part(0, self.length(), keep)
    }

    /// So many of the viewed bytes, to be changed; the others stay as they are. Of a large block
    /// that others see no more than these are copied.
    pub fn write_part(&mut self, from: usize, length: usize, keep: Keep) -> Option<&mut [u8]> {
        let view = self.view();
        let from = view.start + from.min(view.len());
        let to = from.saturating_add(length).min(view.end);
        if self.used.is_some() || self.lost {
            return None;
        }
        let room = self.bench.write(from..to, keep);
        self.lost = room.is_none();
        room
    }

    /// The whole frame in which the view lies, with what was changed so far: for what stands in
    /// front of the view.
    pub fn frame(&mut self) -> &[u8] {
        self.bench.frame()
    }

    /// So many bytes of the frame, to be changed, wherever the view is.
    pub fn write_frame(&mut self, from: usize, length: usize, keep: Keep) -> Option<&mut [u8]> {
        if self.used.is_some() || self.lost {
            return None;
        }
        let room = self.bench.write(from..from.saturating_add(length), keep);
        self.lost = room.is_none();
        room
    }

    /// Puts a new block of at most `room` bytes in place of this one: it is no frame any more, and
    /// what was there is not copied. `fill` answers how much it used. Answers false, and the block
    /// is lost, when there is no memory.
    pub fn replace(&mut self, room: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let made = self.bench.replace(room.min(abi::BLOCK_MAX));
        let used = made.map(|made| fill(made).min(made.len()));
        self.lost |= used.is_none();
        self.used = used.or(self.used);
        !self.lost
    }

    /// Moves the view `from` bytes inwards and makes it `length` bytes long, cut to what it had.
    pub fn narrow(&mut self, from: u32, length: u32) {
        let from = from.min(self.pointer.length());
        let length = length.min(self.pointer.length() - from);
        self.pointer = self.pointer.within(from, length);
        self.marks.view += from;
    }

    /// Returns the length of the new block, if the block was replaced.
    #[must_use]
    pub const fn replaced(&self) -> Option<usize> {
        self.used
    }

    /// Returns true if there was no memory for a change.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    fn view(&self) -> Range<usize> {
        let from = self.marks.view as usize;
        from..from + self.length()
    }
}
