//! Writes a graph of blocks as a program.
//!
//! In: a graph and the answers for accepting and rejecting; out: the instructions. Blocks stand in
//! the order in which the text asks; [`assembled`] gives the jumps their distances.

use super::super::insn::{Instruction, code};
use super::super::lines::assembled;
use super::blocks::{Graph, Target};
use super::condition::{Label, Line};

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
    assembled(lines)
}

/// Labels of blocks count down from the top, those inside of conditions up from zero.
fn label(target: Target) -> Label {
    match target {
        Target::Accept => Label(u32::MAX),
        Target::Reject => Label(u32::MAX - 1),
        Target::Block(at) => Label(u32::MAX - 2 - at as u32),
    }
}
