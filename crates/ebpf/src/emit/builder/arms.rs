//! Arms and exits of a program. An arm is code that can end early, by a jump to its exit. An exit
//! may need code of its own, for example to increment a counter. This code is a *stub*, deferred to
//! the end of the arm that contains the exit.

use super::Builder;
use crate::asm::Label;
use crate::emit::handle::{Answer, SlotDepth};
use crate::emit::remap::map_slots;
use crate::insn::{Cond, Insn, R0, R10, Size};

/// A stub: the deferred code of one exit.
pub(super) struct ExitStub {
    label: Label,
    task: StubTask,
    then: Label,
    filter: Option<usize>,
}

pub(super) enum StubTask {
    /// Increments the filter's counter with this index.
    Count(usize),
    /// Jumps to the `unsure` exit if the frame has at least this length in bytes. Otherwise, the
    /// frame is too short, and the stub jumps to the target of its exit.
    LengthCheck(u32),
}

/// The state of the builder at the beginning of an arm or a twin. The builder restores this state
/// when the arm or the twin ends.
pub(in crate::emit) struct ArmState {
    top: SlotDepth,
    stubs: usize,
    end: Label,
    filter: Option<usize>,
}

impl Builder {
    /// Begins an arm, code that can end early. The label of its end is bound when the arm closes.
    pub(in crate::emit) fn open_arm(&mut self) -> ArmState {
        let end = self.asm.new_label();
        self.depth += 1;
        ArmState { top: self.stack_used, stubs: self.stubs.len(), end, filter: self.filter }
    }

    pub(in crate::emit) fn arm_end_label(mark: &ArmState) -> Label {
        mark.end
    }

    /// Closes an arm: emits its stubs, binds the label of the arm's end, and releases the arm's
    /// stack slots.
    pub(in crate::emit) fn close_arm(&mut self, mark: ArmState) {
        self.depth = self.depth.saturating_sub(1);
        let stubs = self.stubs.split_off(mark.stubs.min(self.stubs.len()));
        self.emit_stubs(stubs, mark.end);
        self.bind(mark.end);
        self.stack_used = mark.top;
        self.slot_in_register = [None; 6];
        self.filter = mark.filter;
        self.record_code_owner();
    }

    /// Ends the code of a twin like that of an arm, but keeps the stack slots of the twin's answer,
    /// which move to where the slots of the twin begin. Returns the answer with its new slots.
    pub(in crate::emit) fn close_twin_with_answer(
        &mut self,
        mark: ArmState,
        answer: Answer<'_>,
    ) -> Answer<'static> {
        let (moved, top) = self.move_answer_slots(mark.top, answer);
        self.close_arm(mark);
        self.stack_used = top;
        moved
    }

    /// Emits code that moves the answer's stack slots that lie above `floor` down to `floor`.
    /// Returns the answer with its new slots, and the new number of stack bytes in use.
    pub(super) fn move_answer_slots(
        &mut self,
        floor: SlotDepth,
        answer: Answer<'_>,
    ) -> (Answer<'static>, SlotDepth) {
        let mut old = Vec::new();
        map_slots(answer, |slot| {
            old.push(slot);
            slot
        });
        old.retain(|slot| *slot > floor);
        old.sort_unstable();
        old.dedup();
        let slot_after = |slot: SlotDepth| match old.binary_search(&slot) {
            Ok(index) => floor + (SlotDepth::try_from(index).unwrap_or(SlotDepth::MAX / 8) + 1) * 8,
            Err(_) => slot,
        };
        // Slots are moved in ascending order, each to a slot at or below its old one, so that no
        // slot is overwritten before it is moved.
        for slot in old.iter().copied().filter(|slot| slot_after(*slot) != *slot) {
            let reg = self.fetch_slot_register(slot, R0);
            self.asm.push(Insn::store(Size::DW, R10, -slot_after(slot), reg));
            self.slot_in_register = [None; 6];
        }
        let top = old.last().map_or(floor, |last| slot_after(*last));
        (map_slots(answer, slot_after), top)
    }

    /// Releases every stack slot except those of the answer. Releases nothing inside an arm.
    /// Returns the answer with its new slots.
    pub(in crate::emit) fn release_unused_slots(&mut self, answer: Answer<'_>) -> Answer<'static> {
        let floor = if self.depth == 0 { self.floor } else { self.stack_used };
        let (moved, top) = self.move_answer_slots(floor, answer);
        self.stack_used = top;
        self.invalidate_registers();
        moved
    }

    /// Creates an exit whose code increments the counter `name` and then jumps to `then`.
    pub(in crate::emit) fn counting_exit(&mut self, name: &str, then: Label) -> Label {
        let task = StubTask::Count(self.counter_index(name));
        self.push_stub(task, then)
    }

    pub(super) fn push_stub(&mut self, task: StubTask, then: Label) -> Label {
        let label = self.asm.new_label();
        self.stubs.push(ExitStub { label, task, then, filter: self.filter });
        label
    }

    /// Emits stubs, the deferred code of exits. Stubs are emitted in reverse order, so that each
    /// jumps only forward: to a stub created earlier, or out of the arm.
    pub(super) fn emit_stubs(&mut self, stubs: Vec<ExitStub>, end: Label) {
        if stubs.iter().any(|stub| self.asm.is_used(stub.label)) {
            self.asm.jump(end);
        }
        for stub in stubs.into_iter().rev() {
            if !self.asm.is_used(stub.label) {
                continue;
            }
            self.filter = stub.filter;
            self.record_code_owner();
            self.bind(stub.label);
            match stub.task {
                StubTask::Count(counter) => self.increment_counter(counter),
                StubTask::LengthCheck(length) => {
                    self.emit_frame_length();
                    self.asm.jump_if(Cond::Ge, R0, length.cast_signed(), self.unsure);
                }
            }
            self.asm.jump(stub.then);
        }
    }
}
