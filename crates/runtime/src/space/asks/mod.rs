//! Boolean sections whose operands move the view, hold blocks or make others (CONTRACT 10,
//! docs/book/decisions/0047-operands.md).
//!
//! An operand gets a copy of the block's entry, with a **ticket** in its marks; the bytes are not
//! copied. What leaves the operand's last filter with that ticket is its answer, wherever its view
//! lies then. The block itself waits beside, and goes on as it came: to the next operand or out of
//! the section.
//!
//! - Answered: the last filter of the operand let something of the block through with a class, or
//!   used up bytes of it.
//! - Not answered: it let it through with class 0, or nothing of it came to the last filter.
//! - Dropped: a filter of the operand dropped it, and nothing of it was let through.
//! - Waiting: a filter of the operand holds it. The section holds the block for as long.
//!
//! What operands make has no ticket, and ends behind the last of them. Fragments that were put
//! together are answered as what they became.
//!
//! An expression is a **program**: steps in an order in which each leads only to later ones. A
//! section in the middle of an operand is a program of its own, whose blocks are what the filter
//! before it gave.
//!
//! - `run`: blocks through programs and operands;
//! - `settle`: what an operand answered, and blocks that wait;
//! - `stay`: a section that goes on in another graph.

mod run;
mod settle;
mod stay;

use super::node::NodeId;
use super::select::Wanted;
use abi::Class;
use filter::{Fate, HeldList, LANES};
use std::collections::{BTreeMap, HashMap};

/// Drop reasons of a section: an operand dropped the block.
pub const REASONS: &[&str] = &["by an operand"];

/// An expression over operands, and what it knows of blocks that wait for their answers.
#[derive(Debug, Default)]
pub struct Asks {
    /// The outermost first; what stands inside an operand of one comes behind it.
    programs: Vec<Program>,
    /// The ticket that was given last.
    last: u32,
    /// Number of times that a block is held in operands, by its ticket.
    held: HashMap<u32, u32>,
    /// Tickets of the blocks that were merged into the block of this ticket.
    joined: HashMap<u32, Vec<u32>>,
    /// Class with which a block came into the section, by its ticket, where a program inside an
    /// operand asks for that.
    came: HashMap<u32, Class>,
    /// True if one does.
    asks_came: bool,
    /// Fates of blocks in a program inside an operand, for the enclosing program.
    fates: Vec<Fate>,
    /// Blocks that wait for an operand that is not asked any more.
    orphans: Vec<Waiting>,
}

/// One expression, step by step.
#[derive(Debug, Default)]
struct Program {
    steps: Vec<Step>,
    /// Entry point of blocks.
    first: Then,
    /// The operand inside which it stands: program, step, place in the operand.
    inside: Option<Place>,
    /// Blocks that wait, by their tickets.
    waiting: BTreeMap<u32, Waiting>,
}

/// A place in an operand: program, step, place in the operand.
type Place = (usize, usize, usize);

/// One question.
#[derive(Debug)]
struct Step {
    /// Classes, on entry into the section, of the blocks that are asked about. For others the
    /// answer is no.
    asked: Wanted,
    /// Operand: its filters in order, each with the classes of the one before that lead to it.
    /// Empty: the answer is yes.
    operand: Vec<(Wanted, Part)>,
    yes: Then,
    no: Then,
    /// True if the class that is answered becomes that of the block.
    says: bool,
}

/// A part of an operand.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A filter: its node, and its number in the plan.
    Filter(NodeId, usize),
    /// A program.
    Program(usize),
}

/// Next step of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Then {
    /// To this step.
    Ask(usize),
    /// Out of the program, answered.
    Yes,
    /// Out of the program, with class 0.
    #[default]
    No,
}

/// A block that waits for an operand's answer.
#[derive(Debug)]
struct Waiting {
    /// The block, in the holds of the section.
    list: HeldList,
    /// Step of the program.
    step: usize,
    /// The ticket of the block with which it was put together, if it was.
    follows: Option<u32>,
    classes: Classes,
    so_far: SoFar,
}

/// The classes of a block that is asked about.
#[derive(Debug, Clone, Copy)]
struct Classes {
    /// Class with which the block came into the section.
    came: Class,
    /// Class with which the block comes into the operand.
    incoming: Class,
    /// Class that the last answering operand gave.
    result: Class,
}

/// Partial state of an answer.
#[derive(Debug, Clone, Copy, Default)]
struct SoFar {
    /// Something of the block was let through with this class.
    class: Option<Class>,
    /// Something was let through with class 0.
    zero: bool,
    /// Something of it was dropped.
    dropped: bool,
    /// Bytes of it came to the last filter.
    arrived: bool,
}

/// An expression while a program is made of it; `F` is what a filter is.
#[derive(Debug)]
pub enum Asked {
    /// A filter: its node, and its number in the plan.
    Filter(NodeId, usize),
    /// See [`super::section::Section::Chain`].
    Chain(Vec<(Wanted, Self)>),
    /// See [`super::section::Section::All`].
    All(Vec<(Wanted, Self)>),
    /// See [`super::section::Section::Any`].
    Any(Vec<(Wanted, Self)>),
    /// See [`super::section::Section::Not`].
    Not(Box<Self>),
}

impl Asks {
    /// The programs of an expression.
    pub fn new(expression: &Asked) -> Self {
        let mut asks = Self::default();
        asks.program(expression, None);
        let inner = asks.programs.iter().filter(|program| program.inside.is_some());
        asks.asks_came = { inner }.any(|it| it.steps.iter().any(|step| step.asked != Wanted::All));
        asks
    }

    /// The filters that are asked, in the order in which blocks meet them.
    pub fn operands(&self) -> Vec<NodeId> {
        let mut found = Vec::new();
        self.operands_of(0, &mut found);
        found
    }

    fn operands_of(&self, program: usize, found: &mut Vec<NodeId>) {
        let steps = self.programs.get(program).map_or(&[][..], |program| &program.steps);
        for (_, part) in steps.iter().flat_map(|step| &step.operand) {
            match part {
                Part::Filter(node, _) => found.push(*node),
                Part::Program(inner) => self.operands_of(*inner, found),
            }
        }
    }

    /// Adds the program of an expression; answers its number.
    fn program(&mut self, expression: &Asked, inside: Option<Place>) -> usize {
        let number = self.programs.len();
        self.programs.push(Program { inside, ..Program::default() });
        let mut steps = Vec::new();
        let first = compile(expression, (Then::Yes, Then::No), true, &mut steps);
        // Written from the last to the first.
        let last = steps.len().saturating_sub(1);
        let turned = |then: Then| match then {
            Then::Ask(step) => Then::Ask(last - step),
            other => other,
        };
        steps.reverse();
        let mut made = Vec::with_capacity(steps.len());
        for (at, draft) in steps.into_iter().enumerate() {
            let parts = draft.operand.into_iter().enumerate();
            let operand = parts.map(|(place, (wanted, part))| {
                let part = match part {
                    Asked::Filter(node, planned) => Part::Filter(*node, *planned),
                    inner => Part::Program(self.program(inner, Some((number, at, place)))),
                };
                (wanted, part)
            });
            made.push(Step {
                asked: draft.asked,
                operand: operand.collect(),
                yes: turned(draft.yes),
                no: turned(draft.no),
                says: draft.says,
            });
        }
        self.programs[number].steps = made;
        self.programs[number].first = turned(first);
        number
    }

    /// Returns the place in an operand where a filter is asked.
    fn place_of(&self, node: NodeId) -> Option<Place> {
        self.programs.iter().enumerate().find_map(|(program, it)| {
            it.steps.iter().enumerate().find_map(|(step, it)| {
                let mut parts = it.operand.iter();
                let place =
                    parts.position(|(_, part)| matches!(part, Part::Filter(at, _) if *at == node));
                place.map(|place| (program, step, place))
            })
        })
    }
}

/// A step whose operand is not made yet.
struct DraftStep<'e> {
    asked: Wanted,
    operand: Vec<(Wanted, &'e Asked)>,
    yes: Then,
    no: Then,
    says: bool,
}

/// Writes the steps of an expression, the last first; answers where blocks begin.
fn compile<'e>(
    expression: &'e Asked,
    (yes, no): (Then, Then),
    says: bool,
    steps: &mut Vec<DraftStep<'e>>,
) -> Then {
    let operand = match expression {
        Asked::All(parts) => {
            return parts.iter().rev().fold(yes, |yes, part| entered(part, (yes, no), says, steps));
        }
        Asked::Any(parts) => {
            return parts.iter().rev().fold(no, |no, part| entered(part, (yes, no), says, steps));
        }
        // A block passes with the class with which it came.
        Asked::Not(part) => return compile(part, (no, yes), false, steps),
        Asked::Chain(_) | Asked::Filter(..) => {
            let mut operand = Vec::new();
            flat(&Wanted::All, expression, &mut operand);
            operand
        }
    };
    steps.push(DraftStep { asked: Wanted::All, operand, yes, no, says });
    Then::Ask(steps.len() - 1)
}

/// Adds the filters of a chain, and of chains in it.
fn flat<'e>(wanted: &Wanted, part: &'e Asked, operand: &mut Vec<(Wanted, &'e Asked)>) {
    let Asked::Chain(parts) = part else { return operand.push((wanted.clone(), part)) };
    for (at, (inner, part)) in parts.iter().enumerate() {
        flat(if at == 0 { wanted } else { inner }, part, operand);
    }
}

/// The same for a part that is asked of some classes alone.
fn entered<'e>(
    (asked, part): &'e (Wanted, Asked),
    (yes, no): (Then, Then),
    says: bool,
    steps: &mut Vec<DraftStep<'e>>,
) -> Then {
    let first = compile(part, (yes, no), says, steps);
    if *asked == Wanted::All {
        return first;
    }
    let operand = Vec::new();
    steps.push(DraftStep { asked: asked.clone(), operand, yes: first, no, says: false });
    Then::Ask(steps.len() - 1)
}

/// Maximum number of blocks sent to an operand at once.
const AT_ONCE: usize = LANES;
