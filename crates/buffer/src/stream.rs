//! A stream between two processes that need not trust each other: a ring of blocks, and doorbells.
//! [SL §5.1: the Unix file interface as local calls]
//!
//! One [`Output`], one [`Input`] for each reader, each at its own pace. `write` and `read` wait as
//! those of a pipe do; in the normal case they are a copy and no system call. The writer maps its
//! ring and hands out descriptors that are no way to write ([`crate::share`]); each party checks
//! every position and every record that it reads, so a hostile party spoils its own data and no
//! more.
//!
//! **Waking.** Who finds nothing to do says in its own page that it sleeps and from which position
//! on it wants to be woken (`wait`); the other side rings ([`sys::doorbell`]) when that was
//! reached, and never otherwise: no event while both run, and two per lap when they share a
//! processor. A writer that found the ring full asks for half of it; a reader that found it empty
//! asks for a quarter, or for whatever is there when the writer says that it may be a while
//! ([`Output::flush`], and before the writer waits). No timer is armed: who writes flushes before
//! doing something else, as with any buffered writer. What was written is shown after
//! [`Config::every`] blocks or 64 KB. [SL §5.4; BASELINES, event batching]
//!
//! **The end.** A writer that is dropped closes the stream: readers take what is there, then get 0
//! as at the end of a file. A process that dies closes nothing, but its doorbell tells: readers get
//! [`Fault::Abandoned`] behind the last block that was shown, and a writer goes on for the readers
//! that are left (RELIABILITY T10).

mod config;
mod entrance;
mod handover;
mod input;
mod near;
mod note;
mod output;
mod room;
mod scaler;
mod switch;
mod waking;

pub use config::{Config, Ready, is_alone, know_processors};
pub use entrance::OFFER;
pub use entrance::{Entrance, Ticket, joinable, send_to};
pub use handover::Handover;
pub use input::{Input, Piece};
pub use output::Output;
pub use room::Room;
pub use switch::Stay;
pub use waking::Waking;

use crate::Policy;
use crate::share::{self, Refusal};
use switch::Segments;
use sys::doorbell::SocketDoorbell;
use sys::memory::Seals;

/// Makes a stream: the end that writes, and an offer for each reader.
pub fn stream(config: &Config) -> sys::Result<(Output, Vec<Offer>)> {
    let is_cut = config.extent > 0 && config.ring.policy != Policy::Overwrite;
    let (writer, rings) = match is_cut {
        true => share::blocks_that_are_cut(&config.ring, config.extent)?,
        false => share::blocks(&config.ring)?,
    };
    let file = match rings.first() {
        Some(ring) if is_cut => Some(ring.ring()?),
        _ => None,
    };
    let mut ends = Vec::new();
    let mut offers = Vec::new();
    for ring in rings {
        let (here, there) = SocketDoorbell::pair()?;
        ends.push((here, ring.page()?));
        offers.push(Offer::new(ring, there));
    }
    let segments = Segments::first(config, file);
    Ok((Output::new(writer, ends, config, segments), offers))
}

/// Says that bytes lie in a ring.
#[derive(Debug)]
pub enum Bytes {}

/// The four descriptors that a reader gets.
pub type Offer = share::DoorbellOffer<Bytes>;

impl Offer {
    /// Opens the reading end, after everything was checked.
    pub fn open(self) -> Result<Input, Refusal> {
        Ok(Input::new(self.ring.read_blocks_of(Seals::READER)?, self.doorbell))
    }

    /// As [`Offer::open`], of a stream whose writer may change its size in place: it can empty the
    /// memory that we read, though not so that we end by it. What a process of our own user or of
    /// root writes can be looked at in place ([`Input::peek`]).
    pub fn open_trusting(self) -> Result<Input, Refusal> {
        let maker = self.ring.maker();
        Ok(Input::new(self.ring.read_blocks_of(Seals::SIZE)?, self.doorbell).trusting(maker))
    }
}

#[cfg(test)]
mod tests;
