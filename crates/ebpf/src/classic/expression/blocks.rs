//! Turns a condition into a graph of blocks, and makes the graph smaller.
//!
//! In: a condition; out: blocks, each with a run of instructions, a comparison, and where to go for
//! yes and for no. Blocks only lead to blocks of smaller number, so the first to run is the last.
//! Two passes shorten what runs: an edge whose outcome is known at its target goes where that
//! leads, and a value that A or X already holds is not loaded again. Neither asks a question
//! earlier than the text does nor drops the first load of a place, so a frame too short for a test
//! is rejected as before.

use super::super::insn::{Instruction, code};
use super::super::run::{Alu, Test as Holds};
use super::condition::{Compare, Condition, Line, Test};

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Accept,
    Reject,
    Block(usize),
}

/// A run of instructions and a decision.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) lines: Vec<Line>,
    pub(super) compare: Option<Compare>,
    pub(super) yes: Target,
    pub(super) no: Target,
}

/// A graph of blocks.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
    pub(super) entry: Target,
}

impl Graph {
    /// The graph that asks `condition`.
    pub(super) fn new(condition: Condition) -> Self {
        let mut graph = Self { blocks: Vec::new(), entry: Target::Reject };
        graph.entry = graph.lower(condition, Target::Accept, Target::Reject);
        graph
    }

    fn lower(&mut self, condition: Condition, yes: Target, no: Target) -> Target {
        match condition {
            Condition::Always => yes,
            Condition::Never => no,
            Condition::Not(inner) => self.lower(*inner, no, yes),
            Condition::All(all) => {
                all.into_iter().rev().fold(yes, |next, one| self.lower(one, next, no))
            }
            Condition::Any(any) => {
                any.into_iter().rev().fold(no, |next, one| self.lower(one, yes, next))
            }
            Condition::Test(Test { lines, compare }) => {
                self.blocks.push(Block { lines, compare, yes, no });
                Target::Block(self.blocks.len() - 1)
            }
        }
    }

    /// Makes the graph smaller.
    pub(super) fn optimize(&mut self) {
        for _ in 0..ROUNDS {
            if !self.thread() {
                break;
            }
        }
        self.reuse();
    }

    /// Whether some frame can be accepted, as far as the graph shows.
    pub(super) fn accepts(&self) -> bool {
        let reached = self.reached();
        let leads = |block: &Block| block.yes == Target::Accept || block.no == Target::Accept;
        let ends = self.entry == Target::Accept;
        ends || self.blocks.iter().zip(reached).any(|(block, reached)| reached && leads(block))
    }

    /// Which blocks can run.
    pub(super) fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.blocks.len()];
        if let Target::Block(entry) = self.entry {
            reached[entry] = true;
        }
        for at in (0..self.blocks.len()).rev() {
            if reached[at] {
                for target in [self.blocks[at].yes, self.blocks[at].no] {
                    if let Target::Block(next) = target {
                        reached[next] = true;
                    }
                }
            }
        }
        reached
    }

    /// Leads every edge past the tests whose outcome it knows; answers whether one was led on.
    fn thread(&mut self) -> bool {
        let mut known: Vec<Option<Vec<Fact>>> = vec![None; self.blocks.len()];
        if let Target::Block(entry) = self.entry {
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
                let facts = block.facts_behind(&facts, holds);
                let before = if holds { block.yes } else { block.no };
                let after = self.lead_on(before, &facts);
                let block = &mut self.blocks[at];
                *(if holds { &mut block.yes } else { &mut block.no }) = after;
                changed |= before != after;
                if let Target::Block(next) = after {
                    match &mut known[next] {
                        None => known[next] = Some(facts),
                        Some(others) => others.retain(|fact| facts.contains(fact)),
                    }
                }
            }
        }
        changed
    }

    fn lead_on(&self, mut target: Target, facts: &[Fact]) -> Target {
        while let Target::Block(at) = target {
            let block = &self.blocks[at];
            if !block.is_pure() {
                break;
            }
            match block.outcome(facts) {
                Some(true) => target = block.yes,
                Some(false) => target = block.no,
                None => break,
            }
        }
        target
    }

    /// Drops the loads of what A or X holds already on every way in.
    fn reuse(&mut self) {
        let mut held: Vec<Option<Held>> = vec![None; self.blocks.len()];
        if let Target::Block(entry) = self.entry {
            held[entry] = Some(Held::default());
        }
        for at in (0..self.blocks.len()).rev() {
            let Some(before) = held[at].take() else { continue };
            let after = self.blocks[at].shorten(before);
            for target in [self.blocks[at].yes, self.blocks[at].no] {
                if let Target::Block(next) = target {
                    match &mut held[next] {
                        None => held[next] = Some(after.clone()),
                        Some(other) => other.meet(&after),
                    }
                }
            }
        }
    }
}

/// How often edges are led on: each round can only uncover what the one before made reachable.
const ROUNDS: usize = 4;
/// How many facts are carried along one way; older ones are forgotten.
const FACTS_MAX: usize = 24;

/// The outcome of a comparison of a value, known on some way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    value: Vec<Line>,
    op: u16,
    k: u32,
    holds: bool,
}

/// What A and X hold, by the instructions that put it there.
#[derive(Clone, Debug, Default)]
struct Held {
    a: Option<Vec<Line>>,
    x: Option<Vec<Line>>,
}

impl Held {
    fn meet(&mut self, other: &Self) {
        if self.a != other.a {
            self.a = None;
        }
        if self.x != other.x {
            self.x = None;
        }
    }
}

impl Block {
    /// Whether the block only computes A and X from the frame and from memory, so that the same
    /// instructions always leave the same values.
    fn is_pure(&self) -> bool {
        let begins = |loads: fn(Line) -> bool, uses: fn(Line) -> bool| {
            let first = self.lines.iter().position(|line| uses(*line));
            let loaded = self.lines.iter().position(|line| loads(*line));
            first.is_none_or(|first| loaded.is_some_and(|loaded| loaded < first))
        };
        !self.writes_memory() && begins(loads_a, reads_a) && begins(writes_x, reads_x)
    }

    fn writes_memory(&self) -> bool {
        self.lines.iter().any(|line| match line {
            Line::Plain(instruction) => matches!(instruction.class(), code::ST | code::STX),
            _ => true,
        })
    }

    fn facts_behind(&self, facts: &[Fact], holds: bool) -> Vec<Fact> {
        let mut facts = facts.to_vec();
        if let Some(Compare { op, with: Some(k) }) = self.compare
            && self.is_pure()
        {
            let fact = Fact { value: self.lines.clone(), op, k, holds };
            if !facts.contains(&fact) {
                facts.push(fact);
            }
            if facts.len() > FACTS_MAX {
                facts.remove(0);
            }
        }
        facts
    }

    /// The outcome of the block's comparison, if the facts tell it.
    fn outcome(&self, facts: &[Fact]) -> Option<bool> {
        let Some(Compare { op, with: Some(k) }) = self.compare else { return None };
        facts.iter().rev().find_map(|fact| {
            if fact.value == self.lines && fact.op == op && fact.k == k {
                return Some(fact.holds);
            }
            if fact.op != code::JEQ {
                return None;
            }
            let rest = self.lines.strip_prefix(fact.value.as_slice())?;
            if fact.holds {
                let value = rest.iter().try_fold(fact.k, |a, line| apply(*line, a))?;
                return Some(Holds::decode(op)?.holds(value, k));
            }
            None
        })
    }

    /// Drops what `before` makes needless, and answers what is held afterwards.
    fn shorten(&mut self, before: Held) -> Held {
        if self.lines.is_empty() {
            return before;
        }
        if !self.is_pure() {
            return Held::default();
        }
        let whole = self.lines.clone();
        if before.a.as_ref() == Some(&whole) {
            self.lines.clear();
            return before;
        }
        let Some(last) = whole.iter().rposition(|line| writes_x(*line)) else {
            return Held { a: Some(whole), x: before.x };
        };
        let x = Some(whole[..=last].to_vec());
        if before.x == x && whole.get(last + 1).is_some_and(|line| loads_a(*line)) {
            self.lines.drain(..=last);
        }
        Held { a: Some(whole), x }
    }
}

/// What arithmetic with a constant makes of A.
fn apply(line: Line, a: u32) -> Option<u32> {
    let Line::Plain(Instruction { code, k, .. }) = line else { return None };
    if code & 0x0f != code::ALU | code::K || code & 0xf0 == code::NEG {
        return None;
    }
    Alu::decode(code)?.apply(a, k)
}

fn plain(line: Line) -> Option<Instruction> {
    match line {
        Line::Plain(instruction) => Some(instruction),
        _ => None,
    }
}

fn reads_memory(lines: &[Line]) -> bool {
    lines.iter().filter_map(|line| plain(*line)).any(|instruction| {
        matches!(instruction.class(), code::LD | code::LDX) && instruction.code & 0xe0 == code::MEM
    })
}

fn writes_x(line: Line) -> bool {
    plain(line).is_some_and(|instruction| {
        instruction.class() == code::LDX || instruction.code == code::MISC | code::TAX
    })
}

fn reads_x(line: Line) -> bool {
    plain(line).is_some_and(|instruction| match instruction.class() {
        code::LD => instruction.code & 0xe0 == code::IND,
        code::ALU => instruction.code & code::X != 0,
        code::MISC => instruction.code == code::MISC | code::TXA,
        _ => false,
    })
}

fn reads_a(line: Line) -> bool {
    plain(line).is_some_and(|instruction| match instruction.class() {
        code::ALU | code::RET => true,
        code::MISC => instruction.code == code::MISC | code::TAX,
        _ => false,
    })
}

fn loads_a(line: Line) -> bool {
    plain(line).is_some_and(|instruction| instruction.class() == code::LD)
}
