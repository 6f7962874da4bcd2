//! Assembler for classic BPF, which turns instructions with labels into a program.
//!
//! Input: pseudo-instructions, with jumps to labels. Output: instructions with jump distances.
//! Unreachable code is dropped. A comparison whose target is more than 255 instructions away
//! branches through an inserted `ja`. Scratch words that may be read before they are written are
//! zeroed at the start, because the kernel rejects programs that read unwritten words.

use std::collections::HashMap;

use super::insn::{Instruction, code};
use super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS};

/// A jump target of classic BPF code, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct JumpLabel(pub(super) u32);

/// An instruction of classic BPF with labels as jump targets, or a directive to the assembler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PseudoInsn {
    /// An instruction that does not branch.
    NonBranching(Instruction),
    /// A conditional jump to `yes` or `no`, depending on a comparison.
    Branch { compare: Comparison, yes: JumpLabel, no: JumpLabel },
    /// An unconditional jump to a label.
    Jump(JumpLabel),
    /// Binds a label to the next instruction.
    Bind(JumpLabel),
}

/// A comparison of register A with another operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Operation code of the comparison: `JEQ`, `JGT`, `JGE` or `JSET`.
    pub(super) op: u16,
    /// The constant to compare with, or `None` to compare with X.
    pub(super) with: Option<u32>,
}

/// Creates an instruction that does not branch.
pub(super) const fn non_branching(code: u16, k: u32) -> PseudoInsn {
    PseudoInsn::NonBranching(Instruction::non_branching(code, k))
}

/// Returns the instruction that loads scratch word `word` into X.
pub(super) const fn load_x_from_word(word: u32) -> PseudoInsn {
    non_branching(code::LDX | code::MEM, word)
}

/// Returns the instruction that loads scratch word `word` into A.
pub(super) const fn load_a_from_word(word: u32) -> PseudoInsn {
    non_branching(code::LD | code::MEM, word)
}

/// Returns the instruction that stores A in scratch word `word`.
pub(super) const fn store_a(word: u32) -> PseudoInsn {
    non_branching(code::ST, word)
}

/// Returns the instruction that loads a constant into A.
pub(super) const fn load_a_constant(k: u32) -> PseudoInsn {
    non_branching(code::LD | code::IMM, k)
}

/// Returns the instruction that computes `A = A op k`.
pub(super) const fn alu_k(op: u16, k: u32) -> PseudoInsn {
    non_branching(code::ALU | op | code::K, k)
}

/// Returns the instruction that computes `A = A op X`.
pub(super) const fn alu_x(op: u16) -> PseudoInsn {
    non_branching(code::ALU | op | code::X, 0)
}

/// Instruction that copies A to X.
pub(super) const TAX: PseudoInsn = non_branching(code::MISC | code::TAX, 0);
/// Instruction that copies X to A.
pub(super) const TXA: PseudoInsn = non_branching(code::MISC | code::TXA, 0);

/// Assembles a program. Sets scratch words that might be read before they are written to 0 at the
/// start. If the program has more than [`INSTRUCTIONS_MAX`] instructions, returns their number as
/// the error.
pub(super) fn assemble_program(lines: Vec<PseudoInsn>) -> Result<Vec<Instruction>, usize> {
    let lines = remove_dead_code(lines);
    let least = lines.iter().filter(|line| !matches!(line, PseudoInsn::Bind(_))).count();
    if least > INSTRUCTIONS_MAX {
        return Err(least);
    }
    let mut instructions = resolve_jump_distances(&lines);
    let zeroed = words_read_before_written(&instructions);
    if zeroed != 0 {
        let words = (0..MEMORY_WORDS).filter(|word| zeroed & (1 << word) != 0);
        let mut first = vec![Instruction::non_branching(code::LD | code::IMM, 0)];
        first.extend(words.map(|word| Instruction::non_branching(code::ST, word)));
        instructions.splice(0..0, first);
    }
    if instructions.len() > INSTRUCTIONS_MAX {
        return Err(instructions.len());
    }
    Ok(instructions)
}

/// Removes unreachable code, and jumps whose target is the next instruction.
fn remove_dead_code(lines: Vec<PseudoInsn>) -> Vec<PseudoInsn> {
    let mut kept: Vec<PseudoInsn> = Vec::with_capacity(lines.len());
    let mut used: Vec<JumpLabel> = lines
        .iter()
        .flat_map(|line| match line {
            PseudoInsn::Branch { yes, no, .. } => vec![*yes, *no],
            PseudoInsn::Jump(label) => vec![*label],
            _ => vec![],
        })
        .collect();
    used.sort_unstable();
    let mut falls_in = true;
    for (at, line) in lines.iter().enumerate() {
        if let PseudoInsn::Bind(label) = line {
            falls_in |= used.binary_search(label).is_ok();
        }
        if !falls_in {
            continue;
        }
        if let PseudoInsn::Jump(label) = line {
            let next =
                lines[at + 1..].iter().take_while(|line| matches!(line, PseudoInsn::Bind(_)));
            if next.clone().any(|line| *line == PseudoInsn::Bind(*label)) {
                continue;
            }
        }
        kept.push(*line);
        falls_in = !ends_control_flow(*line);
    }
    kept
}

fn ends_control_flow(line: PseudoInsn) -> bool {
    match line {
        PseudoInsn::Jump(_) | PseudoInsn::Branch { .. } => true,
        PseudoInsn::NonBranching(instruction) => instruction.class() == code::RET,
        PseudoInsn::Bind(_) => false,
    }
}

/// Converts pseudo-instructions to instructions with jump distances. A comparison whose target is
/// too far away branches through an inserted `ja`.
fn resolve_jump_distances(lines: &[PseudoInsn]) -> Vec<Instruction> {
    let mut far = vec![[false; 2]; lines.len()];
    loop {
        let (starts, places) = instruction_positions(lines, &far);
        let mut grown = false;
        for (at, line) in lines.iter().enumerate() {
            let PseudoInsn::Branch { yes, no, .. } = line else { continue };
            for (side, label) in [(0, yes), (1, no)] {
                let distance = places[label] as i64 - starts[at] as i64 - 1;
                if !far[at][side] && !(0..=255).contains(&distance) {
                    far[at][side] = true;
                    grown = true;
                }
            }
        }
        if !grown {
            return write_instructions(lines, &far, &starts, &places);
        }
    }
}

type LabelPositions = HashMap<JumpLabel, usize>;

fn instruction_positions(lines: &[PseudoInsn], far: &[[bool; 2]]) -> (Vec<usize>, LabelPositions) {
    let mut starts = Vec::with_capacity(lines.len());
    let mut places = HashMap::new();
    let mut next = 0;
    for (line, far) in lines.iter().zip(far) {
        starts.push(next);
        next += match line {
            PseudoInsn::Bind(label) => {
                places.insert(*label, next);
                0
            }
            PseudoInsn::Branch { .. } => 1 + usize::from(far[0]) + usize::from(far[1]),
            _ => 1,
        };
    }
    (starts, places)
}

fn write_instructions(
    lines: &[PseudoInsn],
    far: &[[bool; 2]],
    starts: &[usize],
    places: &LabelPositions,
) -> Vec<Instruction> {
    let mut out = Vec::new();
    let jump = |from: usize, label: &JumpLabel| {
        let distance = places[label] as i64 - from as i64 - 1;
        Instruction::non_branching(code::JMP | code::JA, distance as i32 as u32)
    };
    for (at, line) in lines.iter().enumerate() {
        let start = starts[at];
        match line {
            PseudoInsn::Bind(_) => {}
            PseudoInsn::NonBranching(instruction) => out.push(*instruction),
            PseudoInsn::Jump(label) => out.push(jump(start, label)),
            PseudoInsn::Branch { compare: Comparison { op, with }, yes, no } => {
                let near = |label: &JumpLabel| (places[label] - start - 1) as u8;
                let [far_yes, far_no] = far[at];
                out.push(Instruction {
                    code: code::JMP | op | if with.is_some() { code::K } else { code::X },
                    jt: if far_yes { 0 } else { near(yes) },
                    jf: if far_no { u8::from(far_yes) } else { near(no) },
                    k: with.unwrap_or(0),
                });
                if far_yes {
                    out.push(jump(start + 1, yes));
                }
                if far_no {
                    out.push(jump(start + 1 + usize::from(far_yes), no));
                }
            }
        }
    }
    out
}

/// Returns a bit set of the scratch words that may be read before they are written.
fn words_read_before_written(instructions: &[Instruction]) -> u16 {
    let mut set = vec![None::<u16>; instructions.len()];
    let mut unset = 0;
    let mut work = vec![(0usize, 0u16)];
    while let Some((at, arriving)) = work.pop() {
        let Some(instruction) = instructions.get(at) else { continue };
        let known = set[at].map_or(arriving, |before| before & arriving);
        if set[at] == Some(known) {
            continue;
        }
        set[at] = Some(known);
        let word = 1u16 << (instruction.k & 15);
        let mut after = known;
        match instruction.class() {
            code::ST | code::STX => after |= word,
            code::LD | code::LDX if instruction.code & 0xe0 == code::MEM => unset |= word & !known,
            _ => {}
        }
        if instruction.is_comparison() {
            work.push((at + 1 + usize::from(instruction.jf), after));
            work.push((at + 1 + usize::from(instruction.jt), after));
        } else if instruction.class() == code::JMP {
            let target = at as i64 + 1 + i64::from(instruction.k as i32);
            work.push((usize::try_from(target).unwrap_or(usize::MAX), after));
        } else if instruction.class() != code::RET {
            work.push((at + 1, after));
        }
    }
    unset
}
