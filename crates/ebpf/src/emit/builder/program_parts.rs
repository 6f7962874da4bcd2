//! Parts of a program, the pieces that are loaded as separate programs and linked by tail calls.
//! This module emits the transition between parts and the end of each frame, and assembles the
//! program.

use std::mem;

use super::{Builder, PULLED_BYTES_MAX, skb};
use crate::asm::{Assembler, Label};
use crate::emit::config::FinalAction;
use crate::emit::handle::{Answer, Value};
use crate::emit::maps::{self, ProgramMap};
use crate::emit::target::{ReturnConversion, Target, UNSURE_RETURN_VALUE, Verdict};
use crate::emit::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Insn, R0, R1, R6, Size};
use crate::program::{Hook, MapSpec, Program, TailProgram};

/// Number of instructions after which a part of a program ends at the next twin. The longest twins
/// have a quarter of this number, and the verifier needs a few milliseconds for a part.
const PART_END_INSNS: usize = 4_000;
/// Number of instructions between two resets of the verifier's state. Without resets, the number of
/// paths that the verifier explores doubles with each header parsed.
const VERIFIER_RESET_INSNS: usize = 500;

impl Builder {
    /// Returns true if the current part of the program is long and may end here. A redirecting
    /// program has only one part, because a program that calls a kfunc for tags cannot be entered
    /// by a tail call.
    pub(in crate::emit) fn may_end_part(&self) -> bool {
        let may = self.depth == 0 && !self.target.hardened && !self.redirects;
        may && self.stubs.is_empty() && self.asm.next_slot() >= PART_END_INSNS
    }

    /// Returns true if so much code has been emitted since the last reset of the verifier's state
    /// that another reset is worthwhile.
    pub(in crate::emit) fn may_reset_verifier(&self) -> bool {
        self.depth == 0
            && !self.target.hardened
            && self.asm.next_slot() >= self.verifier_reset_at + VERIFIER_RESET_INSNS
    }

    /// Makes the verifier forget everything except the values of the answer, by releasing the stack
    /// and reloading the packet pointers.
    pub(in crate::emit) fn reset_verifier_state(&mut self) {
        self.verifier_reset_at = self.asm.next_slot();
        self.stack_used = self.floor;
        self.reload_pointers();
    }

    /// Returns the number of finished parts of the program.
    pub(in crate::emit) fn finished_part_count(&self) -> usize {
        self.finished_parts.len()
    }

    /// Returns the numbers of the two maps that link the parts of a program: the rows for values
    /// passed between parts, and the program array. Adds these maps to the program if they are
    /// missing.
    pub(in crate::emit) fn part_map_numbers(&mut self) -> (u32, u32) {
        let rows = self.tables.iter().position(|table| matches!(table, ProgramMap::Rows));
        let rows = rows.unwrap_or_else(|| {
            self.tables.extend([ProgramMap::Rows, ProgramMap::PartPrograms]);
            self.tables.len() - 2
        });
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        (rows + 1, rows + 2)
    }

    /// Ends the current part of the program and begins the next. The new part has the same exits
    /// with the same labels, an empty stack, and no valid positions.
    pub(in crate::emit) fn begin_next_part(&mut self) {
        match self.frame_end {
            Some(_) => self.emit_final_action(),
            None => self.emit_exits(),
        }
        let asm = mem::replace(&mut self.asm, Assembler::new());
        self.finished_parts.push((
            asm,
            mem::take(&mut self.source),
            mem::take(&mut self.reach_patches),
        ));
        (self.none, self.unsure) = (self.asm.new_label(), self.asm.new_label());
        self.stack_used = 0;
        self.verifier_reset_at = 0;
        self.invalidate_registers();
        self.epoch = self.epoch.saturating_add(1);
        self.emit_prologue();
    }

    /// Finishes the program after the answer of the last twin.
    pub(in crate::emit) fn finish_program(
        mut self: Box<Self>,
        answer: Answer<'_>,
    ) -> Result<Program, UnfitReason> {
        self.filter = None;
        self.record_code_owner();
        self.emit_return(self.finish, answer.class);
        let stubs = mem::take(&mut self.stubs);
        let unsure = self.unsure;
        self.emit_stubs(stubs, unsure);
        self.emit_exits();
        self.assemble()
    }

    /// Emits the two exits of a program for blocks without an answer. One is for blocks that a
    /// filter does not recognize, the other for blocks that a twin leaves to the user
    /// implementation.
    pub(super) fn emit_exits(&mut self) {
        let hook = self.target.hook;
        self.filter = None;
        self.record_code_owner();
        let (none, not_sure) = match self.finish {
            ReturnConversion::Answer => (0, UNSURE_RETURN_VALUE.cast_signed()),
            ReturnConversion::Verdict { none, unsure, .. } => {
                (none.return_value(hook), unsure.return_value(hook))
            }
        };
        for (label, value) in [(self.none, none), (self.unsure, not_sure)] {
            self.bind(label);
            self.asm.push(Insn::alu32(Alu::Mov, R0, value));
            self.store_answer(self.finish);
            self.asm.push(Insn::exit());
        }
    }

    /// Emits code that moves the answer of a tested program from the return value to the program's
    /// context. Emits nothing unless the return value at this hook is a verdict.
    pub(super) fn store_answer(&mut self, finish: ReturnConversion) {
        if self.target.hook == Hook::Cgroup && finish == ReturnConversion::Answer {
            self.asm.push(Insn::store(Size::W, R6, skb::ANSWER_OFFSET, R0));
            self.asm.push(Insn::mov(R0, Verdict::Pass.return_value(Hook::Cgroup)));
        }
    }

    /// Emits the return instruction. `finish` determines the return value for an answer with this
    /// class.
    pub(super) fn emit_return(&mut self, finish: ReturnConversion, class: Value<'_>) {
        let hook = self.target.hook;
        self.fetch(class, R0);
        if let ReturnConversion::Verdict { found, none, .. } = finish {
            let answered = self.asm.new_label();
            self.asm.push(Insn::mov(R1, R0));
            self.asm.push(Insn::alu32(Alu::Mov, R0, found.return_value(hook)));
            self.asm.jump_if(Cond::Ne, R1, 0, answered);
            self.asm.push(Insn::alu32(Alu::Mov, R0, none.return_value(hook)));
            self.bind(answered);
        }
        self.store_answer(finish);
        self.asm.push(Insn::exit());
    }

    /// Ends the prologue of a counting program. If the prologue may be unsure about a frame, begins
    /// the code for such frames, and returns the label at which the body must begin; otherwise
    /// returns `None`. `tag_out` is true if the driver has removed the tag of these frames.
    pub(in crate::emit) fn begin_unsure_code(&mut self, tag_out: bool) -> Option<Label> {
        let unsure = self.unsure;
        if !self.asm.is_used(unsure) {
            return None;
        }
        let known = self.asm.new_label();
        self.asm.jump(known);
        self.bind(unsure);
        self.is_tag_out = tag_out;
        Some(known)
    }

    /// Ends the code for unsure frames with a jump to `done`, and begins the body of the counting
    /// program at the label `known`.
    pub(in crate::emit) fn begin_body(&mut self, known: Label, done: Label) {
        self.asm.jump(done);
        self.bind(known);
        self.is_tag_out = false;
        self.stack_used = self.floor;
        self.unsure = self.asm.new_label();
    }

    /// Finishes a counting program, after its body.
    pub(in crate::emit) fn finish_counting_program(
        mut self: Box<Self>,
    ) -> Result<Program, UnfitReason> {
        self.filter = None;
        self.record_code_owner();
        let (stubs, done) = (mem::take(&mut self.stubs), self.none);
        self.emit_stubs(stubs, done);
        self.emit_final_action();
        self.assemble()
    }

    /// Emits the final action of a counting program on a frame, at the end of a part.
    pub(super) fn emit_final_action(&mut self) {
        self.filter = None;
        self.record_code_owner();
        // No frame takes the `unsure` exit here, because every processor has a row for the values
        // between parts.
        for label in [self.unsure, self.none] {
            self.bind(label);
        }
        let (frame_end, deliveries) = (self.frame_end.take(), self.deliveries.clone());
        match &frame_end {
            None => {}
            Some(FinalAction::Tap(fused)) => self.deliver_to_all_owners(fused, &deliveries),
            Some(FinalAction::Redirect(take)) => self.emit_redirect_end(take, &deliveries),
        }
        self.frame_end = frame_end;
    }

    pub(super) fn assemble(self: Box<Self>) -> Result<Program, UnfitReason> {
        let pulled = self.reach.min(PULLED_BYTES_MAX).cast_signed();
        if let Some(unfit) = self.unfit {
            return Err(unfit);
        }
        let last = (self.asm, self.source, self.reach_patches);
        let own = self.tables.len() + usize::from(!self.counters.is_empty());
        let mut parts = Vec::new();
        for (mut asm, source, reach_patches) in self.finished_parts.into_iter().chain([last]) {
            reach_patches.into_iter().for_each(|at| asm.patch_immediate(at, pulled));
            let mut code = asm.finish().map_err(|error| UnfitReason::new(error.to_string()))?;
            maps::assign_map_numbers(&mut code, !self.counters.is_empty(), own);
            parts.push(TailProgram { code, source_map: source });
        }
        let TailProgram { code, source_map: source } = parts.remove(0);
        let mut maps = Vec::new();
        if !self.counters.is_empty() {
            let bytes = self.counters.len() * size_of::<u64>();
            let value_size =
                u32::try_from(bytes).map_err(|_| UnfitReason::new("too many counters"))?;
            maps.push(MapSpec::array("counters", value_size));
        }
        maps.extend(self.tables.iter().map(|table| table.map_spec(&self.filters, parts.len())));
        let Self { target, counters, filters, reach, edits, .. } = *self;
        let Target { hook, hardened, .. } = target;
        Ok(Program {
            hook,
            hardened,
            edits_frames: edits,
            code,
            maps,
            counters,
            filters,
            source_map: source,
            tails: parts,
            read_end: reach,
        })
    }
}
