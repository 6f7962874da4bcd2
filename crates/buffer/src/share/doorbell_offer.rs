//! The offer of a stream, which consists of a ring of any kind and a doorbell.

use super::{OfferRefusal, RingOffer};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::doorbell::SocketDoorbell;

/// The offer of a stream: the four descriptors that a reader receives. `K` is the kind of ring,
/// which determines how the offer is opened.
#[derive(Debug)]
pub struct DoorbellOffer<K> {
    /// Descriptors of the ring that carries the stream.
    pub ring: RingOffer,
    /// Reader's end of the doorbell.
    pub doorbell: SocketDoorbell,
    kind: PhantomData<fn() -> K>,
}

impl<K> DoorbellOffer<K> {
    /// Number of descriptors in an offer.
    pub const DESCRIPTOR_COUNT: usize = 4;

    /// Creates an offer from a ring and the reader's end of its doorbell.
    #[must_use]
    pub const fn new(ring: RingOffer, doorbell: SocketDoorbell) -> Self {
        Self { ring, doorbell, kind: PhantomData }
    }

    /// Returns the descriptors in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        let [geometry, ring, cursor] = self.ring.descriptors();
        [geometry, ring, cursor, self.doorbell.as_fd()]
    }

    /// Wraps received descriptors, unchecked. Fails with [`OfferRefusal::Descriptors`] unless there
    /// are exactly [`DoorbellOffer::DESCRIPTOR_COUNT`].
    pub fn from_descriptors(mut descriptors: Vec<OwnedFd>) -> Result<Self, OfferRefusal> {
        match (descriptors.len(), descriptors.pop()) {
            (Self::DESCRIPTOR_COUNT, Some(doorbell)) => Ok(Self::new(
                RingOffer::from_descriptors(descriptors)?,
                SocketDoorbell::from(doorbell),
            )),
            (count, _) => Err(OfferRefusal::Descriptors(count)),
        }
    }
}
