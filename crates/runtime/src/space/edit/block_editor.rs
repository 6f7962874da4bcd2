//! Editing of one block: in place, or in a copy that is made when the filter first writes. [SL
//! §6.1]
//!
//! The input is a rich pointer and a flag that forces a copy. The output is the resulting blocks
//! ([`EditOutput`]). The module [`super`] defines when an edit in place is permitted;
//! `buffer::pool::edit` explains why the bytes may then be written.

use super::{EditOutput, FRAGMENTED_FRAME_BYTES_MIN};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};
use buffer::crossing::Batch as RingBatch;
use buffer::pool::{Draft, EditedBlock, Pool};
use filter::{ClassifyContext, Edit, EditBackend, EditableBlock, OldBytes};
use std::ops::Range;

/// An editor that applies an editing filter to one block at a time. It has exclusive access to the
/// memory of the space.
pub(super) struct BlockEditor<'b, 'i> {
    pub(super) intakes: &'b mut [Pool],
    pub(super) work: &'b mut Pool,
    pub(super) imported: &'i [RingBatch<'i>],
    /// True if the filters downstream accept a block as several fragments.
    pub(super) fragments: bool,
}

impl BlockEditor<'_, '_> {
    /// Runs the filter on a block and emits the result. The filter edits the block in place if that
    /// is permitted. If `copies` is true, it edits a copy.
    pub(super) fn edit_block(
        &mut self,
        (entry, order): (Entry, u32),
        copies: bool,
        (filter, context): (&mut dyn Edit, &mut ClassifyContext<'_>),
        out: &mut EditOutput,
    ) {
        let place = entry.frame().place;
        let dbuf = entry.frame().dbuf();
        let intake = self.intakes.iter_mut().find(|pool| !copies && pool.id() == dbuf);
        if let Some(editing) = intake.and_then(|pool| pool.edit(place)) {
            let (done, made, wrote) =
                InPlaceEdit::run_filter(editing, Some(self.work), entry, filter, context);
            out.edits.direct += u64::from(wrote);
            return out.emit(made, &done, entry, (self.work, order));
        }
        if !copies && self.work.id() == dbuf {
            let called = self.work.edit(place).map(|editing| {
                let (done, made, wrote) =
                    InPlaceEdit::run_filter(editing, None, entry, filter, context);
                (done, made.detach(), wrote)
            });
            if let Some((done, made, wrote)) = called {
                out.edits.direct += u64::from(wrote);
                return out.emit(made, &done, entry, (self.work, order));
            }
        }
        self.edit_in_copy((entry, order), (filter, context), out);
    }

    /// Runs the filter on a block that must not be changed in place. The filter's first write
    /// creates the copy.
    fn edit_in_copy(
        &mut self,
        (entry, order): (Entry, u32),
        (filter, context): (&mut dyn Edit, &mut ClassifyContext<'_>),
        out: &mut EditOutput,
    ) {
        let bare = !entry.marks.is_frame() && !entry.marks.is_description();
        let fragments = self.fragments && bare;
        let (frame, old) = (entry.frame(), self.bytes(entry.frame()));
        let mut bench =
            CopyEdit { old, work: self.work, draft: None, made: NewBlock::Nothing, fragments };
        let done = EditResult::run_filter(filter, context, entry, &mut bench);
        let CopyEdit { draft, made, .. } = bench;
        match (done.used, draft) {
            _ if done.lost => out.lost.push(entry.pointer.length()),
            (Some(used), draft) => {
                drop(draft);
                out.emit_new_block(made, &done, used, (&*self.work, order));
            }
            (None, None) => out.push(Entry::new(done.pointer, done.context, done.marks), order),
            (None, Some((draft, part))) if part.len() == old.len() => {
                let place = draft.commit(old.len());
                let copy = RichPointer::new(self.work.id(), place, done.pointer.class);
                let view = copy.subrange(done.marks.view, done.pointer.length());
                out.edits.copied += 1;
                out.push(Entry::new(view, done.context, done.marks), order);
            }
            (None, Some((draft, part))) => {
                let place = draft.commit(part.len());
                let copy = RichPointer::new(self.work.id(), place, done.pointer.class);
                out.emit_fragments(&done, (frame, copy, part), order);
            }
        }
    }

    pub(super) fn bytes(&self, frame: RichPointer) -> &[u8] {
        let pools = self.intakes.iter().chain([&*self.work]);
        let own = pools.into_iter().find(|pool| pool.id() == frame.dbuf());
        match own {
            Some(pool) => pool.bytes(frame.place),
            None => self.imported.iter().find_map(|imported| imported.resolve(frame).ok()),
        }
        .unwrap_or_default()
    }
}

/// The result of a filter's edit of a block.
struct EditResult {
    pointer: RichPointer,
    marks: Marks,
    context: BlockMetadata,
    /// Length, in bytes, of the new block with which the filter replaced the old one; `None` if the
    /// filter did not replace it.
    used: Option<usize>,
    lost: bool,
}

impl EditResult {
    fn run_filter(
        filter: &mut dyn Edit,
        context: &mut ClassifyContext<'_>,
        entry: Entry,
        backend: &mut dyn EditBackend,
    ) -> Self {
        let mut block = EditableBlock::new((entry.pointer, entry.marks, entry.context), backend);
        let class: Class = filter.edit(&mut block, context);
        let (used, lost) = (block.replacement_length(), block.is_lost());
        let EditableBlock { pointer, marks, context, .. } = block;
        Self { pointer: pointer.with_class(class), marks, context, used, lost }
    }
}

impl EditOutput {
    /// Emits the block that results from an edit in place: the block that replaces the old one, or
    /// otherwise the old block with its changes. If an edit failed for lack of memory, counts the
    /// block as lost instead.
    fn emit(
        &mut self,
        made: NewBlock<'_>,
        done: &EditResult,
        entry: Entry,
        (work, order): (&Pool, u32),
    ) {
        match done.used {
            _ if done.lost => self.lost.push(entry.pointer.length()),
            Some(used) => self.emit_new_block(made, done, used, (work, order)),
            None => self.push(Entry::new(done.pointer, done.context, done.marks), order),
        }
    }

    /// Emits `made`, the new block with which the filter replaces the old one. If no memory is
    /// available for the new block, counts the old block as lost.
    fn emit_new_block(
        &mut self,
        made: NewBlock<'_>,
        done: &EditResult,
        used: usize,
        (work, order): (&Pool, u32),
    ) {
        let place = match made {
            NewBlock::Draft(draft) => Some(draft.commit(used)),
            NewBlock::Scratch(bytes) => {
                let bytes = bytes.get(..used).unwrap_or_default();
                let copy = |room: &mut [u8]| {
                    room.copy_from_slice(bytes);
                    used
                };
                work.append(used, copy).map(|(place, _)| place)
            }
            NewBlock::Nothing => None,
        };
        match place {
            None => self.lost.push(done.pointer.length()),
            Some(place) => {
                let pointer = RichPointer::new(work.id(), place, done.pointer.class);
                self.edits.appended += 1;
                let marks = Marks::for_plain_block(pointer.length());
                self.push(Entry::new(pointer, done.context, marks), order);
            }
        }
    }

    /// Emits a block of which only the range `part` has been copied and edited. The block becomes
    /// up to three fragments: the bytes before the range, the copy of the range, and the bytes
    /// after it. Each fragment is clipped to the block's view. [SL §6.1]
    fn emit_fragments(
        &mut self,
        done: &EditResult,
        (frame, copy, part): (RichPointer, RichPointer, Range<usize>),
        order: u32,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "offsets in a block")]
        let (from, to) = (part.start as u32, part.end as u32);
        let (view, end) = (done.marks.view, done.marks.view + done.pointer.length());
        let cut = |low: u32, high: u32| (low.clamp(view, end), high.clamp(view, end));
        let frame = frame.with_class(done.pointer.class);
        let pieces =
            [(cut(0, from), frame, 0), (cut(from, to), copy, from), (cut(to, end), frame, 0)];
        let full = pieces.iter().filter(|((low, high), ..)| low < high);
        let count = full.clone().count();
        for (i, ((low, high), pointer, base)) in full.enumerate() {
            let mut flags = done.context.flags;
            if i > 0 {
                flags = flags.without(BlockFlags::FIRST);
            }
            if i + 1 < count {
                flags = flags.without(BlockFlags::LAST).without(BlockFlags::SESSION_END);
            }
            let piece = pointer.subrange(low - base, high - low);
            let context = BlockMetadata { flags, ..done.context };
            self.push(Entry::new(piece, context, Marks::for_plain_block(high - low)), order);
        }
        self.made += count.saturating_sub(1) as u64;
        self.edits.fragmented += 1;
    }
}

/// The memory of a new block with which a filter replaces the block that it edits.
enum NewBlock<'b> {
    Nothing,
    Draft(Draft<'b>),
    /// Heap memory. It is used if the old block is in a pool that is being edited, because such a
    /// pool cannot allocate drafts.
    Scratch(Vec<u8>),
}

impl NewBlock<'_> {
    /// Returns the memory in a form that does not borrow the pool. Heap memory is kept. A draft is
    /// discarded; none is lost, because a pool that is being edited creates no drafts.
    fn detach(self) -> NewBlock<'static> {
        match self {
            Self::Scratch(bytes) => NewBlock::Scratch(bytes),
            Self::Nothing | Self::Draft(_) => NewBlock::Nothing,
        }
    }

    fn reserve(&mut self, room: usize) -> Option<&mut [u8]> {
        match self {
            Self::Nothing => None,
            Self::Draft(draft) => draft.get_mut(..room),
            Self::Scratch(bytes) => bytes.get_mut(..room),
        }
    }
}

/// The interface through which a filter edits a block in place.
struct InPlaceEdit<'b> {
    editing: EditedBlock<'b>,
    work: Option<&'b Pool>,
    made: NewBlock<'b>,
    wrote: bool,
}

impl<'b> InPlaceEdit<'b> {
    /// Runs the filter on a block in place. A block that replaces the old one is created in the
    /// pool `work` or, if `work` is `None`, in heap memory. Returns the filter's result, the memory
    /// of the new block, and true if the filter wrote to the old block.
    fn run_filter(
        editing: EditedBlock<'b>,
        work: Option<&'b Pool>,
        entry: Entry,
        filter: &mut dyn Edit,
        context: &mut ClassifyContext<'_>,
    ) -> (EditResult, NewBlock<'b>, bool) {
        let mut bench = Self { editing, work, made: NewBlock::Nothing, wrote: false };
        let done = EditResult::run_filter(filter, context, entry, &mut bench);
        let Self { made, wrote, .. } = bench;
        (done, made, wrote)
    }
}

impl EditBackend for InPlaceEdit<'_> {
    fn frame(&mut self) -> &[u8] {
        match &self.made {
            NewBlock::Nothing => &self.editing,
            NewBlock::Draft(draft) => draft,
            NewBlock::Scratch(bytes) => bytes,
        }
    }

    fn write(&mut self, range: Range<usize>, _: OldBytes) -> Option<&mut [u8]> {
        self.wrote = true;
        self.editing.get_mut(range)
    }

    fn replace(&mut self, room: usize) -> Option<&mut [u8]> {
        self.made = match self.work {
            Some(work) => NewBlock::Draft(work.draft(room, room)?),
            None => NewBlock::Scratch(vec![0; room]),
        };
        self.made.reserve(room)
    }
}

/// The interface through which a filter edits a copy of a block. The filter's first write creates
/// the copy in a draft.
struct CopyEdit<'b> {
    old: &'b [u8],
    work: &'b Pool,
    /// The draft that contains the copy, and the range of the frame that is copied; `None` before
    /// the first write.
    draft: Option<(Draft<'b>, Range<usize>)>,
    made: NewBlock<'b>,
    fragments: bool,
}

impl CopyEdit<'_> {
    /// Replaces the copy of a range with a copy of the entire frame, including all changes so far.
    /// Returns `None` if no memory is available.
    fn widen_to_frame(&mut self) -> Option<()> {
        let before = self.draft.take().map(|(draft, part)| (draft.to_vec(), part));
        let mut draft = self.work.draft(self.old.len(), self.old.len())?;
        draft.copy_from_slice(self.old);
        if let Some((changed, part)) = before {
            draft.get_mut(part)?.copy_from_slice(&changed);
        }
        self.draft = Some((draft, 0..self.old.len()));
        Some(())
    }

    /// Creates a copy of the block in which the filter can write `range`. Copies only the range if
    /// fragments are accepted, the frame is long and the range is at most half of it; otherwise
    /// copies the entire frame. `keep` tells whether the old bytes of `range` are copied or
    /// replaced by zeros. Returns `None` if no memory is available.
    fn create_edit_copy(&mut self, range: &Range<usize>, keep: OldBytes) -> Option<()> {
        let long =
            self.old.len() >= FRAGMENTED_FRAME_BYTES_MIN && range.len() <= self.old.len() / 2;
        let part = if self.fragments && long { range.clone() } else { 0..self.old.len() };
        let mut draft = self.work.draft(part.len(), part.len())?;
        let old = self.old.get(part.clone())?;
        match keep {
            OldBytes::Keep => draft.copy_from_slice(old),
            OldBytes::Discard => {
                let (from, to) = (range.start - part.start, range.end - part.start);
                draft.get_mut(..from)?.copy_from_slice(old.get(..from)?);
                draft.get_mut(to..)?.copy_from_slice(old.get(to..)?);
                // The memory is reused: bytes of an earlier block must not remain visible.
                draft.get_mut(from..to)?.fill(0);
            }
        }
        self.draft = Some((draft, part));
        Some(())
    }
}

impl EditBackend for CopyEdit<'_> {
    fn frame(&mut self) -> &[u8] {
        if self.draft.as_ref().is_some_and(|(_, part)| part.len() < self.old.len()) {
            // If no memory is available, the filter sees the original frame, not its own changes.
            let _ = self.widen_to_frame();
        }
        match (&self.made, &self.draft) {
            (NewBlock::Draft(draft), _) => draft,
            (_, Some((draft, part))) if part.len() == self.old.len() => draft,
            _ => self.old,
        }
    }

    fn write(&mut self, range: Range<usize>, keep: OldBytes) -> Option<&mut [u8]> {
        if range.end > self.old.len() {
            return None;
        }
        match &self.draft {
            None if range.is_empty() => return Some(&mut []),
            None => self.create_edit_copy(&range, keep)?,
            Some((_, part)) if part.start > range.start || part.end < range.end => {
                self.widen_to_frame()?
            }
            Some(_) => {}
        }
        let (draft, part) = self.draft.as_mut()?;
        draft.get_mut(range.start - part.start..range.end - part.start)
    }

    fn replace(&mut self, room: usize) -> Option<&mut [u8]> {
        self.draft = None;
        self.made = NewBlock::Nothing;
        self.made = NewBlock::Draft(self.work.draft(room, room)?);
        self.made.reserve(room)
    }
}
