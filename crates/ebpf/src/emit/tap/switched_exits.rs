//! Exits that user space opens and closes while the program runs, by changing words in a map. A
//! closed exit costs a load and a branch that is not taken. [SL §4.1]
//!
//! Input: the map with these words, which the program only reads ([`SwitchLayout`]). Each place at
//! which requests have such exits has a word. The word is 0 if no exit is open there; otherwise it
//! is 1 plus the number of a slot in the scratch memory. Every frame that reaches the place is
//! recorded in this slot. At the end of the frame, the program inspects the list of each pointer
//! ring, which contains the open exits and their slots. The code at a place therefore does not grow
//! with the number of requests that share it. All switched exits of a pointer ring lead to one
//! reader, and the pointer contains the number of the exit.

use super::slot_sharing::PointerRingUse;
use super::store_release_insn;
use crate::asm::Label;
use crate::emit::builder::Builder;
use crate::emit::config::{FinalAction, FusedTap, PointerRing};
use crate::emit::handle::{Exit, Layers};
use crate::emit::maps::FIRST_CALLER_MAP;
use crate::emit::ring_layout::{
    EXITS_MAX, POINTER_SIZE, SWITCHED_EXITS_MAX, SWITCHED_SLOTS_MAX, SWITCHED_WORD_SIZE, offset,
};
use crate::emit::scope::Scope;
use crate::emit::switch_layout::SwitchLayout;
use crate::emit::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Insn, R0, R1, R2, R3, R4, R5, R9, R10, Reg, Size};

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Emits a jump to the exit `miss` that is taken unless user space has opened an exit at this
    /// place of the filter tree. Emits nothing if the program has no switched exits.
    pub fn leave_unless_exit_open(&mut self, place: u32, miss: Exit<'s>) {
        let b = self.builder();
        if let Some(switches) = b.switches() {
            b.load_switch_word(switches, place, R1);
            b.asm.jump_if(Cond::Eq, R1, 0, miss.label);
        }
    }

    /// Emits code that records the frame, with the view given by `on`, in the slot of the open
    /// exits at this place of the filter tree. The code does nothing if no exit is open.
    pub fn record_frame_for_open_exits(&mut self, place: u32, on: Layers<'s>) {
        let length = self.view_length(on);
        let b = self.builder();
        let scratch = b.scratch_layout();
        let Some(switches) = b.switches().filter(|_| scratch.switched > 0) else {
            return b.refuse_program(UnfitReason::new("it has no switches"));
        };
        b.restore_region_register();
        b.load_switch_word(switches, place, R1);
        // The exits may have been closed since `leave_unless_exit_open` looked.
        let closed = b.asm.new_label();
        b.asm.jump_if(Cond::Eq, R1, 0, closed);
        b.asm.push(Insn::alu(Alu::Sub, R1, 1));
        b.asm.push(Insn::alu(Alu::And, R1, SWITCHED_SLOTS_MAX.cast_signed() - 1));
        b.asm.push(Insn::mov(R2, 1));
        b.asm.push(Insn::alu(Alu::Shl, R2, R1));
        b.asm.push(Insn::load(Size::DW, R3, R9, scratch.switched));
        b.asm.push(Insn::alu(Alu::Or, R3, R2));
        b.asm.push(Insn::store(Size::DW, R9, scratch.switched, R3));
        b.asm.push(Insn::alu(Alu::Mul, R1, 16));
        b.asm.compute(R5, R9, Alu::Add, R1);
        let view = scratch.switched + 8;
        for reg in [R1, R2, R3, R5] {
            b.set_register_slot(reg, None);
        }
        b.fetch(on.class, R1);
        b.asm.push(Insn::store(Size::W, R5, view + 4, R1));
        b.fetch(length.into(), R0);
        b.asm.push(Insn::store(Size::W, R5, view, R0));
        b.fetch_view_offset(&on, R1);
        b.asm.push(Insn::store(Size::W, R5, view + 8, R1));
        b.set_register_slot(R1, None);
        b.asm.bind(closed);
    }
}

impl Builder {
    /// Emits code that loads a word into the register `to`. The word has this index in the map with
    /// which user space opens and closes switched exits.
    fn load_switch_word(&mut self, switches: SwitchLayout, word: u32, to: Reg) {
        let at = switches.base.saturating_add(word.saturating_mul(SWITCHED_WORD_SIZE));
        self.asm.push_wide(Insn::load_map_value(to, FIRST_CALLER_MAP + switches.map, at));
        self.asm.push(Insn::load(Size::W, to, to, 0));
        self.set_register_slot(to, None);
    }

    /// Emits code that marks each pointer ring for which the frame has taken an open exit. The mark
    /// is a bit in the bit set of the ring's deliveries.
    pub(super) fn mark_open_exits(&mut self, fused: &FusedTap) {
        let (Some(switches), scratch) = (fused.switches, fused.scratch) else { return };
        let none = self.asm.new_label();
        self.asm.push(Insn::load(Size::DW, R1, R9, scratch.switched));
        self.asm.jump_if(Cond::Eq, R1, 0, none);
        for outlet in 0..scratch.outlets {
            let next = self.asm.new_label();
            self.load_switch_word(switches, switches.list_index(outlet.into()), R2);
            let (asm, word) = (&mut self.asm, scratch.delivery_word_offset(outlet));
            asm.push(Insn::alu(Alu::And, R2, R1));
            asm.jump_if(Cond::Eq, R2, 0, next);
            asm.push(Insn::load(Size::DW, R3, R9, word));
            asm.push(Insn::mov(R2, 1));
            asm.push(Insn::alu(Alu::Shl, R2, SWITCHED_BIT_NUMBER));
            asm.push(Insn::alu(Alu::Or, R3, R2));
            asm.push(Insn::store(Size::DW, R9, word, R3));
            asm.bind(next);
        }
        self.asm.bind(none);
    }

    /// Emits code that writes pointers into a pointer ring: one for each open exit of the ring that
    /// the frame has taken.
    pub(super) fn write_open_exit_pointers(
        &mut self,
        fused: &FusedTap,
        ours: &PointerRingUse<'_>,
        region: Reg,
    ) {
        self.for_each_open_exit(fused, ours, |b| {
            let (outlet, view) = (ours.outlet, fused.scratch.switched + 8);
            b.load_next_pointer_address(outlet, region);
            let asm = &mut b.asm;
            asm.push(Insn::load(Size::DW, R3, R10, super::ring::RECORD_POSITION_SLOT));
            asm.push(Insn::store(Size::DW, R4, 0, R3));
            asm.push(Insn::load(Size::DW, R3, R5, view));
            asm.push(Insn::store(Size::DW, R4, 8, R3));
            asm.push(Insn::load(Size::W, R3, R5, view + 8));
            asm.push(Insn::store(Size::W, R4, 16, R3));
            asm.push(Insn::store(Size::W, R4, 20, R0));
            b.count_switched_exit(region, Some(R4));
            b.asm.push(Insn::alu(Alu::Add, R2, 1));
            b.asm.push(store_release_insn(region, offset::HEADS));
        });
    }

    /// Emits code that counts the frame for each open exit that it has taken, without writing a
    /// pointer. The reader detects the gap.
    pub(super) fn count_open_exits(
        &mut self,
        fused: &FusedTap,
        ours: &PointerRingUse<'_>,
        region: Reg,
    ) {
        self.for_each_open_exit(fused, ours, |b| b.count_switched_exit(region, None));
    }

    /// Emits code that sets r2 to the number of pointers written for the reader so far, and r4 to
    /// the address of the next pointer to write. Clobbers r3.
    fn load_next_pointer_address(&mut self, outlet: &PointerRing, region: Reg) {
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::DW, R2, region, offset::HEADS));
        asm.compute(R3, R2, Alu::And, outlet.pointers.cast_signed() - 1);
        asm.push(Insn::alu(Alu::Mul, R3, POINTER_SIZE.cast_signed()));
        asm.compute(R4, region, Alu::Add, outlet.pointers_at.cast_signed());
        asm.push(Insn::alu(Alu::Add, R4, R3));
    }

    /// Emits code that counts the frame for the exit in r0. If `pointer` is given, this register
    /// contains the address of a pointer, in which the code first stores the number of the exit's
    /// earlier frames. Clobbers r0, r3 and r5.
    fn count_switched_exit(&mut self, region: Reg, pointer: Option<Reg>) {
        let (not, asm) = (self.asm.new_label(), &mut self.asm);
        // The exit number is always in range, but the verifier cannot prove this.
        asm.jump_if(Cond::Ge, R0, EXITS_MAX.cast_signed(), not);
        asm.push(Insn::alu(Alu::Mul, R0, 8));
        asm.compute(R3, region, Alu::Add, R0);
        asm.push(Insn::load(Size::DW, R5, R3, offset::EXIT_POINTER_COUNTS));
        if let Some(pointer) = pointer {
            asm.push(Insn::store(Size::DW, pointer, 24, R5));
        }
        asm.push(Insn::alu(Alu::Add, R5, 1));
        asm.push(Insn::store(Size::DW, R3, offset::EXIT_POINTER_COUNTS, R5));
        asm.bind(not);
    }

    /// Emits code for each entry in a pointer ring's list of open exits: a test that the entry's
    /// exit is open and that the frame has taken it, and then the code that `f` emits. In the
    /// latter, r0 holds the exit number, and r5 plus the offset of the first view is the address of
    /// the frame's view.
    fn for_each_open_exit(
        &mut self,
        fused: &FusedTap,
        ours: &PointerRingUse<'_>,
        f: impl Fn(&mut Self),
    ) {
        let (Some(switches), scratch) = (fused.switches, fused.scratch) else { return };
        let none = self.asm.new_label();
        self.asm.push(Insn::load(Size::DW, R1, R9, ours.word));
        self.asm.push(Insn::alu(Alu::Shr, R1, SWITCHED_BIT_NUMBER));
        self.asm.jump_if(Cond::Eq, R1, 0, none);
        for exit in 0..SWITCHED_EXITS_MAX {
            let not: Label = self.asm.new_label();
            // An exit may be opened or closed at any time, so each entry is read only once.
            self.load_switch_word(switches, switches.list_index(ours.number.into()) + 1 + exit, R1);
            let asm = &mut self.asm;
            asm.jump_if(Cond::Eq, R1, 0, not);
            asm.push(Insn::mov(R0, R1));
            asm.push(Insn::alu(Alu::Shr, R0, SwitchLayout::EXIT_SHIFT.cast_signed()));
            asm.push(Insn::alu(Alu::Sub, R1, 1));
            asm.push(Insn::alu(Alu::And, R1, SWITCHED_SLOTS_MAX.cast_signed() - 1));
            asm.push(Insn::load(Size::DW, R2, R9, scratch.switched));
            asm.push(Insn::alu(Alu::Shr, R2, R1));
            asm.push(Insn::alu(Alu::And, R2, 1));
            asm.jump_if(Cond::Eq, R2, 0, not);
            asm.push(Insn::alu(Alu::Mul, R1, 16));
            asm.compute(R5, R9, Alu::Add, R1);
            f(self);
            self.asm.bind(not);
        }
        self.asm.bind(none);
    }
}

/// Number of a bit in the bit set of a pointer ring's deliveries. The bit is set if the frame has
/// taken an open exit of the ring. All higher bits are clear.
const SWITCHED_BIT_NUMBER: i32 = 32;

impl FinalAction {
    /// Returns the layout of the memory words with which user space opens and closes switched
    /// exits, or `None` if the program has no switched exits.
    pub(in crate::emit) const fn switches(&self) -> Option<SwitchLayout> {
        match self {
            Self::Tap(FusedTap { switches, .. }) => *switches,
            Self::Redirect(_) => None,
        }
    }
}
