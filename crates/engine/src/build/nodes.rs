//! Creation of the nodes of a space: filters with their arguments and counters.

use super::builder::{Builder, SpaceDraft};
use super::replicas::ReplicaIdentity;
use crate::description::{with_description, zero_counts};
use crate::error::BuildError;
use crate::record::RecordMode;
use endpoint::Failure;
use filter::{Counts, FilterKind, Form, SessionNumbers};
use pipeline::ClassSet;
use pipeline::graph::{BooleanExpression, Edge, FilterUse, NodeId, SectionOperand, Step};
use pipeline::plan::Plan;
use runtime::space::arc::NodeId as Local;
use runtime::space::class_selection::SelectedClasses;
use runtime::space::node::{Node, Operator};
use runtime::space::node_key::NodeKey;
use runtime::space::operands::{self, OperandSection};
use runtime::space::published_state::PublishedState;
use runtime::space::section::Section;
use std::sync::Arc;

impl Builder<'_> {
    /// Returns the number of a node of the plan. The number stays the same in every later plan of
    /// the path.
    pub(super) fn node_number(&self, id: NodeId) -> usize {
        self.ids.nodes[id.0]
    }

    /// Creates a new filter for a node that survives the hot swap, if the swap replaces the node's
    /// filter.
    pub(super) fn create_replacement_filter(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        if self.swap.is_some_and(|again| again.renewed.contains(&self.node_number(id)))
            && let Operator::Filter(filter) = self.create_node(id, locals, None)?.operator
        {
            draft.renewed.push((NodeKey::Node(self.node_number(id)), filter));
        }
        Ok(())
    }

    /// Creates a node. If the request publishes the state of the node's filter, also opens the
    /// published state. Two kinds of runs never publish state: replays, and runs that answer a
    /// query about a flow, because the original path publishes already.
    pub(super) fn create_published_node(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
    ) -> Result<Node, BuildError> {
        let mut node = self.create_node(id, locals, None)?;
        let used = self.plan.graph.node(id).filter();
        let publishes = !matches!(self.extras.record_mode, RecordMode::Replay(_))
            && self.extras.flow_query.is_none();
        if let Some(used) = used.filter(|_| publishes) {
            let published = PublishedState::open(&node.name, used.description, &used.arguments);
            let failed = |error| Failure::new("show", "what it knows", error);
            let published = published
                .map_err(|error| BuildError::Outside { node: id, failure: failed(error) })?;
            node.published = published.map(Box::new);
        }
        Ok(node)
    }

    /// Returns a placeholder for a node of the new plan that already runs.
    pub(super) fn placeholder(&self, id: NodeId) -> Node {
        let used = self.plan.graph.node(id).filter();
        let name = used.map_or_else(|| "merge".to_owned(), FilterUse::display_name);
        Node::new(name, self.node_number(id), Operator::Pass, Counts::default())
    }

    /// Creates a node, or one replica of a node if `replica` is given. Creates a placeholder for a
    /// sink.
    pub(super) fn create_node(
        &self,
        id: NodeId,
        locals: &[Option<Local>],
        replica: Option<ReplicaIdentity>,
    ) -> Result<Node, BuildError> {
        let node = self.plan.graph.node(id);
        let used = match &node.step {
            Step::Filter(used) => used,
            Step::Section(body) => {
                let counts = Counts::new(operands::DROP_REASONS.len(), 0);
                let body = &self.plan.graph.body_without_unrequested_classes(id, body);
                let local =
                    |id: NodeId| locals[id.0].ok_or_else(|| self.operand_placement_error(id));
                let section = if self.has_non_classifying_operand(id) {
                    let planned =
                        convert_section(body, &|id| Ok((local(id)?, self.node_number(id))))?;
                    Operator::OperandSection(Box::new(OperandSection::new(&planned)))
                } else {
                    Operator::Section(Arc::new(convert_section(body, &local)?))
                };
                let node = Node::new("boolean", self.node_number(id), section, counts);
                return Ok(Node { reasons: operands::DROP_REASONS, ..node });
            }
            Step::Merge => {
                return Ok(Node::new(
                    "merge",
                    self.node_number(id),
                    Operator::Pass,
                    Counts::default(),
                ));
            }
            Step::Unknown => {
                return Err(BuildError::Unexpected("an unknown filter was planned".to_owned()));
            }
        };
        let description = used.description;
        let part = match description.kind {
            FilterKind::Source => self.endpoint_context().open_source(id, used)?,
            FilterKind::Sink => Operator::Pass,
            _ => {
                let make = description.constructor.ok_or_else(|| {
                    BuildError::Unexpected(format!("`{}` cannot be made", description.name))
                })?;
                let arguments = self.plan.arguments_in_context(id).unwrap_or_default();
                let seed = self.extras.record_mode.filter_seed(self.node_number(id));
                let arguments =
                    arguments.with_seed(seed.or_else(|| replica.map(|replica| replica.seed)));
                let arguments = arguments.with_session_numbers(self.session_numbers(id));
                let index = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
                let made = make(&match replica {
                    Some(ReplicaIdentity { number, of, .. }) => {
                        arguments.for_replica(index(number), index(of))
                    }
                    None => arguments,
                });
                Operator::Filter(made.map_err(|mistake| BuildError::Mistake { node: id, mistake })?)
            }
        };
        Ok(with_description(
            Node::new(used.display_name(), self.node_number(id), part, zero_counts(description)),
            description,
        ))
    }

    /// Returns the session numbers that a filter may use in this process. Each worker process of a
    /// request uses other numbers.
    pub(super) fn session_numbers(&self, id: NodeId) -> SessionNumbers {
        let numbers = self.ids.numbering.session_numbers(self.node_number(id));
        match self.settings.worker {
            Some((number, of)) => numbers.nth_share(number, of),
            None => numbers,
        }
    }

    /// Returns the error for a plan that places an operand outside the space of its section.
    fn operand_placement_error(&self, id: NodeId) -> BuildError {
        let name = self.plan.graph.node(id).name();
        let space = &self.plan.space_of(id).name;
        BuildError::Unexpected(format!("the operand `{name}` is in {space}, its section elsewhere"))
    }

    /// Returns true if an operand of a section moves the view, holds blocks or creates blocks.
    fn has_non_classifying_operand(&self, section: NodeId) -> bool {
        let operands =
            self.plan.graph.nodes_with_ids().filter(|(_, node)| node.inside == Some(section));
        operands.filter_map(|(_, node)| node.kind()).any(|kind| !kind.only_sets_class())
    }

    /// Returns true if all successors of a node accept its output in fragments. Successors that
    /// read streams or messages do, because long messages arrive in fragments anyway (CONTRACT 6).
    pub(super) fn accepts_fragments(&self, id: NodeId) -> bool {
        let graph = &self.plan.graph;
        let pieces = |form: &Form| matches!(form, Form::Stream | Form::Message);
        let takes = |edge: &Edge| {
            let comes = &graph.node(edge.to).input_forms;
            !comes.is_empty() && comes.iter().all(pieces)
        };
        graph.outputs(id).all(takes)
    }

    /// Returns true if `-c` counts blocks at this node: a sink, a program without successors, or a
    /// filter whose report is the output of the request. In the last case, the sink that the plan
    /// adds after the filter is not counted.
    pub(super) fn counts_toward_limit(&self, id: NodeId) -> bool {
        let Plan { graph, reports, .. } = self.plan;
        let reported = |id: NodeId| graph.inputs(id).any(|edge| reports.contains(&edge.from));
        let end = graph.outputs(id).next().is_none();
        reports.contains(&id) || end && !reported(id)
    }
}

/// Converts the Boolean expression of a section from the plan's form to the runtime's form. `node`
/// converts each operand; if it fails, so does the conversion.
fn convert_section<N>(
    body: &BooleanExpression,
    node: &dyn Fn(NodeId) -> Result<N, BuildError>,
) -> Result<Section<N>, BuildError> {
    type SectionParts<N> = Vec<(SelectedClasses, Section<N>)>;
    let links = |links: &[SectionOperand]| -> Result<SectionParts<N>, BuildError> {
        let part = |l: &SectionOperand| {
            Ok((to_selected_classes(&l.classes), convert_section(&l.body, node)?))
        };
        links.iter().map(part).collect()
    };
    Ok(match body {
        BooleanExpression::Filter(id) => Section::Filter(node(*id)?),
        BooleanExpression::Chain { first, rest } => {
            let mut steps = vec![(SelectedClasses::All, convert_section(first, node)?)];
            steps.extend(links(rest)?);
            Section::Chain(steps)
        }
        BooleanExpression::Any(parts) => Section::Any(links(parts)?),
        BooleanExpression::All(parts) => Section::All(links(parts)?),
        BooleanExpression::Not(part) => Section::Not(Box::new(convert_section(part, node)?)),
    })
}

pub(super) fn to_selected_classes(classes: &ClassSet) -> SelectedClasses {
    SelectedClasses::from_ranges(classes.ranges().to_vec())
}
