//! Several threads for the work of one: replicas of a chain, or stages.
//!
//! The planner proposes, by costs measured in this path, whatever leaves the least work in one
//! thread; [`super::replicas`] decides when, and by the measured rate whether it stays.
//!
//! docs/book/decisions/0022-parallel.md, docs/book/decisions/0097-stages.md

use super::observation::Observation;
use super::replicas::{ReplicaInputs, ReplicaStep};
use super::{PathObserver, SPACE_WAIT_MAX};
use crate::change::{ChangeError, NodePlacement, placed, reason_for_replicas, reshape};
use crate::live::Live;
use pipeline::explain;
use pipeline::plan::{Machine, Plan, StageDivision};

/// A proposal.
enum Spread {
    Replicas(String),
    Stages(StageDivision),
}

/// Stages that this thread made, and where their nodes were before.
#[derive(Debug)]
pub(super) struct MadeStages {
    /// Number of changes of the path when they were made; another number means another plan.
    changes: u64,
    homes: Vec<NodePlacement>,
}

impl PathObserver {
    /// Returns true if the work of the path has been given to several threads that may have to be
    /// taken back.
    pub(super) fn is_spread(&mut self, plan: &Plan) -> bool {
        let changes = self.lives.first().map(Live::changes);
        self.staged = self.staged.take().filter(|made| Some(made.changes) == changes);
        !plan.replicas.is_empty() || self.staged.is_some()
    }

    /// Adds threads for the work of the busiest one, or takes them back, if that is due. Returns
    /// true if a change was made or refused, or is imminent.
    pub(super) fn spread(
        &mut self,
        observation: &Observation,
        plan: &Plan,
        machine: &Machine,
    ) -> bool {
        let shared = self.is_spread(plan);
        let worth = if shared { None } else { self.worth(observation, plan, machine) };
        let (rate, busy, idle) = (observation.rate(), observation.busy(), observation.idle());
        let inputs = ReplicaInputs { shared, worth: worth.is_some(), rate, busy, idle };
        let Some(live) = self.lives.first().cloned() else { return false };
        let Some(step) = self.copies.next(observation.at, &inputs) else {
            return self.copies.is_imminent();
        };
        let homes = self.staged.take().map(|made| made.homes).unwrap_or_default();
        let name = |(node, _): &NodePlacement| format!("`{}`", explain::names(&plan.graph)[node.0]);
        let (what, why, places, copies) = match (step, worth) {
            (ReplicaStep::Share, Some(Spread::Stages(stages))) => {
                let all = stages.places.iter();
                let all = all.map(|place| format!("{} to {}", name(place), place.1));
                let what = all.collect::<Vec<_>>().join(", ");
                (what, stages.because, stages.places, false)
            }
            (ReplicaStep::Share, Some(Spread::Replicas(why))) => {
                ("copies".to_owned(), why, Vec::new(), true)
            }
            (ReplicaStep::Share, None) => return false,
            (ReplicaStep::Join(why), _) if homes.is_empty() => {
                ("one copy again".to_owned(), why, Vec::new(), false)
            }
            (ReplicaStep::Join(why), _) => ("one thread again".to_owned(), why, homes, false),
        };
        match reshape(&live, (&places, copies), machine, SPACE_WAIT_MAX) {
            Ok(switched) => {
                live.add_adapted(format!("{what}: {why}; {switched}"));
                let spreads = !shared && !copies;
                let home = |(node, _): &NodePlacement| (*node, plan.space_of(*node).name.clone());
                self.staged = spreads.then(|| MadeStages {
                    changes: live.changes(),
                    homes: places.iter().map(home).collect(),
                });
            }
            // The path ends, or a space was busy; a later observation tries again.
            Err(ChangeError::NotTaken(_) | ChangeError::Again(_)) => {}
            Err(refused) => {
                self.copies.refuse();
                live.add_adapted(format!("no {what}: {refused}"));
            }
        }
        true
    }

    /// Returns what the planner proposes by these costs, if anything.
    fn worth(&self, observation: &Observation, plan: &Plan, machine: &Machine) -> Option<Spread> {
        let copies = self.adapt.copies.then(|| reason_for_replicas(plan, machine)).flatten();
        // A thread that has time left holds up nobody.
        let stages = (self.adapt.stages && observation.is_saturated())
            .then(|| placed(plan, &[], machine).ok()?.stages(machine))
            .flatten();
        match (copies, stages) {
            (Some((why, gain)), Some(stages)) => {
                Some(match stages.then_ns * gain < stages.now_ns {
                    true => Spread::Stages(stages),
                    false => Spread::Replicas(why),
                })
            }
            (Some((why, _)), None) => Some(Spread::Replicas(why)),
            (None, stages) => stages.map(Spread::Stages),
        }
    }
}
