//! An owner that other processes can ask: a thread of the process that made the pools, and a socket
//! for each peer. [SL §5.3.1, "buffer fault"], [IOL §2.2], RELIABILITY T8, T10
//!
//! ```text
//! here                                             there
//! GrantServer    ──── a socket, which is handed over ───  Client
//!   Creator   ←  may I have dbuf 7?                  Window   a pointer into dbuf 7 came, by
//!             →  its descriptor, or why not                   whatever way: it is mapped now
//!   Holders   ←  I need this slice no longer
//!             ←  (hung up)                           whoever is gone keeps nothing
//! ```
//!
//! A client that sends what is no message, or does not read its answers, is evicted, as if it had
//! gone. The thread waits for nobody: it never blocks on a socket, and takes one message of each
//! client in turn. Pointers do not pass here; they travel in rings.

use super::holders::PeerId;
use super::owner::{Creator, Grant, MemoryKind, Owner as _, Window};
use super::refusal::GrantRefusal;
use super::{Aggregate, AllocationPool, Error};
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use buffer::Fault;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use sys::doorbell::SocketDoorbell;
use sys::{descriptor, poll};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The owner's end: a thread that answers.
#[derive(Debug)]
pub struct GrantServer {
    state: Arc<Mutex<ServerState>>,
    returned: Arc<Condvar>,
    doorbell: SocketDoorbell,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerState {
    creator: Creator,
    clients: Vec<(PeerId, Arc<OwnedFd>)>,
    is_closing: bool,
    /// Count of returned aggregates and departed clients.
    returns: u64,
}

impl GrantServer {
    /// Opens a grant server for what this owner has.
    pub fn open(creator: Creator) -> sys::Result<Self> {
        let state = ServerState { creator, clients: Vec::new(), is_closing: false, returns: 0 };
        let state = Arc::new(Mutex::new(state));
        let (doorbell, other) = SocketDoorbell::pair()?;
        let (shared, returned) = (state.clone(), Arc::new(Condvar::new()));
        let served = returned.clone();
        let thread = thread::Builder::new().name("owner".to_owned());
        let thread = thread
            .spawn(move || serve(&shared, &served, &other))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { state, returned, doorbell, thread: Some(thread) })
    }

    /// A client with these credentials, and the socket by which it asks: to be handed to that
    /// process and to no other.
    pub fn introduce(&self, credentials: Credentials) -> sys::Result<(PeerId, OwnedFd)> {
        let (here, there) = descriptor::pair()?;
        let here = UnixStream::from(here);
        here.set_nonblocking(true)
            .map_err(|e| sys::Error::new("ioctl", "FIONBIO", e.raw_os_error().unwrap_or(0)))?;
        let mut state = lock(&self.state);
        let peer = state.creator.holders_mut().join(credentials);
        state.clients.push((peer, Arc::new(here.into())));
        drop(state);
        self.doorbell.notify();
        Ok((peer, there))
    }

    /// Runs `work` on the owner, to share pools and lend aggregates. Clients are answered after
    /// `work` has returned; it must not call this grant server.
    pub fn owner<T>(&self, work: impl FnOnce(&mut Creator) -> T) -> T {
        work(&mut lock(&self.state).creator)
    }

    /// Returns the count of returned aggregates and departed clients.
    #[must_use]
    pub fn returns(&self) -> u64 {
        lock(&self.state).returns
    }

    /// Waits until something has come back since [`GrantServer::returns`] has answered `seen`.
    pub fn wait_for_returns(&self, seen: u64) {
        let mut state = lock(&self.state);
        while state.returns == seen {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Shows a client out: all that it kept is given back. Its mapping stays, and will show later
    /// data of the same pools (T11). `false`: it is gone already.
    pub fn show_out(&self, peer: PeerId) -> bool {
        let known = lock(&self.state).leave(peer);
        self.returned.notify_all();
        self.doorbell.notify();
        known
    }
}

impl Drop for GrantServer {
    fn drop(&mut self) {
        lock(&self.state).is_closing = true;
        self.doorbell.notify();
        if let Some(thread) = self.thread.take() {
            // It ends by itself; if it has panicked there is nobody to tell here.
            let _ended = thread.join();
        }
    }
}

impl ServerState {
    fn leave(&mut self, peer: PeerId) -> bool {
        self.returns += 1;
        self.clients.retain(|(id, _)| *id != peer);
        self.creator.holders_mut().gone(peer).is_some()
    }
}

fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(state: &Mutex<ServerState>, returned: &Condvar, doorbell: &SocketDoorbell) {
    loop {
        let clients = {
            let state = lock(state);
            if state.is_closing {
                return;
            }
            state.clients.clone()
        };
        let sockets = clients.iter().map(|(_, socket)| socket.as_fd());
        let all: Vec<_> = std::iter::once(doorbell.as_fd()).chain(sockets).collect();
        let ready = poll::readable(&all, None);
        doorbell.clear();
        for ((peer, socket), _) in clients.iter().zip(ready.iter().skip(1)).filter(|(_, r)| **r) {
            if !answer(state, returned, *peer, socket) {
                lock(state).leave(*peer);
                returned.notify_all();
            }
        }
    }
}

/// Takes one message. `false`: the client is gone, or no client of ours.
fn answer(state: &Mutex<ServerState>, returned: &Condvar, peer: PeerId, socket: &OwnedFd) -> bool {
    let mut bytes = [0; Message::SIZE + 1];
    let length = match descriptor::receive(socket, &mut bytes) {
        // What it sent along is closed here.
        Ok((length, _)) => length,
        Err(error) => return [AGAIN, INTERRUPTED].contains(&error.errno),
    };
    let Some(message) = bytes.get(..length).and_then(|b| Message::read_from_bytes(b).ok()) else {
        return false;
    };
    match message.kind {
        BACK => {
            let pointer = RichPointer::from_words(message.words);
            let mut state = lock(state);
            if state.creator.holders_mut().give_back(peer, pointer) {
                state.returns += 1;
                returned.notify_all();
            }
            true
        }
        GRANT => {
            let Some(dbuf) = DbufId::new(message.dbuf) else { return false };
            let granted = lock(state).creator.grant(dbuf, peer);
            let (message, grant) = match &granted {
                Ok(grant) => {
                    let kind =
                        if grant.kind() == MemoryKind::File { GRANTED_FILE } else { GRANTED };
                    (Message::new(kind, dbuf, [0; 2]), Some(grant.descriptor()))
                }
                Err(refusal) => (Message::new(REFUSED, dbuf, refusal_words(refusal)), None),
            };
            // Nobody waits for a client that does not read.
            descriptor::send(socket, message.as_bytes(), grant.as_slice()).is_ok()
        }
        _ => false,
    }
}

/// A peer's end: what was mapped, and whom to ask for more.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    window: Window,
}

impl Client {
    /// Makes a client of the socket that an owner handed over.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket, window: Window::new() }
    }

    /// Copies the bytes that a pointer names into `out`, which must be as long as the view. If the
    /// pointer leads to a pool that is not mapped here, the owner is asked for it first: once for
    /// each pool (a *buffer fault*).
    pub fn copy(&mut self, pointer: RichPointer, out: &mut [u8]) -> Result<(), Unreadable> {
        match self.window.copy(pointer, out) {
            Err(Fault::UnknownDbuf(dbuf)) => {
                self.map(dbuf)?;
                Ok(self.window.copy(pointer, out)?)
            }
            done => Ok(done?),
        }
    }

    /// Copies what these pointers name into a pool of our own, as one aggregate
    /// ([`Window::receive`]); maps what is not mapped yet.
    pub fn receive(
        &mut self,
        pointers: &[RichPointer],
        pool: &mut AllocationPool,
    ) -> Result<Aggregate, Unreadable> {
        for pointer in pointers.iter().filter(|pointer| !pointer.is_hole()) {
            if !self.window.has(pointer.dbuf()) {
                self.map(pointer.dbuf())?;
            }
        }
        Ok(self.window.receive(pointers, pool)?)
    }

    /// Tells the owner that a slice is needed no longer: the pointer as it came.
    pub fn give_back(&self, pointer: RichPointer) -> Result<(), GrantRefusal> {
        let message = Message::new(BACK, pointer.dbuf(), pointer.words());
        descriptor::send(&self.socket, message.as_bytes(), &[]).map_err(|_| GrantRefusal::Abandoned)
    }

    /// Returns the user and group of the server's process, as the kernel reports them.
    pub(crate) fn owner(&self) -> sys::Result<(u32, u32)> {
        descriptor::peer_identity(&self.socket)
    }

    /// As [`Client::ask`], of an owner that may have stopped: who has not answered in time counts
    /// as gone, and must not be asked again.
    pub(crate) fn ask_within(
        &mut self,
        dbuf: DbufId,
        limit: Duration,
    ) -> Result<Grant, GrantRefusal> {
        self.question(dbuf)?;
        match poll::readable_within(&[self.socket.as_fd()], Some(limit)).as_slice() {
            [true] => self.answer(dbuf),
            _ => Err(GrantRefusal::Abandoned),
        }
    }

    /// Asks for a dbuf. The answer may be late, never lost; [`GrantRefusal::Abandoned`] says that
    /// there is nobody any more.
    pub fn ask(&mut self, dbuf: DbufId) -> Result<Grant, GrantRefusal> {
        self.question(dbuf)?;
        self.answer(dbuf)
    }

    fn question(&self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let message = Message::new(GRANT, dbuf, [0; 2]);
        let sent = descriptor::send(&self.socket, message.as_bytes(), &[]);
        sent.map_err(|_| GrantRefusal::Abandoned)
    }

    fn answer(&self, dbuf: DbufId) -> Result<Grant, GrantRefusal> {
        let mut bytes = [0; Message::SIZE];
        let received = descriptor::receive(&self.socket, &mut bytes);
        let (length, mut fds) = received.map_err(|_| GrantRefusal::Abandoned)?;
        let answer = bytes.get(..length).and_then(|b| Message::read_from_bytes(b).ok());
        match (answer, fds.pop()) {
            (Some(answer), Some(file))
                if answer.kind == GRANTED && answer.dbuf == dbuf.number() =>
            {
                Ok(Grant::from_descriptor(dbuf, file))
            }
            (Some(answer), Some(file))
                if answer.kind == GRANTED_FILE && answer.dbuf == dbuf.number() =>
            {
                Ok(Grant::of_file(dbuf, file))
            }
            (Some(answer), None) if answer.kind == REFUSED => Err(refusal(dbuf, answer.words)),
            _ => Err(GrantRefusal::Abandoned),
        }
    }

    /// Returns the mappings.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }

    fn map(&mut self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let grant = self.ask(dbuf)?;
        self.window.admit(grant)
    }
}

/// The reason for which a pointer did not become bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// The pointer is not one into what is mapped.
    Fault(Fault),
    /// The owner refused the memory that the pointer leads to.
    Refused(GrantRefusal),
    /// There is no room for a copy.
    Aggregate(Error),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Aggregate(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(fault) => Some(fault),
            Self::Refused(refusal) => Some(refusal),
            Self::Aggregate(error) => Some(error),
        }
    }
}

impl From<Fault> for Unreadable {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<GrantRefusal> for Unreadable {
    fn from(refusal: GrantRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Unreadable {
    fn from(error: Error) -> Self {
        Self::Aggregate(error)
    }
}

/// A message between client and grant server, in either direction.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    kind: u32,
    dbuf: u32,
    /// A rich pointer, or why not.
    words: [u64; 2],
}

/// A client asks for a dbuf.
const GRANT: u32 = 1;
/// A client needs a slice no longer.
const BACK: u32 = 2;
/// The dbuf comes with this message.
const GRANTED: u32 = 3;
/// It does not.
const REFUSED: u32 = 4;
/// The dbuf comes with this message, and is a file.
const GRANTED_FILE: u32 = 5;

const UNKNOWN: u64 = 1;
const FORBIDDEN: u64 = 2;
const SYSTEM: u64 = 3;

/// EAGAIN, EINTR.
const AGAIN: i32 = 11;
const INTERRUPTED: i32 = 4;

impl Message {
    const SIZE: usize = size_of::<Self>();

    const fn new(kind: u32, dbuf: DbufId, words: [u64; 2]) -> Self {
        Self { kind, dbuf: dbuf.number(), words }
    }
}

/// A refusal as it is told to a client: what concerns it, and nothing of the owner's.
fn refusal_words(refusal: &GrantRefusal) -> [u64; 2] {
    match refusal {
        GrantRefusal::Forbidden { uid, .. } => [FORBIDDEN, u64::from(*uid)],
        GrantRefusal::System(error) => [SYSTEM, u64::from(error.errno.unsigned_abs())],
        _ => [UNKNOWN, 0],
    }
}

/// The refusal that was told.
fn refusal(dbuf: DbufId, words: [u64; 2]) -> GrantRefusal {
    let [why, number] = words;
    match (why, u32::try_from(number), i32::try_from(number)) {
        (FORBIDDEN, Ok(uid), _) => GrantRefusal::Forbidden { dbuf, uid },
        (SYSTEM, _, Ok(errno)) => {
            GrantRefusal::System(sys::Error::new("grant", "by its owner", errno))
        }
        _ => GrantRefusal::UnknownDbuf(dbuf),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
