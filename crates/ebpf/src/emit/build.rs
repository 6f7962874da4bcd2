//! What stands behind a scope: arms, exits, counters, the frame around the pieces. (`lower` has the
//! values.)
//!
//! In: the scope's wishes. Out: a `Program`. Register use: r6 context, r7 first byte of the frame,
//! r8 one past its last linear byte (traffic control and XDP), r9 the region of a tap, r0 to r5
//! scratch.
//!
//! Frames in pieces: at traffic control only the linear part can be read directly. A trusted
//! program first makes `reach` bytes linear, where `reach` is how deep its pieces look, at most
//! `PULL_MAX`; if the kernel cannot, it is unsure. A check that fails where a frame in pieces goes
//! on is unsure, too, never "too short" (CONTRACT 18).
//!
//! Without CAP_PERFMON the verifier refuses to add a register to a packet pointer (tried on 6.18),
//! so hardened programs point at constant offsets only and copy the rest through a helper, which
//! knows fragments; so does every socket filter, which has no packet pointers.

use std::mem;

use super::ending::{Ending, Kept};
use super::handle::{Answer, Base, Brand, Depth, Exit, Value};
use super::link::{LONG, MUCH};
use super::maps::{self, Table};
use super::moved::map_slots;
use super::tap::{self, Desk, Hand};
use super::{Finish, Target, UNSURE, Unfit, Verdict};
use crate::asm::{Asm, Label};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R6, R7, R8, R10, Size, atomic};
use crate::program::{Counter, Line, MapSpec, Part, Place, Program, Word};

/// At most so many bytes are made linear for a program: headers, not payload.
pub(super) const PULL_MAX: u32 = 256;

/// Offsets in `__sk_buff`.
pub(super) mod skb {
    pub(in crate::emit) const LEN: i16 = 0;
    pub(in crate::emit) const TAG_PRESENT: i16 = 20;
    pub(in crate::emit) const TAG_TCI: i16 = 24;
    pub(in crate::emit) const TAG_PROTOCOL: i16 = 28;
    pub(in crate::emit) const CAME_BY: i16 = 36;
    /// The first word of `cb`: what an exam program answers at a control group.
    pub(in crate::emit) const ANSWER: i16 = 48;
    pub(in crate::emit) const DATA: i16 = 76;
    pub(in crate::emit) const DATA_END: i16 = 80;
    pub(in crate::emit) const SOCKET: i16 = 168;
}

/// Offsets in `xdp_md`.
pub(super) mod xdp {
    pub(in crate::emit) const QUEUE: i16 = 16;
}

/// Code that stands aside until the arm around it ends.
struct Stub {
    label: Label,
    task: Task,
    then: Label,
    word: Option<usize>,
}

enum Task {
    /// Add one to this counter.
    Count(usize),
    /// Unsure if the frame has so many bytes, and goes on where the linear part has ended.
    Deep(u32),
}

/// The state of an emission.
pub(super) struct Builder {
    pub(super) target: Target,
    pub(super) asm: Asm,
    unfit: Option<Unfit>,
    /// Stack bytes in use.
    pub(super) top: Depth,
    /// The most stack bytes that were in use until now in this part.
    pub(super) used: Depth,
    /// Which slot r0 to r5 hold.
    pub(super) held: [Option<Depth>; 6],
    stubs: Vec<Stub>,
    /// How far each `AtVar` can be from the beginning of the frame, and since which change of it.
    pub(super) at_reach: Vec<(u32, u16)>,
    /// How often the frame was changed so far.
    pub(super) epoch: u16,
    /// Whether r9 may hold something else than the region of a tap.
    pub(super) region_lost: bool,
    /// How each frame ends, of a program with a desk; and to whom frames went so far.
    ending: Option<Ending>,
    hands: Vec<Hand>,
    /// Whether it takes frames, and has a place for their length.
    takes: bool,
    /// Whether it sends any out by another interface.
    pub(super) sends: bool,
    /// Whether the tag of the frame lies beside it, at XDP.
    pub(super) is_tag_out: bool,
    /// Stack bytes that are never free.
    pub(super) floor: Depth,
    pub(super) reach: u32,
    /// Instructions whose constant is `reach`.
    reach_at: Vec<usize>,
    none: Label,
    unsure: Label,
    counters: Vec<Counter>,
    /// Map n + 1 is table n.
    tables: Vec<Table>,
    finish: Finish,
    /// The parts that have ended, and where their reach stands.
    ended: Vec<(Asm, Vec<Line>, Vec<usize>)>,
    /// How many arms and pieces are open.
    depth: usize,
    /// Where the verifier has last been made to forget.
    forgot_at: usize,
    edits: bool,
    words: Vec<Word>,
    word: Option<usize>,
    source: Vec<Line>,
}

/// What an arm or a piece gives back when it ends.
pub(super) struct Mark {
    top: Depth,
    stubs: usize,
    end: Label,
    word: Option<usize>,
}

/// Stands in a scope's place while an arm has the real one.
impl Default for Builder {
    fn default() -> Self {
        Self::new(Place::Tc.into(), Finish::Answer)
    }
}

impl Builder {
    fn new(target: Target, finish: Finish) -> Self {
        let mut asm = Asm::new();
        let (none, unsure) = (asm.label(), asm.label());
        Self {
            target,
            asm,
            unfit: None,
            top: 0,
            used: 0,
            held: [None; 6],
            stubs: Vec::new(),
            region_lost: false,
            ending: None,
            hands: Vec::new(),
            takes: false,
            sends: false,
            is_tag_out: false,
            floor: 0,
            at_reach: Vec::new(),
            epoch: 0,
            reach: 0,
            reach_at: Vec::new(),
            none,
            unsure,
            counters: Vec::new(),
            tables: Vec::new(),
            finish,
            ended: Vec::new(),
            depth: 0,
            forgot_at: 0,
            edits: false,
            words: Vec::new(),
            word: None,
            source: Vec::new(),
        }
    }

    /// A program up to its first piece, and the exit for what nobody recognises.
    pub(super) fn begin(target: Target, finish: Finish) -> (Box<Self>, Exit<'static>) {
        Self::begin_with(target, finish, None)
    }

    /// A program with a desk up to its first piece, and the exit for what is done with.
    pub(super) fn begin_with_desk(target: Target, ending: Ending) -> (Box<Self>, Exit<'static>) {
        Self::begin_with(target, Finish::Answer, Some(ending))
    }

    fn begin_with(
        target: Target,
        finish: Finish,
        ending: Option<Ending>,
    ) -> (Box<Self>, Exit<'static>) {
        let mut b = Box::new(Self::new(target, finish));
        b.takes = matches!(ending, Some(Ending::Take(_)));
        b.ending = ending;
        b.enter();
        let out = Exit { label: b.none, brand: Brand::default() };
        (b, out)
    }

    /// Where a program notes what it finds out; nowhere in most.
    pub(super) fn desk(&self) -> Desk {
        self.ending.as_ref().map_or(Desk::NONE, Ending::desk)
    }

    /// What a part begins with.
    fn enter(&mut self) {
        self.line();
        self.asm.push(Insn::mov(R6, R1));
        let ending = self.ending.take();
        if let Some(ending) = &ending {
            self.find_desk(ending);
        }
        let tags = ending.as_ref().and_then(Ending::tags);
        self.ending = ending;
        match self.target.place {
            Place::Tc if self.target.hardened => self.pointers(skb::DATA, skb::DATA_END),
            Place::Tc => self.pull(),
            Place::Xdp => self.pointers(0, 4),
            Place::Socket | Place::Cgroup => {}
        }
        if let Some(function) = tags {
            self.ask_for_tag(function);
        }
        self.find_length();
    }

    /// Whether this part is long and may end here.
    pub(super) fn may_end(&self) -> bool {
        let may = self.depth == 0 && !self.target.hardened;
        may && self.stubs.is_empty() && self.asm.here() >= LONG
    }

    /// Whether enough was found out since the last time to be forgotten here.
    pub(super) fn may_forget(&self) -> bool {
        self.depth == 0 && !self.target.hardened && self.asm.here() >= self.forgot_at + MUCH
    }

    /// Knows nothing but the answer: the stack is free, the pointers are anew.
    pub(super) fn forget(&mut self) {
        self.forgot_at = self.asm.here();
        self.top = self.floor;
        self.anew();
    }

    /// How many parts have ended.
    pub(super) fn parts(&self) -> usize {
        self.ended.len()
    }

    /// The maps of rows and of parts.
    pub(super) fn link_maps(&mut self) -> (u32, u32) {
        let rows = self.tables.iter().position(|table| matches!(table, Table::Rows));
        let rows = rows.unwrap_or_else(|| {
            self.tables.extend([Table::Rows, Table::Links]);
            self.tables.len() - 2
        });
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        (rows + 1, rows + 2)
    }

    /// Ends a part and begins the next: with the same exits under the same labels, an empty stack,
    /// and places that are all from before.
    pub(super) fn next_part(&mut self) {
        match self.ending {
            Some(_) => self.end_frame(),
            None => self.exits(),
        }
        let asm = mem::replace(&mut self.asm, Asm::new());
        self.ended.push((asm, mem::take(&mut self.source), mem::take(&mut self.reach_at)));
        (self.none, self.unsure) = (self.asm.label(), self.asm.label());
        self.top = 0;
        self.forgot_at = 0;
        self.hold_none();
        self.epoch = self.epoch.saturating_add(1);
        self.enter();
    }

    /// The program, once its pieces have answered.
    pub(super) fn end(mut self: Box<Self>, answer: Answer<'_>) -> Result<Program, Unfit> {
        self.word = None;
        self.line();
        self.finish(self.finish, answer.class);
        let stubs = mem::take(&mut self.stubs);
        let unsure = self.unsure;
        self.emit_stubs(stubs, unsure);
        self.exits();
        self.assemble()
    }

    /// Leaves without an answer.
    fn exits(&mut self) {
        let place = self.target.place;
        self.word = None;
        self.line();
        let (none, not_sure) = match self.finish {
            Finish::Answer => (0, UNSURE.cast_signed()),
            Finish::Verdict { none, unsure, .. } => (none.value(place), unsure.value(place)),
        };
        for (label, value) in [(self.none, none), (self.unsure, not_sure)] {
            self.bind(label);
            self.asm.push(Insn::alu32(Alu::Mov, R0, value));
            self.tell(self.finish);
            self.asm.push(Insn::exit());
        }
    }

    /// Answers by a word of the context where the return value has a meaning of its own.
    fn tell(&mut self, finish: Finish) {
        if self.target.place == Place::Cgroup && finish == Finish::Answer {
            self.asm.push(Insn::store(Size::W, R6, skb::ANSWER, R0));
            self.asm.push(Insn::mov(R0, Verdict::Pass.value(Place::Cgroup)));
        }
    }

    /// Begins what becomes of frames of which nobody can tell, if there may be any; `tag_out` says
    /// that it is because of a tag. Answers where the body begins.
    pub(super) fn begin_unsure(&mut self, tag_out: bool) -> Option<Label> {
        let unsure = self.unsure;
        if !self.asm.is_used(unsure) {
            return None;
        }
        let known = self.asm.label();
        self.asm.jump(known);
        self.bind(unsure);
        self.is_tag_out = tag_out;
        Some(known)
    }

    /// Begins the body.
    pub(super) fn begin_body(&mut self, known: Label, done: Label) {
        self.asm.jump(done);
        self.bind(known);
        self.is_tag_out = false;
        self.top = self.floor;
        self.unsure = self.asm.label();
    }

    /// A frame goes to this one.
    pub(super) fn hands_to(&mut self, hand: Hand) {
        if !self.hands.contains(&hand) {
            self.hands.push(hand);
        }
    }

    /// The program with a desk, once its body has ended.
    pub(super) fn end_with_desk(mut self: Box<Self>) -> Result<Program, Unfit> {
        self.word = None;
        self.line();
        let (stubs, done) = (mem::take(&mut self.stubs), self.none);
        self.emit_stubs(stubs, done);
        self.end_frame();
        self.assemble()
    }

    /// What becomes of a frame at the end of a part.
    fn end_frame(&mut self) {
        self.word = None;
        self.line();
        // Nobody comes here unsure: every processor has a row for what waits between parts.
        for label in [self.unsure, self.none] {
            self.bind(label);
        }
        let (ending, hands) = (self.ending.take(), self.hands.clone());
        match &ending {
            None => {}
            Some(Ending::Tap(joint)) => self.hand_over(joint, &hands),
            Some(Ending::Take(take)) => self.lead(take, &hands),
        }
        self.ending = ending;
    }

    fn assemble(self: Box<Self>) -> Result<Program, Unfit> {
        let pulled = self.reach.min(PULL_MAX).cast_signed();
        if let Some(unfit) = self.unfit {
            return Err(unfit);
        }
        let last = (self.asm, self.source, self.reach_at);
        let own = self.tables.len() + usize::from(!self.counters.is_empty());
        let mut parts = Vec::new();
        for (mut asm, source, reach_at) in self.ended.into_iter().chain([last]) {
            reach_at.into_iter().for_each(|at| asm.patch(at, pulled));
            let mut code = asm.finish().map_err(|mistake| Unfit::new(mistake.to_string()))?;
            if self.counters.is_empty() {
                maps::number_from_zero(&mut code);
            }
            tap::number_given(&mut code, own);
            parts.push(Part { code, source });
        }
        let Part { code, source } = parts.remove(0);
        let mut maps = Vec::new();
        if !self.counters.is_empty() {
            let bytes = self.counters.len() * size_of::<u64>();
            let value_size = u32::try_from(bytes).map_err(|_| Unfit::new("too many counters"))?;
            maps.push(MapSpec::array("counters", value_size));
        }
        maps.extend(self.tables.iter().map(|table| table.spec(&self.words, parts.len())));
        let Self { target, counters, words, reach, edits, .. } = *self;
        let Target { place, hardened, .. } = target;
        Ok(Program { place, hardened, edits, code, maps, counters, words, source, parts, reach })
    }

    /// Leaves with the last answer.
    fn finish(&mut self, finish: Finish, class: Value<'_>) {
        let place = self.target.place;
        self.fetch(class, R0);
        if let Finish::Verdict { found, none, .. } = finish {
            let answered = self.asm.label();
            self.asm.push(Insn::mov(R1, R0));
            self.asm.push(Insn::alu32(Alu::Mov, R0, found.value(place)));
            self.asm.jump_if(Cond::Ne, R1, 0, answered);
            self.asm.push(Insn::alu32(Alu::Mov, R0, none.value(place)));
            self.bind(answered);
        }
        self.tell(finish);
        self.asm.push(Insn::exit());
    }

    /// The packet pointers anew, after something that may have moved the frame.
    pub(super) fn changed(&mut self) {
        self.edits = true;
        self.anew();
    }

    /// The packet pointers as if nobody had checked anything, and all places from before.
    pub(super) fn anew(&mut self) {
        match self.target.place {
            Place::Tc => self.pointers(skb::DATA, skb::DATA_END),
            Place::Xdp => self.pointers(0, 4),
            Place::Socket | Place::Cgroup => {}
        }
        self.hold_none();
        self.epoch = self.epoch.saturating_add(1);
    }

    fn pointers(&mut self, data: i16, data_end: i16) {
        self.asm.push(Insn::load(Size::W, R7, R6, data));
        self.asm.push(Insn::load(Size::W, R8, R6, data_end));
    }

    /// Makes the first min(length, reach) bytes linear.
    fn pull(&mut self) {
        let (short, ready) = (self.asm.label(), self.asm.label());
        self.pointers(skb::DATA, skb::DATA_END);
        self.asm.push(Insn::load(Size::W, R2, R6, skb::LEN));
        self.reach_at.push(self.asm.here());
        self.asm.jump_if(Cond::Le, R2, 0, short);
        self.reach_at.push(self.asm.here());
        self.asm.push(Insn::mov(R2, 0));
        self.bind(short);
        self.asm.push(Insn::mov(R1, R7));
        self.asm.push(Insn::alu(Alu::Add, R1, R2));
        self.asm.jump_if(Cond::Le, R1, R8, ready);
        self.asm.push(Insn::mov(R1, R6));
        self.call(Helper::SkbPullData);
        self.asm.jump_if(Cond::Ne, R0, 0, self.unsure);
        self.pointers(skb::DATA, skb::DATA_END);
        self.bind(ready);
    }

    // ---- scopes

    /// Opens an arm; `end` is bound where it closes.
    pub(super) fn open(&mut self) -> Mark {
        let end = self.asm.label();
        self.depth += 1;
        Mark { top: self.top, stubs: self.stubs.len(), end, word: self.word }
    }

    pub(super) fn end_of(mark: &Mark) -> Label {
        mark.end
    }

    /// Closes an arm: what stood aside, then its end. Its slots are free again.
    pub(super) fn close(&mut self, mark: Mark) {
        self.depth = self.depth.saturating_sub(1);
        let stubs = self.stubs.split_off(mark.stubs.min(self.stubs.len()));
        self.emit_stubs(stubs, mark.end);
        self.bind(mark.end);
        self.top = mark.top;
        self.held = [None; 6];
        self.word = mark.word;
        self.line();
    }

    /// Closes a piece: as an arm, but its answer is carried over, packed at the bottom of its
    /// slots.
    pub(super) fn close_with(&mut self, mark: Mark, answer: Answer<'_>) -> Answer<'static> {
        let (moved, top) = self.packed(mark.top, answer);
        self.close(mark);
        self.top = top;
        moved
    }

    /// The answer, its slots above `floor` packed there, and how far they reach.
    fn packed(&mut self, floor: Depth, answer: Answer<'_>) -> (Answer<'static>, Depth) {
        let mut old = Vec::new();
        map_slots(answer, |slot| {
            old.push(slot);
            slot
        });
        old.retain(|slot| *slot > floor);
        old.sort_unstable();
        old.dedup();
        let place_of = |slot: Depth| match old.binary_search(&slot) {
            Ok(index) => floor + (Depth::try_from(index).unwrap_or(Depth::MAX / 8) + 1) * 8,
            Err(_) => slot,
        };
        // Ascending, each at or below its old place: nothing is overwritten before it is moved.
        for slot in old.iter().copied().filter(|slot| place_of(*slot) != *slot) {
            let reg = self.register(slot, R0);
            self.asm.push(Insn::store(Size::DW, R10, -place_of(slot), reg));
            self.held = [None; 6];
        }
        let top = old.last().map_or(floor, |last| place_of(*last));
        (map_slots(answer, place_of), top)
    }

    /// Nothing outlives this but the answer, unless an arm is open.
    pub(super) fn pack(&mut self, answer: Answer<'_>) -> Answer<'static> {
        let floor = if self.depth == 0 { self.floor } else { self.top };
        let (moved, top) = self.packed(floor, answer);
        self.top = top;
        self.hold_none();
        moved
    }

    /// From here on the code belongs to this word.
    pub(super) fn word(&mut self, word: Word) {
        let known = self.words.iter().position(|known| *known == word);
        self.word = Some(known.unwrap_or(self.words.len()));
        if known.is_none() {
            self.words.push(word);
        }
        self.line();
    }

    fn line(&mut self) {
        let line = Line { from: self.asm.here(), word: self.word };
        self.source.pop_if(|last| last.from == line.from);
        if self.source.last().is_none_or(|last| last.word != line.word) {
            self.source.push(line);
        }
    }

    // ---- exits

    pub(super) fn unsure(&self) -> Label {
        self.unsure
    }

    /// From here on what cannot be told goes there.
    pub(super) fn doubt(&mut self, unsure: Label) {
        self.unsure = unsure;
    }

    /// An exit that counts and goes on to `then`.
    pub(super) fn counted(&mut self, name: &str, then: Label) -> Label {
        let task = Task::Count(self.counter(name));
        self.stub(task, then)
    }

    /// The exit of a direct check of the bytes up to `end`, or, behind a computed place, up to
    /// there at most.
    pub(super) fn missing(&mut self, base: Base, end: u32, miss: Label) -> Label {
        let near = match self.target.place {
            Place::Socket | Place::Cgroup => return miss,
            // The frame ends where its only buffer does.
            Place::Xdp if self.target.single => return miss,
            Place::Tc if self.target.hardened => 0,
            Place::Tc | Place::Xdp => PULL_MAX,
        };
        if end <= near {
            return miss;
        }
        self.stub(Task::Deep(if base == Base::Frame { end } else { near + 1 }), miss)
    }

    fn stub(&mut self, task: Task, then: Label) -> Label {
        let label = self.asm.label();
        self.stubs.push(Stub { label, task, then, word: self.word });
        label
    }

    /// Later stubs first: each leads to an older one or outward, so forward.
    fn emit_stubs(&mut self, stubs: Vec<Stub>, end: Label) {
        if stubs.iter().any(|stub| self.asm.is_used(stub.label)) {
            self.asm.jump(end);
        }
        for stub in stubs.into_iter().rev() {
            if !self.asm.is_used(stub.label) {
                continue;
            }
            self.word = stub.word;
            self.line();
            self.bind(stub.label);
            match stub.task {
                Task::Count(counter) => self.count(counter),
                Task::Deep(length) => {
                    self.frame_length();
                    self.asm.jump_if(Cond::Ge, R0, length.cast_signed(), self.unsure);
                }
            }
            self.asm.jump(stub.then);
        }
    }

    /// How long the frame is, all pieces of it: into r0.
    pub(super) fn frame_length(&mut self) {
        if self.target.place != Place::Xdp {
            self.asm.push(Insn::load(Size::W, R0, R6, skb::LEN));
        } else if self.is_length_a_difference() {
            self.asm.push(Insn::mov(R0, R8));
            self.asm.push(Insn::alu(Alu::Sub, R0, R7));
        } else if self.is_length_kept() {
            self.asm.push(Insn::load(Size::DW, R0, R10, Kept::LENGTH));
        } else {
            self.asm.push(Insn::mov(R1, R6));
            self.call(Helper::XdpBuffLen);
        }
        self.hold(R0, None);
    }

    /// Whether the frame is as long as the way from its first byte to its last linear one; only
    /// whoever has CAP_PERFMON may ask for that.
    fn is_length_a_difference(&self) -> bool {
        self.target.place == Place::Xdp && self.target.single && !self.target.hardened
    }

    /// Whether the length of the frame is found once, for all of the program.
    pub(super) fn is_length_kept(&self) -> bool {
        self.takes && !self.is_length_a_difference()
    }

    // ---- counters

    pub(super) fn counter(&mut self, name: &str) -> usize {
        let known = |c: &Counter| c.word == self.word && c.name == name;
        self.counters.iter().position(known).unwrap_or_else(|| {
            self.counters.push(Counter { word: self.word, name: name.to_owned() });
            self.counters.len() - 1
        })
    }

    pub(super) fn count(&mut self, counter: usize) {
        let offset = u32::try_from(counter * size_of::<u64>()).unwrap_or(u32::MAX);
        self.asm.push_wide(Insn::load_map_value(R1, 0, offset));
        self.asm.push(Insn::mov(R2, 1));
        self.asm.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
        self.hold(R1, None);
        self.hold(R2, None);
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.asm.bind(label);
        self.held = [None; 6];
    }

    /// The map of the state of this word.
    pub(super) fn state(&mut self, size: u16) -> u32 {
        // A piece that stands at two places of a program is one filter with one state.
        let own = |table: &Table| match table {
            Table::State(word, bytes) => (*word, *bytes) == (self.word, size),
            _ => false,
        };
        let known = self.tables.iter().position(own).filter(|_| self.word.is_some());
        let at = known.unwrap_or_else(|| {
            self.tables.push(Table::State(self.word, size));
            self.tables.len() - 1
        });
        u32::try_from(at + 1).unwrap_or(u32::MAX)
    }

    /// r0 to r5 hold no slot any more.
    pub(super) fn hold_none(&mut self) {
        self.held = [None; 6];
    }

    /// Remembers the first reason why this cannot be a program.
    pub(super) fn refuse(&mut self, unfit: Unfit) {
        self.unfit.get_or_insert(unfit);
    }
}
