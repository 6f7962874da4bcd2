//! Distinction between two causes of a closed connection: the path has ended, or the path is
//! running and already has the maximum number of clients.

use super::{Client, ClientError};
use crate::protocol::RegisteredPath;
use crate::varlink::Call;
use std::os::fd::AsFd as _;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

/// Maximum time to wait until the daemon no longer lists a path that has closed its connections.
const END_GRACE_PERIOD: Duration = Duration::from_millis(200);
/// Kind of the [`PathListEvent`](crate::protocol::PathListEvent) of a path that has ended.
const PATH_ENDED_EVENT: &str = "went";

impl Client {
    /// Replaces the errors of paths that seem to have ended but are still running. Waits for up to
    /// [`END_GRACE_PERIOD`] until the daemon no longer lists the paths that seem to have ended. A
    /// path that is still listed then has closed the connection because it has too many clients,
    /// and its error becomes [`ClientError::Timeout`].
    pub(super) fn correct_ended_path_errors<R>(
        &self,
        paths: &[(u32, (String, Vec<Call>))],
        answers: &mut [Result<R, ClientError>],
    ) {
        let has_ended = |answer: &Result<R, ClientError>| {
            answer.as_ref().is_err_and(ClientError::is_path_ended)
        };
        let deadline = Instant::now() + END_GRACE_PERIOD;
        let mut watcher = None;
        while answers.iter().any(has_ended) {
            // If the daemon does not reply, the next call reports it.
            let Ok(listed) = self.list_paths() else { return };
            let is_listed = |name: &str| listed.iter().any(|path| is_named(path, name));
            let ended = answers.iter_mut().zip(paths).filter(|(answer, _)| has_ended(answer));
            let mut running: Vec<_> = ended.filter(|(_, (_, (path, _)))| is_listed(path)).collect();
            if running.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                running.iter_mut().for_each(|(answer, _)| **answer = Err(ClientError::Timeout));
                return;
            }
            match &watcher {
                // A path may have ended before the subscription, so the list is requested again.
                None => watcher = Some(PathWatcher::connect(&self.directory)),
                Some(watcher) => {
                    watcher.wait_for_end(deadline, |path| {
                        running.iter().any(|(_, (_, (name, _)))| is_named(path, name))
                    });
                }
            }
        }
    }
}

/// Returns true if `text` is the name, the number or the `UID/NAME` of a path.
fn is_named(path: &RegisteredPath, text: &str) -> bool {
    let name = path.name.as_deref();
    name == Some(text)
        || path.number.to_string() == text
        || text
            .split_once('/')
            .is_some_and(|(uid, rest)| uid.parse() == Ok(path.uid) && name == Some(rest))
}

/// A connection to the daemon that reports the ends of paths. `None` if the daemon has refused the
/// connection, for example because this user has too many connections.
struct PathWatcher(Option<Client>);

impl PathWatcher {
    fn connect(directory: &FilePath) -> Self {
        let client = Client::connect_at(directory).ok();
        Self(client.filter(|client| client.watch_paths().is_ok()))
    }

    /// Waits until a path ends for which `is_awaited` returns true. Waits at most until `deadline`,
    /// and exactly until then if there is no connection to the daemon.
    fn wait_for_end(&self, deadline: Instant, is_awaited: impl Fn(&RegisteredPath) -> bool) {
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(client) = &self.0 {
            while sys::poll::wait_until_readable_despite_signals(&[client.as_fd()], Some(left()))
                == [true]
            {
                match client.next_event() {
                    Ok(event) if event.event == PATH_ENDED_EVENT && is_awaited(&event.path) => {
                        return;
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        std::thread::sleep(left());
    }
}
