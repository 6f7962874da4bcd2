//! `streamline attach`: prints the output, the progress and finally the outcome of a running path.
//! ^C detaches without stopping the path.

use super::connect::{connect_path, format_age, user_name, wait_readable, watch_signals};
use crate::arguments::paths::AttachArguments;
use crate::failure::report_client_error;
use crate::progress::format_bytes_short;
use crate::status::Status;
use crate::terminal;
use abi::text::VisibleLines;
use member::client::{ClientError, mask_hidden_characters};
use member::protocol::Totals;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;
use streamline::report::format_count;
use sys::file::FileKind;

/// Interval between two updates of the progress line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// Prints the output and progress of a path until the path ends or a signal arrives.
pub(super) fn run(arguments: &AttachArguments) -> Result<Status, Status> {
    let signals = watch_signals()?;
    let (to, about) = connect_path(&arguments.path)?;
    let mut log = about.log.as_deref().and_then(|log| LogReader::open_reported_log(log, to.uid()));
    to.subscribe_to_totals(UPDATE_INTERVAL, None).map_err(|error| report_client_error(&error))?;
    let mut is_subscribed = false;
    loop {
        let ready = wait_readable(&[to.as_fd(), to.pidfd()], signals, None);
        if ready.is_none() {
            terminal::erase_status_line();
            terminal::print_note(&format!("path {} continues to run", to.number()));
            return Ok(Status::Done);
        }
        // The last update can still be read after the process has ended.
        let update = to.next_update();
        let log_status = log.as_mut().map_or(Status::Done, LogReader::print_new_lines);
        if log_status != Status::Done {
            return Ok(log_status);
        }
        match update {
            Ok(update) => {
                is_subscribed = true;
                if let Some(ended) = update.ended {
                    terminal::erase_status_line();
                    terminal::print_error_text(&format!(
                        "{}\n",
                        mask_hidden_characters(&ended.report)
                    ));
                    return Ok(Status::from_exit_code(ended.status));
                }
                let totals = super::rates::update_totals(&update);
                if let Some(totals) = totals.filter(|_| terminal::can_rewrite_line()) {
                    terminal::show_status_line(&progress_line(&totals));
                }
            }
            // The path ended before it received the subscription.
            Err(ClientError::Disconnected) if !is_subscribed => {
                return Err(report_client_error(&ClientError::PathEnded(arguments.path.clone())));
            }
            Err(ClientError::Disconnected) => {
                terminal::erase_status_line();
                let number = to.number();
                terminal::print_error(&format!("path {number} has ended without a report"));
                return Ok(Status::Failed);
            }
            Err(error) => return Err(report_client_error(&error)),
        }
    }
}

/// Formats the running time, the output of the sources and the losses as a progress line.
fn progress_line(totals: &Totals) -> String {
    let Totals { elapsed_ns, given, lost } = *totals;
    let time = format_age(elapsed_ns / 1_000_000_000);
    let lost = if lost > 0 { format!("  lost: {lost}") } else { String::new() };
    format!(
        " {time}  {}  {}{lost}",
        format_count(given.blocks, "block"),
        format_bytes_short(given.bytes)
    )
}

/// A reader of a path's log file. It reads only text that is appended after the file has been
/// opened.
struct LogReader {
    file: File,
    /// Bytes at the end of the text read so far that form an incomplete UTF-8 sequence.
    rest: Vec<u8>,
}

impl LogReader {
    /// Opens the log file that a path reports, at its end. The file name is untrusted, so only a
    /// regular file of the path's user is opened: opening such a file has no side effects. For any
    /// other file, prints a note and returns `None`.
    fn open_reported_log(path: &str, uid: u32) -> Option<Self> {
        let opened = open_foreign_file(Path::new(path), uid).and_then(|mut file| {
            let sought =
                file.seek(SeekFrom::End(0)).map_err(|error| terminal::describe_io_error(&error));
            sought.map(|_| Self { file, rest: Vec::new() })
        });
        let print_reason =
            |why| terminal::print_note(&format!("the log {path} is not shown: {why}"));
        opened.map_err(print_reason).ok()
    }

    fn print_new_lines(&mut self) -> Status {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = self.file.read(&mut bytes).unwrap_or(0);
            if read == 0 {
                return Status::Done;
            }
            self.rest.extend_from_slice(bytes.get(..read).unwrap_or_default());
            let printed = terminal::print_text(&take_printable(&mut self.rest));
            if printed != Status::Done {
                return printed;
            }
        }
    }
}

/// Opens a file whose name a process of another user has supplied. Fails with the reason if the
/// file is not a regular file of that user, or if it is on a FUSE file system.
fn open_foreign_file(path: &Path, uid: u32) -> Result<File, String> {
    let failed = |error: sys::Error| error.to_string();
    let place = sys::file::open_path(path).map_err(failed)?;
    let status = sys::file::status(&place).map_err(failed)?;
    match () {
        () if status.kind != FileKind::Regular => Err("it is not a regular file".to_owned()),
        () if status.uid != uid => {
            Err(format!("it belongs to {}, and not to {}", user_name(status.uid), user_name(uid)))
        }
        () if sys::file::is_on_fuse(&place).map_err(failed)? => {
            Err("its file system is a process that may never reply (FUSE)".to_owned())
        }
        () => Ok(File::from(sys::file::reopen_read_only(place.as_fd()).map_err(failed)?)),
    }
}

/// Removes all complete UTF-8 sequences from the buffer, and returns them as text. Placeholders
/// replace hidden characters.
fn take_printable(bytes: &mut Vec<u8>) -> String {
    let whole = match std::str::from_utf8(bytes) {
        // An incomplete sequence stays in the buffer. Invalid bytes become replacement characters.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    let taken: Vec<u8> = bytes.drain(..whole).collect();
    VisibleLines(&String::from_utf8_lossy(&taken)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_another_user_is_printed_without_escapes() {
        let mut bytes = b"a\x1b[2J\xc2\x9b31m\xe2\x80".to_vec();
        assert_eq!(take_printable(&mut bytes), "a·[2J·31m");
        assert_eq!(bytes, b"\xe2\x80");
        bytes.extend_from_slice(b"\xae\xff\tb\n");
        assert_eq!(take_printable(&mut bytes), "·\u{fffd}\tb\n");
        assert!(bytes.is_empty());
    }
}
