//! The kernel as the writer of a ring: the memory, and where what lies in it. (CONTRACT 29)
//!
//! One frozen array of one element for all CPUs: programs write, every process maps it read-only,
//! ours included. Each CPU has a region of its own, in which its program is alone: a page of
//! control words, pointers for each sink, and the records themselves, of any length up to
//! [`RingsLayout::record_max`]. A position counts bytes and never wraps; a record that begins near the
//! end of the ring runs over into a tail behind it, so that it is always in one piece. Here is no
//! reader: who reads copies, and checks by [`Region::reserved`] that the writer did not come round
//! meanwhile.
//!
//! Where several lines are handed frames by one program, the records of an owner are rings without
//! sinks, and each line has rings without records, which lie in those ([`Rings::beside`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::map::{Map, MapKind};
use crate::error::{Error, Result};
use crate::memory::ReadMapping;

/// Where things lie in a region, in bytes. Words of readers and of the writer alone are on cache
/// lines of their own.
pub mod region_offset {
    /// Eight bytes: the position up to which the writer may be writing.
    pub const RESERVED: u32 = 0;
    /// Eight bytes: the position up to which records are whole.
    pub const COMMITTED: u32 = 8;
    /// Eight bytes for each sink: how many pointers were written.
    pub const HEADS: u32 = 64;
    /// Behind the last head; the writer's own words lie from here to the end of the page.
    pub const SCRATCH: u32 = HEADS + 8 * super::SINKS_MAX;
    /// The pointers of the first sink.
    pub const POINTERS: u32 = 4096;
    /// When the bell of this CPU rang last, in ns of the monotonic clock (eight bytes).
    pub const NOTIFY_TIME: u32 = SCRATCH + 24;
    /// Frames that could not be copied (eight bytes).
    pub const FAILED: u32 = SCRATCH + 8;
    /// Bells that rang, and behind it those that did not (eight bytes each).
    pub const NOTIFIED: u32 = SCRATCH + 40;
    /// Tallies: blocks and bytes, eight each.
    pub const TALLIES: u32 = SCRATCH + 64 + 16 * 31;
    /// Eight bytes for each way that shares its sink with others: how many pointers were written
    /// for it. They lie where programs that have all in one map note and tally.
    pub const COUNTS: u32 = SCRATCH + 64;
    /// Bytes of a pointer: position (8), length of the view and class (4, 4), offset of the view
    /// and number of the way (4, 4), and how many were written before it for that way, if it shares
    /// its sink (8).
    pub const POINTER: u32 = 32;
    /// Bytes before the frame in a record: position, or -1 while it is written (8), length on the
    /// wire (4), length that was kept (4), time (8), tag and its protocol (2, 2), size of segments
    /// (2), whether there is a tag and whether the host sends it (one bit each of 2).
    pub const HEADER: u32 = 32;
    /// Records begin at multiples of this.
    pub const ALIGNED: u32 = 16;
}

/// The most sinks of one ring. Ways of which a frame takes at most one can share a sink.
pub const SINKS_MAX: u32 = 32;

/// The size of the rings of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsLayout {
    /// How many CPUs there can be: each has a region.
    pub cpus: u32,
    /// How many sinks have pointers of their own; 0 where only records lie.
    pub sinks: u32,
    /// Pointers of a sink on one CPU: a power of two.
    pub pointers: u32,
    /// Bytes of records on one CPU: a power of two; 0 where the records lie elsewhere.
    pub bytes: u32,
    /// The most bytes of a frame that are kept; a frame that the kernel has joined has up to 64 KB.
    pub record_max: u32,
}

impl RingsLayout {
    /// Where the records begin in a region.
    #[must_use]
    #[inline]
    pub const fn records(&self) -> u32 {
        region_offset::POINTERS + self.sinks * self.pointers * region_offset::POINTER
    }

    /// Where the pointers of a sink begin in a region.
    #[must_use]
    #[inline]
    pub const fn pointers_of(&self, sink: u32) -> u32 {
        region_offset::POINTERS + sink * self.pointers * region_offset::POINTER
    }

    /// Bytes of a region, with the tail: whole pages.
    #[must_use]
    #[inline]
    pub const fn stride(&self) -> u32 {
        let tail = if self.bytes == 0 { 0 } else { region_offset::HEADER + self.record_max };
        (self.records() + self.bytes + tail).next_multiple_of(4096)
    }

    /// The part that an owner has to itself: the records.
    #[must_use]
    pub const fn of_owner(self) -> Self {
        Self { sinks: 0, ..self }
    }

    /// The part that a line has to itself: the pointers.
    #[must_use]
    pub const fn of_line(self) -> Self {
        Self { bytes: 0, ..self }
    }

    /// Bytes of all regions; none where this is not a ring.
    #[must_use]
    pub fn size(&self) -> Option<u32> {
        let Self { cpus, sinks, pointers, bytes, record_max } = *self;
        let power = |n: u32, may_lack: bool| n.is_power_of_two() || n == 0 && may_lack;
        let whole = pointers.is_power_of_two() && power(bytes, sinks > 0) && cpus > 0;
        let long = bytes == 0 || record_max <= bytes / 2;
        let fits = sinks <= SINKS_MAX && (sinks > 0 || bytes > 0) && record_max > 0 && long;
        // Far from the end of 32 bits, so that the sums of the other functions do not overflow.
        let small = pointers <= 1 << 20 && bytes <= 1 << 28;
        let size = (whole && fits && small).then(|| self.stride())?.checked_mul(cpus)?;
        // The most that was tried for one element.
        (size <= 1 << 30).then_some(size)
    }

    fn check(&self) -> Result<u32> {
        self.size().ok_or_else(|| Error::new("bpf", format!("rings of {self:?}"), libc::EINVAL))
    }
}

/// The rings of a program, one for each CPU, mapped for reading.
#[derive(Debug)]
pub struct Rings {
    /// Dropped before the map.
    memory: ReadMapping,
    map: Map,
    shape: RingsLayout,
    /// Where the records lie, if not here.
    records: Option<Arc<Self>>,
}

impl Rings {
    /// Makes them, all zero and frozen.
    pub fn create(name: &str, shape: RingsLayout) -> Result<Self> {
        let map = Map::array(name, shape.check()?, 1, true)?;
        map.freeze()?;
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// Takes rings that somebody handed over. A map that is not frozen, or is not what a ring of
    /// this shape lies in, is refused (RELIABILITY T19).
    pub fn received(fd: OwnedFd, shape: RingsLayout) -> Result<Self> {
        let map = Map::received(fd)?;
        let info = map.info()?;
        let same = map.kind() == MapKind::Array && info.entries == 1;
        if !same || info.value_size != shape.check()? || !map.is_frozen()? {
            let what = format!("map {:?}: no frozen rings of {shape:?}", info.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        let memory = map.map_read()?;
        Ok(Self { memory, map, shape, records: None })
    }

    /// The pointers of a line to records that lie elsewhere. What is no such pair is refused.
    pub fn beside(self, records: Arc<Self>) -> Result<Self> {
        let same = self.shape.cpus == records.shape.cpus;
        let pair = self.shape.bytes == 0 && records.shape.bytes > 0 && records.records.is_none();
        if !(same && pair && self.shape.record_max == records.shape.record_max) {
            let what = format!("{:?} beside {:?}", self.shape, records.shape);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        Ok(Self { records: Some(records), ..self })
    }

    /// Where the records lie.
    #[must_use]
    #[inline]
    pub fn records(&self) -> &Self {
        self.records.as_deref().unwrap_or(self)
    }

    /// How large they are, records included, wherever these lie.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> RingsLayout {
        RingsLayout { bytes: self.records().shape.bytes, ..self.shape }
    }

    /// What lies in this map.
    #[must_use]
    #[inline]
    pub const fn own_shape(&self) -> RingsLayout {
        self.shape
    }

    /// The map, for programs.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// All regions, one after the other, as others may write them.
    #[must_use]
    pub const fn memory(&self) -> &ReadMapping {
        &self.memory
    }

    /// The region of a CPU.
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
    /// To be handed to those who may read all of it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// What a program says about a frame that it handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePointer {
    /// Where its record begins.
    pub position: u64,
    /// Bytes of the view.
    pub length: u32,
    /// The class.
    pub class: u32,
    /// Where the view begins in the frame.
    pub offset: u32,
    /// The number of the way that it takes.
    pub way: u32,
    /// How many were written before it for that way, if that shares its sink.
    pub number: u64,
}

/// The ring of one CPU. All that comes out of it is alleged.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    rings: &'a Rings,
    base: usize,
    /// Where the records lie, which may be the same.
    records: &'a Rings,
    from: usize,
}

impl Region<'_> {
    /// How far the writer may be writing: what was copied from a position is good if it is not
    /// further than [`RingsLayout::bytes`] from there. What was read before is read before: call it after
    /// a copy.
    #[must_use]
    #[inline]
    pub fn reserved(&self) -> u64 {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.word_of_records(region_offset::RESERVED)
    }

    /// How far records are whole.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.word_of_records(region_offset::COMMITTED)
    }

    /// How many pointers a sink was ever given. The records that they point to are seen after.
    #[must_use]
    #[inline]
    pub fn head(&self, sink: u32) -> u64 {
        if sink < self.rings.shape.sinks { self.word(region_offset::HEADS + 8 * sink) } else { 0 }
    }

    /// How many pointers a way was ever given that shares its sink. Ask before the sink's head:
    /// what was counted here is counted there soon after.
    #[must_use]
    #[inline]
    pub fn count(&self, way: u32) -> u64 {
        let at = way.checked_mul(8).and_then(|at| at.checked_add(region_offset::COUNTS));
        let count = at.filter(|at| *at < region_offset::POINTERS).map_or(0, |at| self.word(at));
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        count
    }

    /// This pointer of a sink.
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

    /// Copies bytes of the record at this position, from `from` on. Answers whether they can lie in
    /// a record.
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

    /// One of the writer's own words.
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
    fn a_shape_that_is_no_ring_is_refused() {
        let shape = RingsLayout { cpus: 2, sinks: 1, pointers: 64, bytes: 1 << 16, record_max: 2048 };
        assert_eq!(shape.records(), 4096 + 64 * 32);
        assert_eq!(shape.stride(), (4096 + 2048 + 65536 + 32 + 2048_u32).next_multiple_of(4096));
        assert_eq!(shape.size(), Some(2 * shape.stride()));
        assert_eq!(shape.of_line().stride(), 8192);
        assert_eq!(
            shape.of_owner().stride(),
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
