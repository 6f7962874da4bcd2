//! Traces of flows through a running path. A tap writes the frames that leave the path's source,
//! including past frames that the source has kept, to a file for a limited time. Then `streamline
//! why` runs the request on these frames, without output.

use crate::commands::StreamlineProgram;
use crate::failure::Failure;
use crate::frames::{CaptureEnd, CaptureLimits, FrameFile};
use crate::live::LiveFigures;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use streamline::paths::{self, TapParameters};
use sys::eventfd::EventFd;

/// Default and maximum duration of the tap, in seconds.
const TAP_DURATION_LIMITS_S: (u64, u64) = (5, 20);
/// Maximum number of frames that a trace of a flow collects.
const FOLLOWED_FRAMES_MAX: u64 = 100_000;
/// Maximum number of bytes that a trace of a flow collects.
const FOLLOWED_BYTES_MAX: u64 = 100_000_000;

/// The parameters of a trace: the path, the flow, and the duration of the capture in seconds.
#[derive(Debug, Deserialize)]
pub(crate) struct FlowChoice {
    path: u32,
    /// The flow, in the syntax of `streamline why`.
    flow: String,
    seconds: Option<u64>,
}

/// Traces a flow. Returns the output of `streamline why --json`, with the numbers of collected and
/// skipped frames. Blocks while the frames are captured, for the requested duration, and then while
/// `streamline why` runs.
pub(crate) fn trace_flow(
    live: &LiveFigures,
    program: &StreamlineProgram,
    given: &FlowChoice,
) -> Result<Value, Failure> {
    let refuse = |text: &str| Failure::new(StatusCode::BAD_REQUEST, text);
    let failed = |error: io::Error| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot trace: {error}"))
    };
    let flow = given.flow.trim();
    if flow.is_empty() {
        return Err(refuse("a flow is missing: `tcp 10.0.0.1:1234 10.0.0.2:80`, or `port 53`"));
    }
    let number = given.path.to_string();
    let line = live.connect()?.connect_and_describe(&number)?.1.line;
    let seconds =
        given.seconds.unwrap_or(TAP_DURATION_LIMITS_S.0).clamp(1, TAP_DURATION_LIMITS_S.1);
    let folder = PrivateFolder::new().map_err(failed)?;
    let file = folder.0.join("frames.pcap").display().to_string();
    let to = paths::connect(&live.connect()?, &number)?;
    let tap = TapParameters { from: Some("oldest".to_owned()), ..TapParameters::default() };
    let (_, pipe) = to.tap(&tap)?;
    let mut frames = FrameFile::new(File::create_new(&file).map_err(failed)?);
    let never = EventFd::new().map_err(|error| refuse(&error.to_string()))?;
    let limits = CaptureLimits {
        time: Duration::from_secs(seconds),
        frames: FOLLOWED_FRAMES_MAX,
        bytes: FOLLOWED_BYTES_MAX,
    };
    if let CaptureEnd::Failed(error) = frames.copy_frames(&mut pipe.into(), &never, limits, |_| {})
    {
        return Err(failed(error));
    }
    let collected = frames.progress.frames;
    if collected == 0 {
        return Err(refuse(&format!("no frame left the source within {seconds} s")));
    }
    let skipped = to.tap_report().map_or(0, |report| report.skipped);
    drop(to);
    let program = program.with_empty_directory(folder.0.join("no-daemon"));
    let why = program.run(&["why", "--json", "--", flow, &file, &line]).map_err(failed)?;
    match serde_json::from_str::<Value>(&why.output) {
        Ok(Value::Object(mut rows)) if why.succeeded => {
            rows.insert("collected".to_owned(), collected.into());
            rows.insert("skipped".to_owned(), skipped.into());
            Ok(Value::Object(rows))
        }
        _ => Err(refuse(&why.messages.trim().replace(&file, &format!("the last {seconds} s")))),
    }
}

/// A temporary folder that only this user can read. Removed on drop.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new() -> io::Result<Self> {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-page-flow-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // If the removal fails, the files remain in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
