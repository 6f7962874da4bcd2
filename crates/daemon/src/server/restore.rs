//! Adoption of the paths that the previous daemon stored, and of the clients of its kernel
//! requests.

use super::client::{self, Client, DescriptorKind, PathProcess};
use super::event_loop::Server;
use super::kernel::commands::{AdoptedRequest, RequestState};
use super::registry::PathEntry;
use super::store::{KnownRequestState, StoredPath, discard_connection, discard_stored_path};
use abi::access::Credentials;
use member::connection::Connection;
use member::faults::{self, RETRY_CAUSE};
use member::varlink::Reply;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::abstract_socket::{self, PeerCredentials};
use sys::local_socket::{self, Framing};
use sys::watcher::EventInterest;

/// Message to a client whose change was interrupted by the end of the daemon.
const CHANGE_INTERRUPTED_MESSAGE: &str = "the daemon restarted before the change: the path runs as \
                           before, and \
                           can be changed now";
impl Server {
    /// Reunites each adopted kernel request with the stored connection of its client. A request
    /// without a stored connection is detached, and a stored connection without a request is
    /// closed. Calls that the previous daemon left unanswered are answered with the current state.
    pub(super) fn adopt_requests(
        &mut self,
        mut connections: BTreeMap<u64, (OwnedFd, KnownRequestState)>,
        running: Vec<AdoptedRequest>,
    ) {
        for AdoptedRequest { client: id, uid, ended } in running {
            self.next = self.next.max(id + 1);
            let kept = connections.remove(&id);
            let known = kept.as_ref().map(|(_, knows)| *knows);
            let client = kept.and_then(|(connection, knows)| {
                let peer = abstract_socket::peer_credentials(&connection)
                    .ok()
                    .filter(|peer| peer.uid == uid)?;
                let number = client::encode_event_number(id, DescriptorKind::Connection);
                self.watcher.watch(connection.as_fd(), number, EventInterest::Read).ok()?;
                Some((peer, connection, knows))
            });
            let Some((peer, connection, knows)) = client else {
                known.into_iter().for_each(|known| discard_connection(id, known));
                let line = if ended.is_some() { RequestState::None } else { RequestState::Running };
                self.remove_request(id, line, uid);
                continue;
            };
            let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
            *self.per_user.entry(uid).or_default() += 1;
            let connection = Connection::new(connection, Framing::Packets);
            let mut client = Client::new(connection, who, peer.process);
            (client.request_state, client.stored_state) = (RequestState::Running, Some(knows));
            self.clients.insert(id, client);
            match (ended, knows) {
                (Some(ended), _) => self.complete_detach(id, &ended, None),
                (None, KnownRequestState::Prepared) => self.complete_switch(id, Ok(())),
                (None, KnownRequestState::Running) => {}
                (None, KnownRequestState::Detaching) => self.queue_request_removal(id),
            }
        }
        for (id, (connection, knows)) in connections {
            discard_connection(id, knows);
            if knows == KnownRequestState::Prepared {
                let fault = faults::not_in_kernel(0, RETRY_CAUSE, CHANGE_INTERRUPTED_MESSAGE);
                // The client may have closed its end.
                let _ = local_socket::send_nonblocking(
                    &connection,
                    &Reply::from(&fault).to_bytes(),
                    &[],
                );
            }
            // A stored duplicate must not keep the client waiting. The peer may have disconnected.
            let _ = local_socket::hang_up(&connection);
        }
    }

    /// Restores paths that were registered with the previous daemon. Disconnects a path that cannot
    /// be restored, so that it registers again, and removes its stored descriptors.
    pub(super) fn restore_paths(&mut self, all: Vec<StoredPath>) {
        for kept in all {
            let number = kept.entry.number;
            if let Err(connection) = self.restore_path(kept) {
                discard_stored_path(number, Some(connection.as_fd()));
            }
        }
    }

    /// Restores one stored path. Fails with the path's connection if the path has ended, or if its
    /// stored descriptors or entry are unusable.
    fn restore_path(&mut self, stored: StoredPath) -> Result<(), OwnedFd> {
        let StoredPath { entry, connection, admissions } = stored;
        let (id, number) = (self.next, entry.number);
        let watched = self.watch_stored_path(id, entry, &connection, &admissions);
        let Some((peer, process)) = watched else { return Err(connection) };
        self.next = id + 1;
        let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        *self.per_user.entry(who.uid).or_default() += 1;
        let connection = Connection::new(connection, Framing::Packets);
        let mut client = Client::new(connection, who, peer.process);
        client.path = Some(PathProcess {
            number,
            process,
            admissions: Connection::new(admissions, Framing::Packets),
            ended: None,
        });
        self.clients.insert(id, client);
        Ok(())
    }

    /// Checks the descriptors of a stored path, watches them, and registers the path again. Returns
    /// the credentials of the peer of the path's connection, and the pidfd of the path's process.
    fn watch_stored_path(
        &mut self,
        id: u64,
        entry: PathEntry,
        connection: &OwnedFd,
        admissions: &OwnedFd,
    ) -> Option<(PeerCredentials, OwnedFd)> {
        let peer = abstract_socket::peer_credentials(connection).ok()?;
        let process = local_socket::open_peer_pidfd(connection).ok()?;
        if peer.uid != entry.uid || !sys::descriptor::is_seqpacket_socket(admissions) {
            return None;
        }
        let watched = [
            (connection.as_fd(), DescriptorKind::Connection),
            (process.as_fd(), DescriptorKind::Process),
            (admissions.as_fd(), DescriptorKind::Admissions),
        ];
        for (descriptor, part) in watched {
            self.watcher
                .watch(descriptor, client::encode_event_number(id, part), EventInterest::Read)
                .ok()?;
        }
        self.registry.restore(entry).then_some((peer, process))
    }
}
