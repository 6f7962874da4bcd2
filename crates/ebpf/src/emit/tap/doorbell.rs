//! Doorbells, which notify a consumer of new frames. [SL §6.2]

use super::ring::{RECORD_END_SLOT, RECORD_POSITION_SLOT, RECORD_TIME_SLOT};
use crate::asm::Label;
use crate::emit::builder::Builder;
use crate::emit::config::{PointerRing, WakeupTarget};
use crate::emit::maps::FIRST_CALLER_MAP;
use crate::emit::ring_layout::offset;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R10, Reg, Size};

/// BPF_RB_FORCE_WAKEUP: always wake the consumer. Without this flag, the kernel wakes it only if it
/// had drained all records.
const BPF_RB_FORCE_WAKEUP: i32 = 2;

impl Builder {
    /// Emits code that sends a doorbell for the pointer ring whose region is at `region`, if a
    /// doorbell is due. Otherwise, control continues at `then`.
    pub(super) fn send_doorbell(&mut self, outlet: &PointerRing, region: Reg, then: Label) {
        let wake = outlet.wake;
        let asm = &mut self.asm;
        let (now, missed) = (asm.new_label(), asm.new_label());
        asm.push(Insn::load(Size::DW, R2, region, offset::FRAMES_SINCE_DOORBELL));
        asm.push(Insn::alu(Alu::Add, R2, 1));
        asm.push(Insn::store(Size::DW, region, offset::FRAMES_SINCE_DOORBELL, R2));
        asm.push(Insn::load(Size::DW, R1, R10, RECORD_END_SLOT));
        asm.push(Insn::load(Size::DW, R3, region, offset::DOORBELL_POSITION));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, wake.bytes.cast_signed(), now);
        asm.push(Insn::load(Size::DW, R1, R10, RECORD_TIME_SLOT));
        asm.push(Insn::load(Size::DW, R3, region, offset::DOORBELL_TIME));
        asm.push(Insn::alu(Alu::Sub, R1, R3));
        asm.jump_if(Cond::Ge, R1, wake.wait_ns.cast_signed(), now);
        asm.jump_if(Cond::Lt, R2, wake.blocks.cast_signed(), then);
        asm.jump_if(Cond::Ge, R2, wake.frames.cast_signed(), now);
        asm.jump_if(Cond::Lt, R1, wake.apart_ns.cast_signed(), then);
        asm.bind(now);
        for (from, to) in [
            (RECORD_TIME_SLOT, offset::DOORBELL_TIME),
            (RECORD_END_SLOT, offset::DOORBELL_POSITION),
        ] {
            asm.push(Insn::load(Size::DW, R1, R10, from));
            asm.push(Insn::store(Size::DW, region, to, R1));
        }
        asm.push(Insn::store(Size::DW, region, offset::FRAMES_SINCE_DOORBELL, 0));
        asm.push_wide(Insn::load_map(R1, FIRST_CALLER_MAP + outlet.doorbell_map));
        asm.compute(R2, R10, Alu::Add, i32::from(RECORD_POSITION_SLOT));
        asm.push(Insn::mov(R3, 8));
        let flags = if wake.target == WakeupTarget::Everyone { BPF_RB_FORCE_WAKEUP } else { 0 };
        asm.push(Insn::mov(R4, flags));
        asm.push(Insn::call(Helper::RingbufOutput));
        asm.jump_if(Cond::Ne, R0, 0, missed);
        self.add_to_word(region, offset::DOORBELLS_SENT, 1);
        self.asm.jump(then);
        self.asm.bind(missed);
        self.add_to_word(region, offset::DOORBELLS_DROPPED, 1);
    }
}
