//! Writer for the code of a socket filter, into which programs are copied.
//!
//! Input: programs. Output: code with labels, which [`super::super::assemble`] turns into a
//! program. Return instructions of a copied program become jumps to the filter's two returns,
//! because the kernel's check of scratch words assumes that control continues after a return.

use super::super::assemble::{
    Comparison, JumpLabel, PseudoInsn, TXA, alu_x, assemble_program, load_a_constant,
    load_a_from_word, non_branching, store_a,
};
use super::super::insn::{Instruction, code};
use super::super::program::{ClassicProgram, MEMORY_WORDS};
use super::error::SocketFilterError;
use super::reachability::{InsnReachability, instruction_reachability};
use super::restored_tag::rewrite_for_absent_tag;

/// Return value that accepts a frame at its full length.
pub const ACCEPT_WHOLE_FRAME: u32 = u32::MAX;

/// The location of the outermost VLAN tag in the frames for which a copy of a program is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagPlacement {
    /// The tag is in the frame, at bytes 12 to 15.
    Inline,
    /// The tag is in the skb, so the frame is four bytes shorter than on the wire.
    InSkb,
    /// The tag is in the frame, at bytes 12 to 15, and the program expects it in the skb.
    Restored,
    /// The frame has no tag, and the program may load tags from the skb.
    Absent,
}

impl TagPlacement {
    /// Returns true if the copy of a program keeps the program's return values. Otherwise, the copy
    /// returns [`ACCEPT_WHOLE_FRAME`] or 0.
    const fn keeps_returned_values(self) -> bool {
        matches!(self, Self::Restored | Self::Absent)
    }
}

/// The code of a socket filter under construction.
#[derive(Debug)]
pub(super) struct CodeWriter {
    code: Vec<PseudoInsn>,
    labels: u32,
    /// Label of the code that accepts the frame.
    pub(super) accept: JumpLabel,
    /// Label of the code that rejects the frame.
    pub(super) reject: JumpLabel,
}

impl Default for CodeWriter {
    fn default() -> Self {
        Self { code: Vec::new(), labels: 2, accept: JumpLabel(0), reject: JumpLabel(1) }
    }
}

impl CodeWriter {
    /// Creates a label that is not bound yet.
    pub(super) const fn new_label(&mut self) -> JumpLabel {
        self.labels += 1;
        JumpLabel(self.labels - 1)
    }

    /// Binds the label to the next instruction.
    pub(super) fn bind(&mut self, label: JumpLabel) {
        self.code.push(PseudoInsn::Bind(label));
    }

    /// Appends instructions that do not branch.
    pub(super) fn push_all(&mut self, instructions: impl IntoIterator<Item = PseudoInsn>) {
        self.code.extend(instructions);
    }

    /// Appends a load into A of the 32-bit word at the constant offset `k`.
    pub(super) fn load_word(&mut self, k: u32) {
        self.code.push(non_branching(code::LD | code::ABS | code::W, k));
    }

    /// Appends a load into A of the 16-bit word at the constant offset `k`.
    pub(super) fn load_half(&mut self, k: u32) {
        self.code.push(non_branching(code::LD | code::ABS | code::H, k));
    }

    /// Appends a jump to `label`.
    pub(super) fn jump(&mut self, label: JumpLabel) {
        self.code.push(PseudoInsn::Jump(label));
    }

    /// Appends a jump to `yes` if the comparison `op` of A with `k` holds, and otherwise to `no`.
    pub(super) fn branch(&mut self, op: u16, k: u32, yes: JumpLabel, no: JumpLabel) {
        self.code.push(PseudoInsn::Branch { compare: Comparison { op, with: Some(k) }, yes, no });
    }

    /// Appends a jump to `yes` if A equals `k`, and otherwise to `no`.
    pub(super) fn branch_if_equal(&mut self, k: u32, yes: JumpLabel, no: JumpLabel) {
        self.branch(code::JEQ, k, yes, no);
    }

    /// Appends a copy of a program without loops. Code before the copy must leave 0 in X; A may
    /// have any value.
    pub(super) fn copy_program(
        &mut self,
        program: &ClassicProgram,
        tag: TagPlacement,
    ) -> Result<(), SocketFilterError> {
        let instructions = program.instructions();
        let labels: Vec<JumpLabel> = instructions.iter().map(|_| self.new_label()).collect();
        let free = find_unused_word(instructions);
        let instruction_reachability = match tag {
            TagPlacement::InSkb => instruction_reachability(instructions),
            TagPlacement::Inline | TagPlacement::Restored | TagPlacement::Absent => {
                vec![InsnReachability::Unchanged; instructions.len()]
            }
        };
        // Programs expect A to be zero, unless they load A first.
        if instructions.first().is_none_or(|first| first.class() != code::LD) {
            self.push_all([load_a_constant(0)]);
        }
        let reached = instructions.iter().zip(instruction_reachability).enumerate();
        for (at, (instruction, fate)) in
            reached.filter(|(_, (_, fate))| *fate != InsnReachability::Unreachable)
        {
            self.bind(labels[at]);
            let target = |distance: usize| match instructions.get(at + 1 + distance) {
                Some(_) if tag.keeps_returned_values() => labels[at + 1 + distance],
                Some(end) if end.code == code::RET | code::K && end.k == 0 => self.reject,
                Some(end) if end.code == code::RET | code::K => self.accept,
                // Targets of a validated program lie inside it.
                _ => labels.get(at + 1 + distance).copied().unwrap_or(self.reject),
            };
            match instruction.class() {
                code::JMP if instruction.is_comparison() => {
                    let by_x = instruction.code & code::X != 0;
                    let with = (!by_x).then_some(instruction.k);
                    let compare = Comparison { op: instruction.code & 0xf0, with };
                    let yes = target(instruction.jt.into());
                    let no = target(instruction.jf.into());
                    match fate {
                        InsnReachability::Decided(holds) => self.jump(if holds { yes } else { no }),
                        _ => self.code.push(PseudoInsn::Branch { compare, yes, no }),
                    }
                }
                code::JMP => self.jump(target(instruction.k as usize)),
                code::RET if tag.keeps_returned_values() => {
                    self.push_all([PseudoInsn::NonBranching(*instruction)]);
                }
                code::RET if instruction.code == code::RET | code::A => {
                    self.branch_if_equal(0, self.reject, self.accept);
                }
                code::RET => self.jump(if instruction.k == 0 { self.reject } else { self.accept }),
                _ => self.copy_instruction(*instruction, tag, free)?,
            }
        }
        Ok(())
    }

    /// Appends the copy of an instruction that does not branch, rewritten for frames whose tag is
    /// at `tag`.
    fn copy_instruction(
        &mut self,
        instruction: Instruction,
        tag: TagPlacement,
        free: Option<u32>,
    ) -> Result<(), SocketFilterError> {
        match tag {
            TagPlacement::Restored => return self.rewrite_for_restored_tag(instruction, free),
            TagPlacement::Absent => {
                self.push_all([rewrite_for_absent_tag(instruction)]);
                return Ok(());
            }
            TagPlacement::Inline | TagPlacement::InSkb => {}
        }
        if is_beyond_every_frame(instruction) {
            self.jump(self.reject);
            return Ok(());
        }
        match instruction.code & 0xf7 {
            shift if [code::LSH, code::RSH].map(|op| code::ALU | op).contains(&shift) => {
                match instruction.code & code::X {
                    0 => self.push_all([PseudoInsn::NonBranching(instruction)]),
                    _ => self.push_shift(
                        instruction.code & 0xf0,
                        free.ok_or(SocketFilterError::NoScratchWord)?,
                    ),
                }
                Ok(())
            }
            _ if tag == TagPlacement::InSkb => self.rewrite_for_skb_tag(instruction, free),
            _ => {
                self.push_all([PseudoInsn::NonBranching(instruction)]);
                Ok(())
            }
        }
    }

    /// Appends a shift of A by X with the semantics of user space, where a shift by 32 or more
    /// yields 0. The kernel shifts by X modulo 32.
    fn push_shift(&mut self, op: u16, free: u32) {
        let (large, small, done) = (self.new_label(), self.new_label(), self.new_label());
        self.push_all([store_a(free), TXA]);
        self.branch(code::JGE, 32, large, small);
        self.bind(large);
        self.push_all([load_a_constant(0)]);
        self.jump(done);
        self.bind(small);
        self.push_all([load_a_from_word(free), alu_x(op)]);
        self.bind(done);
    }

    /// Appends the two return instructions of the filter and assembles it. Fails if it has too many
    /// instructions.
    pub(super) fn finish(mut self) -> Result<ClassicProgram, SocketFilterError> {
        for (label, value) in [(self.accept, ACCEPT_WHOLE_FRAME), (self.reject, 0)] {
            self.bind(label);
            self.push_all([non_branching(code::RET | code::K, value)]);
        }
        let too_long = |length| SocketFilterError::TooLong { length };
        let instructions = assemble_program(self.code).map_err(too_long)?;
        let length = instructions.len();
        ClassicProgram::new(instructions).map_err(|_| too_long(length))
    }
}

/// Returns true if the instruction loads at an offset beyond every frame, where the kernel would
/// load ancillary data instead.
fn is_beyond_every_frame(instruction: Instruction) -> bool {
    let loads = matches!(instruction.class(), code::LD | code::LDX);
    let mode = instruction.code & 0xe0;
    loads && matches!(mode, code::ABS | code::IND | code::MSH) && instruction.k > i32::MAX as u32
}

/// Returns the number of a scratch word that the program does not use; `None` if the program uses
/// all of them.
fn find_unused_word(instructions: &[Instruction]) -> Option<u32> {
    let uses = |instruction: &&Instruction| match instruction.class() {
        code::ST | code::STX => true,
        code::LD | code::LDX => instruction.code & 0xe0 == code::MEM,
        _ => false,
    };
    let used = instructions.iter().filter(uses).fold(0u32, |used, i| used | 1 << (i.k & 15));
    (0..MEMORY_WORDS).rev().find(|word| used & (1 << word) == 0)
}
