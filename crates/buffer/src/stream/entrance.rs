//! A stream whose readers come and go while it runs: what lets them in. [SL §5.1]
//!
//! The writer is never waited for, and never waits: a reader that comes starts at *now*, behind the
//! last block that was shown, whether the writer is busy or idle ([`crate::join`]). As long as
//! somebody may come, a writer without readers goes on: what it writes is for nobody.

use super::switch::Segments;
use super::{Config, Offer, Output};
pub use crate::join::Ticket;
use crate::share::{self, Hall, Refusal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::doorbell::SocketDoorbell;

/// Makes a stream that nobody reads yet: the end that writes, and what lets readers in.
/// [`Config::readers`] is not looked at.
pub fn joinable(config: &Config) -> sys::Result<(Output, Entrance)> {
    let (writer, hall) = share::blocks_with_door(&config.ring)?;
    let hall = Arc::new(hall);
    let output =
        Output::new(writer, Vec::new(), config, Segments::by_entrance(config, hall.clone()));
    Ok((output, Entrance(hall)))
}

/// Lets readers in, from any thread. When it is dropped nobody can come any more, and a writer
/// whose readers have all left is told that it is abandoned.
#[derive(Debug)]
pub struct Entrance(Arc<Hall>);

impl Entrance {
    /// Lets a reader in. `None`: the writer has ended the stream.
    pub fn enter(&self) -> sys::Result<Option<(Ticket, Offer)>> {
        let (here, there) = SocketDoorbell::pair()?;
        let entered = self.enter_by(here)?;
        Ok(entered.map(|(ticket, ring)| (ticket, Offer::new(ring, there))))
    }

    /// Lets a reader in that holds the other end of this doorbell: it gets an offer without one.
    pub fn enter_by(
        &self,
        doorbell: SocketDoorbell,
    ) -> sys::Result<Option<(Ticket, share::Offer)>> {
        self.0.enter(doorbell)
    }

    /// Says that a reader is gone, so that the writer does not wait for it: it may have died
    /// without a word.
    pub fn leave(&self, ticket: Ticket) {
        self.0.door.leave(ticket);
    }

    /// Has this doorbell rung when the writer ends the stream.
    pub fn tell(&self, doorbell: Arc<SocketDoorbell>) {
        self.0.door.tell(doorbell);
    }

    /// Returns true if the writer has ended the stream.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.door.has_ended()
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.0.door.shut();
    }
}

/// Makes a stream whose readers are at the other ends of these sockets: each is sent what it needs
/// by the socket, which is its doorbell from then on ([`Offer::arrived`]). Who is gone already has
/// left; the answer says who that is.
pub fn send_to(
    config: &Config,
    sockets: Vec<OwnedFd>,
) -> sys::Result<(Output, Vec<sys::Result<()>>)> {
    let config = &config.readers(sockets.len());
    let (writer, rings) = share::blocks(&config.ring)?;
    let (mut ends, mut sent) = (Vec::new(), Vec::new());
    for (ring, socket) in rings.into_iter().zip(sockets) {
        let page = ring.page()?;
        sent.push(sys::descriptor::send(socket.as_fd(), OFFER, &ring.descriptors()));
        ends.push((SocketDoorbell::from(socket), page));
    }
    let mut output = Output::new(writer, ends, config, Segments::first(config, None));
    for (at, _) in sent.iter().enumerate().filter(|(_, sent)| sent.is_err()) {
        output.shut_out(at);
    }
    Ok((output, sent))
}

/// Message of an offer by a socket.
pub const OFFER: &[u8; 8] = b"SL offer";

impl Offer {
    /// The offer that was sent by a socket, which is the doorbell of this reader from now on. Waits
    /// for it. `None`: there is nobody any more who could send one.
    pub fn arrived(socket: OwnedFd) -> Result<Option<Self>, Refusal> {
        let mut message = [0; OFFER.len()];
        let (length, descriptors) = sys::descriptor::receive(&socket, &mut message)?;
        if length == 0 {
            return Ok(None);
        }
        let count = descriptors.len();
        let ring = share::Offer::from_descriptors(descriptors)?;
        if length != OFFER.len() || message != *OFFER {
            return Err(Refusal::Descriptors(count));
        }
        Ok(Some(Self::rung_by(ring, socket)))
    }

    /// Joins a ring with the socket that is its doorbell.
    #[must_use]
    pub fn rung_by(ring: share::Offer, socket: OwnedFd) -> Self {
        Self::new(ring, SocketDoorbell::from(socket))
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
