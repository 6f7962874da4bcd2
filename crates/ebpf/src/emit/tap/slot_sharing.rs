//! Slots that several exits share. [CONTRACT 18, 19]
//!
//! An *exit* is a point of the filter tree where frames leave the kernel. For a frame that is
//! delivered there, the body writes the view of the frame to a *slot* of the scratch memory and
//! sets the slot's bit in a bit set; the final action then writes a pointer for one reader. If a
//! frame can be delivered at only one of several exits, these exits share a slot, its bit and a
//! reader. The final action inspects each slot, so sharing makes its cost independent of the number
//! of exits.
//!
//! Input: deliveries, each with its slot number. Output: the slots. The slot and the pointer hold
//! the number of the exit, and the program counts the frames of each exit. A reader therefore knows
//! the number of frames of every exit, including frames whose pointers have been overwritten.

use crate::asm::Label;
use crate::emit::builder::Builder;
use crate::emit::config::{Delivery, PointerRing, ScratchLayout};
use crate::emit::ring_layout::{EXIT_OFFSET, EXITS_MAX, offset};
use crate::emit::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Insn, R1, R3, R4, R5, R9, Reg, Size};

/// A pointer ring together with all deliveries that the program may make to it. Also contains the
/// scratch memory offset of the bit set that records these deliveries for a frame.
pub(super) struct PointerRingUse<'j> {
    pub(super) outlet: &'j PointerRing,
    pub(super) word: i16,
    /// Number of the pointer ring.
    pub(super) number: u16,
    pub(super) deliveries: Vec<Delivery>,
}

/// A slot of the scratch memory, and the range of exits whose deliveries share it.
pub(in crate::emit) struct SharedSlot {
    /// The delivery at that exit of the range which has the lowest number.
    pub(in crate::emit) first: Delivery,
    /// The delivery at that exit of the range which has the highest number.
    last: Delivery,
}

/// Groups deliveries by the slot that they share, in the order in which each slot first occurs.
pub(in crate::emit) fn shared_slots(deliveries: &[Delivery]) -> Vec<SharedSlot> {
    let mut shared_slots: Vec<SharedSlot> = Vec::new();
    for delivery in deliveries.iter().copied() {
        match shared_slots.iter_mut().find(|place| place.first.number == delivery.number) {
            None => shared_slots.push(SharedSlot { first: delivery, last: delivery }),
            Some(place) if delivery.exit < place.first.exit => place.first = delivery,
            Some(place) if delivery.exit > place.last.exit => place.last = delivery,
            Some(_) => {}
        }
    }
    shared_slots
}

impl Builder {
    /// Emits code that counts a frame for its exit if the exit shares a reader. If `pointer` is
    /// given, this register contains the address of a pointer, in which the code first stores the
    /// number of the exit's earlier frames. Clobbers r1, r3 and r5.
    pub(super) fn count_frame_for_exit(
        &mut self,
        scratch: ScratchLayout,
        ours: &PointerRingUse<'_>,
        delivery: Delivery,
        region: Reg,
        pointer: Option<Reg>,
    ) {
        if !delivery.shared {
            return;
        }
        if ours.outlet.map == 0 {
            let why = "exits share a reader, and the pointers have no map of their own";
            return self.refuse_program(UnfitReason::new(why));
        }
        let not = self.asm.new_label();
        let asm = &mut self.asm;
        asm.push(Insn::load(
            Size::W,
            R1,
            R9,
            scratch.view_slot_offset(delivery.number) + EXIT_OFFSET,
        ));
        // The exit number is always in range, but the verifier cannot prove this.
        asm.jump_if(Cond::Ge, R1, EXITS_MAX.cast_signed(), not);
        asm.push(Insn::alu(Alu::Mul, R1, 8));
        asm.compute(R3, region, Alu::Add, R1);
        asm.push(Insn::load(Size::DW, R5, R3, offset::EXIT_POINTER_COUNTS));
        if let Some(pointer) = pointer {
            asm.push(Insn::store(Size::DW, pointer, 24, R5));
        }
        asm.push(Insn::alu(Alu::Add, R5, 1));
        asm.push(Insn::store(Size::DW, R3, offset::EXIT_POINTER_COUNTS, R5));
        asm.bind(not);
    }

    /// Emits code that computes a base address for the tally of the frame's exit, and returns the
    /// register that holds it. The tally is at this address plus the offset of the first exit's
    /// tally. The code jumps to `not` if the exit number is invalid. It clobbers r3 and r4.
    pub(super) fn compute_tally_base(
        &mut self,
        scratch: ScratchLayout,
        place: &SharedSlot,
        not: Label,
    ) -> Reg {
        let SharedSlot { first, last } = *place;
        let difference = last.exit - first.exit;
        if difference == 0 {
            return R9;
        }
        let apart =
            last.failed_tally.zip(first.failed_tally).and_then(|(to, from)| to.checked_sub(from));
        if apart.map(u32::from) != Some(difference) {
            self.refuse_program(UnfitReason::new(
                "the tallies of exits that share a slot are out of order",
            ));
        }
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R3, R9, scratch.view_slot_offset(first.number) + EXIT_OFFSET));
        asm.push(Insn::alu(Alu::Sub, R3, first.exit.cast_signed()));
        asm.jump_if(Cond::Gt, R3, difference.cast_signed(), not);
        asm.push(Insn::alu(Alu::Mul, R3, 16));
        asm.compute(R4, R9, Alu::Add, R3);
        R4
    }
}
