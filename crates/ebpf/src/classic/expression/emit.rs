//! Conversion of a control-flow graph to a program.
//!
//! Input: a graph and the return value for accepted frames. Output: instructions. Blocks are in
//! evaluation order; [`assemble_program`] computes the jump distances.

use super::super::assemble::assemble_program;
use super::super::insn::{Instruction, code};
use super::condition::{JumpLabel, PseudoInsn};
use super::control_flow::{ControlFlowGraph, EdgeTarget};

/// Converts `graph` to a program that returns `accept` for accepted frames. If the program is too
/// long, returns its number of instructions as the error.
pub(super) fn emit_program(
    graph: &ControlFlowGraph,
    accept: u32,
) -> Result<Vec<Instruction>, usize> {
    let reached = graph.reachable_blocks();
    let mut lines = vec![PseudoInsn::Jump(edge_label(graph.entry))];
    for (at, block) in graph.blocks.iter().enumerate().rev().filter(|(at, _)| reached[*at]) {
        lines.push(PseudoInsn::Bind(edge_label(EdgeTarget::Block(at))));
        lines.extend_from_slice(&block.lines);
        let (yes, no) = (edge_label(block.yes), edge_label(block.no));
        lines.push(match block.compare {
            Some(compare) if yes != no => PseudoInsn::Branch { compare, yes, no },
            _ => PseudoInsn::Jump(yes),
        });
    }
    lines.push(PseudoInsn::Bind(edge_label(EdgeTarget::Accept)));
    lines.push(PseudoInsn::NonBranching(Instruction::non_branching(code::RET | code::K, accept)));
    lines.push(PseudoInsn::Bind(edge_label(EdgeTarget::Reject)));
    lines.push(PseudoInsn::NonBranching(Instruction::non_branching(code::RET | code::K, 0)));
    assemble_program(lines)
}

/// Returns the assembler label of an edge's target. These labels count down from the maximum, so
/// that they do not collide with labels inside conditions, which count up from zero.
fn edge_label(target: EdgeTarget) -> JumpLabel {
    match target {
        EdgeTarget::Accept => JumpLabel(u32::MAX),
        EdgeTarget::Reject => JumpLabel(u32::MAX - 1),
        EdgeTarget::Block(at) => JumpLabel(u32::MAX - 2 - at as u32),
    }
}
