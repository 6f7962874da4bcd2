//! Frames of a kernel ring that are not copied: a sink writes them from where the program put them.
//!
//! A program may overwrite a frame at any time. So a block of such a frame has no bytes, and its
//! pointer only names an exported frame of the batch that is walked. A sink copies or writes the
//! bytes, then checks that the frame is still there, as the source does with its own copies.

use super::reader::{ExportedFrame, RecordHeader, is_intact};
use abi::{BLOCK_MAX, DbufId, Extent, RichPointer};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::bpf::Rings;
use sys::bpf::ring::region_offset;
use sys::memory::GatherWrite;
use wire::ethernet;

/// Length of a VLAN tag in bytes.
pub(super) const TAG_SIZE: usize = 4;
/// Offset of a VLAN tag in a frame in bytes.
const TAG_OFFSET: usize = ethernet::ETHERTYPE;
/// Distance of the positions of two frames, so that they do not overlap.
const STRIDE: u64 = (BLOCK_MAX as u64).next_power_of_two();

/// The frames of a source that it does not copy.
#[derive(Debug)]
pub struct FramesInPlace {
    id: DbufId,
    rings: Arc<Rings>,
    batch: Mutex<StagedFrames>,
}

/// The frames of the batch that is walked.
#[derive(Debug, Default)]
struct StagedFrames {
    /// Number of the first frame.
    first: u64,
    frames: Vec<ExportedFrame>,
}

/// Exclusive access to the frames of the batch that is walked.
#[derive(Debug)]
pub struct BatchInPlace<'f> {
    id: DbufId,
    rings: &'f Rings,
    staged: MutexGuard<'f, StagedFrames>,
}

impl FramesInPlace {
    /// Creates the frames of these rings; `None` if there is no id left for them.
    #[must_use]
    pub fn new(rings: Arc<Rings>) -> Option<Self> {
        Some(Self { id: buffer::ids::fresh()?, rings, batch: Mutex::default() })
    }

    /// Returns the id of the dbuf in the pointers of these frames.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the frames of the batch that is walked. Never waits: source and sinks share a
    /// thread.
    #[must_use]
    pub fn batch(&self) -> BatchInPlace<'_> {
        let staged = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        BatchInPlace { id: self.id, rings: &self.rings, staged }
    }

    /// Begins the next batch.
    #[must_use]
    pub fn restage(&self) -> BatchInPlace<'_> {
        let mut batch = self.batch();
        batch.staged.first += batch.staged.frames.len() as u64;
        batch.staged.frames.clear();
        batch
    }
}

impl<'f> BatchInPlace<'f> {
    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.staged.frames.len()
    }

    /// Returns true if there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.staged.frames.is_empty()
    }

    /// Adds a frame; returns the extent by which pointers name it.
    pub fn stage(&mut self, frame: ExportedFrame) -> Extent {
        let number = self.staged.first + self.staged.frames.len() as u64;
        let length = captured_length(&frame.header) as u32;
        self.staged.frames.push(frame);
        Extent::new(number.wrapping_mul(STRIDE), length)
    }

    /// Returns the exported frame that a pointer names; `None` if it is not in this batch.
    #[must_use]
    pub fn frame(&self, pointer: RichPointer) -> Option<&ExportedFrame> {
        if pointer.dbuf() != self.id {
            return None;
        }
        let first = self.staged.first.wrapping_mul(STRIDE);
        let at = pointer.place.complete(first).wrapping_sub(first) / STRIDE;
        self.staged.frames.get(usize::try_from(at).ok()?)
    }

    /// Appends the first `length` bytes of a frame, with its tag reinserted. They may be torn: see
    /// [`Self::is_whole`].
    pub fn copy(&self, frame: &ExportedFrame, length: usize, to: &mut Vec<u8>) {
        let begin = to.len();
        to.resize(begin + captured_length(&frame.header), 0);
        let _ = copy_frame(self.rings, frame, to.get_mut(begin..).unwrap_or_default());
        to.truncate(begin + length);
    }

    /// Appends the first `length` bytes of a frame without a tag to a write. Returns false if the
    /// ring holds no such frame.
    #[must_use]
    pub fn gather(&self, frame: &ExportedFrame, length: usize, to: &mut GatherWrite<'f>) -> bool {
        let part = (region_offset::HEADER, length);
        let region = self.rings.region(frame.cpu);
        region.is_some_and(|region| region.gather(frame.pointer.position, part, to))
    }

    /// Returns true if no program has written to the place of this frame until now. Call it after
    /// the bytes were copied or written.
    #[must_use]
    pub fn is_whole(&self, frame: &ExportedFrame) -> bool {
        let reserved = self.rings.region(frame.cpu).map_or(u64::MAX, |region| region.reserved());
        is_intact(frame, reserved, self.rings.shape().bytes)
    }

    /// Returns true if all these frames are whole, otherwise like [`Self::is_whole`].
    #[must_use]
    pub fn are_whole<'a>(&self, frames: impl Iterator<Item = &'a ExportedFrame>) -> bool {
        let bytes = self.rings.shape().bytes;
        let mut known = None;
        for frame in frames {
            let reserved = match known {
                Some((cpu, reserved)) if cpu == frame.cpu => reserved,
                _ => self.rings.region(frame.cpu).map_or(u64::MAX, |region| region.reserved()),
            };
            known = Some((frame.cpu, reserved));
            if !is_intact(frame, reserved, bytes) {
                return false;
            }
        }
        true
    }
}

/// Returns the number of captured bytes of a frame, with its tag.
pub(super) const fn captured_length(header: &RecordHeader) -> usize {
    header.captured as usize + if is_tagged(header) { TAG_SIZE } else { 0 }
}

/// Returns true if a tag has to be inserted into the frame.
pub const fn is_tagged(header: &RecordHeader) -> bool {
    header.tag.is_some() && header.captured as usize >= TAG_OFFSET
}

/// Copies a frame, with its tag reinserted, to [`captured_length`] bytes. Returns false if it lies
/// outside the ring. The copy may be torn.
#[must_use]
pub(super) fn copy_frame(rings: &Rings, frame: &ExportedFrame, to: &mut [u8]) -> bool {
    let Some(region) = rings.region(frame.cpu) else { return false };
    let copy = |from: usize, to: &mut [u8]| {
        let from = region_offset::HEADER.saturating_add(from as u32);
        region.copy(frame.pointer.position, from, to)
    };
    match frame.header.tag.filter(|_| is_tagged(&frame.header)) {
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
