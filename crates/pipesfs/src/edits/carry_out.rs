//! Execution of edits: the process of the path applies each edit on behalf of the caller.

use super::plan::{PathEdit, PlannedChange};
use super::{Refusal, start};
use crate::protocol::errno;
use crate::snapshot::SnapshotCache;
use crate::tree::{PathKey, Tree, path_key};
use std::time::{Duration, Instant};
use streamline::paths::{
    ChangeParameters, ChangedNodes, Client, ClientError, OUTDATED_ERROR, PathClient, PathView,
};

/// The result of a change to the tree that [`carry_out_change`] has attempted.
#[derive(Debug)]
pub(crate) enum ChangeResult {
    /// The path has applied the change. Contains the new nodes of the path, if its reply included
    /// them.
    Made(Option<ChangedNodes>),
    /// A new path has started. Contains the number of the path.
    Started(u32),
    /// The change was not made, because the path no longer runs the request for which the edit was
    /// planned. The caller must plan the edit again.
    Outdated,
}

/// The process that called a file system operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// User id and group id of the calling process.
    pub(crate) user: (u32, u32),
    /// True if the caller's user id differs from the user id of this process. The operation then
    /// runs under the caller's ids.
    pub(crate) is_other: bool,
    /// Time at which the operation fails if it is still incomplete.
    pub(crate) deadline: Instant,
}

impl Caller {
    /// Returns the time until the deadline, or zero after the deadline.
    pub(crate) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs `body` under the user id and group id of the caller.
    pub(crate) fn run_as_caller<T>(
        &self,
        body: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if !self.is_other {
            return body();
        }
        // The daemon and the paths take the user id from the connection and check permissions
        // themselves.
        let acted = sys::process::run_as_user(self.user, body);
        acted.unwrap_or_else(|error| Err(Refusal::new(errno::EIO, error.to_string())))
    }
}

/// Makes a planned change. Blocks at most until the caller's deadline.
pub(crate) fn carry_out_change(
    tree: &Tree,
    planned: &PlannedChange,
    caller: &Caller,
    snapshots: &SnapshotCache,
) -> Result<ChangeResult, Refusal> {
    match planned {
        PlannedChange::Nothing => Ok(ChangeResult::Made(None)),
        PlannedChange::Edit(edit) => {
            caller.run_as_caller(|| edit_path(tree, edit, caller, snapshots))
        }
        PlannedChange::Start { name, request } => {
            let daemon = snapshots.directory();
            start::start(daemon, (name.as_deref(), request), caller).map(ChangeResult::Started)
        }
        PlannedChange::Stop(path) => caller.run_as_caller(|| stop(*path, caller, snapshots)),
    }
}

fn edit_path(
    tree: &Tree,
    edit: &PathEdit,
    caller: &Caller,
    snapshots: &SnapshotCache,
) -> Result<ChangeResult, Refusal> {
    let view = |path: PathKey| {
        let found = tree.paths.iter().find(|view| path_key(view) == path);
        found.ok_or_else(Refusal::object_removed)
    };
    let line = |view: &PathView| Some(view.line.clone()).filter(|line| !line.is_empty());
    let known = view(edit.path)?;
    let wants_nodes = edit.into.is_none() && !caller.is_other;
    let asked = ChangeParameters {
        words: edit.words.clone(),
        running: line(known),
        other: edit.into.map(&view).transpose()?.and_then(line),
        nodes: wants_nodes.then_some(true),
        known: known.version.filter(|_| wants_nodes),
        patches: wants_nodes.then_some(true),
    };
    // A path takes the user id from the connection, so connections of other users are not reused.
    let connect = || connect(edit.path, caller, snapshots);
    let idle = snapshots.take_idle_connection(edit.path.number).filter(|_| !caller.is_other);
    let was_idle = idle.is_some();
    let mut to = idle.map_or_else(connect, Ok)?;
    let mut changed = to.change_within(&asked, caller.time_left());
    if was_idle && matches!(changed, Err(ClientError::PathEnded(_) | ClientError::Disconnected)) {
        // The path has closed the idle connection.
        to = connect()?;
        changed = to.change_within(&asked, caller.time_left());
    }
    let replied = matches!(changed, Ok(_) | Err(ClientError::Refused(_)));
    if replied && !caller.is_other {
        snapshots.store_idle_connection(to);
    }
    match changed {
        Ok(reply) => Ok(ChangeResult::Made(reply.nodes)),
        Err(ClientError::Refused(fault)) if fault.name == OUTDATED_ERROR => {
            Ok(ChangeResult::Outdated)
        }
        Err(error) => Err(refusal(&error)),
    }
}

/// Stops a path and waits until its process has exited, at most until the caller's deadline.
fn stop(
    path: PathKey,
    caller: &Caller,
    snapshots: &SnapshotCache,
) -> Result<ChangeResult, Refusal> {
    let to = connect(path, caller, snapshots)?;
    match to.stop() {
        // PathEnded means that the path stopped by itself in the meantime.
        Ok(()) | Err(ClientError::PathEnded(_)) => {}
        Err(error) => return Err(refusal(&error)),
    }
    match sys::poll::wait_until_readable_despite_signals(&[to.pidfd()], Some(caller.time_left()))
        == [true]
    {
        true => Ok(ChangeResult::Made(None)),
        false => Err(refusal(&ClientError::Timeout)),
    }
}

fn connect(
    path: PathKey,
    caller: &Caller,
    snapshots: &SnapshotCache,
) -> Result<PathClient, Refusal> {
    let client: Client = snapshots.connect().map_err(|error| refusal(&error))?;
    let to = client.connect_within(&path.number.to_string(), caller.time_left());
    to.map_err(|error| refusal(&error))
}

/// Text in a path's error message that indicates EPERM.
const EPERM_MESSAGE: &str = "operation not permitted";

/// Returns the error number of a failed call, and the reason for the failure.
fn refusal(error: &ClientError) -> Refusal {
    let number = match error {
        ClientError::Timeout => {
            let why = "the path's process did not reply in time, because it is stopped or \
                       overloaded: unless it had begun, the edit is not made (`mount -o \
                       edit_limit=SECONDS` waits longer)";
            return Refusal::new(errno::ETIMEDOUT, why);
        }
        ClientError::PathEnded(_) | ClientError::Disconnected => errno::ENOENT,
        ClientError::Refused(fault) => match fault.name.as_str() {
            "io.streamline.NotYours" => errno::EPERM,
            "io.streamline.NoSuchPath" => errno::ENOENT,
            "io.streamline.Busy" => errno::EBUSY,
            // The process of the path lacks a permission, for example to open a packet socket.
            _ if error.to_string().contains(EPERM_MESSAGE) => errno::EPERM,
            _ => errno::EINVAL,
        },
        _ => errno::EIO,
    };
    Refusal::new(number, error.to_string())
}
