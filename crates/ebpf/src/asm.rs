//! Assembler for eBPF, which appends instructions and resolves forward jumps to labels.
//!
//! Input: instructions and labels. Output: `Vec<Insn>` in which every jump has its distance, or the
//! first error. Jumps are forward only, so every program terminates and the verifier needs no loop
//! bound. Unreachable instructions (after an exit or an unconditional jump, and before a used
//! label) are dropped, because the verifier rejects them.
//!
//! A *slot* is the 8 bytes of an instruction; a wide instruction occupies two. Slots are numbered
//! from 0, and jump distances count slots.

use std::fmt;

use crate::insn::{Alu, Cond, Insn, Operand, R0, Reg, class};

/// A jump target in a program under construction. Jumps only go forward, so a label is bound after
/// all jumps to it have been appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Label(usize);

/// An error in the instructions or labels of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsmError {
    /// A jump refers to an unbound label.
    UnboundLabel {
        /// Slot of the jump to the unbound label.
        at: usize,
    },
    /// A label is bound twice, or bound before a jump that refers to it.
    ReboundLabel {
        /// Slot of the second binding of the label, or of the jump that follows the binding.
        at: usize,
    },
    /// The distance of a jump exceeds 32,767 slots.
    JumpTooLong {
        /// Slot of the jump that is too long.
        at: usize,
    },
    /// Execution can continue past the last instruction.
    MissingExit,
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnboundLabel { at } => write!(f, "the jump at {at} names an unbound label"),
            Self::ReboundLabel { at } => write!(f, "a label is bound a second time at {at}"),
            Self::JumpTooLong { at } => {
                write!(f, "the jump at {at} spans more than 32,767 instructions")
            }
            Self::MissingExit => write!(f, "the program has no exit at its end"),
        }
    }
}

impl std::error::Error for AsmError {}

/// An eBPF program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Insn>,
    labels: Vec<LabelSite>,
    jumps: Vec<(usize, Label)>,
    dead: bool,
    error: Option<AsmError>,
}

#[derive(Debug, Default)]
struct LabelSite {
    at: Option<usize>,
    used: bool,
}

impl Assembler {
    /// Creates a program without instructions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a label that is not bound yet.
    pub fn new_label(&mut self) -> Label {
        self.labels.push(LabelSite::default());
        Label(self.labels.len() - 1)
    }

    /// Returns true if a reachable jump refers to the label.
    pub fn is_used(&self, label: Label) -> bool {
        self.labels.get(label.0).is_some_and(|site| site.used)
    }

    /// Returns the slot number of the next instruction.
    pub fn next_slot(&self) -> usize {
        self.code.len()
    }

    /// Binds the label to the next instruction.
    pub fn bind(&mut self, label: Label) {
        let at = self.code.len();
        let Some(site) = self.labels.get_mut(label.0) else { return };
        if site.at.replace(at).is_some() {
            self.record_error(AsmError::ReboundLabel { at });
        } else if site.used {
            self.dead = false;
        }
    }

    /// Appends an instruction, or drops it if it is unreachable.
    pub fn push(&mut self, insn: Insn) {
        if !self.dead {
            self.code.push(insn);
            let exit = insn == Insn::exit();
            let jump = insn.code == class::JMP || insn.code == class::JMP32;
            self.dead = exit || jump;
        }
    }

    /// Appends code that computes `dst = src op operand` in 64 bits. `dst` and `operand` must
    /// differ.
    pub fn compute(&mut self, dst: Reg, src: Reg, op: Alu, operand: impl Into<Operand>) {
        self.push(Insn::mov(dst, src));
        self.push(Insn::alu(op, dst, operand));
    }

    /// Appends instructions that exit the program with the return value `value`.
    pub fn exit_with(&mut self, value: i32) {
        self.push(Insn::mov(R0, value));
        self.push(Insn::exit());
    }

    /// Appends code that sets the register `to` to the address of byte `index * stride` in the only
    /// element of a map. Clobbers the register `index`.
    pub fn load_map_address(&mut self, to: Reg, map: u32, index: Reg, stride: i32) {
        self.push(Insn::alu(Alu::Mul, index, stride));
        self.push_wide(Insn::load_map_value(to, map, 0));
        self.push(Insn::alu(Alu::Add, to, index));
    }

    /// Appends both slots of a wide instruction, or drops both if they are unreachable.
    pub fn push_wide(&mut self, insns: [Insn; 2]) {
        if !self.dead {
            self.code.extend(insns);
        }
    }

    /// Appends a jump to the label.
    pub fn jump(&mut self, to: Label) {
        self.push_jump(Insn::jump(0), to);
    }

    /// Appends a jump to the label. The jump is taken if `dst cond operand` holds in a 64-bit
    /// comparison.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, to: Label) {
        self.push_jump(Insn::jump_if(cond, dst, operand, 0), to);
    }

    /// Appends a jump to the label. The jump is taken if `dst cond operand` holds in a 32-bit
    /// comparison.
    pub fn jump32_if(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, to: Label) {
        self.push_jump(Insn::jump32_if(cond, dst, operand, 0), to);
    }

    /// Replaces the immediate of the instruction at slot `at` with a constant that was unknown when
    /// the instruction was appended.
    pub fn patch_immediate(&mut self, at: usize, imm: i32) {
        if let Some(insn) = self.code.get_mut(at) {
            insn.imm = imm;
        }
    }

    /// Resolves all jumps and returns the instructions. Fails if the program has an error; if it
    /// has several, returns one of them.
    pub fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for (at, label) in &self.jumps {
            let target = self.labels.get(label.0).and_then(|site| site.at);
            let target = target.ok_or(AsmError::UnboundLabel { at: *at })?;
            let too_long = AsmError::JumpTooLong { at: *at };
            let distance = target.checked_sub(at + 1).ok_or(AsmError::ReboundLabel { at: *at })?;
            let off = i16::try_from(distance).map_err(|_| too_long)?;
            if let Some(insn) = self.code.get_mut(*at) {
                insn.off = off;
            }
        }
        if self.dead { Ok(self.code) } else { Err(AsmError::MissingExit) }
    }

    fn push_jump(&mut self, insn: Insn, to: Label) {
        if self.dead {
            return;
        }
        let at = self.code.len();
        match self.labels.get_mut(to.0) {
            Some(LabelSite { at: None, used }) => *used = true,
            _ => self.record_error(AsmError::ReboundLabel { at }),
        }
        self.jumps.push((at, to));
        self.push(insn);
    }

    fn record_error(&mut self, error: AsmError) {
        self.error.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{R0, R1};

    #[test]
    fn forward_jumps_reach_their_label() {
        let mut asm = Assembler::new();
        let (odd, end) = (asm.new_label(), asm.new_label());
        asm.push(Insn::mov(R0, 0));
        asm.jump_if(Cond::Set, R1, 1, odd);
        asm.jump(end);
        asm.bind(odd);
        asm.push(Insn::mov(R0, 1));
        asm.bind(end);
        asm.push(Insn::exit());
        let code = asm.finish().unwrap();
        assert_eq!([code[1].off, code[2].off], [1, 1]);
        assert_eq!(code.len(), 5);
    }

    #[test]
    fn unreachable_code_is_dropped() {
        let mut asm = Assembler::new();
        let (end, unused) = (asm.new_label(), asm.new_label());
        asm.push(Insn::mov(R0, 0));
        asm.jump(end);
        asm.push(Insn::mov(R0, 1));
        asm.jump(unused);
        asm.bind(unused);
        asm.push(Insn::mov(R0, 2));
        asm.bind(end);
        asm.push(Insn::exit());
        assert!(!asm.is_used(unused));
        assert_eq!(asm.finish().unwrap(), [Insn::mov(R0, 0), Insn::jump(0), Insn::exit()]);
    }

    #[test]
    fn assembler_reports_label_and_control_flow_errors() {
        let mut open = Assembler::new();
        open.push(Insn::mov(R0, 0));
        assert_eq!(open.finish(), Err(AsmError::MissingExit));

        let mut unbound = Assembler::new();
        let label = unbound.new_label();
        unbound.jump(label);
        assert_eq!(unbound.finish(), Err(AsmError::UnboundLabel { at: 0 }));

        let mut back = Assembler::new();
        let label = back.new_label();
        back.bind(label);
        back.jump(label);
        assert_eq!(back.finish(), Err(AsmError::ReboundLabel { at: 0 }));

        let mut far = Assembler::new();
        let label = far.new_label();
        far.jump_if(Cond::Eq, R1, 0, label);
        (0..40_000).for_each(|_| far.push(Insn::mov(R0, 0)));
        far.bind(label);
        far.push(Insn::exit());
        assert_eq!(far.finish(), Err(AsmError::JumpTooLong { at: 0 }));
    }
}
