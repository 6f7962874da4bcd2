//! Finds the filters that give a block its class: the nearest ones upstream that have classes.
//!
//! A filter whose classes are `Same` leaves the class as it is, so the search goes on upstream; so
//! does `!a`, which passes a block with the class it came with. A mistake upstream makes the answer
//! unknown, and nothing that depends on it is reported.

use std::collections::HashMap;
use std::rc::Rc;

use filter::{Classes, Kind};

use super::lower::{Draft, DraftStep};
use crate::graph::{Boolean, Link, NodeId};

/// The nodes that gave a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// In the order of the text.
    pub(super) nodes: Vec<NodeId>,
    /// There is a node upstream of which nothing is known.
    pub(super) unknown: bool,
}

impl Answers {
    /// Adds answers; `ordered` puts them in order when all are there.
    fn add(&mut self, other: &Self) {
        self.nodes.extend(&other.nodes);
        self.unknown |= other.unknown;
    }

    fn ordered(mut self) -> Self {
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self
    }
}

/// Answers the question for the nodes of one request.
pub(super) struct Upstream<'d, 't> {
    pub(super) draft: &'d Draft<'t>,
    coming: Vec<Vec<NodeId>>,
    known: HashMap<NodeId, Rc<Answers>>,
}

impl<'d, 't> Upstream<'d, 't> {
    pub(super) fn new(draft: &'d Draft<'t>) -> Self {
        let mut coming = vec![Vec::new(); draft.nodes.len()];
        for edge in &draft.edges {
            coming[edge.to.0].push(edge.from);
        }
        Self { draft, coming, known: HashMap::new() }
    }

    /// Returns the filters that classed the blocks leaving `node`.
    pub(super) fn leaving(&mut self, node: NodeId) -> Rc<Answers> {
        if let Some(answers) = self.known.get(&node) {
            return answers.clone();
        }
        let answers = Rc::new(self.search(vec![node]));
        self.known.insert(node, answers.clone());
        answers
    }

    /// Returns the filters that classed the blocks coming to `node`.
    pub(super) fn coming(&mut self, node: NodeId) -> Answers {
        self.search(self.coming[node.0].clone())
    }

    /// Returns the filters that classed a block which entered `body` with the class of `entry` and
    /// passed it.
    pub(super) fn behind<L>(&self, body: &Boolean<L>, entry: &Answers) -> Answers {
        let mut answers = Answers::default();
        if self.last(body, &mut answers) {
            answers.add(entry);
        }
        answers.ordered()
    }

    fn search(&self, mut open: Vec<NodeId>) -> Answers {
        let mut answers = Answers::default();
        let mut seen = vec![false; self.draft.nodes.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0], true) {
                continue;
            }
            let goes_on = match &self.draft.nodes[id.0].step {
                DraftStep::Filter(_) | DraftStep::Hole => self.filter(id, &mut answers),
                DraftStep::Boolean(body, _) => self.last(body, &mut answers),
                DraftStep::Merge => true,
            };
            if goes_on {
                open.extend(&self.coming[id.0]);
            }
        }
        answers.ordered()
    }

    /// Adds a filter's own answer; true if it leaves the class as it came.
    fn filter(&self, id: NodeId, answers: &mut Answers) -> bool {
        match self.draft.nodes[id.0].entry {
            None => {
                answers.unknown = true;
                false
            }
            Some(entry) => match entry.classes {
                Classes::Same => entry.kind != Kind::Source,
                _ => {
                    answers.nodes.push(id);
                    false
                }
            },
        }
    }

    /// Adds the filters of a body that may have answered last; true if the block may have passed it
    /// without an answer.
    fn last<L>(&self, body: &Boolean<L>, answers: &mut Answers) -> bool {
        match body {
            Boolean::Filter(id) => self.filter(*id, answers),
            Boolean::Not(_) => true,
            Boolean::Any(links) => {
                links.iter().fold(false, |open, Link { body, .. }| self.last(body, answers) | open)
            }
            Boolean::All(links) => links.iter().rev().all(|link| self.last(&link.body, answers)),
            Boolean::Chain { first, rest } => {
                rest.iter().rev().all(|link| self.last(&link.body, answers))
                    && self.last(first, answers)
            }
        }
    }
}
