//! The messages that leave a filter. A tap delivers them while a browser reads.

use crate::live::LiveFigures;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use streamline::paths::{self, ClientError, TapParameters};
use sys::eventfd::EventFd;
use tokio::sync::mpsc;

/// Maximum number of messages that are queued for the browser. If the queue is full, the tap skips
/// messages.
const QUEUED_MESSAGES_MAX: usize = 64;
/// Maximum length in bytes of a message sent to the browser; longer messages are truncated.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The messages of a tap as lines of JSON. The tap ends when this value is dropped.
#[derive(Debug)]
pub struct TapMessages {
    lines: mpsc::Receiver<String>,
    dropped: Arc<EventFd>,
}

impl TapMessages {
    /// Taps the output of a node. Blocks until the path has replied.
    pub fn tap(live: &LiveFigures, number: u32, node: String) -> Result<Self, ClientError> {
        let dropped = Arc::new(EventFd::new()?);
        let to = paths::connect(&live.connect()?, &number.to_string())?;
        let form = Some("json".to_owned());
        let (_, pipe) =
            to.tap(&TapParameters { node: Some(node), form, ..TapParameters::default() })?;
        let (sender, lines) = mpsc::channel(QUEUED_MESSAGES_MAX);
        let stop = Arc::clone(&dropped);
        let read = move || {
            read_lines(&mut pipe.into(), &stop, &sender);
            drop(to);
        };
        // If no thread can be started, the sender is dropped, and `next` returns `None`.
        let _ = std::thread::Builder::new().name("tap".to_owned()).spawn(read);
        Ok(Self { lines, dropped })
    }

    /// Waits for the next message. Returns `None` if the path or the tap has ended.
    pub async fn next(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}

impl Drop for TapMessages {
    fn drop(&mut self) {
        self.lines.close();
        self.dropped.notify();
    }
}

/// Reads lines from a pipe and sends them, until the pipe ends or `stop` is notified.
fn read_lines(pipe: &mut File, stop: &EventFd, sender: &mpsc::Sender<String>) {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut line = Vec::new();
    loop {
        let ready = sys::poll::wait_until_readable(&[pipe.as_fd(), stop.as_fd()], None);
        if ready.last() == Some(&true) {
            return;
        }
        let length = match ready.first() {
            Some(true) => pipe.read(&mut bytes).unwrap_or(0),
            _ => continue,
        };
        if length == 0 {
            return;
        }
        for piece in bytes[..length].split_inclusive(|byte| *byte == b'\n') {
            let room = MESSAGE_BYTES_MAX.saturating_sub(line.len());
            line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.blocking_send(text).is_err() {
                    return;
                }
            }
        }
    }
}
