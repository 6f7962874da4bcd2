//! Acceptance of connections, within the quota of each user.

use super::client::{self, Client, DescriptorKind};
use super::event_loop::{FIRST_CLIENT_ID, Server};
use abi::access::Credentials;
use member::connection::Connection;
use member::faults;
use member::varlink::{Fault, Reply};
use std::os::fd::OwnedFd;
use sys::descriptor_closer::{self, ForeignDescriptor};
use sys::local_socket::{self, Framing};
use sys::watcher::EventInterest;

/// Maximum number of connections accepted per event.
const ACCEPTS_PER_EVENT: usize = 64;
const ROOT_UID: u32 = 0;
/// Number of connections reserved for root and the daemon's own user.
const RESERVED_CONNECTIONS: usize = 64;

/// The limit that a further connection would exceed: of a user or of the daemon. Contains the
/// maximum number of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionLimit {
    /// Maximum number of connections of the user, from the policy.
    PerUser(u64),
    /// Maximum number of connections of all users to the daemon.
    Total(usize),
}

impl ConnectionLimit {
    /// Returns the fault that the refused client receives.
    fn to_fault(self) -> Fault {
        match self {
            Self::PerUser(limit) => faults::quota_exceeded("connections", limit),
            Self::Total(_) => faults::refused("connection", &self.to_string()),
        }
    }
}

impl std::fmt::Display for ConnectionLimit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PerUser(limit) => {
                write!(out, "the user has {limit} connections, as many as the policy permits")
            }
            Self::Total(limit) => write!(
                out,
                "the daemon accepts {limit} connections of all users, of which \
                 {RESERVED_CONNECTIONS} are reserved for root and its own user, and the others are \
                 in use"
            ),
        }
    }
}

impl Server {
    /// Accepts up to [`ACCEPTS_PER_EVENT`] pending connections of the listening socket with index
    /// `socket`. Returns true if the kernel refuses to accept one, for example for lack of
    /// descriptors or memory.
    pub(super) fn accept_connections(&mut self, socket: u64) -> bool {
        for _ in 0..ACCEPTS_PER_EVENT {
            let place = usize::try_from(socket).ok().and_then(|place| self.sockets.get(place));
            let Some((listener, form)) = place else { return false };
            match local_socket::accept(listener) {
                Ok(Some(visitor)) => {
                    let form = *form;
                    // On an error, such as missing credentials of the peer, the connection is
                    // dropped.
                    let _ = self.admit_client(visitor, form);
                }
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        false
    }

    fn admit_client(&mut self, visitor: OwnedFd, form: Framing) -> sys::Result<()> {
        let visitor = ForeignDescriptor::from_peer_socket(visitor);
        // The user has sent descriptors whose closing takes long.
        if descriptor_closer::is_user_overloaded(visitor.uid()) {
            return local_socket::hang_up(&visitor);
        }
        let peer = sys::abstract_socket::peer_credentials(&visitor)?;
        let process = peer.process;
        let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        let mut connection = Connection::from_foreign(visitor, form);
        if self.exceeded_limit(who.uid).is_some() {
            self.disconnect_hung_up_clients(who.uid, 0);
        }
        if let Some(limit) = self.exceeded_limit(who.uid) {
            self.log_refused_connection((who.uid, process), limit);
            let reply = Reply::from(&limit.to_fault());
            // The peer may already have disconnected.
            let _ = connection.send(reply.to_bytes(), Vec::new());
            return Ok(());
        }
        self.add_client(connection, who, process)
    }

    fn add_client(
        &mut self,
        connection: Connection,
        who: Credentials,
        process: i32,
    ) -> sys::Result<()> {
        let id = self.next.max(FIRST_CLIENT_ID);
        self.next = id + 1;
        self.watcher.watch(
            &connection,
            client::encode_event_number(id, DescriptorKind::Connection),
            EventInterest::Read,
        )?;
        *self.per_user.entry(who.uid).or_default() += 1;
        self.clients.insert(id, Client::new(connection, who, process));
        Ok(())
    }

    /// Returns a socket through which other parts of this process pass connections to the server.
    /// The server serves them like accepted connections. A client on such a connection sees all
    /// paths, because it has root's rights, whichever user runs the daemon. Only one such socket
    /// exists at a time.
    pub fn open_internal_socket(&mut self) -> sys::Result<OwnedFd> {
        let (near, far) = sys::descriptor::socket_pair()?;
        let number = client::encode_event_number(
            client::internal_events::INTERNAL_SOCKET_EVENT,
            DescriptorKind::Listener,
        );
        self.watcher.watch(&near, number, EventInterest::Read)?;
        self.internal_socket = Some(near);
        Ok(far)
    }

    /// Accepts the connections that this process passes to itself. Closes the internal socket if
    /// its other end is closed, or if no message can be received.
    pub(super) fn accept_internal_connections(&mut self) {
        let Some(socket) = &self.internal_socket else { return };
        match sys::descriptor::try_receive(socket, &mut [0; 16]) {
            Ok(Some((1.., passed))) => {
                for visitor in passed {
                    let who = Credentials { uid: ROOT_UID, gid: ROOT_UID, groups: Vec::new() };
                    let connection = Connection::new(visitor, Framing::Packets);
                    // If the client cannot be watched, it is dropped, and its side of the
                    // connection reads end of file.
                    let _ = self.add_client(connection, who, 0);
                }
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                let _ = self.watcher.unwatch(socket);
                self.internal_socket = None;
            }
        }
    }

    /// Returns the limit that another connection of this user would exceed, or `None` if the user
    /// may open another connection.
    fn exceeded_limit(&self, uid: u32) -> Option<ConnectionLimit> {
        let used = self.per_user.get(&uid).copied().unwrap_or(0);
        let limit = self.policy.quota(uid).connections;
        if let Some(limit) = limit.filter(|limit| used >= *limit) {
            return Some(ConnectionLimit::PerUser(limit));
        }
        let own = uid == 0 || uid == sys::process::effective_ids().0;
        let reserved = if own { 0 } else { RESERVED_CONNECTIONS.min(self.clients_max / 2) };
        let is_full = self.clients.len() + reserved >= self.clients_max;
        is_full.then_some(ConnectionLimit::Total(self.clients_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn fault_of_a_full_daemon_names_the_limit_of_the_daemon() {
        let directory = std::env::temp_dir().join(format!("daemon-full-{}", std::process::id()));
        let mut server =
            Server::open(&directory, true, Policy::default(), &sys::rollback::NO_ROLLBACK_LOG)
                .unwrap();
        server.clients_max = 8;
        assert_eq!(server.exceeded_limit(ROOT_UID), None);
        server.clients_max = 0;
        let limit = server.exceeded_limit(ROOT_UID).unwrap();
        assert_eq!(limit, ConnectionLimit::Total(0));
        let message = faults::format_fault(&limit.to_fault());
        assert!(message.contains("the daemon accepts 0 connections of all users"), "{message}");
        drop(server);
        let _ = std::fs::remove_dir_all(&directory);
    }
}
