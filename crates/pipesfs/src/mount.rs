//! Mounting of the file system, directly or through a helper, depending on the permissions of the
//! caller.

use crate::server::Server;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The options with which the file system is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Directory of the daemon whose paths appear in the mount. `None` selects the first standard
    /// directory in which a daemon listens.
    pub daemon: Option<PathBuf>,
    /// True if all users of the machine have access, each to their own paths.
    pub for_all: bool,
    /// Rule that determines which paths of other users a listing of the root directory contains.
    pub others: OtherUsersPaths,
    /// True if mkdir(2) may create filters that open files or run programs.
    pub exec: bool,
    /// Time limit for a change to the tree; `None` for the default of 2 s. The kernel locks the
    /// directory during the change.
    pub edit_limit: Option<Duration>,
}

/// Rule that determines which paths of other users a user sees in the root directory. The user
/// cannot open the directories of these paths in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OtherUsersPaths {
    /// A user sees no paths of other users.
    Nothing,
    /// Paths that have a name. The entry of a path without a name would reveal the source of the
    /// path, which is part of the request.
    #[default]
    Names,
    /// A user sees all paths of other users.
    All,
}

/// A mounted file system. Dropping this value unmounts the file system.
#[derive(Debug)]
pub struct Mount {
    directory: PathBuf,
    server: Arc<Server>,
}

impl Mount {
    /// Mounts the file system on a directory, directly if the process runs as root, otherwise with
    /// the helper fusermount3.
    pub fn new(directory: &Path, options: MountOptions) -> sys::Result<Self> {
        let device = match sys::process::effective_ids().0 {
            0 => sys::fuse::mount(directory, options.for_all)?,
            _ => sys::fuse::mount_by_helper(directory)?,
        };
        Self::serve(directory, device, options)
    }

    /// Moves this process into a new user namespace, and mounts the file system on a directory
    /// there. The process must be single-threaded. Only this process and programs that it starts
    /// see the mount.
    pub fn new_in_user_namespace(directory: &Path, options: MountOptions) -> sys::Result<Self> {
        sys::fuse::enter_user_namespace()?;
        let device = sys::fuse::mount(directory, false)?;
        Self::serve(directory, device, options)
    }

    fn serve(
        directory: &Path,
        device: std::os::fd::OwnedFd,
        options: MountOptions,
    ) -> sys::Result<Self> {
        let server = Server::start(device.into(), (directory, options))?;
        Ok(Self { directory: directory.to_owned(), server })
    }

    /// Blocks the calling thread until the file system is unmounted.
    pub fn wait(&self) {
        self.server.wait();
    }

    /// Returns a descriptor that becomes readable when the file system is unmounted.
    #[must_use]
    pub fn end_descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.server.end_descriptor()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.server.has_ended() {
            // If unmounting fails, the file system ends with this process, and later operations on
            // it fail.
            let _ = sys::fuse::unmount(&self.directory);
        }
    }
}
