//! Per-CPU rings into which programs write records (captured frames) and pointers to them: memory
//! layout and access. (CONTRACT 29)
//!
//! The rings are the only element of a frozen array, which programs write and every process, ours
//! included, maps read-only. Each CPU has a region that only the program on this CPU writes: a page
//! of control words, pointers per sink, and records of any length up to
//! [`RingsLayout::record_max`]. Positions count bytes and never wrap; a record that begins near the
//! end of the ring continues into a tail after the end, so records are always contiguous. A *sink*
//! is one of the rings' outputs, with its own pointers; an *exit edge* is an edge of a request over
//! which frames leave the program. This module has no reader state: readers copy, then check
//! [`CpuRing::reserved_position`] to detect that the writer has lapped them.
//!
//! If one program serves several requests, the records are in rings without sinks, and each request
//! has its own rings of pointers into these records ([`ProgramRings::with_records`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::map::{Map, MapKind};
use crate::error::{Error, Result};
use crate::memory::{GatherWrite, ReadMapping};

/// Byte offsets and sizes within the memory region of one CPU. Words for readers and words private
/// to the writer are on separate cache lines.
pub mod region_offset {
    /// Offset of the position up to which the writer may be writing (u64).
    pub const RESERVED: u32 = 0;
    /// Offset of the position up to which records are completely written (u64).
    pub const COMMITTED: u32 = 8;
    /// Offset of the flag that the program sets to 1 while it may be writing frames for a consumer
    /// that it has found awake (u64).
    pub const WRITING: u32 = 40;
    /// Offset of the counts of pointers ever written, one count per sink (u64 each).
    pub const HEADS: u32 = 64;
    /// Offset of the words that are private to the writer. They fill the rest of the page after the
    /// heads of all sinks.
    pub const SCRATCH: u32 = HEADS + 8 * super::SINKS_MAX;
    /// Offset of the pointers of the first sink.
    pub const POINTERS: u32 = 4096;
    /// Offset of the time of this CPU's last notification, in ns of the monotonic clock (u64).
    pub const LAST_NOTIFICATION_TIME: u32 = SCRATCH + 24;
    /// Offset of the number of frames that the program could not copy into the ring (u64).
    pub const FAILED_COPIES: u32 = SCRATCH + 8;
    /// Offset of the number of notifications sent, followed by the number of notifications
    /// suppressed (u64 each).
    pub const NOTIFICATION_COUNTS: u32 = SCRATCH + 40;
    /// Offset of the program's tallies, one per event that the program counts. Each tally is a
    /// number of blocks followed by a number of bytes (u64 each).
    pub const TALLIES: u32 = SCRATCH + 64 + 16 * 31;
    /// Offset of the counts of pointers ever written, one count per exit edge that shares a sink
    /// (u64 each). Programs that keep all data in one map use this area as scratch memory.
    pub const EDGE_POINTER_COUNTS: u32 = SCRATCH + 64;
    /// Size of a pointer in bytes. Its fields, with their sizes: position (8), view length (4),
    /// class (4), view offset (4, with [`AFTER_TAG_FLAG`]), exit edge (4), and, if edges share the
    /// sink, the number of earlier pointers for this edge (8).
    pub const POINTER_SIZE: u32 = 32;
    /// Flag in the view offset of a pointer: the view begins after the VLAN tag, which the kernel
    /// may store outside the frame.
    pub const AFTER_TAG_FLAG: u32 = 1 << 31;
    /// Size of a record's header in bytes. Its fields, with their sizes: position, or -1 while
    /// being written (8), wire length (4), captured length (4), time (8), VLAN TCI (2), VLAN
    /// protocol (2), segment size (2), and flags (2: tag present, sent by this host).
    pub const RECORD_HEADER_SIZE: u32 = 32;
    /// Alignment of records in a ring, in bytes.
    pub const RECORD_ALIGNMENT: u32 = 16;
}

/// Maximum number of sinks of a ring. Exit edges can share a sink if each frame takes at most one
/// of these edges.
pub const SINKS_MAX: u32 = 32;

/// Sizes and counts that determine the memory layout of a program's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsLayout {
    /// Creates an error for the call `call` on `target`, with the error number `errno`.
    pub cpus: u32,
    /// Number of sinks, each with its own pointers; 0 in rings that hold only records.
    pub sinks: u32,
    /// Number of pointers per sink and CPU: a power of two.
    pub pointers: u32,
    /// Size of the records per CPU in bytes: a power of two; 0 if separate rings hold the records.
    pub bytes: u32,
    /// Maximum captured length of a frame in bytes. A frame merged by GRO has up to 64 KB.
    pub record_max: u32,
}

impl RingsLayout {
    /// Returns the byte offset of the records within the region of a CPU.
    #[must_use]
    #[inline]
    pub const fn records_offset(&self) -> u32 {
        region_offset::POINTERS + self.sinks * self.pointers * region_offset::POINTER_SIZE
    }

    /// Returns the byte offset of a sink's pointers within the region of a CPU.
    #[must_use]
    #[inline]
    pub const fn sink_pointers_offset(&self, sink: u32) -> u32 {
        region_offset::POINTERS + sink * self.pointers * region_offset::POINTER_SIZE
    }

    /// Returns the size in bytes of a CPU's region, rounded up to pages, including the tail into
    /// which a record at the end of the ring continues.
    #[must_use]
    #[inline]
    pub const fn region_size(&self) -> u32 {
        let tail =
            if self.bytes == 0 { 0 } else { region_offset::RECORD_HEADER_SIZE + self.record_max };
        (self.records_offset() + self.bytes + tail).next_multiple_of(4096)
    }

    /// Returns the same layout without pointers, for rings that hold only records.
    #[must_use]
    pub const fn records_only(self) -> Self {
        Self { sinks: 0, ..self }
    }

    /// Returns the same layout without records, for rings that hold only pointers.
    #[must_use]
    pub const fn pointers_only(self) -> Self {
        Self { bytes: 0, ..self }
    }

    /// Returns the total size of all regions in bytes; `None` if the layout is invalid.
    #[must_use]
    pub fn size(&self) -> Option<u32> {
        let Self { cpus, sinks, pointers, bytes, record_max } = *self;
        let power = |n: u32, may_lack: bool| n.is_power_of_two() || n == 0 && may_lack;
        let whole = pointers.is_power_of_two() && power(bytes, sinks > 0) && cpus > 0;
        let long = bytes == 0 || record_max <= bytes / 2;
        let fits = sinks <= SINKS_MAX && (sinks > 0 || bytes > 0) && record_max > 0 && long;
        // These limits prevent overflow in the sums of the other functions.
        let small = pointers <= 1 << 20 && bytes <= 1 << 28;
        let size = (whole && fits && small).then(|| self.region_size())?.checked_mul(cpus)?;
        // The largest size that has been tested.
        (size <= 1 << 30).then_some(size)
    }

    fn checked_size(&self) -> Result<u32> {
        self.size().ok_or_else(|| Error::new("bpf", format!("rings of {self:?}"), libc::EINVAL))
    }
}

/// A program's rings, one per CPU, mapped read-only.
#[derive(Debug)]
pub struct ProgramRings {
    /// The mapping of all regions. Declared first, so that the mapping is dropped before the map.
    memory: ReadMapping,
    map: Map,
    shape: RingsLayout,
    /// The rings that hold the records; `None` if this map holds the records.
    records: Option<Arc<Self>>,
}

impl ProgramRings {
    /// Creates a map with zeroed rings of this shape, and freezes it against writing processes.
    pub fn create(name: &str, shape: RingsLayout) -> Result<Self> {
        let map = Map::array(name, shape.checked_size()?, 1, true)?;
        map.freeze()?;
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// Adopts rings from a received descriptor.
    ///
    /// Fails with EINVAL if the map is not frozen or does not match the layout (RELIABILITY T19).
    pub fn from_received(fd: OwnedFd, shape: RingsLayout) -> Result<Self> {
        let map = Map::from_received(fd)?;
        let info = map.info()?;
        let same = map.kind() == MapKind::Array && info.entries == 1;
        if !same || info.value_size != shape.checked_size()? || !map.is_frozen()? {
            let what = format!("map {:?}: no frozen rings of {shape:?}", info.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// Joins the rings that hold a request's pointers with the rings that hold the records.
    ///
    /// Fails with EINVAL if the layouts do not match.
    pub fn with_records(self, records: Arc<Self>) -> Result<Self> {
        let same = self.shape.cpus == records.shape.cpus;
        let pair = self.shape.bytes == 0 && records.shape.bytes > 0 && records.records.is_none();
        if !(same && pair && self.shape.record_max == records.shape.record_max) {
            let what = format!("{:?} beside {:?}", self.shape, records.shape);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        Ok(Self { records: Some(records), ..self })
    }

    /// Returns the rings that hold the records: separate rings if [`ProgramRings::with_records`]
    /// has joined them, otherwise `self`.
    #[must_use]
    #[inline]
    pub fn record_rings(&self) -> &Self {
        self.records.as_deref().unwrap_or(self)
    }

    /// Returns the layout of the rings. [`RingsLayout::bytes`] is the size of the records even if
    /// separate rings hold them.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> RingsLayout {
        RingsLayout { bytes: self.record_rings().shape.bytes, ..self.shape }
    }

    /// Returns the layout of this map alone, without separate records.
    #[must_use]
    #[inline]
    pub const fn own_layout(&self) -> RingsLayout {
        self.shape
    }

    /// Returns the map that contains the rings. Programs refer to the map by its descriptor.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// Returns the memory of all regions, which programs write concurrently.
    #[must_use]
    pub const fn memory(&self) -> &ReadMapping {
        &self.memory
    }

    /// Returns true if the program may be writing frames for a consumer that it has found awake
    /// ([`RingBuffer::set_awake`](super::RingBuffer::set_awake)).
    #[must_use]
    pub fn has_active_writer(&self) -> bool {
        let mut regions = (0..self.shape.cpus).filter_map(|cpu| self.cpu_ring(cpu));
        regions.any(|region| region.control_word(region_offset::WRITING) != 0)
    }

    /// Returns the region of a CPU; `None` if the CPU number is out of range.
    #[must_use]
    #[inline]
    pub fn cpu_ring(&self, cpu: u32) -> Option<CpuRing<'_>> {
        let base = cpu.checked_mul(self.shape.region_size()).filter(|_| cpu < self.shape.cpus)?;
        let records = self.record_rings();
        let from = cpu.checked_mul(records.shape.region_size())?;
        Some(CpuRing { rings: self, base: base as usize, records, from: from as usize })
    }
}

impl AsFd for ProgramRings {
    /// Returns the map's descriptor. A process that receives this descriptor can read all rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// A pointer to a frame, as written by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePointer {
    /// Position of the frame's record in the ring.
    pub position: u64,
    /// Length of the view in bytes.
    pub length: u32,
    /// Class of the frame.
    pub class: u32,
    /// Offset of the view in the frame, in bytes. A tag that the kernel stores outside the frame
    /// does not count.
    pub offset: u32,
    /// True if the view begins after the VLAN tag, for a frame whose tag the kernel stores outside
    /// the frame.
    pub after_tag: bool,
    /// Number of the exit edge over which the frame leaves the program.
    pub edge: u32,
    /// Number of pointers written earlier for the same exit edge; counted only if several edges
    /// share the sink.
    pub number: u64,
}

/// The ring of one CPU. All values read from it are allegations, which the reader must check.
#[derive(Clone, Copy, Debug)]
pub struct CpuRing<'a> {
    rings: &'a ProgramRings,
    base: usize,
    /// Rings that hold the records; the same as `rings` if no separate rings hold them.
    records: &'a ProgramRings,
    from: usize,
}

impl<'a> CpuRing<'a> {
    /// Returns the position up to which the writer may be writing. To validate a copy of a record,
    /// call this function after copying: the copy is intact if the result exceeds the record's
    /// position by at most [`RingsLayout::bytes`]. An Acquire fence orders the copy and this read.
    #[must_use]
    #[inline]
    pub fn reserved_position(&self) -> u64 {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.records_control_word(region_offset::RESERVED)
    }

    /// Returns the position up to which the records in the ring are complete.
    #[must_use]
    pub fn committed_position(&self) -> u64 {
        self.records_control_word(region_offset::COMMITTED)
    }

    /// Returns the number of pointers ever written for a sink; 0 if there is no such sink. After
    /// this call, the records to which these pointers point are visible.
    #[must_use]
    #[inline]
    pub fn sink_pointer_count(&self, sink: u32) -> u64 {
        if sink < self.rings.shape.sinks {
            self.control_word(region_offset::HEADS + 8 * sink)
        } else {
            0
        }
    }

    /// Returns the number of pointers ever written for an exit edge that shares a sink; 0 if the
    /// edge has no count in the region. Call this before [`CpuRing::sink_pointer_count`], because
    /// the writer updates the count of the edge first.
    #[must_use]
    #[inline]
    pub fn edge_pointer_count(&self, edge: u32) -> u64 {
        let at =
            edge.checked_mul(8).and_then(|at| at.checked_add(region_offset::EDGE_POINTER_COUNTS));
        let count =
            at.filter(|at| *at < region_offset::POINTERS).map_or(0, |at| self.control_word(at));
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        count
    }

    /// Returns the content of the slot of pointer number `number` of a sink, counted from 0; `None`
    /// if there is no such sink. If the program has since written a pointer one or more laps
    /// further, the slot holds this later pointer.
    #[must_use]
    #[inline]
    pub fn frame_pointer(&self, sink: u32, number: u64) -> Option<FramePointer> {
        let shape = self.rings.shape;
        let slot = number as u32 & (shape.pointers - 1);
        let at = shape.sink_pointers_offset(sink) + slot * region_offset::POINTER_SIZE;
        let halves = |word: u64| (word as u32, (word >> 32) as u32);
        (sink < shape.sinks).then(|| {
            let (length, class) = halves(self.control_word(at + 8));
            let (offset, edge) = halves(self.control_word(at + 16));
            let (position, number) = (self.control_word(at), self.control_word(at + 24));
            let after_tag = offset & region_offset::AFTER_TAG_FLAG != 0;
            let offset = offset & !region_offset::AFTER_TAG_FLAG;
            FramePointer { position, length, class, offset, after_tag, edge, number }
        })
    }

    /// Fills `to` with bytes of the record at `position`, starting at offset `from` in the record.
    /// Returns false if the range ends beyond the maximum size of a record. After the call, check
    /// [`Self::reserved_position`] to detect whether the bytes were intact.
    #[must_use]
    #[inline]
    pub fn copy_record_bytes(&self, position: u64, from: u32, to: &mut [u8]) -> bool {
        let at = self.offset_in_mapping(position, from, to.len());
        at.is_some_and(|at| self.records.memory.copy(at, to))
    }

    /// Appends `length` bytes of the record at `position`, starting at offset `from` in the record,
    /// to a gathering write. Returns false if the range ends beyond the maximum size of a record.
    /// After the write, check [`Self::reserved_position`] to detect whether the bytes were intact.
    #[must_use]
    pub fn gather_record_bytes(
        &self,
        position: u64,
        (from, length): (u32, usize),
        to: &mut GatherWrite<'a>,
    ) -> bool {
        let at = self.offset_in_mapping(position, from, length);
        at.is_some_and(|at| to.push_mapped(&self.records.memory, at, length))
    }

    /// Returns the offset in the mapping of `length` bytes of a record, which start at offset
    /// `from` in the record; `None` if no record is that long.
    #[inline]
    fn offset_in_mapping(&self, position: u64, from: u32, length: usize) -> Option<usize> {
        let shape = self.records.shape;
        let most = (region_offset::RECORD_HEADER_SIZE + shape.record_max) as usize;
        (from as usize).checked_add(length).filter(|end| *end <= most)?;
        let start = shape.records_offset() + (position as u32 & (shape.bytes - 1));
        Some(self.from + start as usize + from as usize)
    }

    /// Returns the word at byte offset `at` of the region, if `at` is in the area that is private
    /// to the writer; otherwise `None`.
    #[must_use]
    pub fn scratch_word(&self, at: u32) -> Option<u64> {
        let inside = (region_offset::SCRATCH..region_offset::POINTERS).contains(&at);
        self.rings.memory.word(self.base + at as usize).filter(|_| inside)
    }

    #[inline]
    fn records_control_word(&self, at: u32) -> u64 {
        self.records.memory.word(self.from + at as usize).unwrap_or(0)
    }

    #[inline]
    fn control_word(&self, at: u32) -> u64 {
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
        assert_eq!(shape.records_offset(), 4096 + 64 * 32);
        assert_eq!(
            shape.region_size(),
            (4096 + 2048 + 65536 + 32 + 2048_u32).next_multiple_of(4096)
        );
        assert_eq!(shape.size(), Some(2 * shape.region_size()));
        assert_eq!(shape.pointers_only().region_size(), 8192);
        assert_eq!(
            shape.records_only().region_size(),
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
