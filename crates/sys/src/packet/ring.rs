//! The mapped receive ring, whose segments the kernel fills in order and this process returns.
//!
//! With TPACKET_V3, a segment is a block of frames of any length, retired when full or when its
//! timeout passes. If this process still owns the next segment, the ring freezes: arriving frames
//! are dropped and counted ([`RingStatistics`]), and nothing is ever overwritten. The descriptor
//! stays readable until this process has returned the newest retired segment.

use super::layout;
use super::option;
use crate::error::{Error, Result};
use crate::memory::{Mapping, SegmentLender};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Version number of TPACKET_V3 in the socket option.
const TPACKET_VERSION_3: libc::c_int = 2;
/// Value of a block's status word while user space owns the block.
const TP_STATUS_USER: u32 = 1;
/// Value of a block's status word while the kernel owns the block.
const TP_STATUS_KERNEL: u32 = 0;
/// Frame size in bytes, which must divide the segment size. The kernel requires a value although
/// TPACKET_V3 has no frames of fixed size.
const FRAME_SIZE: usize = 2048;

/// The size and timeout of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketRingParameters {
    /// Size of a segment in bytes: a power of two, at least a page. A frame that, with about 150
    /// bytes of headers, exceeds a segment is truncated.
    pub segment: usize,
    /// Number of segments: a power of two.
    pub segments: usize,
    /// Time in ms after which the kernel retires a segment that holds at least one frame; 0 counts
    /// as 1.
    pub retire_ms: u32,
    /// Number of free bytes before each frame, in addition to [`layout::FRAME_PADDING`].
    pub reserve: u32,
}

impl PacketRingParameters {
    /// Returns the size of the ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.segment.saturating_mul(self.segments)
    }

    /// Converts the parameters to the kernel's structure; returns `None` if the sizes are invalid.
    fn to_kernel_request(self) -> Option<libc::tpacket_req3> {
        let whole = self.segment.is_power_of_two()
            && self.segments.is_power_of_two()
            && self.segment >= rustix::param::page_size();
        let number = |value: usize| u32::try_from(value).ok();
        let bytes = self.segment.checked_mul(self.segments).filter(|_| whole)?;
        Some(libc::tpacket_req3 {
            tp_block_size: number(self.segment)?,
            tp_block_nr: number(self.segments)?,
            tp_frame_size: number(FRAME_SIZE)?,
            tp_frame_nr: number(bytes / FRAME_SIZE)?,
            tp_retire_blk_tov: self.retire_ms.max(1),
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        })
    }
}

/// Counters of the frames that have passed the socket's filter since the ring was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingStatistics {
    /// Number of frames that passed the filter, including dropped ones.
    pub packets: u64,
    /// Number of frames that passed the filter but were dropped because the ring had no room.
    pub drops: u64,
    /// Number of times the ring froze because this process still owned the next segment.
    pub freezes: u64,
}

/// A packet socket with its ring.
#[derive(Debug)]
pub struct PacketRing {
    /// The mapped ring. Declared first, so that the mapping is dropped before the socket. The
    /// kernel frees the ring once the mapping is removed and the descriptor is closed.
    memory: Mapping,
    socket: OwnedFd,
    shape: PacketRingParameters,
    totals: Mutex<CounterTotals>,
}

/// Running totals of the socket's counters. The kernel's own counters have 32 bits, and reading
/// resets some of them.
#[derive(Debug, Default)]
struct CounterTotals {
    ring: RingStatistics,
    socket: u64,
    socket_last: u32,
    gaps: Gaps,
}

/// A run of consecutive dropped frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Number of segments that the kernel had filled when it dropped these frames.
    pub segments_before: u64,
    /// Number of consecutive frames that the kernel dropped.
    pub drops: u64,
}

/// The gaps of a ring, in which frames were dropped, each with its position. The kernel drops
/// frames only while this process owns the segment to be filled next. Until that segment is
/// returned, all drops therefore have the same position.
#[derive(Debug, Default)]
struct Gaps {
    /// Gaps, oldest first, that [`PacketRing::take_gap`] has not returned yet.
    known: VecDeque<Gap>,
    /// Number of dropped frames that have already been assigned to a gap.
    counted: u64,
    /// Number of segments before the first segment that this process still owns, counted since the
    /// creation of the ring.
    returned_prefix: u64,
    /// For each slot, true if this process has returned its segment while it still owns an earlier
    /// segment.
    returned_early: Vec<bool>,
}

impl Gaps {
    /// Assigns new drops to a gap, at a time when all segments are filled. `drops` is the total
    /// number of frames that have been dropped so far.
    fn assign_drops_to_gap(&mut self, drops: u64, segments: usize) {
        let new = drops.saturating_sub(self.counted);
        if new == 0 {
            return;
        }
        self.counted = drops;
        let behind = self.returned_prefix + segments as u64;
        match self.known.back_mut() {
            Some(last) if last.segments_before == behind => last.drops += new,
            _ => self.known.push_back(Gap { segments_before: behind, drops: new }),
        }
        // A caller that takes gaps regularly never leaves more gaps than there are segments. For
        // other callers, the oldest gap is discarded.
        if self.known.len() > segments {
            self.known.pop_front();
        }
    }

    /// Returns the slot that the kernel fills last when the ring becomes full, and true if this
    /// process has returned the slot's segment.
    fn last_filled_slot(&self, segments: usize) -> (usize, bool) {
        let slot = (self.returned_prefix as usize + segments - 1) % segments;
        (slot, self.returned_early.get(slot).is_some_and(|ahead| *ahead))
    }

    /// Records that this process has returned the segment in `slot` to the kernel.
    fn record_returned_segment(&mut self, slot: usize, segments: usize) {
        self.returned_early.resize(segments, false);
        self.returned_early[slot] = true;
        while std::mem::take(&mut self.returned_early[self.returned_prefix as usize % segments]) {
            self.returned_prefix += 1;
        }
    }
}

impl PacketRing {
    pub(super) fn create(socket: OwnedFd, shape: PacketRingParameters) -> Result<Self> {
        let target = || format!("a ring of {} segments of {} bytes", shape.segments, shape.segment);
        let request = shape
            .to_kernel_request()
            .ok_or_else(|| Error::new("setsockopt", target(), libc::EINVAL))?;
        let fd = socket.as_fd();
        option::set(fd, libc::SOL_PACKET, option::VERSION, &TPACKET_VERSION_3)?;
        option::set(fd, libc::SOL_PACKET, option::RESERVE, &shape.reserve.cast_signed())?;
        option::set(fd, libc::SOL_PACKET, option::RX_RING, &request)
            .map_err(|error| Error::new("setsockopt", target(), error.errno))?;
        let memory = Mapping::shared(fd, shape.bytes(), "a packet ring")?;
        Ok(Self { memory, socket, shape, totals: Mutex::default() })
    }

    /// Binds the socket to an interface, or to all if `index` is 0, and so starts reception. The
    /// interface may be down: [`PacketRing::take_error`] then reports ENETDOWN, and frames arrive
    /// once the interface is up.
    pub fn bind(&self, index: u32) -> Result<()> {
        option::bind(self.socket.as_fd(), index, option::ETH_P_ALL)
    }

    /// Stops reception. The contents of the ring stay readable, and the kernel retires the segment
    /// being filled at its timeout.
    pub fn stop_reception(&self) -> Result<()> {
        option::attach_filter(self.socket.as_fd(), &[option::DROP_ALL])
    }

    /// Returns the ring's size and timeout.
    #[must_use]
    pub const fn parameters(&self) -> PacketRingParameters {
        self.shape
    }

    /// Returns the counters since the creation of the ring.
    pub fn statistics(&self) -> Result<RingStatistics> {
        // Locked across the reading, so that results never go backward.
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let new: libc::tpacket_stats_v3 =
            option::get(self.socket.as_fd(), libc::SOL_PACKET, option::STATISTICS)?;
        totals.ring.packets += u64::from(new.tp_packets);
        totals.ring.drops += u64::from(new.tp_drops);
        totals.ring.freezes += u64::from(new.tp_freeze_q_cnt);
        Ok(totals.ring)
    }

    /// Removes and returns the oldest gap if it precedes the segment with number `before`;
    /// otherwise returns `None`. Segments are numbered from 0 in the order in which the kernel
    /// filled them.
    pub fn take_gap(&self, before: u64) -> Option<Gap> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut totals.gaps.known;
        let is_before = known.front().is_some_and(|gap| gap.segments_before <= before);
        if is_before { known.pop_front() } else { None }
    }

    /// Assigns all drops so far to a gap. Returns all gaps that [`PacketRing::take_gap`] has not
    /// returned yet.
    pub fn gaps(&self) -> Result<Vec<Gap>> {
        let drops = self.statistics()?.drops;
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.gaps.assign_drops_to_gap(drops, self.shape.segments);
        Ok(totals.gaps.known.iter().copied().collect())
    }

    /// Returns the number of frames dropped at the socket before they reached the ring.
    pub fn socket_drop_count(&self) -> Result<u64> {
        const MEMINFO_DROPS_INDEX: usize = 8;
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let figures: [u32; 9] = option::get(self.socket.as_fd(), libc::SOL_SOCKET, option::MEMORY)?;
        let now = figures[MEMINFO_DROPS_INDEX];
        totals.socket += u64::from(now.wrapping_sub(totals.socket_last));
        totals.socket_last = now;
        Ok(totals.socket)
    }

    /// Removes and returns the pending error of the socket, such as ENETDOWN after the interface
    /// went down or was removed; `None` if there is no error.
    #[must_use]
    pub fn take_error(&self) -> Option<i32> {
        let waiting = option::get(self.socket.as_fd(), libc::SOL_SOCKET, option::ERROR);
        waiting.ok().filter(|errno| *errno != 0)
    }

    /// Returns the status word of a segment; `None` if the ring has no segment with this number.
    fn segment_status(&self, slot: usize) -> Option<&AtomicU32> {
        if slot >= self.shape.segments {
            return None;
        }
        let offset = slot * self.shape.segment + layout::STATUS_OFFSET;
        let word = self.memory.base().as_ptr().wrapping_add(offset).cast::<u32>();
        // SAFETY: the word is in the mapping (the slot was checked, a segment is at least a page),
        // which lives as long as `self`; it is aligned to 4, since the base is aligned to a page;
        // the kernel writes it whole, and here only atomics touch it.
        Some(unsafe { AtomicU32::from_ptr(word) })
    }
}

// SAFETY: the mapping has `segment * segments` bytes, readable and writable, and is unmapped only
// when the ring is dropped; the shape never changes (1). The kernel writes to a segment before it
// sets USER_OWNED in its status, behind a write barrier, and not again before the status is
// KERNEL_OWNED (packet_mmap.rst: "the user must return the block") (2).
unsafe impl SegmentLender for PacketRing {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn segment_size(&self) -> usize {
        self.shape.segment
    }

    fn segment_count(&self) -> usize {
        self.shape.segments
    }

    fn has_arrived(&self, slot: usize) -> bool {
        // Acquire: pairs with the kernel's barrier between the frames and this word.
        self.segment_status(slot)
            .is_some_and(|status| status.load(Ordering::Acquire) & TP_STATUS_USER != 0)
    }

    fn give_back(&self, slot: usize) {
        debug_assert!(self.has_arrived(slot), "segment {slot} is not ours to give");
        let segments = self.shape.segments;
        let (newest, passed) = {
            let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.gaps.last_filled_slot(segments)
        };
        // Only a full ring can have dropped frames.
        let full = passed || self.has_arrived(newest);
        if let Some(status) = self.segment_status(slot) {
            // Release: our accesses to the segment precede the kernel's view of this word.
            status.store(TP_STATUS_KERNEL, Ordering::Release);
        }
        // Read after the store, so that the total includes every earlier drop.
        let drops = if full { self.statistics().ok().map(|all| all.drops) } else { None };
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(drops) = drops {
            totals.gaps.assign_drops_to_gap(drops, segments);
        }
        totals.gaps.record_returned_segment(slot, segments);
    }
}

impl AsFd for PacketRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_drops_follow_the_last_filled_segment() {
        let mut gaps = Gaps::default();
        // All four segments are filled, and none has been returned.
        gaps.assign_drops_to_gap(10, 4);
        gaps.record_returned_segment(0, 4);
        gaps.assign_drops_to_gap(10, 4);
        // A fifth segment was filled, and then the ring was full again. The segment returned next
        // is not the oldest.
        gaps.assign_drops_to_gap(13, 4);
        gaps.record_returned_segment(2, 4);
        assert_eq!(gaps.last_filled_slot(4), (0, false), "the fifth");
        gaps.assign_drops_to_gap(14, 4);
        gaps.record_returned_segment(1, 4);
        gaps.assign_drops_to_gap(15, 4);
        let gap = |behind, drops| Gap { segments_before: behind, drops };
        assert_eq!(gaps.known, [gap(4, 10), gap(5, 4), gap(7, 1)]);
    }

    #[test]
    fn ring_sizes_must_be_powers_of_two() {
        let shape =
            PacketRingParameters { segment: 1 << 16, segments: 8, retire_ms: 0, reserve: 8 };
        let request = shape.to_kernel_request().unwrap();
        assert_eq!((request.tp_block_size, request.tp_block_nr), (1 << 16, 8));
        assert_eq!(request.tp_frame_nr, (8 << 16) / request.tp_frame_size);
        assert_eq!(request.tp_retire_blk_tov, 1, "0 would be the kernel's own choice");
        assert_eq!(shape.bytes(), 8 << 16);
        assert!(PacketRingParameters { segment: 1024, ..shape }.to_kernel_request().is_none());
        assert!(PacketRingParameters { segment: 5000, ..shape }.to_kernel_request().is_none());
        assert!(PacketRingParameters { segments: 3, ..shape }.to_kernel_request().is_none());
        assert!(
            PacketRingParameters { segment: 1 << 63, segments: 4, ..shape }
                .to_kernel_request()
                .is_none()
        );
    }
}
