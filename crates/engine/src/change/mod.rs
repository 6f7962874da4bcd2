//! Replaces the request of a running path without losing a block. [Th §5.4]
//!
//! In: a running path ([`Live`]) and an edit of its request. Out: the ledger of the switch, or the
//! reason for which the change failed.
//!
//! 1. The edited text is checked and planned. Nodes that stay keep their spaces, so that a change
//!    moves no node unless the edit requests it; if no such plan exists, the planner may move
//!    nodes.
//! 2. New elements are built beside the running path ([`crate::build`]). A failure in this step or
//!    the next leaves the path unchanged.
//! 3. The spaces whose content differs are borrowed at block boundaries ([`switch`]): each is
//!    between two passes and has no block in flight.
//! 4. Removed nodes release the blocks that they hold and finish, and removed rings are drained,
//!    all in the old graph. Now the counters of the old graph are final, and the new graph has none
//!    yet.
//! 5. The new graph replaces the old one, and the spaces resume.
//!
//! So every block before the boundary is processed only by the old graph, and every block after it
//! only by the new graph. The reported ledger does not assume that; it is computed from the
//! counters of both graphs.

mod argument;
mod identity;
mod migration;
mod outcome;
mod repeat;
mod reshape;
mod switch;

pub use outcome::{ChangeError, SwitchReport};
pub(crate) use repeat::ChangeRepeater;
pub use reshape::{NodePlacement, reshape};
pub(crate) use reshape::{plan_placed, predicted_moves, reason_for_replicas};

use crate::build::{Prepared, SwapContext, prepare};
use crate::error::BuildError;
use crate::live::Live;
use crate::numbering::{Ids, numbered_links};
use crate::path::origins::Origins;
use crate::path::running::{PathState, RunningPart, RunningPath, RunningSpace, StarterState};
use crate::path::starter::Thread;
use crate::path::{PathOptions, Settings};
use crate::record::{self, RecordMode};
use crate::registry::MachineRegistry;
use argument::InPlaceChange;
use filter::FilterKind;
use identity::MatchedPlan;
use migration::FilterMigration;
use pipeline::edit::{Edit, EditResult};
use pipeline::plan::{KernelRefusal, Machine, Plan, PlannedSpace};
use pipeline::{Graph, Registry};
use runtime::commands::CommandError;
use runtime::space::swap::HotSwap;
use std::sync::Arc;
use std::time::Duration;
use sys::steps::{Resource, Steps};

/// Maximum number of retries of a change. A change is retried if the process that runs the kernel
/// part was restarted meanwhile.
const RETRIES_MAX: usize = 4;

/// Edits the request of a running path, and changes the path accordingly. Changes are serialized: a
/// second change waits for the first. Blocks. Retries if the process that runs the kernel part was
/// restarted during the change.
///
/// # Errors
///
/// Fails if the edit or the new request is invalid, if a space does not reach a block boundary
/// within `limit`, or if a new element cannot be built. The path then runs as before.
pub fn change(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    change_logged(live, edit, machine, limit, &Steps::default())
}

/// Changes the path like [`change`], and logs the steps to `steps`, a log that no other change may
/// use.
pub fn change_logged(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<SwitchReport, ChangeError> {
    let mut begun = 0;
    let begin = sys::clock::monotonic();
    loop {
        let changed = try_to_change(live, edit, machine, limit, steps);
        if changed.is_err() {
            steps.roll_back();
        }
        // A path that is built but does not run yet has no thread starter; wait for it.
        if let Err(ChangeError::NotTaken(CommandError::NotBegun)) = changed {
            let since = Duration::from_nanos(sys::clock::monotonic().saturating_sub(begin));
            if running_path(live)?.wait_for_starters(limit.saturating_sub(since)) {
                continue;
            }
        }
        begun += 1;
        if begun > RETRIES_MAX || !matches!(changed, Err(ChangeError::Again(_))) {
            return changed;
        }
    }
}

fn try_to_change(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<SwitchReport, ChangeError> {
    let whole = running_path(live)?;
    // A recorded path is planned for the recorded machine, so that a replay arrives at the same
    // plan.
    let machine = match &whole.extras.record_mode {
        RecordMode::Off => machine,
        RecordMode::Record(recording) => &recording.machine,
        RecordMode::Play(_) => {
            let why = "a replay of a record repeats the recorded changes only: `replay RECORD | …` \
                       runs another request over the frames";
            return Err(ChangeError::Refused(why.to_owned()));
        }
    };
    apply_edit(whole, (edit, &|_, _| Ok(())), machine, limit, steps)
}

/// Repeats a recorded change once the spaces have reached the positions at which it was made. Fails
/// if this version of the program plans the change differently.
pub(crate) fn repeat_change(live: &Live, change: &record::Change) -> Result<(), ChangeError> {
    let whole = running_path(live)?;
    let RecordMode::Play(replay) = &whole.extras.record_mode else {
        return Err(ChangeError::Refused("it is not a replay of a record".to_owned()));
    };
    let head = &replay.record().head;
    whole.state().text.get_or_insert_with(|| head.request.clone());
    let same = |text: &str, plan: &Plan| match text == change.text {
        true if record::format_layout(plan) == change.layout => Ok(()),
        _ => Err(ChangeError::Refused(format!(
            "streamline {} did it otherwise than this version does",
            head.program
        ))),
    };
    let (asked, steps) = ((&change.edit, &same as TextCheck<'_>), Steps::default());
    let made = apply_edit(whole, asked, &head.machine, Duration::MAX, &steps);
    if made.is_err() {
        steps.roll_back();
    }
    made.map(drop)
}

fn running_path(live: &Live) -> Result<&RunningPath, ChangeError> {
    let whole = live.running_path();
    whole
        .map(|whole| &**whole)
        .ok_or_else(|| ChangeError::Refused("this path was not built from a plan".to_owned()))
}

/// A function that checks the new text of the request and its plan.
type TextCheck<'c> = &'c dyn Fn(&str, &Plan) -> Result<(), ChangeError>;

fn apply_edit(
    whole: &RunningPath,
    (edit, check): (&Edit, TextCheck<'_>),
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<SwitchReport, ChangeError> {
    let mut state = whole.state();
    // If no space differs, none is queried, so no space would report the end of the path.
    if state.parts.iter().all(RunningPart::has_ended) {
        return Err(CommandError::Ended.into());
    }
    let text = state.text.clone().ok_or_else(|| {
        ChangeError::Refused("the request that this path runs is unknown".to_owned())
    })?;
    let repeated = matches!(whole.extras.record_mode, RecordMode::Play(_));
    let registry: &dyn Registry =
        if repeated { &MachineRegistry::Recorded } else { &MachineRegistry::Local };
    let edit = &edit.resolve_unset(registry);
    let edited = edit.apply(&text, registry).map_err(ChangeError::Misfit)?;
    let (graph, mistakes) = pipeline::read_request(&edited.text, registry);
    if mistakes.iter().any(|mistake| mistake.severity == pipeline::language::Severity::Error) {
        return Err(ChangeError::Mistakes { text: edited.text, mistakes });
    }
    if let Some(change) = InPlaceChange::find(&graph, registry, &state) {
        check(&edited.text, &change.plan)?;
        return change.apply(&mut state, (edit, edited.text), &whole.extras.record_mode, limit);
    }
    refuse_private_sessions(&state)?;
    let (mut graph, asked) = (graph.clone(), graph.options);
    // A change drops replicas; automatic changes add them again if they pay.
    graph.options.set("parallel", filter::Value::Text("no".to_owned()));
    graph.one_component = state.parts.len() == 1;
    // A log of its own, so that a failure undoes this change alone.
    let extras = PathOptions { steps: steps.clone(), ..whole.extras.clone() };
    let with = (whole.settings, &extras);
    let mut changed = BuiltChange::prepare_placeable((&graph, &edited), &state, machine, with)?;
    check(&edited.text, &changed.plan)?;
    let told = record::Change {
        number: state.changes,
        edit: edit.clone(),
        text: edited.text.clone(),
        layout: record::format_layout(&changed.plan),
    };
    let origins = changed.origins.clone();
    let settled = || {
        // Sinks must know a new source's name before its first block arrives.
        origins.publish();
        if let RecordMode::Record(recording) = &whole.extras.record_mode {
            recording.set_source_names(&origins.names);
            recording.write_change(&told);
        }
    };
    let replay = match &whole.extras.record_mode {
        RecordMode::Play(replay) => Some(&**replay),
        _ => None,
    };
    let mut switched = changed.switch(&state, (replay, &settled), limit)?;
    extras.steps.commit();
    changed.plan.graph.options = asked;
    switched.text = edited.text;
    let gone =
        |number: &usize| state.ids.nodes.contains(number) && !changed.ids.nodes.contains(number);
    switched.reports.retain(|report| gone(&report.planned));
    changed.commit_state(&mut state, Some(switched.text.clone()));
    Ok(switched)
}

/// Refuses a change if replicas have session state of their own, which no merge is defined for.
fn refuse_private_sessions(state: &PathState) -> Result<(), ChangeError> {
    match state.plan.replicas.iter().any(|copied| copied.sharing.is_some()) {
        false => Ok(()),
        true => Err(ChangeError::Refused(
            "it has replicas with sessions of their own; start it with `--parallel=no`".to_owned(),
        )),
    }
}

/// A change whose new elements have been built.
struct BuiltChange {
    plan: Plan,
    ids: Ids,
    origins: Origins,
    parts: Vec<Prepared>,
    /// The spaces to switch, in the order of the plan. A new space is paired with its thread.
    targets: Vec<(switch::SpaceSwitch, Option<Thread>)>,
    /// Spaces that lose all their nodes.
    leaving: Vec<switch::LeavingSpace>,
    /// Numbers of the filters that move to another process.
    crossed: Vec<usize>,
}

impl BuiltChange {
    /// Plans and builds the change. If the kernel refuses a filter, plans again with that filter in
    /// a thread.
    fn prepare_placeable(
        (graph, edited): (&Graph, &EditResult),
        state: &PathState,
        machine: &Machine,
        with: (Settings, &PathOptions),
    ) -> Result<Self, ChangeError> {
        let mut refused: Vec<KernelRefusal> = Vec::new();
        loop {
            let matched = MatchedPlan::plan(graph, edited, state, (machine, &refused));
            let matched = matched.map_err(ChangeError::Unplaceable)?;
            matched.check_possible(state)?;
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

    fn prepare(
        matched: MatchedPlan,
        state: &PathState,
        with: (Settings, &PathOptions),
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
            let mut prepared = prepare((plan, ids), number, &again, origins, with)?;
            for space in &mut prepared.spaces {
                let name = &space.running.name;
                let differs = matched.is_changed(state, number, name);
                if space.fresh.is_none() && !differs && !space.replaces_program {
                    continue;
                }
                let thread = match &space.fresh {
                    None => None,
                    Some(_) => {
                        let starter = match &part.starter {
                            StarterState::Running(starter) => starter,
                            StarterState::Pending => return Err(CommandError::NotBegun.into()),
                            StarterState::Ended => return Err(CommandError::Ended.into()),
                        };
                        let step = with.1.steps.announce(Resource::Thread, "a further space");
                        step.map_err(BuildError::Machine)?;
                        Some(starter.start_added(name.clone()).map_err(BuildError::Machine)?)
                    }
                };
                let hot_swap = std::mem::take(&mut space.hot_swap);
                let (running, fresh) = (&space.running, space.fresh.take());
                let rank = rank(&running.name);
                targets.push((switch::SpaceSwitch::new(running, fresh, hot_swap, rank), thread));
            }
            let stays = |name: &str| prepared.spaces.iter().any(|s| s.running.name == name);
            for goes in part.spaces.iter().filter(|space| !stays(&space.name)) {
                if matched.receives_nodes(state, number, &goes.name) {
                    let rank = rank(&goes.name);
                    targets.push((
                        switch::SpaceSwitch::new(goes, None, HotSwap::default(), rank),
                        None,
                    ));
                } else {
                    leaving.push(switch::LeavingSpace::new(goes));
                }
            }
            parts.push(prepared);
        }
        let MatchedPlan { plan, ids, origins, crossed, .. } = matched;
        let mut crossed: Vec<usize> = crossed.into_iter().collect();
        crossed.sort_unstable();
        Ok(Self { plan, ids, origins, parts, targets, leaving, crossed })
    }

    fn switch(
        &mut self,
        state: &PathState,
        (replay, settled): (Option<&record::Replay>, &dyn Fn()),
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
        let beside = switch::SwitchContext { leaving, kernels, crossings, number, replay, settled };
        switch::switch(targets, beside, limit)
    }

    /// Replaces the state of the path by the state after this change.
    fn commit_state(self, state: &mut PathState, text: Option<String>) {
        let Self { plan, ids, origins, parts, .. } = self;
        for (part, prepared) in state.parts.iter_mut().zip(parts) {
            part.demand.set_links(numbered_links(&plan.graph, &ids.nodes));
            let left = |old: &&RunningSpace| {
                !prepared.spaces.iter().any(|new| Arc::ptr_eq(&new.running.commands, &old.commands))
            };
            part.gone.extend(part.spaces.iter().filter(left).map(|old| Arc::clone(&old.commands)));
            part.spaces = prepared.spaces.into_iter().map(|space| space.running).collect();
            part.rings = prepared.rings;
            part.kernel_exits = prepared.kernel_exits;
            part.lenders = prepared.lenders;
            part.control.set_doorbells(part.spaces.iter().map(|space| Arc::clone(&space.bell)));
            part.publish();
        }
        state.changes += 1;
        state.spaces += plan.spaces.len();
        (state.plan, state.ids, state.origins, state.text) = (plan, ids, origins, text);
    }
}
