//! The request that a path has, run in another way: filters in other spaces, copies that come or
//! go.
//!
//! In: a path that runs, where its nodes are to be, and whether filters are to share their work.
//! Out: what the ledger says of the switch, as for an edit. The text stays what it was: nobody
//! asked for anything else, and where something runs is not part of what it means.

use super::identity::{Matched, home};
use super::switched::{Switched, Unchanged};
use super::{Changed, own_sessions};
use crate::error::BuildError;
use crate::live::Live;
use crate::path::Extras;
use crate::record::Tape;
use filter::Kind;
use pipeline::graph::{Graph, NodeId, Step};
use pipeline::plan::{Copied, Machine, Plan, SpaceKind};
use std::time::Duration;
use sys::steps::Steps;

/// A node of the plan, and the name of the space in which it is to be.
pub type Place = (NodeId, String);

/// Gives a running path another shape: these nodes go where it is said, all others stay, and what
/// keeps nothing is `shared` out among copies, as many as pay by what the machine says of costs.
/// With nothing said and nothing shared, copies that there are go.
pub fn reshape(
    live: &Live,
    (places, shared): (&[Place], bool),
    machine: &Machine,
    limit: Duration,
) -> Result<Switched, Unchanged> {
    let refused = |why: &str| Err(Unchanged::Refused(why.to_owned()));
    let Some(whole) = live.whole() else {
        return refused("this path was not built from a plan");
    };
    if !matches!(whole.extras.tape, Tape::Off) {
        return refused("it is recorded, or comes from a record: both run where the line says");
    }
    let mut state = whole.state();
    own_sessions(&state)?;
    let plan = placed(&state.plan, places, machine)?;
    let plan = match (shared, plan.shared_out(machine)) {
        (false, _) => plan,
        (true, Some(shared)) => shared,
        (true, None) => return refused("nothing of it is worth a copy"),
    };
    let matched = Matched::reshaped(plan, &state);
    matched.may_be(&state)?;
    let extras = Extras { steps: Steps::default(), ..whole.extras.clone() };
    let mut changed = Changed::prepare(matched, &state, (whole.settings, &extras))?;
    let mut switched = changed.switch(&state, (None, &|| ()), limit)?;
    extras.steps.commit();
    let text = state.text.clone();
    switched.text = text.clone().unwrap_or_default();
    switched.reports.clear();
    changed.keep(&mut state, text);
    Ok(switched)
}

/// Returns the reason for replicas, if the machine's cost table predicts that they pay.
pub(crate) fn worth_copies(plan: &Plan, machine: &Machine) -> Option<String> {
    let shared = placed(plan, &[], machine).ok()?.shared_out(machine)?;
    let why = |copied: &Copied| {
        let name = |id: &NodeId| shared.graph.node(*id).name();
        let names: Vec<&str> = copied.nodes.iter().map(name).collect();
        format!("`{}`: {}", names.join(" | "), copied.because)
    };
    Some(shared.copied.iter().map(why).collect::<Vec<_>>().join("; "))
}

/// Returns the predicted cost of a block in ns as placed now and with these nodes moved between the
/// kernel and threads to where the planner would put them if nothing were pinned. None if there is
/// nothing to move.
pub(crate) fn worth_moves(plan: &Plan, machine: &Machine) -> Option<(f64, f64, Vec<Place>)> {
    let mut free = plan.clone();
    for (id, node) in plan.graph.ids() {
        let source = node.kind() == Some(Kind::Source);
        if let (true, Step::Filter(used)) = (source, &mut free.graph.nodes[id.0].step) {
            used.pin = Some(home(plan, id).name.clone());
        }
    }
    alone(&mut free.graph);
    let free = free.once_more(machine).ok()?;
    let kernel = |plan: &Plan, id: NodeId| plan.space_of(id).kind == SpaceKind::Kernel;
    let nodes = plan.graph.ids().filter(|(_, node)| node.filter().is_some());
    let moved = nodes.filter(|(id, _)| kernel(plan, *id) != kernel(&free, *id));
    let moved: Vec<Place> = moved.map(|(id, _)| (id, free.space_of(id).name.clone())).collect();
    if moved.is_empty() {
        return None;
    }
    let cost = |places: &[Place]| Some(placed(plan, places, machine).ok()?.choice.cost_ns);
    Some((cost(&[])?, cost(&moved)?, moved))
}

/// Plans the graph with these nodes elsewhere, and without replicas.
pub(crate) fn placed(plan: &Plan, places: &[Place], machine: &Machine) -> Result<Plan, Unchanged> {
    let mut pinned = plan.clone();
    for id in (0..plan.graph.nodes.len()).map(NodeId) {
        let said = places.iter().find(|(node, _)| *node == id).map(|(_, space)| space.clone());
        let here = || {
            let home = home(plan, id);
            (home.kind != SpaceKind::Process).then(|| home.name.clone())
        };
        if let Step::Filter(used) = &mut pinned.graph.nodes[id.0].step {
            used.pin = said.or_else(here).or_else(|| used.pin.take());
        }
    }
    alone(&mut pinned.graph);
    let mut new = pinned.once_more(machine).map_err(Unchanged::Unplaceable)?;
    if let Some(other) = new.refused.iter().find(|new| !plan.refused.contains(new)) {
        return Err(BuildError::Refused(other.clone()).into());
    }
    // What was asked for is what the request says.
    for (new, asked) in new.graph.nodes.iter_mut().zip(&plan.graph.nodes) {
        if let (Step::Filter(new), Step::Filter(asked)) = (&mut new.step, &asked.step) {
            new.pin.clone_from(&asked.pin);
        }
    }
    new.graph.options = plan.graph.options.clone();
    Ok(new)
}

/// Removes the request for replicas.
fn alone(graph: &mut Graph) {
    graph.options.set("parallel", filter::Value::Text("no".to_owned()));
}
