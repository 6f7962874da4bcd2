//! Observation of the first seconds of a path: counts the blocks on each arc, and moves filters if
//! a move pays.
//!
//! The planner assumes that every block takes every arc until a run has measured otherwise, so the
//! placement of a request that never ran may be far from optimal. The observation reads only
//! counters that exist anyway. Filters are not timed, because a short measurement of cold code is
//! less accurate than the machine's cost table. The period begins with the first block, which its
//! space reports ([`ControlEvent::FirstBlocks`]); nothing is measured before or after the period.
//!
//! If a thread is busy, however, its filters are timed for 25 ms, and stages (filters with
//! everything downstream of them) get threads of their own where the planner predicts a gain
//! ([`super::work_spreading`]). The next measured rate decides whether the stages keep these
//! threads.
//!
//! docs/book/decisions/0091-first-seconds.md

use super::filter_moves::{MovePolicy, MoveThreshold};
use super::observation::{CounterSnapshot, Observation};
use super::{OBSERVED_BLOCKS_MIN, ObserverMessage, PathObserver, SPACE_WAIT_MAX};
use crate::live::PathHandle;
use crate::path::RatePolicy;
use pipeline::plan::{ArcShare, Costs, Machine, MovePeriod};
use runtime::control::ControlEvent;
use std::sync::mpsc::Receiver;

/// Length of the observation period at the start of a path, in ns.
const START_OBSERVATION_NS: u64 = 2_000_000_000;
/// Rate policy during the first seconds of a path. Counters are read every 100 ms and two readings
/// must agree, so a wrong placement is corrected after a tenth of the observation period.
const START_RATE_POLICY: RatePolicy =
    RatePolicy { observation_ns: 100_000_000, agreeing_observations: 2, pause_ns: 500_000_000 };
/// Upper bound of an arc's share for the reason for a move to name the arc. The share of an arc is
/// the fraction of its filter's blocks that take the arc.
const REPORTED_ARC_SHARE_MAX: f64 = 0.9;

impl PathObserver {
    /// Waits for the first blocks, then observes the path for [`START_OBSERVATION_NS`]. While newly
    /// added threads are evaluated, observes for up to twice as long. Ends earlier if a space does
    /// not respond, or once no filter or stage may move any more. Returns false if the path has
    /// ended or the observing thread must end.
    pub(super) fn observe_first_seconds(&mut self, wakes: &Receiver<ObserverMessage>) -> bool {
        loop {
            match wakes.recv() {
                Ok(ObserverMessage::SpaceEvent(ControlEvent::FirstBlocks)) => break,
                Ok(ObserverMessage::SpaceEvent(ControlEvent::Stalled(stall))) => {
                    self.move_stalled_sink(stall)
                }
                Ok(ObserverMessage::End) | Err(_) => return false,
            }
        }
        let table = self.costs.clone();
        self.move_policy = MovePolicy::new(START_RATE_POLICY, MoveThreshold::DURING_START);
        let end = sys::clock::monotonic_ns().saturating_add(START_OBSERVATION_NS);
        let (mut begin, mut moves) = (None, self.adapt.moves == MovePeriod::Start);
        while moves || self.adapt.may_move_stages {
            let now = sys::clock::monotonic_ns();
            // The period is extended until newly added threads have been evaluated.
            let judges = self.adapt.may_move_stages && self.replica_policy.is_imminent();
            if now >= end && !(judges && now < end.saturating_add(START_OBSERVATION_NS)) {
                break;
            }
            let Some(before) =
                begin.take().or_else(|| CounterSnapshot::capture(&self.lives, SPACE_WAIT_MAX))
            else {
                return !self.lives.iter().all(PathHandle::has_ended);
            };
            let pause = if judges { 0 } else { START_RATE_POLICY.observation_ns };
            if self.sleep_or_stop(wakes, pause) {
                return false;
            }
            let looked = if moves {
                self.adapt_to_counters(&before, &table)
            } else {
                CounterCheckOutcome::Restart
            };
            let busy = judges || self.adapt.may_move_stages && self.is_saturated(&before);
            match looked {
                CounterCheckOutcome::Continue => begin = Some(before),
                CounterCheckOutcome::Restart => {}
                CounterCheckOutcome::Unreadable => moves = false,
            }
            if busy && !self.spread_work_early(wakes, &table) {
                return false;
            }
        }
        self.costs = table;
        true
    }

    /// Returns true if a thread has been saturated since the snapshot `before`; false also if the
    /// counters cannot be read or the path has changed.
    fn is_saturated(&self, before: &CounterSnapshot) -> bool {
        let after = CounterSnapshot::capture(&self.lives, SPACE_WAIT_MAX);
        let plan = self.lives.first().and_then(PathHandle::plan);
        let between = after
            .zip(plan)
            .and_then(|(after, plan)| Observation::from_snapshots(before, &after, &plan));
        between.is_some_and(|observation| observation.is_saturated())
    }

    /// Times the filters for 25 ms. Then moves stages (filters with everything downstream of them)
    /// to threads of their own, or undoes an earlier such move, if either is due. Returns false if
    /// the path ends.
    fn spread_work_early(&mut self, wakes: &Receiver<ObserverMessage>, table: &Costs) -> bool {
        let Some(observation) = self.observe_paths(wakes) else { return false };
        let plan = self.lives.first().and_then(PathHandle::plan);
        let Some((observation, plan)) = observation.zip(plan) else { return true };
        if observation.input_blocks() > 0 {
            let machine =
                Machine { costs: observation.corrected_costs(table), ..self.adapt.machine.clone() };
            self.lives.iter().for_each(PathHandle::count_observation);
            self.spread_work(&observation, &plan, &machine);
        }
        true
    }

    /// Computes the fraction of blocks that took each arc since the snapshot `before`, and moves
    /// filters if these fractions make another placement cheaper.
    fn adapt_to_counters(
        &mut self,
        before: &CounterSnapshot,
        table: &Costs,
    ) -> CounterCheckOutcome {
        let after = CounterSnapshot::capture(&self.lives, SPACE_WAIT_MAX);
        let plan = self.lives.first().and_then(PathHandle::plan);
        let Some((after, plan)) = after.zip(plan) else { return CounterCheckOutcome::Unreadable };
        let Some(observation) = Observation::from_snapshots(before, &after, &plan) else {
            return CounterCheckOutcome::Restart;
        };
        if observation.counters_unreadable || !plan.replicas.is_empty() {
            return CounterCheckOutcome::Unreadable;
        }
        if observation.input_blocks() < OBSERVED_BLOCKS_MIN {
            return CounterCheckOutcome::Continue;
        }
        let costs = observation.costs_with_arc_shares(table);
        let move_reason = format_move_reason(&costs.shares);
        let machine = Machine { costs, ..self.adapt.machine.clone() };
        let changes = self.lives.first().map(PathHandle::change_count);
        self.lives.iter().for_each(PathHandle::count_observation);
        self.move_filters(observation.at, &plan, &machine, &move_reason);
        if changes == self.lives.first().map(PathHandle::change_count) {
            CounterCheckOutcome::Continue
        } else {
            CounterCheckOutcome::Restart
        }
    }
}

/// The result of comparing a path's counters with an earlier snapshot of them.
enum CounterCheckOutcome {
    /// No filter has moved, so the next comparison uses the same snapshot.
    Continue,
    /// The path has changed, so counting restarts from a new snapshot.
    Restart,
    /// The counters cannot be read, or the path has replicas. No filter may move in either case.
    Unreadable,
}

/// Formats the arcs that few blocks took, as the reason for a move. If there are no such arcs,
/// returns a general reason.
fn format_move_reason(shares: &[ArcShare]) -> String {
    let few = shares.iter().filter(|arc| arc.share < REPORTED_ARC_SHARE_MAX);
    let arc = |ArcShare { filter, classes, share }: &ArcShare| {
        let label = if classes == "!0" { String::new() } else { format!(" |{classes}") };
        format!("{:.1} % pass `{filter}{label}`", share * 100.0)
    };
    let few: Vec<String> = few.map(arc).collect();
    match few.as_slice() {
        [] => "by the shares of its first blocks".to_owned(),
        few => format!("since {}", few.join(" and ")),
    }
}
