//! Streams that readers join and leave while they run. [SL §5.1]
//!
//! Admission never involves the writer: a joining reader starts *now*, after the last published
//! block, whether the writer is busy or idle ([`crate::join`]). While readers can still join, a
//! writer without readers continues and its blocks are discarded.

use super::segment_switch::Segments;
use super::{Config, Offer, Output};
pub use crate::join::ReaderTicket;
use crate::share::{self, JoinState, OfferRefusal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::doorbell::SocketDoorbell;

/// Creates a stream without readers. Returns the writing end, and the object that admits readers.
/// [`Config::readers`] and [`Config::in_place_capacity_max`] are ignored.
pub fn joinable_stream(config: &Config) -> sys::Result<(Output, Admission)> {
    let (writer, joining) = share::joinable_block_ring(&config.ring)?;
    let joining = Arc::new(joining);
    let output =
        Output::new(writer, Vec::new(), config, Segments::joinable(config, joining.clone()));
    Ok((output, Admission(joining)))
}

/// Admits readers to a stream, from any thread. After this object is dropped, no reader can join,
/// and a writer without readers fails with [`Fault::Abandoned`](crate::Fault::Abandoned).
#[derive(Debug)]
pub struct Admission(Arc<JoinState>);

impl Admission {
    /// Admits a reader. Returns `None` if the writer has ended the stream.
    pub fn admit(&self) -> sys::Result<Option<(ReaderTicket, Offer)>> {
        let (own_end, peer_end) = SocketDoorbell::pair()?;
        let admitted = self.admit_with_doorbell(own_end)?;
        Ok(admitted.map(|(ticket, ring)| (ticket, Offer::new(ring, peer_end))))
    }

    /// Admits a reader that holds the other end of `doorbell`. The offer then needs no other
    /// doorbell. Returns `None` if the writer has ended the stream.
    pub fn admit_with_doorbell(
        &self,
        doorbell: SocketDoorbell,
    ) -> sys::Result<Option<(ReaderTicket, share::RingOffer)>> {
        self.0.admit(doorbell)
    }

    /// Announces that a reader has left or was killed, so that the writer no longer waits for it.
    pub fn leave(&self, ticket: ReaderTicket) {
        self.0.queue.leave(ticket);
    }

    /// Registers a doorbell to be notified when the writer ends the stream.
    pub fn notify_on_end(&self, doorbell: Arc<SocketDoorbell>) {
        self.0.queue.notify_on_end(doorbell);
    }

    /// Returns true if the writer has ended the stream.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.queue.has_ended()
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

/// Creates a stream whose readers hold the other ends of these sockets. Sends each reader its offer
/// over its socket, which then serves as the reader's doorbell ([`Offer::receive`]). Also returns
/// the result of each send, in order. A reader whose offer was not sent counts as departed.
/// [`Config::readers`] and [`Config::in_place_capacity_max`] are ignored.
pub fn stream_to_sockets(
    config: &Config,
    sockets: Vec<OwnedFd>,
) -> sys::Result<(Output, Vec<sys::Result<()>>)> {
    let config = &config.readers(sockets.len());
    let (writer, rings) = share::block_ring(&config.ring)?;
    let (mut ends, mut sent) = (Vec::new(), Vec::new());
    for (ring, socket) in rings.into_iter().zip(sockets) {
        let page = ring.duplicate_page()?;
        sent.push(sys::descriptor::send(socket.as_fd(), OFFER_MESSAGE, &ring.descriptors()));
        ends.push((SocketDoorbell::from(socket), page));
    }
    let mut output = Output::new(writer, ends, config, Segments::new(config, None));
    for (at, _) in sent.iter().enumerate().filter(|(_, sent)| sent.is_err()) {
        output.disconnect(at);
    }
    Ok((output, sent))
}

/// Message that accompanies an offer on a socket.
pub const OFFER_MESSAGE: &[u8; 8] = b"SL offer";

impl Offer {
    /// Receives an offer over a socket, which then serves as this reader's doorbell. Blocks until
    /// the offer arrives. Returns `None` if the writer has closed its end of the socket.
    pub fn receive(socket: OwnedFd) -> Result<Option<Self>, OfferRefusal> {
        let mut message = [0; OFFER_MESSAGE.len()];
        let (length, descriptors) = sys::descriptor::receive(&socket, &mut message)?;
        if length == 0 {
            return Ok(None);
        }
        let count = descriptors.len();
        let ring = share::RingOffer::from_descriptors(descriptors)?;
        if length != OFFER_MESSAGE.len() || message != *OFFER_MESSAGE {
            return Err(OfferRefusal::Descriptors(count));
        }
        Ok(Some(Self::with_doorbell(ring, socket)))
    }

    /// Creates an offer from a ring and the socket that serves as the reader's doorbell.
    #[must_use]
    pub fn with_doorbell(ring: share::RingOffer, socket: OwnedFd) -> Self {
        Self::new(ring, SocketDoorbell::from(socket))
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
