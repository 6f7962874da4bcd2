//! Values: how numbers, places and proofs become registers, stack slots and packet pointers.
//!
//! In: handles. Out: instructions in the builder's `Asm`. Every value lies in a stack slot of 8
//! bytes, so that it outlives calls and jumps; which slots r0 to r5 hold besides is remembered, and
//! saves most loads. A computed place is a packet pointer, or an offset where there are none (see
//! `build`).

use super::Unfit;
use super::build::Builder;
use super::handle::{At, AtVar, Base, Brand, Bytes, Depth, Num, Value};
use crate::asm::Label;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R8, R10, Reg, Size};
use crate::program::Place;
use std::ops::RangeInclusive;

const STACK_BYTES: Depth = 512;
/// The verifier follows packet offsets up to this.
pub(super) const REACH_MAX: u32 = 0xffff;

pub(super) fn too_far() -> Unfit {
    Unfit::new("it may look further than 65,535 bytes into a frame")
}

impl Builder {
    /// `to` holds the value; what it held is forgotten.
    pub(super) fn fetch(&mut self, value: Value<'_>, to: Reg) {
        match value {
            Value::Const(constant) => {
                self.asm.push(Insn::alu32(Alu::Mov, to, constant.cast_signed()));
                self.hold(to, None);
            }
            Value::Num(num) => self.fetch_slot(num.slot, to),
        }
    }

    fn fetch_slot(&mut self, slot: Depth, to: Reg) {
        match self.holder(slot) {
            Some(reg) if reg == to => {}
            Some(reg) => self.asm.push(Insn::mov(to, reg)),
            None => self.asm.push(Insn::load(Size::DW, to, R10, -slot)),
        }
        self.hold(to, None);
    }

    /// A register that holds the slot: one that does already, or `otherwise`.
    pub(super) fn register(&mut self, slot: Depth, otherwise: Reg) -> Reg {
        self.holder(slot).unwrap_or_else(|| {
            self.asm.push(Insn::load(Size::DW, otherwise, R10, -slot));
            self.hold(otherwise, Some(slot));
            otherwise
        })
    }

    /// Gives the content of `from` a slot of its own.
    pub(super) fn keep<'s>(&mut self, from: Reg) -> Num<'s> {
        let slot = self.slots(1);
        self.put(slot, from);
        Num { slot, brand: Brand::default() }
    }

    /// Stores `from` in this slot.
    pub(super) fn put(&mut self, slot: Depth, from: Reg) {
        self.asm.push(Insn::store(Size::DW, R10, -slot, from));
        self.held.iter_mut().filter(|held| **held == Some(slot)).for_each(|held| *held = None);
        self.hold(from, Some(slot));
    }

    /// `count` slots in a row; answers the deepest, where the row begins.
    pub(super) fn slots(&mut self, count: Depth) -> Depth {
        if count > (STACK_BYTES - self.top) / 8 {
            self.refuse(Unfit::new("its values need more than 512 bytes of stack"));
            return STACK_BYTES;
        }
        self.top += count * 8;
        self.used = self.used.max(self.top);
        self.top
    }

    /// Slots in a row for so many bytes that are not written eight at a time. Before Linux 6.8
    /// nobody without CAP_PERFMON may do that where a value was kept ("attempt to corrupt spilled
    /// pointer"), so slots that were in use are first written whole.
    pub(super) fn row(&mut self, length: u16) -> Depth {
        let (slot, worn) = self.row_of(length);
        self.clear(worn);
        slot
    }

    /// Slots in a row for so many bytes, and those of them that were in use.
    fn row_of(&mut self, length: u16) -> (Depth, RangeInclusive<Depth>) {
        let count = Depth::try_from(length.div_ceil(8)).unwrap_or(Depth::MAX).max(1);
        let (first, used) = (self.top + 8, self.used);
        let slot = self.slots(count);
        (slot, first..=slot.min(used))
    }

    /// Writes slots whole that were in use.
    fn clear(&mut self, worn: RangeInclusive<Depth>) {
        if self.target.hardened {
            for slot in worn.step_by(8) {
                self.asm.push(Insn::store(Size::DW, R10, -slot, 0));
            }
        }
    }

    fn holder(&self, slot: Depth) -> Option<Reg> {
        let index = self.held.iter().position(|held| *held == Some(slot))?;
        Reg::new(u8::try_from(index).ok()?)
    }

    pub(super) fn hold(&mut self, reg: Reg, slot: Option<Depth>) {
        if let Some(held) = self.held.get_mut(usize::from(reg.number())) {
            *held = slot;
        }
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.asm.push(Insn::call(helper));
        self.held = [None; 6];
    }

    // ---- places

    /// A computed place is right only as long as the frame stays what it was.
    fn fresh(&mut self, at: At<'_>) {
        if let Base::Slot(_) = at.base {
            self.fresh_since(at.epoch);
        }
    }

    fn fresh_since(&mut self, epoch: u16) {
        if epoch != self.epoch {
            self.refuse(Unfit::new("it uses a place from before the frame was changed"));
        }
    }

    /// Whether computed places are offsets.
    pub(super) fn counts(&self) -> bool {
        self.target.hardened || self.target.place.asks_for_bytes()
    }

    /// `to` holds the place as computed places are held.
    pub(super) fn fetch_at(&mut self, at: At<'_>, to: Reg) {
        self.fresh(at);
        match at.base {
            Base::Slot(slot) => self.fetch_slot(slot, to),
            Base::Frame if self.counts() => self.asm.push(Insn::mov(to, 0)),
            Base::Frame => self.asm.push(Insn::mov(to, R7)),
        }
        if at.off > 0 {
            self.asm.push(Insn::alu(Alu::Add, to, i32::from(at.off)));
        }
        self.hold(to, None);
    }

    /// Checks that `length` bytes follow, or leaves to `miss`.
    pub(super) fn check<'s>(&mut self, at: At<'s>, length: u16, miss: Label) -> Bytes<'s> {
        self.fresh(at);
        let end = at.reach + u32::from(length);
        let last = u32::from(at.off) + u32::from(length);
        if end > REACH_MAX || last > i16::MAX.unsigned_abs().into() {
            self.refuse(too_far());
        }
        self.reach = self.reach.max(end);
        if self.target.place.asks_for_bytes() || self.counts() && at.base != Base::Frame {
            return self.copy(at, length, miss);
        }
        let miss = self.missing(at.base, end, miss);
        match at.base {
            Base::Frame => self.asm.push(Insn::mov(R2, R7)),
            // The verifier proves all copies of a pointer that it knows to be one: keep it at hand.
            Base::Slot(slot) => {
                let pointer = self.register(slot, R1);
                self.asm.push(Insn::mov(R2, pointer));
            }
        }
        self.hold(R2, None);
        self.asm.push(Insn::alu(Alu::Add, R2, last.cast_signed()));
        self.asm.jump_if(Cond::Gt, R2, R8, miss);
        Bytes::Packet(At { epoch: self.epoch, ..at })
    }

    /// Copies the bytes to the stack.
    fn copy<'s>(&mut self, at: At<'s>, length: u16, miss: Label) -> Bytes<'s> {
        let (slot, worn) = self.row_of(length);
        let xdp = self.target.place == Place::Xdp;
        let (slow, done) = (self.asm.label(), self.asm.label());
        self.fetch_at(at, R2);
        self.copy_usual(at, (slot, length), (slow, done));
        self.bind(slow);
        self.clear(worn);
        self.asm.push(Insn::mov(R1, R6));
        self.asm.push(Insn::mov(R3, R10));
        self.asm.push(Insn::alu(Alu::Add, R3, i32::from(-slot)));
        self.asm.push(Insn::mov(R4, i32::from(length.max(1))));
        self.call(if xdp { Helper::XdpLoadBytes } else { Helper::SkbLoadBytes });
        self.asm.jump_if(Cond::Ne, R0, 0, miss);
        self.bind(done);
        Bytes::Copy(slot, self.epoch)
    }

    /// Where r2 is what it is in most frames, loads the bytes from there, which is a constant: a
    /// call costs 20 ns where the kernel mends returns. Eight at a time, so that the verifier finds
    /// on the stack what the call leaves there too, and does not go both ways to the end.
    fn copy_usual(&mut self, at: At<'_>, (slot, length): (Depth, u16), to: (Label, Label)) {
        let (slow, done) = to;
        let direct = self.target.hardened && self.target.place == Place::Tc;
        let begin = at.usual.and_then(|usual| usual.checked_add(at.off)).filter(|_| direct);
        let end = begin.and_then(|begin| begin.checked_add(length.next_multiple_of(8)));
        let (Some(begin), Some(_)) = (begin, end.filter(|end| *end <= i16::MAX.cast_unsigned()))
        else {
            return;
        };
        let (begin, whole) = (begin.cast_signed(), length.next_multiple_of(8).cast_signed());
        self.asm.jump_if(Cond::Ne, R2, i32::from(begin), slow);
        self.asm.push(Insn::mov(R1, R7));
        self.asm.push(Insn::alu(Alu::Add, R1, i32::from(begin + whole)));
        self.asm.jump_if(Cond::Gt, R1, R8, slow);
        for at in (0..whole).step_by(8) {
            self.asm.push(Insn::load(Size::DW, R0, R7, begin + at));
            self.asm.push(Insn::store(Size::DW, R10, at - slot, R0));
        }
        self.asm.jump(done);
    }

    /// Loads a number in network byte order from proven bytes.
    pub(super) fn load<'s>(&mut self, bytes: Bytes<'s>, off: u16, size: Size) -> Num<'s> {
        let off = off.cast_signed();
        let (Bytes::Packet(At { epoch, .. }) | Bytes::Copy(_, epoch)) = bytes;
        self.fresh_since(epoch);
        match bytes {
            Bytes::Copy(slot, _) => self.asm.push(Insn::load(size, R0, R10, off - slot)),
            Bytes::Packet(at) => {
                let base = match at.base {
                    Base::Frame => R7,
                    Base::Slot(slot) => self.register(slot, R1),
                };
                self.asm.push(Insn::load(size, R0, base, at.off.cast_signed() + off));
            }
        }
        match size {
            Size::H => self.asm.push(Insn::big_endian(R0, 16)),
            Size::W => self.asm.push(Insn::big_endian(R0, 32)),
            Size::B | Size::DW => {}
        }
        self.keep(R0)
    }

    /// The place `by` behind `at`, which is at most `max`, or leaves to `miss`.
    pub(super) fn move_by<'s>(&mut self, at: At<'s>, by: Num<'s>, max: u16, miss: Label) -> At<'s> {
        self.fetch(by.into(), R0);
        self.asm.jump_if(Cond::Gt, R0, i32::from(max), miss);
        self.fetch_at(at, R1);
        self.asm.push(Insn::alu(Alu::Add, R1, R0));
        let slot = self.keep(R1).slot;
        let reach = at.reach + u32::from(max);
        if reach > REACH_MAX {
            self.refuse(too_far());
        }
        let usual = None;
        At { base: Base::Slot(slot), off: 0, reach, epoch: self.epoch, usual, brand: at.brand }
    }

    pub(super) fn at_var<'s>(&mut self, at: At<'s>) -> AtVar<'s> {
        let slot = self.slots(1);
        self.at_reach.push((0, self.epoch));
        let var = AtVar { slot, reach: self.at_reach.len() - 1, brand: at.brand };
        self.set_at(var, at);
        var
    }

    pub(super) fn set_at(&mut self, var: AtVar<'_>, at: At<'_>) {
        self.fetch_at(at, R1);
        self.put(var.slot, R1);
        let now = self.epoch;
        if let Some((reach, epoch)) = self.at_reach.get_mut(var.reach) {
            *reach = at.reach.max(*reach);
            *epoch = now.min(*epoch);
        }
    }

    pub(super) fn get_at<'s>(&mut self, var: AtVar<'s>) -> At<'s> {
        self.fetch_slot(var.slot, R1);
        let slot = self.keep(R1).slot;
        let (reach, epoch) =
            self.at_reach.get(var.reach).copied().unwrap_or((REACH_MAX, self.epoch));
        At { base: Base::Slot(slot), off: 0, reach, epoch, usual: None, brand: var.brand }
    }
}
