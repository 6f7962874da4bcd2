//! State of the server, its start, and the loop that dispatches events.

use super::client::internal_events::{COMPLETION_EVENT, INTERNAL_SOCKET_EVENT, STOP_EVENT};
use super::client::{self, Client, DescriptorKind};
use super::kernel::commands::AdoptedRequests;
use super::kernel::queue::KernelQueue;
use super::registry::Registry;
use super::store::{self, StoredDescriptors};
use super::watchdog::WatchdogNotifier;
use crate::directory::{Directory, DirectoryError};
use crate::ids::DbufIdRanges;
use crate::log::Log;
use crate::policy::Policy;
use member::daemon_directories::MACHINE_DIRECTORY;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sys::local_socket::{self, Framing};
use sys::rollback::{RollbackLog, StepResource};
use sys::watcher::{EpollWatcher, EventInterest, WatchEvent};

/// The daemon's server: its sockets, clients, registry and kernel queue.
#[derive(Debug)]
pub struct Server {
    pub(super) watcher: EpollWatcher,
    pub(super) sockets: Vec<(OwnedFd, Framing)>,
    /// Socket through which this process passes connections to itself, if it was opened.
    pub(super) internal_socket: Option<OwnedFd>,
    pub(super) place: Option<Directory>,
    pub(super) ids: DbufIdRanges,
    /// True if this process created the sockets, false if a service manager passed them.
    owns_sockets: bool,
    /// Rollback log for acquired resources; tests inject faults into its steps.
    pub(super) steps: RollbackLog,
    pub(super) policy: Policy,
    pub(super) log: Log,
    pub(super) registry: Registry,
    /// Queue of the thread that runs programs in the kernel for users.
    pub(super) kernel: KernelQueue,
    pub(super) clients: BTreeMap<u64, Client>,
    /// Number of connections of each user, by user id.
    pub(super) per_user: BTreeMap<u32, u64>,
    /// Numbers of the clients that are disconnected after the current batch of events.
    pub(super) pending_disconnects: Vec<u64>,
    pub(super) next: u64,
    pub(super) started: u64,
    pub(super) clients_max: usize,
    pub(super) notes: Vec<String>,
}

/// Number of the first client. Each further client gets the next number.
pub(super) const FIRST_CLIENT_ID: u64 = 16;
/// Maximum number of clients connected at the same time.
const CLIENTS_MAX: usize = 4096;
/// Pause before the next accept after the kernel ran out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

impl Server {
    /// Creates a server whose sockets are in a directory. If `open` is true, all users may connect.
    /// The server enters every resource that it acquires into the rollback log `steps`, at startup
    /// and whenever a path registers.
    pub fn open(
        directory: &Path,
        open: bool,
        policy: Policy,
        steps: &RollbackLog,
    ) -> Result<Self, DirectoryError> {
        Self::open_with_stored_objects(
            directory,
            open,
            policy,
            (steps, StoredDescriptors::default()),
        )
    }

    fn open_with_stored_objects(
        directory: &Path,
        open: bool,
        policy: Policy,
        (steps, kept): (&RollbackLog, StoredDescriptors),
    ) -> Result<Self, DirectoryError> {
        let place = Directory::acquire(directory, open, steps)?;
        let sockets = [Framing::Packets, Framing::Stream].map(|form| {
            let socket = place.listen(form, open, steps)?;
            Ok::<_, DirectoryError>((socket, form))
        });
        let sockets = sockets.into_iter().collect::<Result<Vec<_>, _>>();
        match sockets {
            Ok(sockets) => Self::new(place, (sockets, true), policy, (steps, kept)),
            Err(error) => {
                place.remove_contents(true);
                Err(error)
            }
        }
    }

    /// Creates a server from the descriptors that a service manager has passed: listening sockets,
    /// and the stored paths and kernel objects of the previous daemon, which the server adopts.
    /// Without passed sockets, the server listens in the directory.
    pub fn from_descriptors(
        directory: &Path,
        given: Vec<(String, OwnedFd)>,
        policy: Policy,
        steps: &RollbackLog,
    ) -> Result<Self, DirectoryError> {
        let mut kept = store::group_stored_descriptors(given);
        let sockets = std::mem::take(&mut kept.sockets);
        if sockets.is_empty() {
            return Self::open_with_stored_objects(directory, true, policy, (steps, kept));
        }
        let place = Directory::acquire(directory, true, steps)?;
        let with_form = |socket: OwnedFd| {
            let form = local_socket::framing(&socket)?;
            if form == Framing::Stream {
                sys::abstract_socket::refuse_descriptors(&socket)?;
            }
            // Sockets from a service manager may be blocking.
            let socket = UnixListener::from(socket);
            let refused = |error: std::io::Error| {
                sys::Error::new("ioctl", "a socket", error.raw_os_error().unwrap_or(0))
            };
            socket.set_nonblocking(true).map_err(refused)?;
            Ok((form, OwnedFd::from(socket)))
        };
        let sockets: sys::Result<Vec<_>> = sockets.into_iter().map(with_form).collect();
        let sockets = match sockets {
            Ok(sockets) => sockets.into_iter().map(|(form, socket)| (socket, form)).collect(),
            Err(error) => {
                place.remove_contents(false);
                return Err(error.into());
            }
        };
        Self::new(place, (sockets, false), policy, (steps, kept))
    }

    fn new(
        place: Directory,
        (sockets, own_sockets): (Vec<(OwnedFd, Framing)>, bool),
        policy: Policy,
        (steps, kept): (&RollbackLog, StoredDescriptors),
    ) -> Result<Self, DirectoryError> {
        let StoredDescriptors { paths, kernel_objects: kernel, kernel_clients: lines, .. } = kept;
        let begun = Self::run_start_steps(&sockets, &policy, (steps, kernel));
        let (watcher, kernel, running) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                place.remove_contents(own_sockets);
                return Err(error);
            }
        };
        steps.commit();
        let files = usize::try_from(sys::process::raise_descriptor_limit()).unwrap_or(usize::MAX);
        let AdoptedRequests { lines: running, notes } = running;
        let mut server = Self {
            watcher,
            sockets,
            ids: DbufIdRanges::new(place.path() == Path::new(MACHINE_DIRECTORY)),
            internal_socket: None,
            place: Some(place),
            owns_sockets: own_sockets,
            steps: steps.clone(),
            policy,
            log: Log::default(),
            registry: Registry::default(),
            kernel,
            clients: BTreeMap::new(),
            per_user: BTreeMap::new(),
            pending_disconnects: Vec::new(),
            next: FIRST_CLIENT_ID,
            started: wall_clock_seconds(),
            // A client that is a path uses three descriptors. The remaining descriptors are a
            // reserve.
            clients_max: (files.saturating_sub(64) / 4).clamp(8, CLIENTS_MAX),
            notes,
        };
        server.adopt_requests(lines, running);
        server.restore_paths(paths);
        Ok(server)
    }

    /// Runs the steps of the server's start that can fail: watching the listening sockets, and
    /// starting the kernel thread.
    fn run_start_steps(
        sockets: &[(OwnedFd, Framing)],
        policy: &Policy,
        (steps, kept): (&RollbackLog, Vec<(String, OwnedFd)>),
    ) -> Result<(EpollWatcher, KernelQueue, AdoptedRequests), DirectoryError> {
        steps.announce_creation(StepResource::Descriptor, "what watches descriptors")?;
        let watcher = EpollWatcher::new()?;
        for (number, (socket, _)) in (0..).zip(sockets) {
            watcher.watch(
                socket,
                client::encode_event_number(number, DescriptorKind::Listener),
                EventInterest::Read,
            )?;
        }
        steps.announce_creation(StepResource::Thread, "what runs lines in the kernel")?;
        let (kernel, running) = KernelQueue::start_and_adopt(policy, &watcher, (kept, steps))?;
        Ok((watcher, kernel, running))
    }

    /// Serves clients until `stop` becomes readable, and notifies the service manager's watchdog if
    /// there is one. Then removes all kernel requests, or leaves them to the next daemon.
    pub fn serve(&mut self, stop: BorrowedFd<'_>) -> sys::Result<()> {
        let stopped = client::encode_event_number(STOP_EVENT, DescriptorKind::Listener);
        self.watcher.watch(stop, stopped, EventInterest::Read)?;
        let mut watchdog = WatchdogNotifier::from_environment();
        let mut paused = false;
        loop {
            let pause = paused.then_some(ACCEPT_PAUSE);
            let report = watchdog.as_mut().map(WatchdogNotifier::send_if_due);
            paused = false;
            for event in self.watcher.wait(pause.into_iter().chain(report).min()) {
                if event.number == stopped {
                    self.end_requests();
                    return self.watcher.unwatch(stop);
                }
                paused |= self.handle_event(event);
            }
            if paused != pause.is_some() {
                self.set_listeners_watched(!paused);
            }
            self.disconnect_leaving_clients();
        }
    }

    /// Handles an event. Returns true if the server must pause accepting connections because
    /// resources are exhausted.
    fn handle_event(&mut self, event: WatchEvent) -> bool {
        let (id, part) = client::decode_event_number(event.number);
        match part {
            DescriptorKind::Listener if id == COMPLETION_EVENT => {
                self.handle_completions();
            }
            DescriptorKind::Listener if id == INTERNAL_SOCKET_EVENT => {
                self.accept_internal_connections()
            }
            DescriptorKind::Listener => return self.accept_connections(id),
            DescriptorKind::Process => self.pending_disconnects.push(id),
            DescriptorKind::Admissions => self.drain_admission_socket(id),
            DescriptorKind::Connection => self.handle_connection_event(id, event),
        }
        false
    }

    /// Starts watching the listening sockets if `listens` is true, and stops watching them
    /// otherwise.
    fn set_listeners_watched(&self, listens: bool) {
        for (number, (socket, _)) in (0..).zip(&self.sockets) {
            let number = client::encode_event_number(number, DescriptorKind::Listener);
            // A failure needs no handling, because the next pause tries again.
            let _ = match listens {
                true => self.watcher.watch(socket, number, EventInterest::Read),
                false => self.watcher.unwatch(socket),
            };
        }
    }

    /// Disconnects the clients in `pending_disconnects` and removes their paths and kernel
    /// requests. Logs and announces the end of the paths.
    fn disconnect_leaving_clients(&mut self) {
        while let Some(id) = self.pending_disconnects.pop() {
            let Some(mut client) = self.clients.remove(&id) else { continue };
            self.unwatch_client(&client);
            if let Some(used) = self.per_user.get_mut(&client.credentials.uid) {
                *used = used.saturating_sub(1);
                if *used == 0 {
                    self.per_user.remove(&client.credentials.uid);
                }
            }
            self.read_last_reports(&mut client);
            client.discard_connection(id);
            self.remove_request(id, client.request_state, client.credentials.uid);
            let gone = client.path.as_ref().and_then(|path| self.registry.remove(path.number));
            gone.iter().for_each(|entry| store::discard_stored_path(entry.number, None));
            let ended = client.path.as_mut().and_then(|path| path.ended.take());
            // Fails if the peer has already disconnected. Otherwise the peer sees the end at once,
            // even if a duplicate of the socket remains open.
            let _ = local_socket::hang_up(&client.connection);
            drop(client);
            if let Some(entry) = gone {
                self.log_path_end(&entry, ended);
                self.announce_path_event("went", &entry);
            }
        }
    }

    /// Disconnects all clients of a user that have hung up, except the client `asking`. Includes
    /// clients whose hangup has not been handled yet. Their share of the user's quota is then
    /// available to `asking`.
    pub(super) fn disconnect_hung_up_clients(&mut self, uid: u32, asking: u64) {
        let is_over = |client: &Client| {
            let path = client.path.as_ref();
            let process: Vec<_> = path.map(|path| path.process.as_fd()).into_iter().collect();
            let mut ends = vec![client.connection.as_fd()];
            ends.extend(path.map(|path| path.admissions.as_fd()));
            let (ended, gone) =
                sys::poll::wait_until_readable_or_hung_up(&process, &ends, Some(Duration::ZERO));
            ended.contains(&true) || gone.contains(&true)
        };
        let others = self.clients.iter().filter(|(id, client)| {
            client.credentials.uid == uid && **id != asking && is_over(client)
        });
        let over: Vec<u64> = others.map(|(id, _)| *id).collect();
        self.pending_disconnects.extend(over);
        self.disconnect_leaving_clients();
    }

    /// Stops watching all descriptors of a client. Closing them is not enough, because other
    /// processes may have duplicates.
    fn unwatch_client(&self, client: &Client) {
        let mut all = vec![client.connection.as_fd()];
        if let Some(path) = &client.path {
            all.extend([path.process.as_fd(), path.admissions.as_fd()]);
        }
        for descriptor in all {
            // An unwatched descriptor is not an error here.
            let _ = self.watcher.unwatch(descriptor);
        }
    }

    /// Returns the daemon's directory; always `Some` before the server is dropped.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.place.as_ref().map(Directory::path)
    }

    /// Returns the number of registered paths.
    #[must_use]
    pub fn path_count(&self) -> usize {
        self.registry.iter().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.ids.remove_file(place.descriptor());
            place.remove_contents(self.owns_sockets);
        }
    }
}

/// Returns the wall-clock time in seconds since 1970.
pub(super) fn wall_clock_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
