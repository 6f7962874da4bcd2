//! The tap: a program that hands frames to processes through rings, and counts.
//!
//! In: which memory the rings are, and a body that tallies and hands over. Out: a [`Program`] that
//! lets every frame by. A frame that was handed over, be it to several, is copied once for each
//! owner, behind everything else, into that owner's ring of its processor; beside it lies a pointer
//! for each of those to whom it goes. [SL §5.3, §6.2; CONTRACT 21, 29]
//!
//! Rings and bells are maps that somebody else made: in the code they have the numbers behind those
//! of the program's own maps. Of each a processor has a region ([`at`]), in which its program is
//! alone: nothing there is atomic but what readers must see in order. Which frames are handed over
//! to whom is kept in memory too ([`Desk`]), never in a register: what the verifier does not follow
//! does not double the ways that it goes.
//!
//! A [`Tap`] has one memory for all of this. In a [`Joint`] several lines of several owners share a
//! program: what it notes for itself, the frames of each owner and the pointers of each line are
//! maps of their own, so that each can be given to those who may see it, and outlives the program.
//!
//! What lies where is in [`layout`], and what a program is told of its memory in [`memory`]. How a
//! frame ends is in [`ring`], and when it is not copied because nobody comes, in [`nobody`].
//! Ways of which a frame takes at most one share a place on the desk and a reader ([`shared`]).

mod layout;
mod memory;
mod nobody;
mod ring;
mod shared;

pub(super) use layout::WAY;
pub use layout::{HANDED_MAX, POINTER, READERS_MAX, TALLIES_MAX, WAYS_MAX, at, record};
pub use memory::{Desk, Joint, Lead, Outlet, Owner, Tap, WakePolicy, Wakes};
pub(super) use shared::{Place, places};

use super::build::Builder;
use super::ending::{Ending, Kept, made};
use super::handle::{Base, Exit, Layers, Num, Value};
use super::own;
use super::scope::{Meta, Scope};
use super::{Target, Unfit, Verdict};
use crate::insn::{
    Alu, Cond, Helper, Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE, R0, R1, R7, R9, R10, Reg, Size,
};
use crate::program::Program;

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hand {
    /// [`HANDED_MAX`] times the number of the outlet, and below that on from there: where it is
    /// noted that a frame goes there, and what is seen of it.
    pub number: u16,
    /// Which reader of the outlet gets the pointer.
    pub reader: u8,
    /// What the pointer calls it.
    pub way: u32,
    /// Whether other ways have the same number and the same reader. A frame must not take two of
    /// them, and the tallies of those that failed must be as far apart as the ways.
    pub shared: bool,
    /// The tally of frames that were to go there and could not be copied, if they are counted.
    pub failed: Option<u16>,
}

/// Makes a tap. `body` is given the layers of an untouched frame, and the exit for what is done
/// with. `unsure` says what becomes of frames of which not even the first bytes can be read; it
/// must not read any.
pub fn tap(
    target: impl Into<Target>,
    tap: &Tap,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    joint(target, &tap.into(), body, unsure)
}

/// Makes a tap for several lines; see [`tap`].
pub fn joint(
    target: impl Into<Target>,
    joint: &Joint,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let target = target.into();
    own::stands(target.place, joint.own.as_ref())?;
    made(target, Ending::Tap(joint.clone()), body, unsure)
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Adds one block of so many bytes to a tally of a tap.
    pub fn tally(&mut self, number: u16, bytes: Num<'s>) {
        let b = self.builder();
        let desk = b.desk();
        if number >= desk.tallies_max {
            return b.refuse(Unfit::new("there is no room for more tallies"));
        }
        let place = desk.tallies + 16 * number.cast_signed();
        b.find_region();
        b.fetch(bytes.into(), R0);
        for (word, amount) in [(place, None), (place + 8, Some(R0))] {
            b.asm.push(Insn::load(Size::DW, R1, R9, word));
            match amount {
                None => b.asm.push(Insn::alu(Alu::Add, R1, 1)),
                Some(amount) => b.asm.push(Insn::alu(Alu::Add, R1, amount)),
            }
            b.asm.push(Insn::store(Size::DW, R9, word, R1));
        }
        b.hold(R1, None);
    }

    /// Has the frame handed over, seen as `on` says and with its class.
    pub fn hand_over(&mut self, hand: Hand, on: Layers<'s>, class: Value<'s>) {
        let length = self.viewed(on);
        let b = self.builder();
        let desk = b.desk();
        let (outlet, bit) = hand.place();
        let beyond = u32::from(hand.reader) >= READERS_MAX || hand.shared && hand.way >= WAYS_MAX;
        if outlet >= desk.outlets || beyond {
            return b.refuse(Unfit::new("it is handed over on too many ways"));
        }
        b.hands_to(hand);
        let place = desk.handed(hand.number);
        b.find_region();
        b.fetch(class, R1);
        b.asm.push(Insn::store(Size::W, R9, place + 4, R1));
        b.fetch(length.into(), R0);
        b.asm.push(Insn::store(Size::W, R9, place, R0));
        match on.at.base {
            Base::Frame => b.asm.push(Insn::mov(R1, i32::from(on.at.off))),
            Base::Slot(_) => {
                let counts = b.counts();
                b.fetch_at(on.at, R1);
                if !counts {
                    b.asm.push(Insn::alu(Alu::Sub, R1, R7));
                }
            }
        }
        b.asm.push(Insn::store(Size::W, R9, place + 8, R1));
        b.asm.push(Insn::store(Size::W, R9, place + WAY, hand.way.cast_signed()));
        b.asm.push(Insn::load(Size::DW, R1, R9, desk.word(outlet)));
        b.asm.push(Insn::alu(Alu::Or, R1, 1 << bit));
        b.asm.push(Insn::store(Size::DW, R9, desk.word(outlet), R1));
        b.hold(R1, None);
    }

    /// Sets or clears a mark, of which the verifier knows nothing.
    pub fn mark(&mut self, number: u16, set: bool) {
        let b = self.builder();
        if let Some(place) = b.mark_at(number) {
            b.find_region();
            b.asm.push(Insn::store(Size::DW, R9, place, i32::from(set)));
        }
    }

    /// Goes on only if a mark is set.
    pub fn only_marked(&mut self, number: u16, miss: Exit<'s>) {
        let b = self.builder();
        if let Some(place) = b.mark_at(number) {
            b.find_region();
            b.asm.push(Insn::load(Size::DW, R1, R9, place));
            b.hold(R1, None);
            b.asm.jump_if(Cond::Eq, R1, 0, miss.label);
        }
    }

    /// How many bytes are in view. What lies beside the frame is in view until a tag was read.
    pub fn viewed(&mut self, on: Layers<'s>) -> Num<'s> {
        let rest = self.rest(on.at);
        match on.length {
            Some(length) => self.smaller(length, rest),
            // At XDP that is known, and nobody else is asked.
            None if on.tags == 0 && self.builder().is_tag_out => self.add(rest, 4),
            None if on.tags == 0 && self.has_tag_beside() => {
                let present = self.meta(Meta::TagPresent);
                let beside = self.shl(present, 2);
                self.add(rest, beside)
            }
            None => rest,
        }
    }

    /// Emits an arm in which what cannot be told leaves through the arm's own exit, to what follows
    /// here, in the place of everybody's.
    pub fn doubting<R>(&mut self, f: impl for<'i> FnOnce(&mut Scope<'i, 's>, Exit<'i>) -> R) -> R {
        let outer = self.builder().unsure();
        self.arm(|inner, exit| {
            inner.builder().doubt(exit.label);
            let result = f(inner, exit);
            inner.builder().doubt(outer);
            result
        })
    }
}

impl Hand {
    /// The outlet, and which bit of its word.
    fn place(self) -> (u16, u32) {
        let number = u32::from(self.number);
        (self.number / HANDED_MAX as u16, number % HANDED_MAX)
    }
}

/// Whether a view that these layers describe begins behind a tag that may lie beside the frame:
/// then it begins as much later in the frame with the tag in its place.
#[must_use]
pub const fn is_behind_tag(on: &Layers<'_>) -> bool {
    on.tags > 0 || on.length.is_some()
}

/// So many rings, as powers of two, go by while nobody takes a bell out before frames are only
/// counted.
pub const UNTAKEN: u32 = 4;

/// The number of the first map that somebody else made, until the program's own are counted.
pub(super) const GIVEN: u32 = 0x7000;

/// Whether a number is that of a map that somebody else made.
pub(super) const fn is_given(number: i32) -> bool {
    number >= GIVEN.cast_signed()
}

/// Gives the maps that somebody else made the numbers behind those of the program's own maps.
pub(super) fn number_given(code: &mut [Insn], own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        let map = matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE);
        if first && map && is_given(insn.imm) {
            insn.imm += own - GIVEN.cast_signed();
        }
        wide = first;
    }
}

impl Builder {
    /// r9 points at the desk of this processor.
    pub(super) fn find_desk(&mut self, ending: &Ending) {
        let desk = ending.desk();
        let known = self.asm.label();
        if let Ending::Tap(Joint { own: Some(own), .. }) = ending {
            self.only_own(own);
        }
        self.asm.push(Insn::call(Helper::CpuId));
        self.asm.jump_if(Cond::Lt, R0, ending.processors().cast_signed(), known);
        // All that there can be have one.
        self.asm.push(Insn::mov(R0, Verdict::Pass.value(self.target.place)));
        self.asm.push(Insn::exit());
        self.asm.bind(known);
        if let Ending::Tap(Joint { own: Some(own), cpus, .. }) = ending {
            self.take_seat(own, *cpus);
        }
        if matches!(ending, Ending::Tap(joint) if joint.own.is_some() || !joint.is_plain()) {
            self.asm.push(Insn::store(Size::DW, R10, Kept::CPU, R0));
        }
        self.asm.push(Insn::alu(Alu::Mul, R0, desk.stride.cast_signed()));
        self.asm.push_wide(Insn::load_map_value(R9, GIVEN, 0));
        self.asm.push(Insn::alu(Alu::Add, R9, R0));
        for outlet in 0..desk.outlets {
            self.asm.push(Insn::store(Size::DW, R9, desk.word(outlet), 0));
        }
        if let Ending::Tap(joint) = ending {
            for lead in joint.leads.iter().filter(|lead| lead.mark < desk.marks_max) {
                self.asm.push(Insn::store(Size::DW, R9, desk.mark(lead.mark), 0));
            }
        }
        if matches!(ending, Ending::Take(_)) {
            self.asm.push(Insn::store(Size::W, R9, at::DEVICE, 0));
        }
        self.hold_none();
        self.slots(Kept::SLOTS);
        self.floor = self.top;
        self.asm.push(Insn::store(Size::DW, R10, Kept::DESK, R9));
    }

    /// Has the desk in r9 again where somebody may have used that for something else.
    pub(super) fn find_region(&mut self) {
        if self.region_lost {
            self.asm.push(Insn::load(Size::DW, R9, R10, Kept::DESK));
        }
    }

    /// Has the region of this processor in a map in `reg`, or says where it is already.
    fn region_of(&mut self, map: u32, stride: u32, reg: Reg) -> Reg {
        if map == 0 {
            return R9;
        }
        self.asm.push(Insn::load(Size::DW, R0, R10, Kept::CPU));
        self.asm.push(Insn::alu(Alu::Mul, R0, stride.cast_signed()));
        self.asm.push_wide(Insn::load_map_value(reg, GIVEN + map, 0));
        self.asm.push(Insn::alu(Alu::Add, reg, R0));
        reg
    }

    fn mark_at(&mut self, number: u16) -> Option<i16> {
        let desk = self.desk();
        if number >= desk.marks_max {
            self.refuse(Unfit::new("there is no room for more marks"));
            return None;
        }
        Some(desk.mark(number))
    }

    pub(super) fn add_one(&mut self, region: Reg, word: i16) {
        self.asm.push(Insn::load(Size::DW, R1, region, word));
        self.asm.push(Insn::alu(Alu::Add, R1, 1));
        self.asm.push(Insn::store(Size::DW, region, word, R1));
    }
}
