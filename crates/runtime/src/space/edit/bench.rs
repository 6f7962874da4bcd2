//! The bench on which a block is edited: where it lies, or in a copy that is made as soon as the
//! filter asks to write. [SL §6.1]
//!
//! In: a rich pointer and whether others may see its frame. Out: what became of it ([`Out`]). Which
//! way is taken is argued in [`super`]; that the bytes may be written, in `buffer::pool::edit`.

use super::{FRAGMENT_MIN, Out};
use abi::{BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use buffer::crossing::Batch as Taken;
use buffer::pool::{Draft, Editing, Pool};
use filter::{Edit, Editable, Keep, Tell, Workbench};
use std::ops::Range;

/// The workbench on which blocks are edited: exclusive access to the memory of the space.
pub(super) struct Bench<'b, 'i> {
    pub(super) intakes: &'b mut [Pool],
    pub(super) work: &'b mut Pool,
    pub(super) imported: &'i [Taken<'i>],
    /// True if the filters downstream take fragments.
    pub(super) fragments: bool,
}

impl Bench<'_, '_> {
    /// Has the filter look at a block and change it, and puts out what became of it.
    pub(super) fn block(
        &mut self,
        (entry, order): (Entry, u32),
        copies: bool,
        (filter, tell): (&mut dyn Edit, &mut Tell<'_>),
        out: &mut Out,
    ) {
        let place = entry.frame().place;
        let dbuf = entry.frame().dbuf();
        let intake = self.intakes.iter_mut().find(|pool| !copies && pool.id() == dbuf);
        if let Some(editing) = intake.and_then(|pool| pool.edit(place)) {
            let (done, made, wrote) = Direct::call(editing, Some(self.work), entry, filter, tell);
            out.edits.direct += u64::from(wrote);
            return out.put(made, &done, entry, (self.work, order));
        }
        if !copies && self.work.id() == dbuf {
            let called = self.work.edit(place).map(|editing| {
                let (done, made, wrote) = Direct::call(editing, None, entry, filter, tell);
                (done, made.kept(), wrote)
            });
            if let Some((done, made, wrote)) = called {
                out.edits.direct += u64::from(wrote);
                return out.put(made, &done, entry, (self.work, order));
            }
        }
        self.copy((entry, order), (filter, tell), out);
    }

    /// The same for a block that others see.
    fn copy(
        &mut self,
        (entry, order): (Entry, u32),
        (filter, tell): (&mut dyn Edit, &mut Tell<'_>),
        out: &mut Out,
    ) {
        let bare = !entry.marks.is_frame() && !entry.marks.is_description();
        let fragments = self.fragments && bare;
        let (frame, old) = (entry.frame(), self.find(entry.frame()));
        let mut bench =
            Copied { old, work: self.work, draft: None, made: Made::Nothing, fragments };
        let done = Done::call(filter, tell, entry, &mut bench);
        let Copied { draft, made, .. } = bench;
        match (done.used, draft) {
            _ if done.lost => out.lost.push(entry.pointer.length()),
            (Some(used), draft) => {
                drop(draft);
                out.made_new(made, &done, used, (&*self.work, order));
            }
            (None, None) => out.push(Entry::new(done.pointer, done.context, done.marks), order),
            (None, Some((draft, part))) if part.len() == old.len() => {
                let place = draft.commit(old.len());
                let copy = RichPointer::new(self.work.id(), place, done.pointer.class);
                let view = copy.within(done.marks.view, done.pointer.length());
                out.edits.copied += 1;
                out.push(Entry::new(view, done.context, done.marks), order);
            }
            (None, Some((draft, part))) => {
                let place = draft.commit(part.len());
                let copy = RichPointer::new(self.work.id(), place, done.pointer.class);
                out.fragments(&done, (frame, copy, part), order);
            }
        }
    }

    pub(super) fn find(&self, frame: RichPointer) -> &[u8] {
        let pools = self.intakes.iter().chain([&*self.work]);
        let own = pools.into_iter().find(|pool| pool.id() == frame.dbuf());
        match own {
            Some(pool) => pool.bytes(frame.place),
            None => self.imported.iter().find_map(|imported| imported.resolve(frame).ok()),
        }
        .unwrap_or_default()
    }
}

/// Result of a filter's edit of a block.
struct Done {
    pointer: RichPointer,
    marks: Marks,
    context: BlockMetadata,
    /// Used length of a new block, in bytes.
    used: Option<usize>,
    lost: bool,
}

impl Done {
    fn call(
        filter: &mut dyn Edit,
        tell: &mut Tell<'_>,
        entry: Entry,
        bench: &mut dyn Workbench,
    ) -> Self {
        let mut block = Editable::new((entry.pointer, entry.marks, entry.context), bench);
        let class: Class = filter.edit(&mut block, tell);
        let (used, lost) = (block.replaced(), block.is_lost());
        let Editable { pointer, marks, context, .. } = block;
        Self { pointer: pointer.with_class(class), marks, context, used, lost }
    }
}

impl Out {
    /// Puts out a block that was changed where it lay, or made anew.
    fn put(&mut self, made: Made<'_>, done: &Done, entry: Entry, (work, order): (&Pool, u32)) {
        match done.used {
            _ if done.lost => self.lost.push(entry.pointer.length()),
            Some(used) => self.made_new(made, done, used, (work, order)),
            None => self.push(Entry::new(done.pointer, done.context, done.marks), order),
        }
    }

    /// Puts out a block that was made anew.
    fn made_new(&mut self, made: Made<'_>, done: &Done, used: usize, (work, order): (&Pool, u32)) {
        let place = match made {
            Made::Draft(draft) => Some(draft.commit(used)),
            Made::Scratch(bytes) => {
                let bytes = bytes.get(..used).unwrap_or_default();
                let copy = |room: &mut [u8]| {
                    room.copy_from_slice(bytes);
                    used
                };
                work.append(used, copy).map(|(place, _)| place)
            }
            Made::Nothing => None,
        };
        match place {
            None => self.lost.push(done.pointer.length()),
            Some(place) => {
                let pointer = RichPointer::new(work.id(), place, done.pointer.class);
                self.edits.appended += 1;
                let marks = Marks::bare(pointer.length());
                self.push(Entry::new(pointer, done.context, marks), order);
            }
        }
    }

    /// Puts out a block of which `part` was copied: what lies before it, the copy, what lies
    /// behind, each as far as it is in view. [SL §6.1]
    fn fragments(
        &mut self,
        done: &Done,
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
                flags = flags.without(Flags::FIRST);
            }
            if i + 1 < count {
                flags = flags.without(Flags::LAST).without(Flags::END);
            }
            let piece = pointer.within(low - base, high - low);
            let context = BlockMetadata { flags, ..done.context };
            self.push(Entry::new(piece, context, Marks::bare(high - low)), order);
        }
        self.made += count.saturating_sub(1) as u64;
        self.edits.fragmented += 1;
    }
}

/// Room for a new block in place of one.
enum Made<'b> {
    Nothing,
    Draft(Draft<'b>),
    /// Scratch memory, for edits of the pool itself.
    Scratch(Vec<u8>),
}

impl Made<'_> {
    /// The same without the pool: a pool that is edited makes no drafts.
    fn kept(self) -> Made<'static> {
        match self {
            Self::Scratch(bytes) => Made::Scratch(bytes),
            Self::Nothing | Self::Draft(_) => Made::Nothing,
        }
    }

    fn room(&mut self, room: usize) -> Option<&mut [u8]> {
        match self {
            Self::Nothing => None,
            Self::Draft(draft) => draft.get_mut(..room),
            Self::Scratch(bytes) => bytes.get_mut(..room),
        }
    }
}

/// A block that is changed where it lies.
struct Direct<'b> {
    editing: Editing<'b>,
    work: Option<&'b Pool>,
    made: Made<'b>,
    wrote: bool,
}

impl<'b> Direct<'b> {
    /// Has the filter edit; answers what it left, the new block if there is one, and whether it
    /// wrote into the old one.
    fn call(
        editing: Editing<'b>,
        work: Option<&'b Pool>,
        entry: Entry,
        filter: &mut dyn Edit,
        tell: &mut Tell<'_>,
    ) -> (Done, Made<'b>, bool) {
        let mut bench = Self { editing, work, made: Made::Nothing, wrote: false };
        let done = Done::call(filter, tell, entry, &mut bench);
        let Self { made, wrote, .. } = bench;
        (done, made, wrote)
    }
}

impl Workbench for Direct<'_> {
    fn frame(&mut self) -> &[u8] {
        match &self.made {
            Made::Nothing => &self.editing,
            Made::Draft(draft) => draft,
            Made::Scratch(bytes) => bytes,
        }
    }

    fn write(&mut self, range: Range<usize>, _: Keep) -> Option<&mut [u8]> {
        self.wrote = true;
        self.editing.get_mut(range)
    }

    fn replace(&mut self, room: usize) -> Option<&mut [u8]> {
        self.made = match self.work {
            Some(work) => Made::Draft(work.draft(room, room)?),
            None => Made::Scratch(vec![0; room]),
        };
        self.made.room(room)
    }
}

/// A block that is copied as soon as it is changed.
struct Copied<'b> {
    old: &'b [u8],
    work: &'b Pool,
    /// The copy, and which part of the frame it is of.
    draft: Option<(Draft<'b>, Range<usize>)>,
    made: Made<'b>,
    fragments: bool,
}

impl Copied<'_> {
    /// A copy of the whole frame, with what was changed so far.
    fn widen(&mut self) -> Option<()> {
        let before = self.draft.take().map(|(draft, part)| (draft.to_vec(), part));
        let mut draft = self.work.draft(self.old.len(), self.old.len())?;
        draft.copy_from_slice(self.old);
        if let Some((changed, part)) = before {
            draft.get_mut(part)?.copy_from_slice(&changed);
        }
        self.draft = Some((draft, 0..self.old.len()));
        Some(())
    }

    /// A copy that `range` can be written into: of that alone, of a long frame of which little is
    /// written; else of all.
    fn begin(&mut self, range: &Range<usize>, keep: Keep) -> Option<()> {
        let long = self.old.len() >= FRAGMENT_MIN && range.len() <= self.old.len() / 2;
        let part = if self.fragments && long { range.clone() } else { 0..self.old.len() };
        let mut draft = self.work.draft(part.len(), part.len())?;
        let old = self.old.get(part.clone())?;
        match keep {
            Keep::Contents => draft.copy_from_slice(old),
            Keep::Nothing => {
                let (from, to) = (range.start - part.start, range.end - part.start);
                draft.get_mut(..from)?.copy_from_slice(old.get(..from)?);
                draft.get_mut(to..)?.copy_from_slice(old.get(to..)?);
                // Memory that is used again: nothing of an earlier block may show.
                draft.get_mut(from..to)?.fill(0);
            }
        }
        self.draft = Some((draft, part));
        Some(())
    }
}

impl Workbench for Copied<'_> {
    fn frame(&mut self) -> &[u8] {
        if self.draft.as_ref().is_some_and(|(_, part)| part.len() < self.old.len()) {
            // Without memory for that, what was changed does not show here.
            let _ = self.widen();
        }
        match (&self.made, &self.draft) {
            (Made::Draft(draft), _) => draft,
            (_, Some((draft, part))) if part.len() == self.old.len() => draft,
            _ => self.old,
        }
    }

    fn write(&mut self, range: Range<usize>, keep: Keep) -> Option<&mut [u8]> {
        if range.end > self.old.len() {
            return None;
        }
        match &self.draft {
            None if range.is_empty() => return Some(&mut []),
            None => self.begin(&range, keep)?,
            Some((_, part)) if part.start > range.start || part.end < range.end => self.widen()?,
            Some(_) => {}
        }
        let (draft, part) = self.draft.as_mut()?;
        draft.get_mut(range.start - part.start..range.end - part.start)
    }

    fn replace(&mut self, room: usize) -> Option<&mut [u8]> {
        self.draft = None;
        self.made = Made::Nothing;
        self.made = Made::Draft(self.work.draft(room, room)?);
        self.made.room(room)
    }
}
