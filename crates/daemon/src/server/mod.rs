//! The daemon itself: one thread that answers whoever comes and waits for nobody.
//! (RELIABILITY T8, T10, T12, T13)
//!
//! ```text
//!  clients ──► two sockets ──► guests ──► methods ──► registry
//!                                │  one of them has registered a path: a worker
//!                                ▼
//!                 its connection, its process (pidfd), and a way to it (Admit)
//! ```
//!
//! Who comes is who the kernel says it is. A guest costs what its user's quota lets it cost, and
//! when it takes less than it asks for it is let go. A path is in the registry as long as the
//! connection that registered it and the process that made it are there: either end is seen by the
//! kernel at once, whichever way it came.
//!
//! The daemon is in no data path. Who may control a path gets a connection to its process: a fresh
//! pair of sockets of which the daemon keeps neither end.

mod accept;
mod guest;
mod kernel;
mod methods;
mod registry;
mod store;

use crate::directory::{Directory, DirectoryError};
use crate::policy::Policy;

use guest::{Guest, Part};
use kernel::Kernel;
use registry::Registry;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::Sorted;
use sys::local_socket::{self, Framing};
use sys::steps::{Resource, Steps};
use sys::watcher::{Interest, WatchEvent, Watcher};

/// Answers whoever comes.
#[derive(Debug)]
pub struct Server {
    watcher: Watcher,
    sockets: Vec<(OwnedFd, Framing)>,
    place: Option<Directory>,
    /// True if the sockets in the directory are ours, not a service manager's.
    own_sockets: bool,
    /// Is told each step.
    steps: Steps,
    policy: Policy,
    registry: Registry,
    /// The users' programs in the kernel.
    kernel: Kernel,
    guests: BTreeMap<u64, Guest>,
    /// Connections by user.
    per_user: BTreeMap<u32, u64>,
    /// Guests that are let go when it is the turn of nobody.
    leaving: Vec<u64>,
    next: u64,
    started: u64,
    guests_max: usize,
    notes: Vec<String>,
}

/// The event number of the stop descriptor.
const STOP: u64 = 3;
/// The first client number.
const FIRST: u64 = 16;
/// The most guests.
const GUESTS_MAX: usize = 4096;
/// The pause before accepting again after the kernel refused: it is out of descriptors or memory.
const REST: Duration = Duration::from_millis(20);

impl Server {
    /// A daemon in this directory; `open`: for all users. `steps` is told each step, now and when
    /// a path is registered.
    pub fn open(
        directory: &Path,
        open: bool,
        policy: Policy,
        steps: &Steps,
    ) -> Result<Self, DirectoryError> {
        Self::opened(directory, open, policy, (steps, Sorted::default()))
    }

    fn opened(
        directory: &Path,
        open: bool,
        policy: Policy,
        (steps, kept): (&Steps, Sorted),
    ) -> Result<Self, DirectoryError> {
        let place = Directory::take(directory, open, steps)?;
        let sockets = [Framing::Packets, Framing::Stream].map(|form| {
            let socket = place.listen(form, open, steps)?;
            Ok::<_, DirectoryError>((socket, form))
        });
        let sockets = sockets.into_iter().collect::<Result<Vec<_>, _>>();
        match sockets {
            Ok(sockets) => Self::new(place, (sockets, true), policy, (steps, kept)),
            Err(error) => {
                place.clear(true);
                Err(error)
            }
        }
    }

    /// A daemon on sockets that a service manager holds for it, in this directory, with the paths
    /// that it has kept of the daemon before.
    pub fn on(
        directory: &Path,
        given: Vec<(String, OwnedFd)>,
        policy: Policy,
        steps: &Steps,
    ) -> Result<Self, DirectoryError> {
        let mut kept = store::sorted(given);
        let sockets = std::mem::take(&mut kept.sockets);
        if sockets.is_empty() {
            return Self::opened(directory, true, policy, (steps, kept));
        }
        let place = Directory::take(directory, true, steps)?;
        let with_form = |socket: OwnedFd| {
            let form = local_socket::framing(&socket)?;
            // What a service manager makes may block, and nobody is waited for.
            let socket = UnixListener::from(socket);
            let refused = |error: std::io::Error| {
                sys::Error::new("ioctl", "a socket", error.raw_os_error().unwrap_or(0))
            };
            socket.set_nonblocking(true).map_err(refused)?;
            Ok((form, OwnedFd::from(socket)))
        };
        let sockets: sys::Result<Vec<_>> = sockets.into_iter().map(with_form).collect();
        let sockets = sockets?.into_iter().map(|(form, socket)| (socket, form)).collect();
        Self::new(place, (sockets, false), policy, (steps, kept))
    }

    fn new(
        place: Directory,
        (sockets, own_sockets): (Vec<(OwnedFd, Framing)>, bool),
        policy: Policy,
        (steps, kept): (&Steps, Sorted),
    ) -> Result<Self, DirectoryError> {
        let Sorted { paths, kernel, lines, .. } = kept;
        let begun = Self::begin(&sockets, &policy, (steps, kernel));
        let (watcher, kernel, running) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                place.clear(own_sockets);
                return Err(error);
            }
        };
        steps.commit();
        let files = usize::try_from(sys::process::raise_descriptor_limit()).unwrap_or(usize::MAX);
        let kernel::TakenUp { lines: running, notes } = running;
        let mut server = Self {
            watcher,
            sockets,
            place: Some(place),
            own_sockets,
            steps: steps.clone(),
            policy,
            registry: Registry::default(),
            kernel,
            guests: BTreeMap::new(),
            per_user: BTreeMap::new(),
            leaving: Vec::new(),
            next: FIRST,
            started: seconds(),
            // A guest that is a path takes three, and what is on its way some more.
            guests_max: (files.saturating_sub(64) / 4).clamp(8, GUESTS_MAX),
            notes,
        };
        server.take_lines_back(lines, running);
        server.take_back(paths);
        Ok(server)
    }

    /// Returns remarks about the start: objects of the previous daemon that could not be adopted.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Prepares answers, as far as the preparation may fail.
    fn begin(
        sockets: &[(OwnedFd, Framing)],
        policy: &Policy,
        (steps, kept): (&Steps, Vec<(String, OwnedFd)>),
    ) -> Result<(Watcher, Kernel, kernel::TakenUp), DirectoryError> {
        steps.take(Resource::Descriptor, "what watches descriptors")?;
        let watcher = Watcher::new()?;
        for (number, (socket, _)) in (0..).zip(sockets) {
            watcher.watch(socket, guest::number(number, Part::Listener), Interest::Read)?;
        }
        steps.take(Resource::Thread, "what runs lines in the kernel")?;
        let (kernel, running) = Kernel::begin(policy, &watcher, (kept, steps))?;
        Ok((watcher, kernel, running))
    }

    /// Answers until `stop` can be read.
    pub fn serve(&mut self, stop: BorrowedFd<'_>) -> sys::Result<()> {
        let stopped = guest::number(STOP, Part::Listener);
        self.watcher.watch(stop, stopped, Interest::Read)?;
        let mut rests = false;
        loop {
            let limit = rests.then_some(REST);
            rests = false;
            for happened in self.watcher.wait(limit) {
                if happened.number == stopped {
                    self.end_lines();
                    return self.watcher.forget(stop);
                }
                rests |= self.happened(happened);
            }
            if rests != (limit.is_some()) {
                self.listen(!rests);
            }
            self.let_go();
        }
    }

    /// Answers whether nobody can be let in for a moment.
    fn happened(&mut self, happened: WatchEvent) -> bool {
        let (id, part) = guest::parts(happened.number);
        match part {
            Part::Listener if id == kernel::DONE => {
                self.hear_kernel();
            }
            Part::Listener => return self.come_in(id),
            Part::Process => self.leaving.push(id),
            Part::Way => self.look_at_way(id),
            Part::Connection => self.hear(id, happened),
        }
        false
    }

    /// Listens, or rests from it.
    fn listen(&self, listens: bool) {
        for (number, (socket, _)) in (0..).zip(&self.sockets) {
            let number = guest::number(number, Part::Listener);
            // What is refused here is refused to nobody: it is tried again at the next rest.
            let _ = match listens {
                true => self.watcher.watch(socket, number, Interest::Read),
                false => self.watcher.forget(socket),
            };
        }
    }

    /// Ends all that is over.
    fn let_go(&mut self) {
        while let Some(id) = self.leaving.pop() {
            let Some(mut guest) = self.guests.remove(&id) else { continue };
            self.forget(&guest);
            if let Some(used) = self.per_user.get_mut(&guest.who.uid) {
                *used = used.saturating_sub(1);
                if *used == 0 {
                    self.per_user.remove(&guest.who.uid);
                }
            }
            guest.forget_line(id);
            self.abandon(id, guest.line, guest.who.uid);
            let gone = guest.path.as_ref().and_then(|path| self.registry.remove(path.number));
            gone.iter().for_each(|entry| store::forget(entry.number));
            drop(guest);
            if let Some(entry) = gone {
                self.announce("went", &entry);
            }
        }
    }

    /// Lets guests of this user go whose end has come and was not heard of yet, so that what they
    /// had is free for the one who asks. The order in which a busy daemon hears is nobody's fault.
    fn sweep(&mut self, uid: u32, asking: u64) {
        let is_over = |guest: &Guest| {
            let path = guest.path.as_ref();
            let process: Vec<_> = path.map(|path| path.process.as_fd()).into_iter().collect();
            let mut ends = vec![guest.connection.as_fd()];
            ends.extend(path.map(|path| path.way.as_fd()));
            let (ended, gone) = sys::poll::readable_or_gone(&process, &ends, Some(Duration::ZERO));
            ended.contains(&true) || gone.contains(&true)
        };
        let others = self
            .guests
            .iter()
            .filter(|(id, guest)| guest.who.uid == uid && **id != asking && is_over(guest));
        let over: Vec<u64> = others.map(|(id, _)| *id).collect();
        self.leaving.extend(over);
        self.let_go();
    }

    /// Watches nothing of a guest any more: others may have copies of its descriptors.
    fn forget(&self, guest: &Guest) {
        let mut all = vec![guest.connection.as_fd()];
        if let Some(path) = &guest.path {
            all.extend([path.process.as_fd(), path.way.as_fd()]);
        }
        for descriptor in all {
            // What is not watched need not be forgotten.
            let _ = self.watcher.forget(descriptor);
        }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.place.as_ref().map(Directory::path)
    }

    /// Returns the number of running paths.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.registry.all().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.clear(self.own_sockets);
        }
    }
}

/// Seconds since 1970, for people.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
