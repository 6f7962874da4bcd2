//! Insertion of a chain's replicas into a plan.

use super::chain::{Chain, downstream_nodes};
use super::load::ReplicaGain;
use crate::format::format_short_duration;
use crate::graph::NodeId;
use crate::names::unique_names;
use crate::plan::edges::replica_ring;
use crate::plan::machine::Machine;
use crate::plan::model::{Placement, Plan, PlannedEdge, PlannedSpace, ReplicaChain, SpaceKind};

/// Adds replicas of a chain of filters to the plan. `worth` contains their number and expected
/// gain.
pub(super) fn insert_replicas(
    plan: &mut Plan,
    chain: &Chain,
    worth: ReplicaGain,
    machine: &Machine,
) {
    let (Some(first), Some(last)) = (chain.nodes.first(), chain.nodes.last()) else { return };
    let all_names = unique_names(&plan.graph);
    let thread = plan.placements[first.0].space;
    let component = plan.spaces[thread].component;
    let more = worth.replica_count - 1;
    let ring = replica_ring(&plan.graph, machine);
    let behind = downstream_nodes(&plan.graph, *last);
    let here = |id: &&NodeId| plan.placements[id.0].input_space == thread;
    let moves: Vec<NodeId> = behind.iter().filter(here).copied().collect();
    let mut next: Vec<usize> =
        plan.graph.outputs(*last).map(|edge| plan.placements[edge.to.0].input_space).collect();
    next.sort_unstable();
    next.dedup();
    let new = plan_new_threads(plan, component, more);
    let new_names: Vec<String> = new.iter().map(|space| space.name.clone()).collect();
    insert_spaces(plan, thread, new);
    let join = match next.as_slice() {
        // All successors are in a single other thread.
        [only] if moves.is_empty() => *only + if *only > thread { more } else { 0 },
        _ => thread + more,
    };
    for (edge, planned) in plan.graph.edges.iter().zip(&mut plan.edges) {
        let joins = edge.from == *last && plan.placements[edge.to.0].input_space == join;
        if joins && matches!(planned, PlannedEdge::Ring(_)) {
            *planned = PlannedEdge::Call;
        }
    }
    let to = new_names.last().cloned().unwrap_or_default();
    for id in moves {
        let old = plan.spaces[thread].name.clone();
        let placement = &mut plan.placements[id.0];
        placement
            .space_indices_mut()
            .into_iter()
            .filter(|space| **space == thread)
            .for_each(|it| *it = join);
        for candidate in placement.candidates.iter_mut().filter(|known| known.space == old) {
            candidate.space.clone_from(&to);
        }
        if placement.follows_neighbor {
            placement.because = format!("after the replicas of `{}`", all_names[last.0]);
        }
    }
    plan.placements[last.0].output_space = join;
    let share = if chain.sharing.is_some() { "by session" } else { "by load" };
    let ReplicaGain { replica_count, bound, single, chain_cost: own } = worth;
    let because = format!(
        "{replica_count} replicas, {share}: a block takes {} in one, and {} with all of them at \
         best; {} in one thread",
        format_short_duration(own),
        format_short_duration(bound),
        format_short_duration(single),
    );
    for id in &chain.nodes {
        plan.placements[id.0].because = format!("{replica_count} replicas, {share}");
    }
    let spaces = (0..replica_count).map(|copy| thread + copy).collect();
    let (nodes, sharing) = (chain.nodes.clone(), chain.sharing);
    plan.replicas.push(ReplicaChain { nodes, spaces, join, shard_key: sharing, ring, because });
}

/// Inserts spaces after the space with index `at`. Adjusts the indices of later spaces throughout
/// the plan.
fn insert_spaces(plan: &mut Plan, at: usize, new: Vec<PlannedSpace>) {
    let more = new.len();
    plan.spaces.splice(at + 1..at + 1, new);
    let placed = plan.placements.iter_mut().flat_map(Placement::space_indices_mut);
    let replicas =
        plan.replicas.iter_mut().flat_map(|it| it.spaces.iter_mut().chain([&mut it.join]));
    placed.chain(replicas).filter(|space| **space > at).for_each(|space| *space += more);
}

/// Returns `more` new threads for a component, with names that are not in use.
fn plan_new_threads(plan: &Plan, component: usize, more: usize) -> Vec<PlannedSpace> {
    let taken = |name: &str| plan.spaces.iter().any(|s| s.component == component && s.name == name);
    (0..)
        .map(|number: usize| format!("thread{number}"))
        .filter(|name| !taken(name))
        .take(more)
        .map(|name| PlannedSpace { name, kind: SpaceKind::Thread, component })
        .collect()
}
