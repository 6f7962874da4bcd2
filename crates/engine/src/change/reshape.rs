//! Changes to the placement or the replicas of a running path, whose request stays the same.
//!
//! Input: the path, new spaces for some nodes, and a flag that is true if filters should have
//! replicas. Output: the ledger of the switch to the new placement, as for an edit. The text of the
//! request stays the same, because placement is not part of its meaning.

use super::built_change::{BuiltChange, SwitchHooks};
use super::matched_plan::{MatchedPlan, home_space};
use super::outcome::{ChangeError, SwitchReport};
use super::refuse_private_sessions;
use crate::error::BuildError;
use crate::live::PathHandle;
use crate::path::PathOptions;
use crate::record::RecordMode;
use filter::FilterKind;
use pipeline::graph::{Graph, NodeId, Step};
use pipeline::plan::{Machine, Plan, ReplicaChain, SpaceKind};
use std::time::Duration;
use sys::rollback::RollbackLog;

/// A node of the plan, and the name of its new space.
pub type NodePlacement = (NodeId, String);

/// Moves the nodes in `places` to the named spaces and keeps all other nodes of a running path
/// where they are. If `shared` is true, stateless filters are replicated where the machine's costs
/// predict a gain; otherwise existing replicas are removed. Blocks until the spaces have stopped,
/// for at most `limit`.
///
/// # Errors
///
/// Fails for recorded and replayed paths, for paths whose replicas have sessions, for placements
/// that no plan satisfies, if a space does not stop in time, and if `shared` is set but the costs
/// predict no gain from replicas. The path then runs as before.
pub fn reshape(
    live: &PathHandle,
    (places, shared): (&[NodePlacement], bool),
    machine: &Machine,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    let refused = |why: &str| Err(ChangeError::Refused(why.to_owned()));
    let Some(whole) = live.running_path() else {
        return refused("this path cannot be changed: its request is not known");
    };
    if !matches!(whole.extras.record_mode, RecordMode::Off) {
        return refused(
            "it is recorded, or a replay of a record: both keep the placement of the \
                        request",
        );
    }
    let mut state = whole.lock_state();
    refuse_private_sessions(&state)?;
    let plan = plan_with_placements(&state.plan, places, machine)?;
    let plan = match (shared, plan.with_replicas(machine)) {
        (false, _) => plan,
        (true, Some((shared, _))) => shared,
        (true, None) => return refused("no filter of it benefits from replicas"),
    };
    let matched = MatchedPlan::match_reshaped_plan(plan, &state);
    matched.check_change_is_possible(&state)?;
    let extras = PathOptions { steps: RollbackLog::default(), ..whole.extras.clone() };
    let mut changed = BuiltChange::prepare(matched, &state, (whole.settings, &extras))?;
    let hooks = SwitchHooks { replay: None, settled: &|| (), handover: None };
    let mut switched = changed.switch(&state, hooks, limit)?;
    extras.steps.commit();
    let text = state.text.clone();
    switched.text = text.clone().unwrap_or_default();
    switched.reports.clear();
    changed.commit_state(&mut state, text);
    Ok(switched)
}

/// Returns the reason for adding replicas and the predicted speedup. Returns `None` if the
/// machine's cost table predicts no gain from replicas.
pub(crate) fn reason_for_replicas(plan: &Plan, machine: &Machine) -> Option<(String, f64)> {
    let (shared, gain) = plan_with_placements(plan, &[], machine).ok()?.with_replicas(machine)?;
    let why = |copied: &ReplicaChain| {
        let name = |id: &NodeId| shared.graph.node(*id).name();
        let names: Vec<&str> = copied.nodes.iter().map(name).collect();
        format!("`{}`: {}", names.join(" | "), copied.because)
    };
    Some((shared.replicas.iter().map(why).collect::<Vec<_>>().join("; "), gain))
}

/// Compares the current placement of a plan with the placement that the planner would choose.
/// Returns the predicted cost of a block in ns with each of them, and the moves that lead from the
/// first to the second. Considers only moves between the kernel and threads. Returns `None` if no
/// node would move, or if planning fails.
pub(crate) fn predicted_moves(
    plan: &Plan,
    machine: &Machine,
) -> Option<(f64, f64, Vec<NodePlacement>)> {
    let mut free = plan.clone();
    for (id, node) in plan.graph.nodes_with_ids() {
        let source = node.kind() == Some(FilterKind::Source);
        if let (true, Step::Filter(used)) = (source, &mut free.graph.nodes[id.0].step) {
            used.pin = Some(home_space(plan, id).name.clone());
        }
    }
    disable_replicas(&mut free.graph);
    let free = free.replan(machine).ok()?;
    let kernel = |plan: &Plan, id: NodeId| plan.space_of(id).kind == SpaceKind::Kernel;
    let nodes = plan.graph.nodes_with_ids().filter(|(_, node)| node.filter().is_some());
    let moved = nodes.filter(|(id, _)| kernel(plan, *id) != kernel(&free, *id));
    let moved: Vec<NodePlacement> =
        moved.map(|(id, _)| (id, free.space_of(id).name.clone())).collect();
    if moved.is_empty() {
        return None;
    }
    let cost = |places: &[NodePlacement]| {
        Some(plan_with_placements(plan, places, machine).ok()?.choice.cost_ns)
    };
    Some((cost(&[])?, cost(&moved)?, moved))
}

/// Plans the graph without replicas. The nodes in `places` run in the spaces named there, and all
/// others stay in their current spaces. Fails if the kernel refuses a node that it did not refuse
/// before.
pub(crate) fn plan_with_placements(
    plan: &Plan,
    places: &[NodePlacement],
    machine: &Machine,
) -> Result<Plan, ChangeError> {
    let mut pinned = plan.clone();
    for id in (0..plan.graph.nodes.len()).map(NodeId) {
        let chosen = places.iter().find(|(node, _)| *node == id).map(|(_, space)| space.clone());
        let here = || {
            let home_space = home_space(plan, id);
            (home_space.kind != SpaceKind::Process).then(|| home_space.name.clone())
        };
        if let Step::Filter(used) = &mut pinned.graph.nodes[id.0].step {
            used.pin = chosen.or_else(here).or_else(|| used.pin.take());
        }
    }
    disable_replicas(&mut pinned.graph);
    let mut new = pinned.replan(machine).map_err(ChangeError::Unplaceable)?;
    if let Some(other) = new.refusals.iter().find(|new| !plan.refusals.contains(new)) {
        return Err(BuildError::Refused(other.clone()).into());
    }
    // Restore the pins and options of the original request.
    for (new, asked) in new.graph.nodes.iter_mut().zip(&plan.graph.nodes) {
        if let (Step::Filter(new), Step::Filter(asked)) = (&mut new.step, &asked.step) {
            new.pin.clone_from(&asked.pin);
        }
    }
    new.graph.options = plan.graph.options.clone();
    Ok(new)
}

/// Disables replicas in the graph.
fn disable_replicas(graph: &mut Graph) {
    graph.options.set("parallel", filter::Value::Text("no".to_owned()));
}
