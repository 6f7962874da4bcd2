//! Implementation of the methods of the interface `io.streamline.path`.

use super::nodes::{DescribedNodes, NodesPage};
use super::path;
use super::registration::new_report;
use super::service::{COUNTERS_TIMEOUT, Service, TAPS_MAX};
use super::updates::UpdateSchedule;
use super::{counters, spaces, taps};
use crate::faults;
use crate::protocol::{
    ChangeParameters, ChangeReply, CountReply, FollowParameters, NoParameters, NodesParameters,
    PathCountParameters, PathEvent,
};
use crate::varlink::{Call, Fault, Reply, interface};
use engine::change::{ChangeError, SwitchReport};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use pipeline::binding::SpaceBinding;
use pipeline::edit::{Edit, PathMove};
use pipeline::plan::{Machine, Plan};
use serde::Serialize;
use std::cell::LazyCell;
use std::time::Duration;

/// Maximum time for which a change waits until all spaces of the path have finished their current
/// batch. This may take long on a busy machine. Clients wait longer than this
/// ([`crate::client::EXPENSIVE_CALL_TIMEOUT`]).
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

impl Service {
    /// Executes a call from the client with the number `id`. Returns `None` if there is nothing to
    /// send now: the reply is already queued, or is sent later.
    pub(super) fn execute(&mut self, id: u64, call: &Call) -> Result<Option<Reply>, Fault> {
        let (named, method) = call.interface_and_method();
        if named == interface::SERVICE_INTERFACE.name {
            return single_reply(&interface::execute_service_call(
                call,
                interface::PATH_INTERFACE,
            )?);
        }
        if named != interface::PATH_INTERFACE.name {
            return Err(Fault::interface_not_found(named));
        }
        match method {
            "Describe" => {
                let NoParameters {} = call.deserialize_parameters()?;
                self.refresh_plan_and_lists();
                single_reply(&self.about)
            }
            "Nodes" => {
                let wanted = call.deserialize_parameters()?;
                self.update_described_nodes();
                single_reply(&self.nodes_page(wanted))
            }
            "Count" => {
                let wanted = call.deserialize_parameters()?;
                single_reply(&self.counters_for_client(id, &wanted))
            }
            "Change" => {
                self.check_caller_connected(id)?;
                self.change_path(&call.deserialize_parameters()?)
            }
            "Take" => single_reply(&self.take_subtree_from_path(id, call)?),
            // A prepared path reads `Commit` itself while it waits for the decision, so here the
            // call is an error.
            "Commit" => Err(faults::unchanged("nothing is prepared on this connection")),
            "Stop" => {
                let NoParameters {} = call.deserialize_parameters()?;
                self.shared.stop.notify();
                single_reply(&serde_json::json!({}))
            }
            "Tap" => self.start_tap(id, call),
            "Write" => self.attach_writer(id, call),
            "Tapped" => self.report_tap(id, call),
            "Freeze" => {
                let wanted = call.deserialize_parameters()?;
                taps::freeze_history(&self.lives, &wanted, CHANGE_TIMEOUT)?;
                single_reply(&serde_json::json!({}))
            }
            "Follow" if !call.more => Err(Fault::expected_more()),
            "Follow" => {
                let wanted: FollowParameters = call.deserialize_parameters()?;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.schedule = Some(UpdateSchedule::new(wanted, sys::clock::monotonic_ns()));
                }
                Ok(None)
            }
            // Only the daemon admits clients, and only over its own socket.
            "Admit" => Err(Fault::permission_denied()),
            _ => Err(Fault::method_not_found(&call.method)),
        }
    }

    /// Changes the path. Returns the reply, which contains the nodes after the change if the caller
    /// has asked for them.
    fn change_path(&mut self, change: &ChangeParameters) -> Result<Option<Reply>, Fault> {
        let changed = self.apply_change(change).inspect_err(|fault| {
            let why = format!("{}: {}", change.words.join(" "), faults::format_fault(fault));
            self.shared.queue_report(PathEvent::Unchanged, &why);
        });
        let changed = changed?;
        if change.nodes != Some(true) {
            return single_reply(&changed);
        }
        self.update_described_nodes();
        let ChangeReply { message, line, .. } = changed;
        let patches = change.patches == Some(true);
        let nodes =
            self.described.as_ref().map(|nodes| nodes.page_after_change(change.known, patches));
        let nodes = nodes.unwrap_or_default();
        single_reply(&ChangeReplyWithNodes { message, line, nodes })
    }

    /// Brings `described`, the nodes in the form for clients, up to date with the current plan.
    fn update_described_nodes(&mut self) {
        self.refresh_plan();
        if let Some(plan) = &self.path.plan {
            let (known, live) = (&mut self.described, self.lives.first());
            DescribedNodes::update(known, plan, live, &self.path.line);
        }
    }

    /// Returns the page of the path's nodes that a client requests; an empty page before the first
    /// [`update_described_nodes`](Self::update_described_nodes).
    fn nodes_page(&self, wanted: NodesParameters) -> NodesPage<'_> {
        self.described.as_ref().map(|known| known.page(wanted)).unwrap_or_default()
    }

    /// Returns the counters that the client with the number `id` requests: all counters, or one
    /// page of them.
    fn counters_for_client(&mut self, id: u64, wanted: &PathCountParameters) -> CountReply {
        if let Some(client) = self.clients.get_mut(&id) {
            let is_first = wanted.first.unwrap_or_default() == 0;
            client.has_counted |= is_first && wanted.timed != Some(false);
        }
        match wanted.first {
            None => CountReply { counters: self.current_counters(), next: None },
            Some(first) => self.counters_page(id, first),
        }
    }

    fn start_tap(&mut self, id: u64, call: &Call) -> Result<Option<Reply>, Fault> {
        let wanted = call.deserialize_parameters()?;
        let with_tap = self
            .clients
            .iter()
            .filter(|(other, client)| **other != id && client.tap.is_some())
            .count();
        if with_tap >= TAPS_MAX {
            let why = format!("it has {TAPS_MAX} readers already, the most: close one of them");
            return Err(faults::untapped(&why));
        }
        let (tap, began, descriptors) = taps::start_tap(&self.lives, &wanted, CHANGE_TIMEOUT)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.tap = Some(tap);
        }
        self.send_with_descriptors(id, &Reply::new(&began), descriptors);
        Ok(None)
    }

    /// Returns the state of the client's tap. If the call has the flag `more`, returns `None`:
    /// [`Service::finish_taps`] then sends the state when the path ends.
    fn report_tap(&mut self, id: u64, call: &Call) -> Result<Option<Reply>, Fault> {
        let NoParameters {} = call.deserialize_parameters()?;
        let client = self.clients.get_mut(&id);
        let report = taps::tap_report(client.as_ref().and_then(|client| client.tap.as_ref()))?;
        if let Some(client) = client {
            client.awaits_tap_end |= call.more;
            client.has_last_report |= report.over.is_some();
        }
        if call.more { Ok(None) } else { single_reply(&report) }
    }

    fn attach_writer(&mut self, id: u64, call: &Call) -> Result<Option<Reply>, Fault> {
        let wanted = call.deserialize_parameters()?;
        let socket = taps::attach_writer(&self.lives, &wanted, CHANGE_TIMEOUT)?;
        self.send_with_descriptors(id, &Reply::new(&serde_json::json!({})), vec![socket]);
        Ok(None)
    }

    /// Pins a space, moves a subtree to another path, or edits the request. Moves and edits fail if
    /// the request has several connected components.
    fn apply_change(&mut self, change: &ChangeParameters) -> Result<ChangeReply, Fault> {
        let words = change.words.as_slice();
        let refused = |why: &dyn std::fmt::Display| faults::unchanged(&why.to_string());
        let wrong = |why: &dyn std::fmt::Display| faults::wrong_change(&why.to_string());
        self.check_running_request(change.running.as_deref())?;
        if let Some(keep) = SpaceBinding::parse(words).map_err(|why| wrong(&why))? {
            self.latest_inspection.forget_older_inspection(u64::MAX);
            self.refresh_plan_and_lists();
            let message = self.pin_space(&keep).map_err(|why| refused(&why))?;
            let line = self.path.line.clone();
            return Ok(ChangeReply { message, line, nodes: None });
        }
        if let Some(across) = PathMove::parse(words) {
            return self.move_subtree_to_path(&across, change.other.as_deref());
        }
        if let Some(group) = self.path.group.clone() {
            let edit = Edit::parse(words).map_err(|why| wrong(&why))?;
            let edited =
                edit.apply(&self.path.line, &MachineRegistry::Local).map_err(|why| wrong(&why))?;
            let (message, plan) = group.change(&edit).map_err(|why| refused(&why))?;
            self.set_plan(plan);
            return Ok(self.record_change(message, edited.text));
        }
        let [live] = self.lives.as_slice() else {
            return Err(refused(&"it has several unconnected parts"));
        };
        let edit = Edit::parse(words).map_err(|why| wrong(&why))?;
        let switched = self.plan_and_apply_edit(live, &edit).map_err(|why| match why {
            ChangeError::InapplicableEdit(_) | ChangeError::Mistakes { .. } => wrong(&why),
            _ => refused(&why),
        })?;
        self.refresh_plan();
        let message = switched.to_string();
        Ok(self.record_change(message, switched.text))
    }

    /// Fails unless the path still runs the request `running`; `None` means any request.
    pub(super) fn check_running_request(&self, running: Option<&str>) -> Result<(), Fault> {
        match running.is_none_or(|running| running == self.path.line) {
            true => Ok(()),
            false => Err(faults::outdated()),
        }
    }

    /// Fails if the client with the number `id` has disconnected, because a change for a caller
    /// that no longer waits must not be made.
    fn check_caller_connected(&self, id: u64) -> Result<(), Fault> {
        let caller = self.clients.get(&id);
        let gone = caller.is_none_or(|caller| sys::local_socket::is_peer_gone(&caller.connection));
        match gone {
            false => Ok(()),
            true => Err(faults::unchanged("its caller no longer waits")),
        }
    }

    /// Plans and applies an edit of the request. Uses a description of the machine that is at most
    /// one second old. If planning or applying fails, inspects the machine again and tries once
    /// more, because the rights of this process may have changed.
    fn plan_and_apply_edit(
        &self,
        live: &PathHandle,
        edit: &Edit,
    ) -> Result<SwitchReport, ChangeError> {
        let began = sys::clock::monotonic_ns();
        loop {
            let machine =
                LazyCell::new(|| self.add_known_kernel(self.latest_inspection.get_or_inspect()));
            let changed = engine::change::change_with_machine(live, edit, &machine, CHANGE_TIMEOUT);
            let depends = matches!(
                changed,
                Err(ChangeError::Unplaceable(_) | ChangeError::Build(_) | ChangeError::Refused(_))
            );
            if !depends || !self.latest_inspection.forget_older_inspection(began) {
                return changed;
            }
        }
    }

    /// Inspects the machine, and returns the description for which changes are planned. If a daemon
    /// loads the programs of this path, the description contains the kernel features of the daemon.
    pub(super) fn machine(&self) -> Machine {
        self.add_known_kernel(engine::machine::inspect_machine())
    }

    fn add_known_kernel(&self, mut machine: Machine) -> Machine {
        if let Some(kernel) = &self.path.kernel {
            machine.kernel.clone_from(kernel);
        }
        machine
    }

    /// Pins a space to a processor, or unpins it. Returns a confirmation for the user.
    fn pin_space(&self, binding: &SpaceBinding) -> Result<String, String> {
        match &self.path.group {
            Some(group) => spaces::pin_worker(&group.processes(), binding),
            None => spaces::pin_space(&self.lives, binding, (&self.path.nodes, COUNTERS_TIMEOUT)),
        }
    }

    /// Records that the path now runs the request `line`, and reports this to the daemon. Returns
    /// the reply with `message`.
    pub(super) fn record_change(&mut self, message: String, line: String) -> ChangeReply {
        self.about.line.clone_from(&line);
        self.path.line.clone_from(&line);
        // Queued reports are sent first, so that the daemon receives all reports in their order.
        self.send_reports();
        if let Some(registration) = &self.registration {
            let (plan, report) = (self.path.plan_id(), new_report(PathEvent::Changed, &message));
            if !registration.report_change_and_event(&line, plan.clone(), &report) {
                registration.report_change(&line, plan);
                self.shared.queue_report(PathEvent::Changed, &message);
                self.send_reports();
            }
        } else {
            self.shared.queue_report(PathEvent::Changed, &message);
        }
        ChangeReply { message, line, nodes: None }
    }

    /// Records a new plan, and marks the lists of nodes and edges and the node descriptions, which
    /// belong to the old plan, as outdated.
    fn set_plan(&mut self, plan: Plan) {
        self.path.plan = Some(plan);
        self.lists_outdated = true;
        self.described.as_mut().into_iter().for_each(DescribedNodes::mark_outdated);
    }

    /// Records the current plan like [`refresh_plan`](Self::refresh_plan), and updates the lists of
    /// nodes and edges if the plan has changed.
    pub(super) fn refresh_plan_and_lists(&mut self) {
        self.refresh_plan();
        let Some(plan) = self.path.plan.as_ref().filter(|_| self.lists_outdated) else { return };
        let (nodes, links) = path::nodes_and_links(plan);
        (self.about.nodes, self.about.links) = (nodes.clone(), links.clone());
        (self.path.nodes, self.path.links) = (nodes, links);
        self.lists_outdated = false;
    }

    /// Replaces the recorded plan by the path's current plan if the path has changed since the last
    /// call.
    pub(super) fn refresh_plan(&mut self) {
        let Some(live) = self.lives.first() else { return };
        let changes = live.change_count();
        if std::mem::replace(&mut self.changes, changes) == changes {
            return;
        }
        if let Some(plan) = live.plan() {
            self.set_plan(plan);
        }
    }

    /// Returns the page of counters that starts at index `first`. For index 0, first samples the
    /// path's counters. All further pages come from this sample, so that they describe the same
    /// moment.
    fn counters_page(&mut self, id: u64, first: usize) -> CountReply {
        let current = if first == 0 { Some(self.current_counters()) } else { None };
        let Some(client) = self.clients.get_mut(&id) else { return CountReply::default() };
        let Some(all) = current.or_else(|| client.unread_counters.take()) else {
            return CountReply::default();
        };
        let page = counters::counters_page(&all, first);
        client.unread_counters = page.next.is_some().then_some(all);
        page
    }

    pub(super) fn current_totals(&mut self) -> crate::protocol::Totals {
        let elapsed = sys::clock::monotonic_ns().saturating_sub(self.start);
        match &self.path.group {
            Some(group) => counters::ledger_totals(&group.ledger(), elapsed),
            None => counters::collect_totals(&self.lives, elapsed, COUNTERS_TIMEOUT),
        }
    }

    pub(super) fn current_counters(&mut self) -> crate::protocol::Counters {
        self.refresh_plan_and_lists();
        let elapsed = sys::clock::monotonic_ns().saturating_sub(self.start);
        match &self.path.group {
            Some(group) => counters::group_counters(&**group, &self.path.nodes, elapsed),
            None => {
                let plan = (self.path.nodes.as_slice(), self.path.links.as_slice());
                counters::collect_counters(&self.lives, plan, elapsed, COUNTERS_TIMEOUT)
            }
        }
    }
}

/// A `ChangeReply` with serialized nodes.
#[derive(Serialize)]
struct ChangeReplyWithNodes<'d> {
    #[serde(rename = "said")]
    message: String,
    line: String,
    nodes: NodesPage<'d>,
}

#[expect(clippy::unnecessary_wraps, reason = "the reply of a method")]
fn single_reply(value: &impl Serialize) -> Result<Option<Reply>, Fault> {
    Ok(Some(Reply::new(value)))
}
