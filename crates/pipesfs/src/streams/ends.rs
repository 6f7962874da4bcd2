//! Examination of ended streams: completeness, and the blocks that readers missed.

use super::taps::TapConnection;
use super::{OpenStream, RemainingBytes, StreamOrigin, Streams, WaitingRead};
use crate::protocol::Reply;
use crate::totals::Totals;
use crate::transfer::StreamRead;
use crate::tree::DirectoryId;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use streamline::paths::{PATH_ENDED, TapReport};

/// Receiver of the taps of ended streams. [`Streams::examine_ended_taps`] examines the last report
/// of each tap.
pub type EndedTaps = mpsc::Receiver<EndedTap>;

/// A tap whose stream has ended, or was closed by its reader, and whose last report must be
/// examined.
#[derive(Debug)]
pub struct EndedTap {
    handle: u64,
    uid: u32,
    tap: Arc<TapConnection>,
    totals: Option<Arc<Totals>>,
    /// True if the reader has closed the stream.
    is_closed: bool,
}

/// Failure reason for a stream whose path exited without a report of the tap.
const NO_REPORT_REASON: &str = "a stream may be incomplete: the process of its path was killed, \
                                or failed, and did not report what was skipped";

impl Streams {
    /// Passes a tap to the thread that examines ended taps. If the thread has exited, the tap is
    /// dropped, which ends it.
    pub(super) fn send_ended_tap(
        &self,
        handle: u64,
        (stream, is_closed): (&OpenStream, bool),
        tap: Arc<TapConnection>,
    ) {
        let (uid, totals) = (stream.uid, stream.totals.clone());
        let _ = self.ends.send(EndedTap { handle, uid, tap, totals, is_closed });
    }

    /// Passes the tap of an ended stream to the thread that examines ended taps. Reads of the
    /// stream wait until the examination is complete.
    pub(super) fn hand_over_ended_stream(&self, handle: u64, stream: &mut OpenStream) {
        if stream.is_watched {
            stream.is_watched = false;
            let _ = self.watcher.unwatch(&stream.input);
        }
        match stream.origin.take() {
            Some(StreamOrigin::Path(tap)) => self.send_ended_tap(handle, (stream, false), tap),
            Some(StreamOrigin::Events(_)) => self.end(stream, false),
            None => {}
        }
    }

    /// Queries the path of each ended tap for the reason for its end and for the blocks that its
    /// reader has lost. Each query blocks for a limited time. Returns when the streams are dropped.
    pub fn examine_ended_taps(&self, endings: &EndedTaps) {
        while let Ok(EndedTap { handle, uid, tap, totals, is_closed }) = endings.recv() {
            let (report, rest) = match tap.receive_last_report(is_closed) {
                Some((report, rest)) => (Some(report), rest),
                None => (None, None),
            };
            drop(tap);
            if report.is_none() && !is_closed {
                self.failures.set_failure(uid, NO_REPORT_REASON.to_owned());
            }
            let failed = report.is_none();
            let report = report.unwrap_or_default();
            let over = report.over.as_deref().filter(|why| *why != PATH_ENDED);
            let is_incomplete = report.skipped > 0 || report.cut > 0;
            if is_incomplete {
                totals.iter().for_each(|totals| totals.add_missed_blocks(report.skipped));
                self.failures.set_failure(uid, describe_loss(&report));
            }
            let mut open = self.lock();
            if let Some(stream) = open.get_mut(&handle) {
                stream.is_incomplete |= is_incomplete;
                if self.continue_after_tap(handle, stream, over) {
                    continue;
                }
                over.iter().for_each(|why| self.failures.set_failure(uid, (*why).to_owned()));
                let file = rest.map(|rest| File::from(OwnedFd::from(rest)));
                stream.rest = file.map(|file| RemainingBytes { file, bytes_read: 0 });
                self.end(stream, failed || over.is_some() || stream.is_incomplete);
            }
        }
    }

    /// Returns the number of blocks that have been skipped so far for the readers of a directory's
    /// open streams, or `None` if a path does not reply. Blocks for a limited time per stream.
    #[must_use]
    pub fn skipped_blocks(&self, place: &DirectoryId) -> Option<u64> {
        let open = self.lock();
        let here = open
            .values()
            .filter(|stream| stream.place.as_ref().is_some_and(|(known, _)| known == place));
        let tap = |origin: &StreamOrigin| match origin {
            StreamOrigin::Path(tap) => Some(Arc::clone(tap)),
            StreamOrigin::Events(_) => None,
        };
        let taps: Vec<_> = here.filter_map(|stream| stream.origin.as_ref().and_then(tap)).collect();
        drop(open);
        taps.iter().map(|tap| tap.skipped_blocks()).sum()
    }

    /// Ends a stream: stores its outcome, and replies to its waiting reads with the remaining bytes
    /// or with the end of the stream. `failed` is true if the stream ends with an error.
    pub(super) fn end(&self, stream: &mut OpenStream, failed: bool) {
        stream.failed = Some(failed);
        for WaitingRead { unique, size } in std::mem::take(&mut stream.waiting_reads) {
            let reply = Reply::new(&self.device, unique);
            let read = stream.reply(reply, size);
            debug_assert!(matches!(read, StreamRead::Sent(_)), "the end of a stream is a reply");
        }
    }
}

/// Describes the blocks that a reader has lost.
fn describe_loss(report: &TapReport) -> String {
    let TapReport { skipped, cut, missing, .. } = report;
    let missing = missing.as_deref().unwrap_or("unknown");
    format!(
        "a stream was incomplete: {skipped} blocks were skipped, because its reader was too slow \
         (numbers {missing}), and {cut} messages were cut"
    )
}
