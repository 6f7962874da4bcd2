//! Control-flow graph of a program: lowers a condition to basic blocks and optimizes them.
//!
//! Input: a condition. Output: basic blocks, each with instructions, a comparison and two
//! successors. The successors of a block have smaller numbers, so the entry is the last block.
//! There are two optimization passes. Jump threading redirects edges past comparisons whose outcome
//! is already known on the edge, and reuse drops loads of values that A or X already hold. Neither
//! pass reorders tests or drops the first load of an offset, so a frame that is too short for a
//! test is still rejected.

use super::super::insn::{Instruction, alu_operation, code, condition};
use super::condition::{Comparison, Condition, ConditionTest, PseudoInsn};

/// The target of an edge of the control-flow graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeTarget {
    Accept,
    Reject,
    Block(usize),
}

/// A basic block of the control-flow graph: instructions, and a comparison with two successors.
#[derive(Clone, Debug)]
pub(super) struct BasicBlock {
    pub(super) lines: Vec<PseudoInsn>,
    pub(super) compare: Option<Comparison>,
    pub(super) yes: EdgeTarget,
    pub(super) no: EdgeTarget,
}

/// The control-flow graph of a filter program.
#[derive(Debug)]
pub(super) struct ControlFlowGraph {
    pub(super) blocks: Vec<BasicBlock>,
    pub(super) entry: EdgeTarget,
}

impl ControlFlowGraph {
    /// Builds the control-flow graph of a condition.
    pub(super) fn new(condition: Condition) -> Self {
        let mut graph = Self { blocks: Vec::new(), entry: EdgeTarget::Reject };
        graph.entry = graph.lower_condition(condition, EdgeTarget::Accept, EdgeTarget::Reject);
        graph
    }

    fn lower_condition(
        &mut self,
        condition: Condition,
        yes: EdgeTarget,
        no: EdgeTarget,
    ) -> EdgeTarget {
        match condition {
            Condition::Always => yes,
            Condition::Never => no,
            Condition::Not(inner) => self.lower_condition(*inner, no, yes),
            Condition::All(all) => {
                all.into_iter().rev().fold(yes, |next, one| self.lower_condition(one, next, no))
            }
            Condition::Any(any) => {
                any.into_iter().rev().fold(no, |next, one| self.lower_condition(one, yes, next))
            }
            Condition::Test(ConditionTest { lines, compare }) => {
                self.blocks.push(BasicBlock { lines, compare, yes, no });
                EdgeTarget::Block(self.blocks.len() - 1)
            }
        }
    }

    /// Optimizes the graph by jump threading and by dropping redundant loads.
    pub(super) fn optimize(&mut self) {
        for _ in 0..JUMP_THREADING_ROUNDS_MAX {
            if !self.thread_jumps() {
                break;
            }
        }
        self.drop_known_loads();
    }

    /// Returns true if some path through the graph accepts the frame.
    pub(super) fn can_accept(&self) -> bool {
        let reached = self.reachable_blocks();
        let accepts =
            |block: &BasicBlock| block.yes == EdgeTarget::Accept || block.no == EdgeTarget::Accept;
        let accepts_all = self.entry == EdgeTarget::Accept;
        accepts_all
            || self.blocks.iter().zip(reached).any(|(block, reached)| reached && accepts(block))
    }

    /// Returns, for each block, true if it is reachable.
    pub(super) fn reachable_blocks(&self) -> Vec<bool> {
        let mut reached = vec![false; self.blocks.len()];
        if let EdgeTarget::Block(entry) = self.entry {
            reached[entry] = true;
        }
        for at in (0..self.blocks.len()).rev() {
            if reached[at] {
                for target in [self.blocks[at].yes, self.blocks[at].no] {
                    if let EdgeTarget::Block(next) = target {
                        reached[next] = true;
                    }
                }
            }
        }
        reached
    }

    /// Threads jumps: redirects every edge past blocks whose comparison has a known outcome on that
    /// edge. Returns true if any edge changed.
    fn thread_jumps(&mut self) -> bool {
        let mut known: Vec<Option<Vec<ComparisonFact>>> = vec![None; self.blocks.len()];
        if let EdgeTarget::Block(entry) = self.entry {
            known[entry] = Some(Vec::new());
        }
        let mut changed = false;
        for at in (0..self.blocks.len()).rev() {
            let Some(mut facts) = known[at].take() else { continue };
            if self.blocks[at].writes_memory() {
                facts.retain(|fact| !reads_memory(&fact.value));
            }
            for holds in [true, false] {
                let block = &self.blocks[at];
                let facts = block.facts_after(&facts, holds);
                let before = if holds { block.yes } else { block.no };
                let after = self.follow_edge(before, &facts);
                let block = &mut self.blocks[at];
                *(if holds { &mut block.yes } else { &mut block.no }) = after;
                changed |= before != after;
                if let EdgeTarget::Block(next) = after {
                    match &mut known[next] {
                        None => known[next] = Some(facts),
                        Some(others) => others.retain(|fact| facts.contains(fact)),
                    }
                }
            }
        }
        changed
    }

    fn follow_edge(&self, mut target: EdgeTarget, facts: &[ComparisonFact]) -> EdgeTarget {
        while let EdgeTarget::Block(at) = target {
            let block = &self.blocks[at];
            if !block.is_pure() {
                break;
            }
            match block.known_outcome(facts) {
                Some(true) => target = block.yes,
                Some(false) => target = block.no,
                None => break,
            }
        }
        target
    }

    /// Drops loads of values that A or X already holds on every path to the load.
    fn drop_known_loads(&mut self) {
        let mut held: Vec<Option<RegisterContents>> = vec![None; self.blocks.len()];
        if let EdgeTarget::Block(entry) = self.entry {
            held[entry] = Some(RegisterContents::default());
        }
        for at in (0..self.blocks.len()).rev() {
            let Some(before) = held[at].take() else { continue };
            let after = self.blocks[at].drop_redundant_loads(before);
            for target in [self.blocks[at].yes, self.blocks[at].no] {
                if let EdgeTarget::Block(next) = target {
                    match &mut held[next] {
                        None => held[next] = Some(after.clone()),
                        Some(other) => other.intersect(&after),
                    }
                }
            }
        }
    }
}

/// Maximum number of rounds of jump threading. Each round may enable further rounds.
const JUMP_THREADING_ROUNDS_MAX: usize = 4;
/// Maximum number of known comparison outcomes that are tracked along a path. The oldest are
/// dropped first.
const PATH_FACTS_MAX: usize = 24;

/// The known outcome of a comparison with A: the instructions that computed A, the comparison, and
/// its result.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ComparisonFact {
    value: Vec<PseudoInsn>,
    op: u16,
    k: u32,
    holds: bool,
}

/// The contents of A and X, each described by the instructions that computed the value, or `None`
/// if unknown.
#[derive(Clone, Debug, Default)]
struct RegisterContents {
    a: Option<Vec<PseudoInsn>>,
    x: Option<Vec<PseudoInsn>>,
}

impl RegisterContents {
    fn intersect(&mut self, other: &Self) {
        if self.a != other.a {
            self.a = None;
        }
        if self.x != other.x {
            self.x = None;
        }
    }
}

impl BasicBlock {
    /// Returns true if the block computes A and X only from the frame and scratch memory, and does
    /// not write scratch memory. The same instructions then always yield the same values.
    fn is_pure(&self) -> bool {
        let begins = |loads: fn(PseudoInsn) -> bool, uses: fn(PseudoInsn) -> bool| {
            let first = self.lines.iter().position(|line| uses(*line));
            let loaded = self.lines.iter().position(|line| loads(*line));
            first.is_none_or(|first| loaded.is_some_and(|loaded| loaded < first))
        };
        !self.writes_memory() && begins(loads_a, reads_a) && begins(writes_x, reads_x)
    }

    fn writes_memory(&self) -> bool {
        self.lines.iter().any(|line| match line {
            PseudoInsn::NonBranching(instruction) => {
                matches!(instruction.class(), code::ST | code::STX)
            }
            _ => true,
        })
    }

    fn facts_after(&self, facts: &[ComparisonFact], holds: bool) -> Vec<ComparisonFact> {
        let mut facts = facts.to_vec();
        if let Some(Comparison { op, with: Some(k) }) = self.compare
            && self.is_pure()
        {
            let fact = ComparisonFact { value: self.lines.clone(), op, k, holds };
            if !facts.contains(&fact) {
                facts.push(fact);
            }
            if facts.len() > PATH_FACTS_MAX {
                facts.remove(0);
            }
        }
        facts
    }

    /// Returns the outcome of the comparison at the end of this block, or `None` if the outcomes in
    /// `facts` do not determine it.
    fn known_outcome(&self, facts: &[ComparisonFact]) -> Option<bool> {
        let Some(Comparison { op, with: Some(k) }) = self.compare else { return None };
        facts.iter().rev().find_map(|fact| {
            if fact.value == self.lines && fact.op == op && fact.k == k {
                return Some(fact.holds);
            }
            if fact.op != code::JEQ {
                return None;
            }
            let rest = self.lines.strip_prefix(fact.value.as_slice())?;
            if fact.holds {
                let value =
                    rest.iter().try_fold(fact.k, |a, line| fold_alu_instruction(*line, a))?;
                return Some(condition(op)?.holds(value.into(), k.into()));
            }
            None
        })
    }

    /// Drops loads of values that are already in A or X. `before` contains the known register
    /// contents at the start of the block. Returns the register contents at its end.
    fn drop_redundant_loads(&mut self, before: RegisterContents) -> RegisterContents {
        if self.lines.is_empty() {
            return before;
        }
        if !self.is_pure() {
            return RegisterContents::default();
        }
        let whole = self.lines.clone();
        if before.a.as_ref() == Some(&whole) {
            self.lines.clear();
            return before;
        }
        let Some(last) = whole.iter().rposition(|line| writes_x(*line)) else {
            return RegisterContents { a: Some(whole), x: before.x };
        };
        let x = Some(whole[..=last].to_vec());
        if before.x == x && whole.get(last + 1).is_some_and(|line| loads_a(*line)) {
            self.lines.drain(..=last);
        }
        RegisterContents { a: Some(whole), x }
    }
}

/// Returns the value of A after an arithmetic instruction with a constant, or `None` for any other
/// instruction.
fn fold_alu_instruction(line: PseudoInsn, a: u32) -> Option<u32> {
    let PseudoInsn::NonBranching(Instruction { code, k, .. }) = line else { return None };
    if code & 0x0f != code::ALU | code::K || code & 0xf0 == code::NEG {
        return None;
    }
    alu_operation(code)?.apply(a, k)
}

fn as_instruction(line: PseudoInsn) -> Option<Instruction> {
    match line {
        PseudoInsn::NonBranching(instruction) => Some(instruction),
        _ => None,
    }
}

fn reads_memory(lines: &[PseudoInsn]) -> bool {
    lines.iter().filter_map(|line| as_instruction(*line)).any(|instruction| {
        matches!(instruction.class(), code::LD | code::LDX) && instruction.code & 0xe0 == code::MEM
    })
}

fn writes_x(line: PseudoInsn) -> bool {
    as_instruction(line).is_some_and(|instruction| {
        instruction.class() == code::LDX || instruction.code == code::MISC | code::TAX
    })
}

fn reads_x(line: PseudoInsn) -> bool {
    as_instruction(line).is_some_and(|instruction| match instruction.class() {
        code::LD => instruction.code & 0xe0 == code::IND,
        code::ALU => instruction.code & code::X != 0,
        code::MISC => instruction.code == code::MISC | code::TXA,
        _ => false,
    })
}

fn reads_a(line: PseudoInsn) -> bool {
    as_instruction(line).is_some_and(|instruction| match instruction.class() {
        code::ALU | code::RET => true,
        code::MISC => instruction.code == code::MISC | code::TAX,
        _ => false,
    })
}

fn loads_a(line: PseudoInsn) -> bool {
    as_instruction(line).is_some_and(|instruction| instruction.class() == code::LD)
}
