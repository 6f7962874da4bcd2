//! Methods for clients with requests in the kernel, and handling of the kernel thread's
//! completions.

use super::commands::{Command, Completion, ProgramStatus, RequestState};
use crate::log::EventKind;
use crate::server::event_loop::Server;
use crate::server::methods::CallReplies;
use crate::server::store::KnownRequestState;
use engine::kernel::delegation::{DelegatedProgram, FinalCounters};
use member::daemon_directories::PACKET_SOCKET;
use member::faults;
use member::protocol::{AttachParameters, AttachReply, SetTapsParameters};
use member::varlink::{Fault, Reply};
use serde_json::json;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;
use sys::local_socket::Framing;

/// Maximum wait for the removal of all requests at shutdown, in ns. The kernel may delay each
/// removal, but service managers kill a daemon that takes much longer.
const SHUTDOWN_TIMEOUT_NS: u64 = 60_000_000_000;

impl Server {
    /// Queues the attachment of part of a request for a client.
    pub(in crate::server) fn attach(
        &mut self,
        id: u64,
        asked: AttachParameters,
        more: bool,
    ) -> Result<CallReplies, Fault> {
        let closed = |why: &str| faults::not_in_kernel(0, "kernel", why);
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        if client.connection.framing() != Framing::Packets {
            return Err(faults::needs_descriptors(PACKET_SOCKET));
        }
        if !more {
            return Err(Fault::expected_more());
        }
        if client.request_state != RequestState::None {
            return Err(faults::refused(
                "line",
                "this connection already runs a request in the kernel",
            ));
        }
        if let Err(why) = &self.kernel.kernel_release {
            return Err(closed(&format!("the daemon runs no kernel programs: {why}")));
        }
        let (who, process) = (client.credentials.clone(), client.process);
        let uid = who.uid;
        let line = if asked.instead.is_some() {
            RequestState::ReplacementRequested
        } else {
            RequestState::Requested
        };
        let order = Command::Attach { client: id, who, process, asked };
        self.kernel
            .enqueue(uid, order)
            .ok_or_else(|| closed("too many of your requests are waiting"))?;
        client.request_state = line;
        Ok(CallReplies::deferred())
    }

    /// Queues the replacement of a running request with the client's prepared request.
    pub(in crate::server) fn queue_switch(&mut self, id: u64) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        if client.request_state != RequestState::Prepared {
            return Err(faults::refused("line", "this connection has no prepared request"));
        }
        client.request_state = RequestState::Switching;
        // The path is paused until the switch completes.
        self.kernel.push_urgent_command(Command::Switch { client: id });
        Ok(CallReplies::single(&json!({})))
    }

    /// Implements the method `Detach`: queues the removal of the client's request, if the request
    /// is running or prepared.
    pub(in crate::server) fn detach(&mut self, id: u64) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        if matches!(client.request_state, RequestState::Running | RequestState::Prepared) {
            match client.request_state == RequestState::Running {
                // If this daemon dies before it sends the final counters, the next daemon detaches
                // the request.
                true => client.store_connection(id, KnownRequestState::Detaching),
                false => client.discard_connection(id),
            }
            self.steps.announce_step("the line of a guest leaves");
            self.queue_request_removal(id);
        }
        Ok(CallReplies::single(&json!({})))
    }

    /// Queues the change of a client's open taps. Does nothing if the client's request is not
    /// running. Fails if the user's queue is full.
    pub(in crate::server) fn set_taps(
        &mut self,
        id: u64,
        open: &[u64],
    ) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        if client.request_state == RequestState::Running {
            let order = Command::SetTaps {
                client: id,
                open: SetTapsParameters::open_taps_from_indices(open),
            };
            let busy = || faults::refused("call", "too many of your calls are waiting");
            self.kernel.enqueue(client.credentials.uid, order).ok_or_else(busy)?;
        }
        Ok(CallReplies::single(&json!({})))
    }

    /// Queues a report of the counters of a client's running request. If a report is already
    /// queued, a call without a number queues no further one. Does nothing if the request is not
    /// running or the user's queue is full.
    pub(in crate::server) fn queue_counter_report(
        &mut self,
        id: u64,
        number: Option<u64>,
    ) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        let answers = number.is_some() || !client.waits_for_counters;
        if client.request_state == RequestState::Running && answers {
            let order = Command::Count { client: id, number };
            client.waits_for_counters |=
                self.kernel.enqueue(client.credentials.uid, order).is_some();
        }
        Ok(CallReplies::single(&json!({})))
    }

    /// Queues the removal of a client's request.
    pub(in crate::server) fn queue_request_removal(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.request_state = RequestState::Detaching;
            self.kernel.push_urgent_command(Command::Detach { client: id, why: None });
        }
    }

    /// Queues a report of the kernel programs for a client, or returns an empty report if the
    /// daemon runs no kernel programs. Fails if the user's queue is full.
    pub(in crate::server) fn queue_program_report(
        &mut self,
        id: u64,
    ) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        let uid = client.credentials.uid;
        if self.kernel.kernel_release.is_err() {
            return Ok(CallReplies::single(&member::protocol::KernelPrograms::default()));
        }
        let order = Command::ReportPrograms { client: id };
        let busy = || faults::refused("call", "too many of your calls are waiting");
        self.kernel.enqueue(uid, order).ok_or_else(busy)?;
        client.waits_for_programs = true;
        Ok(CallReplies::deferred())
    }

    /// Drops the queued commands of a disconnected client, and removes the client's request.
    pub(in crate::server) fn remove_request(&mut self, id: u64, line: RequestState, uid: u32) {
        let of_client = |order: &Command| match order {
            Command::Attach { client, .. }
            | Command::Count { client, .. }
            | Command::SetTaps { client, .. }
            | Command::ReportPrograms { client, .. } => *client == id,
            Command::Switch { .. } | Command::Detach { .. } => false,
            Command::End { .. } | Command::LeaveRunning => false,
        };
        if let Some(waiting) = self.kernel.queued.get_mut(&uid) {
            waiting.retain(|order| !of_client(order));
            if waiting.is_empty() {
                self.kernel.queued.remove(&uid);
            }
        }
        let goes = !matches!(line, RequestState::None | RequestState::Detaching);
        if goes && self.kernel.commands.is_some() {
            self.kernel.push_urgent_command(Command::Detach { client: id, why: None });
        }
    }

    /// Handles completions. Returns true when all requests have been removed or left to the next
    /// daemon.
    pub(in crate::server) fn handle_completions(&mut self) -> bool {
        self.kernel.doorbell.clear();
        let mut all = false;
        while let Ok(done) = self.kernel.completions.try_recv() {
            match done {
                Completion::AttachReply { client, result } => self.complete_attach(client, result),
                Completion::Switched { client, result } => self.complete_switch(client, result),
                Completion::Detached { client, ended, why } => {
                    self.complete_detach(client, &ended, why)
                }
                Completion::Counted { client, number, counters } => {
                    self.send_final_counters(client, number, counters.as_deref());
                }
                Completion::Status { client, status } => self.send_program_status(client, &status),
                Completion::Ended => all = true,
                Completion::Ready => {
                    self.kernel.busy = false;
                    self.kernel.dispatch_next_command();
                }
            }
        }
        all
    }

    fn complete_attach(&mut self, id: u64, result: Result<DelegatedProgram, Fault>) {
        // If the client has disconnected, its request is already being removed.
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.steps.announce_step("a guest is told what was made for it");
        match result {
            Ok(DelegatedProgram { layout, records, pointers, doorbell }) => {
                let waits = client.request_state == RequestState::ReplacementRequested;
                client.request_state =
                    if waits { RequestState::Prepared } else { RequestState::Running };
                let layout = Some(layout.to_text());
                let attached = AttachReply { layout, line: Some(id), ..AttachReply::default() };
                let reply = Reply { continues: true, ..Reply::new(&attached) };
                if !waits {
                    self.log_kernel_change(EventKind::KernelAttached, id, None);
                }
                self.send_reply(id, reply, vec![records, pointers, doorbell]);
                self.steps.announce_step("the connection of a guest is kept");
                if let Some(client) = self.clients.get_mut(&id) {
                    client.store_connection(
                        id,
                        if waits {
                            KnownRequestState::Prepared
                        } else {
                            KnownRequestState::Running
                        },
                    );
                }
            }
            Err(fault) => {
                client.request_state = RequestState::None;
                self.log_refusal(id, "io.streamline.Attach", &fault);
                self.send_reply(id, Reply::from(&fault), Vec::new());
            }
        }
        self.handle_deferred_messages(id);
    }

    fn send_final_counters(
        &mut self,
        id: u64,
        number: Option<u64>,
        counters: Option<&FinalCounters>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.waits_for_counters = false;
        let runs = client.request_state == RequestState::Running;
        if let Some(counters) = counters.filter(|_| runs) {
            let counted = Some(counters.to_text());
            let attached = AttachReply { counted, number, ..AttachReply::default() };
            self.send_reply(id, Reply { continues: true, ..Reply::new(&attached) }, Vec::new());
        }
    }

    pub(in crate::server) fn complete_switch(&mut self, id: u64, result: Result<(), Fault>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.steps.announce_step("a guest is told that its line is changed");
        client.request_state =
            if result.is_ok() { RequestState::Running } else { RequestState::None };
        let reply = match result {
            Ok(()) => {
                let attached = AttachReply { switched: Some(true), ..AttachReply::default() };
                Reply { continues: true, ..Reply::new(&attached) }
            }
            Err(fault) => Reply::from(&fault),
        };
        let runs = client.request_state == RequestState::Running;
        if runs {
            self.log_kernel_change(EventKind::KernelSwitched, id, None);
        }
        self.send_reply(id, reply, Vec::new());
        self.steps.announce_step("a guest knows that its line is changed");
        if let Some(client) = self.clients.get_mut(&id) {
            match runs {
                true => client.store_connection(id, KnownRequestState::Running),
                false => client.discard_connection(id),
            }
        }
        self.handle_deferred_messages(id);
    }

    pub(in crate::server) fn complete_detach(
        &mut self,
        id: u64,
        ended: &FinalCounters,
        why: Option<String>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.request_state = RequestState::None;
        self.steps.announce_step("a guest is told what its line has counted");
        self.log_kernel_change(EventKind::KernelDetached, id, why.clone());
        let attached = AttachReply { ended: Some(ended.to_text()), why, ..AttachReply::default() };
        self.send_reply(id, Reply::new(&attached), Vec::<OwnedFd>::new());
        self.steps.announce_step("the connection of a guest is kept no more");
        self.clients.get_mut(&id).into_iter().for_each(|client| client.discard_connection(id));
    }

    fn send_program_status(&mut self, id: u64, status: &[ProgramStatus]) {
        let Some(client) = self.clients.get(&id) else { return };
        let uid = client.credentials.uid;
        let sharing = self.describe_programs(uid, status);
        self.send_reply(id, Reply::new(&sharing), Vec::new());
        if let Some(client) = self.clients.get_mut(&id) {
            client.waits_for_programs = false;
        }
        self.handle_deferred_messages(id);
    }

    /// Drops all queued commands. Then removes all requests and sends their final counters, or
    /// leaves the requests running if the service manager stores them. Called at shutdown. Blocks
    /// for at most [`SHUTDOWN_TIMEOUT_NS`].
    pub(in crate::server) fn end_requests(&mut self) {
        if self.kernel.commands.is_none()
            || self.clients.values().all(|g| g.request_state == RequestState::None)
        {
            return;
        }
        self.kernel.queued.clear();
        self.kernel.urgent.clear();
        let why =
            "the daemon has been stopped, together with its programs in the kernel".to_owned();
        self.kernel.push_urgent_command(if sys::service::can_store_descriptors() {
            Command::LeaveRunning
        } else {
            Command::End { why }
        });
        let until = sys::clock::monotonic_ns() + SHUTDOWN_TIMEOUT_NS;
        loop {
            let left = until.saturating_sub(sys::clock::monotonic_ns());
            let left = Some(Duration::from_nanos(left));
            let rung = sys::poll::wait_until_readable_despite_signals(
                &[self.kernel.doorbell.as_fd()],
                left,
            );
            if self.handle_completions() || rung != [true] {
                return;
            }
        }
    }
}
