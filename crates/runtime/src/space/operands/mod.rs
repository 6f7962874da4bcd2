//! Boolean sections whose operands move the view, hold blocks or make blocks. (CONTRACT 10,
//! docs/book/decisions/0047-operands.md)
//!
//! An operand gets a copy of the block's entry with a **ticket** in its marks; the bytes are not
//! copied. Output with that ticket from the operand's last filter is the operand's answer,
//! regardless of its view. The block itself waits for the answer, and then continues unchanged to
//! the next operand or leaves the section.
//!
//! - Answered: the last filter passed a part of the block with a nonzero class, or consumed bytes
//!   of the block.
//! - Not answered: the last filter passed the block with class 0, or the block never reached that
//!   filter.
//! - Dropped: a filter of the operand dropped the block, and no part of it was passed.
//! - Waiting: a filter of the operand holds the copy. The section then holds the block as well.
//!
//! Blocks that operands create have no ticket, and are discarded after the last filter. Fragments
//! that were merged share the merged block's answer.
//!
//! An expression is compiled to a **program**: a list of steps, each of which leads only to later
//! steps. A section inside an operand becomes a separate program, whose input is the output of the
//! preceding filter.
//!
//! - `run`: evaluation of programs and operands;
//! - `answers`: the operands' answers, and waiting blocks;
//! - `take_over`: transfer of waiting blocks to a new graph.

mod answers;
mod run;
mod take_over;

use super::arc::NodeId;
use super::class_selection::SelectedClasses;
use super::section::Section;
use abi::Class;
use filter::{BlockFate, HeldList, LANES};
use std::collections::{BTreeMap, HashMap};

/// Names of a section's drop reasons, by the index of the reason.
pub const DROP_REASONS: &[&str] = &["by an operand"];

/// A Boolean section whose operands may hold blocks, with the blocks that wait for answers.
#[derive(Debug, Default)]
pub struct OperandSection {
    /// Compiled expressions of the section and of its inner sections. An enclosing program precedes
    /// the programs in its operands.
    programs: Vec<OperandProgram>,
    /// Ticket that was assigned last. A ticket identifies a block in the section.
    last_ticket: u32,
    /// Number of copies of each block that the operands' filters currently hold, by the block's
    /// ticket.
    held: HashMap<u32, u32>,
    /// For each block into which others were merged, by its ticket: the tickets of those others.
    joined: HashMap<u32, Vec<u32>>,
    /// Class with which each block entered the section, by the block's ticket. Used only if
    /// `needs_entry_classes` is true.
    entry_classes: HashMap<u32, Class>,
    /// True if an inner section selects blocks by the class that they had on entry into the whole
    /// section.
    needs_entry_classes: bool,
    /// Events of blocks in the programs of inner sections (held, released, dropped or merged) that
    /// the enclosing program has not processed yet.
    fates: Vec<BlockFate>,
    /// Blocks that wait for operands that a hot swap has removed.
    orphans: Vec<WaitingBlock>,
}

/// A compiled expression: a list of steps, each of which leads only to later steps.
#[derive(Debug, Default)]
struct OperandProgram {
    steps: Vec<ProgramStep>,
    /// The step at which blocks enter the program.
    first_step: NextStep,
    /// Position, in the enclosing program, of the operand that contains this program; `None` for
    /// the program of the whole section.
    enclosing_operand: Option<OperandPosition>,
    /// Blocks that wait for the answer of an operand of this program, by ticket.
    waiting: BTreeMap<u32, WaitingBlock>,
}

/// Position of a part of an operand: index of the program, index of the step in the program, and
/// index of the part in the operand.
type OperandPosition = (usize, usize, usize);

/// A step of a program: an operand, and the next step for blocks that the operand answers and for
/// others.
#[derive(Debug)]
struct ProgramStep {
    /// Classes of the blocks that the operand processes. A block with any other class continues at
    /// [`ProgramStep::no`].
    accepted: SelectedClasses,
    /// Parts of the operand in order, each with the classes that it accepts from the previous part.
    /// If there are no parts, all accepted blocks continue at [`ProgramStep::yes`].
    operand: Vec<(SelectedClasses, OperandPart)>,
    yes: NextStep,
    no: NextStep,
    /// True if a block that the operand answers gets the class that the operand returned for it.
    sets_class: bool,
}

/// A part of an operand: a filter, or the program of an inner section.
#[derive(Debug, Clone, Copy)]
enum OperandPart {
    /// A filter, identified by its index in the space and its node number.
    Filter(NodeId, usize),
    /// The program of an inner section, by its index in [`OperandSection::programs`].
    Program(usize),
}

/// The step at which a block continues after a step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum NextStep {
    /// Continue at the step of the same program with this index.
    Ask(usize),
    /// Leave the program as answered, with the class that results from the operands' answers.
    Yes,
    /// Leave the program as unanswered, with class 0.
    #[default]
    No,
}

/// A block that waits until an operand has answered.
#[derive(Debug)]
struct WaitingBlock {
    /// List of the section's held blocks that contains the waiting block.
    list: HeldList,
    /// Index of the step whose answer the block waits for.
    step: usize,
    /// Ticket (number in the section) of the block into which this block was merged; `None` if it
    /// was not merged.
    merged_into: Option<u32>,
    classes: BlockClasses,
    so_far: PartialAnswer,
}

/// The classes that a block has while a section is evaluated for it.
#[derive(Debug, Clone, Copy)]
struct BlockClasses {
    /// Class of the block on entry into the section.
    entry: Class,
    /// Class of the block on entry into the operand.
    incoming: Class,
    /// Class that the block gets if the program answers the block. This is the class from the last
    /// operand that answered, outside negations. Before any such answer, it is the class on entry
    /// into the program, or [`Class::YES`] if that class is 0.
    result: Class,
}

/// The results that one operand has returned for one block so far.
#[derive(Debug, Clone, Copy, Default)]
struct PartialAnswer {
    /// Nonzero class that the operand gave to a part of the block; `None` if there is none.
    class: Option<Class>,
    /// True if the operand gave class 0 to a part of the block.
    has_class_0: bool,
    /// True if the operand dropped a part of the block.
    dropped: bool,
    /// True if bytes of the block have reached the operand's last filter.
    arrived: bool,
}

/// The expression of a section. It identifies a filter by the filter's index in the space and its
/// node number.
pub type OperandExpr = Section<(NodeId, usize)>;

impl OperandSection {
    /// Compiles the expression of a section.
    pub fn new(expression: &OperandExpr) -> Self {
        let mut asks = Self::default();
        asks.compile_program(expression, None);
        let inner = asks.programs.iter().filter(|program| program.enclosing_operand.is_some());
        asks.needs_entry_classes =
            { inner }.any(|it| it.steps.iter().any(|step| step.accepted != SelectedClasses::All));
        asks
    }

    /// Returns the nodes of all operands, in the order in which blocks arrive at them.
    pub fn operands(&self) -> Vec<NodeId> {
        let mut found = Vec::new();
        self.collect_operands(0, &mut found);
        found
    }

    fn collect_operands(&self, program: usize, found: &mut Vec<NodeId>) {
        let steps = self.programs.get(program).map_or(&[][..], |program| &program.steps);
        for (_, part) in steps.iter().flat_map(|step| &step.operand) {
            match part {
                OperandPart::Filter(node, _) => found.push(*node),
                OperandPart::Program(inner) => self.collect_operands(*inner, found),
            }
        }
    }

    /// Compiles an expression into a program, and returns the index of the program. `inside` is the
    /// position of the operand that contains the program; `None` for the outermost program.
    fn compile_program(
        &mut self,
        expression: &OperandExpr,
        inside: Option<OperandPosition>,
    ) -> usize {
        let number = self.programs.len();
        self.programs
            .push(OperandProgram { enclosing_operand: inside, ..OperandProgram::default() });
        let mut steps = Vec::new();
        let first = compile_expression(expression, (NextStep::Yes, NextStep::No), true, &mut steps);
        // The steps were compiled from the last one to the first.
        let last = steps.len().saturating_sub(1);
        let turned = |then: NextStep| match then {
            NextStep::Ask(step) => NextStep::Ask(last - step),
            other => other,
        };
        steps.reverse();
        let mut made = Vec::with_capacity(steps.len());
        for (at, draft) in steps.into_iter().enumerate() {
            let parts = draft.operand.into_iter().enumerate();
            let operand = parts.map(|(place, (wanted, part))| {
                let part = match part {
                    OperandExpr::Filter((node, planned)) => OperandPart::Filter(*node, *planned),
                    inner => {
                        OperandPart::Program(self.compile_program(inner, Some((number, at, place))))
                    }
                };
                (wanted, part)
            });
            made.push(ProgramStep {
                accepted: draft.accepted,
                operand: operand.collect(),
                yes: turned(draft.yes),
                no: turned(draft.no),
                sets_class: draft.sets_class,
            });
        }
        self.programs[number].steps = made;
        self.programs[number].first_step = turned(first);
        number
    }

    /// Returns the position of a filter among the parts of the operands, or `None` if no operand
    /// contains the filter.
    fn operand_position(&self, node: NodeId) -> Option<OperandPosition> {
        self.programs.iter().enumerate().find_map(|(program, it)| {
            it.steps.iter().enumerate().find_map(|(step, it)| {
                let mut parts = it.operand.iter();
                let place = parts.position(
                    |(_, part)| matches!(part, OperandPart::Filter(at, _) if *at == node),
                );
                place.map(|place| (program, step, place))
            })
        })
    }
}

/// A step of a program that is being compiled. Its inner sections are not compiled yet.
struct DraftStep<'e> {
    accepted: SelectedClasses,
    operand: Vec<(SelectedClasses, &'e OperandExpr)>,
    yes: NextStep,
    no: NextStep,
    sets_class: bool,
}

/// Compiles an expression to steps, and appends the steps to `steps`, last step first. Returns the
/// step at which blocks begin. Blocks that the expression answers continue at `yes`, others at
/// `no`. `sets_class` is true if the class that an operand returns becomes the class of the block.
fn compile_expression<'e>(
    expression: &'e OperandExpr,
    (yes, no): (NextStep, NextStep),
    sets_class: bool,
    steps: &mut Vec<DraftStep<'e>>,
) -> NextStep {
    let operand = match expression {
        OperandExpr::All(parts) => {
            return parts.iter().rev().fold(yes, |yes, part| {
                compile_restricted_part(part, (yes, no), sets_class, steps)
            });
        }
        OperandExpr::Any(parts) => {
            return parts
                .iter()
                .rev()
                .fold(no, |no, part| compile_restricted_part(part, (yes, no), sets_class, steps));
        }
        // Negated blocks keep their original class.
        OperandExpr::Not(part) => return compile_expression(part, (no, yes), false, steps),
        OperandExpr::Chain(_) | OperandExpr::Filter(..) => {
            let mut operand = Vec::new();
            flatten_chain(&SelectedClasses::All, expression, &mut operand);
            operand
        }
    };
    steps.push(DraftStep { accepted: SelectedClasses::All, operand, yes, no, sets_class });
    NextStep::Ask(steps.len() - 1)
}

/// Flattens a chain: appends its parts to `operand`, each with the classes that it accepts from the
/// previous part. Nested chains are flattened, too. `wanted` contains the classes that the first
/// part accepts.
fn flatten_chain<'e>(
    wanted: &SelectedClasses,
    part: &'e OperandExpr,
    operand: &mut Vec<(SelectedClasses, &'e OperandExpr)>,
) {
    let OperandExpr::Chain(parts) = part else { return operand.push((wanted.clone(), part)) };
    for (at, (inner, part)) in parts.iter().enumerate() {
        flatten_chain(if at == 0 { wanted } else { inner }, part, operand);
    }
}

/// Appends the steps of a subexpression like [`compile_expression`], and one step that restricts
/// the subexpression to some blocks: those whose class on entry into the section is in `asked`. All
/// other blocks continue at `no`.
fn compile_restricted_part<'e>(
    (asked, part): &'e (SelectedClasses, OperandExpr),
    (yes, no): (NextStep, NextStep),
    sets_class: bool,
    steps: &mut Vec<DraftStep<'e>>,
) -> NextStep {
    let first = compile_expression(part, (yes, no), sets_class, steps);
    if *asked == SelectedClasses::All {
        return first;
    }
    let operand = Vec::new();
    steps.push(DraftStep { accepted: asked.clone(), operand, yes: first, no, sets_class: false });
    NextStep::Ask(steps.len() - 1)
}

/// Maximum number of blocks that one call passes to a filter in an operand.
const CALL_BLOCKS_MAX: usize = LANES;
