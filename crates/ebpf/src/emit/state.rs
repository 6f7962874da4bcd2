//! State of a filter: the plain data of its private session, kept in a map.
//!
//! Input: byte offsets in that state. Output: loads, atomic additions and exchanges. The layout is
//! that of the user implementation, so the state can move with the filter (CONTRACT 15); the exam
//! compares the states of the twin and the user implementation byte for byte. All processors share
//! the state, so there are no plain stores: a twin adds or exchanges values atomically.
//!
//! Numbers in the state have 64 bits ([`WideNum`]), while other numbers of the emitter have 32.

use std::marker::PhantomData;

use super::builder::{skb, xdp};
use super::handle::{Brand, Exit, FramePos, Num, Value};
use super::scope::{Cmp, MetadataField, Scope};
use super::unfit::UnfitReason;
use crate::asm::Label;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R10, Size, atomic};
use crate::program::Hook;

/// A handle of the current filter's state, which a map holds.
#[derive(Clone, Copy, Debug)]
pub struct TwinState<'s> {
    map: u32,
    size: u16,
    brand: Brand<'s>,
}

/// A 64-bit number that the program computes.
#[derive(Clone, Copy, Debug)]
pub struct WideNum<'s>(pub(super) Num<'s>);

/// A 64-bit variable that can be set in its own scope or in an inner one ([`Scope::arm`]).
#[derive(Clone, Copy, Debug)]
pub struct WideVar<'s>(WideNum<'s>);

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Declares the state of the current filter: `size` bytes, initially zero.
    pub fn declare_state(&mut self, size: u16) -> TwinState<'s> {
        TwinState { map: self.builder().state_map_number(size), size, brand: PhantomData }
    }

    /// Emits code that loads the 64-bit number at byte `at` of the filter's state.
    pub fn read_state(&mut self, state: TwinState<'s>, at: u16) -> WideNum<'s> {
        self.point_at_state(state, at, 8);
        self.builder().asm.push(Insn::load(Size::DW, R0, R1, 0));
        self.store_wide()
    }

    /// Emits code that atomically adds `amount` to the 64-bit number at byte `at` of the filter's
    /// state.
    pub fn add_to_state(&mut self, state: TwinState<'s>, at: u16, amount: impl Into<Value<'s>>) {
        self.builder().fetch(amount.into(), R2);
        self.point_at_state(state, at, 8);
        self.builder().asm.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
    }

    /// Emits code that atomically adds `amount` to the 64-bit number at byte `at` of the filter's
    /// state, and returns the old value.
    pub fn fetch_add(
        &mut self,
        state: TwinState<'s>,
        at: u16,
        amount: impl Into<Value<'s>>,
    ) -> WideNum<'s> {
        self.builder().fetch(amount.into(), R2);
        self.point_at_state(state, at, 8);
        let fetch = Insn::atomic(Size::DW, atomic::ADD | atomic::FETCH, R1, 0, R2);
        self.builder().asm.push(fetch);
        self.builder().asm.push(Insn::mov(R0, R2));
        self.store_wide()
    }

    /// Emits code that atomically adds to the `nth` of `count` 64-bit numbers that begin at byte
    /// `at` of the filter's state. The code does nothing if `nth` is out of range.
    pub fn add_to_nth_number(
        &mut self,
        state: TwinState<'s>,
        (at, count): (u16, u16),
        nth: Num<'s>,
        amount: impl Into<Value<'s>>,
    ) {
        self.builder().fetch(amount.into(), R2);
        let beyond = self.builder().asm.new_label();
        self.point_at_nth_number(state, (at, count), nth, beyond);
        let b = self.builder();
        b.asm.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
        b.bind(beyond);
    }

    /// Emits code that atomically raises the `nth` of `count` 64-bit numbers that begin at byte
    /// `at` of the filter's state to `new`. The code jumps to the exit `other` if the number is not
    /// less than `new`, if another processor changes it at the same time, or if `nth` is out of
    /// range.
    pub fn raise_nth_number(
        &mut self,
        state: TwinState<'s>,
        (at, count): (u16, u16),
        nth: Num<'s>,
        new: WideNum<'s>,
        other: Exit<'s>,
    ) {
        self.fetch_wide(new, R2);
        self.point_at_nth_number(state, (at, count), nth, other.label);
        let b = self.builder();
        b.asm.push(Insn::load(Size::DW, R0, R1, 0));
        b.asm.jump_if(Cond::Ge, R0, R2, other.label);
        self.compare_exchange(other);
    }

    /// Emits code that atomically replaces the 64-bit number at byte `at` of the filter's state
    /// with `new`, and returns the old value.
    pub fn exchange(&mut self, state: TwinState<'s>, at: u16, new: WideNum<'s>) -> WideNum<'s> {
        self.fetch_wide(new, R0);
        self.point_at_state(state, at, 8);
        self.builder().asm.push(Insn::atomic(Size::DW, atomic::XCHG, R1, 0, R0));
        self.store_wide()
    }

    /// Emits code that atomically replaces the 64-bit number at byte `at` of the filter's state
    /// with `new` if the number is `old`. Otherwise, the code jumps to the exit `other`.
    pub fn replace_if_equal(
        &mut self,
        state: TwinState<'s>,
        at: u16,
        (old, new): (WideNum<'s>, WideNum<'s>),
        other: Exit<'s>,
    ) {
        self.fetch_wide(old, R0);
        self.fetch_wide(new, R2);
        self.point_at_state(state, at, 8);
        self.compare_exchange(other);
    }

    /// Emits a read of the monotonic clock, in ns. A call to the helper takes about 32 ns.
    pub fn monotonic_time(&mut self) -> WideNum<'s> {
        self.builder().call_helper(Helper::KtimeNs);
        self.store_wide()
    }

    // ---- arithmetic

    /// Emits code that loads a 64-bit constant, and returns it as a number.
    pub fn wide_constant(&mut self, value: u64) -> WideNum<'s> {
        self.builder().asm.push_wide(Insn::load64(R0, value));
        self.store_wide()
    }

    /// Returns a number zero-extended to 64 bits.
    pub fn widen(&mut self, num: Num<'s>) -> WideNum<'s> {
        // Every slot has 64 bits, and the upper half of a `Num` is zero.
        WideNum(num)
    }

    /// Returns the lower 32 bits of a number.
    pub fn narrow(&mut self, wide: WideNum<'s>) -> Num<'s> {
        self.fetch_wide(wide, R0);
        self.builder().asm.push(Insn::alu32(Alu::Mov, R0, R0));
        self.builder().store_in_new_slot(R0)
    }

    /// Returns `left + right`, modulo 2^64.
    pub fn add_wide(&mut self, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.compute_wide(Alu::Add, left, right)
    }

    /// Returns `left - right`, modulo 2^64.
    pub fn sub_wide(&mut self, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.compute_wide(Alu::Sub, left, right)
    }

    /// Returns `left ^ right`.
    pub fn xor_wide(&mut self, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.compute_wide(Alu::Xor, left, right)
    }

    /// Returns `left << bits`, modulo 2^64. `bits` is taken modulo 64.
    pub fn shl_wide(&mut self, left: WideNum<'s>, bits: u32) -> WideNum<'s> {
        self.fetch_wide(left, R0);
        self.builder().asm.push(Insn::alu(Alu::Shl, R0, (bits & 63).cast_signed()));
        self.store_wide()
    }

    /// Combines an upper and a lower half into a 64-bit number.
    pub fn join_halves(&mut self, [high, low]: [Num<'s>; 2]) -> WideNum<'s> {
        let b = self.builder();
        b.fetch(high.into(), R0);
        b.fetch(low.into(), R1);
        b.asm.push(Insn::alu(Alu::Shl, R0, 32));
        b.asm.push(Insn::alu(Alu::Or, R0, R1));
        self.store_wide()
    }

    /// Returns `left | right`.
    pub fn or_wide(&mut self, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.compute_wide(Alu::Or, left, right)
    }

    /// Returns `left << bits`, modulo 2^64. `bits` is taken modulo 64.
    pub fn shl_wide_by(&mut self, left: WideNum<'s>, bits: Num<'s>) -> WideNum<'s> {
        self.compute_wide(Alu::Shl, left, WideNum(bits))
    }

    /// Mixes the bits of a number as `wire::flow` does: with one step of SplitMix64, its increment
    /// and its finalizer.
    pub fn mix_bits(&mut self, wide: WideNum<'s>) -> WideNum<'s> {
        self.fetch_wide(wide, R0);
        let b = self.builder();
        b.asm.push_wide(Insn::load64(R1, 0x9e37_79b9_7f4a_7c15));
        b.asm.push(Insn::alu(Alu::Add, R0, R1));
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
            b.asm.compute(R1, R0, Alu::Shr, shift);
            b.asm.push(Insn::alu(Alu::Xor, R0, R1));
            b.asm.push_wide(Insn::load64(R1, factor));
            b.asm.push(Insn::alu(Alu::Mul, R0, R1));
        }
        b.asm.compute(R1, R0, Alu::Shr, 31);
        b.asm.push(Insn::alu(Alu::Xor, R0, R1));
        self.store_wide()
    }

    /// Creates a 64-bit variable with the initial value `first`. The arms of a branch may set it.
    pub fn wide_var(&mut self, first: WideNum<'s>) -> WideVar<'s> {
        self.fetch_wide(first, R0);
        WideVar(self.store_wide())
    }

    /// Emits code that sets a 64-bit variable, in this scope or in an inner arm.
    pub fn set_wide(&mut self, var: WideVar<'s>, value: WideNum<'s>) {
        self.fetch_wide(value, R0);
        self.builder().store_in_slot(var.0.0.slot, R0);
    }

    /// Returns the value of a 64-bit variable.
    pub fn get_wide(&mut self, var: WideVar<'s>) -> WideNum<'s> {
        self.fetch_wide(var.0, R0);
        self.store_wide()
    }

    /// Returns `left % by`. `by` must not be 0.
    pub fn remainder(&mut self, left: WideNum<'s>, by: u32) -> Num<'s> {
        self.fetch_wide(left, R0);
        let b = self.builder();
        b.asm.push(Insn::alu32(Alu::Mov, R1, by.cast_signed()));
        b.asm.push(Insn::alu(Alu::Mod, R0, R1));
        b.invalidate_registers();
        b.store_in_new_slot(R0)
    }

    /// Returns the larger of two 64-bit numbers.
    pub fn max_wide(&mut self, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.fetch_wide(left, R0);
        self.fetch_wide(right, R1);
        let b = self.builder();
        let done = b.asm.new_label();
        b.asm.jump_if(Cond::Ge, R0, R1, done);
        b.asm.push(Insn::mov(R0, R1));
        b.bind(done);
        self.store_wide()
    }

    /// Emits a jump to the exit `miss` that is taken unless the comparison of 64-bit numbers holds.
    /// [`Cmp::Any`] is not supported, and makes the program unfit.
    pub fn only_if_wide(
        &mut self,
        left: WideNum<'s>,
        cmp: Cmp,
        right: WideNum<'s>,
        miss: Exit<'s>,
    ) {
        self.fetch_wide(left, R0);
        self.fetch_wide(right, R1);
        let b = self.builder();
        let Some(cond) = cmp.inverse() else {
            return b.refuse_program(UnfitReason::new("it compares bits of a wide number"));
        };
        b.asm.jump_if(cond, R0, R1, miss.label);
        b.invalidate_registers();
    }

    /// Returns the index of a number among 65 buckets of doubling width: 0 for 0, and n for 2^(n-1)
    /// to 2^n - 1. The code has no branches, because each branch would double the number of paths
    /// that the verifier explores.
    pub fn bucket_index(&mut self, wide: WideNum<'s>) -> Num<'s> {
        self.fetch_wide(wide, R0);
        let b = self.builder();
        let mut put = |insn| b.asm.push(insn);
        // r1 = 1 unless the number is 0.
        put(Insn::mov(R1, R0));
        put(Insn::alu(Alu::Neg, R1, 0));
        put(Insn::alu(Alu::Or, R1, R0));
        put(Insn::alu(Alu::Shr, R1, 63));
        for bits in [32, 16, 8, 4, 2, 1] {
            // r2 = bits if the number has more bits than that, else 0.
            if bits == 32 {
                put(Insn::mov(R2, R0));
                put(Insn::alu(Alu::Shr, R2, 32));
                put(Insn::mov(R3, R2));
                put(Insn::alu(Alu::Neg, R3, 0));
                put(Insn::alu(Alu::Or, R2, R3));
            } else {
                put(Insn::mov(R2, (1 << bits) - 1));
                put(Insn::alu(Alu::Sub, R2, R0));
            }
            put(Insn::alu(Alu::Shr, R2, 63));
            put(Insn::alu(Alu::Mul, R2, bits));
            put(Insn::alu(Alu::Shr, R0, R2));
            put(Insn::alu(Alu::Add, R1, R2));
        }
        put(Insn::mov(R0, R1));
        b.invalidate_registers();
        b.store_in_new_slot(R0)
    }

    // ---- lengths

    /// Returns the number of bytes from a position to the end of the frame, including nonlinear
    /// bytes; 0 if the position is past the end.
    pub fn bytes_after(&mut self, at: FramePos<'s>) -> Num<'s> {
        let length = self.load_metadata(MetadataField::Length);
        let b = self.builder();
        b.fetch_distance(at, R1);
        b.fetch(length.into(), R0);
        let (ends, done) = (b.asm.new_label(), b.asm.new_label());
        b.asm.jump_if(Cond::Gt, R1, R0, ends);
        b.asm.push(Insn::alu(Alu::Sub, R0, R1));
        b.asm.jump(done);
        b.asm.bind(ends);
        b.asm.push(Insn::mov(R0, 0));
        b.bind(done);
        b.store_in_new_slot(R0)
    }

    /// Returns the smaller of two 32-bit numbers.
    pub fn min(&mut self, left: Num<'s>, right: Num<'s>) -> Num<'s> {
        let b = self.builder();
        b.fetch(left.into(), R0);
        b.fetch(right.into(), R1);
        let done = b.asm.new_label();
        b.asm.jump_if(Cond::Le, R0, R1, done);
        b.asm.push(Insn::mov(R0, R1));
        b.bind(done);
        b.store_in_new_slot(R0)
    }

    // ---- helpers

    /// Emits code that replaces the number at the address in r1 with r2 if the number equals r0,
    /// and otherwise jumps to the exit `other`. Clobbers r3.
    fn compare_exchange(&mut self, other: Exit<'s>) {
        let b = self.builder();
        b.asm.push(Insn::mov(R3, R0));
        b.asm.push(Insn::atomic(Size::DW, atomic::CMPXCHG, R1, 0, R2));
        b.invalidate_registers();
        b.asm.jump_if(Cond::Ne, R0, R3, other.label);
    }

    /// Emits code that sets r1 to the address of byte `at` of the filter's state, for an access of
    /// `length` bytes. Refuses the program if the access is outside the state or `at` is not a
    /// multiple of 8.
    fn point_at_state(&mut self, state: TwinState<'s>, at: u16, length: u16) {
        let b = self.builder();
        if at.saturating_add(length) > state.size || !at.is_multiple_of(8) {
            b.refuse_program(UnfitReason::new("it accesses bytes outside its state"));
        }
        b.asm.push_wide(Insn::load_map_value(R1, state.map, at.into()));
        b.invalidate_registers();
    }

    /// Emits code that sets r1 to the address of the `nth` of `count` numbers, which begin at byte
    /// `at` of the state. The code jumps to `beyond` if `nth` is out of range. It clobbers r0 and
    /// r3, and preserves r2.
    fn point_at_nth_number(
        &mut self,
        state: TwinState<'s>,
        (at, count): (u16, u16),
        nth: Num<'s>,
        beyond: Label,
    ) {
        self.builder().fetch(nth.into(), R3);
        self.point_at_state(state, at, count.saturating_mul(8));
        let b = self.builder();
        if b.positions_are_offsets() {
            // Without CAP_PERFMON, the verifier requires an index whose range is unknown, and the
            // same on all paths. The XOR with a context field, which the verifier does not track,
            // hides the range.
            let unknown = if b.target.hook == Hook::Xdp { xdp::QUEUE } else { skb::LEN };
            b.asm.push(Insn::load(Size::W, R0, R6, unknown));
            b.asm.push(Insn::alu(Alu::Xor, R3, R0));
            b.asm.push(Insn::alu(Alu::Xor, R3, R0));
        }
        b.asm.jump_if(Cond::Ge, R3, i32::from(count), beyond);
        b.asm.push(Insn::alu(Alu::Shl, R3, 3));
        b.asm.push(Insn::alu(Alu::Add, R1, R3));
    }

    fn compute_wide(&mut self, op: Alu, left: WideNum<'s>, right: WideNum<'s>) -> WideNum<'s> {
        self.fetch_wide(left, R0);
        self.fetch_wide(right, R1);
        self.builder().asm.push(Insn::alu(op, R0, R1));
        self.store_wide()
    }

    pub(super) fn fetch_wide(&mut self, wide: WideNum<'s>, to: crate::insn::Reg) {
        self.builder().asm.push(Insn::load(Size::DW, to, R10, -wide.0.slot));
        self.builder().set_register_slot(to, None);
    }

    pub(super) fn store_wide(&mut self) -> WideNum<'s> {
        let b = self.builder();
        b.invalidate_registers();
        WideNum(b.store_in_new_slot(R0))
    }
}
