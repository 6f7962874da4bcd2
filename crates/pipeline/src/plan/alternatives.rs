//! The alternatives of a plan: for each node, the cost of the best plan that runs the node in
//! another space. The cost difference explains why that space was not chosen. [SL §7.1]

use super::discover::Discovery;
use super::machine::Machine;
use super::model::{Placement, PlannedSpace, Policy};
use super::select::{Selection, minimal_cost};
use crate::format::format_one_decimal;
use crate::graph::{Graph, NodeId};

/// The maximum number of nodes in a plan for which other spaces are compared with the chosen ones.
const ALTERNATIVE_NODES_MAX: usize = 48;

/// Describes the extra cost of running a node in a space other than the chosen one. The result is
/// indexed by node and space. Each text compares the chosen plan with the best plan that runs this
/// node in this space. The entry is `None` for the chosen space and for spaces that cannot run the
/// node. All entries are `None` if the kernel cannot load programs, or if there are more than
/// [`ALTERNATIVE_NODES_MAX`] nodes.
pub(super) fn describe_alternatives(
    graph: &Graph,
    discovery: &Discovery,
    selection: &Selection,
    machine: &Machine,
) -> Vec<Vec<Option<String>>> {
    let none = || vec![None; discovery.spaces.len()];
    if !machine.kernel.can_load_programs() || graph.nodes.len() > ALTERNATIVE_NODES_MAX {
        return graph.nodes_with_ids().map(|_| none()).collect();
    }
    let mut forced = discovery.verdicts.clone();
    graph
        .nodes_with_ids()
        .map(|(id, _)| {
            let mut texts = none();
            for (space, verdict) in discovery.verdicts[id.0].iter().enumerate() {
                if space == selection.spaces[id.0] {
                    continue;
                }
                let Ok(ns) = verdict else { continue };
                allow_only_space(&mut forced[id.0], space);
                let there = Discovery { verdicts: forced.clone(), ..discovery.clone() };
                let best = minimal_cost(graph, &there, machine);
                forced[id.0].clone_from(&discovery.verdicts[id.0]);
                let more = best.map(|best| best - selection.choice.cost_ns);
                texts[space] = Some(describe_cost_difference(*ns, more, selection.choice.policy));
            }
            texts
        })
        .collect()
}

/// Excludes all spaces except `space` for a node.
fn allow_only_space(verdicts: &mut [Result<f64, String>], space: usize) {
    for (_, verdict) in verdicts.iter_mut().enumerate().filter(|(at, _)| *at != space) {
        *verdict = Err(String::new());
    }
}

fn describe_cost_difference(ns: f64, more: Option<f64>, policy: Policy) -> String {
    let texts = match more {
        None => "the path would have to return to a space".to_owned(),
        Some(more) if more >= 0.05 => format!("{} more in all", format_one_decimal(more)),
        // The deepest placement may cost more than necessary.
        Some(more) if more <= -0.05 => {
            format!("{} less in all, not as deep", format_one_decimal(-more))
        }
        Some(_) if policy == Policy::Deepest => "same cost, not as deep".to_owned(),
        Some(_) => "same cost".to_owned(),
    };
    format!("{} ns, {texts}", format_one_decimal(ns))
}

/// Stores the texts of [`describe_alternatives`] in the candidate spaces of each node. Only
/// candidates that could run the node, but were not chosen, get a text.
pub(super) fn store_candidate_texts(
    placements: &mut [Placement],
    texts: &[Vec<Option<String>>],
    spaces: &[PlannedSpace],
    components: &[usize],
) {
    for (id, placements) in placements.iter_mut().enumerate() {
        for candidate in
            placements.candidates.iter_mut().filter(|known| known.disadvantage.is_some())
        {
            let same = |space: &PlannedSpace| {
                space.component == components[id] && space.name == candidate.space
            };
            let place = spaces.iter().position(same);
            if let Some(words) = place.and_then(|place| texts[NodeId(id).0][place].clone()) {
                candidate.disadvantage = Some(words);
            }
        }
    }
}
