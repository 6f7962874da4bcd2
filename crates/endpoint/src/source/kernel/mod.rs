//! A source that reads rings written by kernel programs. Each exported frame becomes a block. [SL
//! §5.3, §6.2; CONTRACT 3, 16, 29]
//!
//! The source reads the per-processor rings of the programs of one interface ([`reader`]), which
//! run at an attach point ([`attach_point`]). It emits one block per frame and edge, in time order.
//! A frame is copied into the pool of the space only once, even if it follows several edges. The
//! source reinserts a VLAN tag, converts the timestamp to the time of day, and flags a frame with
//! checksum offload. To detect checksum offload, the source parses the headers. It stores their
//! offsets in the marks for downstream filters. Each call to `produce` emits blocks of one edge
//! only.
//!
//! A program notifies the doorbell when it exports a frame, unless the last notification is less
//! than the interval T_t old ([`KernelSourceParts::wait_ns`]). A reader that finds no frame sleeps
//! for at most T_t. If no program has notified the doorbell within T_t, the reader sleeps without a
//! limit.
//!
//! Deviation: programs cannot see checksum offload. A frame that is yet to be segmented has no
//! checksum. For any other frame, the checksum counts as unset if its field contains the sum over
//! the pseudo header.

pub mod attach_point;
mod checksum;
pub mod clock_offset;
pub mod frames_in_place;
pub mod reader;

pub use crate::contract::ArcCounts;
use crate::{Failure, Intake, Source, SourceCounters, SourceProperties, SourceStatus};
use abi::{BlockFlags, BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
use attach_point::AttachPoint;
use buffer::pool::Pool;
use clock_offset::ClockOffset;
use filter::{Amount, Time};
use frames_in_place::{FramesInPlace, TAG_SIZE};
use reader::{ExitLosses, ExportedFrame, FRAMES_PER_CHECK, KernelRingReader, RecordHeader};
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use sys::bpf::{ProgramRings, RingBuffer};

/// A set of kernel programs attached at one point. The programs export frames until they are
/// detached.
pub trait Attachment: fmt::Debug + Send + Sync {
    /// Detaches the programs. After the call no frame is exported.
    fn detach(&self);

    /// Returns the number of frames that the programs have received, including frames that were not
    /// exported, or `None` if unknown. Valid only after [`Attachment::detach`].
    fn frames_received(&self) -> Option<u64> {
        None
    }

    /// Returns the failure if the export has ended without a request from this process, because the
    /// exporting process has exited or removed the request. Returns `None` otherwise.
    fn export_failure(&self) -> Option<Failure> {
        None
    }
}

/// Components from which a [`KernelSource`] is created.
#[derive(Debug)]
pub struct KernelSourceParts {
    /// The rings to which the kernel programs write frames.
    pub rings: Arc<ProgramRings>,
    /// Doorbell that the kernel programs notify when they export a frame.
    pub doorbell: RingBuffer,
    /// The attached kernel programs whose frames the source emits.
    pub attachment: Arc<dyn Attachment>,
    /// Attach point of the kernel programs whose frames the source emits.
    pub attach_point: AttachPoint,
    /// The edges on which frames leave the programs. The index of an edge in this list is the exit
    /// number that programs use. The value is the index of the edge's pointer ring on each
    /// processor ([`reader`] calls this ring a sink).
    pub edges: Vec<u32>,
    /// Indices of the pointer rings of the taps. Each tap is a further exit of the programs; its
    /// number follows those of the edges. The readers of a tap get copies of the blocks that leave
    /// a filter in the kernel. No counter of the path includes these copies.
    pub taps: Vec<u32>,
    /// Index of the source among the sources of its path.
    pub origin: u16,
    /// Maximum time, in nanoseconds, after which programs notify the doorbell again while frames
    /// arrive (T_t).
    pub wait_ns: u64,
    /// True if the source must lose one frame without counting it, to test that the ledger detects
    /// the loss.
    pub loses_frame: bool,
}

/// A source of the frames that kernel programs export.
#[derive(Debug)]
pub struct KernelSource {
    parts: KernelSourceParts,
    reader: KernelRingReader,
    time: ClockOffset,
    arrived: Vec<ArcCounts>,
    /// Index of the edge whose blocks the source has emitted most recently.
    last_edge: usize,
    /// The latest copied frame, for reuse by another edge: its processor, its position in the
    /// processor's ring, and the copy. `None` if there is no copy to reuse.
    last_copy: Option<(u32, u64, FrameCopy)>,
    /// Frames that have been copied but not verified yet. Empty between calls to `produce`.
    staged_blocks: Vec<StagedBlock>,
    /// Frames that this source leaves in kernel memory for sinks that use them there. `None` if no
    /// dbuf id was available for them.
    in_place: Option<Arc<FramesInPlace>>,
    /// True if the rings of the kernel programs were empty after the source last emitted blocks.
    is_drained: bool,
    /// Time of the source's last check that the interface still exists.
    checked_at: Time,
    end: Option<ExportEndReason>,
    closed: bool,
}

/// Reason why the input of a kernel source ends.
#[derive(Debug)]
enum ExportEndReason {
    /// The path is stopped.
    Stopped,
    /// The interface has been removed.
    InterfaceRemoved,
    /// The export of frames has ended without a request from this process. The failure tells why.
    ExportEnded(Failure),
}

/// Interval between checks of the interface while no frame arrives, in nanoseconds.
const INTERFACE_CHECK_INTERVAL_NS: Time = 200_000_000;
/// Delay, in nanoseconds, before the source retries when the pool has no free memory.
const ALLOCATION_RETRY_DELAY_NS: Time = 1_000_000;

/// A copy that the source has made of an exported frame, in the pool of its space.
#[derive(Clone, Copy, Debug)]
struct FrameCopy {
    place: abi::Extent,
    /// True if the TCP or UDP checksum of the frame has been left to the device.
    is_checksum_unset: bool,
    /// Marks of the frame: its length, and the offsets of its headers.
    marks: Marks,
}

/// A copied block that has not been validated yet. The writer may have overwritten the frame during
/// the copy.
#[derive(Debug)]
struct StagedBlock {
    exported: ExportedFrame,
    entry: Entry,
    /// True if this copy has already been verified for an earlier block.
    is_verified: bool,
}

impl KernelSource {
    /// Creates a source that reads the rings of kernel programs, starting with the first frame of
    /// each ring.
    #[must_use]
    pub fn new(parts: KernelSourceParts) -> Self {
        let arrived = vec![ArcCounts::default(); parts.edges.len()];
        let sinks = parts.edges.iter().chain(&parts.taps).copied().collect();
        let reader = KernelRingReader::new(Arc::clone(&parts.rings), sinks);
        let time = ClockOffset::measure();
        let in_place = FramesInPlace::new(Arc::clone(&parts.rings)).map(Arc::new);
        Self {
            parts,
            reader,
            time,
            arrived,
            last_edge: 0,
            last_copy: None,
            staged_blocks: Vec::with_capacity(FRAMES_PER_CHECK),
            in_place,
            is_drained: false,
            checked_at: 0,
            end: None,
            closed: false,
        }
    }

    /// Emits the available blocks up to the first that belongs to another edge. Returns the number
    /// of emitted blocks.
    fn emit_blocks(&mut self, intake: &mut Intake<'_>) -> usize {
        let mut count = 0;
        self.is_drained = false;
        loop {
            let has_more = self.stage_frames(intake, count > 0);
            count += self.emit_intact_frames(intake);
            if !has_more {
                return count;
            }
        }
    }

    /// Copies available frames of one edge into `staged_blocks`, at most [`FRAMES_PER_CHECK`] at a
    /// time. If `has_emitted` is true, this call of `produce` has already emitted blocks, and the
    /// frames must belong to the same edge. Returns true if more frames of the edge may be
    /// available.
    fn stage_frames(&mut self, intake: &Intake<'_>, has_emitted: bool) -> bool {
        let room = intake.room();
        while self.staged_blocks.len() < room.min(FRAMES_PER_CHECK) {
            let Some(exported) = self.reader.front_frame() else {
                self.is_drained = true;
                return false;
            };
            let edge = exported.edge as usize;
            let has_staged = !self.staged_blocks.is_empty();
            if (has_emitted || has_staged) && edge != self.last_edge {
                // If no staged copy turns out to be intact, the next round may start with this
                // frame's edge.
                return has_staged;
            }
            if !std::mem::take(&mut self.parts.loses_frame) {
                let Some(staged) = self.stage_frame(intake.pool, exported) else { return false };
                self.last_edge = edge;
                self.staged_blocks.push(staged);
            }
            self.reader.advance_past_frame(&exported);
        }
        self.staged_blocks.len() < room
    }

    /// Emits the staged frames that the writer has not overwritten, and counts the others as lost.
    /// Returns the number of emitted frames.
    fn emit_intact_frames(&mut self, intake: &mut Intake<'_>) -> usize {
        let mut count = 0;
        let mut checked_at = None;
        for StagedBlock { exported, entry, is_verified } in self.staged_blocks.drain(..) {
            let reserved = match checked_at {
                Some((cpu, reserved)) if cpu == exported.cpu => reserved,
                _ => self.reader.reserved_position(exported.cpu),
            };
            checked_at = Some((exported.cpu, reserved));
            if is_verified || self.reader.is_intact(&exported, reserved) {
                if let Some(arrived) = self.arrived.get_mut(exported.edge as usize) {
                    arrived.taken.add_block(entry.pointer.length());
                }
                count += usize::from(intake.append_block_entry(entry));
            } else {
                self.reader.count_passed_frame_as_lost(&exported);
                // A damaged copy must not be emitted on another edge either.
                self.last_copy = None;
            }
        }
        count
    }

    /// Returns the block for an exported frame. Copies the frame into the pool, unless the latest
    /// copy is of the same frame. Returns `None` if the pool has no memory.
    fn stage_frame(&mut self, pool: &Pool, exported: ExportedFrame) -> Option<StagedBlock> {
        let name = (exported.cpu, exported.pointer.position);
        let last_copy = self.last_copy.filter(|(cpu, position, _)| (*cpu, *position) == name);
        let last_copy = last_copy.filter(|(.., copied)| pool.bytes(copied.place).is_some());
        // Blocks of the current round share one verification.
        let shares_verification = |last: &StagedBlock| {
            !last.is_verified && (last.exported.cpu, last.exported.pointer.position) == name
        };
        let is_verified =
            last_copy.is_some() && !self.staged_blocks.last().is_some_and(shares_verification);
        let copied = match last_copy {
            Some((.., copied)) => copied,
            None => self.copy_frame(pool, &exported)?,
        };
        self.last_copy = Some((name.0, name.1, copied));
        Some(StagedBlock { exported, entry: self.entry(&exported, pool.id(), copied), is_verified })
    }

    /// Returns the block entry for an exported frame. The entry points to the copy of the frame,
    /// `copied`, in the dbuf `dbuf`.
    fn entry(&self, exported: &ExportedFrame, dbuf: DbufId, copied: FrameCopy) -> Entry {
        let FrameCopy { place, is_checksum_unset: unset, mut marks } = copied;
        let header = &exported.header;
        let tag = if header.tag.is_some() { TAG_SIZE as u32 } else { 0 };
        let skipped = if exported.pointer.after_tag { tag } else { 0 };
        let from = exported.pointer.offset.saturating_add(skipped);
        let from = from.min(place.length());
        let length = exported.pointer.length.min(place.length() - from);
        let mut flags = if header.sent { BlockFlags::BACKWARD } else { BlockFlags::NONE };
        if unset {
            flags = flags.with(BlockFlags::CHECKSUM_UNSET);
        }
        let (origin, time) = (self.parts.origin, self.time.time_of_day(header.time));
        let context = BlockMetadata { time, session: 0, origin, flags };
        marks.view = from;
        let class = Class(exported.pointer.class);
        Entry::new(RichPointer::new(dbuf, place.subrange(from, length), class), context, marks)
    }

    /// Copies a frame, reinserts its VLAN tag and parses its headers. Returns `None` if the pool
    /// has no memory. The caller must check afterwards that the frame has not been overwritten.
    fn copy_frame(&self, pool: &Pool, exported: &ExportedFrame) -> Option<FrameCopy> {
        let header = &exported.header;
        let length = frames_in_place::captured_length(header);
        let mut draft = pool.draft(length, length)?;
        let bytes = draft.get_mut(..length).unwrap_or_default();
        let _ = frames_in_place::copy_frame(&self.parts.rings, exported, bytes);
        let layers = wire::layers(self.parts.attach_point.link_type(), bytes);
        let unset = header.segment_size != 0 || checksum::is_checksum_unset(&layers, bytes);
        let place = draft.commit(length);
        let mut marks = Marks::frame(layers.link.0, place.length(), wire_length(header));
        filter::layers::record_layers(&mut marks, &layers);
        Some(FrameCopy { place, is_checksum_unset: unset, marks })
    }

    /// Emits blocks that refer to frames in kernel memory and have no bytes of their own, up to the
    /// first block of another edge. The frames stay in the current batch until the next call to
    /// `produce`. Returns the number of emitted blocks.
    fn emit_blocks_in_place(&mut self, frames: &FramesInPlace, intake: &mut Intake<'_>) -> usize {
        self.is_drained = false;
        intake.in_place = true;
        let mut batch = frames.begin_batch();
        while intake.room() > 0 {
            let Some(exported) = self.reader.front_frame() else {
                self.is_drained = true;
                break;
            };
            let edge = exported.edge as usize;
            if !batch.is_empty() && edge != self.last_edge {
                break;
            }
            self.last_edge = edge;
            if !std::mem::take(&mut self.parts.loses_frame) {
                let link = self.parts.attach_point.link_type();
                let length = frames_in_place::captured_length(&exported.header) as u32;
                let marks = Marks::frame(link.0, length, wire_length(&exported.header));
                let unset = exported.header.segment_size != 0;
                let frame =
                    FrameCopy { place: batch.add_frame(exported), is_checksum_unset: unset, marks };
                let entry = self.entry(&exported, frames.id(), frame);
                if let Some(arrived) = self.arrived.get_mut(edge) {
                    arrived.taken.add_block(entry.pointer.length());
                }
                intake.append_block_entry(entry);
            }
            self.reader.advance_past_frame(&exported);
        }
        batch.len()
    }

    /// Returns the status that `produce` reports if it has emitted no frames: the end or failure of
    /// the source, or the time and the doorbell to wait for.
    fn status_without_frames(&mut self, now: Time) -> Result<SourceStatus, Failure> {
        if let Some(end) = &self.end {
            return match end {
                ExportEndReason::Stopped => {
                    self.parts.attachment.export_failure().map_or(Ok(SourceStatus::End), Err)
                }
                ExportEndReason::InterfaceRemoved => Err(self
                    .parts
                    .attach_point
                    .failure_for_removed_interface(self.parts.attachment.frames_received())),
                ExportEndReason::ExportEnded(failure) => Err(failure.clone()),
            };
        }
        let is_check_due = now.saturating_sub(self.checked_at) >= INTERFACE_CHECK_INTERVAL_NS;
        if is_check_due {
            self.checked_at = now;
        }
        if is_check_due && self.parts.attach_point.is_gone() {
            // Frames exported before the removal are still in the rings.
            self.detach();
            self.end = Some(ExportEndReason::InterfaceRemoved);
            return Ok(SourceStatus::retry_at(now));
        }
        if is_check_due && let Some(failure) = self.parts.attachment.export_failure() {
            self.end = Some(ExportEndReason::ExportEnded(failure));
            return Ok(SourceStatus::retry_at(now));
        }
        // Programs send the next notification only when T_t has passed since the last one. Frames
        // exported before then cause no notification, so the wait ends at that time.
        let due = self.reader.last_notification_time().saturating_add(self.parts.wait_ns);
        let left = due.saturating_sub(sys::clock::monotonic_ns());
        let until = now
            + if left > 0 {
                left.min(INTERFACE_CHECK_INTERVAL_NS)
            } else {
                INTERFACE_CHECK_INTERVAL_NS
            };
        Ok(SourceStatus::Wait { until: Some(until), readable: true })
    }

    /// Detaches the programs. After the call no frame is exported.
    fn detach(&self) {
        self.parts.attachment.detach();
    }
}

/// Returns the length of a frame on the wire in bytes, including its VLAN tag.
#[must_use]
pub fn wire_length(header: &RecordHeader) -> u32 {
    header.length.saturating_add(if header.tag.is_some() { TAG_SIZE as u32 } else { 0 })
}

impl Source for KernelSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        self.parts.doorbell.drain(|_| {});
        self.time.update();
        self.reader.load_writer_positions();
        let edge = self.reader.front_frame().map(|exported| exported.edge);
        let may_stay_in_place =
            edge.and_then(|edge| intake.arcs_in_place.checked_shr(edge)).unwrap_or(0) & 1 > 0;
        let put = match self.in_place.clone().filter(|_| may_stay_in_place) {
            Some(frames) => self.emit_blocks_in_place(&frames, intake),
            None => self.emit_blocks(intake),
        };
        (intake.arc, intake.is_drained) = (Some(self.last_edge), self.is_drained);
        if put > 0 {
            return Ok(SourceStatus::Blocks);
        }
        if self.reader.front_frame().is_some() {
            // A frame is available, but the pool has no memory.
            return Ok(SourceStatus::retry_at(intake.now + ALLOCATION_RETRY_DELAY_NS));
        }
        self.status_without_frames(intake.now)
    }

    fn counters(&self) -> SourceCounters {
        let given: Amount = self.arrived.iter().map(|edge| edge.taken).sum();
        let mut missing = self.reader.exit_losses();
        missing.truncate(self.parts.edges.len());
        let lapped: u64 = missing.iter().map(|missing| missing.lost).sum();
        let unread = missing.iter().map(|missing| missing.unread).filter(|_| self.closed).sum();
        let blocks = given.blocks + lapped + unread;
        let dropped = [("lapped".into(), lapped), (crate::DropReason::Unread, unread)];
        let dropped = dropped.into_iter().filter(|(_, n)| *n > 0);
        SourceCounters {
            observed: Some(Amount { blocks, bytes: given.bytes }),
            given,
            dropped: dropped.map(|(why, n)| (why, Some(n))).collect(),
            arrived: self.arc_counts(),
            ..SourceCounters::default()
        }
    }

    fn lost_on_arc(&self, arc: usize) -> u64 {
        self.reader.lost_frames_on_exit(arc)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.doorbell.as_fd())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties {
            block_max: self.parts.rings.layout().record_max as usize + TAG_SIZE,
            // Programs write into the rings, so memory returned to the pool does not unblock them.
            // `produce` returns the time of the next allocation attempt.
            wakes_on_memory: false,
            chooses_arc: true,
            in_place: self.in_place.clone(),
            ..SourceProperties::default()
        }
    }

    fn stop(&mut self) -> bool {
        if self.end.is_none() {
            self.detach();
            self.end = Some(ExportEndReason::Stopped);
        }
        true
    }

    fn close(&mut self) {
        self.detach();
        self.closed = true;
    }
}

impl KernelSource {
    /// Returns, for each edge on which blocks leave the kernel programs, the counts of blocks and
    /// lost frames.
    fn arc_counts(&self) -> Vec<ArcCounts> {
        let both =
            self.arrived.iter().zip(self.reader.exit_losses()).zip(self.reader.exit_loss_ranges());
        both.map(|((arrived, missing), gaps)| {
            let ExitLosses { lost: lapped, unread } = missing;
            ArcCounts { lapped, unread, missing: gaps.clone(), ..arrived.clone() }
        })
        .collect()
    }
}
