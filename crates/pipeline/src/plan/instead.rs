//! Computes the cost of the best plan with a node in another space: the reason, in figures, why a
//! space lost.
//!
//! In: what was discovered and selected; out: for every node and every other space that could run
//! it, how much more the whole plan costs then. [SL §7.1]

use super::discover::Discovered;
use super::select::{Selected, least};
use super::{Machine, Placed, PlannedSpace, Policy};
use crate::explain::number;
use crate::graph::{Graph, NodeId};

/// The most nodes for which everything is asked again.
const NODES_MAX: usize = 48;

/// For every node and space, in words, how much worse the best plan with the node there is; none
/// where nothing is to be said.
pub(super) fn instead(
    graph: &Graph,
    discovered: &Discovered,
    selected: &Selected,
    machine: &Machine,
) -> Vec<Vec<Option<String>>> {
    let none = || vec![None; discovered.spaces.len()];
    if !machine.kernel.is_open() || graph.nodes.len() > NODES_MAX {
        return graph.ids().map(|_| none()).collect();
    }
    let mut forced = discovered.verdicts.clone();
    graph
        .ids()
        .map(|(id, _)| {
            let mut told = none();
            for (space, verdict) in discovered.verdicts[id.0].iter().enumerate() {
                if space == selected.spaces[id.0] {
                    continue;
                }
                let Ok(ns) = verdict else { continue };
                only(&mut forced[id.0], space);
                let there = Discovered { verdicts: forced.clone(), ..discovered.clone() };
                let best = least(graph, &there, machine);
                forced[id.0].clone_from(&discovered.verdicts[id.0]);
                let more = best.map(|best| best - selected.choice.cost_ns);
                told[space] = Some(words(*ns, more, selected.choice.policy));
            }
            told
        })
        .collect()
}

/// Leaves a node one space.
fn only(verdicts: &mut [Result<f64, String>], space: usize) {
    for (_, verdict) in verdicts.iter_mut().enumerate().filter(|(at, _)| *at != space) {
        *verdict = Err(String::new());
    }
}

fn words(ns: f64, more: Option<f64>, policy: Policy) -> String {
    let told = match more {
        None => "the path would have to turn back".to_owned(),
        Some(more) if more >= 0.05 => format!("{} more in all", number(more)),
        // As deep as possible may cost more than need be.
        Some(more) if more <= -0.05 => format!("{} less in all, not as deep", number(-more)),
        Some(_) if policy == Policy::Deepest => "as dear, not as deep".to_owned(),
        Some(_) => "as dear".to_owned(),
    };
    format!("{} ns, {told}", number(ns))
}

/// Puts the words where a candidate says why it lost.
pub(super) fn tell(
    placed: &mut [Placed],
    told: &[Vec<Option<String>>],
    spaces: &[PlannedSpace],
    parts: &[usize],
) {
    for (id, placed) in placed.iter_mut().enumerate() {
        for candidate in placed.candidates.iter_mut().filter(|known| known.lost.is_some()) {
            let same =
                |space: &PlannedSpace| space.part == parts[id] && space.name == candidate.space;
            let place = spaces.iter().position(same);
            if let Some(words) = place.and_then(|place| told[NodeId(id).0][place].clone()) {
                candidate.lost = Some(words);
            }
        }
    }
}
