//! The events of the daemon as lines of text: paths that start, change or end.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use streamline::paths::{Client, ClientError, PathListEvent, mask_hidden_characters};
use sys::eventfd::EventFd;

/// A handle to a thread that writes the events of the daemon to a pipe. Dropping this value ends
/// the thread.
#[derive(Debug)]
pub struct EventFollower(Arc<EventFd>);

impl Drop for EventFollower {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// Starts to follow the events that the daemon reports over this connection. Returns a pipe that
/// carries a line for each running path, and then a line for each event.
pub fn follow_events(client: Client) -> Result<(OwnedFd, EventFollower), ClientError> {
    client.watch_paths()?;
    let (reader, writer) = sys::descriptor::pipe()?;
    let stop = Arc::new(EventFd::new()?);
    let ends = Arc::clone(&stop);
    let body = move || write_events(&client, File::from(writer), &ends);
    let thread = std::thread::Builder::new().name("pipesfs events".to_owned()).spawn(body);
    thread.map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        ClientError::System(sys::Error::new("clone", "a thread", errno))
    })?;
    Ok((reader, EventFollower(stop)))
}

/// Writes a line for each event until `stop` is notified, the daemon exits or the reader closes the
/// pipe.
fn write_events(client: &Client, mut output: File, stop: &EventFd) {
    loop {
        let ready =
            sys::poll::wait_until_readable_despite_signals(&[stop.as_fd(), client.as_fd()], None);
        if ready.first() == Some(&true) {
            return;
        }
        let Ok(event) = client.next_event() else { return };
        if output.write_all(event_line(&event).as_bytes()).is_err() {
            return;
        }
    }
}

/// Formats an event as a line: its kind, the path's number, the owner, the name or `-`, and the
/// request.
fn event_line(event: &PathListEvent) -> String {
    let path = &event.path;
    let name = path.name.as_deref().map_or_else(|| "-".to_owned(), mask_hidden_characters);
    let request = path.line.as_deref().unwrap_or("-").replace('\n', " ");
    let (kind, number, uid) = (&event.event, path.number, path.uid);
    format!("{kind} {number} {uid} {name} {}\n", mask_hidden_characters(&request))
}
