//! Changes to the tree. Each change is an edit of a path, which the path's own process applies.
//!
//! - [`plan`]: computes the edit for a change, from the tree alone; [`places`]: names of outputs
//!   and parents in the syntax of edits;
//! - [`carry_out`]: has the path's process apply the edit on behalf of the caller;
//! - [`start`]: starts new paths.

mod below_mount;
pub(crate) mod carry_out;
mod places;
pub(crate) mod plan;
mod rename;
mod start;

#[cfg(test)]
mod tests;

use crate::entries::ObjectKey;
use crate::protocol::errno;
use crate::tree::{Child, DirectoryId, Tree};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

pub(crate) use rename::plan_rename;

/// Default time limit for an edit.
pub const EDIT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// A refusal of a change, with its reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// Error number that the calling process gets.
    pub(crate) errno: i32,
    /// Reason for the refusal. The user can read it in the file `.error`.
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }

    /// Returns the refusal (ENOENT) for an object that no longer exists.
    pub(crate) fn object_removed() -> Self {
        Self::new(errno::ENOENT, "it no longer exists")
    }
}

/// The restrictions of a mount on new filters.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountPermissions {
    /// True if mkdir(2) may create filters that open files or run programs.
    pub(crate) exec: bool,
    /// Directory of the mount. An absolute link target with this prefix leads into the mount.
    pub(crate) mount: std::path::PathBuf,
}

/// Returns the subdirectory that a change has added to the directory `parent`. `old` and `new` are
/// the trees before and after the change. Prefers the new subdirectory called `name` to others.
/// Returns `None` if there is no new subdirectory.
pub(crate) fn added_subdirectory(
    (old, new): (&Tree, &Tree),
    (parent, name): (&ObjectKey, &str),
) -> Option<ObjectKey> {
    let directory = new.directory(&parent.place)?;
    let is_new = |key: &ObjectKey| old.directory(&key.place).is_none();
    let children = directory.children.iter().filter_map(|(known, child)| {
        let Child::Directory(at) = child else { return None };
        Some((known, ObjectKey::directory(new.directories.get(*at)?.place.clone())))
    });
    let added: Vec<_> = children.filter(|(_, key)| is_new(key)).collect();
    let named = added.iter().find(|(known, _)| *known == name);
    named.or_else(|| added.first()).map(|(_, key)| key.clone())
}

/// Returns the new identity of each directory in a subtree that rename(2) has moved, by the old
/// identity. `old` and `new` are the trees before and after the move. The identity of a directory
/// changes when its node moves to another path.
pub(crate) fn moved_directories(
    (old, (parent, name)): (&Tree, (&ObjectKey, &str)),
    (new, (into, to)): (&Tree, (&ObjectKey, &str)),
) -> HashMap<DirectoryId, DirectoryId> {
    let mut places = HashMap::new();
    let from = old.lookup(parent, name, &[]);
    if let (Some(from), Some(to)) = (from, added_subdirectory((old, new), (into, to))) {
        let mut visited = HashSet::new();
        match (&from.place, &to.place) {
            (DirectoryId::Class(_, _, class), DirectoryId::Node(path, node)) => {
                let class = DirectoryId::Class(*path, node.clone(), class.clone());
                collect_moved_directories(
                    (old, &from.place),
                    (new, &class),
                    &mut places,
                    &mut visited,
                );
            }
            _ => collect_moved_directories(
                (old, &from.place),
                (new, &to.place),
                &mut places,
                &mut visited,
            ),
        }
    }
    places
}

/// Adds the new identity of each directory in a moved subtree to `places`, by the old identity.
/// `from` and `to` are the top directories of the subtree before and after the move. Two
/// directories correspond if they have the same path below these.
fn collect_moved_directories(
    (old, from): (&Tree, &DirectoryId),
    (new, to): (&Tree, &DirectoryId),
    places: &mut HashMap<DirectoryId, DirectoryId>,
    visited: &mut HashSet<DirectoryId>,
) {
    if !visited.insert(from.clone()) {
        return;
    }
    places.insert(from.clone(), to.clone());
    let (Some(before), Some(after)) = (old.directory(from), new.directory(to)) else { return };
    for (name, child) in &before.children {
        let same = after.children.iter().find(|(known, _)| known == name);
        if let (Child::Directory(one), Some((_, Child::Directory(other)))) = (child, same)
            && let (Some(one), Some(other)) =
                (old.directories.get(*one), new.directories.get(*other))
        {
            collect_moved_directories((old, &one.place), (new, &other.place), places, visited);
        }
    }
}
