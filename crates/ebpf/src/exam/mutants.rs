//! Programs with one slip in them: what the exam of the exam is made of.

use super::idle::idle;
use crate::disasm;
use crate::insn::{Alu, Insn, R10, SOURCE_REG, class};
use crate::program::Program;

/// A program with one slip.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The instruction that was changed.
    pub at: usize,
    /// What stands there.
    pub slip: Insn,
    /// The program with it.
    pub program: Program,
}

impl Mutant {
    /// The filter in whose code the slip is, what stood there and what does; without where it jumps
    /// to, which other filters move.
    #[must_use]
    pub fn describe(&self, sound: &Program) -> String {
        let word = sound.word_at(self.at).map_or("frame", |word| word.filter.as_str());
        let text = |insn| {
            let text = disasm::instruction(insn, None);
            text.split(" goto ").next().unwrap_or_default().to_owned()
        };
        let was = sound.code.get(self.at).map_or_else(String::new, |insn| text(*insn));
        format!("{word}: {was} -> {}", text(self.slip))
    }

    /// The same slip in another program that has the same instruction in the same place.
    #[must_use]
    pub fn in_program(&self, sound: &Program, other: &Program) -> Option<Program> {
        let same = sound.code.get(self.at)? == other.code.get(self.at)?;
        same.then(|| with(other, self.at, self.slip))
    }
}

/// The program with one instruction changed, in every way that a slip of the emitter might: a
/// constant or an offset one too high or too low, a comparison turned round or off by equality, the
/// other exit. What nothing depends on is left as it is: nobody could tell.
pub fn mutants(program: &Program) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut wide = false;
    for ((at, insn), idle) in program.code.iter().enumerate().zip(idle(&program.code)) {
        let second = std::mem::replace(&mut wide, insn.is_load64());
        if !second && !insn.is_load64() && !idle {
            let slips = slips(*insn).into_iter();
            mutants.extend(slips.map(|slip| Mutant { at, slip, program: with(program, at, slip) }));
        }
    }
    mutants
}

fn with(program: &Program, at: usize, slip: Insn) -> Program {
    let mut mutant = program.clone();
    mutant.code.splice(at..=at, [slip]);
    mutant
}

fn slips(insn: Insn) -> Vec<Insn> {
    let constants = [-1, 1].map(|by| Insn { imm: insn.imm.wrapping_add(by), ..insn }).to_vec();
    let offsets = [-1, 1].map(|by| Insn { off: insn.off.wrapping_add(by), ..insn }).to_vec();
    let immediate = insn.code & SOURCE_REG == 0;
    match insn.class() {
        class::ALU | class::ALU64 if insn.code & 0xf0 == 0xd0 => Vec::new(),
        class::ALU | class::ALU64 if immediate && insn.code & 0xf0 != Alu::Neg as u8 => constants,
        // Slots of the stack are no decision of a twin.
        class::LDX if insn.src != R10.number() => offsets,
        class::JMP | class::JMP32 if !matches!(insn.code, 0x05 | 0x06 | 0x85 | 0x95) => {
            // Each condition and its opposite differ so in the operation.
            let other = match insn.code & 0xf0 {
                0x10 => 0x50,
                0x20 => 0x30,
                0x30 => 0x20,
                0x50 => 0x10,
                0xa0 => 0xb0,
                0xb0 => 0xa0,
                operation => operation,
            };
            let mut all = if immediate { constants } else { Vec::new() };
            all.push(Insn { code: insn.code & 0x0f | other, ..insn });
            all.retain(|slip| *slip != insn);
            all
        }
        _ => Vec::new(),
    }
}
