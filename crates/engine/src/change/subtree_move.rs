//! A move of a subtree from one path to another, which may run in another process.
//!
//! Each path makes its own change: one removes the subtree and the other adds it. Both changes are
//! prepared, and both paths are paused, before either change takes effect. At that moment each path
//! calls its callback `agree`, and a failure of the callback leaves the path unchanged. Private
//! state moves with its filter, unless the filter holds blocks; then the move fails. The sessions
//! of filters that stay, with the blocks that they hold, end in the old graph.

use super::built_change::BuiltChange;
use super::handover::{Handover, ReceiveStatesFn, SendStatesFn, TransferredState};
use super::outcome::{ChangeError, SwitchReport};
use super::{TextChange, apply_edit, running_path};
use crate::live::PathHandle;
use crate::path::running_path::PathState;
use crate::record::RecordMode;
use filter::{FilterKind, StateScope};
use pipeline::edit::{Edit, EditResult, NodeOutput, Subtree};
use pipeline::graph::FilterUse;
use pipeline::language::Span;
use pipeline::plan::{Machine, SpaceKind};
use std::time::Duration;
use sys::rollback::RollbackLog;

/// The role of a path in a move of filters between two paths.
pub(super) enum SubtreeMove<'a> {
    /// The path loses filters. `filters` contains the positions of these filters in the path's
    /// text. `None` stands for a filter that the other path adds but that is absent from this text.
    Give { filters: &'a [Option<Span>], agree: SendStatesFn<'a> },
    /// The path receives filters from another path. `agree` obtains their state.
    Take { agree: ReceiveStatesFn<'a> },
}

/// Fails with the reason if a filter of a subtree cannot move to another path.
pub fn check_subtree_can_leave(live: &PathHandle, subtree: &Subtree) -> Result<(), ChangeError> {
    let state = running_path(live)?.lock_state();
    let mut given = subtree.filters.iter().flatten();
    given.try_for_each(|span| find_leaving_filter(&state, *span).map(drop))
}

/// Removes a subtree from a path. While the spaces of the path are paused, calls `agree` with the
/// state of each filter of the subtree, in the order of the request's text; the change takes effect
/// if `agree` succeeds. Blocks.
///
/// # Errors
///
/// Fails if the change is impossible, or with the error that `agree` returns. The path then runs as
/// before.
pub fn send_subtree(
    live: &PathHandle,
    (node, subtree): (&str, &Subtree),
    machine: &Machine,
    limit: Duration,
    agree: &mut dyn FnMut(&[TransferredState]) -> Result<(), String>,
) -> Result<SwitchReport, ChangeError> {
    let edit = Edit::RemoveBelow { node: node.to_owned(), all: true };
    let change = SubtreeMove::Give { filters: &subtree.filters, agree };
    move_subtree(live, &edit, change, machine, limit)
}

/// Adds a subtree to a path, below a node. While the spaces of the path are paused, calls `agree`
/// to obtain the state of each filter; the change takes effect if `agree` succeeds. Blocks.
///
/// # Errors
///
/// Fails if the change is impossible, or with the error that `agree` returns. The path then runs as
/// before.
pub fn receive_subtree(
    live: &PathHandle,
    (filter, below): (&str, &NodeOutput),
    machine: &Machine,
    limit: Duration,
    agree: &mut dyn FnMut() -> Result<Vec<TransferredState>, String>,
) -> Result<SwitchReport, ChangeError> {
    let edit = Edit::Add { filter: filter.to_owned(), below: Some(below.clone()) };
    move_subtree(live, &edit, SubtreeMove::Take { agree }, machine, limit)
}

fn move_subtree(
    live: &PathHandle,
    edit: &Edit,
    subtree_move: SubtreeMove<'_>,
    machine: &Machine,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    let whole = running_path(live)?;
    if !matches!(whole.extras.record_mode, RecordMode::Off) {
        let why = "it is recorded or replayed, and a record does not contain the other path";
        return Err(ChangeError::Refused(why.to_owned()));
    }
    let steps = RollbackLog::default();
    let change = TextChange { edit, check: &|_, _| Ok(()), subtree_move: Some(subtree_move) };
    let made = apply_edit(whole, change, &machine, limit, &steps);
    if made.is_err() {
        steps.roll_back();
    }
    made
}

impl<'a> SubtreeMove<'a> {
    /// Prepares the exchange of filter state with the other path, after the change of this path has
    /// been built. Fails if a filter cannot move to another path.
    pub(super) fn prepare_handover(
        self,
        state: &PathState,
        changed: &BuiltChange,
        edited: &EditResult,
    ) -> Result<Handover<'a>, ChangeError> {
        match self {
            Self::Give { filters, agree } => {
                if changed.parts.iter().any(|part| !part.successions.is_empty()) {
                    let why = "the program in the kernel would change with it: `move NODE process` \
                               with the node above it first";
                    return Err(ChangeError::Refused(why.to_owned()));
                }
                let given = |span: &Option<Span>| match span {
                    Some(span) => find_leaving_filter(state, *span),
                    None => Ok((None, "")),
                };
                let filters = filters.iter().map(given);
                let filters = filters.collect::<Result<_, _>>()?;
                Ok(Handover::Give { filters, agree })
            }
            Self::Take { agree } => {
                let graph = &changed.plan.graph;
                let new = edited.filters.iter().filter(|(_, old)| old.is_none());
                let number = |(span, _): &(Span, Option<Span>)| {
                    let is = |node: &pipeline::graph::Node| {
                        node.span.start == span.start && node.filter().is_some()
                    };
                    let found = graph.nodes_with_ids().find(|(_, node)| is(node));
                    found.map(|(id, _)| changed.ids.nodes[id.0])
                };
                let filters: Vec<usize> = new.filter_map(number).collect();
                Ok(Handover::Take { filters, agree })
            }
        }
    }
}

/// Finds the filter at the position `span` of the text, which is to leave the path. Returns the
/// filter's node number and name. The number is `None` if the filter has no private state. Fails if
/// the filter cannot leave the path.
fn find_leaving_filter(
    state: &PathState,
    span: Span,
) -> Result<(Option<usize>, &'static str), ChangeError> {
    let found = state.plan.graph.nodes_with_ids().find(|(_, node)| node.span == span);
    let Some((id, node)) = found else {
        return Err(ChangeError::Refused("the request has just changed".to_owned()));
    };
    let Some(used) = node.filter() else { return Ok((None, "")) };
    let name = used.description.name;
    let refused =
        |why: &str| Err(ChangeError::Refused(format!("`{name}` stays in its path: {why}")));
    if used.endpoint.writes_files {
        return refused("its files are open there");
    }
    if node.has_own_process() {
        return refused("it runs in a process of that path");
    }
    if state.plan.space_of(id).kind == SpaceKind::Kernel {
        return refused("it must leave the kernel first (`move NODE process`)");
    }
    if used.published_state_name().is_some() {
        return refused("others read its state by name");
    }
    match state_scope(used) {
        StateScope::Pinned(why) if node.kind() != Some(FilterKind::Sink) => refused(why),
        StateScope::Private => Ok((Some(state.ids.nodes[id.0]), name)),
        _ => Ok((None, name)),
    }
}

fn state_scope(used: &FilterUse) -> StateScope {
    used.description.state.scope
}
