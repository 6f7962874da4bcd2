//! Messages between a worker and its parent: one JSON object per line.
//!
//! Both processes run the same version of the library, so the format has no version number.

use engine::run::RunOutcome;
use serde::{Deserialize, Serialize};
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

/// The task of a worker: its request, processor and settings.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Assignment {
    /// Text of the request that the worker runs.
    pub(super) text: String,
    /// Number of the worker, counted from 1.
    pub(super) number: u32,
    /// Total number of workers of the path.
    pub(super) of: u32,
    /// Processor to which the worker pins itself.
    pub(super) processor: usize,
    /// True to measure the time spent in each filter.
    pub(super) timed: bool,
    /// True to run without the daemon.
    pub(super) embedded: bool,
    /// Number of bytes of output that each source retains, or `None` to retain nothing.
    pub(super) history: Option<usize>,
}

/// A command from the parent to a worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Command {
    /// Runs the request. Sent once all workers are ready.
    Go,
    /// Ends the sources and lets the path drain its blocks.
    Stop,
    /// Requests the current counters; the reply is [`Message::Counted`].
    Count,
    /// Switches to this request. Filters that both requests contain keep their state. The number
    /// identifies this command; the reply [`Message::Changed`] contains the same number.
    Change(u64, String),
}

/// A message from a worker to its parent.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Message {
    /// The worker has built the request.
    Ready,
    /// The worker has started to run the request.
    RunStarted {
        /// True if the worker's sources had received nothing when the run started.
        quiet: bool,
    },
    /// The current counters of the worker.
    Counted(Box<RunOutcome>),
    /// The reply to [`Command::Change`], with the number of that command. After a success, the
    /// result is a sentence that summarizes the change with its block counts, and the new request.
    /// After a refusal, it is the reason.
    Changed(u64, Result<(String, String), String>),
    /// The run has ended. Contains the final counters and the last request.
    Ended(Box<RunOutcome>, String),
}

/// Writes a message as one line of JSON. Blocks until it is written.
pub(super) fn send(mut to: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(message).unwrap_or_default();
    text.push(b'\n');
    to.write_all(&text)
}
