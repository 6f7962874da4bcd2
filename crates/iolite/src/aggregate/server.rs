//! The grant server: a thread that grants a process's pools to clients, over one socket per client.
//! [SL §5.3.1, "buffer fault"], [IOL §2.2], RELIABILITY T8, T10
//!
//! ```text
//! owner's process                                  other process
//! GrantServer    ──── a socket, passed to the peer ─────  Client
//!   Creator   ←  request for dbuf 7                  Window   a pointer into dbuf 7 was received
//!             →  its descriptor, or a refusal                 by any means: it is mapped now
//!   Holders   ←  slice released
//!             ←  hang-up                             a departed client holds nothing
//! ```
//!
//! A client that sends a malformed message or does not read its replies is treated as if it had
//! exited. The thread never blocks on a single socket, and handles one message per client in turn.
//! Pointers do not pass through the server; they are sent in rings.

use super::holders::PeerId;
use super::owner::{MemoryKind, MemoryOwner as _, PoolOwner};
use super::refusal::GrantRefusal;
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use sys::doorbell::SocketDoorbell;
use sys::{descriptor, poll};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod client;

pub use client::{Client, ResolveError};

/// The owner's end of a grant server: a thread that replies to requests.
#[derive(Debug)]
pub struct GrantServer {
    state: Arc<Mutex<ServerState>>,
    returned: Arc<Condvar>,
    doorbell: SocketDoorbell,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerState {
    creator: PoolOwner,
    clients: Vec<(PeerId, Arc<OwnedFd>)>,
    is_closing: bool,
    /// Number of slices released and clients departed so far. After each of these events, a sender
    /// may find that its reader holds fewer segments than the limit permits.
    return_count: u64,
}

impl GrantServer {
    /// Starts a grant server for the memory of this owner. Fails if no thread or socket can be
    /// created.
    pub fn start(creator: PoolOwner) -> sys::Result<Self> {
        let state =
            ServerState { creator, clients: Vec::new(), is_closing: false, return_count: 0 };
        let state = Arc::new(Mutex::new(state));
        let (doorbell, other) = SocketDoorbell::pair()?;
        let (shared, returned) = (state.clone(), Arc::new(Condvar::new()));
        let served = returned.clone();
        let thread = thread::Builder::new().name("owner".to_owned());
        let thread = thread
            .spawn(move || serve_clients(&shared, &served, &other))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { state, returned, doorbell, thread: Some(thread) })
    }

    /// Adds a client with these credentials. Returns its id, and the socket to pass to that process
    /// only.
    pub fn add_client(&self, credentials: Credentials) -> sys::Result<(PeerId, OwnedFd)> {
        let (local, remote) = descriptor::socket_pair()?;
        let local = UnixStream::from(local);
        local
            .set_nonblocking(true)
            .map_err(|e| sys::Error::new("ioctl", "FIONBIO", e.raw_os_error().unwrap_or(0)))?;
        let mut state = lock_state(&self.state);
        let peer = state.creator.holders_mut().add_peer(credentials);
        state.clients.push((peer, Arc::new(local.into())));
        drop(state);
        self.doorbell.notify();
        Ok((peer, remote))
    }

    /// Sends a client the grant of a dbuf that the client has not requested, so that the client can
    /// use the dbuf even after this process has exited. Never blocks. Returns false if the grant
    /// was not sent; the client then requests the dbuf at its first use.
    pub(crate) fn send_grant(&self, peer: PeerId, dbuf: DbufId) -> bool {
        let mut state = lock_state(&self.state);
        let socket =
            state.clients.iter().find(|(of, _)| *of == peer).map(|(_, socket)| socket.clone());
        let Some((socket, grant)) = socket.zip(state.creator.grant(dbuf, peer).ok()) else {
            return false;
        };
        let kind = match grant.kind() {
            MemoryKind::Memory => REPLY_GRANTED,
            MemoryKind::File => REPLY_GRANTED_FILE,
        };
        let message = Message::new(kind, dbuf, [0; 2]);
        descriptor::send(socket, message.as_bytes(), &[grant.descriptor()]).is_ok()
    }

    /// Calls `work` with the owner of the pools, so that the caller can share pools or lend
    /// aggregates. Requests of clients are not handled until `work` returns. `work` must not call
    /// this server.
    pub fn with_owner<T>(&self, work: impl FnOnce(&mut PoolOwner) -> T) -> T {
        work(&mut lock_state(&self.state).creator)
    }

    /// Returns the number of slices released so far, plus the number of departed clients.
    #[must_use]
    pub fn release_and_departure_count(&self) -> u64 {
        lock_state(&self.state).return_count
    }

    /// Blocks as long as [`GrantServer::release_and_departure_count`] equals `known`, that is,
    /// until a slice is released or a client departs.
    pub fn wait_for_release_or_departure(&self, known: u64) {
        let mut state = lock_state(&self.state);
        while state.return_count == known {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Evicts a client and releases everything held for it. The client's mappings stay, and will
    /// expose later data in the same pools (T11). Returns false if the client has departed already.
    pub fn evict(&self, peer: PeerId) -> bool {
        let known = lock_state(&self.state).remove_client(peer);
        self.returned.notify_all();
        self.doorbell.notify();
        known
    }
}

impl Drop for GrantServer {
    fn drop(&mut self) {
        lock_state(&self.state).is_closing = true;
        self.doorbell.notify();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread cannot be reported from here.
            let _ended = thread.join();
        }
    }
}

impl ServerState {
    fn remove_client(&mut self, peer: PeerId) -> bool {
        self.return_count += 1;
        self.clients.retain(|(id, _)| *id != peer);
        self.creator.holders_mut().remove(peer).is_some()
    }
}

fn lock_state(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve_clients(state: &Mutex<ServerState>, returned: &Condvar, doorbell: &SocketDoorbell) {
    loop {
        let clients = {
            let state = lock_state(state);
            if state.is_closing {
                return;
            }
            state.clients.clone()
        };
        let sockets = clients.iter().map(|(_, socket)| socket.as_fd());
        let all: Vec<_> = std::iter::once(doorbell.as_fd()).chain(sockets).collect();
        let ready = poll::wait_until_readable(&all, None);
        doorbell.clear();
        for ((peer, socket), _) in clients.iter().zip(ready.iter().skip(1)).filter(|(_, r)| **r) {
            if !handle_message(state, returned, *peer, socket) {
                lock_state(state).remove_client(*peer);
                returned.notify_all();
            }
        }
    }
}

/// Handles one message from a client. Returns false if the client has departed or violates the
/// protocol.
fn handle_message(
    state: &Mutex<ServerState>,
    returned: &Condvar,
    peer: PeerId,
    socket: &OwnedFd,
) -> bool {
    let mut bytes = [0; Message::SIZE + 1];
    let length = match descriptor::receive(socket, &mut bytes) {
        // Descriptors sent along are closed here.
        Ok((length, _)) => length,
        Err(error) => return [EAGAIN, EINTR].contains(&error.errno),
    };
    let Some(message) = bytes.get(..length).and_then(|b| Message::read_from_bytes(b).ok()) else {
        return false;
    };
    match message.kind {
        RELEASE_SLICE => {
            let pointer = RichPointer::from_words(message.words);
            let mut state = lock_state(state);
            if state.creator.holders_mut().release(peer, pointer) {
                state.return_count += 1;
                returned.notify_all();
            }
            true
        }
        REQUEST_GRANT => {
            let Some(dbuf) = DbufId::new(message.dbuf) else { return false };
            let granted = lock_state(state).creator.grant(dbuf, peer);
            let (message, grant) = match &granted {
                Ok(grant) => {
                    let kind = if grant.kind() == MemoryKind::File {
                        REPLY_GRANTED_FILE
                    } else {
                        REPLY_GRANTED
                    };
                    (Message::new(kind, dbuf, [0; 2]), Some(grant.descriptor()))
                }
                Err(refusal) => (Message::new(REPLY_REFUSED, dbuf, encode_refusal(refusal)), None),
            };
            // Fails instead of blocking if the client does not read.
            descriptor::send(socket, message.as_bytes(), grant.as_slice()).is_ok()
        }
        _ => false,
    }
}

/// A message between client and grant server, in either direction.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    kind: u32,
    dbuf: u32,
    /// Data of the message. Depending on the kind, this is a rich pointer or the encoded reason for
    /// a refusal.
    words: [u64; 2],
}

/// Message kind: a client requests a grant of a dbuf.
const REQUEST_GRANT: u32 = 1;
/// Message kind: a client releases a slice.
const RELEASE_SLICE: u32 = 2;
/// Message kind: a reply with the descriptor of a dbuf.
const REPLY_GRANTED: u32 = 3;
/// Message kind: a reply that refuses the grant of a dbuf.
const REPLY_REFUSED: u32 = 4;
/// Message kind: a reply with the descriptor of a dbuf that is a file.
const REPLY_GRANTED_FILE: u32 = 5;

const REASON_UNKNOWN_DBUF: u64 = 1;
const REASON_FORBIDDEN: u64 = 2;
const REASON_SYSTEM: u64 = 3;

/// EAGAIN: the socket has no message to receive, or no room to send one.
const EAGAIN: i32 = 11;
const EINTR: i32 = 4;

impl Message {
    const SIZE: usize = size_of::<Self>();

    const fn new(kind: u32, dbuf: DbufId, words: [u64; 2]) -> Self {
        Self { kind, dbuf: dbuf.number(), words }
    }
}

/// Encodes a refusal for a client. A reason that concerns only the owner is encoded as an unknown
/// dbuf.
fn encode_refusal(refusal: &GrantRefusal) -> [u64; 2] {
    match refusal {
        GrantRefusal::Forbidden { uid, .. } => [REASON_FORBIDDEN, u64::from(*uid)],
        GrantRefusal::System(error) => [REASON_SYSTEM, u64::from(error.errno.unsigned_abs())],
        _ => [REASON_UNKNOWN_DBUF, 0],
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
