//! The thread that serves a path's clients: its event loop and its connections.

use super::latest_inspection::LatestInspection;
use super::losses::LossWatch;
use super::nodes::DescribedNodes;
use super::path::PathInfo;
use super::registration::{DAEMON_SEARCH_INTERVAL, Registration, SharedWorkerState};
use super::updates::{UnsentPages, UpdateSchedule};
use crate::client::Client;
use crate::connection::{Connection, Received};
use crate::faults;
use crate::protocol::{AdmitParameters, Counters, PathDescription, PathEnd, PathEvent, PathReport};
use crate::varlink::{Call, REPLY_BYTES_MAX, Reply};
use engine::live::PathHandle;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use sys::descriptor_closer::ForeignDescriptor;
use sys::local_socket::Framing;
use sys::watcher::{EpollWatcher, EventInterest, WatchEvent};

/// The state of the thread that serves the clients of a path.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) shared: Arc<SharedWorkerState>,
    pub(super) path: PathInfo,
    pub(super) about: PathDescription,
    /// Number of changes of the path at the last update of `about`, the path's description for
    /// clients.
    pub(super) changes: u64,
    /// True if the nodes and edges listed in `path` and `about` belong to an earlier plan of the
    /// path.
    pub(super) lists_outdated: bool,
    /// Nodes of the plan, as last described to a client; `None` before the first description.
    pub(super) described: Option<DescribedNodes>,
    pub(super) lives: Vec<PathHandle>,
    pub(super) latest_inspection: LatestInspection,
    watcher: EpollWatcher,
    /// Registration with a daemon, or `None` while no daemon is found.
    pub(super) registration: Option<Registration>,
    /// Directory of the sockets of the daemon with which the path was last registered.
    directory: PathBuf,
    /// Monotonic time of the next search for a daemon, in ns.
    next_search: u64,
    pub(super) clients: BTreeMap<u64, AdmittedClient>,
    next: u64,
    pub(super) start: u64,
    losses: LossWatch,
    /// True while the path measures the time spent in its filters because a connected client has
    /// asked for counters.
    measures_for_clients: bool,
}

/// A client that the daemon admitted.
#[derive(Debug)]
pub(super) struct AdmittedClient {
    pub(super) connection: Connection,
    pub(super) schedule: Option<UpdateSchedule>,
    /// Update of which some pages have not been sent yet, or `None` if all have been sent.
    pub(super) unsent_pages: Option<UnsentPages>,
    /// Sample of the path's counters of which the client has not read all pages yet; `None` if
    /// there is no such sample.
    pub(super) unread_counters: Option<Counters>,
    /// The client's tap, or `None` if it has none; the tap ends with the connection.
    pub(super) tap: Option<runtime::space::tap::Tap>,
    /// True if the client awaits the last report of its tap when the path ends.
    pub(super) awaits_tap_end: bool,
    /// True if the client has received the last report of its tap, sent after the tap had ended.
    pub(super) has_last_report: bool,
    /// True if the client has asked for counters.
    pub(super) has_counted: bool,
}

/// Token by which the event loop identifies the doorbell that wakes this thread.
const WAKE_TOKEN: u64 = 0;
/// Token by which the event loop identifies the connection to the daemon.
const DAEMON_TOKEN: u64 = 1;
/// Token by which the event loop identifies the socket over which the daemon passes client
/// connections.
const ADMISSIONS_TOKEN: u64 = 2;
/// Token of the first client in the event loop; each further client gets the next number.
const FIRST_CLIENT_TOKEN: u64 = 16;
/// Maximum number of connected clients.
const CLIENTS_MAX: usize = 64;
/// Maximum number of clients with a tap. The rest of the connections stays free for commands.
pub(super) const TAPS_MAX: usize = 48;
/// Maximum number of messages handled per client at each wakeup.
const MESSAGES_PER_EVENT: usize = 4;
/// Maximum time to wait until the spaces of the path have reported their counters.
pub(super) const COUNTERS_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time to wait, when the path ends, until the clients that follow it have read their last
/// update.
const FINAL_UPDATE_TIMEOUT: Duration = Duration::from_millis(500);

impl AdmittedClient {
    fn new(connection: Connection) -> Self {
        let (schedule, unsent_pages, counted, tap) = Default::default();
        let (awaits_tap_end, has_last_report, has_counted) = (false, false, false);
        Self {
            connection,
            schedule,
            unsent_pages,
            unread_counters: counted,
            tap,
            awaits_tap_end,
            has_last_report,
            has_counted,
        }
    }

    /// Returns true if the client has a tap whose last report, after the end of the tap, it has not
    /// received yet.
    fn may_ask_for_report(&self) -> bool {
        self.tap.is_some() && !self.has_last_report
    }
}

impl Service {
    pub(super) fn new(
        shared: Arc<SharedWorkerState>,
        path: PathInfo,
        about: PathDescription,
        lives: Vec<PathHandle>,
        (directory, registration): (PathBuf, Option<Registration>),
    ) -> sys::Result<Self> {
        let watcher = EpollWatcher::new()?;
        watcher.watch(&shared.wake, WAKE_TOKEN, EventInterest::Read)?;
        let mut answering = Self {
            shared,
            path,
            about,
            changes: 0,
            lists_outdated: false,
            described: None,
            lives,
            latest_inspection: LatestInspection::default(),
            watcher,
            registration: None,
            directory,
            next_search: 0,
            clients: BTreeMap::new(),
            next: FIRST_CLIENT_TOKEN,
            start: sys::clock::monotonic_ns(),
            losses: LossWatch::new(sys::clock::monotonic_ns()),
            measures_for_clients: false,
        };
        registration.map(|registration| answering.watch_registration(registration)).transpose()?;
        Ok(answering)
    }

    /// Returns the directory of the sockets of the daemon with which the path was last registered.
    pub(super) fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    pub(super) fn run(mut self) {
        loop {
            self.report_losses();
            self.send_reports();
            if let Some(ended) = self.exit_status() {
                return self.finish(&ended);
            }
            for event in self.watcher.wait(self.wait_limit()) {
                match event.number {
                    WAKE_TOKEN => drop(self.shared.wake.clear()),
                    DAEMON_TOKEN => self.drop_registration(),
                    ADMISSIONS_TOKEN => self.accept_clients(),
                    id => self.handle_client_event(id, event),
                }
            }
            self.send_updates();
            self.search_for_daemon();
            self.update_time_measurement();
        }
    }

    fn exit_status(&self) -> Option<PathEnd> {
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a report of the blocks lost since the previous report, if the next sample of the
    /// counters is due.
    fn report_losses(&mut self) {
        let now = sys::clock::monotonic_ns();
        let reports = self.registration.as_ref().is_some_and(|daemon| daemon.takes_reports);
        if !reports || now < self.losses.due {
            return;
        }
        let counters = self.current_counters();
        if let Some(what) = self.losses.sample(&counters, now) {
            self.shared.queue_report(PathEvent::Lost, &what);
        }
    }

    /// Sends the queued reports to the daemon. Reports stay queued if there is no daemon, or if
    /// sending fails.
    pub(super) fn send_reports(&mut self) {
        let take = |shared: &SharedWorkerState| {
            let mut reports = shared.reports.lock().unwrap_or_else(PoisonError::into_inner);
            reports.pop_front()
        };
        while self.registration.is_some() {
            let Some(report) = take(&self.shared) else { return };
            if report.event == PathEvent::Adapted {
                self.report_plan();
            }
            let sent = self.registration.as_ref().is_some_and(|daemon| daemon.send_report(&report));
            if !sent {
                let mut reports =
                    self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner);
                reports.push_front(report);
                return;
            }
        }
    }

    /// Reports the current plan if the path has changed its plan by itself.
    fn report_plan(&mut self) {
        let before = self.path.plan_id();
        self.refresh_plan();
        let plan = self.path.plan_id();
        if let Some(registration) = self.registration.as_ref().filter(|_| plan != before) {
            registration.report_change(&self.path.line, plan);
        }
    }

    /// Returns the time until the thread has something to do without an event: the next update for
    /// a client, the next loss sample, or the next search for a daemon. Returns `None` if nothing
    /// is scheduled.
    fn wait_limit(&self) -> Option<Duration> {
        let next = self.clients.values().filter_map(AdmittedClient::next_update_time);
        let look = match &self.registration {
            Some(registration) => registration.takes_reports.then_some(self.losses.due),
            None => Some(self.next_search),
        };
        let next = next.chain(look).min()?;
        Some(Duration::from_nanos(next.saturating_sub(sys::clock::monotonic_ns())))
    }

    /// Accepts the connections that the daemon passes on, up to [`CLIENTS_MAX`] clients. Beyond
    /// these, a new client replaces the oldest idle one ([`AdmittedClient::is_idle`]); if no client
    /// is idle, the new one is rejected. Drops the registration if the daemon has hung up or has
    /// sent an invalid message.
    fn accept_clients(&mut self) {
        loop {
            let Some(registration) = &mut self.registration else { return };
            let (bytes, descriptors) = match registration.admissions.next_message() {
                Received::Pending => return,
                Received::TooLong | Received::Closed => return self.drop_registration(),
                Received::Message(bytes, descriptors) => (bytes, descriptors),
            };
            let Ok(call) = Call::read(&bytes) else { return self.drop_registration() };
            let admits = call.method == "io.streamline.path.Admit";
            if admits
                && call.deserialize_parameters::<AdmitParameters>().is_ok()
                && self.make_room_for_client()
            {
                // Closing the socket rejects the client.
                let _ = descriptors.into_iter().next().map(|socket| self.admit_client(socket));
            }
        }
    }

    /// Returns true if there is room for another client. If [`CLIENTS_MAX`] clients are connected,
    /// first disconnects an idle one, if there is one.
    fn make_room_for_client(&mut self) -> bool {
        if self.clients.len() >= CLIENTS_MAX {
            let idle = self.clients.iter().find(|(_, client)| client.is_idle());
            if let Some(id) = idle.map(|(id, _)| *id) {
                self.drop_client(id);
            }
        }
        self.clients.len() < CLIENTS_MAX
    }

    fn admit_client(&mut self, socket: ForeignDescriptor) -> sys::Result<()> {
        let id = self.next;
        self.next += 1;
        let connection = Connection::from_foreign(socket, Framing::Packets);
        self.watcher.watch(&connection, id, EventInterest::Read)?;
        let client = AdmittedClient::new(connection);
        self.clients.insert(id, client);
        Ok(())
    }

    /// Handles events on a client's socket: sends queued replies, and handles up to
    /// [`MESSAGES_PER_EVENT`] messages. Drops the client if it has hung up, or if it sends a
    /// message that is too long.
    fn handle_client_event(&mut self, id: u64, event: WatchEvent) {
        if event.writable {
            self.flush_replies(id);
        }
        for _ in 0..MESSAGES_PER_EVENT {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.connection.next_message() {
                Received::Pending => return,
                Received::TooLong | Received::Closed => return self.drop_client(id),
                Received::Message(bytes, _) => self.handle_message(id, &bytes),
            }
        }
    }

    fn handle_message(&mut self, id: u64, bytes: &[u8]) {
        let Ok(call) = Call::read(bytes) else { return self.drop_client(id) };
        let reply = match self.execute(id, &call) {
            Ok(reply) => reply,
            Err(fault) => Some(Reply::from(&fault)),
        };
        if let Some(reply) = reply.filter(|_| !call.oneway) {
            self.send(id, &reply);
        }
    }

    /// Queues a reply; disconnects the client if it reads too slowly.
    pub(super) fn send(&mut self, id: u64, reply: &Reply) {
        self.send_with_descriptors(id, reply, Vec::new());
    }

    pub(super) fn send_with_descriptors(
        &mut self,
        id: u64,
        reply: &Reply,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut text = reply.to_bytes();
        if text.len() > REPLY_BYTES_MAX {
            text = Reply::from(&faults::too_large(text.len(), REPLY_BYTES_MAX)).to_bytes();
        }
        let sent = client.connection.send(text, descriptors);
        if sent.and_then(|()| client.connection.watch_writable(&self.watcher, id)).is_err() {
            self.drop_client(id);
        }
    }

    fn flush_replies(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let flushed = client.connection.flush();
        if flushed.and_then(|()| client.connection.watch_writable(&self.watcher, id)).is_err() {
            self.drop_client(id);
        }
        self.send_pages(id);
    }

    fn drop_client(&mut self, id: u64) {
        if let Some(client) = self.clients.remove(&id) {
            // The daemon created this socket and may briefly hold a duplicate, so closing does not
            // suffice.
            let _ = self.watcher.unwatch(&client.connection);
        }
    }

    /// Starts or stops the measurement of the time spent in filters. The time is measured while a
    /// connected client wants it.
    fn update_time_measurement(&mut self) {
        let wanted = self.clients.values().any(AdmittedClient::wants_filter_times);
        if wanted != self.measures_for_clients && !self.path.timed {
            self.measures_for_clients = wanted;
            self.lives.iter().for_each(|live| live.set_time_measurement(wanted, COUNTERS_TIMEOUT));
        }
    }

    fn watch_registration(&mut self, registration: Registration) -> sys::Result<()> {
        self.watcher.watch(&registration.client, DAEMON_TOKEN, EventInterest::Read)?;
        self.watcher.watch(&registration.admissions, ADMISSIONS_TOKEN, EventInterest::Read)?;
        self.about.number = registration.number;
        self.registration = Some(registration);
        Ok(())
    }

    /// Drops the registration, and starts to search for another daemon immediately.
    fn drop_registration(&mut self) {
        let Some(registration) = self.registration.take() else { return };
        for descriptor in [registration.client.as_fd(), registration.admissions.as_fd()] {
            // Closing a descriptor ends the watch only if there is no duplicate.
            let _ = self.watcher.unwatch(descriptor);
        }
        self.next_search = sys::clock::monotonic_ns();
    }

    /// Registers with another daemon if one is found and a search is due.
    fn search_for_daemon(&mut self) {
        let now = sys::clock::monotonic_ns();
        if self.registration.is_some() || now < self.next_search {
            return;
        }
        let wait = u64::try_from(DAEMON_SEARCH_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        self.next_search = now.saturating_add(wait);
        // Numbers start at 1; 0 means that the path has never been registered.
        let number = Some(self.about.number).filter(|number| *number > 0);
        let register = self.path.registration_parameters(number, self.about.started);
        let client = Client::connect_at(&self.directory).or_else(|_| Client::find(None));
        let registration = client.and_then(|client| Registration::new(client, &register));
        match registration.map(|registration| self.watch_registration(registration)) {
            // After an error, the next search tries again.
            Ok(_) | Err(_) => {}
        }
    }

    /// Sends the exit status to all followers, and ends all taps ([`Service::finish_taps`]). Then
    /// blocks for at most [`FINAL_UPDATE_TIMEOUT`] until the followers have read the status, and
    /// the other clients with taps have queried the last report of their tap.
    fn finish(mut self, ended: &PathEnd) {
        // Connections and calls that are already queued are served first.
        self.accept_clients();
        let (counters, now) = (self.current_counters(), sys::clock::monotonic_ns());
        let lost = self.losses.sample(&counters, now);
        if let Some(registration) = &self.registration {
            if let Some(text) = lost {
                let event = PathEvent::Lost;
                registration.send_report(&PathReport { event, text, status: None });
            }
            let (text, status) = (ended.report.clone(), Some(ended.status));
            registration.send_report(&PathReport { event: PathEvent::Ended, text, status });
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            let readable = true;
            self.handle_client_event(
                id,
                WatchEvent { number: id, readable, writable: false, gone: false },
            );
        }
        let follow = self.clients.iter().filter(|(_, client)| client.schedule.is_some());
        let mut waiting: Vec<u64> = follow.map(|(id, _)| *id).collect();
        self.send_last_updates(&mut waiting, ended);
        self.finish_taps();
        let deadline = sys::clock::monotonic_ns() + FINAL_UPDATE_TIMEOUT.as_nanos() as u64;
        loop {
            self.send_last_updates(&mut waiting, ended);
            let unsent =
                self.clients.values().any(|client| client.connection.has_unsent_messages());
            let unreported = self.clients.values().any(AdmittedClient::may_ask_for_report);
            if waiting.is_empty() && !unsent && !unreported {
                return;
            }
            let now = sys::clock::monotonic_ns();
            if now >= deadline {
                return;
            }
            for event in self.watcher.wait(Some(Duration::from_nanos(deadline - now))) {
                match event.number {
                    WAKE_TOKEN => drop(self.shared.wake.clear()),
                    id if event.gone => self.drop_client(id),
                    id if event.writable => self.flush_replies(id),
                    id if self.clients.get(&id).is_some_and(AdmittedClient::may_ask_for_report) => {
                        self.handle_client_event(id, event);
                    }
                    id => self.drop_client(id),
                }
            }
        }
    }
}
