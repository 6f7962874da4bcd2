//! Persistence across a restart of the daemon: descriptors stored with the service manager
//! (sd_notify(3), `FDSTORE=1`).
//!
//! For each path, the descriptors are its registering connection, the admission socket of its
//! process, and its entry. A stored connection does not hang up, so clients do not notice the
//! restart. Paths that were not stored (no manager, or its store was full) register again with the
//! new daemon.
//!
//! For kernel requests, the descriptors are links, programs and maps, with a note that describes
//! them ([`engine::kernel::shared_attach_point::DescriptorKeeper`]), and the connection of each
//! client, under a name that encodes its state ([`KnownRequestState`]). The programs keep running
//! between two daemons; the next daemon adopts them under its own policy and answers outstanding
//! calls. Descriptors of kernel requests are stored only if the manager announces a store
//! (`FDSTORE` in the environment, systemd 254); otherwise readers are notified that the daemon has
//! exited.

use super::registry::PathEntry;
use engine::kernel::shared_attach_point::{DescriptorKeeper, PERSISTED_NAME_PREFIX};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use sys::{local_socket, service};

/// A path whose descriptors the service manager has stored.
#[derive(Debug)]
pub(super) struct StoredPath {
    pub(super) entry: PathEntry,
    pub(super) connection: OwnedFd,
    pub(super) admissions: OwnedFd,
}

/// Suffix of the name under which a path's registering connection is stored.
const CONNECTION_SUFFIX: &str = "connection";
/// Suffix of the name under which a path's admission socket is stored.
const ADMISSIONS_SUFFIX: &str = "way";
/// Suffix of the name under which a path's entry is stored.
const ENTRY_SUFFIX: &str = "entry";
/// The suffixes of all stored descriptors of a path.
const PATH_DESCRIPTOR_SUFFIXES: [&str; 3] = [CONNECTION_SUFFIX, ADMISSIONS_SUFFIX, ENTRY_SUFFIX];
/// Prefix of the names under which a path's descriptors are stored.
const PATH_DESCRIPTOR_PREFIX: &str = "path-";
/// Prefix of the name under which the connection of a client with a kernel request is stored while
/// the request is running. The client number follows.
const RUNNING_REQUEST_PREFIX: &str = "line-";
/// Prefix of the name under which the connection of a client with a kernel request is stored while
/// the request is prepared and waits to replace another request.
const PREPARED_REQUEST_PREFIX: &str = "waits-";
/// Prefix of the name under which the connection of a client with a kernel request is stored while
/// the client waits for the final counters.
const DETACHING_CLIENT_PREFIX: &str = "leaves-";
/// Maximum wait until the service manager accepts a message. Its socket holds only a few messages
/// (`net.unix.max_dgram_qlen`), and is soon full if the manager gets no processor time.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a stored entry in bytes. An entry contains a request, a name and the name of a
/// log file.
const ENTRY_BYTES_MAX: usize = 256 << 10;

/// The descriptors returned by the service manager, by purpose.
#[derive(Debug, Default)]
pub(super) struct StoredDescriptors {
    /// Listening sockets.
    pub(super) sockets: Vec<OwnedFd>,
    pub(super) paths: Vec<StoredPath>,
    /// Descriptors of stored kernel requests (links, programs, maps and notes), each with its
    /// stored name.
    pub(super) kernel_objects: Vec<(String, OwnedFd)>,
    /// Connection of each client with a kernel request, by client number. The name under which a
    /// connection is stored encodes the state of the request, which is stored here beside it.
    pub(super) kernel_clients: BTreeMap<u64, (OwnedFd, KnownRequestState)>,
}

/// The state of a kernel request according to the last reply that its client received or the last
/// call that its client made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum KnownRequestState {
    /// The request is prepared to replace another request.
    Prepared,
    /// The request is running.
    Running,
    /// The request is being detached.
    Detaching,
}

impl KnownRequestState {
    /// All states, in the order in which a request passes through them.
    const ALL: [Self; 3] = [Self::Prepared, Self::Running, Self::Detaching];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Running => RUNNING_REQUEST_PREFIX,
            Self::Prepared => PREPARED_REQUEST_PREFIX,
            Self::Detaching => DETACHING_CLIENT_PREFIX,
        }
    }
}

/// Sorts descriptors from the service manager by purpose, according to their names. If only some
/// descriptors of a path are stored, removes them from the store and ends the path's connection, so
/// that the path registers again. If the connection of a client is stored under two states, removes
/// the connection under the earlier state from the store.
pub(super) fn group_stored_descriptors(given: Vec<(String, OwnedFd)>) -> StoredDescriptors {
    let StoredDescriptors {
        mut sockets,
        kernel_objects: mut kernel,
        kernel_clients: mut lines,
        ..
    } = StoredDescriptors::default();
    let mut paths: BTreeMap<u32, BTreeMap<String, OwnedFd>> = BTreeMap::new();
    for (name, descriptor) in given {
        if name.starts_with(PERSISTED_NAME_PREFIX) {
            kernel.push((name, descriptor));
            continue;
        }
        let of_line = |knows: KnownRequestState| {
            Some((name.strip_prefix(knows.name())?.parse().ok()?, knows))
        };
        if let Some((client, knows)) = KnownRequestState::ALL.into_iter().find_map(of_line) {
            // A crash between two updates leaves both names, of which the later state is valid.
            let known: Option<&(OwnedFd, KnownRequestState)> = lines.get(&client);
            let earlier = match known.map(|(_, known)| *known) {
                Some(known) if known >= knows => Some(knows),
                known => {
                    lines.insert(client, (descriptor, knows));
                    known
                }
            };
            earlier.into_iter().for_each(|earlier| discard_connection(client, earlier));
            continue;
        }
        let parts = name.strip_prefix(PATH_DESCRIPTOR_PREFIX).and_then(|rest| rest.split_once('-'));
        match parts.and_then(|(number, part)| Some((number.parse().ok()?, part.to_owned()))) {
            Some((number, part)) => {
                paths.entry(number).or_default().insert(part, descriptor);
            }
            // The entry was written by another version and cannot be interpreted.
            None if name.starts_with(PATH_DESCRIPTOR_PREFIX) => {}
            None => sockets.push(descriptor),
        }
    }
    let kept = paths.into_iter().filter_map(|(number, mut parts)| {
        let entry = read_entry(&parts).filter(|entry| entry.number == number);
        let connection = parts.remove(CONNECTION_SUFFIX);
        match (entry, connection, parts.remove(ADMISSIONS_SUFFIX)) {
            (Some(entry), Some(connection), Some(admissions)) => {
                Some(StoredPath { entry, connection, admissions })
            }
            (_, connection, _) => {
                discard_stored_path(number, connection.as_ref().map(OwnedFd::as_fd));
                None
            }
        }
    });
    StoredDescriptors {
        paths: kept.collect(),
        sockets,
        kernel_objects: kernel,
        kernel_clients: lines,
    }
}

/// Reads the stored entry of a path.
fn read_entry(parts: &BTreeMap<String, OwnedFd>) -> Option<PathEntry> {
    let text = File::from(parts.get(ENTRY_SUFFIX)?.try_clone().ok()?);
    let mut bytes =
        vec![0; usize::try_from(text.metadata().ok()?.len()).ok()?.min(ENTRY_BYTES_MAX)];
    text.read_exact_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Stores a path. If this fails, the path registers again with the next daemon.
pub(super) fn store_path(
    entry: &PathEntry,
    connection: BorrowedFd<'_>,
    admissions: BorrowedFd<'_>,
) {
    // After a failure the rest is not tried: the next daemon discards an incomplete path.
    let _ = store_path_descriptor(entry.number, CONNECTION_SUFFIX, connection)
        .and_then(|()| store_path_descriptor(entry.number, ADMISSIONS_SUFFIX, admissions))
        .and_then(|()| store_entry(entry));
}

fn store_entry(entry: &PathEntry) -> sys::Result<()> {
    if !service::has_service_manager() {
        return Ok(());
    }
    let text = serde_json::to_vec(entry).unwrap_or_default();
    store_path_descriptor(entry.number, ENTRY_SUFFIX, service::memfd_from_bytes(&text)?.as_fd())
}

/// Replaces the stored entry of a path.
pub(super) fn replace_stored_entry(entry: &PathEntry) {
    // Without an entry the path is incomplete, and registers again with the next daemon.
    let _ = remove_stored_descriptor(&path_descriptor_name(entry.number, ENTRY_SUFFIX))
        .and_then(|()| store_entry(entry));
}

/// Removes all descriptors stored for a path, and ends its connection to the daemon if there still
/// is one. Closing the connection would not suffice: the service manager holds a duplicate, so the
/// process of the path would not notice that the path is no longer registered.
pub(super) fn discard_stored_path(number: u32, connection: Option<BorrowedFd<'_>>) {
    // The peer may have closed its end.
    let _ = connection.map(local_socket::hang_up);
    // The next daemon discards what a failure leaves.
    let _ = PATH_DESCRIPTOR_SUFFIXES
        .into_iter()
        .try_for_each(|part| remove_stored_descriptor(&path_descriptor_name(number, part)));
}

fn path_descriptor_name(number: u32, part: &str) -> String {
    format!("{PATH_DESCRIPTOR_PREFIX}{number}-{part}")
}

fn store_path_descriptor(number: u32, part: &str, descriptor: BorrowedFd<'_>) -> sys::Result<()> {
    let name = path_descriptor_name(number, part);
    service::notify_within(&format!("FDSTORE=1\nFDNAME={name}"), &[descriptor], STORE_TIMEOUT)
        .map(drop)
}

fn remove_stored_descriptor(name: &str) -> sys::Result<()> {
    service::notify_within(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[], STORE_TIMEOUT).map(drop)
}

/// The descriptor store of the service manager, used for kernel objects.
#[derive(Debug)]
pub(super) struct ServiceManagerStore;

impl DescriptorKeeper for ServiceManagerStore {
    fn store(&self, name: &str, descriptor: BorrowedFd<'_>) {
        // With `FDPOLL=0`, the manager does not watch the descriptor. If storing fails, the next
        // daemon cannot adopt the attach point and removes it.
        let lines = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        let _ = service::notify_within(&lines, &[descriptor], STORE_TIMEOUT);
    }

    fn discard(&self, name: &str) {
        // The next daemon recognizes and discards stale objects.
        let _ = remove_stored_descriptor(name);
    }
}

/// Removes the stored connection of a client with a kernel request. `known` is the state under
/// which the connection is stored.
pub(super) fn discard_connection(client: u64, known: KnownRequestState) {
    if service::can_store_descriptors() {
        ServiceManagerStore.discard(&format!("{}{client}", known.name()));
    }
}
