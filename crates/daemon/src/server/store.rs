//! The store of a service manager during a restart: of each path the connection that registered it,
//! the socket of its process, and its registration (sd_notify(3), `FDSTORE=1`).
//!
//! So nobody notices that the daemon was started again: the other end of a connection that the
//! manager holds does not hang up. What is not kept (no manager, or one whose store is full) is
//! registered again by the processes of the paths, which look for the next daemon.
//!
//! Of lines in the kernel a manager keeps the links, programs and memory, with a note that says
//! what they are ([`engine::kernel::point::Keeper`]), and the connection that each hangs on, under
//! a name that says what its guest knows ([`Knows`]). So they run while no daemon is there, and the
//! next one takes them up, under the policy that it reads, and answers whoever waits. A manager
//! that does not say that it keeps anything (`FDSTORE` in the environment, systemd 254) is not
//! given them: then who reads from one is told that the daemon has ended.

use super::Server;
use super::guest::{self, Guest, Part, Worker};
use super::kernel::{Line, OfGuest};
use super::registry::Entry;
use abi::access::Credentials;
use engine::kernel::point::{KEPT, Keeper};
use member::connection::Connection;
use member::faults::{self, AGAIN};
use member::varlink::Reply;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use sys::local_socket::{self, Framing};
use sys::watcher::Interest;
use sys::{abstract_socket, service};

/// A path that was kept.
#[derive(Debug)]
pub(super) struct Kept {
    entry: Entry,
    connection: OwnedFd,
    way: OwnedFd,
}

/// Names of the parts of a path in the store, behind its number.
const CONNECTION: &str = "connection";
const WAY: &str = "way";
const ENTRY: &str = "entry";
const PARTS: [&str; 3] = [CONNECTION, WAY, ENTRY];
/// The prefix of these names.
const PATH: &str = "path-";
/// The prefix of a kernel line's connection, before the number of its client: the line runs and the
/// client knows it; the client waits to replace another line, or is about to ask for that; the
/// client waits for the final counts.
const LINE: &str = "line-";
const WAITS: &str = "waits-";
const LEAVES: &str = "leaves-";
/// The longest wait for the manager to accept a kernel object.
const PATIENCE: Duration = Duration::from_secs(1);
/// The message to a client whose change was cut off by the daemon's death.
const NOT_CHANGED: &str = "the daemon was started again before it was changed: it runs as before, \
                           and can be changed now";
/// An entry is no longer than a line with a name and a log.
const ENTRY_MAX: usize = 256 << 10;

/// The objects returned by a manager.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Sockets to listen at.
    pub(super) sockets: Vec<OwnedFd>,
    pub(super) paths: Vec<Kept>,
    /// Objects of kernel lines, by name.
    pub(super) kernel: Vec<(String, OwnedFd)>,
    /// The connections on which such lines hang, by guest, and what those know.
    pub(super) lines: BTreeMap<u64, (OwnedFd, Knows)>,
}

/// The state of a line as its client knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Knows {
    /// Made, to replace another one.
    Waits,
    /// Running.
    Runs,
    /// Leaving.
    Leaves,
}

impl Knows {
    /// Ordered: the state known first comes first.
    const ALL: [Self; 3] = [Self::Waits, Self::Runs, Self::Leaves];

    const fn name(self) -> &'static str {
        match self {
            Self::Runs => LINE,
            Self::Waits => WAITS,
            Self::Leaves => LEAVES,
        }
    }
}

/// Tells what a manager has given apart.
pub(super) fn sorted(given: Vec<(String, OwnedFd)>) -> Sorted {
    let Sorted { mut sockets, mut kernel, mut lines, .. } = Sorted::default();
    let mut paths: BTreeMap<u32, BTreeMap<String, OwnedFd>> = BTreeMap::new();
    for (name, descriptor) in given {
        if name.starts_with(KEPT) {
            kernel.push((name, descriptor));
            continue;
        }
        let of_line = |knows: Knows| Some((name.strip_prefix(knows.name())?.parse().ok()?, knows));
        if let Some((guest, knows)) = Knows::ALL.into_iter().find_map(of_line) {
            // Who died between one and the next had both: the later one counts.
            let known: Option<&(OwnedFd, Knows)> = lines.get(&guest);
            let earlier = match known.map(|(_, known)| *known) {
                Some(known) if known >= knows => Some(knows),
                known => {
                    lines.insert(guest, (descriptor, knows));
                    known
                }
            };
            earlier.into_iter().for_each(|earlier| forget_line(guest, earlier));
            continue;
        }
        let parts = name.strip_prefix(PATH).and_then(|rest| rest.split_once('-'));
        match parts.and_then(|(number, part)| Some((number.parse().ok()?, part.to_owned()))) {
            Some((number, part)) => {
                paths.entry(number).or_default().insert(part, descriptor);
            }
            // A path of another version of this program: nobody knows what it is.
            None if name.starts_with(PATH) => {}
            None => sockets.push(descriptor),
        }
    }
    let kept = paths.into_iter().filter_map(|(number, parts)| {
        let kept = of_parts(parts).filter(|kept| kept.entry.number == number);
        if kept.is_none() {
            forget(number);
        }
        kept
    });
    Sorted { paths: kept.collect(), sockets, kernel, lines }
}

fn of_parts(mut parts: BTreeMap<String, OwnedFd>) -> Option<Kept> {
    let text = File::from(parts.remove(ENTRY)?);
    let mut bytes = vec![0; usize::try_from(text.metadata().ok()?.len()).ok()?.min(ENTRY_MAX)];
    text.read_exact_at(&mut bytes, 0).ok()?;
    let entry = serde_json::from_slice(&bytes).ok()?;
    Some(Kept { entry, connection: parts.remove(CONNECTION)?, way: parts.remove(WAY)? })
}

/// Has a path kept. Who cannot keep it need not: it is registered again.
pub(super) fn keep(entry: &Entry, connection: BorrowedFd<'_>, way: BorrowedFd<'_>) {
    put(entry.number, CONNECTION, connection);
    put(entry.number, WAY, way);
    keep_entry(entry);
}

fn keep_entry(entry: &Entry) {
    let text = serde_json::to_vec(entry).unwrap_or_default();
    if let Ok(note) = service::memfd_with(&text) {
        put(entry.number, ENTRY, note.as_fd());
    }
}

/// Has what was registered of a path kept, in the place of what was.
pub(super) fn change(entry: &Entry) {
    drop_part(entry.number, ENTRY);
    keep_entry(entry);
}

/// Has nothing of a path kept any more.
pub(super) fn forget(number: u32) {
    PARTS.into_iter().for_each(|part| drop_part(number, part));
}

fn put(number: u32, part: &str, descriptor: BorrowedFd<'_>) {
    // What is not stored is not there the next time, and nothing else.
    let _ = service::try_notify(&format!("FDSTORE=1\nFDNAME={PATH}{number}-{part}"), &[descriptor]);
}

fn drop_part(number: u32, part: &str) {
    // What stays is told to be nothing's when we start again.
    let _ = service::try_notify(&format!("FDSTOREREMOVE=1\nFDNAME={PATH}{number}-{part}"), &[]);
}

/// A manager that keeps what belongs to lines in the kernel.
#[derive(Debug)]
pub(super) struct Manager;

impl Keeper for Manager {
    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
        // Nobody is to look whether anything happens there. What is not stored is not there the
        // next time: then the whole point goes.
        let lines = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        let _ = service::notify_within(&lines, &[descriptor], PATIENCE);
    }

    fn forget(&self, name: &str) {
        let _ = service::notify_within(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[], PATIENCE);
    }
}

/// Has the connection kept no more on which a line in the kernel hangs, of whose guest was kept
/// that it knows this.
fn forget_line(guest: u64, known: Knows) {
    if service::stores_descriptors() {
        Manager.forget(&format!("{}{guest}", known.name()));
    }
}

impl Guest {
    /// Has the connection kept on which its line in the kernel hangs; `id` is its number.
    pub(super) fn keep_line(&mut self, id: u64, knows: Knows) {
        if !service::stores_descriptors() || self.kept == Some(knows) {
            return;
        }
        Manager.keep(&format!("{}{id}", knows.name()), self.connection.as_fd());
        // One of both is always there.
        if let Some(before) = self.kept.replace(knows) {
            forget_line(id, before);
        }
    }

    /// Has it kept no more.
    pub(super) fn forget_line(&mut self, id: u64) {
        self.kept.take().into_iter().for_each(|known| forget_line(id, known));
    }
}

impl Server {
    /// Takes up again who has lines in the kernel: those that run. A line whose guest has gone
    /// leaves, and a guest whose line has gone is let go, which tells it so. Who waited for an
    /// answer when the daemon before died is told what holds now.
    pub(super) fn take_lines_back(
        &mut self,
        mut connections: BTreeMap<u64, (OwnedFd, Knows)>,
        running: Vec<OfGuest>,
    ) {
        for OfGuest { guest: id, uid, ended } in running {
            self.next = self.next.max(id + 1);
            let kept = connections.remove(&id);
            let known = kept.as_ref().map(|(_, knows)| *knows);
            let guest = kept.and_then(|(connection, knows)| {
                let peer =
                    abstract_socket::peer(&connection).ok().filter(|peer| peer.uid == uid)?;
                let number = guest::number(id, Part::Connection);
                self.watcher.watch(connection.as_fd(), number, Interest::Read).ok()?;
                Some((peer, connection, knows))
            });
            let Some((peer, connection, knows)) = guest else {
                known.into_iter().for_each(|known| forget_line(id, known));
                let line = if ended.is_some() { Line::None } else { Line::Runs };
                self.abandon(id, line, uid);
                continue;
            };
            let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
            *self.per_user.entry(uid).or_default() += 1;
            let connection = Connection::new(connection, Framing::Packets);
            let mut guest = Guest::new(connection, who, peer.process);
            (guest.line, guest.kept) = (Line::Runs, Some(knows));
            self.guests.insert(id, guest);
            match (ended, knows) {
                (Some(ended), _) => self.detached(id, &ended, None),
                (None, Knows::Waits) => self.switched(id, Ok(())),
                (None, Knows::Runs) => {}
                (None, Knows::Leaves) => self.leaves(id),
            }
        }
        for (id, (connection, knows)) in connections {
            forget_line(id, knows);
            if knows == Knows::Waits {
                let fault = faults::not_in_kernel(0, AGAIN, NOT_CHANGED);
                // Who does not listen any more need not know.
                let _ = local_socket::send_now(&connection, &Reply::from(&fault).text(), &[]);
            }
        }
    }

    /// Takes paths up again that were registered with the daemon before.
    pub(super) fn take_back(&mut self, all: Vec<Kept>) {
        for kept in all {
            let number = kept.entry.number;
            if self.take_one_back(kept).is_none() {
                forget(number);
            }
        }
    }

    /// None: it has ended meanwhile, or is not what it should be.
    fn take_one_back(&mut self, kept: Kept) -> Option<()> {
        let Kept { entry, connection, way } = kept;
        let peer = abstract_socket::peer(&connection).ok()?;
        let process = local_socket::peer_process(&connection).ok()?;
        if peer.uid != entry.uid || !sys::descriptor::is_packet_socket(&way) {
            return None;
        }
        let (id, number) = (self.next, entry.number);
        let watched = [
            (connection.as_fd(), Part::Connection),
            (process.as_fd(), Part::Process),
            (way.as_fd(), Part::Way),
        ];
        for (descriptor, part) in watched {
            self.watcher.watch(descriptor, guest::number(id, part), Interest::Read).ok()?;
        }
        self.registry.restore(entry).then_some(())?;
        self.next = id + 1;
        let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        *self.per_user.entry(who.uid).or_default() += 1;
        let connection = Connection::new(connection, Framing::Packets);
        let mut guest = Guest::new(connection, who, peer.process);
        guest.path = Some(Worker { number, process, way: Connection::new(way, Framing::Packets) });
        self.guests.insert(id, guest);
        Some(())
    }
}
