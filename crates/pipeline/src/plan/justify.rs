//! The reasons for a placement: why each node runs in its space, and the disadvantages of the other
//! spaces.

use super::discover::{Discovery, FIRST_THREAD, UNTRUSTED_REASON, is_file_sink};
use super::model::{Candidate, Placement, PlannedSpace, SpaceKind};
use super::select::Selection;
use crate::graph::{FilterUse, Graph, Node, NodeId, Step};
use crate::names::unique_names;

/// The reason for giving a sink that writes files its own thread.
const WRITES_FILES_REASON: &str =
    "writes files: a space of its own, so that a slow disk delays no other filter";

/// The reason for running a sink that writes files in the thread that reads a kernel ring.
const RUNS_WITH_READER_REASON: &str =
    "reads the kernel's ring, which holds the frames while a disk is slow";

/// Drops unused spaces and explains the placement of every node. A process is ordered between the
/// thread that writes its input and the thread that reads its output.
pub(super) fn explain_placements(
    discovery: Discovery,
    selection: &Selection,
    graph: &Graph,
) -> (Vec<PlannedSpace>, Vec<Placement>) {
    let Discovery { spaces, owners, verdicts, .. } = discovery;
    let Selection { input_spaces, output_spaces, .. } = selection;
    let rank = |space: usize| match owners[space] {
        Some(node)
            if input_spaces[node.0] == output_spaces[node.0]
                && graph.inputs(node).next().is_none() =>
        {
            (output_spaces[node.0], 0)
        }
        Some(node) => (input_spaces[node.0], 2),
        None => (space, 1),
    };
    let reader = |space: usize| match spaces[space].kind {
        SpaceKind::Kernel => first_thread(&spaces, spaces[space].component).unwrap_or(space),
        SpaceKind::Thread | SpaceKind::Process => space,
    };
    let readers = output_spaces.iter().map(|space| reader(*space));
    let mut order: Vec<usize> = selection
        .spaces
        .iter()
        .chain(input_spaces)
        .chain(output_spaces)
        .copied()
        .chain(readers)
        .collect();
    order.sort_unstable_by_key(|space| (rank(*space), *space));
    order.dedup();
    let number = |space: usize| order.iter().position(|used| *used == space).unwrap_or(0);
    let names = unique_names(graph);
    let placements = graph
        .nodes_with_ids()
        .map(|(id, node)| {
            let space = selection.spaces[id.0];
            let mut candidates: Vec<Candidate> = (0..spaces.len())
                .filter(|s| spaces[*s].component == spaces[space].component)
                .filter(|s| owners[*s].is_none_or(|owner| owner == id))
                .map(|s| Candidate {
                    space: spaces[s].name.clone(),
                    verdict: verdicts[id.0][s].clone(),
                    disadvantage: None,
                })
                .collect();
            for candidate in &mut candidates {
                candidate.disadvantage = rejection_reason(candidate, graph, id, &spaces, selection);
            }
            let first = spaces[space].name == FIRST_THREAD;
            let (because, by_neighbor) =
                placement_reason(graph, (id, node), first, selection, &names);
            let (input_space, output_space) =
                (number(input_spaces[id.0]), number(reader(output_spaces[id.0])));
            Placement {
                space: number(space),
                input_space,
                output_space,
                because,
                follows_neighbor: by_neighbor,
                candidates,
            }
        })
        .collect();
    (order.iter().map(|space| spaces[*space].clone()).collect(), placements)
}

/// Returns the index of the first thread of a component, or `None` if the component has no thread.
fn first_thread(spaces: &[PlannedSpace], component: usize) -> Option<usize> {
    spaces.iter().position(|space| space.component == component && space.name == FIRST_THREAD)
}

/// Returns the reason why a space that could run a node was not chosen. Returns `None` for the
/// chosen space, and for a space that cannot run the node.
fn rejection_reason(
    candidate: &Candidate,
    graph: &Graph,
    id: NodeId,
    spaces: &[PlannedSpace],
    selection: &Selection,
) -> Option<String> {
    let there = candidate.verdict.as_ref().ok()?;
    let chosen = selection.spaces[id.0];
    let here = spaces.get(chosen)?;
    if candidate.space == here.name {
        return None;
    }
    let same =
        |space: &PlannedSpace| space.component == here.component && space.name == candidate.space;
    let place = spaces.iter().position(same)?;
    let around = || {
        let is_adjacent = graph.edges.iter().filter(|edge| !edge.back);
        is_adjacent.filter_map(|edge| match (edge.from == id, edge.to == id) {
            (true, _) => Some(selection.input_spaces[edge.to.0]),
            (_, true) => Some(selection.output_spaces[edge.from.0]),
            _ => None,
        })
    };
    let rings = |place: usize| around().filter(|other| *other != place).count();
    match (rings(place), rings(chosen)) {
        (more, fewer) if more == fewer + 1 => Some("one more ring".to_owned()),
        (more, fewer) if more > fewer => Some(format!("{} more rings", more - fewer)),
        _ => Some(format!("no better, {there} ns")),
    }
}

/// Returns the reason for a node's space, and true if the space merely follows from the node
/// upstream. `first` is true if the space is the first thread.
fn placement_reason(
    graph: &Graph,
    (id, node): (NodeId, &Node),
    first: bool,
    selection: &Selection,
    names: &[String],
) -> (String, bool) {
    if node.has_own_process() {
        let why = if node.is_untrusted() { UNTRUSTED_REASON } else { "an ordinary program" };
        return (why.to_owned(), false);
    }
    if let Some(why) = node.filter().and_then(FilterUse::bound_space_reason) {
        return (why, false);
    }
    if let Some(owner) = node.inside {
        return (format!("part of `{}`", names[owner.0]), false);
    }
    if matches!(node.step, Step::Merge) {
        return ("merges sources".to_owned(), false);
    }
    let is_adjacent =
        |from: NodeId| selection.output_spaces[from.0] == selection.input_spaces[id.0];
    let before: Vec<NodeId> =
        graph.inputs(id).filter(|edge| !edge.back).map(|edge| edge.from).collect();
    match (before.first(), before.iter().find(|from| is_adjacent(**from))) {
        (None, _) => ("the source's own space".to_owned(), false),
        (_, Some(from)) if graph.node(*from).has_own_process() => {
            (format!("reads the output of `{}`", names[from.0]), false)
        }
        (_, Some(from)) => (format!("next to `{}`: a call, no ring", names[from.0]), true),
        (Some(_), None) if is_file_sink(node) => {
            (if first { RUNS_WITH_READER_REASON } else { WRITES_FILES_REASON }.to_owned(), false)
        }
        (Some(from), None) => (format!("after `{}`, which runs elsewhere", names[from.0]), true),
    }
}
