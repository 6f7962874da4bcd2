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
    nodes: Vec<DescribedNode>,
    /// The previous version and, for each node, the index of the node in that version, or -1 if the
    /// node is new or has changed.
    before: Option<(u64, Vec<i64>)>,
    /// True if the plan has changed since its nodes were described.
    is_outdated: bool,
}

/// A node with its serialized form.
#[derive(Debug)]
struct DescribedNode {
    details: NodeDetails,
    text: Box<RawValue>,
}

/// A `NodesReply` or `ChangedNodes` with serialized nodes.
#[derive(Debug, Default, Serialize)]
pub(super) struct NodesPage<'d> {
    version: Option<u64>,
    line: &'d str,
    nodes: Vec<&'d RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'d [i64]>,
    next: Option<usize>,
}

impl DescribedNodes {
    /// Describes the nodes of a plan, unless `known` already describes them.
    pub(super) fn update(known: &mut Option<Self>, plan: &Plan, live: Option<&Live>, line: &str) {
        let numbers = live.map(Live::node_numbers).unwrap_or_default();
        let describes =
            |known: &Self| !known.is_outdated && known.line == line && known.numbers == numbers;
        if known.as_ref().is_some_and(describes) {
            return;
        }
        let mut before = known.take();
        let mut kept = Vec::with_capacity(plan.graph.nodes.len());
        let names = explain::unique_names(&plan.graph).into_iter().enumerate();
        let nodes = names.map(|(at, name)| {
            let id = numbers.get(at).map(|number| *number as u64);
            let details = NodeDetails { id, ..describe_node(plan, at, name) };
            let same = before.as_mut().and_then(|before| before.take_node(at, &details));
            kept.push(same.as_ref().map_or(-1, |(at, _)| i64::try_from(*at).unwrap_or(-1)));
            same.map_or_else(|| DescribedNode::new(details), |(_, node)| node)
        });
        let (nodes, line) = (nodes.collect(), line.to_owned());
        let before = before.map(|before| (before.version, kept));
        let is_outdated = false;
        *known = Some(Self { version: next_version(), line, numbers, nodes, before, is_outdated });
    }

    /// Records that the plan has changed, so that the next update describes its nodes anew.
    pub(super) const fn note_change(&mut self) {
        self.is_outdated = true;
    }

    /// Takes the described node that equals `like`, and returns it with its index. Leaves an empty
    /// node in its place. `at` is the index of `like` in the new plan. Returns `None` if no node
    /// equals `like`.
    fn take_node(&mut self, at: usize, like: &NodeDetails) -> Option<(usize, DescribedNode)> {
        let number = like.id?;
        let is_number = |known: &usize| *known as u64 == number;
        let at = match self.numbers.get(at).is_some_and(is_number) {
            true => at,
            false => self.numbers.iter().position(is_number)?,
        };
        let known = self.nodes.get_mut(at).filter(|known| known.details == *like)?;
        Some((at, std::mem::replace(known, DescribedNode::empty())))
    }

    /// Returns the nodes after a change. If the caller has the version before the change, nodes
    /// that have not changed are omitted.
    pub(super) fn changed(&self, known: Option<u64>) -> NodesPage<'_> {
        let version = Some(self.version);
        let before = self.before.as_ref().filter(|(before, _)| known == Some(*before));
        let Some((_, kept)) = before else { return self.page(Nodes::default()) };
        let changed = self.nodes.iter().zip(kept).filter(|(_, kept)| **kept < 0);
        let nodes: Vec<&RawValue> = changed.map(|(node, _)| &*node.text).collect();
        if nodes.iter().map(|node| node.get().len()).sum::<usize>() > PAGE_MAX {
            return self.page(Nodes::default());
        }
        NodesPage { version, line: &self.line, nodes, kept: Some(kept), next: None }
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
        let lengths = rest.iter().map(|node| node.text.get().len());
        let count = lengths.take_while(fits).count().max(1).min(rest.len());
        let next = (count < rest.len()).then_some(first + count);
        let nodes = rest.iter().take(count).map(|node| &*node.text).collect();
        NodesPage { version, line: &self.line, nodes, kept: None, next }
    }
}

impl DescribedNode {
    fn new(details: NodeDetails) -> Self {
        // Names, numbers and texts can always be serialized.
        let text = to_raw_value(&details).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { details, text }
    }

    fn empty() -> Self {
        Self { details: NodeDetails::default(), text: RawValue::NULL.to_owned() }
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
