//! What stands behind a scope: the state of an emission, its words, counters and maps. Beside it:
//! the frame as a program finds it (`frame`), arms and exits (`arms`), how parts and programs end
//! (`parts`); `lower` has the values.
//!
//! In: the scope's wishes. Out: a `Program`. Register use: r6 context, r7 first byte of the frame,
//! r8 one past its last linear byte (traffic control and XDP), r9 the region of a tap, r0 to r5
//! scratch.

mod arms;
mod frame;
mod parts;

pub(super) use frame::{PULL_MAX, skb, xdp};

use super::ending::Ending;
use super::handle::{Brand, Depth, Exit};
use super::maps::Table;
use super::tap::{Desk, Hand};
use super::{Finish, Target, Unfit};
use crate::asm::{Asm, Label};
use crate::insn::{Insn, R1, R2, Size, atomic};
use crate::program::{Counter, Line, Place, Word};
use arms::Stub;

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

    /// A frame goes to this one.
    pub(super) fn hands_to(&mut self, hand: Hand) {
        if !self.hands.contains(&hand) {
            self.hands.push(hand);
        }
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

    pub(super) fn unsure(&self) -> Label {
        self.unsure
    }

    /// From here on what cannot be told goes there.
    pub(super) fn doubt(&mut self, unsure: Label) {
        self.unsure = unsure;
    }

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
