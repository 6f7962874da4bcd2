//! Lowering of numbers, positions and proofs to registers, stack slots and packet pointers.
//!
//! Input: handles. Output: instructions in the builder's [`Assembler`](crate::asm::Assembler).
//! Every value has a stack slot of 8 bytes, so it survives calls and jumps. The builder tracks
//! which slots r0 to r5 also hold, which saves most reloads. A computed position is a packet
//! pointer, or an offset where packet pointers are not available (see `builder::frame`).

use super::builder::Builder;
use super::handle::{Brand, CheckedBytes, FramePos, FramePosVar, Num, PosBase, SlotDepth, Value};
use super::unfit::UnfitReason;
use crate::asm::Label;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R8, R10, Reg, Size};
use crate::program::Hook;
use std::ops::RangeInclusive;

const STACK_BYTES: SlotDepth = 512;
/// Maximum packet offset in bytes that the verifier tracks.
pub(super) const PACKET_OFFSET_MAX: u32 = 0xffff;

pub(super) fn offset_too_far_error() -> UnfitReason {
    UnfitReason::new("it may read beyond the first 65,535 bytes of a frame")
}

impl Builder {
    /// Emits code that loads a value into the register `to`.
    pub(super) fn fetch(&mut self, value: Value<'_>, to: Reg) {
        match value {
            Value::Const(constant) => {
                self.asm.push(Insn::alu32(Alu::Mov, to, constant.cast_signed()));
                self.set_register_slot(to, None);
            }
            Value::Num(num) => self.fetch_slot(num.slot, to),
        }
    }

    fn fetch_slot(&mut self, slot: SlotDepth, to: Reg) {
        match self.find_slot_register(slot) {
            Some(reg) if reg == to => {}
            Some(reg) => self.asm.push(Insn::mov(to, reg)),
            None => self.asm.push(Insn::load(Size::DW, to, R10, -slot)),
        }
        self.set_register_slot(to, None);
    }

    /// Returns a register that contains the value of a stack slot. If no register does, loads the
    /// value into `otherwise`.
    pub(super) fn fetch_slot_register(&mut self, slot: SlotDepth, otherwise: Reg) -> Reg {
        self.find_slot_register(slot).unwrap_or_else(|| {
            self.asm.push(Insn::load(Size::DW, otherwise, R10, -slot));
            self.set_register_slot(otherwise, Some(slot));
            otherwise
        })
    }

    /// Emits code that stores the register `from` in a new stack slot, and returns the handle of
    /// the number in it.
    pub(super) fn store_in_new_slot<'s>(&mut self, from: Reg) -> Num<'s> {
        let slot = self.allocate_slots(1);
        self.store_in_slot(slot, from);
        Num { slot, brand: Brand::default() }
    }

    /// Emits code that stores the register `from` in a stack slot.
    pub(super) fn store_in_slot(&mut self, slot: SlotDepth, from: Reg) {
        self.asm.push(Insn::store(Size::DW, R10, -slot, from));
        self.slot_in_register
            .iter_mut()
            .filter(|held| **held == Some(slot))
            .for_each(|held| *held = None);
        self.set_register_slot(from, Some(slot));
    }

    /// Allocates `count` stack slots one after another. Returns the deepest one, at which they
    /// begin.
    pub(super) fn allocate_slots(&mut self, count: SlotDepth) -> SlotDepth {
        if count > (STACK_BYTES - self.stack_used) / 8 {
            self.refuse_program(UnfitReason::new("its values need more than 512 bytes of stack"));
            return STACK_BYTES;
        }
        self.stack_used += count * 8;
        self.stack_max = self.stack_max.max(self.stack_used);
        self.stack_used
    }

    /// Allocates stack slots, one after another, for `length` bytes that the program writes with
    /// stores of fewer than eight bytes. Before Linux 6.8 the verifier rejects such a write without
    /// CAP_PERFMON if a value was spilled into the slot ("attempt to corrupt spilled pointer").
    /// Therefore, slots that were used before are first overwritten with eight bytes each.
    pub(super) fn allocate_bytes(&mut self, length: u16) -> SlotDepth {
        let (slot, reused) = self.allocate_bytes_with_reuse(length);
        self.overwrite_reused_slots(reused);
        slot
    }

    /// Allocates stack slots, one after another, for `length` bytes. Also returns the range of
    /// these slots that the program has used before.
    fn allocate_bytes_with_reuse(&mut self, length: u16) -> (SlotDepth, RangeInclusive<SlotDepth>) {
        let count = SlotDepth::try_from(length.div_ceil(8)).unwrap_or(SlotDepth::MAX).max(1);
        let (first, used) = (self.stack_used + 8, self.stack_max);
        let slot = self.allocate_slots(count);
        (slot, first..=slot.min(used))
    }

    /// Emits code that overwrites reused stack slots, so that the verifier accepts smaller writes
    /// to them. Emits nothing unless the program is hardened.
    fn overwrite_reused_slots(&mut self, reused: RangeInclusive<SlotDepth>) {
        if self.target.hardened {
            for slot in reused.step_by(8) {
                self.asm.push(Insn::store(Size::DW, R10, -slot, 0));
            }
        }
    }

    fn find_slot_register(&self, slot: SlotDepth) -> Option<Reg> {
        let index = self.slot_in_register.iter().position(|held| *held == Some(slot))?;
        Reg::new(u8::try_from(index).ok()?)
    }

    pub(super) fn set_register_slot(&mut self, reg: Reg, slot: Option<SlotDepth>) {
        if let Some(held) = self.slot_in_register.get_mut(usize::from(reg.number())) {
            *held = slot;
        }
    }

    pub(super) fn call_helper(&mut self, helper: Helper) {
        self.asm.push(Insn::call(helper));
        self.slot_in_register = [None; 6];
    }

    // ---- positions

    /// Refuses the program if the position was computed in an earlier `epoch`.
    fn check_epoch(&mut self, at: FramePos<'_>) {
        if let PosBase::Slot(_) = at.base {
            self.check_epoch_number(at.epoch);
        }
    }

    fn check_epoch_number(&mut self, epoch: u16) {
        if epoch != self.epoch {
            self.refuse_program(UnfitReason::new(
                "it uses an offset from before the frame was changed",
            ));
        }
    }

    /// Returns true if the program keeps computed positions as offsets rather than as packet
    /// pointers.
    pub(super) fn positions_are_offsets(&self) -> bool {
        self.target.hardened || self.target.hook.reads_packet_by_helper()
    }

    /// Emits code that loads the address of a position in the frame into the register `to`.
    pub(super) fn fetch_position(&mut self, at: FramePos<'_>, to: Reg) {
        self.check_epoch(at);
        match at.base {
            PosBase::Slot(slot) => self.fetch_slot(slot, to),
            PosBase::Frame if self.positions_are_offsets() => self.asm.push(Insn::mov(to, 0)),
            PosBase::Frame => self.asm.push(Insn::mov(to, R7)),
        }
        if at.offset > 0 {
            self.asm.push(Insn::alu(Alu::Add, to, i32::from(at.offset)));
        }
        self.set_register_slot(to, None);
    }

    /// Emits code that loads the distance of a position from the first byte of the frame into the
    /// register `to`.
    pub(super) fn fetch_distance(&mut self, at: FramePos<'_>, to: Reg) {
        match at.base {
            PosBase::Frame => self.asm.push(Insn::mov(to, i32::from(at.offset))),
            PosBase::Slot(_) => {
                self.fetch_position(at, to);
                if !self.positions_are_offsets() {
                    self.asm.push(Insn::alu(Alu::Sub, to, R7));
                }
            }
        }
    }

    /// Emits the bounds check for `length` bytes at a position, with a jump to `miss` if the frame
    /// ends before the last of them. Where the bytes cannot be read through a packet pointer,
    /// copies them to the stack instead.
    pub(super) fn check_bounds<'s>(
        &mut self,
        at: FramePos<'s>,
        length: u16,
        miss: Label,
    ) -> CheckedBytes<'s> {
        self.check_epoch(at);
        let end = at.reach + u32::from(length);
        let last = u32::from(at.offset) + u32::from(length);
        if end > PACKET_OFFSET_MAX || last > i16::MAX.unsigned_abs().into() {
            self.refuse_program(offset_too_far_error());
        }
        self.reach = self.reach.max(end);
        if self.target.hook.reads_packet_by_helper()
            || self.positions_are_offsets() && at.base != PosBase::Frame
        {
            return self.copy_to_stack(at, length, miss);
        }
        let miss = self.miss_exit(at.base, end, miss);
        match at.base {
            PosBase::Frame => self.asm.push(Insn::mov(R2, R7)),
            // The verifier extends a check to all copies of a pointer, so one copy is kept in a
            // register.
            PosBase::Slot(slot) => {
                let pointer = self.fetch_slot_register(slot, R1);
                self.asm.push(Insn::mov(R2, pointer));
            }
        }
        self.set_register_slot(R2, None);
        self.asm.push(Insn::alu(Alu::Add, R2, last.cast_signed()));
        self.asm.jump_if(Cond::Gt, R2, R8, miss);
        CheckedBytes::Packet(FramePos { epoch: self.epoch, ..at })
    }

    /// Emits code that copies `length` bytes to the stack. The code jumps to `miss` if the frame
    /// ends before the last of these bytes.
    fn copy_to_stack<'s>(
        &mut self,
        at: FramePos<'s>,
        length: u16,
        miss: Label,
    ) -> CheckedBytes<'s> {
        let (slot, reused) = self.allocate_bytes_with_reuse(length);
        let xdp = self.target.hook == Hook::Xdp;
        let (slow, done) = (self.asm.new_label(), self.asm.new_label());
        self.fetch_position(at, R2);
        self.emit_fast_copy(at, (slot, length), (slow, done));
        self.bind(slow);
        self.overwrite_reused_slots(reused);
        self.asm.push(Insn::mov(R1, R6));
        self.asm.compute(R3, R10, Alu::Add, i32::from(-slot));
        self.asm.push(Insn::mov(R4, i32::from(length.max(1))));
        self.call_helper(if xdp { Helper::XdpLoadBytes } else { Helper::SkbLoadBytes });
        self.asm.jump_if(Cond::Ne, R0, 0, miss);
        self.bind(done);
        CheckedBytes::Copy(slot, self.epoch)
    }

    /// Emits the fast path of a copy to the stack. If r2 equals the usual offset of the bytes, the
    /// code loads the bytes directly from this constant offset. This avoids a helper call, which
    /// costs 20 ns on kernels with return thunks. The loads are eight bytes wide, so that the stack
    /// has the same state as after the call and the verifier prunes one of the two paths.
    fn emit_fast_copy(
        &mut self,
        at: FramePos<'_>,
        (slot, length): (SlotDepth, u16),
        to: (Label, Label),
    ) {
        let (slow, done) = to;
        let direct = self.target.hardened && self.target.hook == Hook::Tc;
        let begin = at.usual.and_then(|usual| usual.checked_add(at.offset)).filter(|_| direct);
        let end = begin.and_then(|begin| begin.checked_add(length.next_multiple_of(8)));
        let (Some(begin), Some(_)) = (begin, end.filter(|end| *end <= i16::MAX.cast_unsigned()))
        else {
            return;
        };
        let (begin, whole) = (begin.cast_signed(), length.next_multiple_of(8).cast_signed());
        self.asm.jump_if(Cond::Ne, R2, i32::from(begin), slow);
        self.asm.compute(R1, R7, Alu::Add, i32::from(begin + whole));
        self.asm.jump_if(Cond::Gt, R1, R8, slow);
        for at in (0..whole).step_by(8) {
            self.asm.push(Insn::load(Size::DW, R0, R7, begin + at));
            self.asm.push(Insn::store(Size::DW, R10, at - slot, R0));
        }
        self.asm.jump(done);
    }

    /// Emits code that loads a number in network byte order from bytes that have been checked.
    pub(super) fn load<'s>(&mut self, bytes: CheckedBytes<'s>, off: u16, size: Size) -> Num<'s> {
        let off = off.cast_signed();
        let (CheckedBytes::Packet(FramePos { epoch, .. }) | CheckedBytes::Copy(_, epoch)) = bytes;
        self.check_epoch_number(epoch);
        match bytes {
            CheckedBytes::Copy(slot, _) => self.asm.push(Insn::load(size, R0, R10, off - slot)),
            CheckedBytes::Packet(at) => {
                let base = match at.base {
                    PosBase::Frame => R7,
                    PosBase::Slot(slot) => self.fetch_slot_register(slot, R1),
                };
                self.asm.push(Insn::load(size, R0, base, at.offset.cast_signed() + off));
            }
        }
        self.convert_byte_order(size, R0);
        self.store_in_new_slot(R0)
    }

    /// Emits code that converts a number of two or four bytes between network and host byte order.
    pub(super) fn convert_byte_order(&mut self, size: Size, reg: Reg) {
        match size {
            Size::H => self.asm.push(Insn::big_endian(reg, 16)),
            Size::W => self.asm.push(Insn::big_endian(reg, 32)),
            Size::B | Size::DW => {}
        }
    }

    /// Returns the position `by` bytes after `at`. The emitted code jumps to `miss` if `by` exceeds
    /// `max`.
    pub(super) fn move_position_by<'s>(
        &mut self,
        at: FramePos<'s>,
        by: Num<'s>,
        max: u16,
        miss: Label,
    ) -> FramePos<'s> {
        self.fetch(by.into(), R0);
        self.asm.jump_if(Cond::Gt, R0, i32::from(max), miss);
        self.fetch_position(at, R1);
        self.asm.push(Insn::alu(Alu::Add, R1, R0));
        let slot = self.store_in_new_slot(R1).slot;
        let reach = at.reach + u32::from(max);
        if reach > PACKET_OFFSET_MAX {
            self.refuse_program(offset_too_far_error());
        }
        FramePos { base: PosBase::Slot(slot), reach, epoch: self.epoch, ..FramePos::START }
    }

    pub(super) fn position_var<'s>(&mut self, at: FramePos<'s>) -> FramePosVar<'s> {
        let slot = self.allocate_slots(1);
        self.position_reaches.push((0, self.epoch));
        let var = FramePosVar { slot, reach: self.position_reaches.len() - 1, brand: at.brand };
        self.set_position(var, at);
        var
    }

    pub(super) fn set_position(&mut self, var: FramePosVar<'_>, at: FramePos<'_>) {
        self.fetch_position(at, R1);
        self.store_in_slot(var.slot, R1);
        let now = self.epoch;
        if let Some((reach, epoch)) = self.position_reaches.get_mut(var.reach) {
            *reach = at.reach.max(*reach);
            *epoch = now.min(*epoch);
        }
    }

    pub(super) fn get_position<'s>(&mut self, var: FramePosVar<'s>) -> FramePos<'s> {
        self.fetch_slot(var.slot, R1);
        let slot = self.store_in_new_slot(R1).slot;
        let (reach, epoch) = self
            .position_reaches
            .get(var.reach)
            .copied()
            .unwrap_or((PACKET_OFFSET_MAX, self.epoch));
        FramePos {
            base: PosBase::Slot(slot),
            offset: 0,
            reach,
            epoch,
            usual: None,
            brand: var.brand,
        }
    }
}
