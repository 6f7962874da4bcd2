//! The host of a process: one thread that answers visitors for all its names.
//!
//! The thread takes one visitor of each name in turn, asks the kernel who it is, answers with one
//! message that fits into an empty socket, and goes on: it reads nothing, and waits for nobody.

use super::answer::Answer;
use super::inbox::{Inbox, Queue, Waiting};
use super::quotas::Clients;
pub use super::quotas::Limits;
use super::region::Handout;
use super::{Address, Error, SharedRegion};
use crate::stream::{self, Config, Entrance, Output, Ticket};
use abi::access::{AccessList, Credentials};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use sys::abstract_socket::Accepts;
use sys::doorbell::SocketDoorbell;
use sys::poll;

/// The names that this process has created. Dropping it gives them all back; streams that are open
/// go on for those who have them.
#[derive(Debug)]
pub struct Host {
    shared: Arc<SharedHost>,
    doorbell: Arc<SocketDoorbell>,
    thread: Option<JoinHandle<()>>,
}

/// One name, as it is listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name.
    pub address: Address,
    /// The sort of object: a stream, an inbox or a region.
    pub kind: &'static str,
    /// Present readers; inboxes do not count them.
    pub readers: usize,
}

#[derive(Debug, Default)]
struct SharedHost {
    state: Mutex<HostState>,
    /// The thread looks at nothing any more that is not in the state.
    turned: Condvar,
}

#[derive(Debug, Default)]
struct HostState {
    names: Vec<Name>,
    is_closing: bool,
}

#[derive(Debug)]
struct Name {
    address: Address,
    listener: Arc<OwnedFd>,
    access: AccessList,
    what: NamedObject,
}

#[derive(Debug)]
enum NamedObject {
    Stream { entrance: Entrance, clients: Clients<Ticket>, limits: Limits },
    Inbox(Arc<Queue>),
    Region { handout: Handout, clients: Clients<()> },
}

impl Host {
    /// Has no names yet.
    pub fn open() -> sys::Result<Self> {
        let (doorbell, heard) = SocketDoorbell::pair()?;
        let shared = Arc::<SharedHost>::default();
        let seen = shared.clone();
        let thread = thread::Builder::new().name("names".to_owned());
        let thread = thread
            .spawn(move || serve(&seen, &heard))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { shared, doorbell: Arc::new(doorbell), thread: Some(thread) })
    }

    /// Creates a stream that whoever is on the list can open by this name of our user, as long as
    /// the writing end lives.
    pub fn create(
        &self,
        name: &str,
        access: AccessList,
        config: &Config,
        limits: Limits,
    ) -> Result<Output, Error> {
        let (output, entrance) = stream::joinable(config)?;
        entrance.tell(self.doorbell.clone());
        let clients = Clients::default();
        self.add(name, access, NamedObject::Stream { entrance, clients, limits })?;
        Ok(output)
    }

    /// Creates an inbox: whoever is on the list to write can do so, in a stream of its own.
    pub fn create_inbox(&self, name: &str, access: AccessList) -> Result<Inbox, Error> {
        let (queue, doorbell) = Queue::new()?;
        let queue = Arc::new(queue);
        self.add(name, access, NamedObject::Inbox(queue.clone()))?;
        Ok(Inbox { queue, doorbell })
    }

    /// Creates a region of so many zero bytes, for as long as the host lives or until the name is
    /// [withdrawn](Self::withdraw). Who is on the list to write may write.
    pub fn create_region(
        &self,
        name: &str,
        access: AccessList,
        bytes: usize,
    ) -> Result<SharedRegion, Error> {
        let (region, handout) = SharedRegion::create(bytes, access.mode & ANY_WRITER != 0)?;
        self.name_region(Address::own(name)?, access, handout)?;
        Ok(region)
    }

    /// Gives a region a name.
    pub(crate) fn name_region(
        &self,
        address: Address,
        access: AccessList,
        handout: Handout,
    ) -> Result<(), Error> {
        self.add_at(address, access, NamedObject::Region { handout, clients: Clients::default() })
    }

    /// Gives a name back; those who have opened it keep what they have. `false`: it was not ours.
    pub fn withdraw(&self, address: &Address) -> bool {
        let named = |name: &mut Name| name.address == *address;
        let gone: Vec<_> = self.lock().names.extract_if(.., named).collect();
        let known = !gone.is_empty();
        self.retire(gone);
        known
    }

    /// All names, and who reads.
    #[must_use]
    pub fn names(&self) -> Vec<Listed> {
        self.sweep();
        self.lock().names.iter().map(Name::listed).collect()
    }

    fn add(&self, name: &str, access: AccessList, what: NamedObject) -> Result<(), Error> {
        self.add_at(Address::own(name)?, access, what)
    }

    fn add_at(&self, address: Address, access: AccessList, what: NamedObject) -> Result<(), Error> {
        self.sweep();
        let takes = match what {
            NamedObject::Inbox(_) => Accepts::Descriptors,
            NamedObject::Stream { .. } | NamedObject::Region { .. } => Accepts::Bytes,
        };
        let listener = super::holder::take(&address, VISITORS, takes)?;
        let name = Name { address, listener: Arc::new(listener), access, what };
        self.lock().names.push(name);
        self.doorbell.notify();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.shared.lock()
    }

    /// Gives back the names of what has ended.
    fn sweep(&self) {
        let over = self.lock().over();
        self.retire(over);
    }

    /// Waits until the thread has let go of these names, so that they are free.
    fn retire(&self, names: Vec<Name>) {
        if names.is_empty() {
            return;
        }
        self.doorbell.notify();
        let mut state = self.lock();
        while names.iter().any(|name| Arc::strong_count(&name.listener) > 1) {
            state = self.shared.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl SharedHost {
    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.lock().is_closing = true;
        self.doorbell.notify();
        if let Some(thread) = self.thread.take() {
            // It ends by itself; if it has panicked there is nobody to tell here.
            let _ended = thread.join();
        }
        self.lock().names.clear();
    }
}

impl HostState {
    /// Accepts out what has ended.
    fn over(&mut self) -> Vec<Name> {
        let is_over = |name: &mut Name| match &name.what {
            NamedObject::Stream { entrance, .. } => entrance.has_ended(),
            NamedObject::Inbox(queue) => queue.is_over(),
            NamedObject::Region { .. } => false,
        };
        self.names.extract_if(.., is_over).collect()
    }

    /// The doorbells of all readers.
    fn doorbells(&self) -> Vec<Arc<OwnedFd>> {
        let of = |name: &Name| match &name.what {
            NamedObject::Stream { clients, .. } => clients.doorbells().collect::<Vec<_>>(),
            NamedObject::Region { clients, .. } => clients.doorbells().collect(),
            NamedObject::Inbox(_) => Vec::new(),
        };
        self.names.iter().flat_map(of).collect()
    }

    /// Frees the places of those who are gone.
    fn show_out(&mut self, gone: &[&Arc<OwnedFd>]) {
        for name in &mut self.names {
            match &mut name.what {
                NamedObject::Stream { entrance, clients, .. } => {
                    let left = clients.show_out(gone).into_iter();
                    left.for_each(|ticket| entrance.leave(ticket));
                }
                NamedObject::Region { clients, .. } => drop(clients.show_out(gone)),
                NamedObject::Inbox(_) => {}
            }
        }
    }
}

impl Name {
    fn listed(&self) -> Listed {
        let (kind, readers) = match &self.what {
            NamedObject::Stream { clients, .. } => ("stream", clients.count()),
            NamedObject::Inbox(_) => ("inbox", 0),
            NamedObject::Region { clients, .. } => ("region", clients.count()),
        };
        Listed { address: self.address.clone(), kind, readers }
    }

    /// Answers somebody who has come.
    fn welcome(&mut self, visitor: OwnedFd) {
        let peer = match sys::abstract_socket::peer(&visitor) {
            Ok(peer) => peer,
            Err(error) => return tell(&visitor, &Answer::failed(&error)),
        };
        let process = peer.process;
        let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        let (reads, writes) = (self.access.may_read(&who), self.access.may_write(&who));
        match &mut self.what {
            NamedObject::Stream { entrance, clients, limits } if reads => {
                let room = clients.room(who.uid, self.access.owner, *limits);
                match room {
                    Err(full) => tell(&visitor, &Answer::full(full.limit, full.of_user)),
                    Ok(()) => let_in(entrance, clients, who.uid, visitor),
                }
            }
            NamedObject::Region { handout, clients } if reads => {
                let room = clients.room(who.uid, self.access.owner, Limits::default());
                let Handout { read, write, bytes } = &*handout;
                let (file, writable) = match write {
                    Some(write) if writes => (write, true),
                    _ => (read, false),
                };
                match room {
                    Err(full) => tell(&visitor, &Answer::full(full.limit, full.of_user)),
                    Ok(()) => {
                        let answer = Answer::region(*bytes, writable);
                        // NamedObject has it hangs up when it is gone, and sees when we are.
                        if answer.send(&visitor, &[file.as_fd()]).is_ok() {
                            clients.add((), who.uid, visitor);
                        }
                    }
                }
            }
            // Nobody is promised what nobody reads any more.
            NamedObject::Inbox(queue) if writes && queue.is_over() => {
                tell(&visitor, &Answer::ended())
            }
            NamedObject::Inbox(queue) if writes => {
                tell(&visitor, &Answer::inbox());
                queue.add(Waiting { who, process, socket: visitor });
            }
            _ => tell(&visitor, &Answer::forbidden(&self.access)),
        }
    }
}

/// Lets a reader in: its socket is its doorbell from now on.
fn let_in(entrance: &Entrance, clients: &mut Clients<Ticket>, uid: u32, visitor: OwnedFd) {
    let failed =
        |e: std::io::Error| sys::Error::new("dup", "a bell", e.raw_os_error().unwrap_or(0));
    let copies = visitor.try_clone().and_then(|doorbell| Ok((doorbell, visitor.try_clone()?)));
    let (doorbell, watched) = match copies {
        Ok(copies) => copies,
        Err(error) => return tell(&visitor, &Answer::failed(&failed(error))),
    };
    match entrance.enter_by(SocketDoorbell::from(doorbell)) {
        Err(error) => tell(&visitor, &Answer::failed(&error)),
        Ok(None) => tell(&visitor, &Answer::ended()),
        Ok(Some((ticket, ring))) => match Answer::stream().send(&visitor, &ring.descriptors()) {
            Ok(()) => clients.add(ticket, uid, watched),
            Err(_) => entrance.leave(ticket),
        },
    }
}

/// Sends an answer; a visitor that is gone again needs none.
fn tell(visitor: &OwnedFd, answer: &Answer) {
    let _ = answer.send(visitor, &[]);
}

/// The life of the thread.
fn serve(shared: &SharedHost, doorbell: &SocketDoorbell) {
    let mut pause = None;
    loop {
        let (listeners, clients) = {
            let mut state = shared.lock();
            shared.turned.notify_all();
            if state.is_closing {
                return;
            }
            drop(state.over());
            // After a refusal of the kernel nobody is let in for a moment.
            let names = state.names.iter().filter(|_| pause.is_none());
            let listeners: Vec<_> = names.map(|name| name.listener.clone()).collect();
            (listeners, state.doorbells())
        };
        let first = std::iter::once(doorbell.as_fd()).chain(listeners.iter().map(|fd| fd.as_fd()));
        let first: Vec<_> = first.collect();
        let second: Vec<_> = clients.iter().map(|doorbell| doorbell.as_fd()).collect();
        let (ready, gone) = poll::readable_or_gone(&first, &second, pause.take());
        doorbell.clear();
        let gone: Vec<_> = clients.iter().zip(gone).filter(|(_, g)| *g).map(|(b, _)| b).collect();
        if !gone.is_empty() {
            shared.lock().show_out(&gone);
        }
        for (listener, _) in listeners.iter().zip(ready.iter().skip(1)).filter(|(_, r)| **r) {
            match sys::abstract_socket::accept(listener) {
                Ok(Some(visitor)) => {
                    let mut state = shared.lock();
                    let named = |name: &&mut Name| Arc::ptr_eq(&name.listener, listener);
                    if let Some(name) = state.names.iter_mut().find(named) {
                        name.welcome(visitor);
                    }
                }
                Ok(None) => {}
                Err(_) => pause = Some(PAUSE),
            }
        }
    }
}

/// Visitors that may wait for an answer.
const VISITORS: i32 = 64;
/// Pause after the kernel has refused to accept: it is out of descriptors, or of memory.
const PAUSE: Duration = Duration::from_millis(20);
/// The bits that let somebody write.
const ANY_WRITER: u32 = 0o222;
