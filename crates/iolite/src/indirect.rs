//! An indirect stream: a ring of rich pointers between processes, with the file interface of a
//! stream. [SL §5.3.2, transparent indirection]
//!
//! ```text
//! writer                          ring of 16-byte pointers                     reader
//! write, bytes from anywhere ─► copy into the backing dbuf ─┐             ┌─► read: copy
//! write, bytes in a dbuf ──────────── (no byte is touched) ─┴─► ▪▪▪▪▪▪ ───┴─► peek: in place
//!                                                                              where that is sound
//! dbuf 7 ░░░░████░░░░    dbuf 9 ██████░░░░                 not mapped yet? query the owner
//! ```
//!
//! Ring and doorbells are those of [`buffer::stream`]: sealed memfds, every index validated at each
//! use, notifications only to sleeping peers. The bytes stay in dbufs: pools and frozen data of
//! this process, or of others. One stream may point into several dbufs, and several streams into
//! one dbuf. A reader requests unmapped dbufs from their owners ([`crate::view`]), and needs the
//! permission of each owner. The writer holds all memory in flight (`flight`, F1 to F5).
//!
//! Besides writing and reading, a stream of pointers can be *spliced* ([`crate::splice`]).
//!
//! Deviation: in the paper, one kernel maps the target of a pointer. Here the owner of a dbuf
//! grants it ([`GrantServer`]) over a socket that the reader has received, so the writer of a
//! stream need not own the memory to which its pointers refer.

mod backing;
mod held_segments;
#[expect(unsafe_code, reason = "looks at trusted or frozen memory in place; I1, I2 in the file")]
mod input;
pub(crate) mod lent_block;
mod output;
mod range_table;

pub use backing::Backing;
pub use held_segments::sweep_held_segments;
pub use input::Input;
pub use lent_block::LentBlock;
pub use output::{Output, SpliceCounts};

use crate::aggregate::holders::PeerId;
use crate::aggregate::server::GrantServer;
use abi::DbufId;
use abi::access::Credentials;
use buffer::OverflowPolicy;
use buffer::ibuf::{self, EntryColumns};
use buffer::share;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::doorbell::SocketDoorbell;
use sys::process::effective_ids;

/// Parameters of an indirect stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Id of the ring of pointers.
    pub id: DbufId,
    /// Capacity of the ring in pointers; rounded up to a power of two, at least 256.
    pub entries: usize,
    /// Policy for a full ring and for a full backing dbuf.
    pub policy: OverflowPolicy,
    /// Number of readers of the stream.
    pub readers: usize,
    /// Number of blocks after which written pointers are published (T_b). A registered dbuf with a
    /// lower threshold lowers this number.
    pub publish_threshold: usize,
}

impl Config {
    /// Returns the default configuration: a ring of 4096 pointers, one reader, a blocking policy,
    /// and publication after every 32 blocks. If writer and reader share a CPU, 1024 pointers are
    /// faster because they fit into the L1 cache.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, entries: 4096, policy: OverflowPolicy::Block, readers: 1, publish_threshold: 32 }
    }
}

/// Creates an indirect stream. Returns the writing end, and an offer for each reader. Written bytes
/// that are not in a dbuf are copied into `backing`.
pub fn indirect_stream(config: &Config, backing: Backing) -> sys::Result<(Output, Vec<Offer>)> {
    let Config { id, entries, policy, readers, publish_threshold: every } = *config;
    let shape = ibuf::RingConfig { entries, columns: EntryColumns::Pointer, policy, readers };
    let (ring, rings) = share::pointer_ring(&shape, id)?;
    let mut doorbells = Vec::new();
    let mut offers = Vec::new();
    for ring in rings {
        let (local, peer) = SocketDoorbell::pair()?;
        doorbells.push(local);
        offers.push(Offer::new(ring, peer));
    }
    Ok((Output::new(ring, doorbells, every, policy, backing), offers))
}

/// Creates an indirect stream, and sends each reader an offer over a socket. `sockets` contains
/// this process's ends of these sockets; a socket serves as its reader's doorbell from then on.
/// Each reader also receives a socket connected to the grant server `grants`. Returns the writing
/// end, and the peer id of each reader in `grants`. A reader to which no offer could be sent counts
/// as departed.
pub(crate) fn indirect_stream_to_sockets(
    config: &Config,
    backing: Backing,
    sockets: Vec<OwnedFd>,
    grants: &GrantServer,
) -> sys::Result<(Output, Vec<PeerId>)> {
    let Config { id, entries, policy, publish_threshold: every, .. } = *config;
    let readers = sockets.len();
    let shape = ibuf::RingConfig { entries, columns: EntryColumns::Pointer, policy, readers };
    let (ring, rings) = share::pointer_ring(&shape, id)?;
    let (mut doorbells, mut peers, mut departed) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (ring, socket)) in rings.into_iter().zip(sockets).enumerate() {
        let (peer, server) = grants.add_client(Credentials::from(effective_ids()))?;
        let [geometry, entries, cursor] = ring.descriptors();
        let all = [geometry, entries, cursor, server.as_fd()];
        if sys::descriptor::send(socket.as_fd(), OFFER_MESSAGE, &all).is_err() {
            departed.push(at);
        }
        doorbells.push(SocketDoorbell::from(socket));
        peers.push(peer);
    }
    let mut output = Output::new(ring, doorbells, every, policy, backing);
    departed.into_iter().for_each(|at| output.evict(at));
    Ok((output, peers))
}

/// Message that accompanies an offer on a socket.
pub(crate) const OFFER_MESSAGE: &[u8; 8] = b"SL point";

/// The type tag of offers for rings of rich pointers.
#[derive(Debug)]
pub enum PointerRingTag {}

/// An offer of an indirect stream to a reader. It consists of four descriptors, like the offer of a
/// [stream](buffer::stream::Offer).
pub type Offer = share::DoorbellOffer<PointerRingTag>;

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
