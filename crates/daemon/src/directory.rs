//! The directory of a daemon, and its lock. (RELIABILITY T13)
//!
//! ```text
//! DIR/ids                      the next dbuf id; stays while a process may use such ids
//! DIR/lock                     locked by the running daemon; contains its process id
//! DIR/io.streamline            stream socket, for common tools
//! DIR/io.streamline.packets    packet socket, for messages with descriptors
//! ```
//!
//! The directory must belong to root or to the daemon's user, and no other user may write to it.
//! The daemon opens it once and uses the descriptor, so later changes to its path have no effect.

use member::daemon_directories::socket_name;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use sys::abstract_socket::AcceptedContent;
use sys::local_socket::{self, Framing};
use sys::rollback::{RollbackLog, StepResource};

const LOCK_FILE: &str = "lock";
/// Maximum number of connections waiting to be accepted on a socket.
const BACKLOG_MAX: i32 = 1024;

/// An error that keeps a daemon from using a directory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds the lock of the directory.
    #[error(
        "another daemon already uses {}{}",
        .directory.display(),
        locked_directory_remedy(*.process)
    )]
    Held {
        /// Path of the directory that is in use.
        directory: PathBuf,
        /// Id of the process that holds the lock, or `None` if the lock file does not contain it.
        process: Option<u32>,
    },
    /// Another user could tamper with the directory.
    #[error(
        "{} is not a safe directory for a daemon: {why}; correct its owner or mode, or remove it",
        .directory.display()
    )]
    Unsafe {
        /// Path of the directory that the daemon refuses to use.
        directory: PathBuf,
        /// Reason why the directory is unsafe, as a clause for the user.
        why: String,
    },
    /// No directory for this user can be determined.
    #[error(
        "no directory for the daemon of this user: XDG_RUNTIME_DIR is not a private directory, \
         /run/user has none, and HOME is not set: set one of them, or use --socket"
    )]
    NoDirectoryFound,
    /// A system call failed.
    #[error(transparent)]
    System(#[from] sys::Error),
}

/// Formats the remedy for a directory that is locked by another daemon.
fn locked_directory_remedy(process: Option<u32>) -> String {
    let Some(process) = process else {
        return "; choose another directory with --socket".to_owned();
    };
    format!(
        ": process {process}{}; end it with `kill {process}`, or choose another directory with \
         --socket",
        format_command_suffix(process)
    )
}

/// Formats the command name of a process for a message, such as ` (streamline)`. Returns an empty
/// text if the process has exited.
fn format_command_suffix(process: u32) -> String {
    command_name(process).map_or_else(String::new, |name| format!(" ({name})"))
}

/// Returns the command name of a process, or `None` if the process has exited.
pub(crate) fn command_name(process: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// A daemon's directory, locked against other daemons for as long as this value exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: OwnedFd,
    lock: File,
    /// True if this process created the directory, and must remove it when the daemon ends.
    is_own: bool,
}

impl Directory {
    /// Creates the directory if it does not exist, and locks it. If `open` is true, the permissions
    /// let other users connect to the daemon; if it is false, missing parent directories are
    /// created, too.
    ///
    /// Fails with [`DirectoryError::Held`] while another daemon holds the lock.
    pub fn acquire(path: &Path, open: bool, steps: &RollbackLog) -> Result<Self, DirectoryError> {
        let mark = steps.savepoint();
        let taken = Self::acquire_without_rollback(path, open, steps);
        if taken.is_err() {
            steps.roll_back_to(mark);
        }
        taken
    }

    fn acquire_without_rollback(
        path: &Path,
        open: bool,
        steps: &RollbackLog,
    ) -> Result<Self, DirectoryError> {
        steps.announce_creation(StepResource::File, "the directory of a daemon")?;
        let mode = if open { 0o755 } else { 0o700 };
        if let Some(base) = path.parent().filter(|_| !open) {
            // A user's state directories are created as private directories.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(base);
            made.map_err(|error| system_error("mkdir", base, &error))?;
        }
        let is_own = match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(system_error("mkdir", path, &error)),
        };
        if is_own {
            let own = path.to_owned();
            // The removal succeeds only if the directory is empty.
            steps.on_rollback(format!("directory {}", path.display()), move || {
                drop(fs::remove_dir(own))
            });
        }
        steps.announce_creation(StepResource::Descriptor, "the directory of a daemon")?;
        let directory = local_socket::open_directory(path).map_err(|error| match error.errno {
            ELOOP | ENOTDIR => {
                unsafe_directory_error(path, "it is not a directory, or is a symbolic link")
            }
            _ => DirectoryError::System(error),
        })?;
        check_directory_owner_and_mode(path, &directory)?;
        steps.announce_creation(StepResource::File, "the lock of a daemon")?;
        let lock = Self::lock_file(path, &directory)?;
        Ok(Self { path: path.to_owned(), directory, lock, is_own })
    }

    /// Creates and locks the lock file, and writes the process id into it.
    fn lock_file(path: &Path, directory: &OwnedFd) -> Result<File, DirectoryError> {
        loop {
            let file = local_socket::open_private_file(directory, LOCK_FILE)?;
            if !local_socket::try_lock(&file)? {
                let mut text = String::new();
                // The holder of the lock may not have written its process id yet.
                let _ = File::from(file).take(32).read_to_string(&mut text);
                let process = text.trim().parse().ok();
                return Err(DirectoryError::Held { directory: path.to_owned(), process });
            }
            // A daemon removes its lock file when it ends, so the locked file may already be
            // unlinked. Try again in that case.
            if local_socket::is_same_file(directory, LOCK_FILE, &file) {
                let mut file = File::from(file);
                let written = file
                    .set_len(0)
                    .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
                written.map_err(|error| system_error("write", &path.join(LOCK_FILE), &error))?;
                return Ok(file);
            }
        }
    }

    /// Creates the daemon's listening socket for this framing in the directory. Replaces a stale
    /// socket of an earlier daemon. If `open` is true, other users may connect.
    pub(crate) fn listen(
        &self,
        form: Framing,
        open: bool,
        steps: &RollbackLog,
    ) -> Result<OwnedFd, DirectoryError> {
        let name = socket_name(form);
        steps.announce_creation(StepResource::Descriptor, name)?;
        local_socket::remove_if_present(&self.directory, name)?;
        let mode = if open { 0o666 } else { 0o600 };
        // Messages on the stream socket carry no descriptors.
        let accepts = match form {
            Framing::Packets => AcceptedContent::Descriptors,
            Framing::Stream => AcceptedContent::Bytes,
        };
        Ok(local_socket::listen_in_directory(
            &self.directory,
            name,
            mode,
            (form, accepts),
            BACKLOG_MAX,
        )?)
    }

    /// Returns the descriptor of the open directory.
    pub(crate) const fn descriptor(&self) -> &OwnedFd {
        &self.directory
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the lock file, the sockets if `sockets` is true, and the directory if this process
    /// has created it.
    pub(crate) fn remove_contents(self, sockets: bool) {
        // Errors are ignored, because the next daemon replaces any file that could not be removed.
        if sockets {
            for form in [Framing::Packets, Framing::Stream] {
                let _ = local_socket::remove_if_present(&self.directory, socket_name(form));
            }
        }
        let _ = local_socket::remove_if_present(&self.directory, LOCK_FILE);
        drop(self.lock);
        if self.is_own {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Refuses a directory that belongs to a user other than root and this user, or to which others may
/// write.
fn check_directory_owner_and_mode(path: &Path, directory: &OwnedFd) -> Result<(), DirectoryError> {
    let status = sys::file::status(directory)?;
    let own = sys::process::effective_ids().0;
    if status.uid != own && status.uid != ROOT_UID {
        let why = format!("it belongs to user {}, and not to user {own} or root", status.uid);
        return Err(unsafe_directory_error(path, &why));
    }
    if status.mode & 0o022 != 0 {
        let why = format!("other users can write there (mode {:03o})", status.mode & 0o777);
        return Err(unsafe_directory_error(path, &why));
    }
    Ok(())
}

/// Refuses a file that is not regular, or that can be modified by a user other than root and this
/// user. The error is the reason.
pub(crate) fn check_trusted(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|error| error.to_string())?;
    let own = sys::process::effective_ids().0;
    match () {
        () if !about.is_file() => Err("it is not a regular file".to_owned()),
        () if about.uid() != own && about.uid() != ROOT_UID => {
            Err(format!("it belongs to user {}, and not to root", about.uid()))
        }
        () if about.mode() & 0o022 != 0 => Err(format!(
            "other users can write to it (mode {:03o}): `chmod go-w`",
            about.mode() & 0o777
        )),
        () => Ok(()),
    }
}

fn unsafe_directory_error(path: &Path, why: &str) -> DirectoryError {
    DirectoryError::Unsafe { directory: path.to_owned(), why: why.to_owned() }
}

fn system_error(call: &'static str, path: &Path, error: &std::io::Error) -> DirectoryError {
    let errno = error.raw_os_error().unwrap_or(0);
    DirectoryError::System(sys::Error::new(call, path.display().to_string(), errno))
}

const ROOT_UID: u32 = 0;
const ELOOP: i32 = 40;
const ENOTDIR: i32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TemporaryDirectory;
    use std::os::unix::fs::PermissionsExt as _;
    use sys::rollback::NO_ROLLBACK_LOG;

    #[test]
    fn t13_directory_admits_one_daemon_and_is_cleaned_up() {
        let folder = TemporaryDirectory::new();
        let path = folder.path().join("place");
        let place = Directory::acquire(&path, true, &NO_ROLLBACK_LOG).unwrap();
        let held = Directory::acquire(&path, true, &NO_ROLLBACK_LOG).unwrap_err();
        assert!(held.to_string().contains(&format!("process {}", std::process::id())), "{held}");
        place.listen(Framing::Packets, true, &NO_ROLLBACK_LOG).unwrap();
        place.listen(Framing::Packets, true, &NO_ROLLBACK_LOG).unwrap();
        place.remove_contents(true);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        Directory::acquire(&path, false, &NO_ROLLBACK_LOG).unwrap().remove_contents(true);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "what others made stays");
    }

    #[test]
    fn t13_directory_writable_by_others_or_linked_is_refused() {
        let folder = TemporaryDirectory::new();
        let path = folder.path().join("place");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o775, 0o1777, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Directory::acquire(&path, true, &NO_ROLLBACK_LOG).unwrap_err();
            assert!(matches!(refused, DirectoryError::Unsafe { .. }), "{mode:o}: {refused}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = Directory::acquire(&link, true, &NO_ROLLBACK_LOG).unwrap_err();
        assert!(matches!(refused, DirectoryError::Unsafe { .. }), "{refused}");
        std::os::unix::fs::symlink("/etc/passwd", path.join(LOCK_FILE)).unwrap();
        assert!(Directory::acquire(&path, true, &NO_ROLLBACK_LOG).is_err(), "the lock is no link");
        fs::remove_file(path.join(LOCK_FILE)).unwrap();
        if testkit::need::require_root().is_some() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let refused = Directory::acquire(&path, true, &NO_ROLLBACK_LOG).unwrap_err();
            assert!(refused.to_string().contains("user 1234"), "{refused}");
        }
    }
}
