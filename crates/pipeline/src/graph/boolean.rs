//! The expressions of Boolean sections.

use super::{Edge, Graph, NodeId, Step};
use crate::classes::ClassSet;
use filter::ValueRange;

/// The expression of a section. `L` is the label type of its arcs: class sets in a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BooleanExpression<L = ClassSet> {
    /// An operand: a node whose field `inside` names the section.
    Filter(NodeId),
    /// `a | b`: `b` is evaluated for the blocks that `a` passes. The chain's answer is the answer
    /// of its last operand.
    Chain {
        /// The first operand of the chain.
        first: Box<Self>,
        /// The other operands. Each is evaluated for certain classes that the previous operand
        /// returns.
        rest: Vec<SectionOperand<L>>,
    },
    /// `a ++ b`: `b` is evaluated for the blocks to which `a` answers 0.
    Any(Vec<SectionOperand<L>>),
    /// `a +* b`: `b` is evaluated for the blocks that `a` selects. An expression without operands
    /// selects every block.
    All(Vec<SectionOperand<L>>),
    /// `!a`: selects the blocks to which `a` answers 0.
    Not(Box<Self>),
}

impl<L> BooleanExpression<L> {
    /// Returns true if this expression contains `operand`. Then also appends to `before` the
    /// operands that precede it in chains.
    pub(crate) fn collect_operands_before(
        &self,
        operand: NodeId,
        before: &mut Vec<NodeId>,
    ) -> bool {
        match self {
            Self::Filter(id) => *id == operand,
            Self::Not(inner) => inner.collect_operands_before(operand, before),
            Self::Any(links) | Self::All(links) => {
                links.iter().any(|link| link.body.collect_operands_before(operand, before))
            }
            Self::Chain { first, rest } => {
                let mut parts = std::iter::once(&**first).chain(rest.iter().map(|link| &link.body));
                let mut passed = Vec::new();
                let found = parts.any(|part| {
                    let here = part.collect_operands_before(operand, before);
                    if !here {
                        part.propagate((), &mut |id, ()| passed.push(id));
                    }
                    here
                });
                before.extend(passed.into_iter().filter(|_| found));
                found
            }
        }
    }

    /// Computes a value for the blocks that pass through the expression. `input` is the value of
    /// the blocks that enter, and `at` maps the value before an operand to the value after it.
    /// Returns the value of the blocks that leave: for a filter or a chain, the value after the
    /// last operand; for any other expression, `input`.
    pub(crate) fn propagate<T: Clone>(&self, input: T, at: &mut impl FnMut(NodeId, T) -> T) -> T {
        match self {
            Self::Filter(id) => at(*id, input),
            Self::Not(inner) => {
                inner.propagate(input.clone(), at);
                input
            }
            Self::Any(links) | Self::All(links) => {
                for link in links {
                    link.body.propagate(input.clone(), at);
                }
                input
            }
            Self::Chain { first, rest } => {
                let first = first.propagate(input, at);
                rest.iter().fold(first, |output, link| link.body.propagate(output, at))
            }
        }
    }
}

impl Graph {
    /// Returns true if a label explicitly selects classes within `bounds`: the label of the edge
    /// or, if the edge enters a section, the label of an operand.
    #[must_use]
    pub fn names_class_within(&self, edge: &Edge, bounds: ValueRange) -> bool {
        let by_operand = match &self.node(edge.to).step {
            Step::Section(body) => body.names_class_within(bounds),
            _ => false,
        };
        by_operand || edge.classes.names_class_within(bounds)
    }

    /// Returns the expression `body` of a section, without classes that never arrive there. Some
    /// filters emit certain classes only if an arc names them. If no incoming arc of the section
    /// names these classes, they are removed from the operands' arcs. Arcs that name them stay
    /// unchanged.
    #[must_use]
    pub fn body_without_unrequested_classes(
        &self,
        section: NodeId,
        body: &BooleanExpression,
    ) -> BooleanExpression {
        let made = |edge: &Edge| {
            let before = self.node(edge.from).filter()?;
            let made = before.description.classes_on_request?;
            (!edge.classes.names_class_within(made)).then_some(made)
        };
        let mut made = self.inputs(section).map(made);
        let first = made.next().flatten();
        // If the filters before the section differ in these classes, the same numbers may denote
        // other classes, so nothing is removed.
        match first.filter(|_| made.all(|other| other == first)) {
            Some(made) => body.without_unrequested_classes(made),
            None => body.clone(),
        }
    }
}

impl BooleanExpression {
    /// Returns true if a label on an arc into the expression explicitly selects classes within
    /// `bounds`. Considers only the arcs to the operands that blocks enter first.
    pub(crate) fn names_class_within(&self, bounds: ValueRange) -> bool {
        match self {
            Self::Filter(_) => false,
            Self::Not(inner) => inner.names_class_within(bounds),
            Self::Chain { first, .. } => first.names_class_within(bounds),
            Self::Any(links) | Self::All(links) => {
                links.iter().any(|link| link.names_class_within(bounds))
            }
        }
    }

    /// Appends the classes of each arc at the entry of the expression, that is, each arc to an
    /// operand that blocks enter first.
    pub(crate) fn collect_entry_classes(&self, all: &mut Vec<ClassSet>) {
        match self {
            Self::Filter(_) => {}
            Self::Not(inner) => inner.collect_entry_classes(all),
            Self::Chain { first, .. } => first.collect_entry_classes(all),
            Self::Any(links) | Self::All(links) => {
                for link in links {
                    all.push(link.classes.clone());
                    link.body.collect_entry_classes(all);
                }
            }
        }
    }

    /// Returns the expression without the classes within `made` on the arcs at its entry, that is,
    /// on the arcs to the operands that blocks enter first. An arc stays unchanged if its label, or
    /// a label inside the operand after it, explicitly selects a class within `made`.
    pub(crate) fn without_unrequested_classes(&self, made: ValueRange) -> Self {
        let links = |links: &[SectionOperand]| -> Vec<SectionOperand> {
            links.iter().map(|link| link.without_unrequested_classes(made)).collect()
        };
        match self {
            Self::Filter(id) => Self::Filter(*id),
            Self::Not(inner) => Self::Not(Box::new(inner.without_unrequested_classes(made))),
            Self::Chain { first, rest } => Self::Chain {
                first: Box::new(first.without_unrequested_classes(made)),
                rest: rest.clone(),
            },
            Self::Any(parts) => Self::Any(links(parts)),
            Self::All(parts) => Self::All(links(parts)),
        }
    }

    /// Replaces an operand with a chain of a new filter and the operand.
    pub(crate) fn insert_before(&mut self, operand: NodeId, first: NodeId) {
        match self {
            Self::Filter(id) if *id == operand => {
                let rest = vec![SectionOperand {
                    classes: ClassSet::plain_pipe(),
                    body: Self::Filter(operand),
                }];
                *self = Self::Chain { first: Box::new(Self::Filter(first)), rest };
            }
            Self::Filter(_) => {}
            Self::Not(inner) => inner.insert_before(operand, first),
            Self::Any(links) | Self::All(links) => {
                links.iter_mut().for_each(|link| link.body.insert_before(operand, first));
            }
            Self::Chain { first: body, rest } => {
                body.insert_before(operand, first);
                rest.iter_mut().for_each(|link| link.body.insert_before(operand, first));
            }
        }
    }
}

/// An operand of a section, and the classes of the blocks for which it is evaluated. For blocks of
/// other classes, the operand answers 0.
///
/// The classes refer to the answer of the previous operand in a chain. In
/// [`BooleanExpression::Any`] and [`BooleanExpression::All`], they refer to the class with which a
/// block enters the section; an arc without a label selects all classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionOperand<L = ClassSet> {
    /// The classes for which the operand is evaluated.
    pub classes: L,
    /// The expression of the operand.
    pub body: BooleanExpression<L>,
}

impl SectionOperand {
    fn names_class_within(&self, bounds: ValueRange) -> bool {
        self.classes.names_class_within(bounds) || self.body.names_class_within(bounds)
    }

    fn without_unrequested_classes(&self, made: ValueRange) -> Self {
        if self.classes.names_class_within(made) {
            return self.clone();
        }
        let is_named_behind = self.body.names_class_within(made);
        let classes = match is_named_behind {
            true => self.classes.clone(),
            false => self.classes.without_unrequested_classes(Some(made)),
        };
        Self { classes, body: self.body.without_unrequested_classes(made) }
    }
}
