//! Write isolation: blocks are changed when nobody has a view of them, and nobody but those behind
//! the change sees it. [SL §6.1], [Th §5.3]
//!
//! A batch that comes to an editing filter is put aside as rich pointers, and the walk goes on with
//! everything else that can be done without it: so what reads a block in parallel has read it
//! before the change [Th §5.3.1, rule 2], wherever it stands in the request. Then the walk ends,
//! and with it every view of the turn (`Walk::pause`); only rich pointers are left ([`Paused`]).
//! Now the space has its pools for itself (`&mut`), the filter edits block by block, and a new walk
//! takes up where the old one stopped. That no slice is alive the compiler has proved, and
//! `Pool::edit` says why the bytes may be written (M9).
//!
//! That nobody *expects* the old bytes is argued here. A frame is changed where it lies only if
//! - E1 it lies in a pool of this space that is our own: imported and lent blocks are copied into
//!   the local pool (`work`), which is always writable;
//! - E2 nobody else in any space holds it: its segment has no lease (rings) and no pin (holds),
//!   which `Pool::edit` checks;
//! - E3 no block that is under way in this space shares a byte of the frame: all of those are in
//!   [`Paused`], since the walk is at rest and puts nothing elsewhere, and the frames of all are
//!   compared, those of the same batch among them (a filter may make several blocks of one);
//! - E4 nobody asked for copies (`Settings::copies`).
//!
//! A filter that remembers a rich pointer without holding the block is entitled to nothing (M5). A
//! frame is compared whole, since `pcap` writes all of it whatever the view. Otherwise the change
//! is made in a copy: of the whole frame, or, if that is long and those behind take fragments, of
//! the part that is written ([`FRAGMENT_MIN`]).

use super::memory::Memory;
use super::node::{Node, NodeId, Part};
use super::walk::{Paused, Shape, Turn, Walk};
use crate::failure::PathFailure;
use abi::{Class, ContextLane, DbufId, Entry, Flags, Marks, RichPointer};
use buffer::crossing::Batch as Taken;
use buffer::pool::{Draft, Editing, Pool};
use filter::{Amount, Block, Columns, Edit, Editable, Filter, Keep, Room, Tell, Time, Workbench};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A shorter frame is copied whole: three blocks cost more than the copy (about 60 ns for 4 KB).
pub(crate) const FRAGMENT_MIN: usize = 8 << 10;

/// A space between two walks.
pub(crate) struct Stage<'s> {
    pub(crate) nodes: &'s mut [Node],
    pub(crate) shape: &'s Shape,
    pub(crate) intakes: &'s mut [Pool],
    pub(crate) work: &'s mut Pool,
    pub(crate) turn: &'s mut Turn,
    pub(crate) now: Time,
}

impl Stage<'_> {
    /// Edits what was put aside and walks on, until nothing is left.
    pub(crate) fn go_on(&mut self, mut paused: Option<Paused>, imported: Option<Taken<'_>>) {
        while let Some(mut at_rest) = paused.take() {
            self.edit(&mut at_rest, imported);
            let mut memory = Memory { intakes: self.intakes, work: self.work, imported };
            let mut walk = Walk::new(self.nodes, &mut memory, self.shape, self.now, self.turn);
            walk.resume(at_rest);
            paused = walk.pause();
        }
    }

    /// Calls the filters that asked to be called by now.
    pub(crate) fn tick(&mut self, imported: Option<Taken<'_>>) {
        if self.nodes.iter().all(|node| node.wake.is_none()) {
            return;
        }
        let mut memory = Memory { intakes: self.intakes, work: self.work, imported };
        let mut walk = Walk::new(self.nodes, &mut memory, self.shape, self.now, self.turn);
        walk.tick();
        let paused = walk.pause();
        self.go_on(paused, imported);
    }

    /// Has the filter that comes first in the graph edit all batches that wait for it.
    fn edit(&mut self, paused: &mut Paused, imported: Option<Taken<'_>>) {
        let first = paused.cuts.iter().map(|cut| cut.at).min_by_key(|at| self.shape.rank[*at]);
        let Some(at) = first else { return };
        while let Some(next) = paused.cuts.iter().position(|cut| cut.at == at) {
            let cut = paused.cuts.remove(next);
            let shared = shared(&cut.room.columns, paused);
            let mut out = Out { spare: std::mem::take(&mut self.turn.rooms), ..Out::default() };
            self.batch(at, &cut.room.columns, (shared, imported), &mut out);
            self.turn.rooms = out.spare;
            paused.edited.extend(out.rooms.into_iter().map(|room| (at, room, cut.hops)));
            self.turn.keep(cut.room);
        }
    }

    /// Edits the blocks of a batch.
    fn batch(
        &mut self,
        at: NodeId,
        columns: &Columns,
        (shared, imported): (u64, Option<Taken<'_>>),
        out: &mut Out,
    ) {
        let node = &mut self.nodes[at];
        let came = amount(columns);
        if self.turn.failure.is_some() {
            add(&mut node.flow.failed, came);
            return;
        }
        let Part::Filter(Filter::Edit(filter)) = &mut node.part else { return };
        node.flow.calls += 1;
        let begin = if self.turn.timed { sys::clock::monotonic() } else { 0 };
        let mut bench =
            Bench { intakes: self.intakes, work: self.work, imported, fragments: node.fragments };
        let mut tell = Tell::new(self.now, &mut node.counts);
        let mut last = 0;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            for l in 0..columns.len() {
                last = l;
                let copies = self.turn.copies || shared & (1 << l) != 0;
                bench.block(
                    (columns.entry(l), columns.order(l)),
                    copies,
                    (&mut **filter, &mut tell),
                    out,
                );
            }
        }));
        node.counts.made.blocks += out.made;
        for bytes in out.lost.drain(..) {
            node.counts.no_room.add(bytes);
        }
        let edits = &mut node.flow.edits;
        edits.direct += out.edits.direct;
        edits.copied += out.edits.copied;
        edits.appended += out.edits.appended;
        edits.fragmented += out.edits.fragmented;
        if self.turn.timed {
            node.flow.busy_ns += sys::clock::monotonic().saturating_sub(begin);
        }
        if let Err(panic) = ran {
            add(&mut node.flow.failed, came);
            node.counts.made.blocks -= out.made;
            out.rooms.clear();
            let entry = columns.entry(last);
            let frame = bench.find(entry.frame());
            let Entry { pointer, marks, context } = entry;
            let block = Block { pointer, frame, marks, context };
            let name = node.name.clone();
            self.turn.failure = Some(PathFailure::panicked(name, &*panic, Some(&block)));
        }
    }
}

/// How often blocks were changed, by the way in which that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edits {
    /// Where they lay.
    pub direct: u64,
    /// In a copy of the whole frame.
    pub copied: u64,
    /// A new block took their place.
    pub appended: u64,
    /// In a copy of the part that was written.
    pub fragmented: u64,
}

/// What leaves an editing filter.
#[derive(Default)]
struct Out {
    rooms: Vec<Room>,
    /// Memory for more of them.
    spare: Vec<Room>,
    /// Blocks that came out beyond those that came in.
    made: u64,
    /// The lengths of those for which there was no memory.
    lost: Vec<u32>,
    edits: Edits,
}

impl Out {
    fn push(&mut self, entry: Entry, order: u32) {
        let added =
            self.rooms.last_mut().is_some_and(|room| room.columns.push_caused(entry, order));
        if !added {
            let mut room = self.spare.pop().unwrap_or_default();
            room.columns.clear();
            room.columns.push_caused(entry, order);
            self.rooms.push(room);
        }
    }
}

/// The lanes whose frames share a byte with another block that is under way (E3).
fn shared(columns: &Columns, paused: &Paused) -> u64 {
    let frame = |columns: &Columns, l: usize| {
        let frame = columns.frame(l);
        let from = frame.place.position();
        (frame.dbuf(), from, from + u64::from(frame.length()))
    };
    if paused.is_empty() {
        // Mostly a batch is alone, and its frames follow each other.
        let mut end = (DbufId::HOLE, 0);
        let mut apart = true;
        for l in 0..columns.len() {
            let (dbuf, from, to) = frame(columns, l);
            apart &= dbuf != end.0 || from >= end.1;
            apart &= l == 0 || dbuf == end.0;
            end = (dbuf, to);
        }
        if apart {
            return 0;
        }
    }
    let mut all: Vec<((DbufId, u64, u64), Option<usize>)> =
        (0..columns.len()).map(|l| (frame(columns, l), Some(l))).collect();
    for other in paused.rooms() {
        all.extend((0..other.columns.len()).map(|l| (frame(&other.columns, l), None)));
    }
    all.retain(|((_, from, to), _)| from < to);
    all.sort_unstable_by_key(|((dbuf, from, _), _)| (dbuf.number(), *from));
    let mut shared = 0;
    // The one that reaches farthest of those before.
    let mut far: Option<((DbufId, u64, u64), Option<usize>)> = None;
    for (range, lane) in all {
        let mark = |lane: Option<usize>| lane.map_or(0, |l| 1 << l);
        match far {
            Some((before, other)) if before.0 == range.0 && range.1 < before.2 => {
                shared |= mark(lane) | mark(other);
                if range.2 > before.2 {
                    far = Some((range, lane));
                }
            }
            _ => far = Some((range, lane)),
        }
    }
    shared
}

/// Where blocks are edited: the memory of the space, for itself.
struct Bench<'b, 'i> {
    intakes: &'b mut [Pool],
    work: &'b mut Pool,
    imported: Option<Taken<'i>>,
    /// Whether those behind take fragments.
    fragments: bool,
}

impl Bench<'_, '_> {
    /// Has the filter look at a block and change it, and puts out what became of it.
    fn block(
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

    fn find(&self, frame: RichPointer) -> &[u8] {
        let pools = self.intakes.iter().chain([&*self.work]);
        let own = pools.into_iter().find(|pool| pool.id() == frame.dbuf());
        match own {
            Some(pool) => pool.bytes(frame.place),
            None => self.imported.as_ref().and_then(|imported| imported.resolve(frame).ok()),
        }
        .unwrap_or_default()
    }
}

/// What a filter left of a block.
struct Done {
    pointer: RichPointer,
    marks: Marks,
    context: ContextLane,
    /// Of a new block: how long it is.
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
            let context = ContextLane { flags, ..done.context };
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
    /// Where the pool itself is being edited.
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

fn amount(columns: &Columns) -> Amount {
    let mut amount = Amount::default();
    (0..columns.len()).for_each(|l| amount.add(columns.pointer(l).length()));
    amount
}

fn add(to: &mut Amount, more: Amount) {
    to.blocks += more.blocks;
    to.bytes += more.bytes;
}
