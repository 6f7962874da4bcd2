//! Changes to filter arguments that running filters apply in place: no node is built, and no state
//! moves.
//!
//! The change borrows all spaces that run one of the filters, including replicas, between two
//! passes. The values therefore change in all spaces or in none, and no space runs with a mixture
//! of old and new values. Filters in the kernel and in sandboxes are replaced instead, as in any
//! other change, and the new filters inherit the state.

use super::outcome::{ChangeError, SwitchReport};
use crate::path::running_path::PathState;
use crate::record::{self, RecordMode};
use filter::Arguments;
use pipeline::Registry;
use pipeline::edit::{Edit, differ_only_in_arguments};
use pipeline::graph::{Graph, NodeId, Step};
use pipeline::plan::{Plan, SpaceKind, complete_with_sinks};
use runtime::commands::{CommandError, CommandQueue, ExclusiveBorrow};
use std::sync::Arc;
use std::time::Duration;

/// A change to the arguments of filters that run in threads, with no other change to the request.
pub(super) struct InPlaceChange {
    /// The running plan with the new arguments.
    pub(super) plan: Plan,
    nodes: Vec<NodeId>,
}

impl InPlaceChange {
    /// Returns the in-place change that leads to the request `graph`, which the edit `edit`
    /// produced. Returns `None` if there is nothing to change or the change cannot be made in
    /// place.
    pub(super) fn find(
        edit: &Edit,
        graph: &Graph,
        registry: &dyn Registry,
        state: &PathState,
    ) -> Option<Self> {
        let differs_in_arguments = match edit {
            Edit::SetArguments { .. } => true,
            // These edits change the number of filters, or replace one.
            Edit::Add { .. } | Edit::RemoveBelow { .. } => false,
            _ => differ_only_in_arguments(&graph.text, state.text.as_deref()?),
        };
        if !differs_in_arguments {
            return None;
        }
        let old = &state.plan;
        let (mut graph, _) = complete_with_sinks(graph.clone(), registry);
        let mut nodes = Vec::new();
        for (at, new) in graph.nodes.iter_mut().enumerate() {
            let Step::Filter(new) = &mut new.step else { continue };
            let before = old.graph.nodes.get(at)?.filter()?;
            if !new.is_same(before) || new.is_untrusted() != before.is_untrusted() {
                return None;
            }
            (new.pin, new.pin_reason) = (before.pin.clone(), before.pin_reason);
            nodes.extend(new.has_other_writable_values(before).then_some(NodeId(at)));
        }
        let in_thread = |id: &NodeId| old.space_of(*id).kind == SpaceKind::Thread;
        let plan = Plan { graph, ..old.clone() };
        (!nodes.is_empty() && nodes.iter().all(in_thread)).then_some(Self { plan, nodes })
    }

    /// Sets the new arguments in the running filters; `text` is the new text of the request. Waits
    /// at most `limit` for the spaces to stop. Fails without effect if a space cannot be borrowed
    /// in time, or if a filter refuses its arguments.
    pub(super) fn apply(
        self,
        state: &mut PathState,
        (edit, text): (&Edit, String),
        record_mode: &RecordMode,
        limit: Duration,
    ) -> Result<SwitchReport, ChangeError> {
        let deadline = limit.saturating_add(Duration::from_nanos(sys::clock::monotonic_ns()));
        let stalls = match record_mode {
            RecordMode::Replay(replay) => Some(&*replay.stalls),
            _ => None,
        };
        let mut begin = None;
        let mut lent: Vec<ExclusiveBorrow> = Vec::new();
        for queue in self.command_queues(state) {
            let now = Duration::from_nanos(sys::clock::monotonic_ns());
            stalls.iter().for_each(|stalls| stalls.report_swap_awaits_command(&queue.status));
            let borrowed = queue.borrow_space(deadline.saturating_sub(now));
            stalls.iter().for_each(|stalls| stalls.report_swap_resumed());
            match borrowed {
                Ok(space) => lent.push(space),
                Err(why) => {
                    lent.into_iter().rev().for_each(ExclusiveBorrow::give_back);
                    return Err(why.into());
                }
            }
            begin.get_or_insert_with(sys::clock::monotonic_ns);
        }
        let set = |lent: &mut [ExclusiveBorrow], values: &[(usize, Arguments)]| {
            lent.iter_mut().try_for_each(|lent| lent.space.set_arguments(values))
        };
        if let Err(mistake) = set(&mut lent, &self.changed_arguments(&self.plan, state)) {
            // Each filter accepts its old arguments, with which it was created.
            let _ = set(&mut lent, &self.changed_arguments(&state.plan, state));
            lent.into_iter().rev().for_each(ExclusiveBorrow::give_back);
            return Err(ChangeError::Refused(mistake.to_string()));
        }
        let first = lent.first().ok_or(CommandError::Ended)?;
        let position = first.space.counters_without_reports().input_blocks();
        lent.iter_mut().for_each(|lent| lent.space.record_arguments_set(state.changes));
        if let RecordMode::Record(recording) = record_mode {
            let (number, layout) = (state.changes, record::format_placement(&self.plan));
            let (edit, text) = (edit.clone(), text.clone());
            recording.write_change(&record::RecordedChange { number, edit, text, layout });
        }
        lent.into_iter().rev().for_each(ExclusiveBorrow::give_back);
        let paused_ns = begin.map_or(0, |begin| sys::clock::monotonic_ns().saturating_sub(begin));
        (state.plan, state.text) = (self.plan, Some(text.clone()));
        state.changes += 1;
        Ok(SwitchReport { position, paused_ns, text, ..SwitchReport::default() })
    }

    /// Returns the command queues of all spaces that run a filter with changed arguments or a
    /// replica of it, in the order of the plan.
    fn command_queues(&self, state: &PathState) -> Vec<Arc<CommandQueue>> {
        let (mut queues, plan) = (Vec::new(), &self.plan);
        let all = |id: &NodeId| match plan.replicas_of(*id) {
            Some(replicas) => replicas.spaces.clone(),
            None => vec![plan.placements[id.0].space],
        };
        let planned: Vec<_> =
            self.nodes.iter().flat_map(all).map(|space| &plan.spaces[space]).collect();
        for (at, part) in state.parts.iter().enumerate() {
            let runs = |name: &str| planned.iter().any(|s| s.component == at && s.name == name);
            let spaces = part.spaces.iter().filter(|space| runs(&space.name));
            queues.extend(spaces.map(|space| Arc::clone(&space.commands)));
        }
        queues
    }

    /// Returns the arguments in `plan` of the filters that this change concerns, by node number.
    fn changed_arguments(&self, plan: &Plan, state: &PathState) -> Vec<(usize, Arguments)> {
        let used = |id: &NodeId| Some((state.ids.nodes[id.0], plan.graph.node(*id).filter()?));
        let used = self.nodes.iter().filter_map(used);
        used.map(|(number, used)| (number, used.arguments.clone())).collect()
    }
}
