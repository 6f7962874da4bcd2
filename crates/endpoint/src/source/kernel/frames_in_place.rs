//! Frames of a kernel ring that the source does not copy. A sink writes them directly from the
//! ring.
//!
//! A kernel program may overwrite a frame in the ring at any time. A block of such a frame
//! therefore has no bytes, and its pointer only identifies an exported frame of the current batch.
//! A sink first copies or writes the bytes, and then checks that the frame has not been overwritten
//! meanwhile. The source does the same when it copies frames.

use super::reader::{ExportedFrame, RecordHeader, is_intact};
use abi::{BLOCK_LENGTH_MAX, DbufId, Extent, RichPointer};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::bpf::ProgramRings;
use sys::bpf::ring::region_offset;
use sys::memory::GatherWrite;
use wire::ethernet;

/// Length of a VLAN tag in bytes.
pub(super) const TAG_SIZE: usize = 4;
/// Offset in bytes at which a VLAN tag is inserted into an Ethernet frame.
const TAG_OFFSET: usize = ethernet::ETHERTYPE_FIELD_OFFSET;
/// Distance in bytes between the positions that pointers to consecutive frames contain. The
/// distance exceeds the maximum length of a frame, so frames do not overlap.
const FRAME_POSITION_STRIDE: u64 = (BLOCK_LENGTH_MAX as u64).next_power_of_two();

/// The frames in kernel rings that a source emits without copying them.
#[derive(Debug)]
pub struct FramesInPlace {
    id: DbufId,
    rings: Arc<ProgramRings>,
    batch: Mutex<StagedFrames>,
}

/// The frames that the source has exported in the current batch.
#[derive(Debug, Default)]
struct StagedFrames {
    /// Number of the batch's first frame, counted over all batches.
    first_number: u64,
    frames: Vec<ExportedFrame>,
}

/// Exclusive access to the frames in the current batch of a [`FramesInPlace`].
#[derive(Debug)]
pub struct BatchInPlace<'f> {
    id: DbufId,
    rings: &'f ProgramRings,
    staged: MutexGuard<'f, StagedFrames>,
}

impl FramesInPlace {
    /// Creates an empty set of frames in the rings of kernel programs, to be used without copies.
    /// Returns `None` if no dbuf id remains for the set.
    #[must_use]
    pub fn new(rings: Arc<ProgramRings>) -> Option<Self> {
        Some(Self { id: buffer::ids::allocate_id()?, rings, batch: Mutex::default() })
    }

    /// Returns the dbuf id that rich pointers to these frames contain.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the frames of the current batch. Never waits, because the source and the sinks run
    /// in the same thread.
    #[must_use]
    pub fn batch(&self) -> BatchInPlace<'_> {
        let staged = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        BatchInPlace { id: self.id, rings: &self.rings, staged }
    }

    /// Begins the next batch of frames and returns it. The batch is empty at first.
    #[must_use]
    pub fn begin_batch(&self) -> BatchInPlace<'_> {
        let mut batch = self.batch();
        batch.staged.first_number += batch.staged.frames.len() as u64;
        batch.staged.frames.clear();
        batch
    }
}

impl<'f> BatchInPlace<'f> {
    /// Returns the number of frames in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.staged.frames.len()
    }

    /// Returns true if the batch has no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.staged.frames.is_empty()
    }

    /// Adds a frame to the batch. Returns the extent that identifies the frame in pointers.
    pub fn add_frame(&mut self, frame: ExportedFrame) -> Extent {
        let number = self.staged.first_number + self.staged.frames.len() as u64;
        let length = captured_length(&frame.header) as u32;
        self.staged.frames.push(frame);
        Extent::new(number.wrapping_mul(FRAME_POSITION_STRIDE), length)
    }

    /// Returns the exported frame that a pointer identifies, or `None` if the frame is not in this
    /// batch.
    #[must_use]
    pub fn find_frame(&self, pointer: RichPointer) -> Option<&ExportedFrame> {
        if pointer.dbuf() != self.id {
            return None;
        }
        let first = self.staged.first_number.wrapping_mul(FRAME_POSITION_STRIDE);
        let at = pointer.place.position_near(first).wrapping_sub(first) / FRAME_POSITION_STRIDE;
        self.staged.frames.get(usize::try_from(at).ok()?)
    }

    /// Appends the first `length` bytes of a frame to `to`, with the VLAN tag reinserted. The copy
    /// is valid only if [`Self::is_intact`] returns true afterwards.
    pub fn copy_frame(&self, frame: &ExportedFrame, length: usize, to: &mut Vec<u8>) {
        let begin = to.len();
        to.resize(begin + captured_length(&frame.header), 0);
        let _ = copy_frame(self.rings, frame, to.get_mut(begin..).unwrap_or_default());
        to.truncate(begin + length);
    }

    /// Adds the first `length` bytes of an untagged frame to a vectored write, in place. Returns
    /// false if the frame is outside of the ring.
    #[must_use]
    pub fn gather_frame(
        &self,
        frame: &ExportedFrame,
        length: usize,
        to: &mut GatherWrite<'f>,
    ) -> bool {
        let part = (region_offset::RECORD_HEADER_SIZE, length);
        let region = self.rings.cpu_ring(frame.cpu);
        region.is_some_and(|region| region.gather_record_bytes(frame.pointer.position, part, to))
    }

    /// Returns true if no program has overwritten the frame yet. The caller must call this after it
    /// has copied or written the bytes.
    #[must_use]
    pub fn is_intact(&self, frame: &ExportedFrame) -> bool {
        let reserved =
            self.rings.cpu_ring(frame.cpu).map_or(u64::MAX, |region| region.reserved_position());
        is_intact(frame, reserved, self.rings.layout().bytes)
    }

    /// Returns true if [`Self::is_intact`] returns true for all of these frames.
    #[must_use]
    pub fn are_intact<'a>(&self, frames: impl Iterator<Item = &'a ExportedFrame>) -> bool {
        let bytes = self.rings.layout().bytes;
        let mut known = None;
        for frame in frames {
            let reserved = match known {
                Some((cpu, reserved)) if cpu == frame.cpu => reserved,
                _ => self
                    .rings
                    .cpu_ring(frame.cpu)
                    .map_or(u64::MAX, |region| region.reserved_position()),
            };
            known = Some((frame.cpu, reserved));
            if !is_intact(frame, reserved, bytes) {
                return false;
            }
        }
        true
    }
}

/// Copies the first `length` bytes of a frame, with its VLAN tag reinserted, to the beginning of
/// `to`, which must have room for them and for a tagged Ethernet header. Returns the number of the
/// frame's bytes in `to`, which is 0 if the frame is outside of the ring. The caller must check
/// afterwards that the frame has not been overwritten.
#[must_use]
pub fn copy_frame_start(
    rings: &ProgramRings,
    frame: &ExportedFrame,
    length: usize,
    to: &mut [u8],
) -> usize {
    let captured = captured_length(&frame.header);
    let length = captured.min(length).min(to.len());
    // A tag and the addresses before it are copied as a whole.
    let copied = if has_removed_vlan_tag(&frame.header) {
        length.max(TAG_OFFSET + TAG_SIZE)
    } else {
        length
    };
    let is_copied = to.get_mut(..copied).is_some_and(|place| copy_frame(rings, frame, place));
    if is_copied { length } else { 0 }
}

/// Returns the captured length of a frame in bytes, including its VLAN tag.
#[must_use]
pub const fn captured_length(header: &RecordHeader) -> usize {
    header.captured as usize + if has_removed_vlan_tag(header) { TAG_SIZE } else { 0 }
}

/// Returns true if the kernel has removed a VLAN tag from the frame, which must be inserted again.
pub const fn has_removed_vlan_tag(header: &RecordHeader) -> bool {
    header.tag.is_some() && header.captured as usize >= TAG_OFFSET
}

/// Copies a frame to `to`, with its VLAN tag reinserted. `to` must be [`captured_length`] bytes
/// long. Returns false if the frame is outside of the ring. The caller must check afterwards that
/// the frame has not been overwritten.
#[must_use]
pub(super) fn copy_frame(rings: &ProgramRings, frame: &ExportedFrame, to: &mut [u8]) -> bool {
    let Some(region) = rings.cpu_ring(frame.cpu) else { return false };
    let copy = |from: usize, to: &mut [u8]| {
        let from = region_offset::RECORD_HEADER_SIZE.saturating_add(from as u32);
        region.copy_record_bytes(frame.pointer.position, from, to)
    };
    match frame.header.tag.filter(|_| has_removed_vlan_tag(&frame.header)) {
        None => copy(0, to),
        Some((control, protocol)) => {
            let (addresses, rest) = to.split_at_mut(TAG_OFFSET);
            let (between, rest) = rest.split_at_mut(TAG_SIZE);
            let words = [protocol.to_be_bytes(), control.to_be_bytes()];
            between.copy_from_slice(words.as_flattened());
            copy(0, addresses) && copy(TAG_OFFSET, rest)
        }
    }
}
