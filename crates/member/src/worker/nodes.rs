//! Conversion of a plan's nodes to the types of the protocol.

use crate::protocol::{Argument, NodeArc, NodeDetails, NodePatch, NodesParameters};
use engine::live::PathHandle;
use pipeline::explain::{self, ArgumentFacts};
use pipeline::plan::{Candidate, Plan};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;
use std::cell::OnceCell;

/// Maximum length in bytes of the serialized nodes in one reply. The rest of a reply is reserved
/// for the request and for one more node. Neither of them is much longer than
/// [`REQUEST_BYTES_MAX`](crate::protocol::REQUEST_BYTES_MAX).
const PAGE_BYTES_MAX: usize = 128 << 10;

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
    /// node is new or has changed in more than its name and its arcs.
    before: Option<(u64, Vec<i64>)>,
    /// Names and arcs of the nodes that differ from the previous version only in their name or
    /// arcs.
    patches: Vec<NodePatch>,
    /// True if the plan has changed since its nodes were described.
    is_outdated: bool,
}

/// A node of the plan, and its serialized form, which is created when a client first asks for it.
#[derive(Debug, Default)]
struct DescribedNode {
    details: NodeDetails,
    text: OnceCell<Box<RawValue>>,
}

/// A `NodesReply` or `ChangedNodes` with serialized nodes.
#[derive(Debug, Default, Serialize)]
pub(super) struct NodesPage<'d> {
    version: Option<u64>,
    line: &'d str,
    nodes: Vec<&'d RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<Cow<'d, [i64]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patches: Option<&'d [NodePatch]>,
    next: Option<usize>,
}

impl DescribedNodes {
    /// Updates `known`, the nodes of a path as last described to clients, to the nodes of a plan.
    /// Does nothing if `known` already describes this plan.
    pub(super) fn update(
        known: &mut Option<Self>,
        plan: &Plan,
        live: Option<&PathHandle>,
        line: &str,
    ) {
        let numbers = live.map(PathHandle::node_numbers).unwrap_or_default();
        let describes =
            |known: &Self| !known.is_outdated && known.line == line && known.numbers == numbers;
        if known.as_ref().is_some_and(describes) {
            return;
        }
        let mut before = known.take();
        let mut kept = Vec::with_capacity(plan.graph.nodes.len());
        let mut patches = Vec::new();
        let names = explain::unique_names(&plan.graph).into_iter().enumerate();
        let nodes = names.map(|(at, name)| {
            let id = numbers.get(at).map(|number| *number as u64);
            let details = NodeDetails { id, ..describe_node(plan, at, name) };
            let known = before.as_mut().and_then(|before| before.take_node(at, id));
            let patch = known.as_ref().and_then(|(_, known)| node_patch(at, known, &details));
            let Some((before, known)) = known.filter(|_| patch.is_some()) else {
                kept.push(-1);
                return DescribedNode { details, text: OnceCell::new() };
            };
            kept.push(i64::try_from(before).unwrap_or(-1));
            match patch.filter(|patch| patch.name.is_some() || patch.arcs.is_some()) {
                None => known,
                Some(patch) => {
                    patches.push(patch);
                    DescribedNode { details, text: OnceCell::new() }
                }
            }
        });
        let (nodes, line) = (nodes.collect(), line.to_owned());
        let before = before.map(|before| (before.version, kept));
        let (version, is_outdated) = (next_version(), false);
        *known = Some(Self { version, line, numbers, nodes, before, patches, is_outdated });
    }

    /// Records that the plan has changed, so that the next update describes its nodes anew.
    pub(super) const fn mark_outdated(&mut self) {
        self.is_outdated = true;
    }

    /// Takes the previously described node with this number, and returns its index and the node. An
    /// empty node remains in its place. `at` is the index of the node in the new plan, and is tried
    /// first. Returns `None` if there is no such node.
    fn take_node(&mut self, at: usize, number: Option<u64>) -> Option<(usize, DescribedNode)> {
        let number = number?;
        let is_number = |known: &usize| *known as u64 == number;
        let at = match self.numbers.get(at).is_some_and(is_number) {
            true => at,
            false => self.numbers.iter().position(is_number)?,
        };
        Some((at, std::mem::take(self.nodes.get_mut(at)?)))
    }

    /// Returns the nodes of the path after a change, without the nodes that the caller has. `known`
    /// is the version that the caller has. If `patches` is true, a node that has a new name or new
    /// arcs, but is otherwise unchanged, is returned as a patch.
    pub(super) fn page_after_change(&self, known: Option<u64>, patches: bool) -> NodesPage<'_> {
        let version = Some(self.version);
        let before = self.before.as_ref().filter(|(before, _)| known == Some(*before));
        let Some((_, kept)) = before else { return self.page(NodesParameters::default()) };
        let mut kept = Cow::Borrowed(kept.as_slice());
        if !patches {
            for patch in &self.patches {
                if let Some(kept) = kept.to_mut().get_mut(patch.node) {
                    *kept = -1;
                }
            }
        }
        let changed = self.nodes.iter().zip(&*kept).filter(|(_, kept)| **kept < 0);
        let nodes: Vec<&RawValue> = changed.map(|(node, _)| node.text()).collect();
        let patches = Some(self.patches.as_slice()).filter(|all| patches && !all.is_empty());
        let length: usize = nodes.iter().map(|node| node.get().len()).sum();
        if length > PAGE_BYTES_MAX
            || patches.is_some_and(|patches| patches_length_min(patches) > PAGE_BYTES_MAX)
        {
            return self.page(NodesParameters::default());
        }
        NodesPage { version, line: &self.line, nodes, kept: Some(kept), patches, next: None }
    }

    /// Returns the nodes that start at index `wanted.first`, as many as fit into a reply; none if
    /// the caller already has this version.
    pub(super) fn page(&self, wanted: NodesParameters) -> NodesPage<'_> {
        let version = Some(self.version);
        if wanted.known == version {
            return NodesPage { version, ..NodesPage::default() };
        }
        let first = wanted.first.unwrap_or_default();
        let rest = self.nodes.get(first..).unwrap_or_default();
        let mut length = 0;
        let fits = |more: &usize| {
            length += more;
            length <= PAGE_BYTES_MAX
        };
        let lengths = rest.iter().map(|node| node.text().get().len());
        let count = lengths.take_while(fits).count().max(1).min(rest.len());
        let next = (count < rest.len()).then_some(first + count);
        let nodes = rest.iter().take(count).map(|node| node.text()).collect();
        NodesPage { version, line: &self.line, nodes, kept: None, patches: None, next }
    }
}

impl DescribedNode {
    fn text(&self) -> &RawValue {
        // Names, numbers and texts can always be serialized.
        let null = |_| RawValue::NULL.to_owned();
        self.text.get_or_init(|| to_raw_value(&self.details).unwrap_or_else(null))
    }
}

/// Returns the patch that changes the name and the arcs of a node from their old values in `known`
/// to their new values in `details`. `at` is the index of the node in the new plan. Returns `None`
/// if the node differs in anything else.
fn node_patch(at: usize, known: &DescribedNode, details: &NodeDetails) -> Option<NodePatch> {
    let known = &known.details;
    let NodeDetails { id, name, filter, implied, inside, arguments, form, .. } = details;
    let NodeDetails { space, copies, because, elsewhere, arcs, .. } = details;
    let is_same = (*id, *implied, *inside) == (known.id, known.implied, known.inside)
        && (filter, form, space) == (&known.filter, &known.form, &known.space)
        && (arguments, copies) == (&known.arguments, &known.copies)
        && (because, elsewhere) == (&known.because, &known.elsewhere);
    is_same.then(|| NodePatch {
        node: at,
        name: (*name != known.name).then(|| name.clone()),
        arcs: (*arcs != known.arcs).then(|| arcs.clone()),
    })
}

/// Returns a lower bound on the length of these patches when serialized into a reply, in bytes.
fn patches_length_min(patches: &[NodePatch]) -> usize {
    /// Minimum length of an arc as JSON without its classes, in bytes.
    const ARC_JSON_BYTES_MIN: usize = 40;
    let arcs = |arcs: &[NodeArc]| {
        arcs.iter().map(|arc| ARC_JSON_BYTES_MIN + arc.classes.len()).sum::<usize>()
    };
    let length = |patch: &NodePatch| {
        ARC_JSON_BYTES_MIN
            + patch.name.as_ref().map_or(0, String::len)
            + patch.arcs.as_deref().map_or(0, arcs)
    };
    patches.iter().map(length).sum()
}

/// Returns a version that no process on this machine has used yet: a combination of the process id
/// and the monotonic clock that fits into an `i64`.
fn next_version() -> u64 {
    let process = u64::from(std::process::id()) << 40;
    (process ^ sys::clock::monotonic_ns()) & (i64::MAX as u64)
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
    let why = candidate.verdict.as_ref().err().or(candidate.disadvantage.as_ref())?;
    Some(format!("{}: {why}", candidate.space))
}
