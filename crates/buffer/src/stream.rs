//! A stream between two processes that need not trust each other: a ring of blocks with doorbells.
//! [SL §5.1: the Unix file interface as local calls]
//!
//! There is one [`Output`], and one [`Input`] per reader, each with its own position. `write` and
//! `read` block like those of a pipe; normally they cost one copy and no system call. The
//! descriptors that the writer sends grant no write access to its ring ([`crate::share`]). Each
//! party checks every position and every record that it reads, so a hostile party can only damage
//! its own data.
//!
//! **Wake-ups.** A party with nothing to do publishes in its own page that it is asleep, and the
//! position at which it must be woken (`wait`). The other side notifies the sleeper
//! ([`sys::doorbell`]) when that position is reached, and at no other time. There are thus no
//! events while both sides run, and two per lap if they share a processor. A writer that found the
//! ring full waits until half of it is free; a reader that found the ring empty waits until a
//! quarter is filled, or for any block once the writer pauses ([`Output::flush`], and before the
//! writer waits). If the two sides share a processor, the writer waits for seven eighths, the
//! reader for the entire ring. No timer is armed: as with any buffered writer, the caller flushes
//! before it turns to other work. Blocks are published after [`Config::every`] blocks or 64 KB (a
//! sixteenth of a small ring). [SL §5.4; BASELINES, event batching]
//!
//! **The end.** Dropping the writer closes the stream: readers receive the remaining blocks and
//! then 0, as at the end of a file. A killed process does not close the stream, but its doorbell
//! reports the exit: readers fail with `Fault::Abandoned` after the last published block, and a
//! writer continues for the remaining readers (RELIABILITY T10).

mod admission;
mod affinity;
mod config;
mod handover;
mod input;
mod output;
mod presence;
mod reserved_room;
mod scaler;
mod segment_switch;
mod waking;
mod writer_message;

pub use crate::wait::{BlockReadResult, ReadUntilMarkResult, WaitResult};
pub use admission::OFFER_MESSAGE;
pub use admission::{Admission, ReaderTicket, joinable_stream, stream_to_sockets};
pub use config::{Config, cache_sizes, fix_processor_count, has_single_processor};
pub use handover::Handover;
pub use input::Input;
pub use output::Output;
pub use reserved_room::ReservedRoom;
pub use segment_switch::ChangeError;
pub use waking::WakingOverrides;

use crate::OverflowPolicy;
use crate::share::{self, OfferRefusal};
use segment_switch::Segments;
use sys::doorbell::SocketDoorbell;
use sys::memory::Seals;

/// Creates a stream. Returns the writing end, and an offer for each reader. Fails if the kernel
/// refuses memory or sockets.
pub fn stream(config: &Config) -> sys::Result<(Output, Vec<Offer>)> {
    let is_cut = config.extent > 0 && config.ring.policy != OverflowPolicy::Overwrite;
    let extent = if is_cut { config.extent } else { 0 };
    let (writer, rings) = share::resizable_block_ring(&config.ring, extent)?;
    let file = match rings.first() {
        Some(ring) if is_cut => Some(ring.duplicate_ring_file()?),
        _ => None,
    };
    let mut ends = Vec::new();
    let mut offers = Vec::new();
    for ring in rings {
        let (own_end, peer_end) = SocketDoorbell::pair()?;
        ends.push((own_end, ring.duplicate_page()?));
        offers.push(Offer::new(ring, peer_end));
    }
    let segments = Segments::new(config, file);
    Ok((Output::new(writer, ends, config, segments), offers))
}

/// The type tag of offers for byte streams.
#[derive(Debug)]
pub enum ByteStreamTag {}

/// The four descriptors that a reader of a stream of bytes receives.
pub type Offer = share::DoorbellOffer<ByteStreamTag>;

impl Offer {
    /// Validates the descriptors and opens the reading end. Fails if they do not form a valid
    /// offer.
    pub fn open(self) -> Result<Input, OfferRefusal> {
        Ok(Input::new(self.ring.open_block_reader_with_seals(Seals::READER)?, self.doorbell))
    }

    /// Opens the reading end of a stream whose writer is trusted. Such a writer may change the
    /// capacity in place, which punches holes into the memory being read; this cannot crash the
    /// reader. Blocks written by a process of the same user or of root can be read in place
    /// ([`Input::peek`]).
    pub fn open_trusting(self) -> Result<Input, OfferRefusal> {
        let creator = self.ring.creator_trust();
        Ok(Input::new(self.ring.open_block_reader_with_seals(Seals::SIZE)?, self.doorbell)
            .trusting(creator))
    }
}

#[cfg(test)]
mod tests;
