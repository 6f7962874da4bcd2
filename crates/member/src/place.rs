//! Directories in which a client looks for a daemon. (RELIABILITY T13)
//!
//! ```text
//! /run/streamline            of the machine: of root, open to all to read
//! $XDG_RUNTIME_DIR/streamline    of one user: closed to others; without that variable
//!                            /run/user/UID/streamline, or ~/.local/state/streamline/run
//! ```
//!
//! A client asks the kernel for the user that listens there, and takes nobody but root and its own
//! user for the daemon; in `/run/streamline`, which only root can make, also the user to whom root
//! gave it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use sys::local_socket::Framing;

/// The directory of the machine's daemon.
pub const MACHINE: &str = "/run/streamline";
/// The variable that names another directory.
pub const VARIABLE: &str = "STREAMLINE_DAEMON";
/// The socket that is a stream.
pub const STREAM: &str = "io.streamline";
/// The socket that keeps messages apart.
pub const PACKETS: &str = "io.streamline.packets";

/// The directory of this user's own daemon: the first place that is there.
#[must_use]
pub fn of_user() -> Option<PathBuf> {
    of_user_all().into_iter().next()
}

/// Directories for this user's own daemon, best first. Only the user and root can write there.
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

/// Directories in which a client looks, in this order: that of the variable; those of this user's
/// own daemon; that of the machine's.
#[must_use]
pub fn searched() -> Vec<PathBuf> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => vec![PathBuf::from(named)],
        None => of_user_all().into_iter().chain([PathBuf::from(MACHINE)]).collect(),
    }
}

/// Returns true if this is the machine's directory and root has given it to this user.
pub(crate) fn is_of(directory: &Path, uid: u32) -> bool {
    directory == Path::new(MACHINE)
        && fs::symlink_metadata(directory)
            .is_ok_and(|about| about.is_dir() && about.uid() == uid && about.mode() & 0o022 == 0)
}

/// The name of the socket of this form.
#[must_use]
pub const fn name(form: Framing) -> &'static str {
    match form {
        Framing::Packets => PACKETS,
        Framing::Stream => STREAM,
    }
}
