//! Writes a graph of blocks as a program.
//!
//! In: a graph and the answers for accepting and rejecting; out: the instructions. Blocks stand in
//! the order in which the text asks; a comparison whose target is more than 255 instructions away
//! goes through a `ja` behind it; scratch words that some way might read before it writes them are
//! set to zero first, because the kernel refuses programs that do not.

use std::collections::HashMap;

use super::super::insn::{Instruction, code};
use super::super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS};
use super::blocks::{Graph, Target};
use super::condition::{Compare, Label, Line};

/// The program of `graph`, or its length if that is more than a program may have.
pub(super) fn emit(graph: &Graph, accept: u32) -> Result<Vec<Instruction>, usize> {
    let reached = graph.reached();
    let mut lines = vec![Line::Goto(label(graph.entry))];
    for (at, block) in graph.blocks.iter().enumerate().rev().filter(|(at, _)| reached[*at]) {
        lines.push(Line::Place(label(Target::Block(at))));
        lines.extend_from_slice(&block.lines);
        let (yes, no) = (label(block.yes), label(block.no));
        lines.push(match block.compare {
            Some(compare) if yes != no => Line::Branch { compare, yes, no },
            _ => Line::Goto(yes),
        });
    }
    lines.push(Line::Place(label(Target::Accept)));
    lines.push(Line::Plain(Instruction::plain(code::RET | code::K, accept)));
    lines.push(Line::Place(label(Target::Reject)));
    lines.push(Line::Plain(Instruction::plain(code::RET | code::K, 0)));
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

/// Labels of blocks count down from the top, those inside of conditions up from zero.
fn label(target: Target) -> Label {
    match target {
        Target::Accept => Label(u32::MAX),
        Target::Reject => Label(u32::MAX - 1),
        Target::Block(at) => Label(u32::MAX - 2 - at as u32),
    }
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
