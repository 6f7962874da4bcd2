//! Search for the filters that determine the class of a block: the nearest filters upstream that
//! have classes.
//!
//! A filter whose classes are `Same` preserves a block's class, and so does `!a`, so the search
//! continues upstream of them. A source that it reaches is one of the classifiers, because blocks
//! then arrive with the class of the source, even if the source classifies nothing. An error
//! upstream makes the result incomplete; errors that depend on it are then not reported.

use std::collections::HashMap;
use std::rc::Rc;

use filter::{Classes, FilterKind};

use super::lower::{Draft, DraftStep};
use crate::graph::{BooleanExpression, NodeId, SectionOperand};

/// The filters that may have determined the class of a block, found by a search upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Classifiers {
    /// The nodes of the classifiers, in text order.
    pub(super) nodes: Vec<NodeId>,
    /// True if the search upstream met an error. Filters that it did not find may then determine
    /// the class.
    pub(super) is_incomplete: bool,
}

impl Classifiers {
    /// Adds the classifiers in `other` without sorting the nodes; [`Self::into_sorted`] sorts them.
    fn add(&mut self, other: &Self) {
        self.nodes.extend(&other.nodes);
        self.is_incomplete |= other.is_incomplete;
    }

    fn into_sorted(mut self) -> Self {
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self
    }
}

/// A search for the filters that determine the classes of blocks. The search stores its result for
/// each node of a request.
pub(super) struct ClassifierSearch<'d, 't> {
    pub(super) draft: &'d Draft<'t>,
    inputs: Vec<Vec<NodeId>>,
    cache: HashMap<NodeId, Rc<Classifiers>>,
}

impl<'d, 't> ClassifierSearch<'d, 't> {
    pub(super) fn new(draft: &'d Draft<'t>) -> Self {
        let mut inputs = vec![Vec::new(); draft.nodes.len()];
        for edge in &draft.edges {
            inputs[edge.to.0].push(edge.from);
        }
        Self { draft, inputs, cache: HashMap::new() }
    }

    /// Returns the filters that classify the blocks leaving `node`.
    pub(super) fn output_classifiers(&mut self, node: NodeId) -> Rc<Classifiers> {
        if let Some(classifiers) = self.cache.get(&node) {
            return classifiers.clone();
        }
        let classifiers = Rc::new(self.search(vec![node]));
        self.cache.insert(node, classifiers.clone());
        classifiers
    }

    /// Returns the filters that classify the blocks arriving at `node`.
    pub(super) fn input_classifiers(&mut self, node: NodeId) -> Classifiers {
        self.search(self.inputs[node.0].clone())
    }

    /// Returns the filters that may determine the class of a block that leaves a section's
    /// expression `body`. `entry` contains the filters that determine the class of the blocks that
    /// enter it.
    pub(super) fn classifiers_after_body<L>(
        &self,
        body: &BooleanExpression<L>,
        entry: &Classifiers,
    ) -> Classifiers {
        let mut classifiers = Classifiers::default();
        if self.add_last_classifiers(body, &mut classifiers) {
            classifiers.add(entry);
        }
        classifiers.into_sorted()
    }

    fn search(&self, mut open: Vec<NodeId>) -> Classifiers {
        let mut classifiers = Classifiers::default();
        let mut visited = vec![false; self.draft.nodes.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut visited[id.0], true) {
                continue;
            }
            let keeps_class = match &self.draft.nodes[id.0].step {
                DraftStep::Filter(_) | DraftStep::Hole => self.add_filter(id, &mut classifiers),
                DraftStep::Section(body, _) => self.add_last_classifiers(body, &mut classifiers),
                DraftStep::Merge => true,
            };
            if keeps_class {
                open.extend(&self.inputs[id.0]);
            }
        }
        classifiers.into_sorted()
    }

    /// Adds a filter to the classifiers, unless the filter preserves a block's class. Returns true
    /// if it preserves the class.
    fn add_filter(&self, id: NodeId, classifiers: &mut Classifiers) -> bool {
        match self.draft.nodes[id.0].entry {
            None => {
                classifiers.is_incomplete = true;
                false
            }
            Some(entry) => match entry.classes {
                Classes::Same if entry.kind != FilterKind::Source => true,
                _ => {
                    classifiers.nodes.push(id);
                    false
                }
            },
        }
    }

    /// Adds to the classifiers those filters of a section's expression that may be the last to
    /// classify a block. Returns true if a block may pass the expression without getting a class
    /// there.
    fn add_last_classifiers<L>(
        &self,
        body: &BooleanExpression<L>,
        classifiers: &mut Classifiers,
    ) -> bool {
        match body {
            BooleanExpression::Filter(id) => self.add_filter(*id, classifiers),
            BooleanExpression::Not(_) => true,
            BooleanExpression::Any(links) => {
                links.iter().fold(false, |open, SectionOperand { body, .. }| {
                    self.add_last_classifiers(body, classifiers) | open
                })
            }
            BooleanExpression::All(links) => {
                links.iter().rev().all(|link| self.add_last_classifiers(&link.body, classifiers))
            }
            BooleanExpression::Chain { first, rest } => {
                rest.iter().rev().all(|link| self.add_last_classifiers(&link.body, classifiers))
                    && self.add_last_classifiers(first, classifiers)
            }
        }
    }
}
