//! The parts of a program: where one ends and the next begins, what becomes of a frame that nobody
//! has let by, and the program that all of them make.

use std::mem;

use super::{Builder, PULL_MAX, skb};
use crate::asm::{Asm, Label};
use crate::emit::ending::Ending;
use crate::emit::handle::{Answer, Value};
use crate::emit::link::{LONG, MUCH};
use crate::emit::maps::{self, Table};
use crate::emit::{Finish, Target, UNSURE, Unfit, Verdict, tap};
use crate::insn::{Alu, Cond, Insn, R0, R1, R6, Size};
use crate::program::{MapSpec, Part, Place, Program};

impl Builder {
    /// Whether this part is long and may end here. What asks its driver for tags cannot be part of
    /// a tail call, so whatever takes frames is in one part.
    pub(in crate::emit) fn may_end(&self) -> bool {
        let may = self.depth == 0 && !self.target.hardened && !self.takes;
        may && self.stubs.is_empty() && self.asm.here() >= LONG
    }

    /// Whether enough was found out since the last time to be forgotten here.
    pub(in crate::emit) fn may_forget(&self) -> bool {
        self.depth == 0 && !self.target.hardened && self.asm.here() >= self.forgot_at + MUCH
    }

    /// Knows nothing but the answer: the stack is free, the pointers are anew.
    pub(in crate::emit) fn forget(&mut self) {
        self.forgot_at = self.asm.here();
        self.top = self.floor;
        self.anew();
    }

    /// How many parts have ended.
    pub(in crate::emit) fn parts(&self) -> usize {
        self.ended.len()
    }

    /// The maps of rows and of parts.
    pub(in crate::emit) fn link_maps(&mut self) -> (u32, u32) {
        let rows = self.tables.iter().position(|table| matches!(table, Table::Rows));
        let rows = rows.unwrap_or_else(|| {
            self.tables.extend([Table::Rows, Table::Links]);
            self.tables.len() - 2
        });
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        (rows + 1, rows + 2)
    }

    /// Ends a part and begins the next: with the same exits under the same labels, an empty stack,
    /// and places that are all from before.
    pub(in crate::emit) fn next_part(&mut self) {
        match self.ending {
            Some(_) => self.end_frame(),
            None => self.exits(),
        }
        let asm = mem::replace(&mut self.asm, Asm::new());
        self.ended.push((asm, mem::take(&mut self.source), mem::take(&mut self.reach_at)));
        (self.none, self.unsure) = (self.asm.label(), self.asm.label());
        self.top = 0;
        self.forgot_at = 0;
        self.hold_none();
        self.epoch = self.epoch.saturating_add(1);
        self.enter();
    }

    /// The program, once its pieces have answered.
    pub(in crate::emit) fn end(mut self: Box<Self>, answer: Answer<'_>) -> Result<Program, Unfit> {
        self.word = None;
        self.line();
        self.finish(self.finish, answer.class);
        let stubs = mem::take(&mut self.stubs);
        let unsure = self.unsure;
        self.emit_stubs(stubs, unsure);
        self.exits();
        self.assemble()
    }

    /// Leaves without an answer.
    pub(super) fn exits(&mut self) {
        let place = self.target.place;
        self.word = None;
        self.line();
        let (none, not_sure) = match self.finish {
            Finish::Answer => (0, UNSURE.cast_signed()),
            Finish::Verdict { none, unsure, .. } => (none.value(place), unsure.value(place)),
        };
        for (label, value) in [(self.none, none), (self.unsure, not_sure)] {
            self.bind(label);
            self.asm.push(Insn::alu32(Alu::Mov, R0, value));
            self.tell(self.finish);
            self.asm.push(Insn::exit());
        }
    }

    /// Answers by a word of the context where the return value has a meaning of its own.
    pub(super) fn tell(&mut self, finish: Finish) {
        if self.target.place == Place::Cgroup && finish == Finish::Answer {
            self.asm.push(Insn::store(Size::W, R6, skb::ANSWER, R0));
            self.asm.push(Insn::mov(R0, Verdict::Pass.value(Place::Cgroup)));
        }
    }

    /// Leaves with the last answer.
    pub(super) fn finish(&mut self, finish: Finish, class: Value<'_>) {
        let place = self.target.place;
        self.fetch(class, R0);
        if let Finish::Verdict { found, none, .. } = finish {
            let answered = self.asm.label();
            self.asm.push(Insn::mov(R1, R0));
            self.asm.push(Insn::alu32(Alu::Mov, R0, found.value(place)));
            self.asm.jump_if(Cond::Ne, R1, 0, answered);
            self.asm.push(Insn::alu32(Alu::Mov, R0, none.value(place)));
            self.bind(answered);
        }
        self.tell(finish);
        self.asm.push(Insn::exit());
    }

    /// Begins what becomes of frames of which nobody can tell, if there may be any; `tag_out` says
    /// that it is because of a tag. Answers where the body begins.
    pub(in crate::emit) fn begin_unsure(&mut self, tag_out: bool) -> Option<Label> {
        let unsure = self.unsure;
        if !self.asm.is_used(unsure) {
            return None;
        }
        let known = self.asm.label();
        self.asm.jump(known);
        self.bind(unsure);
        self.is_tag_out = tag_out;
        Some(known)
    }

    /// Begins the body.
    pub(in crate::emit) fn begin_body(&mut self, known: Label, done: Label) {
        self.asm.jump(done);
        self.bind(known);
        self.is_tag_out = false;
        self.top = self.floor;
        self.unsure = self.asm.label();
    }

    /// The program with a desk, once its body has ended.
    pub(in crate::emit) fn end_with_desk(mut self: Box<Self>) -> Result<Program, Unfit> {
        self.word = None;
        self.line();
        let (stubs, done) = (mem::take(&mut self.stubs), self.none);
        self.emit_stubs(stubs, done);
        self.end_frame();
        self.assemble()
    }

    /// What becomes of a frame at the end of a part.
    pub(super) fn end_frame(&mut self) {
        self.word = None;
        self.line();
        // Nobody comes here unsure: every processor has a row for what waits between parts.
        for label in [self.unsure, self.none] {
            self.bind(label);
        }
        let (ending, hands) = (self.ending.take(), self.hands.clone());
        match &ending {
            None => {}
            Some(Ending::Tap(joint)) => self.hand_over(joint, &hands),
            Some(Ending::Take(take)) => self.lead(take, &hands),
        }
        self.ending = ending;
    }

    pub(super) fn assemble(self: Box<Self>) -> Result<Program, Unfit> {
        let pulled = self.reach.min(PULL_MAX).cast_signed();
        if let Some(unfit) = self.unfit {
            return Err(unfit);
        }
        let last = (self.asm, self.source, self.reach_at);
        let own = self.tables.len() + usize::from(!self.counters.is_empty());
        let mut parts = Vec::new();
        for (mut asm, source, reach_at) in self.ended.into_iter().chain([last]) {
            reach_at.into_iter().for_each(|at| asm.patch(at, pulled));
            let mut code = asm.finish().map_err(|mistake| Unfit::new(mistake.to_string()))?;
            if self.counters.is_empty() {
                maps::number_from_zero(&mut code);
            }
            tap::number_given(&mut code, own);
            parts.push(Part { code, source });
        }
        let Part { code, source } = parts.remove(0);
        let mut maps = Vec::new();
        if !self.counters.is_empty() {
            let bytes = self.counters.len() * size_of::<u64>();
            let value_size = u32::try_from(bytes).map_err(|_| Unfit::new("too many counters"))?;
            maps.push(MapSpec::array("counters", value_size));
        }
        maps.extend(self.tables.iter().map(|table| table.spec(&self.words, parts.len())));
        let Self { target, counters, words, reach, edits, .. } = *self;
        let Target { place, hardened, .. } = target;
        Ok(Program { place, hardened, edits, code, maps, counters, words, source, parts, reach })
    }
}
