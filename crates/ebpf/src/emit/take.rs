//! Taking: a program at XDP that decides what becomes of frames which the host does not get.
//!
//! In: where it counts, and a body as that of a tap. Out: a [`Program`] that ends each frame: led
//! to the socket of its queue if it was handed over, sent out by another interface if the body says
//! so, dropped if not. What those who take it up must know stands in front of the frame
//! ([`front`]); nothing is copied here. [SL §5.5; CONTRACT 2, 3]
//!
//! In front of it, and not in the metadata of the frame, because every driver makes room there, and
//! what stands in the frame is never that of another frame.
//!
//! Maps that somebody else made: in the code their numbers are, behind those of the program's own
//! maps, memory for counting (as that of a tap), nothing, sockets by queue.
//!
//! A frame leaves by the number of its interface, not by a map of interfaces: a program that asks
//! its driver for tags may use none.

use super::build::{Builder, xdp};
use super::ending::{Ending, Kept, made};
use super::handle::{Exit, Layers};
use super::scope::Scope;
use super::tap::{Desk, GIVEN, HANDED_MAX, Hand, Place, WAY, at, places};
use super::{Target, Unfit};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R7, R8, R9, R10, Size};
use crate::program::{self, Program};

/// What a program that takes must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// How many processors have a region in which it counts.
    pub cpus: u32,
    /// Bytes of a region.
    pub stride: u32,
    /// The function of the kernel that tells of a tag which the driver took out of a frame
    /// (`bpf_xdp_metadata_rx_vlan_tag`), by the number of its type; none: nobody is asked.
    pub tags: Option<i32>,
    /// To how many it hands a frame over, at most: for each there is room in front of it.
    pub hands: u16,
}

impl Take {
    /// Where such a program counts.
    #[must_use]
    pub const fn desk(&self) -> Desk {
        Desk::plain(self.stride)
    }
}

/// What stands in front of a frame that was handed over: for each number that a [`Hand`] has,
/// [`front::HAND`] bytes; the numbers of the ways, [`front::WAY`] bytes each, up to a multiple of
/// eight; then those to whom it goes, a bit each (eight bytes); the tag that the driver took out
/// (1 << 32, protocol as in the frame, tag; eight bytes, 0 if none); and the time of the monotonic
/// clock (eight bytes).
pub mod front {
    /// Class (four bytes), where the view begins (two), how much lies behind it (two).
    pub const HAND: u32 = 8;
    /// The number of a way.
    pub const WAY: u32 = 2;
    /// What follows the ways.
    pub const REST: u32 = 24;

    /// Where the rest begins, for so many hands.
    #[must_use]
    pub const fn rest(hands: u32) -> u32 {
        hands * HAND + (hands * WAY).next_multiple_of(8)
    }

    /// All of it, for so many hands.
    #[must_use]
    pub const fn bytes(hands: u32) -> u32 {
        rest(hands) + REST
    }
}

/// To so many at most a taken frame can go: what stands in front of it must fit before the frame.
pub const LED_MAX: u16 = 16;
const _: () = assert!((LED_MAX as u32) < HANDED_MAX);

/// Makes a program that takes. `body` and `unsure` are those of a [`tap`](super::tap::tap); what
/// the driver took a tag out of is unsure.
pub fn take(
    target: impl Into<Target>,
    take: &Take,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let target = target.into();
    if target.place != program::Place::Xdp || !target.takes {
        return Err(Unfit::new("frames are taken at XDP"));
    }
    if take.hands > LED_MAX {
        return Err(Unfit::new("what is taken leaves the kernel on too many ways"));
    }
    made(target, Ending::Take(*take), body, unsure)
}

/// The number of a map that somebody else made.
const SOCKETS: u32 = GIVEN + 2;

/// What becomes of a frame.
const DROP: i32 = 1;
const REDIRECT: i32 = 4;

impl Scope<'_, '_> {
    /// Has the frame sent out by the interface of this number. It goes nowhere else.
    pub fn send_out(&mut self, interface: u32) {
        let target = self.builder().target;
        if target.place != program::Place::Xdp || !target.takes {
            let why = "only a frame that was taken leaves by another interface (`take`)";
            return self.builder().refuse(Unfit::new(why));
        }
        let b = self.builder();
        b.find_region();
        b.sends = true;
        b.asm.push(Insn::store(Size::W, R9, at::DEVICE, interface.cast_signed()));
    }
}

impl Builder {
    /// Has the tag of the frame on the stack if the driver took it out; then nobody can tell.
    pub(super) fn ask_for_tag(&mut self, function: i32) {
        const SCRATCH: i16 = Kept::LENGTH;
        let none = self.asm.label();
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R10, Kept::TAG, 0));
        asm.push(Insn::store(Size::DW, R10, SCRATCH, 0));
        asm.push(Insn::mov(R1, R6));
        for (to, at) in [(R2, SCRATCH + 6), (R3, SCRATCH + 4)] {
            asm.push(Insn::mov(to, R10));
            asm.push(Insn::alu(Alu::Add, to, i32::from(at)));
        }
        asm.push(Insn::call_kernel(function));
        asm.jump_if(Cond::Ne, R0, 0, none);
        asm.push(Insn::load(Size::H, R1, R10, SCRATCH + 6));
        asm.push(Insn::alu(Alu::Shl, R1, 16));
        asm.push(Insn::load(Size::H, R2, R10, SCRATCH + 4));
        asm.push(Insn::alu(Alu::Or, R1, R2));
        asm.push(Insn::mov(R2, 1));
        asm.push(Insn::alu(Alu::Shl, R2, 32));
        asm.push(Insn::alu(Alu::Or, R1, R2));
        asm.push(Insn::store(Size::DW, R10, Kept::TAG, R1));
        self.find_length();
        let unsure = self.unsure();
        self.asm.jump(unsure);
        self.bind(none);
    }

    /// Has the length of the frame on the stack, where the kernel has to be asked for it.
    pub(super) fn find_length(&mut self) {
        if self.is_length_kept() {
            self.asm.push(Insn::mov(R1, R6));
            self.call(Helper::XdpBuffLen);
            self.asm.push(Insn::store(Size::DW, R10, Kept::LENGTH, R0));
        }
    }

    /// Ends a frame.
    pub(super) fn lead(&mut self, take: &Take, hands: &[Hand]) {
        let (drop, failed) = (self.asm.label(), self.asm.label());
        self.find_region();
        if self.sends {
            self.send();
        }
        if !hands.is_empty() {
            self.asm.push(Insn::load(Size::DW, R1, R9, at::CHOSEN));
            self.asm.jump_if(Cond::Eq, R1, 0, drop);
            self.write_front(take, hands, failed);
            self.asm.push_wide(Insn::load_map(R1, SOCKETS));
            self.asm.push(Insn::load(Size::W, R2, R6, xdp::QUEUE));
            self.asm.push(Insn::mov(R3, DROP));
            self.asm.push(Insn::call(Helper::RedirectMap));
            self.asm.jump_if(Cond::Ne, R0, REDIRECT, failed);
            self.asm.push(Insn::exit());
            self.asm.bind(failed);
            self.add_one(R9, at::FAILED);
            self.count_failed(take.desk(), at::CHOSEN, hands);
        }
        self.asm.bind(drop);
        self.asm.push(Insn::mov(R0, DROP));
        self.asm.push(Insn::exit());
    }

    /// Sends the frame out by the interface that the body named, if it did.
    fn send(&mut self) {
        let here = self.asm.label();
        self.asm.push(Insn::load(Size::W, R1, R9, at::DEVICE));
        self.asm.jump_if(Cond::Eq, R1, 0, here);
        self.asm.push(Insn::mov(R2, 0));
        self.asm.push(Insn::call(Helper::Redirect));
        self.asm.push(Insn::exit());
        self.asm.bind(here);
    }

    /// Makes room in front of the frame and writes there what those must know to whom it goes.
    fn write_front(&mut self, take: &Take, hands: &[Hand], failed: crate::asm::Label) {
        let count = u32::from(take.hands);
        let bytes = front::bytes(count).cast_signed();
        let place = |at: u32| i16::try_from(at).unwrap_or(i16::MAX);
        self.frame_length();
        let inside = self.asm.label();
        let asm = &mut self.asm;
        if take.tags.is_some() {
            // The tag goes back to its place.
            asm.push(Insn::load(Size::DW, R1, R10, Kept::TAG));
            asm.jump_if(Cond::Eq, R1, 0, inside);
            asm.push(Insn::alu(Alu::Add, R0, 4));
            asm.bind(inside);
        }
        asm.push(Insn::store(Size::DW, R10, Kept::LENGTH, R0));
        asm.push(Insn::call(Helper::KtimeNs));
        asm.push(Insn::store(Size::DW, R10, NOW, R0));
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, -bytes));
        asm.push(Insn::call(Helper::XdpAdjustHead));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.push(Insn::load(Size::W, R7, R6, 0));
        asm.push(Insn::load(Size::W, R2, R6, 4));
        asm.push(Insn::mov(R3, R7));
        asm.push(Insn::alu(Alu::Add, R3, bytes));
        asm.jump_if(Cond::Gt, R3, R2, failed);
        asm.push(Insn::load(Size::DW, R8, R10, Kept::LENGTH));
        for Place { first: hand, .. } in places(hands) {
            if hand.number >= take.hands {
                continue;
            }
            let seen = at::HANDED + 16 * hand.number.cast_signed();
            let to = place(u32::from(hand.number) * front::HAND);
            asm.push(Insn::load(Size::W, R1, R9, seen + 4));
            asm.push(Insn::store(Size::W, R7, to, R1));
            asm.push(Insn::load(Size::W, R1, R9, seen + 8));
            asm.push(Insn::store(Size::H, R7, to + 4, R1));
            asm.push(Insn::load(Size::W, R2, R9, seen));
            asm.push(Insn::alu(Alu::Add, R1, R2));
            asm.push(Insn::mov(R2, R8));
            asm.push(Insn::alu(Alu::Sub, R2, R1));
            asm.push(Insn::store(Size::H, R7, to + 6, R2));
            let way = place(count * front::HAND + u32::from(hand.number) * front::WAY);
            asm.push(Insn::load(Size::W, R1, R9, seen + WAY));
            asm.push(Insn::store(Size::H, R7, way, R1));
        }
        let rest = place(front::rest(count));
        asm.push(Insn::load(Size::DW, R1, R9, at::CHOSEN));
        asm.push(Insn::store(Size::DW, R7, rest, R1));
        match take.tags {
            Some(_) => asm.push(Insn::load(Size::DW, R1, R10, Kept::TAG)),
            None => asm.push(Insn::mov(R1, 0)),
        }
        asm.push(Insn::store(Size::DW, R7, rest + 8, R1));
        asm.push(Insn::load(Size::DW, R1, R10, NOW));
        asm.push(Insn::store(Size::DW, R7, rest + 16, R1));
    }
}

/// Where the time lies, once the body has ended.
const NOW: i16 = -32;
