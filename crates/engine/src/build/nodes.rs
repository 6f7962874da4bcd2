//! The nodes of a space: every filter made with its arguments, what counts its blocks beside it.

use super::builder::{Builder, Draft};
use crate::described::{counts, describe};
use crate::error::BuildError;
use crate::record::Tape;
use endpoint::Failure;
use filter::{Counts, Form, Kind, SessionNumbers};
use pipeline::ClassSet;
use pipeline::graph::{Boolean, Edge, Link, NodeId, Step, Use};
use pipeline::plan::Plan;
use runtime::space::asks::{self, Asked, Asks};
use runtime::space::graft::Key;
use runtime::space::node::{Node, NodeId as Local, Part};
use runtime::space::section::Section;
use runtime::space::select::Wanted;
use runtime::space::shown::Showing;
use std::sync::Arc;

impl Builder<'_> {
    /// The number that a node keeps.
    pub(super) fn number(&self, id: NodeId) -> usize {
        self.ids.nodes[id.0]
    }

    /// Makes a filter anew that runs already, if it is to be.
    pub(super) fn renew(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
        draft: &mut Draft,
    ) -> Result<(), BuildError> {
        if self.again.is_some_and(|again| again.renewed.contains(&self.number(id)))
            && let Part::Filter(filter) = self.node(id, locals, None)?.part
        {
            draft.renewed.push((Key::Node(self.number(id)), filter));
        }
        Ok(())
    }

    /// Makes a node, and has others see what it knows, if they are to.
    pub(super) fn new_node(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
    ) -> Result<Node, BuildError> {
        let mut node = self.node(id, locals, None)?;
        let used = self.plan.graph.node(id).filter();
        // What is played again is what was seen then.
        if let (Some(used), false) = (used, matches!(self.extras.tape, Tape::Play(_))) {
            let shown = Showing::open(&node.name, used.description, &used.arguments);
            let failed = |error| Failure::new("show", "what it knows", error);
            let shown =
                shown.map_err(|error| BuildError::Outside { node: id, failure: failed(error) })?;
            node.shown = shown.map(Box::new);
        }
        Ok(node)
    }

    /// The place of a node that runs already.
    pub(super) fn place(&self, id: NodeId) -> Node {
        let used = self.plan.graph.node(id).filter();
        let name = used.map_or_else(|| "merge".to_owned(), Use::title);
        Node::new(name, self.number(id), Part::Pass, Counts::default())
    }

    /// Makes a node, or one of the copies of it. A sink's place is kept by nothing until all else
    /// has succeeded.
    pub(super) fn node(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
        copy: Option<(u32, u32)>,
    ) -> Result<Node, BuildError> {
        let node = self.plan.graph.node(id);
        let used = match &node.step {
            Step::Filter(used) => used,
            Step::Boolean(body) => {
                let counts = Counts::new(asks::REASONS.len(), 0);
                let section = match self.asks(id) {
                    true => Part::Asks(Box::new(Asks::new(&self.expression(body, locals)))),
                    false => Part::Section(Arc::new(section(body, locals))),
                };
                let node = Node::new("boolean", self.number(id), section, counts);
                return Ok(Node { reasons: asks::REASONS, ..node });
            }
            Step::Merge => {
                return Ok(Node::new("merge", self.number(id), Part::Pass, Counts::default()));
            }
            Step::Unknown => {
                return Err(BuildError::Unexpected("an unknown filter was planned".to_owned()));
            }
        };
        let description = used.description;
        let part = match description.kind {
            Kind::Source => self.outside().source(id, used)?,
            Kind::Sink => Part::Pass,
            _ => {
                let make = description.user.ok_or_else(|| {
                    BuildError::Unexpected(format!("`{}` cannot be made", description.name))
                })?;
                let arguments = used.arguments.clone().asked_for(self.asked(id));
                let arguments = arguments.seeded(self.extras.tape.seed(self.number(id)));
                let arguments = arguments.in_reserve(self.is_in_kernel(id));
                let arguments = arguments.numbering(self.numbering(id));
                let made = make(&match copy {
                    Some((number, of)) => arguments.for_copy(number, of),
                    None => arguments,
                });
                Part::Filter(made.map_err(|mistake| BuildError::Mistake { node: id, mistake })?)
            }
        };
        Ok(describe(
            Node::new(used.title(), self.number(id), part, counts(description)),
            description,
        ))
    }

    /// The numbers that a filter may give to sessions, of those of this process.
    pub(super) fn numbering(&self, id: NodeId) -> SessionNumbers {
        let numbers = self.ids.numbering.numbers(self.number(id));
        match self.settings.one_of {
            Some((number, of)) => numbers.split(number, of),
            None => numbers,
        }
    }

    /// Returns true if an operand of a section moves the view, holds blocks or makes others.
    fn asks(&self, section: NodeId) -> bool {
        let operands = self.plan.graph.ids().filter(|(_, node)| node.inside == Some(section));
        operands.filter_map(|(_, node)| node.kind()).any(|kind| !kind.answers_only())
    }

    /// An expression over such operands.
    fn expression(&self, body: &Boolean, locals: &[Option<Local>]) -> Asked {
        let links = |links: &[Link]| -> Vec<(Wanted, Asked)> {
            links.iter().map(|l| (wanted(&l.classes), self.expression(&l.body, locals))).collect()
        };
        match body {
            Boolean::Filter(id) => {
                Asked::Filter(locals[id.0].unwrap_or_default(), self.number(*id))
            }
            Boolean::Chain { first, rest } => {
                let mut steps = vec![(Wanted::All, self.expression(first, locals))];
                steps.extend(links(rest));
                Asked::Chain(steps)
            }
            Boolean::Any(parts) => Asked::Any(links(parts)),
            Boolean::All(parts) => Asked::All(links(parts)),
            Boolean::Not(part) => Asked::Not(Box::new(self.expression(part, locals))),
        }
    }

    /// The ranges of classes that arcs from a node name.
    pub(super) fn asked(&self, id: NodeId) -> Vec<(u32, u32)> {
        let graph = &self.plan.graph;
        let entered = |edge: &Edge| match &graph.node(edge.to).step {
            // What enters a section is what its operands ask for.
            Step::Boolean(Boolean::Any(links) | Boolean::All(links)) => {
                links.iter().map(|link| link.classes.clone()).collect()
            }
            _ => vec![edge.classes.clone()],
        };
        let named = graph.edges.iter().filter(|edge| edge.from == id).flat_map(entered);
        let named = named.filter(|classes| !classes.is_all() && !classes.is_plain());
        named.flat_map(|classes| classes.ranges().to_vec()).collect()
    }

    /// Returns true if all successors of a node accept its output in fragments: bytes of a
    /// connection, and messages, of which longer ones arrive in fragments anyway (CONTRACT 6).
    pub(super) fn takes_fragments(&self, id: NodeId) -> bool {
        let graph = &self.plan.graph;
        let pieces = |form: &Form| matches!(form, Form::Stream | Form::Message);
        let takes = |edge: &Edge| {
            let comes = &graph.node(edge.to).comes;
            !comes.is_empty() && comes.iter().all(pieces)
        };
        graph.outputs(id).all(takes)
    }

    /// Returns true if a node counts as an end of the line: a sink, a program without successors,
    /// or the filter whose report is the output (rather than the sink that the plan put behind it).
    pub(super) fn is_counted(&self, id: NodeId) -> bool {
        let Plan { graph, reports, .. } = self.plan;
        let reported = |id: NodeId| graph.inputs(id).any(|edge| reports.contains(&edge.from));
        let end = graph.outputs(id).next().is_none();
        reports.contains(&id) || end && !reported(id)
    }
}

fn section(body: &Boolean, locals: &[Option<Local>]) -> Section {
    let links = |links: &[Link]| -> Vec<(Wanted, Section)> {
        links.iter().map(|l| (wanted(&l.classes), section(&l.body, locals))).collect()
    };
    match body {
        Boolean::Filter(id) => Section::Filter(locals[id.0].unwrap_or_default()),
        Boolean::Chain { first, rest } => {
            let mut steps = vec![(Wanted::All, section(first, locals))];
            steps.extend(links(rest));
            Section::Chain(steps)
        }
        Boolean::Any(parts) => Section::Any(links(parts)),
        Boolean::All(parts) => Section::All(links(parts)),
        Boolean::Not(part) => Section::Not(Box::new(section(part, locals))),
    }
}

pub(super) fn wanted(classes: &ClassSet) -> Wanted {
    Wanted::ranges(classes.ranges().to_vec())
}
