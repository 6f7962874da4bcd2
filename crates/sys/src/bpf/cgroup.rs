//! The hierarchy of control groups: where it is, and its first group.
//!
//! Programs at a group see what the sockets in it and below it exchange. In: the table of mounts.
//! Out: a descriptor, which is all that attaching needs; nothing is written there, so the right to
//! make groups is not needed. In a container the first group that can be seen is that of the
//! container. Where no mount can be seen (`ip netns exec` hides `/sys`), whoever may mount has one
//! of its own, which nobody sees and which goes with the descriptor.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen};

use crate::error::{Error, Result};

/// The table of mounts of this process.
const MOUNTS: &str = "/proc/self/mounts";

/// Where the hierarchy of version 2 is mounted, alone or beside the older ones; none if it is not.
#[must_use]
pub fn cgroup_mount() -> Option<PathBuf> {
    first_of(&fs::read_to_string(MOUNTS).unwrap_or_default())
}

/// Opens its first group.
pub fn root_cgroup() -> Result<OwnedFd> {
    match cgroup_mount() {
        Some(path) => open(&path),
        None => mount().map_err(|_| {
            let target = "cgroup2: nothing of that kind is mounted, and this process may not mount";
            Error::new("open", target, libc::ENOENT)
        }),
    }
}

/// Mounts it nowhere.
fn mount() -> rustix::io::Result<OwnedFd> {
    let hierarchy = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(hierarchy.as_fd())?;
    fsmount(hierarchy.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn open(path: &Path) -> Result<OwnedFd> {
    let file = fs::File::open(path).map_err(|error| {
        let target = format!("the control groups in {}", path.display());
        Error::new("open", target, error.raw_os_error().unwrap_or(0))
    })?;
    Ok(file.into())
}

/// The first mount of the right kind in a table.
fn first_of(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(unescaped(place)))
    })
}

/// Spaces and their like stand as three octal digits behind a backslash there.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_wherever_it_is() {
        let beside = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(first_of(beside), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let odd = "none /mnt/a\\040b cgroup2 rw 0 0\ncgroup2 /later cgroup2 rw 0 0\n";
        assert_eq!(first_of(odd), Some(PathBuf::from("/mnt/a b")));
        for none in ["", "cgroup2", "cgroup2 /x cgroup rw 0 0"] {
            assert_eq!(first_of(none), None, "{none:?}");
        }
    }
}
