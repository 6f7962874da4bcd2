//! Splitting of long chains. Twins that do not fit into one program are placed in additional
//! programs, the *parts*, which are entered by tail calls.
//!
//! Input: the answer so far. Output: the same answer, if necessary in the next part. Neither the
//! stack nor pointers survive a tail call, so the values that the next twin may use are stored in a
//! row of a map. Each processor has one row, because programs at tc, XDP and sockets run to
//! completion on one processor.
//!
//! Storing and reloading the values without a call makes the verifier forget its knowledge about
//! these values. Because the verifier does not track the contents of maps, all paths to this point
//! merge into one state.
//!
//! Programs without CAP_PERFMON are neither split nor reset in this way. For these programs the
//! verifier also explores speculative paths, and the loss of bounds costs more than the merging of
//! paths saves. A long chain that the verifier rejects runs in user space.

use super::builder::Builder;
use super::edit::SavedLayers;
use super::handle::{Answer, FrameOffset, Num, SlotDepth, Value};
use super::maps::{PROCESSORS_MAX, ROW_SIZE_LOG2};
use super::scope::Scope;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R10, Size};

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Ends the current part of the program if the part is long; otherwise resets the verifier's
    /// state from time to time. Returns the same answer for the code that follows. Handles created
    /// before the call must not be used afterwards.
    ///
    /// Does nothing inside an arm. Does not end a part while the code of an exit that increments a
    /// counter is still to be emitted.
    #[must_use]
    pub fn end_part_if_long(&mut self, answer: Answer<'s>) -> Answer<'s> {
        self.end_part_if_long_with_fallback(answer, |_| {})
    }

    /// Ends a part of the program or resets the verifier's state, like [`Scope::end_part_if_long`].
    /// If the tail call to the next part fails at run time, the code that `fails` emits runs
    /// instead. If this code does not jump to an exit, the block takes the `unsure` exit.
    #[must_use]
    pub fn end_part_if_long_with_fallback(
        &mut self,
        answer: Answer<'s>,
        fails: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) -> Answer<'s> {
        let ends = self.builder().may_end_part();
        if !ends && !self.builder().may_reset_verifier() {
            return self.builder().release_unused_slots(answer);
        }
        let mut saved = self.save_layers(answer.layers);
        let mut class = answer.class;
        let b = self.builder();
        let mut slots = Vec::new();
        for_each_slot(&mut saved, &mut class, |slot| slots.push(*slot));
        let (row, links) = b.part_map_numbers();
        b.point_at_row(row);
        for (at, slot) in (0..).step_by(8).zip(&slots) {
            b.asm.push(Insn::load(Size::DW, R2, R10, -*slot));
            b.asm.push(Insn::store(Size::DW, R1, at, R2));
        }
        if ends {
            b.call_next_part(links);
            self.arm(|inner, _| fails(inner));
            let b = self.builder();
            // A failed call for which `fails` emitted nothing.
            let unsure = b.unsure_label();
            b.asm.jump(unsure);
            b.begin_next_part();
        } else {
            b.reset_verifier_state();
        }
        let b = self.builder();
        b.point_at_row(row);
        let mut places = (0..).step_by(8);
        for_each_slot(&mut saved, &mut class, |slot| {
            *slot = b.allocate_slots(1);
            b.asm.push(Insn::load(Size::W, R0, R1, places.next().unwrap_or(0)));
            b.asm.push(Insn::store(Size::DW, R10, -*slot, R0));
        });
        let layers = self.restore_layers(saved);
        Answer { class, layers }
    }
}

impl Builder {
    /// Emits code that sets r1 to the address of this processor's row for values passed between
    /// parts. If the processor has no row, the block takes the `unsure` exit.
    fn point_at_row(&mut self, map: u32) {
        self.call_helper(Helper::CpuId);
        let unsure = self.unsure_label();
        self.asm.jump_if(Cond::Ge, R0, PROCESSORS_MAX, unsure);
        self.asm.push(Insn::alu(Alu::Shl, R0, ROW_SIZE_LOG2));
        self.asm.push_wide(Insn::load_map_value(R1, map, 0));
        self.asm.push(Insn::alu(Alu::Add, R1, R0));
        self.invalidate_registers();
    }

    /// Emits the tail call to the next part. If the tail call fails at run time, execution
    /// continues with the code that is emitted next.
    fn call_next_part(&mut self, links: u32) {
        let next = i32::try_from(self.finished_part_count()).unwrap_or(i32::MAX);
        self.asm.push(Insn::mov(R1, R6));
        self.asm.push_wide(Insn::load_map(R2, links));
        self.asm.push(Insn::mov(R3, next));
        self.call_helper(Helper::TailCall);
    }
}

/// Calls `f` with the stack slot of each computed number that `saved` and `class` contain.
fn for_each_slot(
    saved: &mut SavedLayers<'_>,
    class: &mut Value<'_>,
    mut f: impl FnMut(&mut SlotDepth),
) {
    let mut value = |value: &mut Value<'_>| {
        if let Value::Num(Num { slot, .. }) = value {
            f(slot);
        }
    };
    let offset = |offset: &mut FrameOffset<'_>, value: &mut dyn FnMut(&mut Value<'_>)| {
        value(&mut offset.base)
    };
    value(class);
    value(&mut saved.layers.class);
    offset(&mut saved.at, &mut value);
    saved.l3.iter_mut().chain(&mut saved.l4).for_each(|at| offset(at, &mut value));
    let layers = &mut saved.layers;
    let l4 = layers.l4.iter_mut().flat_map(|l4| [&mut l4.protocol, &mut l4.length]);
    let numbers = layers.length.iter_mut().chain(&mut layers.next).chain(l4);
    numbers.for_each(|num| f(&mut num.slot));
}
