//! Operations that change the tree. They run in threads that may block.

use super::{Outcome, Server, lock};
use crate::edits::carry_out::{Caller, ChangeResult, carry_out_change};
use crate::edits::plan::{
    PathEdit, PlannedChange, plan_mkdir, plan_rmdir, plan_symlink, plan_unlink,
};
use crate::edits::{Refusal, added_subdirectory, moved_directories, plan_rename};
use crate::entries::{DirectoryObject, ObjectKey, Stream};
use crate::protocol::{Header, TreeEdit, errno};
use crate::snapshot::{SNAPSHOT_LIFETIME, Snapshot};
use crate::streams::{StreamContinuation, TapConnection};
use crate::tree::{Child, DirectoryId, Tree, path_key};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of attempts at an edit. After an attempt fails because another edit of the path
/// was applied first, the next attempt plans the edit again.
const ATTEMPTS_MAX: usize = 4;

impl Server {
    /// Makes a change to the tree. Blocks for at most the time limit of the mount.
    pub(super) fn edit(&self, header: &Header, edit: &TreeEdit) -> Result<Outcome, i32> {
        let caller = self.caller(header);
        let parent = self.key(header.inode)?;
        let into = match edit {
            TreeEdit::Rename { directory, .. } => self.key(*directory)?,
            _ => parent.clone(),
        };
        self.try_edit(&caller, edit, &parent, &into).map_err(|Refusal { errno, why }| {
            let errno = match edit {
                // On EINVAL, mv(1) would print that a directory cannot be moved into itself.
                TreeEdit::Rename { .. } if errno == errno::EINVAL => errno::EOPNOTSUPP,
                _ => errno,
            };
            let tree = &self.snapshots.latest().tree;
            let path = |key: &ObjectKey, name: &str| {
                let directory = tree.path_from_root(key);
                let slash = if directory.is_empty() { "" } else { "/" };
                format!("{directory}{slash}{name}")
            };
            let what = match edit {
                TreeEdit::MakeDirectory(name) => format!("mkdir {}", path(&parent, name)),
                TreeEdit::RemoveDirectory(name) => format!("rmdir {}", path(&parent, name)),
                TreeEdit::Unlink(name) => format!("rm {}", path(&parent, name)),
                TreeEdit::Rename { from, to, .. } => {
                    format!("mv {} {}", path(&parent, from), path(&into, to))
                }
                TreeEdit::MakeLink { name, target } => {
                    format!("ln -s {target} {}", path(&parent, name))
                }
                TreeEdit::HardLink { name, .. } => format!("ln {}", path(&parent, name)),
            };
            self.record_failure(header.uid, errno, format!("{what}: {why}"))
        })
    }

    /// Returns the caller of an operation, with the time limit of the mount.
    pub(super) fn caller(&self, header: &Header) -> Caller {
        Caller {
            user: (header.uid, header.gid),
            is_other: header.uid != self.owner.0,
            deadline: Instant::now() + self.edit_limit,
        }
    }

    fn try_edit(
        &self,
        caller: &Caller,
        edit: &TreeEdit,
        parent: &ObjectKey,
        into: &ObjectKey,
    ) -> Result<Outcome, Refusal> {
        let mut age = SNAPSHOT_LIFETIME;
        for _ in 0..ATTEMPTS_MAX {
            let before = self.snapshots.refresh(age);
            let planned = match self.plan(&before.tree, edit, parent, into) {
                Ok(planned) => planned,
                // The snapshot may be outdated, so the edit is planned again from a new one.
                Err(_) if age > Duration::ZERO => {
                    age = Duration::ZERO;
                    continue;
                }
                Err(refusal) => return Err(refusal),
            };
            let moved = moved_nodes(&before.tree, &planned, (edit, parent));
            self.streams.mark_moving_streams(&moved);
            let done = carry_out_change(&before.tree, &planned, caller, &self.snapshots);
            age = Duration::ZERO;
            if !matches!(done, Ok(ChangeResult::Made(_))) {
                self.streams.unmark_moving_streams(&moved);
            }
            let mut done = done?;
            if matches!(done, ChangeResult::Outdated) {
                continue;
            }
            let after = match planned {
                PlannedChange::Nothing => Arc::clone(&before),
                PlannedChange::Edit(PathEdit { path, into: None, .. }) if !caller.is_other => {
                    let nodes = match &mut done {
                        ChangeResult::Made(nodes) => nodes.take(),
                        _ => None,
                    };
                    self.snapshots.update_from_reply(&before, path.number, nodes)
                }
                _ => self.snapshots.refresh(age),
            };
            let reply = self.reply_to_edit(edit, (parent, into), (&before, &after), &done);
            self.streams.unmark_moving_streams(&moved);
            return reply;
        }
        let why = "other edits of the path came first, each time: try again";
        Err(Refusal::new(errno::EBUSY, why))
    }

    fn plan(
        &self,
        tree: &Tree,
        edit: &TreeEdit,
        parent: &ObjectKey,
        into: &ObjectKey,
    ) -> Result<PlannedChange, Refusal> {
        match edit {
            TreeEdit::MakeDirectory(name) => plan_mkdir(tree, (parent, name), &self.permitted),
            TreeEdit::RemoveDirectory(name) => plan_rmdir(tree, (parent, name)),
            TreeEdit::Unlink(name) => plan_unlink(tree, (parent, name)),
            TreeEdit::Rename { from, to, flags, .. } => {
                let may = (*flags, &self.permitted);
                plan_rename(tree, (parent, from), (into, to), may)
            }
            TreeEdit::MakeLink { name, target } => {
                plan_symlink(tree, (parent, name), target, &self.permitted)
            }
            TreeEdit::HardLink { .. } => {
                let why = "a filter has one directory: `ln -s` gives it a further parent";
                Err(Refusal::new(errno::EPERM, why))
            }
        }
    }

    /// Returns the reply to a change of the tree that has been made. Also updates the inode numbers
    /// and the open streams of the objects that the change has moved or removed.
    fn reply_to_edit(
        &self,
        edit: &TreeEdit,
        (parent, into): (&ObjectKey, &ObjectKey),
        (before, after): (&Snapshot, &Snapshot),
        done: &ChangeResult,
    ) -> Result<Outcome, Refusal> {
        let (old, new) = (&before.tree, &after.tree);
        match edit {
            TreeEdit::RemoveDirectory(name) | TreeEdit::Unlink(name) => {
                if let Some(key) = old.lookup(parent, name, &[]) {
                    // The kernel regards the inode as deleted, even if its name exists again.
                    lock(&self.inodes).detach(&key);
                }
                Ok(Outcome::Done)
            }
            TreeEdit::Rename { from, to, .. } => {
                let places = moved_directories((old, (parent, from)), (new, (into, to)));
                let mut inodes = lock(&self.inodes);
                inodes.update_moved_objects(&places);
                if places.keys().any(|place| matches!(place, DirectoryId::Class(..))) {
                    // The kernel has moved the inode of the class to the caller's target, while the
                    // tree has the class below its new filter. If a lookup there returned the same
                    // inode, the kernel would have to move it again, which fails in the middle of a
                    // rename (ESTALE).
                    inodes.renumber(&places);
                }
                drop(inodes);
                self.continue_moved_streams(new, &places);
                Ok(Outcome::Done)
            }
            TreeEdit::MakeLink { name, .. } => {
                self.entry_outcome(&parent.sibling(DirectoryObject::Link(name.clone())))
            }
            TreeEdit::MakeDirectory(name) => {
                let key = match done {
                    ChangeResult::Started(number) => started_directory(new, *number),
                    _ => added_subdirectory((old, new), (parent, name))
                        // The new directory may be a class that no arc carries.
                        .or_else(|| new.lookup(parent, name, &[])),
                };
                self.entry_outcome(&key.ok_or_else(Refusal::object_removed)?)
            }
            TreeEdit::HardLink { .. } => Ok(Outcome::Done),
        }
    }

    /// Continues the open streams of nodes that have moved to another path, with new taps at these
    /// nodes. `places` maps the old directory of each node to the new one.
    fn continue_moved_streams(&self, new: &Tree, places: &HashMap<DirectoryId, DirectoryId>) {
        for (handle, place, form, uid) in self.streams.streams_awaiting_continuation() {
            let stays = new.directory(&place.without_class()).is_some();
            let Some(to) = places.get(&place.without_class()).filter(|_| !stays) else { continue };
            let to = place.id_after_move(to);
            let Some(directory) = new.directory(&to.without_class()) else { continue };
            let stream = Stream { form, from: None };
            let Some(member) = directory.members.first() else { continue };
            match self.tap(new, *member, to.class(), &stream) {
                Ok((tap, input, before)) => {
                    if before > 0 {
                        let why = format!(
                            "{before} blocks left the filter at its new place before its reader \
                             followed"
                        );
                        self.failures.set_failure(uid, why);
                    }
                    let (tap, totals) =
                        (TapConnection::new(tap), self.totals.directory_totals(&to, new));
                    let next = StreamContinuation { input, tap, place: to, totals };
                    self.streams.set_continuation(handle, next);
                }
                Err((_, why)) => self.failures.set_failure(uid, why),
            }
        }
    }

    fn entry_outcome(&self, key: &ObjectKey) -> Result<Outcome, Refusal> {
        let inode = lock(&self.inodes).add_reference(key);
        self.attributes(key, inode).map(Outcome::Entry).map_err(|_| {
            lock(&self.inodes).forget(inode, 1);
            Refusal::object_removed()
        })
    }
}

/// Returns the directories whose nodes a planned edit moves to another path; empty if the edit
/// moves none.
fn moved_nodes(
    tree: &Tree,
    planned: &PlannedChange,
    (edit, parent): (&TreeEdit, &ObjectKey),
) -> HashSet<DirectoryId> {
    let mut nodes = HashSet::new();
    let (PlannedChange::Edit(PathEdit { into: Some(_), .. }), TreeEdit::Rename { from, .. }) =
        (planned, edit)
    else {
        return nodes;
    };
    let mut open: Vec<DirectoryId> =
        tree.lookup(parent, from, &[]).map(|key| key.place).into_iter().collect();
    while let Some(place) = open.pop() {
        let children = tree.directory(&place).map(|directory| directory.children.as_slice());
        for (_, child) in children.unwrap_or_default() {
            if let Child::Directory(at) = child
                && let Some(directory) = tree.directories.get(*at)
            {
                open.push(directory.place.clone());
            }
        }
        if matches!(place, DirectoryId::Node(..)) {
            nodes.insert(place);
        }
    }
    nodes
}

/// Returns the directory of a path that has just started: the path's own directory, or the
/// directory of its source. Returns `None` if the tree does not contain the path.
fn started_directory(tree: &Tree, number: u32) -> Option<ObjectKey> {
    let at = tree.paths.iter().position(|view| view.path.number == number)?;
    let own = DirectoryId::Path(path_key(tree.paths.get(at)?));
    if tree.directory(&own).is_some() {
        return Some(ObjectKey::directory(own));
    }
    let has_member = |directory: &&crate::tree::Directory| {
        directory.members.iter().any(|member| member.path == at)
    };
    tree.directories.iter().find(has_member).map(|found| ObjectKey::directory(found.place.clone()))
}
