//! The pieces of a ring's life: a ring that grows, shrinks, changes hands or shuts somebody out
//! goes on in a new segment. (CONTRACT 23, RELIABILITY T11) [SL §5.4, reallocation]
//!
//! ```text
//! old segment   … block block SWITCH    read to its end, then unmapped by each reader
//!                                   \ position S
//! new segment                        block block …      a new memory, of any power of two
//! ```
//!
//! Positions go on: all capacities are powers of two, so position p is at p mod capacity in every
//! segment. A reader keeps its page; the new geometry and the new ring come to it by its doorbell,
//! before the switch is shown. It finds the switch, takes the segment whose number the switch
//! names, and checks seals, sizes, geometry and start as it did at first.
//!
//! Invariants, cited where they are relied on:
//! - S1 Nothing is written to a segment after its switch. So readers finish it in peace, however
//!   late; the kernel frees it when the last of them unmaps it.
//! - S2 The first page of a new segment says all that the old one said, before the switch is shown.
//! - S3 Who enters a segment rings: a writer that waits for room in the new one is not lost, though
//!   it can say so in the new page alone.
//! - S4 Room: in new memory the writer may go one capacity behind S at once, whatever readers still
//!   have in the old one; where the capacity moved in place, the smaller of both holds until all
//!   readers are past S (`cursor`, room).

use super::{Files, Offer, Refusal, agreed, checked, ring};
use crate::Policy;
use crate::cursor::Store;
use crate::region::Region;
use crate::trust::Trusted;
use abi::ring::{Geometry, PAGE};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// A new segment, as its writer has it.
#[derive(Debug)]
pub(crate) struct OfferedSegment {
    pub(super) files: Files,
    pub(crate) geometry: Geometry,
    pub(crate) store: Arc<Store>,
}

impl OfferedSegment {
    /// Makes a segment for a ring of this geometry whose readers have these pages.
    pub(crate) fn create(
        geometry: Geometry,
        policy: Policy,
        readers: Box<[Arc<Region>]>,
    ) -> sys::Result<Self> {
        let files = Files::create(&geometry)?;
        let (writer, capacity) = (files.map()?, geometry.capacity);
        let store = Arc::new(Store { writer, readers, capacity, policy });
        Ok(Self { files, geometry, store })
    }

    /// Returns the descriptors that readers get.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.files.geometry.as_fd(), self.files.ring.as_fd()]
    }
}

/// A segment that was received. It proves nothing yet.
#[derive(Debug)]
pub(crate) struct Received {
    geometry: OwnedFd,
    ring: OwnedFd,
    /// Its number, as was told with it.
    pub(crate) number: u64,
}

impl Received {
    /// Takes the descriptors that came by a doorbell, if they are as many as a segment has.
    pub(crate) fn new(number: u64, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [geometry, ring] = <[OwnedFd; 2]>::try_from(descriptors).ok()?;
        Some(Self { geometry, ring, number })
    }

    /// Returns proof that its maker can be trusted.
    pub(crate) fn maker(&self) -> Option<Trusted> {
        Trusted::maker(&self.ring)
    }

    /// Maps it, if it goes on at `start` where a ring of this geometry ended.
    pub(crate) fn attach(
        &self,
        before: &Geometry,
        start: u64,
        page: Arc<Region>,
    ) -> Result<(Arc<Store>, Geometry), Refusal> {
        let (geometry, policy) = agreed(&self.geometry, before.magic)?;
        let shape = |g: &Geometry| (g.id, g.stride, g.policy);
        let goes_on = geometry.start == start
            && geometry.segment == self.number
            && geometry.segment > before.segment
            && shape(&geometry) == shape(before);
        if !goes_on {
            return Err(Refusal::Segment(geometry));
        }
        let writer = ring(&self.ring, &geometry, Seals::READER)?;
        let (capacity, readers) = (geometry.capacity, Box::new([page]));
        Ok((Arc::new(Store { writer, readers, capacity, policy }), geometry))
    }
}

/// The page of a reader, as a writer gets it that did not make it.
pub(crate) fn page(cursor: &OwnedFd) -> Result<Region, Refusal> {
    let file = checked(cursor, "cursor", Seals::SIZE, PAGE)?;
    Ok(Region::reading(file.map_read()?))
}

impl Offer {
    /// A descriptor of the reader's page, for a writer that may hand the ring over.
    pub(crate) fn page(&self) -> sys::Result<OwnedFd> {
        clone(&self.cursor)
    }

    /// The file of the ring, for a writer that takes memory away.
    pub(crate) fn ring(&self) -> sys::Result<Memfd> {
        Memfd::from_fd(clone(&self.ring)?)
    }
}

fn clone(fd: &OwnedFd) -> sys::Result<OwnedFd> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(0);
    fd.try_clone().map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", errno(e)))
}
