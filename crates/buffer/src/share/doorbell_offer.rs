//! A ring with a doorbell: what a reader of a stream gets, whatever lies in the ring.

use super::{Offer, Refusal};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::doorbell::SocketDoorbell;

/// A ring with a doorbell: the four descriptors that a reader gets. `K` is the content of the ring,
/// and decides how it is opened.
#[derive(Debug)]
pub struct DoorbellOffer<K> {
    /// The ring.
    pub ring: Offer,
    /// The reader's end of its doorbell.
    pub doorbell: SocketDoorbell,
    kind: PhantomData<fn() -> K>,
}

/// Descriptors of an offer.
const ALL: usize = 4;

impl<K> DoorbellOffer<K> {
    /// Descriptors of an offer.
    pub const DESCRIPTORS: usize = ALL;

    /// Joins the two.
    #[must_use]
    pub const fn new(ring: Offer, doorbell: SocketDoorbell) -> Self {
        Self { ring, doorbell, kind: PhantomData }
    }

    /// The descriptors, in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; ALL] {
        let [geometry, ring, cursor] = self.ring.descriptors();
        [geometry, ring, cursor, self.doorbell.as_fd()]
    }

    /// Reads an offer from received descriptors; refuses another number of them.
    pub fn from_descriptors(mut descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        match (descriptors.len(), descriptors.pop()) {
            (ALL, Some(doorbell)) => {
                Ok(Self::new(Offer::from_descriptors(descriptors)?, SocketDoorbell::from(doorbell)))
            }
            (count, _) => Err(Refusal::Descriptors(count)),
        }
    }
}
