//! What a service manager keeps for us while we start again: of each path the connection that
//! registered it, the way to its process, and what was registered (sd_notify(3), `FDSTORE=1`).
//!
//! So nobody notices that the daemon was started again: the other end of a connection that the
//! manager holds does not hang up. What is not kept (no manager, or one whose store is full) is
//! registered again by the processes of the paths, which look for the next daemon. Programs in the
//! kernel are not kept: who reads from one is told that the daemon has ended.

use super::Server;
use super::guest::{self, Guest, Part, Worker};
use super::registry::Entry;
use crate::connection::Connection;
use buffer::aggregate::access::Credentials;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use sys::local::{self, Form};
use sys::watcher::Interest;
use sys::{name, service};

/// A path that was kept.
#[derive(Debug)]
pub(super) struct Kept {
    entry: Entry,
    connection: OwnedFd,
    way: OwnedFd,
}

/// What the parts of a path are called in the store, behind its number.
const CONNECTION: &str = "connection";
const WAY: &str = "way";
const ENTRY: &str = "entry";
const PARTS: [&str; 3] = [CONNECTION, WAY, ENTRY];
/// What all of them are called before it.
const PATH: &str = "path-";
/// An entry is no longer than a line with a name and a log.
const ENTRY_MAX: usize = 256 << 10;

/// Tells what a manager has given apart: sockets to listen at, and paths.
pub(super) fn sorted(given: Vec<(String, OwnedFd)>) -> (Vec<OwnedFd>, Vec<Kept>) {
    let mut sockets = Vec::new();
    let mut paths: BTreeMap<u32, BTreeMap<String, OwnedFd>> = BTreeMap::new();
    for (name, descriptor) in given {
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
    (sockets, kept.collect())
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
    if let Ok(note) = service::note(&text) {
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
    let _ = service::tell_now(&format!("FDSTORE=1\nFDNAME={PATH}{number}-{part}"), &[descriptor]);
}

fn drop_part(number: u32, part: &str) {
    // What stays is told to be nothing's when we start again.
    let _ = service::tell_now(&format!("FDSTOREREMOVE=1\nFDNAME={PATH}{number}-{part}"), &[]);
}

impl Server {
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
        let peer = name::peer(&connection).ok()?;
        let process = local::process_of(&connection).ok()?;
        if peer.uid != entry.uid || !sys::descriptor::is_one(&way) {
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
        let connection = Connection::new(connection, Form::Packets);
        let mut guest = Guest::new(connection, who, peer.process);
        guest.path = Some(Worker { number, process, way: Connection::new(way, Form::Packets) });
        self.guests.insert(id, guest);
        Some(())
    }
}
