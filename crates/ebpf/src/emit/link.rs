//! Chains that are too long for one program: the next piece stands in another, reached by a tail
//! call.
//!
//! In: the answer so far. Out: the same answer, where need be in the next part. Nothing of the
//! stack and no pointer outlives the call, so what the next piece may know waits in a row of memory
//! that belongs to the processor: programs at traffic control, XDP and sockets run to their end on
//! one, and do not overtake each other there.
//!
//! The same way out to memory and back, without the call, makes the verifier forget: it does not
//! follow what memory holds, so all ways that lead here become one.
//!
//! Without CAP_PERFMON programs are neither split nor made to forget: there the verifier also goes
//! the ways that a processor might guess, and what it forgot costs it more than it saves. A long
//! line that it refuses runs in user space.

use super::build::Builder;
use super::edit::Kept;
use super::handle::{Answer, Depth, Num, Spot, Value};
use super::scope::Scope;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R10, Size};

/// A part that has so many instructions ends behind its last piece. The longest twins have a
/// quarter of that, and the verifier takes a few milliseconds for it.
pub(super) const LONG: usize = 4_000;
/// Behind so many instructions the verifier is made to forget how it came here: the ways that it
/// goes one by one otherwise double with each header that is read anew.
pub(super) const MUCH: usize = 500;
/// Processors that have a row; on others the answer is unsure.
pub(super) const PROCESSORS: i32 = 512;
/// Bytes of a row, as a shift: sixteen numbers.
pub(super) const ROW_BITS: i32 = 7;

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// The same answer, in the next part if this one has grown long, and else as if nothing but it
    /// was known. Whatever else was computed before must not be used behind. Inside an arm it does
    /// nothing, and while an exit of the frame counts no part ends.
    #[must_use]
    pub fn link(&mut self, answer: Answer<'s>) -> Answer<'s> {
        self.link_or(answer, |_| {})
    }

    /// The same; if the next part cannot be reached, `fails` says what becomes of the block, and
    /// leaves. If it does not, nobody can tell.
    #[must_use]
    pub fn link_or(
        &mut self,
        answer: Answer<'s>,
        fails: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) -> Answer<'s> {
        let ends = self.builder().may_end();
        if !ends && !self.builder().may_forget() {
            return self.builder().pack(answer);
        }
        let mut kept = self.keep(answer.layers);
        let mut class = answer.class;
        let b = self.builder();
        let mut slots = Vec::new();
        each_slot(&mut kept, &mut class, |slot| slots.push(*slot));
        let (row, links) = b.link_maps();
        b.point_at_row(row);
        for (at, slot) in (0..).step_by(8).zip(&slots) {
            b.asm.push(Insn::load(Size::DW, R2, R10, -*slot));
            b.asm.push(Insn::store(Size::DW, R1, at, R2));
        }
        if ends {
            b.call_next(links);
            self.arm(|inner, _| fails(inner));
            let b = self.builder();
            b.call_failed();
            b.next_part();
        } else {
            b.forget();
        }
        let b = self.builder();
        b.point_at_row(row);
        let mut places = (0..).step_by(8);
        let mut restored = Vec::new();
        for _ in &slots {
            let slot = b.slots(1);
            b.asm.push(Insn::load(Size::W, R0, R1, places.next().unwrap_or(0)));
            b.asm.push(Insn::store(Size::DW, R10, -slot, R0));
            restored.push(slot);
        }
        let mut restored = restored.into_iter();
        each_slot(&mut kept, &mut class, |slot| *slot = restored.next().unwrap_or(*slot));
        let layers = self.layers(kept);
        Answer { class, layers }
    }
}

impl Builder {
    /// r1 points at the row of this processor.
    fn point_at_row(&mut self, map: u32) {
        self.call(Helper::CpuId);
        let unsure = self.unsure();
        self.asm.jump_if(Cond::Ge, R0, PROCESSORS, unsure);
        self.asm.push(Insn::alu(Alu::Shl, R0, ROW_BITS));
        self.asm.push_wide(Insn::load_map_value(R1, map, 0));
        self.asm.push(Insn::alu(Alu::Add, R1, R0));
        self.hold_none();
    }

    /// Goes on in the next part. A call that fails falls through.
    fn call_next(&mut self, links: u32) {
        let next = i32::try_from(self.parts()).unwrap_or(i32::MAX);
        self.asm.push(Insn::mov(R1, R6));
        self.asm.push_wide(Insn::load_map(R2, links));
        self.asm.push(Insn::mov(R3, next));
        self.call(Helper::TailCall);
    }

    /// Behind a call that failed, where nobody has said what then.
    fn call_failed(&mut self) {
        let unsure = self.unsure();
        self.asm.jump(unsure);
    }
}

/// The numbers that only run time knows.
fn each_slot(kept: &mut Kept<'_>, class: &mut Value<'_>, mut f: impl FnMut(&mut Depth)) {
    let mut value = |value: &mut Value<'_>| {
        if let Value::Num(Num { slot, .. }) = value {
            f(slot);
        }
    };
    let spot = |spot: &mut Spot<'_>, value: &mut dyn FnMut(&mut Value<'_>)| value(&mut spot.base);
    value(class);
    value(&mut kept.layers.class);
    spot(&mut kept.at, &mut value);
    kept.l3.iter_mut().chain(&mut kept.l4).for_each(|at| spot(at, &mut value));
    let layers = &mut kept.layers;
    let l4 = layers.l4.iter_mut().flat_map(|l4| [&mut l4.protocol, &mut l4.length]);
    let numbers = layers.length.iter_mut().chain(&mut layers.next).chain(l4);
    numbers.for_each(|num| f(&mut num.slot));
}
