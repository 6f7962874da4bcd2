//! Captures of running paths to files. A tap sends the frames that leave a filter, and a thread
//! writes them to a file of the user until the page stops the capture. A record of a running path
//! is not possible, because a record starts with the initial state of all filters. A capture of a
//! source's output can be replayed instead.

use crate::failure::Failure;
use crate::frames::{CaptureEnd, CaptureLimits, CaptureProgress, FrameFile};
use crate::live::LiveFigures;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use streamline::paths::{self, PathClient, TapParameters};
use streamline::report::format_count;
use sys::eventfd::EventFd;

/// Maximum number of running captures. The list also contains at most this many ended captures.
const CAPTURES_MAX: usize = 8;
/// The limits at which each capture ends: time, number of frames, and length of the file in bytes.
const CAPTURE_LIMITS: CaptureLimits =
    CaptureLimits { time: Duration::from_secs(3600), frames: u64::MAX, bytes: 1_000_000_000 };

/// The captures that the page has started.
#[derive(Debug, Default)]
pub struct Captures(Mutex<CaptureList>);

#[derive(Debug, Default)]
struct CaptureList {
    all: BTreeMap<u32, Capture>,
    last: u32,
}

#[derive(Debug)]
struct Capture {
    path: u32,
    node: Option<String>,
    file: PathBuf,
    state: Arc<Mutex<CaptureState>>,
    stop: Arc<EventFd>,
    /// The thread that writes the file; `None` once it has been joined.
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct CaptureState {
    progress: CaptureProgress,
    /// Sentence that describes how the capture ended; `None` while the capture is running.
    ended: Option<String>,
}

/// An entry in the list of captures that the browser receives.
#[derive(Serialize)]
struct ListedCapture<'c> {
    number: u32,
    path: u32,
    node: Option<&'c str>,
    file: String,
    frames: u64,
    bytes: u64,
    ended: Option<&'c str>,
}

/// The parameters of a new capture: the path, the node and the output file.
#[derive(Debug, Deserialize)]
pub(crate) struct CaptureChoice {
    path: u32,
    /// The node whose output is captured; the source by default.
    node: Option<String>,
    file: String,
}

impl Captures {
    /// Starts a capture, and returns the number of the capture. Fails if the file exists, the node
    /// cannot be tapped, or [`CAPTURES_MAX`] captures are running.
    pub(crate) fn start(&self, live: &LiveFigures, given: CaptureChoice) -> Result<u32, Failure> {
        let CaptureChoice { path, node, file } = given;
        let mut known = lock(&self.0);
        if known.all.values().filter(|capture| capture.is_running()).count() >= CAPTURES_MAX {
            return Err(refusal(format!("{CAPTURES_MAX} captures are already running: stop one")));
        }
        let to = paths::connect(&live.connect()?, &path.to_string())?;
        let (_, pipe) =
            to.tap(&TapParameters { node: node.clone(), ..TapParameters::default() })?;
        let (file, out) = create_file(&file).map_err(refusal)?;
        let stop = Arc::new(EventFd::new().map_err(|error| refusal(error.to_string()))?);
        let state = Arc::<Mutex<CaptureState>>::default();
        let (stopped, shared) = (Arc::clone(&stop), Arc::clone(&state));
        let write = move || write_capture(&to, pipe.into(), out, &stopped, &shared);
        let writer = std::thread::Builder::new().name("capture".to_owned()).spawn(write);
        let writer = Some(writer.map_err(|error| refusal(error.to_string()))?);
        known.last += 1;
        let number = known.last;
        known.all.insert(number, Capture { path, node, file, state, stop, writer });
        known.forget_oldest_captures();
        Ok(number)
    }

    /// Stops a capture. Blocks until the file of the capture is complete.
    pub(crate) fn stop(&self, number: u32) {
        // The lock is not held during the join below, so that captures can be listed in the
        // meantime.
        let writer = lock(&self.0).all.get_mut(&number).and_then(|capture| {
            capture.stop.notify();
            capture.writer.take()
        });
        // If the writer has panicked, its thread has already reported the panic.
        let _ = writer.map(JoinHandle::join);
    }

    /// Returns true if at least one capture is running.
    #[must_use]
    pub fn has_running_capture(&self) -> bool {
        lock(&self.0).all.values().any(Capture::is_running)
    }

    /// Stops all captures.
    pub fn stop_all(&self) {
        let numbers: Vec<u32> = lock(&self.0).all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.stop(number));
    }

    /// Returns all captures, including ended ones, with the sizes of their files.
    pub(crate) fn list(&self) -> Value {
        let known = lock(&self.0);
        let listed = known.all.iter().map(|(number, capture)| {
            let state = lock(&capture.state);
            let listed = ListedCapture {
                number: *number,
                path: capture.path,
                node: capture.node.as_deref(),
                file: capture.file.display().to_string(),
                frames: state.progress.frames,
                bytes: state.progress.bytes,
                ended: state.ended.as_deref(),
            };
            serde_json::to_value(listed).unwrap_or_default()
        });
        json!({ "captures": listed.collect::<Vec<_>>() })
    }
}

impl Capture {
    fn is_running(&self) -> bool {
        lock(&self.state).ended.is_none()
    }
}

impl CaptureList {
    fn forget_oldest_captures(&mut self) {
        let has_ended = |capture: &Capture| lock(&capture.state).ended.is_some();
        let ended = self.all.iter().filter(|(_, capture)| has_ended(capture));
        let ended: Vec<u32> = ended.map(|(number, _)| *number).collect();
        for number in ended.iter().rev().skip(CAPTURES_MAX) {
            self.all.remove(number);
        }
    }
}

/// Writes the frames of a tap to a file until the tap ends, the capture is stopped, a limit is
/// reached, or an error occurs. Then stores in `state` a sentence that describes how the capture
/// ended. `to` is the connection of the tap.
fn write_capture(
    to: &PathClient,
    mut pipe: File,
    out: File,
    stop: &EventFd,
    state: &Mutex<CaptureState>,
) {
    let mut out = FrameFile::new(out);
    let end = out
        .copy_frames(&mut pipe, stop, CAPTURE_LIMITS, |progress| lock(state).progress = progress);
    let mut report = format_count(out.progress.frames, "frame");
    match to.tap_report() {
        Ok(tap) if tap.skipped > 0 => {
            report.push_str(&format!(", {} skipped: the file was too slow", tap.skipped));
        }
        Ok(_) => report.push_str(", none skipped"),
        Err(_) => report.push_str("; the path has ended, and did not report what was skipped"),
    }
    match end {
        CaptureEnd::Stopped | CaptureEnd::Closed => {}
        CaptureEnd::Limit => report.push_str("; it was full: an hour, or 1 GB"),
        CaptureEnd::Failed(error) => report.push_str(&format!("; it failed: {error}")),
    }
    let mut state = lock(state);
    state.progress = out.progress;
    state.ended = Some(report);
}

/// Creates a file, and returns the absolute path and the file. Fails if the file already exists.
fn create_file(name: &str) -> Result<(PathBuf, File), String> {
    let name = name.trim();
    if name.is_empty() || name.contains('\0') {
        return Err("the name of a file is missing, such as `web.pcap`".to_owned());
    }
    let path = std::path::absolute(Path::new(name)).map_err(|error| error.to_string())?;
    match File::create_new(&path) {
        Ok(file) => Ok((path, file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(format!("{} exists already: choose another name", path.display()))
        }
        Err(error) => Err(format!("cannot create {}: {error}", path.display())),
    }
}

fn refusal(text: String) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, text)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_replaces_no_file() {
        assert!(create_file("/etc/passwd").unwrap_err().contains("exists already"));
        assert!(create_file(" ").unwrap_err().contains("missing"));
        assert!(create_file("/no such folder/a.pcap").unwrap_err().contains("cannot create"));
    }
}
