//! Arms, which open and close, and exits, whose code stands aside until the arm around them ends.

use super::Builder;
use crate::asm::Label;
use crate::emit::handle::{Answer, Depth};
use crate::emit::moved::map_slots;
use crate::insn::{Cond, Insn, R0, R10, Size};

/// Code that stands aside until the arm around it ends.
pub(super) struct Stub {
    label: Label,
    task: Task,
    then: Label,
    word: Option<usize>,
}

pub(super) enum Task {
    /// Add one to this counter.
    Count(usize),
    /// Unsure if the frame has so many bytes, and goes on where the linear part has ended.
    Deep(u32),
}

/// What an arm or a piece gives back when it ends.
pub(in crate::emit) struct Mark {
    top: Depth,
    stubs: usize,
    end: Label,
    word: Option<usize>,
}

impl Builder {
    /// Opens an arm; `end` is bound where it closes.
    pub(in crate::emit) fn open(&mut self) -> Mark {
        let end = self.asm.label();
        self.depth += 1;
        Mark { top: self.top, stubs: self.stubs.len(), end, word: self.word }
    }

    pub(in crate::emit) fn end_of(mark: &Mark) -> Label {
        mark.end
    }

    /// Closes an arm: what stood aside, then its end. Its slots are free again.
    pub(in crate::emit) fn close(&mut self, mark: Mark) {
        self.depth = self.depth.saturating_sub(1);
        let stubs = self.stubs.split_off(mark.stubs.min(self.stubs.len()));
        self.emit_stubs(stubs, mark.end);
        self.bind(mark.end);
        self.top = mark.top;
        self.held = [None; 6];
        self.word = mark.word;
        self.line();
    }

    /// Closes a piece: as an arm, but its answer is carried over, packed at the bottom of its
    /// slots.
    pub(in crate::emit) fn close_with(
        &mut self,
        mark: Mark,
        answer: Answer<'_>,
    ) -> Answer<'static> {
        let (moved, top) = self.packed(mark.top, answer);
        self.close(mark);
        self.top = top;
        moved
    }

    /// The answer, its slots above `floor` packed there, and how far they reach.
    pub(super) fn packed(&mut self, floor: Depth, answer: Answer<'_>) -> (Answer<'static>, Depth) {
        let mut old = Vec::new();
        map_slots(answer, |slot| {
            old.push(slot);
            slot
        });
        old.retain(|slot| *slot > floor);
        old.sort_unstable();
        old.dedup();
        let place_of = |slot: Depth| match old.binary_search(&slot) {
            Ok(index) => floor + (Depth::try_from(index).unwrap_or(Depth::MAX / 8) + 1) * 8,
            Err(_) => slot,
        };
        // Ascending, each at or below its old place: nothing is overwritten before it is moved.
        for slot in old.iter().copied().filter(|slot| place_of(*slot) != *slot) {
            let reg = self.register(slot, R0);
            self.asm.push(Insn::store(Size::DW, R10, -place_of(slot), reg));
            self.held = [None; 6];
        }
        let top = old.last().map_or(floor, |last| place_of(*last));
        (map_slots(answer, place_of), top)
    }

    /// Nothing outlives this but the answer, unless an arm is open.
    pub(in crate::emit) fn pack(&mut self, answer: Answer<'_>) -> Answer<'static> {
        let floor = if self.depth == 0 { self.floor } else { self.top };
        let (moved, top) = self.packed(floor, answer);
        self.top = top;
        self.hold_none();
        moved
    }

    /// An exit that counts and goes on to `then`.
    pub(in crate::emit) fn counted(&mut self, name: &str, then: Label) -> Label {
        let task = Task::Count(self.counter(name));
        self.stub(task, then)
    }

    pub(super) fn stub(&mut self, task: Task, then: Label) -> Label {
        let label = self.asm.label();
        self.stubs.push(Stub { label, task, then, word: self.word });
        label
    }

    /// Later stubs first: each leads to an older one or outward, so forward.
    pub(super) fn emit_stubs(&mut self, stubs: Vec<Stub>, end: Label) {
        if stubs.iter().any(|stub| self.asm.is_used(stub.label)) {
            self.asm.jump(end);
        }
        for stub in stubs.into_iter().rev() {
            if !self.asm.is_used(stub.label) {
                continue;
            }
            self.word = stub.word;
            self.line();
            self.bind(stub.label);
            match stub.task {
                Task::Count(counter) => self.count(counter),
                Task::Deep(length) => {
                    self.frame_length();
                    self.asm.jump_if(Cond::Ge, R0, length.cast_signed(), self.unsure);
                }
            }
            self.asm.jump(stub.then);
        }
    }
}
