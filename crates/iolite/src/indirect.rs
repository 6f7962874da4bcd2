//! An indirect stream: a ring of rich pointers between processes, with the file interface of a
//! stream. [SL §5.3.2, transparent indirection]
//!
//! ```text
//! writer                          ring of 16-byte pointers                     reader
//! write, bytes from anywhere ─► copy into the backing dbuf ─┐             ┌─► read: copy
//! write, bytes in a dbuf ──────────── (no byte is touched) ─┴─► ▪▪▪▪▪▪ ───┴─► peek: in place
//!                                                                              where that is sound
//! dbuf 7 ░░░░████░░░░    dbuf 9 ██████░░░░                 not mapped yet? ask the owner
//! ```
//!
//! The ring and its doorbells are those of [`buffer::stream`]: sealed memfds, every index checked
//! at each use, nobody rung who does not sleep. What the pointers name stays in dbufs: the pools
//! and frozen data of this process, or of others. One stream may point into several dbufs, and
//! several streams into one; a reader asks their owners for what it has not mapped
//! ([`crate::view`]), and each reader needs the permission of the owner of each. What is in flight
//! the writer keeps (`flight`, F1 to F5).
//!
//! Beside writing and reading, a stream of pointers can be *spliced* ([`crate::splice`]).
//!
//! Deviation: the source has one kernel that maps what a pointer leads to. Here the owner of a dbuf
//! is asked (a [`GrantServer`](crate::aggregate::grant server::GrantServer)), by a socket that the
//! reader was given; so the writer of a stream need not be the owner of what it points to.

mod backing;
mod flight;
#[expect(unsafe_code, reason = "looks at trusted or frozen memory in place; I1, I2 in the file")]
mod input;
mod output;
mod ranges;

pub use backing::Backing;
pub(crate) use flight::Keeper;
pub use flight::sweep;
pub use input::Input;
pub use output::{Output, Spliced};

use abi::{DbufId, RichPointer};
use buffer::Policy;
use buffer::ibuf::{self, Lanes};
use buffer::pool::Lease;
use buffer::share;
use std::sync::Arc;
use sys::doorbell::SocketDoorbell;

/// The shape of an indirect stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The id of the ring itself.
    pub id: DbufId,
    /// Pointers that the ring holds; rounded up to a power of two, at least 256.
    pub entries: usize,
    /// Policy of a full ring and of a full backing dbuf.
    pub policy: Policy,
    /// Number of readers.
    pub readers: usize,
    /// After how many blocks what was written is shown (T_b), unless a dbuf that it points into
    /// wants it earlier.
    pub every: usize,
}

impl Config {
    /// 4096 pointers, one reader, blocks; shown every 32 blocks. On one processor 1024, which stay
    /// in its first cache, are faster.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, entries: 4096, policy: Policy::Block, readers: 1, every: 32 }
    }
}

/// Makes an indirect stream: the end that writes, and an offer for each reader. What is written
/// and lies in no dbuf yet goes into `backing`.
pub fn indirect(config: &Config, backing: Backing) -> sys::Result<(Output, Vec<Offer>)> {
    let Config { id, entries, policy, readers, every } = *config;
    let shape = ibuf::Config { entries, lanes: Lanes::Pointer, policy, readers };
    let (ring, rings) = share::pointers(&shape, id)?;
    let mut doorbells = Vec::new();
    let mut offers = Vec::new();
    for ring in rings {
        let (here, there) = SocketDoorbell::pair()?;
        doorbells.push(here);
        offers.push(Offer::new(ring, there));
    }
    Ok((Output::new(ring, doorbells, every, policy, backing), offers))
}

/// Says that rich pointers lie in a ring.
#[derive(Debug)]
pub enum Pointers {}

/// The four descriptors that a reader gets, as of a [stream](buffer::stream::Offer).
pub type Offer = share::DoorbellOffer<Pointers>;

/// A block that a stream lends, so that another one can pass it on: not taken yet.
#[derive(Debug)]
pub struct Lent<'a> {
    pub(crate) pointer: RichPointer,
    pub(crate) home: Home<'a>,
}

impl Lent<'_> {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pointer.length() as usize
    }

    /// Returns true if it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The keeper of a lent block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home<'a> {
    /// An input, which has not given it back.
    Entry(&'a Arc<Keeper>),
    /// A lease on its segment.
    Lease(&'a Lease),
    /// Nothing need keep it: it lies in a file.
    File,
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
