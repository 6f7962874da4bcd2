//! Where a daemon is: its directory, and who holds it. (RELIABILITY T13)
//!
//! ```text
//! /run/streamline            of the machine: of root, open to all to read
//! $XDG_RUNTIME_DIR/streamline    of one user: closed to others; without that variable
//!                            /run/user/UID/streamline, or ~/.local/state/streamline/run
//!   lock                     locked by the daemon that runs; holds its process number
//!   io.streamline            the stream, for the usual tools
//!   io.streamline.packets    messages and descriptors
//! ```
//!
//! The directory must be ours or root's and let nobody else write, and is held open: what its path
//! leads to later does not matter. A client asks the kernel who listens there, and takes nobody but
//! root and its own user for the daemon; in `/run/streamline`, which only root can make, also the
//! user to whom root gave it.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use sys::local::{self, Form};
use sys::steps::{Makes, Steps};

/// The directory of the machine's daemon.
pub const MACHINE: &str = "/run/streamline";
/// The variable that names another directory.
pub const VARIABLE: &str = "STREAMLINE_DAEMON";
/// The socket that is a stream.
pub const STREAM: &str = "io.streamline";
/// The socket that keeps messages apart.
pub const PACKETS: &str = "io.streamline.packets";
const LOCK: &str = "lock";
/// How many may wait until they are let in.
const BACKLOG: i32 = 1024;

/// Why there is no daemon here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlaceError {
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
        /// Why not.
        why: String,
    },
    /// It cannot be told where the directory of this user is.
    Nowhere,
    /// The machine refuses.
    System(sys::Error),
}

impl fmt::Display for PlaceError {
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

impl std::error::Error for PlaceError {}

impl From<sys::Error> for PlaceError {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

/// ` (streamline)`: what a process calls itself.
fn command(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    if name.is_empty() { name } else { format!(" ({})", name.trim_end()) }
}

/// The directory of this user's own daemon: the first place that is there.
#[must_use]
pub fn of_user() -> Option<PathBuf> {
    of_user_all().into_iter().next()
}

/// Where this user's own daemon may be, best first. Nobody but the user and root can put anything
/// there.
fn of_user_all() -> Vec<PathBuf> {
    let named = |variable: &str| {
        std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let own = sys::process::identity().0;
    let is_private = |base: &PathBuf| {
        let about = fs::symlink_metadata(base);
        about.is_ok_and(|about| about.is_dir() && about.uid() == own && about.mode() & 0o022 == 0)
    };
    let runtime = [named("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{own}")))];
    let runtime = runtime.into_iter().flatten().filter(is_private);
    // In a container, under cron, after `su`: no session has made a folder for the runtime.
    let home = || named("HOME").map(|home| home.join(".local/state"));
    let state = named("XDG_STATE_HOME").or_else(home).map(|state| state.join("streamline/run"));
    let mut all: Vec<PathBuf> = runtime.map(|base| base.join("streamline")).chain(state).collect();
    all.dedup();
    all
}

/// Where a client looks, in this order: where the variable says; with this user's own daemon; with
/// the machine's.
#[must_use]
pub fn searched() -> Vec<PathBuf> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => vec![PathBuf::from(named)],
        None => of_user_all().into_iter().chain([PathBuf::from(MACHINE)]).collect(),
    }
}

/// Whether root has made this directory the machine's daemon's, and that of this user.
pub(crate) fn is_of(directory: &Path, uid: u32) -> bool {
    directory == Path::new(MACHINE)
        && fs::symlink_metadata(directory)
            .is_ok_and(|about| about.is_dir() && about.uid() == uid && about.mode() & 0o022 == 0)
}

/// A directory that we hold.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    directory: OwnedFd,
    lock: File,
    /// Whether we have made the directory.
    made: bool,
}

impl Place {
    /// Takes this directory, made if it is not there; `open`: other users may come.
    pub fn take(path: &Path, open: bool, steps: &Steps) -> Result<Self, PlaceError> {
        let mark = steps.mark();
        let taken = Self::taken(path, open, steps);
        if taken.is_err() {
            steps.back_to(mark);
        }
        taken
    }

    fn taken(path: &Path, open: bool, steps: &Steps) -> Result<Self, PlaceError> {
        steps.take(Makes::File, "the directory of a daemon")?;
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
            steps.undo(format!("directory {}", path.display()), move || drop(fs::remove_dir(own)));
        }
        steps.take(Makes::Descriptor, "the directory of a daemon")?;
        let directory = local::directory(path).map_err(|error| match error.errno {
            LINK | NO_DIRECTORY => unsafe_place(path, "it is no directory, or a link to one"),
            _ => PlaceError::System(error),
        })?;
        check(path, &directory)?;
        steps.take(Makes::File, "the lock of a daemon")?;
        let lock = Self::locked(path, &directory)?;
        Ok(Self { path: path.to_owned(), directory, lock, made })
    }

    /// The lock, ours from now on.
    fn locked(path: &Path, directory: &OwnedFd) -> Result<File, PlaceError> {
        loop {
            let file = local::private_file(directory, LOCK)?;
            if !local::lock(&file)? {
                let mut text = String::new();
                // Who has it may not have said yet who it is.
                let _ = File::from(file).take(32).read_to_string(&mut text);
                let process = text.trim().parse().ok();
                return Err(PlaceError::Held { directory: path.to_owned(), process });
            }
            // A daemon that ends removes its lock: ours may be one that is there no more.
            if local::is_still(directory, LOCK, &file) {
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
        form: Form,
        open: bool,
        steps: &Steps,
    ) -> Result<OwnedFd, PlaceError> {
        let name = name(form);
        steps.take(Makes::Descriptor, name)?;
        local::remove(&self.directory, name)?;
        let mode = if open { 0o666 } else { 0o600 };
        Ok(local::listen_at(&self.directory, name, mode, form, BACKLOG)?)
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
            for form in [Form::Packets, Form::Stream] {
                let _ = local::remove(&self.directory, name(form));
            }
        }
        let _ = local::remove(&self.directory, LOCK);
        drop(self.lock);
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The name of a socket.
pub(crate) const fn name(form: Form) -> &'static str {
    match form {
        Form::Packets => PACKETS,
        Form::Stream => STREAM,
    }
}

/// Whether nobody else can put something into the directory.
fn check(path: &Path, directory: &OwnedFd) -> Result<(), PlaceError> {
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

/// Whether a file says what may happen on this machine: nobody but root or us may have written it.
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

fn unsafe_place(path: &Path, why: &str) -> PlaceError {
    PlaceError::Unsafe { directory: path.to_owned(), why: why.to_owned() }
}

fn refused(call: &'static str, path: &Path, error: &std::io::Error) -> PlaceError {
    let errno = error.raw_os_error().unwrap_or(0);
    PlaceError::System(sys::Error::new(call, path.display().to_string(), errno))
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
        let place = Place::take(&path, true, &UNLOGGED).unwrap();
        let held = Place::take(&path, true, &UNLOGGED).unwrap_err();
        assert!(held.to_string().contains(&format!("process {}", std::process::id())), "{held}");
        place.listen(Form::Packets, true, &UNLOGGED).unwrap();
        place.listen(Form::Packets, true, &UNLOGGED).unwrap();
        place.clear(true);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        Place::take(&path, false, &UNLOGGED).unwrap().clear(true);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "what others made stays");
    }

    #[test]
    fn t13_a_directory_that_others_may_write_or_lead_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("place");
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o775, 0o1777, 0o702] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Place::take(&path, true, &UNLOGGED).unwrap_err();
            assert!(matches!(refused, PlaceError::Unsafe { .. }), "{mode:o}: {refused}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = Place::take(&link, true, &UNLOGGED).unwrap_err();
        assert!(matches!(refused, PlaceError::Unsafe { .. }), "{refused}");
        std::os::unix::fs::symlink("/etc/passwd", path.join(LOCK)).unwrap();
        assert!(Place::take(&path, true, &UNLOGGED).is_err(), "the lock is no link");
        fs::remove_file(path.join(LOCK)).unwrap();
        if testkit::need::root().is_some() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let refused = Place::take(&path, true, &UNLOGGED).unwrap_err();
            assert!(refused.to_string().contains("user 1234"), "{refused}");
        }
    }
}
