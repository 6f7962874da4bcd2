//! Editing of one block at a time, through the gateway. [SL §6.1], [Th §5.3.3, `slblock_writable`]
//!
//! An [`Edit`] filter receives an [`EditableBlock`]: a single block, without access to the rest of
//! the batch, so that no other reference to the bytes exists while they change. The space decides
//! how to perform a write, and the filter cannot observe the difference:
//!
//! | other readers | size | action |
//! |---|---|---|
//! | none | any | **direct**: changed in place |
//! | some, or foreign memory | small, or fully overwritten | **copy** into local memory |
//! | some | large, partly written | **copy on write** of the part: fragments |
//! | any | replaced by a new block | **append** ([`EditableBlock::replace`]): nothing is copied |
//!
//! Fragments are produced only where the following filters accept them. Nothing is copied before
//! the first write. Narrowing the view ([`EditableBlock::narrow`]) changes metadata only. [Th
//! §5.3.1]

use super::context::{ClassifyContext, OldBytes};
use super::report::Report;
use super::state::FilterState;
use super::traits::no_writable_parameters_error;
use super::{Arguments, Mistake};
use abi::{BlockMetadata, Class, Marks, RichPointer};
use std::fmt;
use std::ops::Range;

/// A filter that changes blocks one at a time and leaves each block in its lane.
pub trait Edit: Send {
    /// Inspects a block, changes it if necessary, and returns its class.
    fn edit(&mut self, block: &mut EditableBlock<'_>, cx: &mut ClassifyContext<'_>) -> Class;
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, so that they can be saved and moved, or `None` if it has
    /// none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`](super::Filter::set).
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// Services of a space for the block that is being edited. The engine implements this trait;
/// filters use it through [`EditableBlock`].
pub trait EditBackend {
    /// Returns the current bytes of the frame that is being edited.
    fn frame(&mut self) -> &[u8];
    /// Returns this range of the frame for writing, or `None` if there is no memory for a copy.
    fn write(&mut self, range: Range<usize>, keep: OldBytes) -> Option<&mut [u8]>;
    /// Returns memory for a new block of at most `room` bytes that replaces the current block.
    /// Returns `None` if memory runs out.
    fn replace(&mut self, room: usize) -> Option<&mut [u8]>;
}

/// The block that an editing filter may change, with access to the block's bytes.
pub struct EditableBlock<'e> {
    /// Rich pointer to the view. It contains the incoming class.
    pub pointer: RichPointer,
    /// Offsets of the view and the headers in the frame.
    pub marks: Marks,
    /// Metadata of the block: time, session, origin and flags.
    pub context: BlockMetadata,
    backend: &'e mut (dyn EditBackend + 'e),
    /// Length in bytes of the new block that replaces the edited one. `None` if the block was not
    /// replaced.
    new_length: Option<usize>,
    lost: bool,
}

impl fmt::Debug for EditableBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Editable").field("pointer", &self.pointer).finish_non_exhaustive()
    }
}

impl<'e> EditableBlock<'e> {
    /// Creates an editable block from its pointer, marks and metadata. `backend` provides the
    /// bytes.
    pub fn new(
        (pointer, marks, context): (RichPointer, Marks, BlockMetadata),
        backend: &'e mut (dyn EditBackend + 'e),
    ) -> Self {
        Self { pointer, marks, context, backend, new_length: None, lost: false }
    }

    /// Returns the incoming class, which most editing filters return unchanged.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.pointer.class
    }

    /// Returns the length of the view in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.pointer.length() as usize
    }

    /// Returns the bytes in view, including all changes made so far; after
    /// [`EditableBlock::replace`], the bytes of the new block.
    pub fn bytes(&mut self) -> &[u8] {
        let view = self.view_range();
        if let Some(used) = self.new_length {
            return self.backend.frame().get(..used).unwrap_or_default();
        }
        self.backend.frame().get(view).unwrap_or_default()
    }

    /// Returns the bytes in view for writing. Returns `None` after [`EditableBlock::replace`], and
    /// for a gap, which has no bytes. Also returns `None` if writing requires a copy and memory
    /// runs out; the block is then marked as lost.
    pub fn write(&mut self, keep: OldBytes) -> Option<&mut [u8]> {
        self.write_part(0, self.length(), keep)
    }

    /// Returns part of the view for writing. If the block is large and has other readers, only this
    /// part is copied. Returns `None` in the same cases as [`EditableBlock::write`].
    pub fn write_part(&mut self, from: usize, length: usize, keep: OldBytes) -> Option<&mut [u8]> {
        let view = self.view_range();
        let from = view.start + from.min(view.len());
        let to = from.saturating_add(length).min(view.end);
        self.write_frame(from, to - from, keep)
    }

    /// Returns the entire frame, including headers before the view and all changes made so far.
    pub fn frame(&mut self) -> &[u8] {
        self.backend.frame()
    }

    /// Returns part of the frame for writing, inside or outside of the view. Returns `None` in the
    /// same cases as [`EditableBlock::write`].
    pub fn write_frame(&mut self, from: usize, length: usize, keep: OldBytes) -> Option<&mut [u8]> {
        if self.new_length.is_some() || self.lost || self.pointer.is_hole() {
            return None;
        }
        let room = self.backend.write(from..from.saturating_add(length), keep);
        self.lost = room.is_none();
        room
    }

    /// Replaces the block with a new block of at most `room` bytes, all of them in view. No old
    /// bytes are copied. `fill` writes the bytes and returns the number of bytes written. If memory
    /// runs out, marks the block as lost and returns false.
    pub fn replace(&mut self, room: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let made = self.backend.replace(room.min(abi::BLOCK_LENGTH_MAX));
        let used = made.map(|made| fill(made).min(made.len()));
        self.lost |= used.is_none();
        self.new_length = used.or(self.new_length);
        !self.lost
    }

    /// Narrows the view to `length` bytes from offset `from`, clamped to the current view.
    pub fn narrow(&mut self, from: u32, length: u32) {
        let from = from.min(self.pointer.length());
        let length = length.min(self.pointer.length() - from);
        self.pointer = self.pointer.subrange(from, length);
        self.marks.view += from;
    }

    /// Returns the length in bytes of the new block that replaces the edited one. Returns `None` if
    /// the block was not replaced.
    #[must_use]
    pub const fn replacement_length(&self) -> Option<usize> {
        self.new_length
    }

    /// Returns true if the block was lost because there was no memory for a change.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    fn view_range(&self) -> Range<usize> {
        let from = self.marks.view as usize;
        from..from + self.length()
    }
}
