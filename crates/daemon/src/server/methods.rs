//! Implementation of the methods of the interface `io.streamline`.

use super::client::{self, Client, DescriptorKind, PathProcess};
use super::event_loop::{Server, wall_clock_seconds};
use super::kernel::commands::{ProgramStatus, describe_ring};
use super::registry::PathEntry;
use super::store;
use crate::directory::{Directory, command_name};
use crate::log::EventKind;
use crate::policy::Visibility;
use engine::ids::IdRange;
use engine::kernel::shared_attach_point::{RequestStatus, SharingDomain};
use member::connection::Connection;
use member::daemon_directories::PACKET_SOCKET;
use member::faults;
use member::protocol::{
    AdmitParameters, Amount, ConnectParameters, ConnectReply, CountParameters, DaemonDescription,
    DbufIds, KernelProgram, KernelPrograms, KernelRequest, KernelStep, NoParameters, PathList,
    PathListEvent, PathNumber, Permissions, Quota, RegisterParameters, RegisteredPath,
    SetTapsParameters,
};
use member::varlink::{Call, Fault, REPLY_BYTES_MAX, interface};
use serde::Serialize;
use serde_json::Value;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::descriptor_closer::ForeignDescriptor;
use sys::local_socket::{self, Framing};
use sys::rollback::StepResource;
use sys::watcher::EventInterest;

/// The result of a call: replies with their descriptors.
#[derive(Debug)]
pub(super) struct CallReplies {
    pub(super) replies: Vec<(Value, Vec<OwnedFd>)>,
    /// True if more replies follow.
    pub(super) continues: bool,
}

/// Maximum length in bytes of a path in the reply to `List`, without the path's request. It covers
/// the name, the name of the log file, and the fields of fixed length.
const SERIALIZED_PATH_BYTES_MAX: usize = 4096 + 512;

impl CallReplies {
    pub(super) fn single(parameters: &impl Serialize) -> Self {
        Self::single_with_descriptors(parameters, Vec::new())
    }

    /// Returns no replies, for a call to which the kernel thread replies after the command.
    pub(super) const fn deferred() -> Self {
        Self { replies: Vec::new(), continues: true }
    }

    fn single_with_descriptors(parameters: &impl Serialize, descriptors: Vec<OwnedFd>) -> Self {
        let value = serde_json::to_value(parameters).unwrap_or_default();
        Self { replies: vec![(value, descriptors)], continues: false }
    }
}

impl Server {
    pub(super) fn call_method(
        &mut self,
        id: u64,
        call: &Call,
        descriptors: Vec<ForeignDescriptor>,
    ) -> Result<CallReplies, Fault> {
        let (named, method) = call.interface_and_method();
        if named == interface::SERVICE_INTERFACE.name {
            return interface::execute_service_call(call, interface::DAEMON_INTERFACE)
                .map(|value| CallReplies::single(&value));
        }
        if named != interface::DAEMON_INTERFACE.name {
            return Err(Fault::interface_not_found(named));
        }
        if call.upgrade {
            return Err(Fault::invalid_parameter("upgrade"));
        }
        let client = self.clients.get(&id).ok_or_else(Fault::permission_denied)?;
        match method {
            "About" => call
                .deserialize_parameters()
                .map(|NoParameters {}| CallReplies::single(&self.describe_daemon())),
            "DbufIds" => {
                let NoParameters {} = call.deserialize_parameters()?;
                let who = (client.credentials.uid, client.process);
                self.allocate_dbuf_ids(who)
            }
            "List" => call
                .deserialize_parameters()
                .and_then(|NoParameters {}| self.list_paths(client, call.more)),
            "Allowed" => call
                .deserialize_parameters()
                .map(|NoParameters {}| CallReplies::single(&self.user_permissions(client))),
            "Watch" if !call.more => Err(Fault::expected_more()),
            "Watch" => {
                call.deserialize_parameters().and_then(|NoParameters {}| self.watch_paths(id))
            }
            "Register" => {
                let wanted = call.deserialize_parameters()?;
                self.register_path(id, wanted, descriptors)
            }
            "Changed" => {
                call.deserialize_parameters().and_then(|change| self.replace_request(id, change))
            }
            "Report" => {
                call.deserialize_parameters().and_then(|report| self.handle_report(id, report))
            }
            "Attach" => {
                let asked = call.deserialize_parameters()?;
                self.attach(id, asked, call.more)
            }
            "Switch" => {
                call.deserialize_parameters().and_then(|NoParameters {}| self.queue_switch(id))
            }
            "Detach" => call.deserialize_parameters().and_then(|NoParameters {}| self.detach(id)),
            "Count" => {
                let CountParameters { number } = call.deserialize_parameters()?;
                self.queue_counter_report(id, number)
            }
            "SetTaps" => {
                let SetTapsParameters { open } = call.deserialize_parameters()?;
                self.set_taps(id, &open)
            }
            "Sharing" => call
                .deserialize_parameters()
                .and_then(|NoParameters {}| self.queue_program_report(id)),
            "Connect" => {
                let ConnectParameters { path } = call.deserialize_parameters()?;
                self.connect_path(id, &path)
            }
            _ => Err(Fault::method_not_found(&call.method)),
        }
    }

    /// Allocates a range of dbuf ids to a process of a user.
    fn allocate_dbuf_ids(&mut self, who: (u32, i32)) -> Result<CallReplies, Fault> {
        let directory = self.place.as_ref().map(Directory::descriptor);
        let range = directory.and_then(|directory| self.ids.allocate(directory, who));
        let IdRange { first, count } =
            range.ok_or_else(|| faults::quota_exceeded("dbuf ids", 0))?;
        Ok(CallReplies::single(&DbufIds { first, count }))
    }

    fn describe_daemon(&self) -> DaemonDescription {
        DaemonDescription {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            uid: sys::process::effective_ids().0,
            started: self.started,
            policy: self.policy.file.as_ref().map(|file| file.display().to_string()),
        }
    }

    /// Lists the visible paths. Splits the list into several replies if `more` is true; otherwise
    /// fails if the list does not fit into one reply.
    fn list_paths(&self, client: &Client, more: bool) -> Result<CallReplies, Fault> {
        let status = |entry: &PathEntry| entry.status(client.credentials.uid, &self.policy);
        let mut rest: Vec<RegisteredPath> = self.registry.iter().filter_map(status).collect();
        let long = |path: &RegisteredPath| {
            path.line.as_ref().map_or(0, String::len) + SERIALIZED_PATH_BYTES_MAX
        };
        if !more {
            let fits = rest.iter().map(long).sum::<usize>() < REPLY_BYTES_MAX;
            return if fits {
                Ok(CallReplies::single(&PathList { paths: rest }))
            } else {
                Err(Fault::expected_more())
            };
        }
        let mut replies = Vec::new();
        while !rest.is_empty() || replies.is_empty() {
            let mut bytes = 0;
            let fits = |path: &&RegisteredPath| {
                bytes += long(path);
                bytes < REPLY_BYTES_MAX
            };
            let many = rest.iter().take_while(fits).count().max(1);
            let deferred = rest.split_off(many.min(rest.len()));
            let paths = std::mem::replace(&mut rest, deferred);
            replies
                .push((serde_json::to_value(PathList { paths }).unwrap_or_default(), Vec::new()));
        }
        Ok(CallReplies { replies, continues: false })
    }

    fn user_permissions(&self, client: &Client) -> Permissions {
        let uid = client.credentials.uid;
        let used = Quota {
            paths: Some(self.registry.user_path_count(uid)),
            connections: self.per_user.get(&uid).copied(),
            ..self.kernel.user_usage(uid)
        };
        Permissions {
            everything: uid == 0,
            quota: self.policy.quota(uid),
            used,
            filters: self.policy.filters.clone(),
            interfaces: self.policy.observable_interfaces(&client.credentials),
            kernel: self.kernel.kernel_release.clone().ok(),
            closed: self.kernel.kernel_release.clone().err(),
        }
    }

    /// Describes the kernel programs, with the details that are visible to this user.
    pub(super) fn describe_programs(&self, uid: u32, statuses: &[ProgramStatus]) -> KernelPrograms {
        let free = self.policy.is_unrestricted(uid);
        let path_of = |process: i32| {
            let mut all = self.registry.iter();
            all.find(|entry| entry.process == process).map(|entry| entry.number)
        };
        let program = |program_status: &ProgramStatus| {
            let (status, (interface, netns, side)) =
                (&program_status.status, program_status.at.clone());
            let ours = |owner: u32| free || owner == uid;
            let known = |owner: u32| ours(owner) || self.policy.others_see != Visibility::Nothing;
            let line = |line: &RequestStatus| {
                let of_client = program_status.requests.get(&line.number);
                let ours = ours(line.owner);
                let process =
                    of_client.filter(|_| ours).and_then(|(process, _)| (*process).try_into().ok());
                KernelRequest {
                    path: of_client.and_then(|(process, _)| path_of(*process)),
                    uid: line.owner,
                    process,
                    command: process.and_then(command_name),
                    taken: ours.then_some(line.processed.blocks),
                    given: ours.then_some(Amount {
                        blocks: line.delivered.blocks,
                        bytes: line.delivered.bytes,
                    }),
                    lost: ours.then_some(line.lost),
                    kernel_ns: of_client.filter(|_| ours).map(|(_, ns)| *ns),
                }
            };
            let step = |(name, lines, blocks): &(String, usize, u64)| KernelStep {
                name: name.clone(),
                lines: *lines,
                blocks: *blocks,
            };
            let mut steps: Vec<KernelStep> = Vec::new();
            if free {
                steps.extend(status.steps.iter().map(step));
            }
            for line in status.requests.iter().filter(|line| !free && line.owner == uid) {
                for step in line.steps.iter().map(step) {
                    if !steps.contains(&step) {
                        steps.push(step);
                    }
                }
            }
            let rings = status.rings.iter();
            let sees_all = free || self.policy.others_see != Visibility::Nothing;
            let rings = rings.filter(|(whose, ..)| match whose {
                SharingDomain::User(owner) => known(*owner),
                SharingDomain::Group(_) | SharingDomain::World => sees_all,
            });
            KernelProgram {
                interface,
                netns,
                side: side.to_owned(),
                program: status.program,
                replaced: status.replaced,
                frames: status.frames,
                lines: status.requests.iter().filter(|line| known(line.owner)).map(line).collect(),
                steps,
                rings: rings.map(describe_ring).collect(),
            }
        };
        let programs = statuses.iter().map(program);
        // A program that runs only invisible requests is itself invisible.
        KernelPrograms {
            programs: programs.filter(|program| free || !program.lines.is_empty()).collect(),
        }
    }

    fn watch_paths(&mut self, id: u64) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        client.watches = true;
        let uid = client.credentials.uid;
        let status = self.registry.iter().filter_map(|entry| entry.status(uid, &self.policy));
        let event = |path| PathListEvent { event: "present".to_owned(), path };
        let value = |event| serde_json::to_value(event).unwrap_or_default();
        let replies = status.map(|path| (value(event(path)), Vec::new())).collect();
        Ok(CallReplies { replies, continues: true })
    }

    fn register_path(
        &mut self,
        id: u64,
        wanted: RegisterParameters,
        descriptors: Vec<ForeignDescriptor>,
    ) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        if client.path.is_some() {
            return Err(faults::refused("path", "this connection has already registered a path"));
        }
        let untaken = |error: sys::Error| faults::refused("path", &error.to_string());
        self.steps
            .announce_creation(StepResource::Descriptor, "the process of a path")
            .map_err(untaken)?;
        let admissions = extract_admission_socket(client, descriptors)?;
        let gone = |_| faults::refused("process", "it has ended");
        let process = local_socket::open_peer_pidfd(client.connection.as_fd()).map_err(gone)?;
        let who = (client.credentials.uid, client.process);
        let entry = self.add_path(id, who, wanted)?;
        let number = entry.number;
        if let Err(error) = self.steps.announce_creation(StepResource::Entry, "a path") {
            self.registry.remove(number);
            return Err(untaken(error));
        }
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        let watched = [
            (process.as_fd(), DescriptorKind::Process),
            (admissions.as_fd(), DescriptorKind::Admissions),
        ];
        for (descriptor, part) in watched {
            if self
                .watcher
                .watch(descriptor, client::encode_event_number(id, part), EventInterest::Read)
                .is_err()
            {
                self.registry.remove(number);
                return Err(faults::refused("path", "the daemon cannot watch the process"));
            }
        }
        store::store_path(&entry, client.connection.as_fd(), admissions.as_fd());
        client.path = Some(PathProcess { number, process, admissions, ended: None });
        self.steps.announce_step("a path is registered");
        self.log_path_event(EventKind::PathStarted, &entry, "started");
        self.announce_path_event("came", &entry);
        Ok(CallReplies::single(&PathNumber { number }))
    }

    /// Adds a path to the registry. If this fails, disconnects the clients of the user that have
    /// already hung up, which removes their paths, and tries again.
    fn add_path(
        &mut self,
        id: u64,
        who: (u32, i32),
        wanted: RegisterParameters,
    ) -> Result<PathEntry, Fault> {
        let paths_max = self.policy.quota(who.0).paths;
        let entered =
            self.registry.add(who, wanted.clone(), paths_max, wall_clock_seconds()).cloned();
        entered.or_else(|_| {
            self.disconnect_hung_up_clients(who.0, id);
            self.registry.add(who, wanted, paths_max, wall_clock_seconds()).cloned()
        })
    }

    fn connect_path(&mut self, id: u64, wanted: &str) -> Result<CallReplies, Fault> {
        let client = self.clients.get(&id).ok_or_else(Fault::permission_denied)?;
        if client.connection.framing() != Framing::Packets {
            return Err(faults::needs_descriptors(PACKET_SOCKET));
        }
        let uid = client.credentials.uid;
        let entry = self.registry.find(wanted, uid, &self.policy)?;
        if !entry.permits_connection(uid) {
            return Err(faults::not_yours(wanted, entry.uid));
        }
        let connected = ConnectReply { number: entry.number, uid: entry.uid };
        let number = entry.number;
        let of_path =
            |client: &&mut Client| client.path.as_ref().is_some_and(|path| path.number == number);
        let worker = self.clients.values_mut().find(of_path);
        let worker = worker.and_then(|client| client.path.as_mut());
        // A process that has closed its admission socket is about to exit.
        let gone = || faults::no_such_path(wanted);
        let worker = worker.ok_or_else(gone)?;
        // Until the previous connection has been sent, the process is considered busy.
        worker.admissions.flush().map_err(|_| gone())?;
        if worker.admissions.has_unsent_messages() {
            return Err(faults::busy(wanted));
        }
        let busy = |_| faults::busy(wanted);
        let (near, far) = sys::descriptor::socket_pair().map_err(busy)?;
        let process = worker.process.try_clone().map_err(|_| faults::busy(wanted))?;
        let admit = Call {
            oneway: true,
            ..Call::new("io.streamline.path.Admit", &AdmitParameters { uid })
        };
        // Failures other than a hangup, such as a lack of memory, leave the path registered.
        let sent = worker.admissions.send(admit.to_bytes(), vec![far]);
        match sent {
            Err(_) if local_socket::is_peer_gone(&worker.admissions) => Err(gone()),
            Ok(()) if !worker.admissions.has_unsent_messages() => {
                Ok(CallReplies::single_with_descriptors(&connected, vec![near, process]))
            }
            _ => Err(faults::busy(wanted)),
        }
    }
}

/// Extracts the descriptor of a registration: the socket over which the path's process accepts
/// connections. Fails unless the client is connected through a packet socket, and there is exactly
/// one descriptor, which is also a packet socket.
fn extract_admission_socket(
    client: &Client,
    descriptors: Vec<ForeignDescriptor>,
) -> Result<Connection, Fault> {
    if client.connection.framing() != Framing::Packets {
        return Err(faults::needs_descriptors(PACKET_SOCKET));
    }
    let mut descriptors = descriptors.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(one), None) if sys::descriptor::is_seqpacket_socket(&one) => {
            Ok(Connection::from_foreign(one, Framing::Packets))
        }
        _ => Err(faults::refused(
            "descriptor",
            "a path must be registered with one end of a SOCK_SEQPACKET socket pair",
        )),
    }
}
