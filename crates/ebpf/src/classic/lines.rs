//! Instructions with labels instead of distances, and the program that they become.
//!
//! In: lines, jumps naming labels; out: instructions, each jump with its distance. What no way
//! leads to is left out; a comparison whose target is more than 255 instructions away goes through
//! a `ja` behind it; scratch words that some way might read before it writes them are set to zero
//! first, because the kernel refuses programs that do not.

use std::collections::HashMap;

use super::insn::{Instruction, code};
use super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS};

/// A place among lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Label(pub(super) u32);

/// An instruction, or what holds a run of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// An instruction that falls through to the next.
    Plain(Instruction),
    /// A comparison that stays inside the run.
    Branch { compare: Compare, yes: Label, no: Label },
    /// A jump that stays inside the run.
    Goto(Label),
    /// The place that a label names.
    Place(Label),
}

/// A comparison of A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compare {
    /// `JEQ`, `JGT`, `JGE` or `JSET`.
    pub(super) op: u16,
    /// The constant, or X.
    pub(super) with: Option<u32>,
}

/// An instruction as a line.
pub(super) const fn line(code: u16, k: u32) -> Line {
    Line::Plain(Instruction::plain(code, k))
}

/// `ldx M[word]`
pub(super) const fn memory_to_x(word: u32) -> Line {
    line(code::LDX | code::MEM, word)
}

/// `ld M[word]`
pub(super) const fn memory_to_a(word: u32) -> Line {
    line(code::LD | code::MEM, word)
}

/// `st M[word]`
pub(super) const fn store_a(word: u32) -> Line {
    line(code::ST, word)
}

/// `ld #k`
pub(super) const fn constant_to_a(k: u32) -> Line {
    line(code::LD | code::IMM, k)
}

/// Arithmetic on A with a constant.
pub(super) const fn alu_k(op: u16, k: u32) -> Line {
    line(code::ALU | op | code::K, k)
}

/// Arithmetic on A with X.
pub(super) const fn alu_x(op: u16) -> Line {
    line(code::ALU | op | code::X, 0)
}

/// `tax`
pub(super) const TAX: Line = line(code::MISC | code::TAX, 0);
/// `txa`
pub(super) const TXA: Line = line(code::MISC | code::TXA, 0);

/// The program of these lines, or its length if that is more than a program may have.
pub(super) fn assembled(lines: Vec<Line>) -> Result<Vec<Instruction>, usize> {
    let lines = drop_unused(lines);
    let least = lines.iter().filter(|line| !matches!(line, Line::Place(_))).count();
    if least > INSTRUCTIONS_MAX {
        return Err(least);
    }
    let mut instructions = assemble(&lines);
    let zeroed = unset_words(&instructions);
    if zeroed != 0 {
        let words = (0..MEMORY_WORDS).filter(|word| zeroed & (1 << word) != 0);
        let mut first = vec![Instruction::plain(code::LD | code::IMM, 0)];
        first.extend(words.map(|word| Instruction::plain(code::ST, word)));
        instructions.splice(0..0, first);
    }
    if instructions.len() > INSTRUCTIONS_MAX {
        return Err(instructions.len());
    }
    Ok(instructions)
}

/// Drops jumps to the next instruction, and what no way leads to.
fn drop_unused(lines: Vec<Line>) -> Vec<Line> {
    let mut kept: Vec<Line> = Vec::with_capacity(lines.len());
    let mut used: Vec<Label> = lines
        .iter()
        .flat_map(|line| match line {
            Line::Branch { yes, no, .. } => vec![*yes, *no],
            Line::Goto(label) => vec![*label],
            _ => vec![],
        })
        .collect();
    used.sort_unstable();
    let mut falls_in = true;
    for (at, line) in lines.iter().enumerate() {
        if let Line::Place(label) = line {
            falls_in |= used.binary_search(label).is_ok();
        }
        if !falls_in {
            continue;
        }
        if let Line::Goto(label) = line {
            let next = lines[at + 1..].iter().take_while(|line| matches!(line, Line::Place(_)));
            if next.clone().any(|line| *line == Line::Place(*label)) {
                continue;
            }
        }
        kept.push(*line);
        falls_in = !ends(*line);
    }
    kept
}

fn ends(line: Line) -> bool {
    match line {
        Line::Goto(_) | Line::Branch { .. } => true,
        Line::Plain(instruction) => instruction.class() == code::RET,
        Line::Place(_) => false,
    }
}

/// Gives every line its place, and every jump its distance.
fn assemble(lines: &[Line]) -> Vec<Instruction> {
    let mut far = vec![[false; 2]; lines.len()];
    loop {
        let (starts, places) = lay_out(lines, &far);
        let mut grown = false;
        for (at, line) in lines.iter().enumerate() {
            let Line::Branch { yes, no, .. } = line else { continue };
            for (side, label) in [(0, yes), (1, no)] {
                let distance = places[label] as i64 - starts[at] as i64 - 1;
                if !far[at][side] && !(0..=255).contains(&distance) {
                    far[at][side] = true;
                    grown = true;
                }
            }
        }
        if !grown {
            return write(lines, &far, &starts, &places);
        }
    }
}

type Places = HashMap<Label, usize>;

fn lay_out(lines: &[Line], far: &[[bool; 2]]) -> (Vec<usize>, Places) {
    let mut starts = Vec::with_capacity(lines.len());
    let mut places = HashMap::new();
    let mut next = 0;
    for (line, far) in lines.iter().zip(far) {
        starts.push(next);
        next += match line {
            Line::Place(label) => {
                places.insert(*label, next);
                0
            }
            Line::Branch { .. } => 1 + usize::from(far[0]) + usize::from(far[1]),
            _ => 1,
        };
    }
    (starts, places)
}

fn write(lines: &[Line], far: &[[bool; 2]], starts: &[usize], places: &Places) -> Vec<Instruction> {
    let mut out = Vec::new();
    let jump = |from: usize, label: &Label| {
        let distance = places[label] as i64 - from as i64 - 1;
        Instruction::plain(code::JMP | code::JA, distance as i32 as u32)
    };
    for (at, line) in lines.iter().enumerate() {
        let start = starts[at];
        match line {
            Line::Place(_) => {}
            Line::Plain(instruction) => out.push(*instruction),
            Line::Goto(label) => out.push(jump(start, label)),
            Line::Branch { compare: Compare { op, with }, yes, no } => {
                let near = |label: &Label| (places[label] - start - 1) as u8;
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

/// The scratch words, one bit each, that may be read before they are written.
fn unset_words(instructions: &[Instruction]) -> u16 {
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
