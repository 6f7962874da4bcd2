//! The thread that writes the records of a tap to the reader's pipe. Once the path has ended, the
//! thread writes the records that do not fit into the pipe to a file.

use super::tap::{TapEndReason, TapRecords, TapState};
use super::tap_form::{ConvertedRecords, TapForm};
use super::tap_pipe::TapPipe;
use endpoint::history;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::memory::{Memfd, Seals};

/// Interval at which a thread that waits for the tap's reader checks whether the tap has ended.
const END_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time to finish writing a record after the tap's handle is dropped.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread that writes a tap's records to the pipe.
#[derive(Debug)]
pub(super) struct TapWriter {
    pub(super) pipe: TapPipe,
    pub(super) patience: Duration,
    pub(super) shared: Arc<TapState>,
    /// True once the header of a capture has been sent.
    pub(super) header_sent: bool,
    /// Form in which the tap writes blocks: one element, or one for each replica of the node.
    pub(super) forms: Vec<TapForm>,
    /// File for the records that do not fit into the pipe; `None` while the tap waits for its
    /// reader.
    pub(super) overflow: Option<File>,
    /// Sender of the file with the records that do not fit into the pipe; dropping it reports the
    /// end of the thread.
    pub(super) result_sender: mpsc::Sender<Option<Memfd>>,
}

impl TapWriter {
    pub(super) fn run(mut self, records: &mpsc::Receiver<TapRecords>) {
        self.write_all(records);
        self.shared.drop_owned_value();
        let rest = self.overflow.take().map(seal_file).transpose();
        let rest = rest.unwrap_or_else(|_| {
            self.shared.end(TapEndReason::UnreadRecordsLost);
            None
        });
        // The send fails if the handle was dropped.
        let _ = self.result_sender.send(rest);
    }

    /// Writes records to the reader of the tap until the tap ends.
    fn write_all(&mut self, receiver: &mpsc::Receiver<TapRecords>) {
        loop {
            match receiver.recv_timeout(END_POLL_INTERVAL) {
                Ok(TapRecords { replica, bytes }) => {
                    let length = bytes.len();
                    let Some(form) = self.forms.get_mut(replica) else { continue };
                    let records = form.convert_records(bytes, self.header_sent);
                    self.header_sent = true;
                    let cut = self.forms.iter().map(TapForm::cut_message_count).sum();
                    self.shared.cut.store(cut, Ordering::Relaxed);
                    let written = self.write(&records);
                    self.shared.backlog.fetch_sub(length, Ordering::Relaxed);
                    if let Err(why) = written {
                        return self.shared.end(why);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) if !self.is_over() => {
                    self.pipe.free_if_empty();
                }
                Err(_) => {
                    self.complete_empty_capture();
                    return self.shared.end(TapEndReason::PathEnded);
                }
            }
        }
    }

    /// Writes the header of a capture if the tap has sent no frame, so that its reader finds a
    /// valid capture without packets.
    fn complete_empty_capture(&mut self) {
        if let (Some(form @ TapForm::Capture), false) = (self.forms.first_mut(), self.header_sent) {
            let header = history::empty_capture().to_vec();
            let records = form.convert_records(header, false);
            // If the reader has gone, it needs no header.
            let _ = self.write(&records);
        }
    }

    /// Returns true if the tap receives no further records, because it has ended or must finish.
    fn is_over(&self) -> bool {
        self.shared.has_ended() || self.is_finishing()
    }

    fn is_finishing(&self) -> bool {
        self.shared.is_finishing.load(Ordering::Relaxed)
    }

    /// Writes records. Blocks until the pipe has accepted all of them, the tap's handle is dropped,
    /// or the reader has read nothing for too long. If the handle is dropped while a record is
    /// being written, completes the record first, for at most [`COMPLETION_TIMEOUT`], so that the
    /// reader finds no truncated record. Once the tap finishes, writes the records that do not fit
    /// into the pipe to a file.
    fn write(&mut self, records: &ConvertedRecords) -> Result<(), TapEndReason> {
        let bytes = records.bytes.as_slice();
        let (mut done, mut since) = (0, sys::clock::monotonic_ns());
        while done < bytes.len() {
            let over = self.shared.is_dropped();
            let end = if over { records.record_end(done) } else { bytes.len() };
            if done == end {
                return Err(TapEndReason::ReaderLeft);
            }
            let part = bytes.get(done..end).unwrap_or_default();
            if let Some(rest) = &mut self.overflow {
                return rest.write_all(part).map_err(|_| TapEndReason::UnreadRecordsLost);
            }
            match self.pipe.put(part) {
                Ok(written) => {
                    done += written;
                    since = sys::clock::monotonic_ns();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_finishing() => {
                    let rest =
                        Memfd::create("unread", 0).map_err(|_| TapEndReason::UnreadRecordsLost)?;
                    self.overflow = Some(File::from(OwnedFd::from(rest)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waited =
                        Duration::from_nanos(sys::clock::monotonic_ns().saturating_sub(since));
                    let limit =
                        if over { self.patience.min(COMPLETION_TIMEOUT) } else { self.patience };
                    if !self.pipe.wait_until_writable(END_POLL_INTERVAL) && waited >= limit {
                        return Err(TapEndReason::ReaderStalled(self.patience));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return Err(TapEndReason::NoMemory);
                }
                Err(_) => return Err(TapEndReason::ReaderLeft),
            }
        }
        Ok(())
    }
}

/// Seals a file, so that its reader can rely on its contents.
fn seal_file(file: File) -> sys::Result<Memfd> {
    let file = Memfd::from_fd(OwnedFd::from(file))?;
    file.seal(Seals::FROZEN)?;
    Ok(file)
}
