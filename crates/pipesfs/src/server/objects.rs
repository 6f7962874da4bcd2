//! Operations on objects without an open handle: lookup, attributes, links and listings.

use super::{Handle, Outcome, Server, lock};
use crate::content::{self, CountersByPath};
use crate::entries::{DirectoryObject, Entry, ObjectKey, ObjectKind};
use crate::mount::OtherUsersPaths;
use crate::protocol::{Attributes, DirectoryBuffer, EntryTimeout, Header, errno};
use crate::snapshot::{SNAPSHOT_LIFETIME, Snapshot};
use crate::tree::{DirectoryId, Tree, path_key};
use std::sync::Arc;
use streamline::paths::PathView;
use sys::net::RouteSocket;

/// Time for which the kernel may cache names and attributes.
pub(super) const DEFAULT_ENTRY_TIMEOUT: EntryTimeout = EntryTimeout(0, 100_000_000);

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

impl Server {
    pub(super) fn key(&self, inode: u64) -> Result<ObjectKey, i32> {
        lock(&self.inodes).key(inode).ok_or(errno::ESTALE)
    }

    pub(super) fn lookup(&self, header: &Header, name: &str) -> Result<Outcome, i32> {
        let parent = self.key(header.inode)?;
        let snapshot = self.snapshots.latest();
        let names = self.dynamic_names(&snapshot, &parent, header.uid)?;
        let key = snapshot.tree.lookup(&parent, name, &names);
        let key = key.ok_or_else(|| match unresponsive_path(&snapshot.tree, &parent) {
            // mkdir(2) requires ENOENT here; its edit then waits for the path to reply.
            Some(number) if !is_creating_directory(name, header.pid) => {
                self.record_unresponsive_path((&snapshot.tree, &parent), number, header.uid)
            }
            _ => errno::ENOENT,
        })?;
        if snapshot.tree.is_unlisted_class(&key) && is_creating_directory(name, header.pid) {
            // The kernel sends the request of mkdir(2) only if the preceding lookup fails.
            return Err(errno::ENOENT);
        }
        let inode = lock(&self.inodes).add_reference(&key);
        self.attributes(&key, inode).map(Outcome::Entry).inspect_err(|_| {
            lock(&self.inodes).forget(inode, 1);
        })
    }

    /// Returns the attributes of an object, with all permissions that its path allows. Fails with
    /// ENOENT if the node of the object no longer exists.
    pub(super) fn unrestricted_attributes(
        &self,
        key: &ObjectKey,
        inode: u64,
    ) -> Result<Attributes, i32> {
        let snapshot = self.snapshots.latest();
        let tree = &snapshot.tree;
        if *key != ObjectKey::directory(DirectoryId::Root) && !tree.contains(key) {
            return Err(errno::ENOENT);
        }
        let node = match &key.place {
            DirectoryId::Class(path, node, _) => DirectoryId::Node(*path, node.clone()),
            place => place.clone(),
        };
        let public =
            matches!(key.place, DirectoryId::Root | DirectoryId::Filters | DirectoryId::Machine);
        let directory = tree.directory(&node).filter(|_| !public);
        let (uid, started) = directory.map_or((self.owner.0, 0), |of| (of.uid, of.started));
        let (kind, read) = match key.kind() {
            ObjectKind::Directory => (S_IFDIR, if public { 0o500 } else { 0o700 }),
            ObjectKind::File if tree.is_writable(key) => (S_IFREG, 0o600),
            ObjectKind::File => (S_IFREG, 0o400),
            ObjectKind::Link => (S_IFLNK, 0o777),
        };
        // Every user may read the manual and list the existing paths.
        let read = if public { read | read >> 3 | read >> 6 } else { read };
        let root = *key == ObjectKey::directory(DirectoryId::Root);
        let read = match (root, self.for_all) {
            // Every user may create paths, but may remove only their own (sticky bit).
            (true, true) => 0o1777,
            (true, false) => 0o755,
            (false, _) => read,
        };
        let size = match &key.part {
            // Programs such as rsync and tar read only as many bytes as the size indicates.
            DirectoryObject::Text(text) if text.has_size() => {
                content::file_text(tree, key, &CountersByPath::new())
                    .map_or(0, |text| text.len() as u64)
            }
            DirectoryObject::Link(_) => {
                tree.link_target(key).map_or(0, |target| target.len() as u64)
            }
            _ => 0,
        };
        let (times, mode, links) = ([started; 3], kind | read, 1);
        let gid = self.owner.1;
        Ok(Attributes { inode, size, times, mode, links, uid, gid, ..Attributes::default() })
    }

    /// Returns the time for which the kernel may cache the name of an object. The time is 0 for a
    /// stream, so that each open of the stream gets a separate inode. Otherwise, only one program
    /// at a time could write to the stream, because the kernel locks the inode.
    pub(super) fn entry_timeout(&self, attributes: &Attributes) -> EntryTimeout {
        match self.key(attributes.inode) {
            Ok(ObjectKey { part: DirectoryObject::Stream(_), .. }) => EntryTimeout(0, 0),
            _ => DEFAULT_ENTRY_TIMEOUT,
        }
    }

    pub(super) fn read_link(&self, header: &Header) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        let target = self.snapshots.latest().tree.link_target(&key).ok_or(errno::ENOENT)?;
        Ok(Outcome::Data(target.into_bytes()))
    }

    pub(super) fn open_directory(&self, header: &Header) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        let snapshot = self.snapshots.latest();
        let names = self.dynamic_names(&snapshot, &key, header.uid)?;
        let entries = snapshot.tree.entries(&key, &names).ok_or(errno::ENOENT)?;
        let is_listed = |entry: &Entry| self.is_listed(&snapshot.tree, &entry.key, header.uid);
        let entries =
            entries.into_iter().filter(|entry| key.place != DirectoryId::Root || is_listed(entry));
        let entries = entries.map(|entry| (entry.name, entry.key)).collect();
        Ok(Outcome::Opened(self.add_handle(Handle::Directory(Arc::new(entries))), 0))
    }

    /// Returns true if a listing of the root directory contains an entry for this user.
    fn is_listed(&self, tree: &Tree, key: &ObjectKey, uid: u32) -> bool {
        let foreign = tree.directory(&key.place).filter(|_| key.place != DirectoryId::Root);
        let foreign = foreign.is_some_and(|directory| uid != 0 && directory.uid != uid);
        !foreign
            || match self.others {
                OtherUsersPaths::Nothing => false,
                OtherUsersPaths::Names => matches!(key.place, DirectoryId::Path(_)),
                OtherUsersPaths::All => true,
            }
    }

    pub(super) fn read_directory(
        &self,
        header: &Header,
        handle: u64,
        offset: u64,
        (size, plus): (u32, bool),
    ) -> Result<Outcome, i32> {
        let entries = match lock(&self.handles).get(&handle) {
            Some(Handle::Directory(entries)) => Arc::clone(entries),
            _ => return Err(errno::EINVAL),
        };
        let mut buffer = DirectoryBuffer::new(size as usize, plus);
        let dots = [".", ".."];
        for (number, name) in (0u64..).zip(dots).skip(usize::try_from(offset).unwrap_or(2)) {
            buffer.add(name, number + 1, (header.inode, S_IFDIR), None);
        }
        let first = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
        for (number, (name, key)) in entries.iter().enumerate().skip(first) {
            if !buffer.fits(name) {
                break;
            }
            let mode = match key.kind() {
                ObjectKind::Directory => S_IFDIR,
                ObjectKind::File => S_IFREG,
                ObjectKind::Link => S_IFLNK,
            };
            let next = number as u64 + 3;
            if plus {
                let inode = lock(&self.inodes).add_reference(key);
                match self.attributes(key, inode) {
                    Ok(attributes) => {
                        buffer.add(
                            name,
                            next,
                            (inode, mode),
                            Some((attributes, DEFAULT_ENTRY_TIMEOUT)),
                        );
                        continue;
                    }
                    Err(_) => lock(&self.inodes).forget(inode, 1),
                }
            }
            let inode = lock(&self.inodes).peek_inode(key);
            buffer.add(name, next, (inode, mode), None);
        }
        Ok(Outcome::Data(buffer.into_bytes()))
    }

    /// Returns the names in a listing that cannot be derived from the tree: reasons for losses, or
    /// interfaces of the machine. May block to query paths.
    fn dynamic_names(
        &self,
        snapshot: &Snapshot,
        key: &ObjectKey,
        uid: u32,
    ) -> Result<Vec<String>, i32> {
        Ok(match (&key.part, &key.place) {
            (DirectoryObject::Dropped, _) => {
                let counters = self.counters((&snapshot.tree, key), SNAPSHOT_LIFETIME, uid)?;
                content::losses(&snapshot.tree, key, &counters).into_keys().collect()
            }
            (DirectoryObject::Whole, DirectoryId::Machine) => {
                let links = RouteSocket::open().and_then(|links| links.list_interfaces());
                links.unwrap_or_default().into_iter().map(|one| one.name).collect()
            }
            _ => Vec::new(),
        })
    }
}

/// Returns the number of the path to which a directory belongs, if the entries of the directory are
/// unknown because the path has never replied.
fn unresponsive_path(tree: &Tree, parent: &ObjectKey) -> Option<u32> {
    let DirectoryId::Path(path) = &parent.place else { return None };
    let is_unknown =
        |view: &&PathView| path_key(view) == *path && view.silent && view.nodes.is_empty();
    tree.paths.iter().find(is_unknown).map(|view| view.path.number)
}

/// Returns true if a thread is in mkdir(2) for a directory of this name. Reads the name from the
/// thread's memory, which takes 15 µs.
fn is_creating_directory(name: &str, thread: u32) -> bool {
    let made = sys::task::mkdir_path_in_progress(thread);
    let last = |path: &[u8]| {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let path = path.get(..end).unwrap_or_default();
        path.rsplit(|byte| *byte == b'/').next() == Some(name.as_bytes())
    };
    made.as_deref().is_some_and(last)
}
