//! Mutants of a program, in each of which one instruction is changed. An exam of the program's twin
//! must reveal the changes.

use super::liveness::dead_instructions;
use crate::disasm;
use crate::insn::{Alu, Insn, R10, REGISTER_OPERAND_BIT, class};
use crate::program::Program;

/// A program with one changed instruction.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Slot of the changed instruction.
    pub at: usize,
    /// Instruction that replaces the original one.
    pub replacement: Insn,
    /// The program with the changed instruction.
    pub program: Program,
}

impl Mutant {
    /// Describes the mutation by the filter, the original instruction and the changed one. Omits
    /// jump distances, because they depend on other filters.
    #[must_use]
    pub fn describe(&self, sound: &Program) -> String {
        let word = sound.filter_at(self.at).map_or("frame", |word| word.filter.as_str());
        let text = |insn| {
            let text = disasm::disassemble_insn(insn, None);
            text.split(" goto ").next().unwrap_or_default().to_owned()
        };
        let was = sound.code.get(self.at).map_or_else(String::new, |insn| text(*insn));
        format!("{word}: {was} -> {}", text(self.replacement))
    }
}

/// Returns every mutation of one instruction that a bug in the emitter might cause: a constant or
/// an offset that is off by one, and a comparison that is reversed or treats equality differently.
/// Dead instructions are not mutated, because no judge could notice the difference. Wide
/// instructions are not mutated either.
pub fn mutants(program: &Program) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut wide = false;
    for ((at, insn), is_dead) in
        program.code.iter().enumerate().zip(dead_instructions(&program.code))
    {
        let second = std::mem::replace(&mut wide, insn.is_load_imm64());
        if !second && !insn.is_load_imm64() && !is_dead {
            let replacements = mutated_insns(*insn).into_iter();
            mutants.extend(replacements.map(|replacement| Mutant {
                at,
                replacement,
                program: replace_instruction(program, at, replacement),
            }));
        }
    }
    mutants
}

fn replace_instruction(program: &Program, at: usize, replacement: Insn) -> Program {
    let mut mutant = program.clone();
    mutant.code.splice(at..=at, [replacement]);
    mutant
}

fn mutated_insns(insn: Insn) -> Vec<Insn> {
    let constants = [-1, 1].map(|by| Insn { imm: insn.imm.wrapping_add(by), ..insn }).to_vec();
    let offsets = [-1, 1].map(|by| Insn { off: insn.off.wrapping_add(by), ..insn }).to_vec();
    let immediate = insn.code & REGISTER_OPERAND_BIT == 0;
    match insn.class() {
        class::ALU | class::ALU64 if insn.code & 0xf0 == 0xd0 => Vec::new(),
        class::ALU | class::ALU64 if immediate && insn.code & 0xf0 != Alu::Neg as u8 => constants,
        // Loads from the stack are not mutated, because the choice of a slot affects no decision.
        class::LDX if insn.src != R10.number() => offsets,
        class::JMP | class::JMP32 if !matches!(insn.code, 0x05 | 0x06 | 0x85 | 0x95) => {
            // A comparison and its faulty variant differ in the operation bits.
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
            all.retain(|replacement| *replacement != insn);
            all
        }
        _ => Vec::new(),
    }
}
