//! The call `streamline_wait`, and the waits of other calls from C. They end when the end is ready
//! or the time limit has passed. A signal handler or a stale notification does not end them.

use crate::end::EndKind;
use crate::failure::Outcome;
use crate::table;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// Blocks until the end is ready: a reader with input or at the end of its stream, a writer with
/// room for one byte, an inbox with a new writer, a state when its writer is gone, a run when it
/// has ended. Returns false after `limit`, which does not apply to a writer. Returns true at once
/// for every other kind of end.
pub(crate) fn wait(fd: i32, limit: Option<Duration>) -> Outcome<bool> {
    let mut used = table::lock_entry(fd)?;
    let kind = &mut used.require_end(fd)?.kind;
    let waited = repeat_until_limit(limit, |left| Ok(wait_once(kind, left)?.then_some(())));
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

/// Calls `attempt` with the rest of `limit` (`None` means no limit) until it returns a value, or
/// until the limit has passed; the result is then `None`. An attempt may end early.
pub(crate) fn repeat_until_limit<T>(
    limit: Option<Duration>,
    mut attempt: impl FnMut(Option<Duration>) -> Outcome<Option<T>>,
) -> Outcome<Option<T>> {
    let begin = sys::clock::monotonic_ns();
    loop {
        let passed = Duration::from_nanos(sys::clock::monotonic_ns().saturating_sub(begin));
        let left = limit.map(|limit| limit.saturating_sub(passed));
        match attempt(left)? {
            None if left != Some(Duration::ZERO) => {}
            result => return Ok(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_end_of_an_attempt_is_not_the_end_of_the_wait() {
        let mut attempts = 0;
        let waited = repeat_until_limit(None, |left| {
            assert_eq!(left, None);
            attempts += 1;
            Ok((attempts == 3).then_some("ready"))
        });
        assert!(matches!(waited, Ok(Some("ready"))) && attempts == 3);
        let limit = Duration::from_millis(20);
        let begin = std::time::Instant::now();
        let waited = repeat_until_limit(Some(limit), |_| Ok(None::<()>));
        assert!(matches!(waited, Ok(None)) && begin.elapsed() >= limit);
        let mut attempts = 0;
        let waited = repeat_until_limit(Some(Duration::ZERO), |_| {
            attempts += 1;
            Ok(None::<()>)
        });
        assert!(matches!(waited, Ok(None)) && attempts == 1);
    }
}
