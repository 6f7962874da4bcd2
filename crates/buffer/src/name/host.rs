//! The host of a process: one thread that serves clients for all its names.
//!
//! For each name, the thread accepts one client at a time, queries its credentials from the kernel,
//! and replies with one message, which fits into an empty socket. It reads nothing from clients and
//! never blocks on one.

use super::inbox::{Inbox, PendingWriter, WriterQueue};
pub use super::quotas::ReaderLimits;
use super::quotas::{Clients, ReaderEvents};
use super::region::RegionFiles;
use super::reply::Reply;
use super::{Address, Error, SharedRegion};
use crate::stream::{self, Admission, Config, Output, ReaderTicket};
use abi::access::{AccessList, Credentials};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use sys::abstract_socket::AcceptedContent;
use sys::doorbell::SocketDoorbell;
use sys::eventfd::EventFd;
use sys::poll;

/// A set of names that this process has created. Dropping the host releases all of them; open
/// streams continue.
#[derive(Debug)]
pub struct NameHost {
    shared: Arc<SharedHost>,
    doorbell: Arc<SocketDoorbell>,
    thread: Option<JoinHandle<()>>,
}

/// A name in the list of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameEntry {
    /// Name, with the user that owns it.
    pub address: Address,
    /// Kind of object: "stream", "inbox" or "region".
    pub kind: &'static str,
    /// Number of present readers; 0 for inboxes.
    pub readers: usize,
}

#[derive(Debug, Default)]
struct SharedHost {
    state: Mutex<HostState>,
    /// Signalled when the host's thread has dropped released names, which can then be claimed
    /// again.
    names_dropped: Condvar,
}

#[derive(Debug, Default)]
struct HostState {
    names: Vec<HostedName>,
    reader_events: ReaderEvents,
    is_closing: bool,
}

#[derive(Debug)]
struct HostedName {
    address: Address,
    listener: Arc<OwnedFd>,
    access: AccessList,
    object: NamedObject,
}

#[derive(Debug)]
enum NamedObject {
    Stream { admission: Admission, clients: Clients<ReaderTicket>, limits: ReaderLimits },
    Inbox(Arc<WriterQueue>),
    Region { files: RegionFiles, clients: Clients<()> },
}

impl NameHost {
    /// Starts a host without names. Fails if the kernel refuses a thread or sockets.
    pub fn open() -> sys::Result<Self> {
        let (doorbell, receiver) = SocketDoorbell::pair()?;
        let shared = Arc::<SharedHost>::default();
        let served = shared.clone();
        let thread = thread::Builder::new().name("names".to_owned());
        let thread = thread
            .spawn(move || serve(&served, &receiver))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { shared, doorbell: Arc::new(doorbell), thread: Some(thread) })
    }

    /// Creates a stream under a name of the current user. As long as the writing end lives, users
    /// on the access list can open the stream.
    pub fn create(
        &self,
        name: &str,
        access: AccessList,
        config: &Config,
        limits: ReaderLimits,
    ) -> Result<Output, Error> {
        let (output, admission) = stream::joinable_stream(config)?;
        admission.notify_on_end(self.doorbell.clone());
        let clients = Clients::default();
        self.add(name, access, NamedObject::Stream { admission, clients, limits })?;
        Ok(output)
    }

    /// Creates an inbox, to which each user with write permission can send a stream.
    pub fn create_inbox(&self, name: &str, access: AccessList) -> Result<Inbox, Error> {
        let (queue, doorbell) = WriterQueue::new()?;
        let queue = Arc::new(queue);
        self.add(name, access, NamedObject::Inbox(queue.clone()))?;
        Ok(Inbox { queue, doorbell })
    }

    /// Creates a region of `bytes` zero bytes, available until the name is
    /// [withdrawn](Self::withdraw) or the host is dropped. Users with write permission may write to
    /// the region.
    pub fn create_region(
        &self,
        name: &str,
        access: AccessList,
        bytes: usize,
    ) -> Result<SharedRegion, Error> {
        let (region, files) =
            SharedRegion::create(bytes, access.mode & WRITE_PERMISSION_BITS != 0)?;
        self.add_region(Address::for_current_user(name)?, access, files)?;
        Ok(region)
    }

    /// Creates a name under which clients permitted by `access` can open a region.
    pub(crate) fn add_region(
        &self,
        address: Address,
        access: AccessList,
        files: RegionFiles,
    ) -> Result<(), Error> {
        self.add_at_address(
            address,
            access,
            NamedObject::Region { files, clients: Clients::default() },
        )
    }

    /// Releases a name. Clients retain the objects that they have opened. Returns false if this
    /// host has no such name.
    pub fn withdraw(&self, address: &Address) -> bool {
        let named = |name: &mut HostedName| name.address == *address;
        let gone: Vec<_> = self.lock().names.extract_if(.., named).collect();
        let known = !gone.is_empty();
        self.release(gone);
        known
    }

    /// Returns all names of this host.
    #[must_use]
    pub fn names(&self) -> Vec<NameEntry> {
        self.release_ended_names();
        self.lock().names.iter().map(HostedName::entry).collect()
    }

    /// Notifies `event` whenever the number of readers of a name of this host may have changed, for
    /// as long as the caller keeps the event.
    pub fn notify_on_reader_change(&self, event: &Arc<EventFd>) {
        self.lock().reader_events.add(event);
    }

    fn add(&self, name: &str, access: AccessList, object: NamedObject) -> Result<(), Error> {
        self.add_at_address(Address::for_current_user(name)?, access, object)
    }

    fn add_at_address(
        &self,
        address: Address,
        access: AccessList,
        object: NamedObject,
    ) -> Result<(), Error> {
        self.release_ended_names();
        let accepts = match object {
            NamedObject::Inbox(_) => AcceptedContent::Descriptors,
            NamedObject::Stream { .. } | NamedObject::Region { .. } => AcceptedContent::Bytes,
        };
        let listener = super::socket_owner::claim(&address, BACKLOG_MAX, accepts)?;
        let name = HostedName { address, listener: Arc::new(listener), access, object };
        self.lock().names.push(name);
        self.doorbell.notify();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.shared.lock()
    }

    /// Releases the names of streams whose writer has ended them, and of inboxes that have been
    /// dropped.
    fn release_ended_names(&self) {
        let ended = self.lock().take_ended_names();
        self.release(ended);
    }

    /// Waits until the host's thread has dropped these names, after which they can be claimed
    /// again.
    fn release(&self, names: Vec<HostedName>) {
        if names.is_empty() {
            return;
        }
        self.doorbell.notify();
        let mut state = self.lock();
        while names.iter().any(|name| Arc::strong_count(&name.listener) > 1) {
            state = self.shared.names_dropped.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl SharedHost {
    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NameHost {
    fn drop(&mut self) {
        self.lock().is_closing = true;
        self.doorbell.notify();
        if let Some(thread) = self.thread.take() {
            // The thread exits by itself; its panic cannot be reported from here.
            let _ended = thread.join();
        }
        self.lock().names.clear();
    }
}

impl HostState {
    /// Removes and returns the names of streams that have ended and of inboxes that have been
    /// dropped.
    fn take_ended_names(&mut self) -> Vec<HostedName> {
        let has_ended = |name: &mut HostedName| match &name.object {
            NamedObject::Stream { admission, .. } => admission.has_ended(),
            NamedObject::Inbox(queue) => queue.has_ended(),
            NamedObject::Region { .. } => false,
        };
        let ended: Vec<_> = self.names.extract_if(.., has_ended).collect();
        if !ended.is_empty() {
            self.reader_events.notify();
        }
        ended
    }

    /// Returns the doorbells of all readers of this host's names.
    fn reader_doorbells(&self) -> Vec<Arc<OwnedFd>> {
        let of = |name: &HostedName| match &name.object {
            NamedObject::Stream { clients, .. } => clients.doorbells().collect::<Vec<_>>(),
            NamedObject::Region { clients, .. } => clients.doorbells().collect(),
            NamedObject::Inbox(_) => Vec::new(),
        };
        self.names.iter().flat_map(of).collect()
    }

    /// Releases the slots of the readers whose doorbells have hung up and are listed in `closed`.
    fn release_departed_readers(&mut self, closed: &[&Arc<OwnedFd>]) {
        for name in &mut self.names {
            match &mut name.object {
                NamedObject::Stream { admission, clients, .. } => {
                    let left = clients.release_departed_readers(closed).into_iter();
                    left.for_each(|ticket| admission.leave(ticket));
                }
                NamedObject::Region { clients, .. } => {
                    drop(clients.release_departed_readers(closed))
                }
                NamedObject::Inbox(_) => {}
            }
        }
        self.reader_events.notify();
    }
}

impl HostedName {
    fn entry(&self) -> NameEntry {
        let (kind, readers) = match &self.object {
            NamedObject::Stream { clients, .. } => ("stream", clients.count()),
            NamedObject::Inbox(_) => ("inbox", 0),
            NamedObject::Region { clients, .. } => ("region", clients.count()),
        };
        NameEntry { address: self.address.clone(), kind, readers }
    }

    /// Serves a client that has connected: accepts or refuses it with one reply.
    fn serve(&mut self, client: OwnedFd) {
        let peer = match sys::abstract_socket::peer_credentials(&client) {
            Ok(peer) => peer,
            Err(error) => return send_reply(&client, &Reply::failed(&error)),
        };
        let process = peer.process;
        let credentials = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        let (reads, writes) =
            (self.access.may_read(&credentials), self.access.may_write(&credentials));
        match &mut self.object {
            NamedObject::Stream { admission, clients, limits } if reads => {
                match clients.check_quota(credentials.uid, self.access.owner, *limits) {
                    Err(full) => send_reply(&client, &Reply::full(full.limit, full.of_user)),
                    Ok(()) => admit(admission, clients, credentials.uid, client),
                }
            }
            NamedObject::Region { files, clients } if reads => {
                let RegionFiles { read, write, bytes } = &*files;
                let (file, writable) = match write {
                    Some(write) if writes => (write, true),
                    _ => (read, false),
                };
                match clients.check_quota(
                    credentials.uid,
                    self.access.owner,
                    ReaderLimits::default(),
                ) {
                    Err(full) => send_reply(&client, &Reply::full(full.limit, full.of_user)),
                    Ok(()) => {
                        let reply = Reply::region(*bytes, writable);
                        // The socket stays open: it hangs up when either side exits.
                        if reply.send(&client, &[file.as_fd()]).is_ok() {
                            clients.add((), credentials.uid, client);
                        }
                    }
                }
            }
            // An inbox without a reader accepts no stream.
            NamedObject::Inbox(queue) if writes && queue.has_ended() => {
                send_reply(&client, &Reply::ended())
            }
            NamedObject::Inbox(queue) if writes => {
                queue.add(PendingWriter { credentials, process, socket: client });
            }
            _ => send_reply(&client, &Reply::forbidden(&self.access)),
        }
    }
}

/// Admits a reader to a stream. From now on, the client's socket serves as the reader's doorbell.
fn admit(admission: &Admission, clients: &mut Clients<ReaderTicket>, uid: u32, client: OwnedFd) {
    let failed =
        |e: std::io::Error| sys::Error::new("dup", "a doorbell", e.raw_os_error().unwrap_or(0));
    let copies = client.try_clone().and_then(|doorbell| Ok((doorbell, client.try_clone()?)));
    let (doorbell, watched) = match copies {
        Ok(copies) => copies,
        Err(error) => return send_reply(&client, &Reply::failed(&failed(error))),
    };
    match admission.admit_with_doorbell(SocketDoorbell::from(doorbell)) {
        Err(error) => send_reply(&client, &Reply::failed(&error)),
        Ok(None) => send_reply(&client, &Reply::ended()),
        Ok(Some((ticket, ring))) => match Reply::stream().send(&client, &ring.descriptors()) {
            Ok(()) => clients.add(ticket, uid, watched),
            Err(_) => admission.leave(ticket),
        },
    }
}

/// Sends a reply; ignores a client that has disconnected.
pub(super) fn send_reply(client: &OwnedFd, reply: &Reply) {
    let _ = reply.send(client, &[]);
}

/// Accepts and answers clients for all names of the host, in the host's thread, until the host is
/// dropped.
fn serve(shared: &SharedHost, doorbell: &SocketDoorbell) {
    let mut pause = None;
    loop {
        let (listeners, clients) = {
            let mut state = shared.lock();
            shared.names_dropped.notify_all();
            if state.is_closing {
                return;
            }
            drop(state.take_ended_names());
            // After accept(2) has failed, no client is accepted until `pause` has passed.
            let names = state.names.iter().filter(|_| pause.is_none());
            let listeners: Vec<_> = names.map(|name| name.listener.clone()).collect();
            (listeners, state.reader_doorbells())
        };
        let first = std::iter::once(doorbell.as_fd()).chain(listeners.iter().map(|fd| fd.as_fd()));
        let first: Vec<_> = first.collect();
        let second: Vec<_> = clients.iter().map(|doorbell| doorbell.as_fd()).collect();
        let (ready, closed) = poll::wait_until_readable_or_hung_up(&first, &second, pause.take());
        doorbell.clear();
        let closed: Vec<_> =
            clients.iter().zip(closed).filter(|(_, g)| *g).map(|(b, _)| b).collect();
        if !closed.is_empty() {
            shared.lock().release_departed_readers(&closed);
        }
        for (listener, _) in listeners.iter().zip(ready.iter().skip(1)).filter(|(_, r)| **r) {
            match sys::abstract_socket::accept(listener) {
                Ok(Some(client)) => {
                    let mut state = shared.lock();
                    let named = |name: &&mut HostedName| Arc::ptr_eq(&name.listener, listener);
                    if let Some(name) = state.names.iter_mut().find(named) {
                        name.serve(client);
                        state.reader_events.notify();
                    }
                }
                Ok(None) => {}
                Err(_) => pause = Some(ACCEPT_RETRY_DELAY),
            }
        }
    }
}

/// Maximum number of clients that may wait to be accepted.
const BACKLOG_MAX: i32 = 64;
/// Delay before the thread accepts again after accept(2) has failed for lack of descriptors or
/// memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Permission bits that allow writing.
const WRITE_PERMISSION_BITS: u32 = 0o222;
