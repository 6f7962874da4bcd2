//! Distribution of one thread's work over several threads, by replicas of a chain or by stages. A
//! *stage* is a filter with everything downstream of it, moved to a thread of its own.
//!
//! The planner proposes the change with the lowest cost of a block, based on costs measured in this
//! path. [`super::replicas`] decides when to make the change, and keeps or undoes it according to
//! the measured rate.
//!
//! docs/book/decisions/0022-parallel.md, docs/book/decisions/0097-stages.md

use super::observation::Observation;
use super::replicas::{ReplicaInputs, ReplicaStep};
use super::{PathObserver, SPACE_WAIT_MAX};
use crate::change::{
    ChangeError, NodePlacement, plan_with_placements, reason_for_replicas, reshape,
};
use crate::live::PathHandle;
use pipeline::explain;
use pipeline::plan::{Machine, Plan, StageDivision};

/// A proposal of the planner to distribute the work of a busy thread: by replicas, or by stages in
/// threads of their own.
enum SpreadProposal {
    Replicas(String),
    Stages(StageDivision),
}

/// Stages that were moved to threads of their own, and the spaces in which the nodes of these
/// stages ran before.
#[derive(Debug)]
pub(super) struct StagesInThreads {
    /// Number of changes that had been made to the path when the stages were moved. If the path has
    /// changed since then, the stages no longer match its plan.
    changes: u64,
    homes: Vec<NodePlacement>,
}

impl PathObserver {
    /// Returns true if the work of the path is distributed over several threads by replicas or
    /// stages.
    pub(super) fn has_distributed_work(&mut self, plan: &Plan) -> bool {
        let changes = self.lives.first().map(PathHandle::change_count);
        self.made_stages = self.made_stages.take().filter(|made| Some(made.changes) == changes);
        !plan.replicas.is_empty() || self.made_stages.is_some()
    }

    /// Distributes the work of the busiest thread over more threads, or undoes an earlier
    /// distribution, if either is due. Returns true if a change was made, was refused, or will be
    /// made if the next observations agree with this one.
    pub(super) fn spread_work(
        &mut self,
        observation: &Observation,
        plan: &Plan,
        machine: &Machine,
    ) -> bool {
        let has_replicas = self.has_distributed_work(plan);
        let proposal =
            if has_replicas { None } else { self.propose_spread(observation, plan, machine) };
        let (rate, busy, idle) =
            (observation.blocks_per_second(), observation.busy_ratio(), observation.idle_ratio());
        let inputs = ReplicaInputs {
            has_replicas,
            gain_predicted: proposal.is_some(),
            rate,
            busy_ratio: busy,
            idle_ratio: idle,
        };
        let Some(live) = self.lives.first().cloned() else { return false };
        let Some(step) = self.replica_policy.decide(observation.at, &inputs) else {
            return self.replica_policy.is_imminent();
        };
        let homes = self.made_stages.take().map(|made| made.homes).unwrap_or_default();
        let name =
            |(node, _): &NodePlacement| format!("`{}`", explain::unique_names(&plan.graph)[node.0]);
        let (what, why, places, copies) = match (step, proposal) {
            (ReplicaStep::Add, Some(SpreadProposal::Stages(stages))) => {
                let all = stages.moves.iter();
                let all = all.map(|place| format!("{} to {}", name(place), place.1));
                let what = all.collect::<Vec<_>>().join(", ");
                (what, stages.because, stages.moves, false)
            }
            (ReplicaStep::Add, Some(SpreadProposal::Replicas(why))) => {
                ("replicas".to_owned(), why, Vec::new(), true)
            }
            (ReplicaStep::Add, None) => return false,
            (ReplicaStep::Remove(why), _) if homes.is_empty() => {
                ("one replica again".to_owned(), why, Vec::new(), false)
            }
            (ReplicaStep::Remove(why), _) => ("one thread again".to_owned(), why, homes, false),
        };
        match reshape(&live, (&places, copies), machine, SPACE_WAIT_MAX) {
            Ok(switched) => {
                live.add_adaptation(format!("{what}: {why}; {switched}"));
                let spreads = !has_replicas && !copies;
                let home = |(node, _): &NodePlacement| (*node, plan.space_of(*node).name.clone());
                self.made_stages = spreads.then(|| StagesInThreads {
                    changes: live.change_count(),
                    homes: places.iter().map(home).collect(),
                });
            }
            // Either the path is ending or a space was busy. A later observation tries again.
            Err(ChangeError::SpaceUnavailable(_) | ChangeError::KernelHostRestarted(_)) => {}
            Err(refused) => {
                self.replica_policy.record_refusal();
                live.add_adaptation(format!("no {what}: {refused}"));
            }
        }
        true
    }

    /// Returns the planner's proposal to distribute work, based on the observed costs, if it has
    /// one.
    fn propose_spread(
        &self,
        observation: &Observation,
        plan: &Plan,
        machine: &Machine,
    ) -> Option<SpreadProposal> {
        let copies = self.adapt.may_replicate.then(|| reason_for_replicas(plan, machine)).flatten();
        // A thread with spare capacity does not slow down the others.
        let stages = (self.adapt.may_move_stages && observation.is_saturated())
            .then(|| plan_with_placements(plan, &[], machine).ok()?.divide_into_stages(machine))
            .flatten();
        match (copies, stages) {
            (Some((why, gain)), Some(stages)) => {
                Some(match stages.after_ns * gain < stages.before_ns {
                    true => SpreadProposal::Stages(stages),
                    false => SpreadProposal::Replicas(why),
                })
            }
            (Some((why, _)), None) => Some(SpreadProposal::Replicas(why)),
            (None, stages) => stages.map(SpreadProposal::Stages),
        }
    }
}
