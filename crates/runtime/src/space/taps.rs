//! Taps: copies of the frames that leave a node of a running path, including earlier frames. [SL
//! §5.2, readers that begin in the past; RELIABILITY T4]
//!
//! In the space's thread, a tap copies the frames of blocks that leave a node, and never waits. The
//! tap's own thread writes them to a pipe, in the tap's form. The backlog between the threads is
//! bounded ([`TAP_BACKLOG_BYTES_MAX`]): if it is full, frames are skipped and counted, or the tap
//! ends, depending on its policy. A tap also ends if its reader has read nothing for a maximum
//! time, or closes the pipe.
//!
//! A tap can begin in the past if the path keeps a **history** of its sources: a bounded store of
//! the latest frames that left a node ([`Taps::node_history`]). Such a tap reports the number of
//! its first block. A reader can therefore distinguish a tap that began late from a node without
//! traffic.

use super::node::{Node, Operator};
use super::observe::Observer;
use super::tap::*;
use super::tap_form::TapForm;
use endpoint::history::{
    self, CompressionMode, FrameHeader, History, HistoryLimits, HistoryStart, RetainedFrames,
};
use filter::{Batch, Block, LaneMask, Time, lanes};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl TapFeed {
    /// Sends the frames of a history to the tap, starting at `from`. The backlog limit does not
    /// apply. For a capture, omits frames whose link type differs from that of the first frame.
    /// Returns the number of frames sent.
    fn send_history(&mut self, history: &History, from: HistoryStart) -> u64 {
        let mut records = Vec::new();
        let mut frames = 0;
        history.visit_frames_since(from, |kept, frame| {
            frames += u64::from(self.append_frame(kept, frame, &mut records));
        });
        self.shared.frames.fetch_add(frames, Ordering::Relaxed);
        self.send_records(records);
        frames
    }

    /// Counts `count` blocks as skipped by the tap, because they were lost on their way to the tap.
    /// Advances the tap's position past these blocks.
    fn skip(&mut self, count: u64) {
        self.count_skipped_blocks(self.position, count);
        self.position += count;
    }

    /// Counts `count` blocks as skipped by the tap. `from` is the number of the first of these
    /// blocks in the node's output.
    fn count_skipped_blocks(&self, from: u64, count: u64) {
        self.shared.skipped.fetch_add(count, Ordering::Relaxed);
        if count > 0 && !self.shared.is_merged {
            let missing = self.shared.missing.lock();
            missing.unwrap_or_else(PoisonError::into_inner).add(from, count, None);
        }
    }

    /// Appends a frame of a history to `to`, in the form of the tap's records. Returns false if
    /// that form cannot contain the frame.
    fn append_frame(&self, kept: &FrameHeader, frame: &[u8], to: &mut Vec<u8>) -> bool {
        match self.records {
            RecordForm::Capture if !self.accept_link_type(*kept) => return false,
            RecordForm::Capture => history::append_record(kept, frame, to),
            RecordForm::Bytes => to.extend_from_slice(frame),
            RecordForm::Blocks => TapForm::copy_block(false, &kept.block(frame), to),
            RecordForm::Views => TapForm::copy_block(true, &kept.block(frame), to),
        }
        true
    }

    /// Returns the lanes whose blocks the tap sends: those with one of the tap's classes or, if the
    /// tap has no classes, those in `wanted`, which at least one arc accepts.
    fn select_lanes(&self, batch: &Batch<'_>, wanted: LaneMask) -> LaneMask {
        self.classes.as_ref().map_or(wanted, |classes| classes.select_lanes(batch))
    }

    /// Sends the blocks in the lanes of `which` to the tap's thread. If the backlog is full, skips
    /// these blocks or ends the tap, depending on the tap's policy. Returns false if the tap has
    /// ended.
    fn send_frames(&mut self, batch: &Batch<'_>, which: LaneMask) -> bool {
        if self.shared.has_ended() {
            return false;
        }
        if which == 0 {
            return true;
        }
        let count = u64::from(which.count_ones());
        let from = self.position;
        self.position += count;
        if self.shared.backlog() >= TAP_BACKLOG_BYTES_MAX {
            self.count_skipped_blocks(from, count);
            if self.policy == OverrunPolicy::End {
                self.shared.end(TapEndReason::BacklogFull);
            }
            return self.policy == OverrunPolicy::Skip;
        }
        let mut records = Vec::new();
        let mut frames = 0;
        for lane in lanes(which) {
            let block = batch.block(lane);
            if self.records == RecordForm::Bytes {
                records.extend_from_slice(block.bytes());
                frames += 1;
                continue;
            }
            if self.records != RecordForm::Capture {
                let views = self.records == RecordForm::Views;
                TapForm::copy_block(views, &block, &mut records);
                frames += 1;
                continue;
            }
            let kept = FrameHeader::for_block(&block);
            let whole = block.marks.is_frame() && !block.frame.is_empty();
            if whole && self.accept_link_type(kept) {
                history::append_record(&kept, block.frame, &mut records);
                frames += 1;
            }
        }
        self.shared.frames.fetch_add(frames, Ordering::Relaxed);
        self.shared.no_frame.fetch_add(count - frames, Ordering::Relaxed);
        self.send_records(records);
        true
    }

    /// Returns true if a frame has the same link type as the first frame of the capture. If it is
    /// the first frame, also sends the file header, which precedes the records of all replicas.
    fn accept_link_type(&self, kept: FrameHeader) -> bool {
        let first = self.shared.first.get_or_init(|| {
            self.send_records(history::file_header(kept.link).to_vec());
            kept
        });
        first.link.file_link_type() == kept.link.file_link_type()
    }

    fn send_records(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.shared.backlog.fetch_add(bytes.len(), Ordering::Relaxed);
            // A failed send means that the thread has ended and recorded the reason.
            let _ = self.to.send(TapRecords { replica: self.replica, bytes });
        }
    }
}

/// The taps and histories of a space, each paired with the number of its node.
#[derive(Debug, Default)]
pub struct Taps {
    feeds: Vec<(usize, TapFeed)>,
    /// Number of blocks lost so far between the kernel and the taps, by node number.
    lost: Vec<(usize, u64)>,
    histories: Vec<(usize, History)>,
}

impl Taps {
    /// Stores a history of a node's output, of at most `bytes` bytes, for later taps.
    pub fn start_history(&mut self, node: usize, bytes: usize) {
        // A thread of its own compresses the history, so that the space's thread does not wait.
        let limits = HistoryLimits { bytes, time: Time::MAX };
        self.histories.push((node, History::new(limits, CompressionMode::OwnThread)));
    }

    /// Returns the frames that histories retain, each with the number of its node.
    pub(crate) fn retained_frames(&self) -> Vec<(usize, RetainedFrames)> {
        self.histories
            .iter()
            .map(|(node, history)| (*node, history.retained_frame_counts()))
            .collect()
    }

    /// Freezes the history of a node's output until the time `until`, so that no stored frame is
    /// evicted ([`History::freeze`]). Returns false if the node has no history.
    pub fn freeze(&mut self, node: usize, until: Time) -> bool {
        let mut found = self.histories.iter_mut().filter(|(known, _)| *known == node);
        found.next().is_some_and(|(_, history)| {
            history.freeze(until);
            true
        })
    }

    /// Returns the history of a node's output, or `None` if the node has no history.
    fn node_history(&self, node: usize) -> Option<&History> {
        self.histories.iter().find(|(known, _)| *known == node).map(|(_, history)| history)
    }

    /// Adds a tap to a node. `left` is the number of blocks that have left the node so far. If
    /// `from` is given and the node has a history, sends the frames of the history first, starting
    /// at `from`.
    pub fn add_tap(
        &mut self,
        (node, left): (usize, u64),
        from: Option<HistoryStart>,
        mut feed: TapFeed,
        now: Time,
    ) -> TapStart {
        let mut began = TapStart { block: left, ..TapStart::default() };
        if let Some(history) = self.node_history(node) {
            began.has_history = true;
            if let Some(from) = from {
                began.history_blocks = feed.send_history(history, from);
                let skipped = history.skipped_frame_count();
                began.block = left.saturating_sub(began.history_blocks + skipped);
                feed.count_skipped_blocks(left.saturating_sub(skipped), skipped);
                let mut first = None;
                history.visit_frames_since(from, |kept, _| first = first.or(Some(kept.time)));
                began.first_age_ns = first.map_or(0, |first| now.saturating_sub(first));
            }
        }
        feed.position = left;
        self.feeds.push((node, feed));
        began
    }

    /// Records that `lost` blocks of the nodes in `nodes` have been lost so far between the kernel
    /// and this process. The taps of the nodes count the losses since the last call as skipped.
    pub(super) fn count_lost_blocks(&mut self, nodes: &[usize], lost: u64) {
        for node in nodes {
            let before = match self.lost.iter_mut().find(|(known, _)| known == node) {
                Some((_, before)) => std::mem::replace(before, lost),
                None => {
                    self.lost.push((*node, lost));
                    lost
                }
            };
            // A program that has replaced another one counts from 0.
            let more = lost.checked_sub(before).unwrap_or(lost);
            for (_, feed) in self.feeds.iter_mut().filter(|(known, _)| known == node && more > 0) {
                feed.skip(more);
            }
        }
    }

    /// Sends blocks that left a node in the kernel to the taps of that node.
    pub(super) fn feed_from_kernel(&mut self, from: &Node, batch: &Batch<'_>, wanted: LaneMask) {
        // Other taps of a source receive the blocks that its thread emits.
        let is_source = matches!(from.operator, Operator::Source(_));
        self.feed_node_taps(from.number, batch, wanted, |feed| !is_source || feed.in_kernel);
    }

    /// Sends blocks that left a node to those taps of the node for which `takes` returns true.
    /// Removes the taps among them that have ended.
    fn feed_node_taps(
        &mut self,
        node: usize,
        batch: &Batch<'_>,
        wanted: LaneMask,
        takes: impl Fn(&TapFeed) -> bool,
    ) {
        self.feeds.retain_mut(|(known, feed)| {
            *known != node
                || !takes(feed)
                || feed.send_frames(batch, feed.select_lanes(batch, wanted))
        });
    }

    /// Ends the taps and drops the histories of nodes for which `is_here` returns false. Also
    /// removes taps that have already ended.
    pub fn retain(&mut self, is_here: impl Fn(usize) -> bool) {
        self.feeds.retain(|(node, feed)| {
            let here = is_here(*node) && !feed.shared.has_ended();
            if !here {
                feed.shared.end(TapEndReason::NodeMoved);
            }
            here
        });
        self.histories.retain(|(node, _)| is_here(*node));
    }

    /// Returns true if no taps and no histories remain.
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty() && self.histories.is_empty()
    }
}

impl Observer for Taps {
    /// Sends the routed frames to the histories and taps of the node.
    fn before_routing(&mut self, from: &Node, batch: &Batch<'_>, wanted: LaneMask, _: Time) {
        if !from.accepts_taps() {
            return;
        }
        let node = from.number;
        for (_, history) in self.histories.iter_mut().filter(|(known, _)| *known == node) {
            let push = |block: Block<'_>| history.push(&block);
            lanes(wanted).map(|lane| batch.block(lane)).for_each(push);
        }
        // A tap that reads a source in the kernel gets all of the source's blocks there.
        let is_source = matches!(from.operator, Operator::Source(_));
        self.feed_node_taps(node, batch, wanted, |feed| !(is_source && feed.in_kernel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::tap::Tap;
    use std::io::{self, Read as _};
    use std::time::Duration;

    /// Length of a record, which is longer than a pipe.
    const RECORD_LENGTH: u32 = 100_000;

    /// Starts a tap and sends it a capture of two records.
    fn capture_of_two_records() -> (Tap, Vec<TapFeed>, io::PipeReader) {
        let mut records = vec![0; history::FILE_HEADER_SIZE];
        for _ in 0..2 {
            let at = records.len();
            records.resize(at + history::RECORD_HEADER_SIZE + RECORD_LENGTH as usize, 7);
            records[at + 8..at + 12].copy_from_slice(&RECORD_LENGTH.to_le_bytes());
        }
        let (mut reader, pipe) = io::pipe().unwrap();
        let capture = (vec![TapForm::Capture], None);
        let (tap, feeds) =
            Tap::new((pipe.into(), None), OverrunPolicy::Skip, Duration::from_secs(60), capture)
                .unwrap();
        feeds[0].send_records(records);
        reader.read_exact(&mut [0]).unwrap();
        (tap, feeds, reader)
    }

    fn length_of_records(count: usize) -> usize {
        history::FILE_HEADER_SIZE + count * (history::RECORD_HEADER_SIZE + RECORD_LENGTH as usize)
    }

    #[test]
    fn v8_tap_dropped_during_a_write_leaves_only_whole_records() {
        let (tap, _feeds, mut reader) = capture_of_two_records();
        let dropping = std::thread::spawn(move || drop(tap));
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        dropping.join().unwrap();
        let whole = [1, 2].map(length_of_records);
        assert!(whole.contains(&(1 + rest.len())), "{}", rest.len());
    }

    #[test]
    fn v8_tap_of_a_moved_node_delivers_its_backlog() {
        let (tap, feeds, mut reader) = capture_of_two_records();
        tap.shared.end(TapEndReason::NodeMoved);
        drop(feeds);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(1 + rest.len(), length_of_records(2));
        assert_eq!(tap.stats().end_reason, Some(TapEndReason::NodeMoved));
    }

    #[test]
    fn v8_finished_tap_returns_records_beyond_its_pipe() {
        let (tap, feeds, mut reader) = capture_of_two_records();
        drop(feeds);
        let (stats, unread) = tap.finish(Duration::from_secs(60));
        assert_eq!(stats.end_reason, Some(TapEndReason::PathEnded));
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        let unread = std::fs::File::from(std::os::fd::OwnedFd::from(unread.unwrap()));
        let at = rest.len();
        rest.resize(length_of_records(2) - 1, 0);
        std::os::unix::fs::FileExt::read_exact_at(&unread, &mut rest[at..], 0).unwrap();
        assert!(rest[at..].iter().filter(|byte| **byte == 7).count() > RECORD_LENGTH as usize);
        assert_eq!(unread.metadata().unwrap().len() as usize, rest.len() - at);
    }
}
