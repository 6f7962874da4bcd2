//! Connected clients, and the numbers by which the event loop identifies their descriptors.

use super::kernel::commands::RequestState;
use super::store::{KnownRequestState, ServiceManagerStore, discard_connection};
use abi::access::Credentials;
use engine::kernel::shared_attach_point::DescriptorKeeper as _;
use member::connection::Connection;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::descriptor_closer::ForeignDescriptor;
use sys::service;

/// A connected client of the daemon, with its path and its kernel request.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Connection,
    /// Credentials of the client when it connected.
    pub(super) credentials: Credentials,
    /// Process id of the client when it connected, or 0 for a connection that this process passed
    /// to itself. Process ids may be reused, so no right depends on this one.
    pub(super) process: i32,
    /// True if the client requested notifications of registered, changed and removed paths.
    pub(super) watches: bool,
    /// The path that the client has registered, if any.
    pub(super) path: Option<PathProcess>,
    /// State of the client's request in the kernel, if any.
    pub(super) request_state: RequestState,
    /// State of the client's kernel request under which the service manager stores the client's
    /// connection; the stored name encodes this state. `None` if the connection is not stored.
    pub(super) stored_state: Option<KnownRequestState>,
    /// True while the kernel thread has not yet reported the kernel programs for this client.
    pub(super) waits_for_programs: bool,
    /// True while the kernel thread has not yet reported the counters of the client's request.
    pub(super) waits_for_counters: bool,
    /// Messages that have arrived while the client waits for the kernel thread. The server handles
    /// them after the thread has attached or switched the client's request, or has reported the
    /// programs.
    pub(super) deferred: VecDeque<(Vec<u8>, Vec<ForeignDescriptor>)>,
}

/// The process of a registered path, with the daemon's socket to it.
#[derive(Debug)]
pub(super) struct PathProcess {
    pub(super) number: u32,
    /// Pidfd of the process; readable after the process has exited.
    pub(super) process: OwnedFd,
    /// Socket that passes connections of admitted clients to the process.
    pub(super) admissions: Connection,
    /// Exit status and final report of the path, if it has reported its end.
    pub(super) ended: Option<(u8, String)>,
}

/// The kind of a descriptor, as encoded in event numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DescriptorKind {
    Connection = 0,
    Process = 1,
    Admissions = 2,
    /// A listening or internal descriptor that belongs to no client.
    Listener = 3,
}

/// Event numbers of descriptors that belong to no client and are not listening sockets; their kind
/// is [`Listener`](DescriptorKind::Listener). The numbers are large, because the listening sockets
/// have the numbers from 0 on, and a service manager may pass any number of them.
pub(super) mod internal_events {
    const FIRST_INTERNAL_EVENT: u64 = 1 << 32;
    /// Event number of the stop descriptor.
    pub(in crate::server) const STOP_EVENT: u64 = FIRST_INTERNAL_EVENT;
    /// Event number of the doorbell that the kernel thread notifies after each completion.
    pub(in crate::server) const COMPLETION_EVENT: u64 = FIRST_INTERNAL_EVENT + 1;
    /// Event number of the socket through which this process passes connections to itself.
    pub(in crate::server) const INTERNAL_SOCKET_EVENT: u64 = FIRST_INTERNAL_EVENT + 2;
}

/// Encodes the event number of a client's descriptor from the client's number and the kind of the
/// descriptor.
pub(super) const fn encode_event_number(id: u64, part: DescriptorKind) -> u64 {
    id << 2 | part as u64
}

/// Decodes an event number into the client number and the kind of descriptor.
pub(super) const fn decode_event_number(number: u64) -> (u64, DescriptorKind) {
    let part = match number & 3 {
        0 => DescriptorKind::Connection,
        1 => DescriptorKind::Process,
        2 => DescriptorKind::Admissions,
        _ => DescriptorKind::Listener,
    };
    (number >> 2, part)
}

impl Client {
    pub(super) fn new(connection: Connection, who: Credentials, process: i32) -> Self {
        Self {
            connection,
            credentials: who,
            process,
            watches: false,
            path: None,
            request_state: RequestState::None,
            stored_state: None,
            waits_for_programs: false,
            waits_for_counters: false,
            deferred: VecDeque::new(),
        }
    }

    pub(super) fn is_waiting_for_kernel(&self) -> bool {
        let asked = matches!(
            self.request_state,
            RequestState::Requested | RequestState::ReplacementRequested | RequestState::Switching
        );
        self.waits_for_programs || asked
    }
}

impl Client {
    /// Stores the connection of client number `id` with the service manager, under a name that
    /// contains the state `knows`.
    pub(super) fn store_connection(&mut self, id: u64, knows: KnownRequestState) {
        if !service::can_store_descriptors() || self.stored_state == Some(knows) {
            return;
        }
        ServiceManagerStore.store(&format!("{}{id}", knows.name()), self.connection.as_fd());
        // The new name is stored before the old one is removed, so that at least one is stored at
        // any time.
        if let Some(before) = self.stored_state.replace(knows) {
            discard_connection(id, before);
        }
    }

    /// Removes the connection of client number `id` from the store of the service manager.
    pub(super) fn discard_connection(&mut self, id: u64) {
        self.stored_state.take().into_iter().for_each(|known| discard_connection(id, known));
    }
}
