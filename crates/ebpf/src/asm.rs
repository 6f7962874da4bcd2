//! Assembler: instructions in order, jumps to labels that are bound later.
//!
//! In: instructions, labels. Out: `Vec<Insn>` with every distance filled in, or the first mistake.
//! Jumps may go forward only: a program that cannot go back ends, and the verifier needs no proof.
//! What cannot be reached (after a jump, before a label that somebody uses) is left out, because
//! the verifier refuses it.

use std::fmt;

use crate::insn::{Cond, Insn, Operand, Reg, class};

/// A place that jumps may name before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(usize);

/// Why the pieces do not make a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsmError {
    /// A jump names a label that was never bound.
    Unbound {
        /// The slot of the jump.
        at: usize,
    },
    /// A label was bound a second time, or after a jump that lies behind it.
    Rebound {
        /// The slot of the second place.
        at: usize,
    },
    /// A jump goes further than 32,767 slots.
    Far {
        /// The slot of the jump.
        at: usize,
    },
    /// The last instruction falls off the end.
    OpenEnd,
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbound { at } => write!(f, "the jump at {at} names a label without a place"),
            Self::Rebound { at } => write!(f, "a label gets a second place at {at}"),
            Self::Far { at } => write!(f, "the jump at {at} goes further than 32,767 instructions"),
            Self::OpenEnd => write!(f, "the program has no exit at its end"),
        }
    }
}

impl std::error::Error for AsmError {}

/// A program in the making.
#[derive(Debug, Default)]
pub struct Asm {
    code: Vec<Insn>,
    labels: Vec<Place>,
    jumps: Vec<(usize, Label)>,
    dead: bool,
    mistake: Option<AsmError>,
}

#[derive(Debug, Default)]
struct Place {
    at: Option<usize>,
    used: bool,
}

impl Asm {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label, not yet bound.
    pub fn label(&mut self) -> Label {
        self.labels.push(Place::default());
        Label(self.labels.len() - 1)
    }

    /// Whether a jump that was kept names this label.
    pub fn is_used(&self, label: Label) -> bool {
        self.labels.get(label.0).is_some_and(|place| place.used)
    }

    /// Whether the next instruction can be reached from the one before.
    pub fn is_reachable(&self) -> bool {
        !self.dead
    }

    /// Slots so far: where the next instruction will stand.
    pub fn here(&self) -> usize {
        self.code.len()
    }

    /// Puts the label here.
    pub fn bind(&mut self, label: Label) {
        let at = self.code.len();
        let Some(place) = self.labels.get_mut(label.0) else { return };
        if place.at.replace(at).is_some() {
            self.fail(AsmError::Rebound { at });
        } else if place.used {
            self.dead = false;
        }
    }

    /// Appends an instruction, if it can be reached.
    pub fn push(&mut self, insn: Insn) {
        if !self.dead {
            self.code.push(insn);
            let exit = insn == Insn::exit();
            let jump = insn.code == class::JMP || insn.code == class::JMP32;
            self.dead = exit || jump;
        }
    }

    /// Appends both slots of a wide instruction, if they can be reached.
    pub fn push_wide(&mut self, insns: [Insn; 2]) {
        if !self.dead {
            self.code.extend(insns);
        }
    }

    /// Jumps to the label.
    pub fn jump(&mut self, to: Label) {
        self.jump_with(Insn::jump(0), to);
    }

    /// Jumps to the label if `dst cond operand`, compared as 64 bits.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, to: Label) {
        self.jump_with(Insn::jump_if(cond, dst, operand, 0), to);
    }

    /// Jumps to the label if `dst cond operand`, compared as 32 bits.
    pub fn jump32_if(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, to: Label) {
        self.jump_with(Insn::jump32_if(cond, dst, operand, 0), to);
    }

    /// Changes the constant of the instruction at `at`: for what is known only at the end.
    pub fn patch(&mut self, at: usize, imm: i32) {
        if let Some(insn) = self.code.get_mut(at) {
            insn.imm = imm;
        }
    }

    /// The program, all distances filled in.
    pub fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        for (at, label) in &self.jumps {
            let target = self.labels.get(label.0).and_then(|place| place.at);
            let target = target.ok_or(AsmError::Unbound { at: *at })?;
            let far = AsmError::Far { at: *at };
            let distance = target.checked_sub(at + 1).ok_or(AsmError::Rebound { at: *at })?;
            let off = i16::try_from(distance).map_err(|_| far)?;
            if let Some(insn) = self.code.get_mut(*at) {
                insn.off = off;
            }
        }
        if self.dead { Ok(self.code) } else { Err(AsmError::OpenEnd) }
    }

    fn jump_with(&mut self, insn: Insn, to: Label) {
        if self.dead {
            return;
        }
        let at = self.code.len();
        match self.labels.get_mut(to.0) {
            Some(Place { at: None, used }) => *used = true,
            _ => self.fail(AsmError::Rebound { at }),
        }
        self.jumps.push((at, to));
        self.push(insn);
    }

    fn fail(&mut self, mistake: AsmError) {
        self.mistake.get_or_insert(mistake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{R0, R1};

    #[test]
    fn forward_jumps_find_their_label() {
        let mut asm = Asm::new();
        let (odd, end) = (asm.label(), asm.label());
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
    fn what_cannot_be_reached_is_left_out() {
        let mut asm = Asm::new();
        let (end, nobody) = (asm.label(), asm.label());
        asm.push(Insn::mov(R0, 0));
        asm.jump(end);
        asm.push(Insn::mov(R0, 1));
        asm.jump(nobody);
        asm.bind(nobody);
        asm.push(Insn::mov(R0, 2));
        asm.bind(end);
        asm.push(Insn::exit());
        assert!(!asm.is_used(nobody));
        assert_eq!(asm.finish().unwrap(), [Insn::mov(R0, 0), Insn::jump(0), Insn::exit()]);
    }

    #[test]
    fn mistakes_are_named() {
        let mut open = Asm::new();
        open.push(Insn::mov(R0, 0));
        assert_eq!(open.finish(), Err(AsmError::OpenEnd));

        let mut unbound = Asm::new();
        let label = unbound.label();
        unbound.jump(label);
        assert_eq!(unbound.finish(), Err(AsmError::Unbound { at: 0 }));

        let mut back = Asm::new();
        let label = back.label();
        back.bind(label);
        back.jump(label);
        assert_eq!(back.finish(), Err(AsmError::Rebound { at: 0 }));

        let mut far = Asm::new();
        let label = far.label();
        far.jump_if(Cond::Eq, R1, 0, label);
        (0..40_000).for_each(|_| far.push(Insn::mov(R0, 0)));
        far.bind(label);
        far.push(Insn::exit());
        assert_eq!(far.finish(), Err(AsmError::Far { at: 0 }));
    }
}
