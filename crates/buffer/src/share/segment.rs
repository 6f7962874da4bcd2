//! Segments: a ring that grows, shrinks, changes its writer or revokes a reader continues in a new
//! segment. (CONTRACT 23, RELIABILITY T11) [SL §5.4, reallocation]
//!
//! ```text
//! old segment   … block block SWITCH    read to its end, then unmapped by each reader
//!                                   \ position S
//! new segment                        block block …      a new memory, of any power of two
//! ```
//!
//! Positions continue: all capacities are powers of two, so position p is stored at p mod capacity
//! in every segment. A reader keeps its page. It receives the new geometry and ring through its
//! doorbell before the switch is published. When the reader reaches the switch, it enters the
//! segment whose number the switch names, after checking seals, sizes, geometry and start position
//! like those of the first segment.
//!
//! Invariants, cited below:
//! - S1 Nothing is written to a segment after its switch. Readers can therefore read the segment to
//!   its end at any later time, and the kernel frees it when the last reader unmaps it.
//! - S2 Before the switch is published, the position, the counts and the position at which lapped
//!   readers resume are stored in the first page of the new segment, where a reader that sees the
//!   switch finds them.
//! - S3 A reader that enters a segment notifies the writer: a writer that waits for room in the new
//!   segment announces its sleep only in the new page, which the reader has not checked before.
//! - S4 Room: in new memory the writer may fill one capacity from S on at once, regardless of data
//!   that readers still need in the old memory. If the capacity changed in place, the smaller of
//!   the two capacities applies until all readers have passed S (`cursor`, room).

use super::{OfferRefusal, RingOffer, SharedFiles, check_file, duplicate, map_ring, read_geometry};
use crate::OverflowPolicy;
use crate::cursor::RingMemory;
use crate::region::Region;
use crate::trust::TrustProof;
use abi::ring::{PAGE_SIZE, RingGeometry};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// A new segment, as the writer offers it to readers.
#[derive(Debug)]
pub(crate) struct OfferedSegment {
    pub(super) files: SharedFiles,
    pub(crate) geometry: RingGeometry,
    pub(crate) store: Arc<RingMemory>,
}

impl OfferedSegment {
    /// Creates a segment for a ring of this geometry, with the existing pages of the ring's
    /// readers.
    pub(crate) fn create(
        geometry: RingGeometry,
        policy: OverflowPolicy,
        readers: Box<[Arc<Region>]>,
    ) -> sys::Result<Self> {
        let files = SharedFiles::create(&geometry)?;
        let (writer, capacity) = (files.map_and_seal(Seals::READER)?, geometry.capacity);
        let store = RingMemory::new(writer, readers, capacity, policy);
        Ok(Self { files, geometry, store })
    }

    /// Returns the descriptors that readers receive for this segment.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.files.geometry.as_fd(), self.files.ring.as_fd()]
    }
}

/// A segment as received from the writer, not yet validated.
#[derive(Debug)]
pub(crate) struct ReceivedSegment {
    geometry: OwnedFd,
    ring: OwnedFd,
    /// Number of the segment, as sent along with the descriptors.
    pub(crate) number: u64,
}

impl ReceivedSegment {
    /// Wraps the descriptors of a segment that a reader has received with a notification: geometry
    /// and ring. Returns `None` unless there are exactly two.
    pub(crate) fn new(number: u64, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [geometry, ring] = <[OwnedFd; 2]>::try_from(descriptors).ok()?;
        Some(Self { geometry, ring, number })
    }

    /// Returns a proof that the creator of the segment can be trusted ([`TrustProof`]), or `None`
    /// if it cannot.
    pub(crate) fn creator_trust(&self) -> Option<TrustProof> {
        TrustProof::for_file_creator(&self.ring)
    }

    /// Validates and maps the segment. Fails unless the segment begins at position `start`, and
    /// continues a ring whose last segment has the geometry `before`.
    pub(crate) fn attach(
        &self,
        before: &RingGeometry,
        start: u64,
        page: Arc<Region>,
    ) -> Result<(Arc<RingMemory>, RingGeometry), OfferRefusal> {
        let (geometry, policy) = read_geometry(&self.geometry, before.magic)?;
        let shape = |g: &RingGeometry| (g.id, g.stride, g.policy);
        let continues = geometry.start == start
            && geometry.segment == self.number
            && geometry.segment > before.segment
            && shape(&geometry) == shape(before);
        if !continues {
            return Err(OfferRefusal::Segment(geometry));
        }
        let writer = map_ring(&self.ring, &geometry, Seals::READER)?;
        let (capacity, readers) = (geometry.capacity, Box::new([page]));
        Ok((RingMemory::new(writer, readers, capacity, policy), geometry))
    }
}

/// Maps the page of a reader read-only, for a writer that did not create this page.
pub(crate) fn map_reader_page(cursor: &OwnedFd) -> Result<Region, OfferRefusal> {
    let file = check_file(cursor, "cursor", Seals::SIZE, PAGE_SIZE)?;
    Ok(Region::read_only(file.map_read()?))
}

impl RingOffer {
    /// Duplicates the descriptor of a reader's page, for a writer that may later hand over the
    /// ring.
    pub(crate) fn duplicate_page(&self) -> sys::Result<OwnedFd> {
        duplicate(&self.cursor)
    }

    /// Duplicates the file of the ring, for a writer that punches holes into it.
    pub(crate) fn duplicate_ring_file(&self) -> sys::Result<Memfd> {
        Memfd::from_fd(duplicate(&self.ring)?)
    }
}
