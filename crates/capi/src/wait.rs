//! The call `streamline_wait`, and the waits of other calls from C. They end when the end is ready
//! or the time limit has passed. A signal handler or a stale notification does not end them.

use crate::end::EndKind;
use crate::failure::Outcome;
use crate::table;
use std::os::fd::AsFd as _;
use std::time::Duration;
use sys::clock::repeat_until_limit;

/// Blocks until the end is ready: a reader with input or at the end of its stream, a writer with
/// room for one byte, an inbox with a new writer, a state when its writer is gone, a run when it
/// has ended. Returns false after `limit`, which does not apply to a writer. Returns true at once
/// for every other kind of end.
pub(crate) fn wait(fd: i32, limit: Option<Duration>) -> Outcome<bool> {
    let mut used = table::lock_entry(fd)?;
    let kind = &mut used.require_end(fd)?.kind;
    let waited =
        repeat_until_limit(limit, |left| wait_once(kind, left).map(|ready| ready.then_some(())));
    Ok(waited?.is_some())
}

/// Waits like [`wait`], but may return false earlier, after a signal or a stale notification.
fn wait_once(kind: &mut EndKind, limit: Option<Duration>) -> Outcome<bool> {
    match kind {
        EndKind::Reader(reader) => reader.wait(limit),
        EndKind::Writer(writer) => writer.wait(),
        EndKind::Inbox(inbox) => {
            Ok(sys::poll::wait_until_readable(&[inbox.as_fd()], limit).contains(&true))
        }
        EndKind::State(state) => Ok(state.wait(limit)),
        EndKind::Run(run) => Ok(run.wait(limit)),
        EndKind::PointerReader(reader) => reader.wait(limit),
        // A write waits by itself.
        EndKind::PointerWriter(_) | EndKind::File(_) => Ok(true),
        EndKind::Region(_) | EndKind::Closed => Ok(true),
    }
}
