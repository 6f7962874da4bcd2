//! Conversion of a plan's nodes to the types of the protocol.

use crate::protocol::{Argument, NodeArc, NodeDetails, Nodes};
use engine::live::Live;
use pipeline::explain::{self, ArgumentFacts};
use pipeline::plan::{Candidate, Plan};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Maximum length, in bytes, of the nodes in one reply. A reply has room for another node of
/// maximum length and for the request, neither of which is much longer than
/// [`LINE_MAX`](crate::protocol::LINE_MAX).
const PAGE_MAX: usize = 128 << 10;

/// The nodes of a path, serialized for clients. They are stored until they change, because clients
/// that display a path query them repeatedly.
#[derive(Debug)]
pub(super) struct DescribedNodes {
    version: u64,
    line: String,
    /// Number of each node. A node keeps its number when the request is changed.
    numbers: Vec<usize>,
    /// The serialized nodes.
    nodes: Vec<Box<RawValue>>,
}

/// A `NodesReply` with serialized nodes.
#[derive(Debug, Default, Serialize)]
pub(super) struct NodesPage<'d> {
    version: Option<u64>,
    line: &'d str,
    nodes: &'d [Box<RawValue>],
    next: Option<usize>,
}

impl DescribedNodes {
    /// Describes the nodes of a plan, unless `known` already describes them.
    pub(super) fn update(known: &mut Option<Self>, plan: &Plan, live: Option<&Live>, line: &str) {
        let numbers = live.map(Live::node_numbers).unwrap_or_default();
        if known.as_ref().is_some_and(|known| known.line == line && known.numbers == numbers) {
            return;
        }
        let names = explain::unique_names(&plan.graph).into_iter().enumerate();
        let nodes = names.map(|(at, name)| {
            let id = numbers.get(at).map(|number| *number as u64);
            let node = NodeDetails { id, ..describe_node(plan, at, name) };
            // Names, numbers and texts can always be serialized.
            to_raw_value(&node).unwrap_or_else(|_| RawValue::NULL.to_owned())
        });
        let (nodes, line) = (nodes.collect(), line.to_owned());
        *known = Some(Self { version: next_version(), line, numbers, nodes });
    }

    /// Returns the nodes that start at index `wanted.first`, as many as fit into a reply; none if
    /// the caller already has this version.
    pub(super) fn page(&self, wanted: Nodes) -> NodesPage<'_> {
        let version = Some(self.version);
        if wanted.known == version {
            return NodesPage { version, ..NodesPage::default() };
        }
        let first = wanted.first.unwrap_or_default();
        let rest = self.nodes.get(first..).unwrap_or_default();
        let mut length = 0;
        let fits = |more: &usize| {
            length += more;
            length <= PAGE_MAX
        };
        let lengths = rest.iter().map(|node| node.get().len());
        let count = lengths.take_while(fits).count().max(1).min(rest.len());
        let next = (count < rest.len()).then_some(first + count);
        let nodes = rest.get(..count).unwrap_or_default();
        NodesPage { version, line: &self.line, nodes, next }
    }
}

/// Returns a version that no process on this machine has used yet: a combination of the process id
/// and the monotonic clock that fits into an `i64`.
fn next_version() -> u64 {
    let process = u64::from(std::process::id()) << 40;
    (process ^ sys::clock::monotonic()) & (i64::MAX as u64)
}

fn describe_node(plan: &Plan, at: usize, name: String) -> NodeDetails {
    let space_name = |space: &usize| plan.spaces.get(*space).map(|space| space.name.clone());
    let placement = plan.placements.get(at);
    let space = placement.and_then(|placed| space_name(&placed.space)).unwrap_or_default();
    let replicas = plan.replicas.iter().find(|all| all.nodes.iter().any(|id| id.0 == at));
    let copies = replicas.into_iter().flat_map(|all| &all.spaces).filter_map(space_name);
    let other = |candidate: &&Candidate| candidate.space != space;
    let elsewhere = placement.into_iter().flat_map(|placed| &placed.candidates).filter(other);
    let facts = explain::node_facts(&plan.graph, at);
    let arcs = plan.graph.edges.iter().filter(|edge| edge.from.0 == at);
    let arcs = arcs.map(|edge| {
        let classes = explain::arc_label(&plan.graph, edge);
        NodeArc { to: edge.to.0, classes, back: edge.back }
    });
    NodeDetails {
        id: None,
        name,
        filter: facts.filter.to_owned(),
        implied: facts.implied,
        inside: plan.graph.nodes.get(at).and_then(|node| node.inside).map(|section| section.0),
        arguments: facts.arguments.into_iter().map(argument).collect(),
        form: facts.form.map_or_else(String::new, |form| form.name().to_owned()),
        copies: copies.collect(),
        because: placement.map(|placed| placed.because.clone()).unwrap_or_default(),
        elsewhere: elsewhere.filter_map(describe_candidate).collect(),
        arcs: arcs.collect(),
        space,
    }
}

fn argument(facts: ArgumentFacts) -> Argument {
    let ArgumentFacts { name, value, given, writable } = facts;
    Argument { name: name.to_owned(), value, given, writable }
}

/// Formats the name of a space and the reason why a node does not run there. Returns `None` if
/// there is no reason.
fn describe_candidate(candidate: &Candidate) -> Option<String> {
    let why = candidate.verdict.as_ref().err().or(candidate.lost.as_ref())?;
    Some(format!("{}: {why}", candidate.space))
}
