//! Ways of which a frame takes at most one: they share a place on the desk, a bit and a reader, so
//! that a frame costs the same however many there are. [CONTRACT 18, 19]
//!
//! In: ways, each with the number of its place. Out: the places. Which of its ways a frame takes is
//! known when it runs: the desk says so, the pointer calls it by its number, and each is counted by
//! itself. So whoever reads knows of every way how many frames took it, also of those of which the
//! pointers are gone.

use super::ring::Ours;
use super::{Desk, Hand, WAY, WAYS_MAX, at};
use crate::asm::Label;
use crate::emit::Unfit;
use crate::emit::build::Builder;
use crate::insn::{Alu, Cond, Insn, R1, R3, R4, R5, R9, Reg, Size};

/// Ways that share a place.
pub(in crate::emit) struct Place {
    /// The one with the lowest number.
    pub(in crate::emit) first: Hand,
    /// The one with the highest.
    last: Hand,
}

/// The places of some ways, in the order in which these came.
pub(in crate::emit) fn places(hands: &[Hand]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for hand in hands.iter().copied() {
        match places.iter_mut().find(|place| place.first.number == hand.number) {
            None => places.push(Place { first: hand, last: hand }),
            Some(place) if hand.way < place.first.way => place.first = hand,
            Some(place) if hand.way > place.last.way => place.last = hand,
            Some(_) => {}
        }
    }
    places
}

impl Builder {
    /// Counts a frame for the way that it takes, if that shares a reader, and has the number that
    /// it has there in its pointer, if that is written. Uses r1, r3 and r5.
    pub(super) fn count_way(
        &mut self,
        desk: Desk,
        ours: &Ours<'_>,
        hand: Hand,
        region: Reg,
        pointer: Option<Reg>,
    ) {
        if !hand.shared {
            return;
        }
        if ours.outlet.map == 0 {
            let why = "ways share a reader where the pointers have a map to themselves";
            return self.refuse(Unfit::new(why));
        }
        let not = self.asm.label();
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R1, R9, desk.handed(hand.number) + WAY));
        // Never, but the verifier does not know.
        asm.jump_if(Cond::Ge, R1, WAYS_MAX.cast_signed(), not);
        asm.push(Insn::alu(Alu::Mul, R1, 8));
        asm.push(Insn::mov(R3, region));
        asm.push(Insn::alu(Alu::Add, R3, R1));
        asm.push(Insn::load(Size::DW, R5, R3, at::COUNTS));
        if let Some(pointer) = pointer {
            asm.push(Insn::store(Size::DW, pointer, 24, R5));
        }
        asm.push(Insn::alu(Alu::Add, R5, 1));
        asm.push(Insn::store(Size::DW, R3, at::COUNTS, R5));
        asm.bind(not);
    }

    /// The desk as if the way that a frame takes was the first one of its place, as far as tallies
    /// go. Uses r3 and r4.
    pub(super) fn tallies_of(&mut self, desk: Desk, place: &Place, not: Label) -> Reg {
        let Place { first, last } = *place;
        let ways = last.way - first.way;
        if ways == 0 {
            return R9;
        }
        let apart = last.failed.zip(first.failed).and_then(|(to, from)| to.checked_sub(from));
        if apart.map(u32::from) != Some(ways) {
            self.refuse(Unfit::new(
                "the tallies of ways that share a place are not in their order",
            ));
        }
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R3, R9, desk.handed(first.number) + WAY));
        asm.push(Insn::alu(Alu::Sub, R3, first.way.cast_signed()));
        asm.jump_if(Cond::Gt, R3, ways.cast_signed(), not);
        asm.push(Insn::alu(Alu::Mul, R3, 16));
        asm.push(Insn::mov(R4, R9));
        asm.push(Insn::alu(Alu::Add, R4, R3));
        R4
    }
}
