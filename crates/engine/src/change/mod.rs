//! Replacement of a running path's request without the loss of a block. [Th §5.4]
//!
//! Input: a running path ([`PathHandle`]) and an edit of its request. Output: the ledger of the
//! switch, or the reason why the change failed.
//!
//! 1. The edited text is checked and planned. Surviving nodes keep their spaces, so a change moves
//!    no node unless the edit requests it; if no such plan exists, the planner may move nodes.
//! 2. New nodes, rings and programs are built beside the running path ([`crate::build`]). A failure
//!    in this step or the next leaves the path unchanged.
//! 3. The spaces whose content differs are borrowed ([`switch`]), each between two of its passes.
//!    At this moment, the *boundary*, the space has no block in flight.
//! 4. In the old graph, removed nodes release the blocks that they hold and finish, and removed
//!    rings are drained. Now the counters of the old graph are final, and the new graph has counted
//!    nothing.
//! 5. The new graph replaces the old one, and the spaces resume.
//!
//! Thus the old graph alone processes every block before the boundary, and the new graph alone
//! every block after it. The reported ledger does not assume this property; it is computed from the
//! counters of both graphs.

mod built_change;
mod handover;
mod in_place_change;
mod matched_plan;
mod migration;
mod outcome;
mod replay;
mod reshape;
mod sessions;
mod subtree_move;
mod switch;

pub use handover::TransferredState;
pub use outcome::{ChangeError, SwitchReport};
pub(crate) use replay::ChangeRepeater;
pub use reshape::{NodePlacement, reshape};
pub(crate) use reshape::{plan_with_placements, predicted_moves, reason_for_replicas};
pub use sessions::{SessionMoveReport, move_sessions, session_shares};
pub use subtree_move::{check_subtree_can_leave, receive_subtree, send_subtree};

use crate::live::PathHandle;
use crate::path::PathOptions;
use crate::path::running_path::{PathState, RunningComponent, RunningPath};
use crate::record::{self, RecordMode};
use crate::registry::MachineRegistry;
use built_change::{BuiltChange, SwitchHooks};
use in_place_change::InPlaceChange;
use pipeline::Registry;
use pipeline::edit::Edit;
use pipeline::plan::{Machine, Plan};
use runtime::commands::CommandError;
use std::ops::Deref;
use std::time::Duration;
use subtree_move::SubtreeMove;
use sys::rollback::RollbackLog;

/// Maximum number of times that a change is retried because the process that runs the path's kernel
/// programs was restarted in the meantime.
const RETRIES_MAX: usize = 4;

/// The machine for which a change is planned. Inspecting the machine takes as long as many changes,
/// and a change to arguments in place does not need it. Callers therefore pass a
/// [`std::cell::LazyCell`], which inspects the machine on first use.
pub type LazyMachine<'m> = &'m dyn Deref<Target = Machine>;

/// Edits the request of a running path, and changes the path accordingly. Changes are serialized: a
/// second change waits for the first. Blocks; if the path has not started yet, waits until it has.
/// Retries if the process that runs the path's kernel programs was restarted during the change.
///
/// # Errors
///
/// Fails if the edit or the new request is invalid, if the path replays a recording or has ended,
/// if a space does not end its pass within `limit`, or if a new node, ring or program cannot be
/// built. The path then runs as before.
pub fn change(
    live: &PathHandle,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    change_with_machine(live, edit, &machine, limit)
}

/// Changes the path like [`change`], for a machine that is inspected only if the change needs it.
pub fn change_with_machine(
    live: &PathHandle,
    edit: &Edit,
    machine: LazyMachine<'_>,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    change_with_retries(live, edit, machine, limit, &RollbackLog::default())
}

/// Changes the path like [`change`], and logs its steps to `steps`, which no other change may use.
pub fn change_with_rollback_log(
    live: &PathHandle,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
    steps: &RollbackLog,
) -> Result<SwitchReport, ChangeError> {
    change_with_retries(live, edit, &machine, limit, steps)
}

fn change_with_retries(
    live: &PathHandle,
    edit: &Edit,
    machine: LazyMachine<'_>,
    limit: Duration,
    steps: &RollbackLog,
) -> Result<SwitchReport, ChangeError> {
    let mut begun = 0;
    let begin = sys::clock::monotonic_ns();
    loop {
        let changed = try_to_change(live, edit, machine, limit, steps);
        if changed.is_err() {
            steps.roll_back();
        }
        // A path that has been built but does not run yet has no thread starter, so wait for one.
        if let Err(ChangeError::SpaceUnavailable(CommandError::NotStarted)) = changed {
            let since = Duration::from_nanos(sys::clock::monotonic_ns().saturating_sub(begin));
            if running_path(live)?.wait_for_starters(limit.saturating_sub(since)) {
                continue;
            }
        }
        begun += 1;
        if begun > RETRIES_MAX || !matches!(changed, Err(ChangeError::KernelHostRestarted(_))) {
            return changed;
        }
    }
}

fn try_to_change(
    live: &PathHandle,
    edit: &Edit,
    machine: LazyMachine<'_>,
    limit: Duration,
    steps: &RollbackLog,
) -> Result<SwitchReport, ChangeError> {
    let whole = running_path(live)?;
    let recorded;
    // A recorded path is planned for the recorded machine, so that a replay produces the same plan.
    let machine = match &whole.extras.record_mode {
        RecordMode::Off => machine,
        RecordMode::Record(recording) => {
            recorded = &recording.machine;
            &recorded
        }
        RecordMode::Replay(_) => {
            let why = "a replay of a record repeats the recorded changes only: `replay RECORD | …` \
                       runs another request over the frames";
            return Err(ChangeError::Refused(why.to_owned()));
        }
    };
    let change = TextChange { edit, check: &|_, _| Ok(()), subtree_move: None };
    apply_edit(whole, change, machine, limit, steps)
}

/// Repeats a recorded change when the spaces have reached the positions at which it was recorded.
/// Fails if this version of the program plans the change differently.
pub(crate) fn repeat_change(
    live: &PathHandle,
    change: &record::RecordedChange,
) -> Result<(), ChangeError> {
    let whole = running_path(live)?;
    let RecordMode::Replay(replay) = &whole.extras.record_mode else {
        return Err(ChangeError::Refused("it is not a replay of a record".to_owned()));
    };
    let head = &replay.record().head;
    whole.lock_state().text.get_or_insert_with(|| head.request.clone());
    let same = |text: &str, plan: &Plan| match text == change.text {
        true if record::format_placement(plan) == change.layout => Ok(()),
        _ => Err(ChangeError::Refused(format!(
            "streamline {}, which wrote the record, places this change in another way: replay the \
             record with that version",
            head.program
        ))),
    };
    let asked = TextChange { edit: &change.edit, check: &same, subtree_move: None };
    let steps = RollbackLog::default();
    let made = apply_edit(whole, asked, &&head.machine, Duration::MAX, &steps);
    if made.is_err() {
        steps.roll_back();
    }
    made.map(drop)
}

fn running_path(live: &PathHandle) -> Result<&RunningPath, ChangeError> {
    let whole = live.running_path();
    whole.map(|whole| &**whole).ok_or_else(|| {
        ChangeError::Refused("this path cannot be changed: its request is not known".to_owned())
    })
}

/// A function that checks a change before the change is made, given the new text of the request and
/// the new plan.
type TextCheck<'c> = &'c dyn Fn(&str, &Plan) -> Result<(), ChangeError>;

/// A change to a request's text.
struct TextChange<'c, 'a> {
    edit: &'c Edit,
    check: TextCheck<'c>,
    /// Role of this path in a move of filters between two paths, if the change is part of such a
    /// move.
    subtree_move: Option<SubtreeMove<'a>>,
}

fn apply_edit(
    whole: &RunningPath,
    TextChange { edit, check, subtree_move }: TextChange<'_, '_>,
    machine: LazyMachine<'_>,
    limit: Duration,
    steps: &RollbackLog,
) -> Result<SwitchReport, ChangeError> {
    let mut state = whole.lock_state();
    // A change in which no space differs queries no space, so the end of the path must be detected
    // here.
    if state.parts.iter().all(RunningComponent::has_ended) {
        return Err(CommandError::Ended.into());
    }
    let text = state.text.clone().ok_or_else(|| {
        ChangeError::Refused(
            "the text of this path's request is unknown, so it cannot be edited".to_owned(),
        )
    })?;
    let repeated = matches!(whole.extras.record_mode, RecordMode::Replay(_));
    let registry: &dyn Registry =
        if repeated { &MachineRegistry::Recorded } else { whole.extras.registry() };
    let edit = &edit.resolve_unset_parameters(registry);
    let known = state.parsed_graph.as_ref().filter(|known| *known.text == *text);
    let (edited, read) =
        edit.apply_and_read((&text, known), registry).map_err(ChangeError::InapplicableEdit)?;
    let read = read.unwrap_or_else(|| pipeline::read_request(&edited.text, registry));
    let (graph, mistakes) = read;
    if mistakes.iter().any(|mistake| mistake.severity == pipeline::language::Severity::Error) {
        return Err(ChangeError::Mistakes { text: edited.text, mistakes });
    }
    if let Some(change) = InPlaceChange::find(edit, &graph, registry, &state) {
        check(&edited.text, &change.plan)?;
        let record_mode = &whole.extras.record_mode;
        let switched = change.apply(&mut state, (edit, edited.text), record_mode, limit)?;
        state.parsed_graph = Some(graph);
        return Ok(switched);
    }
    refuse_private_sessions(&state)?;
    let (read, asked) = (graph.clone(), graph.options.clone());
    let mut graph = graph;
    // A change removes replicas. Adaptation adds them again if they pay off.
    graph.options.set("parallel", filter::Value::Text("no".to_owned()));
    graph.one_component = state.parts.len() == 1;
    // The change uses a separate log, so that a failure undoes this change alone.
    let extras = PathOptions { steps: steps.clone(), ..whole.extras.clone() };
    let with = (whole.settings, &extras);
    let mut changed = BuiltChange::prepare_with_fallback((&graph, &edited), &state, machine, with)?;
    check(&edited.text, &changed.plan)?;
    let recording = match &whole.extras.record_mode {
        RecordMode::Record(recording) => Some(recording),
        RecordMode::Off | RecordMode::Replay(_) => None,
    };
    let recorded = recording.map(|recording| {
        let change = record::RecordedChange {
            number: state.changes,
            edit: edit.clone(),
            text: edited.text.clone(),
            layout: record::format_placement(&changed.plan),
        };
        (recording, change)
    });
    let origins = changed.origins.clone();
    let settled = || {
        // Sinks must know the name of a new source before its first block arrives.
        origins.publish();
        if let Some((recording, change)) = &recorded {
            recording.set_source_names(&origins.names);
            recording.write_change(change);
        }
    };
    let replay = match &whole.extras.record_mode {
        RecordMode::Replay(replay) => Some(&**replay),
        _ => None,
    };
    let handover = match subtree_move {
        Some(subtree_move) => Some(subtree_move.prepare_handover(&state, &changed, &edited)?),
        None => None,
    };
    let between = SwitchHooks { replay, settled: &settled, handover };
    let mut switched = changed.switch(&state, between, limit)?;
    extras.steps.commit();
    changed.plan.graph.options = asked;
    switched.text = edited.text;
    let gone =
        |number: &usize| state.ids.nodes.contains(number) && !changed.ids.nodes.contains(number);
    switched.reports.retain(|report| gone(&report.planned));
    changed.commit_state(&mut state, Some(switched.text.clone()));
    state.parsed_graph = Some(read);
    Ok(switched)
}

/// Refuses a change if filters with replicas have session state. No merge of the replicas' states
/// is defined.
fn refuse_private_sessions(state: &PathState) -> Result<(), ChangeError> {
    match state.plan.replicas.iter().any(|copied| copied.shard_key.is_some()) {
        false => Ok(()),
        true => Err(ChangeError::Refused(
            "it has replicas with sessions of their own; start it with `--parallel=no`".to_owned(),
        )),
    }
}
