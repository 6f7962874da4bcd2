//! The cgroup v2 hierarchy: its mount point and its root group.
//!
//! A program attached to a group sees the traffic of all sockets in the group and its descendants.
//! Attaching needs only a descriptor of the group's directory, and no permission to create groups.
//! In a container, the visible root group is the container's own root group. If no mount is visible
//! (`ip netns exec` hides `/sys`), a process that is allowed to mount creates a detached mount,
//! which is invisible to others and disappears with its descriptor.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen};

use crate::error::{Error, ErrorContext as _, Result};

/// Path of this process's mount table.
const MOUNTS_FILE: &str = "/proc/self/mounts";

/// Returns the mount point of cgroup v2; `None` if cgroup v2 is not mounted. Ignores mounted v1
/// hierarchies.
#[must_use]
pub fn cgroup_mount() -> Option<PathBuf> {
    find_cgroup2_mount(&fs::read_to_string(MOUNTS_FILE).unwrap_or_default())
}

/// Returns a descriptor of the root group's directory.
///
/// Fails with ENOENT if cgroup v2 is not mounted and this process cannot mount it.
pub fn root_cgroup() -> Result<OwnedFd> {
    match cgroup_mount() {
        Some(path) => open_directory(&path),
        None => mount_detached_cgroup().map_err(|_| {
            let target = "cgroup2: nothing of that kind is mounted, and this process may not mount";
            Error::new("open", target, libc::ENOENT)
        }),
    }
}

/// Mounts cgroup v2 without attaching the mount to a directory. Returns a descriptor of the mount's
/// root directory.
fn mount_detached_cgroup() -> rustix::io::Result<OwnedFd> {
    let hierarchy = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(hierarchy.as_fd())?;
    fsmount(hierarchy.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    let target = format!("the control groups in {}", path.display());
    Ok(fs::File::open(path).context("open", target)?.into())
}

/// Returns the mount point of the first cgroup v2 entry of a mount table; `None` if there is none.
fn find_cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(decode_octal_escapes(place)))
    })
}

/// Decodes the octal escapes of a mount table (space, tab, newline, backslash).
fn decode_octal_escapes(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_mount_is_found_anywhere() {
        let beside = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(find_cgroup2_mount(beside), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let odd = "none /mnt/a\\040b cgroup2 rw 0 0\ncgroup2 /later cgroup2 rw 0 0\n";
        assert_eq!(find_cgroup2_mount(odd), Some(PathBuf::from("/mnt/a b")));
        for none in ["", "cgroup2", "cgroup2 /x cgroup rw 0 0"] {
            assert_eq!(find_cgroup2_mount(none), None, "{none:?}");
        }
    }
}
