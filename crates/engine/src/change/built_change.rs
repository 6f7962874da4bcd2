//! A change whose new nodes, rings and programs exist beside the running path, and the switch to
//! them.

use super::handover::Handover;
use super::matched_plan::MatchedPlan;
use super::migration::FilterMigration;
use super::outcome::{ChangeError, SwitchReport};
use super::switch;
use crate::build::{PreparedComponent, SwapContext, prepare_component};
use crate::error::BuildError;
use crate::numbering::{PlanNumbers, edges_by_node_number};
use crate::path::origins::PathOrigins;
use crate::path::running_path::{PathState, RunningSpace, StarterState};
use crate::path::starter::SpaceThread;
use crate::path::{PathOptions, RunSettings};
use crate::record::{self, RecordMode};
use filter::FilterKind;
use pipeline::Graph;
use pipeline::edit::EditResult;
use pipeline::plan::{KernelRefusal, Machine, Plan, PlannedSpace};
use runtime::commands::CommandError;
use runtime::space::swap::HotSwap;
use std::sync::Arc;
use std::time::Duration;
use sys::rollback::StepResource;

/// The context of a switch to a new graph. It consists of the replay, if the switch repeats a
/// recorded change, and of callbacks that run while the spaces are paused.
pub(super) struct SwitchHooks<'h, 'a> {
    pub(super) replay: Option<&'h record::Replay>,
    /// Called when the old graph has processed its last block. From then on, the switch cannot fail
    /// any more.
    pub(super) settled: &'h dyn Fn(),
    pub(super) handover: Option<Handover<'a>>,
}

/// A change whose new nodes, rings and programs have been built.
pub(super) struct BuiltChange {
    pub(super) plan: Plan,
    pub(super) ids: PlanNumbers,
    pub(super) origins: PathOrigins,
    pub(super) parts: Vec<PreparedComponent>,
    /// The spaces that the switch gives new content, in the order of the plan. A new space is
    /// paired with its thread.
    targets: Vec<(switch::SpaceSwitch, Option<SpaceThread>)>,
    /// Spaces that have no nodes in the new graph. Each drains its rings and then ends.
    leaving: Vec<switch::EmptiedSpace>,
    /// Numbers of the filters that move to another process with their state.
    crossed: Vec<usize>,
}

impl BuiltChange {
    /// Plans and builds the change. If the kernel refuses a filter, plans again with that filter in
    /// a thread. Fails on a recorded path if state would cross between processes.
    pub(super) fn prepare_with_fallback(
        (graph, edited): (&Graph, &EditResult),
        state: &PathState,
        machine: &Machine,
        with: (RunSettings, &PathOptions),
    ) -> Result<Self, ChangeError> {
        let mut refused: Vec<KernelRefusal> = Vec::new();
        loop {
            let how = (with.1.registry(), machine, &refused[..]);
            let matched = MatchedPlan::plan_and_match(graph, edited, state, how);
            let matched = matched.map_err(ChangeError::Unplaceable)?;
            matched.check_change_is_possible(state)?;
            if !matched.crossed.is_empty() && !matches!(with.1.record_mode, RecordMode::Off) {
                let why =
                    "its state is in another process, and a record does not contain that state";
                return Err(ChangeError::Refused(why.to_owned()));
            }
            match Self::prepare(matched, state, with) {
                Err(ChangeError::Build(BuildError::Refused(why)))
                    if graph.node(why.node).kind() != Some(FilterKind::Source)
                        && !refused.iter().any(|known| known.node == why.node) =>
                {
                    with.1.steps.roll_back();
                    refused.push(why);
                }
                done => return done,
            }
        }
    }

    pub(super) fn prepare(
        matched: MatchedPlan,
        state: &PathState,
        with: (RunSettings, &PathOptions),
    ) -> Result<Self, ChangeError> {
        let MatchedPlan {
            plan, ids, kept, renewed, origins, exit_edges, replaced_programs, ..
        } = &matched;
        let (mut parts, mut targets, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (number, part) in state.parts.iter().enumerate() {
            let spaces = &state.plan.spaces;
            let is =
                |space: &PlannedSpace, name: &str| space.component == number && space.name == name;
            let rank =
                |name: &str| spaces.iter().position(|space| is(space, name)).unwrap_or(usize::MAX);
            let again = SwapContext {
                part,
                kept,
                renewed,
                exit_edges,
                replaces_program: replaced_programs.contains(&number),
                spaces: state.spaces,
            };
            let mut prepared = prepare_component((plan, ids), number, &again, origins, with)?;
            for space in &mut prepared.spaces {
                let name = &space.running.name;
                let differs = matched.is_space_changed(state, number, name);
                if space.fresh.is_none() && !differs && !space.replaces_program {
                    continue;
                }
                let thread = match &space.fresh {
                    None => None,
                    Some(_) => {
                        let starter = match &part.starter {
                            StarterState::Running(starter) => starter,
                            StarterState::Pending => return Err(CommandError::NotStarted.into()),
                            StarterState::Ended => return Err(CommandError::Ended.into()),
                        };
                        let step =
                            with.1.steps.announce_creation(StepResource::Thread, "a further space");
                        step.map_err(BuildError::Machine)?;
                        let started = starter.start_added_thread(name.clone());
                        Some(started.map_err(BuildError::Machine)?)
                    }
                };
                let hot_swap = std::mem::take(&mut space.hot_swap);
                let (running, fresh) = (&space.running, space.fresh.take());
                let rank = rank(&running.name);
                targets.push((switch::SpaceSwitch::new(running, fresh, hot_swap, rank), thread));
            }
            let stays = |name: &str| prepared.spaces.iter().any(|s| s.running.name == name);
            for goes in part.spaces.iter().filter(|space| !stays(&space.name)) {
                if matched.must_stop_for_switch(state, number, &goes.name) {
                    let rank = rank(&goes.name);
                    targets.push((
                        switch::SpaceSwitch::new(goes, None, HotSwap::default(), rank),
                        None,
                    ));
                } else {
                    leaving.push(switch::EmptiedSpace::new(goes));
                }
            }
            parts.push(prepared);
        }
        let MatchedPlan { plan, ids, origins, crossed, .. } = matched;
        let mut crossed: Vec<usize> = crossed.into_iter().collect();
        crossed.sort_unstable();
        Ok(Self { plan, ids, origins, parts, targets, leaving, crossed })
    }

    pub(super) fn switch(
        &mut self,
        state: &PathState,
        SwitchHooks { replay, settled, handover }: SwitchHooks<'_, '_>,
        limit: Duration,
    ) -> Result<SwitchReport, ChangeError> {
        let targets = std::mem::take(&mut self.targets);
        let parts = self.parts.iter_mut().zip(&state.parts);
        let kernels = parts.flat_map(|(prepared, part)| {
            let kernels = part.kernels.upgrade();
            let all = std::mem::take(&mut prepared.successions).into_iter();
            all.filter_map(move |succession| Some((kernels.clone()?, succession)))
        });
        let crossings = self.crossed.iter().copied().map(FilterMigration::new).collect();
        let (leaving, kernels) = (&self.leaving[..], kernels.collect());
        let number = state.changes;
        let beside = switch::SwitchContext {
            leaving,
            kernels,
            crossings,
            number,
            replay,
            handover,
            settled,
        };
        switch::switch_spaces(targets, beside, limit)
    }

    /// Stores the state that the path has after this change. `text` is the new text of the request,
    /// if it has changed.
    pub(super) fn commit_state(self, state: &mut PathState, text: Option<String>) {
        let Self { plan, ids, origins, parts, .. } = self;
        for (part, prepared) in state.parts.iter_mut().zip(parts) {
            part.demand.set_path_edges(edges_by_node_number(&plan.graph, &ids.nodes));
            let left = |old: &&RunningSpace| {
                !prepared.spaces.iter().any(|new| Arc::ptr_eq(&new.running.commands, &old.commands))
            };
            part.removed_queues
                .extend(part.spaces.iter().filter(left).map(|old| Arc::clone(&old.commands)));
            part.spaces = prepared.spaces.into_iter().map(|space| space.running).collect();
            part.rings = prepared.rings;
            part.kernel_exits = prepared.kernel_exits;
            part.lenders = prepared.lenders;
            part.control.set_doorbells(part.spaces.iter().map(|space| Arc::clone(&space.doorbell)));
            part.publish();
        }
        state.changes += 1;
        state.spaces += plan.spaces.len();
        (state.plan, state.ids, state.origins, state.text) = (plan, ids, origins, text);
    }
}
