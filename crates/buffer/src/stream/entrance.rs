//! A stream whose readers come and go while it runs: what lets them in. [SL §5.1]
//!
//! The writer is never waited for, and never waits: a reader that comes starts at *now*, behind the
//! last block that was shown, whether the writer is busy or idle ([`crate::join`]). As long as
//! somebody may come, a writer without readers goes on: what it writes is for nobody.

use super::{Config, Offer, Output};
pub use crate::join::Ticket;
use crate::share::{self, Hall};
use std::sync::Arc;
use sys::doorbell::Doorbell;

/// Makes a stream that nobody reads yet: the end that writes, and what lets readers in.
/// [`Config::readers`] is not looked at.
pub fn joinable(config: &Config) -> sys::Result<(Output, Entrance)> {
    let (writer, hall) = share::blocks_with_door(&config.ring)?;
    let hall = Arc::new(hall);
    let output = Output::new(writer, Vec::new(), config, Some(hall.clone()));
    Ok((output, Entrance(hall)))
}

/// Lets readers in, from any thread. When it is dropped nobody can come any more, and a writer
/// whose readers have all left is told that it is abandoned.
#[derive(Debug)]
pub struct Entrance(Arc<Hall>);

impl Entrance {
    /// Lets a reader in. `None`: the writer has ended the stream.
    pub fn enter(&self) -> sys::Result<Option<(Ticket, Offer)>> {
        let (here, there) = Doorbell::pair()?;
        let entered = self.enter_by(here)?;
        Ok(entered.map(|(ticket, ring)| (ticket, Offer { ring, bell: there })))
    }

    /// Lets a reader in that holds the other end of this bell: it gets an offer without one.
    pub fn enter_by(&self, bell: Doorbell) -> sys::Result<Option<(Ticket, share::Offer)>> {
        self.0.enter(bell)
    }

    /// Says that a reader is gone, so that the writer does not wait for it: it may have died
    /// without a word.
    pub fn leave(&self, ticket: Ticket) {
        self.0.door.leave(ticket);
    }

    /// Whether the writer has ended the stream.
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

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
