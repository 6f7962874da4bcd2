//! The directories in which a client searches for a daemon. (RELIABILITY T13)
//!
//! ```text
//! /run/streamline                 machine-wide daemon: owned by root, readable by all
//! $XDG_RUNTIME_DIR/streamline     daemon of one user, private: the first of these three
//! /run/user/UID/streamline        directories that the user can have
//! $XDG_STATE_HOME/streamline/run  (without the variable, ~/.local/state/streamline/run)
//! ```
//!
//! A client obtains the user id of the listening process from the kernel. It accepts only root, its
//! own user and, in `/run/streamline`, the owner of the directory, because only root can create
//! that directory.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use sys::local_socket::Framing;

/// Directory of the sockets of the machine-wide daemon.
pub const MACHINE_DIRECTORY: &str = "/run/streamline";
/// Environment variable that names the only directory in which to search for a daemon.
pub const DIRECTORY_VARIABLE: &str = "STREAMLINE_DAEMON";
/// Name of the stream socket.
pub const STREAM_SOCKET: &str = "io.streamline";
/// Name of the packet socket, which preserves message boundaries.
pub const PACKET_SOCKET: &str = "io.streamline.packets";

/// Returns the directory in which this user would start a daemon: the most preferred of the
/// possible directories. Returns `None` if no directory is possible.
#[must_use]
pub fn user_daemon_directory() -> Option<PathBuf> {
    user_daemon_directories().into_iter().next()
}

/// Returns the possible directories for the daemon of this user, in order of preference. Omits
/// runtime directories that belong to another user, or that others may write to.
fn user_daemon_directories() -> Vec<PathBuf> {
    let named = |variable: &str| {
        std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let own = sys::process::effective_ids().0;
    let is_private = |base: &PathBuf| {
        let about = fs::symlink_metadata(base);
        about.is_ok_and(|about| about.is_dir() && about.uid() == own && about.mode() & 0o022 == 0)
    };
    let runtime = [named("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{own}")))];
    let runtime = runtime.into_iter().flatten().filter(is_private);
    // In a container, under cron or after `su`, no session has created a runtime directory, so the
    // state directory is needed.
    let home = || named("HOME").map(|home| home.join(".local/state"));
    let state = named("XDG_STATE_HOME").or_else(home).map(|state| state.join("streamline/run"));
    let mut all: Vec<PathBuf> = runtime.map(|base| base.join("streamline")).chain(state).collect();
    all.dedup();
    all
}

/// Returns the directories in which to search for a daemon, in order: the directories of this
/// user's daemon, and then the machine-wide directory. If [`DIRECTORY_VARIABLE`] is set, returns
/// only the directory that it names.
#[must_use]
pub fn search_directories() -> Vec<PathBuf> {
    match std::env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => vec![PathBuf::from(named)],
        None => user_daemon_directories()
            .into_iter()
            .chain([PathBuf::from(MACHINE_DIRECTORY)])
            .collect(),
    }
}

/// Returns true if `directory` is the machine-wide directory, belongs to the user `uid`, and is
/// writable by this user only.
pub(crate) fn is_machine_owner(directory: &Path, uid: u32) -> bool {
    directory == Path::new(MACHINE_DIRECTORY)
        && fs::symlink_metadata(directory)
            .is_ok_and(|about| about.is_dir() && about.uid() == uid && about.mode() & 0o022 == 0)
}

/// Returns the file name of the daemon's socket for this framing: a stream or packets.
#[must_use]
pub const fn socket_name(form: Framing) -> &'static str {
    match form {
        Framing::Packets => PACKET_SOCKET,
        Framing::Stream => STREAM_SOCKET,
    }
}
