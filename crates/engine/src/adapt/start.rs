//! The first seconds of a path: shares of arcs are counted, and filters move where that pays.
//!
//! The planner assumes that every block takes every arc until a run has told otherwise, so the
//! placement of a line that never ran may be wrong by any factor. Nothing is measured here but
//! counters that exist anyway: filters are not timed, since what a short measurement of cold code
//! says is worse than the machine's table of costs. The period begins with the first block, which
//! its space reports ([`ControlEvent::Came`]); until then, and afterwards, nothing is done.
//!
//! docs/book/decisions/0091-first-seconds.md

use super::moves::{MoveDemand, MovePolicy};
use super::observation::{CounterSnapshot, Observation};
use super::{BLOCKS_MIN, PathObserver, SPACE_WAIT_MAX, Wake};
use crate::live::Live;
use crate::path::RatePolicy;
use pipeline::plan::{ArcShare, Costs, Machine};
use runtime::control::ControlEvent;
use std::sync::mpsc::Receiver;

/// Length of the period, in ns.
const PERIOD_NS: u64 = 2_000_000_000;
/// Interval between two looks at the counters: two of them must agree, so a wrong placement ends
/// after a tenth of the period.
const RATE_POLICY: RatePolicy =
    RatePolicy { observation_ns: 100_000_000, looks: 2, pause_ns: 500_000_000 };
/// Largest share that a report names as the reason of a move.
const SELECTIVE_MAX: f64 = 0.9;

impl PathObserver {
    /// Waits for the first blocks, then observes them for [`PERIOD_NS`]. Returns false if the path
    /// ends.
    pub(super) fn first_seconds(&mut self, wakes: &Receiver<Wake>) -> bool {
        loop {
            match wakes.recv() {
                Ok(Wake::Space(ControlEvent::Came)) => break,
                Ok(Wake::Space(ControlEvent::Stalled(stall))) => self.relieve(stall),
                Ok(Wake::End) | Err(_) => return false,
            }
        }
        let table = self.known.clone();
        self.moves = MovePolicy::new(RATE_POLICY, MoveDemand::START);
        let end = sys::clock::monotonic().saturating_add(PERIOD_NS);
        let mut begin = None;
        loop {
            let now = sys::clock::monotonic();
            if now >= end {
                break;
            }
            let Some(before) =
                begin.take().or_else(|| CounterSnapshot::take(&self.lives, SPACE_WAIT_MAX))
            else {
                return !self.lives.iter().all(Live::is_ended);
            };
            if self.sleep_or_stop(wakes, RATE_POLICY.observation_ns.min(end - now)) {
                return false;
            }
            match self.look(&before, &table) {
                Look::Again => begin = Some(before),
                Look::Anew => {}
                Look::Blind => return true,
            }
        }
        self.known = table;
        true
    }

    /// Compares the counters with those at the begin, and moves filters if that is due.
    fn look(&mut self, before: &CounterSnapshot, table: &Costs) -> Look {
        let after = CounterSnapshot::take(&self.lives, SPACE_WAIT_MAX);
        let plan = self.lives.first().and_then(Live::plan);
        let Some((after, plan)) = after.zip(plan) else { return Look::Blind };
        let Some(observation) = Observation::between(before, &after, &plan) else {
            return Look::Anew;
        };
        if observation.blind || !plan.replicas.is_empty() {
            return Look::Blind;
        }
        if observation.came() < BLOCKS_MIN {
            return Look::Again;
        }
        let costs = observation.shares(table);
        let reason = reason(&costs.shares);
        let machine = Machine { costs, ..self.adapt.machine.clone() };
        let changes = self.lives.first().map(Live::changes);
        self.lives.iter().for_each(Live::count_observation);
        self.move_filters(observation.at, &plan, &machine, &reason);
        if changes == self.lives.first().map(Live::changes) { Look::Again } else { Look::Anew }
    }
}

/// The result of a look at the counters.
enum Look {
    /// Blocks are counted on from the same begin.
    Again,
    /// The path has changed: its counters begin anew.
    Anew,
    /// Counters cannot be read, or the path may not move.
    Blind,
}

/// Formats the arcs that few blocks took, as the reason of a move.
fn reason(shares: &[ArcShare]) -> String {
    let few = shares.iter().filter(|arc| arc.share < SELECTIVE_MAX);
    let arc = |ArcShare { filter, classes, share }: &ArcShare| {
        let label = if classes == "!0" { String::new() } else { format!(" |{classes}") };
        format!("{:.1} % pass `{filter}{label}`", share * 100.0)
    };
    let few: Vec<String> = few.map(arc).collect();
    match few.as_slice() {
        [] => "by the shares at its start".to_owned(),
        few => format!("since {}", few.join(" and ")),
    }
}
