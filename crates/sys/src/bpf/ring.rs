//! Per-CPU rings that programs write: their memory and its layout. (CONTRACT 29)
//!
//! The memory is the element of a frozen array. Programs write it; every process, ours included,
//! maps it read-only. Each CPU has a region that only its program writes: a page of control words,
//! pointers per sink, and records of any length up to [`RingsLayout::record_max`]. Positions count
//! bytes and never wrap; a record that begins near the end of the ring continues into a tail after
//! the end, so records are always contiguous. This module has no reader state: readers copy, then
//! check [`Region::reserved`] to detect that the writer has lapped them.
//!
//! If one program serves several requests, the records form rings without sinks, and each request
//! has rings of pointers into these records ([`Rings::with_records`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::map::{Map, MapKind};
use crate::error::{Error, Result};
use crate::memory::ReadMapping;

/// Byte offsets within a region. Words for readers and words private to the writer are on separate
/// cache lines.
pub mod region_offset {
    /// u64: position up to which the writer may be writing.
    pub const RESERVED: u32 = 0;
    /// u64: position up to which records are complete.
    pub const COMMITTED: u32 = 8;
    /// u64 per sink: pointers ever written.
    pub const HEADS: u32 = 64;
    /// Writer's private words, from the end of the last head to the end of the page.
    pub const SCRATCH: u32 = HEADS + 8 * super::SINKS_MAX;
    /// Pointers of the first sink.
    pub const POINTERS: u32 = 4096;
    /// u64: time of this CPU's last notification, in ns of the monotonic clock.
    pub const NOTIFY_TIME: u32 = SCRATCH + 24;
    /// u64: frames that could not be copied.
    pub const FAILED: u32 = SCRATCH + 8;
    /// u64: notifications sent, followed by u64: notifications suppressed.
    pub const NOTIFIED: u32 = SCRATCH + 40;
    /// Tallies: u64 blocks and u64 bytes each.
    pub const TALLIES: u32 = SCRATCH + 64 + 16 * 31;
    /// u64 per exit edge that shares its sink: pointers ever written for it. The same area holds
    /// notes and tallies of programs that keep everything in one map.
    pub const COUNTS: u32 = SCRATCH + 64;
    /// Size of a pointer: position (8), view length and class (4, 4), view offset and exit edge (4,
    /// 4), pointers written before for that edge if it shares its sink (8).
    pub const POINTER: u32 = 32;
    /// Size of a record's header: position, or -1 while being written (8), wire length (4),
    /// captured length (4), time (8), VLAN TCI and protocol (2, 2), segment size (2), flags (2: tag
    /// present, sent by the host).
    pub const HEADER: u32 = 32;
    /// Alignment of records.
    pub const ALIGNMENT: u32 = 16;
}

/// Maximum number of sinks of a ring. Exit edges of which a frame takes at most one can share a
/// sink.
pub const SINKS_MAX: u32 = 32;

/// Sizes of a program's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsLayout {
    /// Number of possible CPUs; each has a region.
    pub cpus: u32,
    /// Sinks with pointers of their own; 0 in rings that hold only records.
    pub sinks: u32,
    /// Pointers per sink and CPU: a power of two.
    pub pointers: u32,
    /// Bytes of records per CPU: a power of two; 0 if the records are elsewhere.
    pub bytes: u32,
    /// Maximum captured length; a frame that the kernel has merged (GRO) has up to 64 KB.
    pub record_max: u32,
}

impl RingsLayout {
    /// Returns the offset of the records in a region.
    #[must_use]
    #[inline]
    pub const fn records(&self) -> u32 {
        region_offset::POINTERS + self.sinks * self.pointers * region_offset::POINTER
    }

    /// Returns the offset of a sink's pointers in a region.
    #[must_use]
    #[inline]
    pub const fn pointers_of(&self, sink: u32) -> u32 {
        region_offset::POINTERS + sink * self.pointers * region_offset::POINTER
    }

    /// Returns the size of a region in bytes, tail included, in whole pages.
    #[must_use]
    #[inline]
    pub const fn stride(&self) -> u32 {
        let tail = if self.bytes == 0 { 0 } else { region_offset::HEADER + self.record_max };
        (self.records() + self.bytes + tail).next_multiple_of(4096)
    }

    /// Returns the sizes of rings that hold records only.
    #[must_use]
    pub const fn records_only(self) -> Self {
        Self { sinks: 0, ..self }
    }

    /// Returns the sizes of rings that hold pointers only.
    #[must_use]
    pub const fn pointers_only(self) -> Self {
        Self { bytes: 0, ..self }
    }

    /// Returns the total size in bytes; `None` if the sizes are invalid.
    #[must_use]
    pub fn size(&self) -> Option<u32> {
        let Self { cpus, sinks, pointers, bytes, record_max } = *self;
        let power = |n: u32, may_lack: bool| n.is_power_of_two() || n == 0 && may_lack;
        let whole = pointers.is_power_of_two() && power(bytes, sinks > 0) && cpus > 0;
        let long = bytes == 0 || record_max <= bytes / 2;
        let fits = sinks <= SINKS_MAX && (sinks > 0 || bytes > 0) && record_max > 0 && long;
        // Small enough that no sum in the other functions overflows.
        let small = pointers <= 1 << 20 && bytes <= 1 << 28;
        let size = (whole && fits && small).then(|| self.stride())?.checked_mul(cpus)?;
        // The largest element that was tested.
        (size <= 1 << 30).then_some(size)
    }

    fn check(&self) -> Result<u32> {
        self.size().ok_or_else(|| Error::new("bpf", format!("rings of {self:?}"), libc::EINVAL))
    }
}

/// A program's rings, one per CPU, mapped read-only.
#[derive(Debug)]
pub struct Rings {
    /// Declared first, so dropped before the map.
    memory: ReadMapping,
    map: Map,
    shape: RingsLayout,
    /// The rings that hold the records, if separate.
    records: Option<Arc<Self>>,
}

impl Rings {
    /// Creates zeroed, frozen rings.
    pub fn create(name: &str, shape: RingsLayout) -> Result<Self> {
        let map = Map::array(name, shape.check()?, 1, true)?;
        map.freeze()?;
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// Adopts rings from a received descriptor.
    ///
    /// EINVAL: the map is not frozen or does not match the layout (RELIABILITY T19).
    pub fn from_received(fd: OwnedFd, shape: RingsLayout) -> Result<Self> {
        let map = Map::from_received(fd)?;
        let info = map.info()?;
        let same = map.kind() == MapKind::Array && info.entries == 1;
        if !same || info.value_size != shape.check()? || !map.is_frozen()? {
            let what = format!("map {:?}: no frozen rings of {shape:?}", info.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// Joins the pointers of a request with the records to which they refer.  EINVAL: the sizes do
    /// not match.
    pub fn with_records(self, records: Arc<Self>) -> Result<Self> {
        let same = self.shape.cpus == records.shape.cpus;
        let pair = self.shape.bytes == 0 && records.shape.bytes > 0 && records.records.is_none();
        if !(same && pair && self.shape.record_max == records.shape.record_max) {
            let what = format!("{:?} beside {:?}", self.shape, records.shape);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        Ok(Self { records: Some(records), ..self })
    }

    /// Returns the rings that hold the records.
    #[must_use]
    #[inline]
    pub fn records(&self) -> &Self {
        self.records.as_deref().unwrap_or(self)
    }

    /// Returns the sizes, including those of separate records.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> RingsLayout {
        RingsLayout { bytes: self.records().shape.bytes, ..self.shape }
    }

    /// Returns the sizes of this map alone.
    #[must_use]
    #[inline]
    pub const fn own_shape(&self) -> RingsLayout {
        self.shape
    }

    /// Returns the map, for use by programs.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// Returns the memory of all regions; programs write it concurrently.
    #[must_use]
    pub const fn memory(&self) -> &ReadMapping {
        &self.memory
    }

    /// Returns the region of a CPU.
    #[must_use]
    #[inline]
    pub fn region(&self, cpu: u32) -> Option<Region<'_>> {
        let base = cpu.checked_mul(self.shape.stride()).filter(|_| cpu < self.shape.cpus)?;
        let records = self.records();
        let from = cpu.checked_mul(records.shape.stride())?;
        Some(Region { rings: self, base: base as usize, records, from: from as usize })
    }
}

impl AsFd for Rings {
    /// Returns the map's descriptor, to be handed to processes that may read all of it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// A frame delivered by a program, as it describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePointer {
    /// Position of its record.
    pub position: u64,
    /// Length of the view in bytes.
    pub length: u32,
    /// Class.
    pub class: u32,
    /// Offset of the view in the frame.
    pub offset: u32,
    /// Exit edge.
    pub way: u32,
    /// Number of pointers written earlier for the same edge; counted only if edges share the sink.
    pub number: u64,
}

/// One CPU's ring. Everything read from it is an allegation.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    rings: &'a Rings,
    base: usize,
    /// The rings that hold the records; may be `rings`.
    records: &'a Rings,
    from: usize,
}

impl Region<'_> {
    /// Returns the position up to which the writer may be writing. A copy is valid if its position
    /// is at most [`RingsLayout::bytes`] less than the value read after the copy; an Acquire fence
    /// orders the copy and the read.
    #[must_use]
    #[inline]
    pub fn reserved(&self) -> u64 {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.word_of_records(region_offset::RESERVED)
    }

    /// Returns the position up to which records are complete.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.word_of_records(region_offset::COMMITTED)
    }

    /// Returns the number of pointers ever written for a sink; their records are visible
    /// afterwards.
    #[must_use]
    #[inline]
    pub fn head(&self, sink: u32) -> u64 {
        if sink < self.rings.shape.sinks { self.word(region_offset::HEADS + 8 * sink) } else { 0 }
    }

    /// Returns the number of pointers ever written for an exit edge that shares its sink. Read it
    /// before the sink's head: the writer updates the edge's count first.
    #[must_use]
    #[inline]
    pub fn count(&self, way: u32) -> u64 {
        let at = way.checked_mul(8).and_then(|at| at.checked_add(region_offset::COUNTS));
        let count = at.filter(|at| *at < region_offset::POINTERS).map_or(0, |at| self.word(at));
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        count
    }

    /// Returns a pointer of a sink by number.
    #[must_use]
    #[inline]
    pub fn pointer(&self, sink: u32, number: u64) -> Option<FramePointer> {
        let shape = self.rings.shape;
        let slot = number as u32 & (shape.pointers - 1);
        let at = shape.pointers_of(sink) + slot * region_offset::POINTER;
        let halves = |word: u64| (word as u32, (word >> 32) as u32);
        (sink < shape.sinks).then(|| {
            let (length, class) = halves(self.word(at + 8));
            let (offset, way) = halves(self.word(at + 16));
            let (position, number) = (self.word(at), self.word(at + 24));
            FramePointer { position, length, class, offset, way, number }
        })
    }

    /// Copies bytes of the record at `position`, beginning at offset `from`. Returns false if the
    /// range cannot be part of a record.
    #[must_use]
    #[inline]
    pub fn copy(&self, position: u64, from: u32, to: &mut [u8]) -> bool {
        let shape = self.records.shape;
        let most = (region_offset::HEADER + shape.record_max) as usize;
        let end = (from as usize).checked_add(to.len());
        if end.is_none_or(|end| end > most) {
            return false;
        }
        let start = shape.records() + (position as u32 & (shape.bytes - 1));
        self.records.memory.copy(self.from + start as usize + from as usize, to)
    }

    /// Returns one of the writer's private words.
    #[must_use]
    pub fn scratch(&self, at: u32) -> Option<u64> {
        let inside = (region_offset::SCRATCH..region_offset::POINTERS).contains(&at);
        self.rings.memory.word(self.base + at as usize).filter(|_| inside)
    }

    #[inline]
    fn word_of_records(&self, at: u32) -> u64 {
        self.records.memory.word(self.from + at as usize).unwrap_or(0)
    }

    #[inline]
    fn word(&self, at: u32) -> u64 {
        self.rings.memory.word(self.base + at as usize).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ring_sizes_are_rejected() {
        let shape =
            RingsLayout { cpus: 2, sinks: 1, pointers: 64, bytes: 1 << 16, record_max: 2048 };
        assert_eq!(shape.records(), 4096 + 64 * 32);
        assert_eq!(shape.stride(), (4096 + 2048 + 65536 + 32 + 2048_u32).next_multiple_of(4096));
        assert_eq!(shape.size(), Some(2 * shape.stride()));
        assert_eq!(shape.pointers_only().stride(), 8192);
        assert_eq!(
            shape.records_only().stride(),
            (4096 + 65536 + 32 + 2048_u32).next_multiple_of(4096)
        );
        let wrong = [
            RingsLayout { cpus: 0, ..shape },
            RingsLayout { sinks: 0, bytes: 0, ..shape },
            RingsLayout { sinks: SINKS_MAX + 1, ..shape },
            RingsLayout { pointers: 65, ..shape },
            RingsLayout { bytes: 3 << 12, ..shape },
            RingsLayout { bytes: 1 << 31, ..shape },
            RingsLayout { record_max: 0, ..shape },
            RingsLayout { record_max: shape.bytes, ..shape },
            RingsLayout { cpus: u32::MAX, ..shape },
        ];
        for shape in wrong {
            assert_eq!(shape.size(), None, "{shape:?}");
        }
    }
}
