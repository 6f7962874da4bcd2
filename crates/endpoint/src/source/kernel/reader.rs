//! Reader of exported frames in time order. Its copies tolerate a writer that overwrites frames
//! concurrently. [SL §6.2; CONTRACT 16, 29; DESIGN §3, foreign bytes]
//!
//! The reader merges the rings of all processors into one sequence, and counts the frames lost per
//! edge exactly. It never waits, and never creates a reference into a ring. After copying a frame,
//! the reader checks that the writer has not overwritten it: the writer must have reserved at most
//! one lap of the ring beyond the frame's start. A pointer is valid if less than one lap of
//! pointers follows it. A single check covers several frames, because each check costs a cache
//! miss.
//!
//! An *exit* is an edge on which frames leave a kernel program, and a *sink* is a ring of pointers
//! to frames. Several exits share a sink if no frame leaves on more than one of them. Each pointer
//! in a shared sink contains the exit, and the number of earlier frames on this exit, so the reader
//! can count gaps per exit.
//!
//! Frames of one processor are emitted in order of execution. Among processors, the frames found by
//! one call of [`KernelRingReader::load_writer_positions`] are emitted in time order, and before
//! all later frames.

use crate::loss_ranges::LossRanges;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use sys::bpf::ring::region_offset;
use sys::bpf::{CpuRing, FramePointer, ProgramRings, RingsLayout};

/// Divisor for the safety margin after a loss. The reader skips the lost pointers, and as many more
/// as the capacity of the pointer ring divided by this number, so that the writer does not overtake
/// it again at once.
const SKIP_MARGIN_DIVISOR: u64 = 8;

/// Maximum number of frames that are copied before the reader checks whether the writer has
/// overwritten any of them.
pub const FRAMES_PER_CHECK: usize = 16;

/// Length in bytes of the record header that precedes each frame in a ring.
const RECORD_HEADER_SIZE: usize = region_offset::RECORD_HEADER_SIZE as usize;

/// An exported frame that was intact when it was last checked. The writer may have overwritten it
/// since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportedFrame {
    /// Index of the CPU on which the program ran.
    pub cpu: u32,
    /// Index of the pointer ring that contained the pointer to the frame, among the pointer rings
    /// of the CPU `cpu`. A pointer ring is also called a sink.
    pub sink: u32,
    /// Number of the exit through which the frame left the kernel program. Each exit is an edge of
    /// the program.
    pub edge: u32,
    /// Number of frames that earlier left the program on the same exit and the same processor.
    pub number: u64,
    /// The pointer to the frame, as written by the program.
    pub pointer: FramePointer,
    /// The header of the frame's record in the ring.
    pub header: RecordHeader,
}

/// Counters of the frames that left a kernel program on one exit but did not become blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExitLosses {
    /// Number of frames that were overwritten before they were copied.
    pub lost: u64,
    /// Number of frames that are still in the ring.
    pub unread: u64,
}

/// Header of a record in a ring. The bytes of the record's frame follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Length of the frame on the wire in bytes.
    pub length: u32,
    /// Number of captured bytes of the frame.
    pub captured: u32,
    /// Time at which the kernel program ran, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// Control word and protocol of a VLAN tag that the kernel stores outside the frame, or `None`
    /// if there is no such tag.
    pub tag: Option<(u16, u16)>,
    /// Segment size in bytes if the frame is yet to be segmented, else 0.
    pub segment_size: u16,
    /// True if the host sends the frame, and false if the host receives it.
    pub sent: bool,
}

/// A reader that merges the frames in the rings of all processors into one sequence.
#[derive(Debug)]
pub struct KernelRingReader {
    rings: Arc<ProgramRings>,
    sinks: Vec<PointerRing>,
    /// Indices of the pointer rings (sinks) in which the last call of
    /// [`KernelRingReader::load_writer_positions`] found unread pointers.
    filled_sinks: Vec<usize>,
    /// For each exit of the programs, the index of the pointer ring (sink) to which the exit
    /// belongs.
    exit_sinks: Vec<u32>,
    /// For each exit of the programs, the number of frames lost so far.
    lost_frames: Vec<u64>,
    /// For each exit of the programs, the positions of the lost frames.
    gaps: Vec<LossRanges>,
    /// For each processor and each exit of the programs, the number of frames that the reader has
    /// passed. Used only for exits that share a pointer ring.
    passed_frames: Vec<u64>,
}

/// The reader's state for one pointer ring (sink) of one processor.
#[derive(Debug)]
struct PointerRing {
    cpu: u32,
    sink: u32,
    /// The only exit whose pointers the ring contains, or `None` if several exits share the ring.
    only_exit: Option<u32>,
    /// Number of the next pointer to read from this pointer ring.
    next_pointer: u64,
    /// Number of pointers that the kernel program had published in this ring when the reader last
    /// loaded the program's position.
    published: u64,
    /// Prefetched frames of the next pointers. `None` represents an overwritten frame.
    prefetched: VecDeque<Option<ExportedFrame>>,
}

impl KernelRingReader {
    /// Creates a reader that starts at the first frame of each ring. `exit_sinks` contains, for
    /// each exit of the programs, the index of the pointer ring (sink) to which the exit belongs.
    #[must_use]
    pub fn new(rings: Arc<ProgramRings>, exit_sinks: Vec<u32>) -> Self {
        let RingsLayout { cpus, sinks, .. } = rings.layout();
        let only = |sink| {
            let mut ours = (0..).zip(&exit_sinks).filter(|(_, to)| **to == sink);
            let (edge, _) = ours.next()?;
            ours.next().is_none().then_some(edge)
        };
        let sink = |cpu, sink| PointerRing {
            cpu,
            sink,
            only_exit: only(sink),
            next_pointer: 0,
            published: 0,
            prefetched: VecDeque::new(),
        };
        let all = (0..cpus).flat_map(|cpu| (0..sinks).map(move |number| (cpu, number)));
        let sinks = all.map(|(cpu, number)| sink(cpu, number)).collect();
        let lost_frames = vec![0; exit_sinks.len()];
        let passed_frames = vec![0; exit_sinks.len() * cpus as usize];
        let gaps = vec![LossRanges::default(); exit_sinks.len()];
        Self { rings, sinks, filled_sinks: vec![], exit_sinks, lost_frames, gaps, passed_frames }
    }

    /// Loads the positions of all writers. Until the next call, the reader sees only the frames
    /// published before these positions.
    pub fn load_writer_positions(&mut self) {
        self.filled_sinks.clear();
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            if let Some(region) = self.rings.cpu_ring(sink.cpu) {
                // The position never decreases, even if the writer's memory is corrupted.
                sink.published = region.sink_pointer_count(sink.sink).max(sink.published);
            }
            if sink.next_pointer < sink.published {
                self.filled_sinks.push(number);
            }
        }
    }

    /// Returns the oldest frame that the reader has not passed, among those found by the last call
    /// of [`Self::load_writer_positions`]. Returns `None` if there is none. The frame stays at the
    /// front until [`KernelRingReader::advance_past_frame`].
    pub fn front_frame(&mut self) -> Option<ExportedFrame> {
        let order = |f: &ExportedFrame| (f.header.time, f.cpu, f.pointer.position, f.edge);
        let mut first: Option<ExportedFrame> = None;
        let mut at = 0;
        while let Some(number) = self.filled_sinks.get(at).copied() {
            match self.front_frame_of_sink(number) {
                // The ring is exhausted until the positions are loaded again.
                None => {
                    self.filled_sinks.swap_remove(at);
                    continue;
                }
                Some(front) if first.is_none_or(|first| order(&front) < order(&first)) => {
                    first = Some(front);
                }
                Some(_) => {}
            }
            at += 1;
        }
        first
    }

    fn front_frame_of_sink(&mut self, number: usize) -> Option<ExportedFrame> {
        let sink = self.sinks.get_mut(number)?;
        if let Some(Some(front)) = sink.prefetched.front() {
            return Some(*front);
        }
        let region = self.rings.cpu_ring(sink.cpu)?;
        let before = sink.next_pointer;
        let skipped =
            sink.skip_overwritten_pointers(&region, self.rings.layout(), &self.exit_sinks);
        // If the sink has several exits, the number in an exit's next pointer reveals the exit's
        // gap.
        if let Some(edge) = sink.only_exit {
            let cpu = sink.cpu;
            self.count_lost_frames(edge, (before, skipped), cpu);
        }
        let sink = self.sinks.get_mut(number)?;
        sink.prefetched.front().copied().flatten()
    }

    /// Moves past the frame that [`KernelRingReader::front_frame`] returned. If several exits share
    /// the frame's pointer ring, a gap in the frame numbers of its exit shows that earlier frames
    /// were overwritten. These frames are counted as lost.
    pub fn advance_past_frame(&mut self, exported: &ExportedFrame) {
        let ExportedFrame { cpu, sink, edge, pointer, .. } = *exported;
        let at = (cpu * self.rings.layout().sinks + sink) as usize;
        let Some(sink) = self.sinks.get_mut(at) else { return };
        sink.advance_past_pointers(1);
        if sink.only_exit.is_some() {
            return;
        }
        let at = cpu as usize * self.exit_sinks.len() + edge as usize;
        let Some(passed) = self.passed_frames.get_mut(at) else { return };
        let before = std::mem::replace(passed, pointer.number.saturating_add(1));
        self.count_lost_frames(edge, (before, pointer.number.saturating_sub(before)), cpu);
    }

    /// Counts `count` frames as lost, beginning with frame number `from`. The frames left the
    /// program on the exit `edge` on the processor `cpu`.
    fn count_lost_frames(&mut self, edge: u32, (from, count): (u64, u64), cpu: u32) {
        let edge = edge as usize;
        if let Some((lost, gaps)) = self.lost_frames.get_mut(edge).zip(self.gaps.get_mut(edge)) {
            *lost += count;
            gaps.add(from, count, Some(cpu));
        }
    }

    /// Returns, for each exit, the ranges of lost frames that are known so far. If an exit shares
    /// its pointer ring with other exits, a loss becomes known when a later frame of the exit is
    /// read.
    #[must_use]
    pub fn exit_loss_ranges(&self) -> &[LossRanges] {
        &self.gaps
    }

    /// Copies bytes of the frame, starting at offset `from`. Returns false if these bytes are
    /// outside the ring. The caller must verify the copy with [`KernelRingReader::is_intact`].
    pub fn copy_bytes(&self, exported: &ExportedFrame, from: u32, to: &mut [u8]) -> bool {
        let at = region_offset::RECORD_HEADER_SIZE.saturating_add(from);
        let region = self.rings.cpu_ring(exported.cpu);
        region.is_some_and(|region| region.copy_record_bytes(exported.pointer.position, at, to))
    }

    /// Returns the position up to which the program on this processor may already have overwritten
    /// the ring. The caller passes the result to [`KernelRingReader::is_intact`], and must call
    /// this function after the last copy to be verified.
    #[must_use]
    pub fn reserved_position(&self, cpu: u32) -> u64 {
        self.rings.cpu_ring(cpu).map_or(u64::MAX, |region| region.reserved_position())
    }

    /// Returns true if the frame was not overwritten before it was copied. `reserved` is the
    /// position up to which the writer may have overwritten the ring. The caller must have read it
    /// with [`KernelRingReader::reserved_position`] after the copy.
    #[must_use]
    pub fn is_intact(&self, exported: &ExportedFrame, reserved: u64) -> bool {
        is_intact(exported, reserved, self.rings.layout().bytes)
    }

    /// Counts as lost a frame that the reader has already passed. The caller has found that its
    /// copy of the frame is invalid.
    pub fn count_passed_frame_as_lost(&mut self, exported: &ExportedFrame) {
        self.count_lost_frames(exported.edge, (exported.number, 1), exported.cpu);
    }

    /// Returns the number of frames that are known to be lost on this exit of the programs.
    pub fn lost_frames_on_exit(&self, exit: usize) -> u64 {
        self.lost_frames.get(exit).copied().unwrap_or(0)
    }

    /// Returns, for each exit of the programs, the numbers of lost and unread frames.
    #[must_use]
    pub fn exit_losses(&self) -> Vec<ExitLosses> {
        let lost = self.lost_frames.iter().map(|lost| ExitLosses { lost: *lost, unread: 0 });
        let mut missing: Vec<ExitLosses> = lost.collect();
        for sink in &self.sinks {
            let Some(region) = self.rings.cpu_ring(sink.cpu) else { continue };
            match sink.only_exit.and_then(|edge| missing.get_mut(edge as usize)) {
                Some(missing) => {
                    missing.unread +=
                        region.sink_pointer_count(sink.sink).saturating_sub(sink.next_pointer);
                }
                None => self.count_missing_of_shared_sink(sink, &region, &mut missing),
            }
        }
        missing
    }

    /// Counts the missing frames of a pointer ring (`sink`) that several exits share, and adds the
    /// numbers to `missing`, which has one entry per exit. A frame is missing if the program has
    /// counted it but the reader has not passed it. Frames that are still in the ring count as
    /// unread, all others as lost.
    fn count_missing_of_shared_sink(
        &self,
        sink: &PointerRing,
        region: &CpuRing<'_>,
        missing: &mut [ExitLosses],
    ) {
        let passed = self.passed_frames.iter().skip(sink.cpu as usize * self.exit_sinks.len());
        let ours = (0..).zip(self.exit_sinks.iter().zip(passed));
        let ours = ours.filter(|(_, (to, _))| **to == sink.sink);
        let rest = |(edge, (_, read)): (u32, (_, &u64))| {
            (edge, region.edge_pointer_count(edge).saturating_sub(*read))
        };
        let mut rest: Vec<(u32, u64)> = ours.map(rest).filter(|(_, rest)| *rest > 0).collect();
        let head = region.sink_pointer_count(sink.sink).max(sink.next_pointer);
        let all: u64 = rest.iter().map(|(_, rest)| *rest).sum();
        if all > head - sink.next_pointer {
            // Some pointers have been overwritten, so unread frames are counted by the exits in the
            // remaining pointers.
            let capacity = u64::from(self.rings.layout().pointers);
            let remaining = sink.next_pointer.max(head.saturating_sub(capacity))..head;
            let mut unread: HashMap<u32, u64> = HashMap::new();
            for pointer in remaining.filter_map(|number| region.frame_pointer(sink.sink, number)) {
                *unread.entry(pointer.edge).or_default() += 1;
            }
            for (edge, rest) in &mut rest {
                let unread = unread.get(edge).copied().unwrap_or(0).min(*rest);
                if let Some(missing) = missing.get_mut(*edge as usize) {
                    missing.lost += *rest - unread;
                }
                *rest = unread;
            }
        }
        for (edge, unread) in rest {
            if let Some(missing) = missing.get_mut(edge as usize) {
                missing.unread += unread;
            }
        }
    }

    /// Returns the time at which a program last notified the doorbell, in nanoseconds of the
    /// monotonic clock; 0 if none has done so.
    #[must_use]
    pub fn last_notification_time(&self) -> u64 {
        let cpus = 0..self.rings.layout().cpus;
        let times = cpus.filter_map(|cpu| {
            self.rings.cpu_ring(cpu)?.scratch_word(region_offset::LAST_NOTIFICATION_TIME)
        });
        times.max().unwrap_or(0)
    }
}

impl PointerRing {
    /// Moves the read position to the next pointer whose frame has not been overwritten. Returns
    /// the number of pointers skipped.
    fn skip_overwritten_pointers(
        &mut self,
        region: &CpuRing<'_>,
        shape: RingsLayout,
        exit_sinks: &[u32],
    ) -> u64 {
        let (all, mut skipped) = (u64::from(shape.pointers), 0);
        while self.next_pointer < self.published {
            if self.prefetched.is_empty() {
                self.prefetch(region, shape, exit_sinks);
            }
            if let Some(Some(_)) = self.prefetched.front() {
                break;
            }
            let lag = region.sink_pointer_count(self.sink).saturating_sub(self.next_pointer);
            let skip = match lag >= all {
                true => (lag - all + 1 + all / SKIP_MARGIN_DIVISOR).min(lag),
                false => 1,
            };
            skipped += skip;
            self.advance_past_pointers(skip);
        }
        skipped
    }

    /// Moves the read position past `count` pointers.
    fn advance_past_pointers(&mut self, count: u64) {
        self.next_pointer += count;
        let known = usize::try_from(count).unwrap_or(usize::MAX).min(self.prefetched.len());
        self.prefetched.drain(..known);
    }

    /// Reads the next pointers and their frame headers into `prefetched`, and then validates them.
    /// The writer's positions, which show what has been overwritten, must be read after the copies.
    fn prefetch(&mut self, region: &CpuRing<'_>, shape: RingsLayout, exit_sinks: &[u32]) {
        let end = self.published.min(self.next_pointer + FRAMES_PER_CHECK as u64);
        let mut prefetched = std::mem::take(&mut self.prefetched);
        prefetched.extend(
            (self.next_pointer..end).map(|at| self.read_frame(region, shape, exit_sinks, at)),
        );
        // `reserved` begins with a fence, so both values are read after the copies.
        let (reserved, newest) = (region.reserved_position(), region.sink_pointer_count(self.sink));
        for (number, place) in (self.next_pointer..end).zip(&mut prefetched) {
            let is_present = newest.wrapping_sub(number) < u64::from(shape.pointers);
            *place = place.filter(|frame| is_present && is_intact(frame, reserved, shape.bytes));
        }
        self.prefetched = prefetched;
    }

    /// Reads the pointer with this number and the header of its frame, without validating them.
    /// Returns `None` if one of them is out of bounds, or if the exit in the pointer does not use
    /// this pointer ring.
    fn read_frame(
        &self,
        region: &CpuRing<'_>,
        shape: RingsLayout,
        exit_sinks: &[u32],
        number: u64,
    ) -> Option<ExportedFrame> {
        let pointer = region.frame_pointer(self.sink, number)?;
        let mut bytes = [0; RECORD_HEADER_SIZE];
        let inside = region.copy_record_bytes(pointer.position, 0, &mut bytes);
        let header = RecordHeader::parse(&bytes, shape.record_max);
        let edge = self.only_exit.unwrap_or(pointer.edge);
        let is_exit_of_sink = exit_sinks.get(edge as usize) == Some(&self.sink);
        // If a sink has only one exit, the number of a pointer in the sink is also the number of
        // its frame.
        let number = if self.only_exit.is_some() { number } else { pointer.number };
        let frame = ExportedFrame { cpu: self.cpu, sink: self.sink, edge, number, pointer, header };
        (inside && is_exit_of_sink).then_some(frame)
    }
}

pub(super) fn is_intact(exported: &ExportedFrame, reserved: u64, bytes: u32) -> bool {
    reserved.wrapping_sub(exported.pointer.position) <= u64::from(bytes)
}

impl RecordHeader {
    fn parse(bytes: &[u8; RECORD_HEADER_SIZE], captured_max: u32) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let two = |at: usize| u16::from_ne_bytes([byte(at), byte(at + 1)]);
        let four = |at: usize| u32::from(two(at)) | u32::from(two(at + 2)) << 16;
        let marks = two(30);
        Self {
            length: four(8),
            captured: four(12).min(captured_max),
            time: u64::from(four(16)) | u64::from(four(20)) << 32,
            tag: (marks & 1 != 0).then(|| (two(24), u16::from_be(two(26)))),
            segment_size: two(28),
            sent: marks & 2 != 0,
        }
    }
}
