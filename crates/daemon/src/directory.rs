//! The directory of a daemon, and the lock on it. (RELIABILITY T13)
//!
//! ```text
//! DIR/lock                     locked by the daemon that runs; holds its process number
//! DIR/io.streamline            the stream, for the usual tools
//! DIR/io.streamline.packets    messages and descriptors
//! ```
//!
//! The directory must belong to root or to this user, closed to other writers, and is held open: a
//! later change of its path does not matter.

use member::place::name;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use sys::local_socket::{self, Framing};
use sys::steps::{Resource, Steps};

const LOCK: &str = "lock";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A directory in which no daemon can be, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryError {
    /// Another daemon has the directory.
    Held {
        /// The directory.
        directory: PathBuf,
        /// The process that has it, where it says.
        process: Option<u32>,
    },
    /// The directory is not safe.
    Unsafe {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        why: String,
    },
    /// It cannot be told where the directory of this user is.
    Nowhere,
    /// The machine refuses.
    System(sys::Error),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { directory, process } => {
                write!(f, "a daemon has {} already", directory.display())?;
                match process {
                    Some(process) => write!(
                        f,
                        ": process {process}{}; end it with `kill {process}`, or take another \
                         directory by --socket",
                        command(*process)
                    ),
                    None => f.write_str("; take another directory by --socket"),
                }
            }
            Self::Unsafe { directory, why } => {
                let name = directory.display();
                write!(f, "{name} is no safe place for a daemon: {why}; mend or remove it")
            }
            Self::Nowhere => f.write_str(
                "there is no place for a daemon of this user: XDG_RUNTIME_DIR names no folder that \
                 is private to it, /run/user has none, and HOME is not set: set one, or name a \
                 directory by --socket",
            ),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DirectoryError {}

impl From<sys::Error> for DirectoryError {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

/// The name of a process, as in ` (streamline)`.
fn command(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    if name.is_empty() { name } else { format!(" ({})", name.trim_end()) }
}

/// A directory that this process holds.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: OwnedFd,
    lock: File,
    /// True if we made the directory.
    made: bool,
}

impl Directory {
    /// Takes this directory, made if it is not there; `open`: other users may come.
    pub fn take(path: &Path, open: bool, steps: &Steps) -> Result<Self, DirectoryError> {
        let mark = steps.mark();
        let taken = Self::taken(path, open, steps);
        if taken.is_err() {
            steps.roll_back_to(mark);
        }
        taken
    }

    fn taken(path: &Path, open: bool, steps: &Steps) -> Result<Self, DirectoryError> {
        steps.take(Resource::File, "the directory of a daemon")?;
        let mode = if open { 0o755 } else { 0o700 };
        if let Some(base) = path.parent().filter(|_| !open) {
            // Those of a user's state, and of nobody else.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(base);
            made.map_err(|error| refused("mkdir", base, &error))?;
        }
        let made = match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(refused("mkdir", path, &error)),
        };
        if made {
            let own = path.to_owned();
            // Only an empty one can be removed.
            steps.on_rollback(format!("directory {}", path.display()), move || {
                drop(fs::remove_dir(own))
            });
        }
        steps.take(Resource::Descriptor, "the directory of a daemon")?;
        let directory = local_socket::directory(path).map_err(|error| match error.errno {
            LINK | NO_DIRECTORY => unsafe_place(path, "it is no directory, or a link to one"),
            _ => DirectoryError::System(error),
        })?;
        check(path, &directory)?;
        steps.take(Resource::File, "the lock of a daemon")?;
        let lock = Self::locked(path, &directory)?;
        Ok(Self { path: path.to_owned(), directory, lock, made })
    }

    /// The lock, ours from now on.
    fn locked(path: &Path, directory: &OwnedFd) -> Result<File, DirectoryError> {
        loop {
            let file = local_socket::private_file(directory, LOCK)?;
            if !local_socket::lock(&file)? {
                let mut text = String::new();
                // Who has it may not have said yet who it is.
                let _ = File::from(file).take(32).read_to_string(&mut text);
                let process = text.trim().parse().ok();
                return Err(DirectoryError::Held { directory: path.to_owned(), process });
            }
            // A daemon that ends removes its lock: ours may be one that is there no more.
            if local_socket::is_same_file(directory, LOCK, &file) {
                let mut file = File::from(file);
                let told = file
                    .set_len(0)
                    .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
                told.map_err(|error| refused("write", &path.join(LOCK), &error))?;
                return Ok(file);
            }
        }
    }

    /// Listens in the directory, in the place of a daemon that left its sockets behind.
    pub(crate) fn listen(
        &self,
        form: Framing,
        open: bool,
        steps: &Steps,
    ) -> Result<OwnedFd, DirectoryError> {
        let name = name(form);
        steps.take(Resource::Descriptor, name)?;
        local_socket::remove(&self.directory, name)?;
        let mode = if open { 0o666 } else { 0o600 };
        Ok(local_socket::listen_at(&self.directory, name, mode, form, BACKLOG)?)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves nothing behind. `sockets`: those there are ours.
    pub(crate) fn clear(self, sockets: bool) {
        // Nobody needs what cannot be removed, and the next daemon removes it.
        if sockets {
            for form in [Framing::Packets, Framing::Stream] {
                let _ = local_socket::remove(&self.directory, name(form));
            }
        }
        let _ = local_socket::remove(&self.directory, LOCK);
        drop(self.lock);
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Refuses a directory in which others can write.
fn check(path: &Path, directory: &OwnedFd) -> Result<(), DirectoryError> {
    let status = sys::file::status(directory)?;
    let own = sys::process::identity().0;
    if status.uid != own && status.uid != ROOT {
        let why = format!("it belongs to user {}, and not to user {own} or root", status.uid);
        return Err(unsafe_place(path, &why));
    }
    if status.mode & 0o022 != 0 {
        let why = format!("others may write there (mode {:03o})", status.mode & 0o777);
        return Err(unsafe_place(path, &why));
    }
    Ok(())
}

/// Refuses a file that others than root or this user may have written.
pub(crate) fn is_trusted(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|error| error.to_string())?;
    let own = sys::process::identity().0;
    match () {
        () if !about.is_file() => Err("it is no regular file".to_owned()),
        () if about.uid() != own && about.uid() != ROOT => {
            Err(format!("it belongs to user {}, and not to root", about.uid()))
        }
        () if about.mode() & 0o022 != 0 => {
            Err(format!("others may write it (mode {:03o}): `chmod go-w`", about.mode() & 0o777))
        }
        () => Ok(()),
    }
}

fn unsafe_place(path: &Path, why: &str) -> DirectoryError {
    DirectoryError::Unsafe { directory: path.to_owned(), why: why.to_owned() }
}

fn refused(call: &'static str, path: &Path, error: &std::io::Error) -> DirectoryError {
    let errno = error.raw_os_error().unwrap_or(0);
    DirectoryError::System(sys::Error::new(call, path.display().to_string(), errno))
}

const ROOT: u32 = 0;
/// ELOOP.
const LINK: i32 = 40;
/// ENOTDIR.
const NO_DIRECTORY: i32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use std::os::unix::fs::PermissionsExt as _;
    use sys::steps::UNLOGGED;

    #[test]
    fn t13_a_directory_has_one_daemon_and_is_left_clean() {
        let folder = Folder::new();
        let path = folder.path().join("place");
        let place = Directory::take(&path, true, &UNLOGGED).unwrap();
        let held = Directory::take(&path, true, &UNLOGGED).unwrap_err();
        assert!(held.to_string().contains(&format!("process {}", std::process::id())), "{held}");
        place.listen(Framing::Packets, true, &UNLOGGED).unwrap();
        place.listen(Framing::Packets, true, &UNLOGGED).unwrap();
        place.clear(true);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        Directory::take(&path, false, &UNLOGGED).unwrap().clear(true);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "what others made stays");
    }

    #[test]
    fn t13_a_directory_that_others_may_write_or_lead_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("place");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o775, 0o1777, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Directory::take(&path, true, &UNLOGGED).unwrap_err();
            assert!(matches!(refused, DirectoryError::Unsafe { .. }), "{mode:o}: {refused}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = Directory::take(&link, true, &UNLOGGED).unwrap_err();
        assert!(matches!(refused, DirectoryError::Unsafe { .. }), "{refused}");
        std::os::unix::fs::symlink("/etc/passwd", path.join(LOCK)).unwrap();
        assert!(Directory::take(&path, true, &UNLOGGED).is_err(), "the lock is no link");
        fs::remove_file(path.join(LOCK)).unwrap();
        if testkit::need::root().is_some() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let refused = Directory::take(&path, true, &UNLOGGED).unwrap_err();
            assert!(refused.to_string().contains("user 1234"), "{refused}");
        }
    }
}
