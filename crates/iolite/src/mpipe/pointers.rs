//! Multiway pipes that carry pointers: indirect streams whose ends are inherited like those of a
//! pipe of bytes. [SL §5.1, §5.3.2, §5.3.3], FEATURES D6, E1, E2
//!
//! ```text
//! opening the writing end ─► over the socket of each reading end: the ring, and a socket to the
//!                            grant server of the writer's process
//! first pointer into a dbuf ─► over that socket: the dbuf, before the pointer is published
//! ```
//!
//! As with a pipe of bytes, possession of a reading end therefore permits reading, even after the
//! writer has exited. A process that splices the pointers of others obtains each dbuf once and
//! passes it on; it maps nothing and touches no byte.

use super::{
    PipeError, RingConfigMessage, SELF_SIZING_CAPACITY, create_ends, first_message_begins_with,
};
use crate::aggregate::holders::PeerId;
use crate::aggregate::server::GrantServer;
use crate::aggregate::{AllocationPool, GrantRefusal};
use crate::indirect::{Backing, Config, Input, Offer, Output, indirect_stream_to_sockets};
use crate::interface::StreamReader;
use crate::splice::{SpliceResult, splice};
use crate::view::Space;
use abi::DbufId;
use abi::access::AccessList;
use buffer::scale::{ScalingParameters, SegmentWindow, SizingState};
use buffer::stream::cache_sizes;
use buffer::{Fault, OverflowPolicy, pool};
use std::os::fd::OwnedFd;
use sys::descriptor;
use sys::doorbell::SocketDoorbell;
use sys::process::effective_ids;
use zerocopy::FromBytes as _;

mod forward;

use forward::ForwardingReader;

/// First eight bytes of the message that the write end of a pipe of pointers contains until it is
/// opened.
const MAGIC: u64 = u64::from_le_bytes(*b"SL pipe2");
/// Size in bytes of a segment in the memory for copied bytes, which is also the maximum size of a
/// copied block.
const SEGMENT_SIZE: usize = 64 << 10;
/// Minimum number of segments in the memory for copied bytes. One segment is written while the
/// others are read.
const SEGMENTS_MIN: usize = 4;
/// Initial size in bytes of the memory for copied bytes, if its size adapts to the readers.
const INITIAL_COPY_MEMORY_SIZE: usize = 1 << 20;
/// Maximum size, in bytes, of a pipe's memory for copied bytes.
const COPY_MEMORY_SIZE_MAX: u64 = 1 << 36;

/// Creates a pipe of `n` ends that carries pointers. `config` describes the ring of pointers, which
/// always has the default number of entries and `n - 1` readers. `bytes` is the size in bytes of
/// the memory for copied bytes; if it is `None`, the memory adapts its size to the caches and to
/// the demand of the readers. Fails in the same cases as [`mpipe`](super::mpipe()).
pub fn pointer_pipe(
    n: usize,
    config: &Config,
    bytes: Option<usize>,
) -> Result<Vec<OwnedFd>, PipeError> {
    let shape = RingConfigMessage {
        magic: MAGIC,
        capacity: bytes.map_or(SELF_SIZING_CAPACITY, |bytes| bytes.max(1) as u64),
        every: config.publish_threshold as u64,
        id: config.id.number(),
        policy: config.policy.code(),
        readers: n.saturating_sub(1) as u64,
    };
    create_ends(n, &shape)
}

/// Returns true if this end belongs to a pipe that carries pointers. At a reading end, blocks until
/// the writing end is opened. Leaves the message in the socket.
pub fn carries_pointers(end: &OwnedFd) -> Result<bool, PipeError> {
    for magic in [&MAGIC.to_ne_bytes(), crate::indirect::OFFER_MESSAGE] {
        let mut first = [0; 8];
        if first_message_begins_with(end, magic)?
            && descriptor::peek(end, &mut first)? == first.len()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The writing end of a pipe that carries pointers.
#[derive(Debug)]
pub struct PointerWriter {
    output: Output,
    /// The readers, as clients of the grant server.
    peers: Vec<PeerId>,
    /// The dbufs that this end has already sent to the readers.
    sent_dbufs: Vec<DbufId>,
}

/// Opens the writing end of a pipe that carries pointers: creates the ring and sends it to the
/// readers. `backing` is the id of the memory for copied bytes, and `grants` serves the memory of
/// this process. Consumes the descriptor. Returns the writer, and the number of blocks after which
/// written blocks are published.
pub fn open_write(
    end: OwnedFd,
    backing: DbufId,
    grants: &GrantServer,
) -> Result<(PointerWriter, usize), PipeError> {
    let mut bytes = [0; size_of::<RingConfigMessage>()];
    let (length, theirs) = descriptor::receive(end, &mut bytes)?;
    if length == 0 {
        return Err(PipeError::AlreadyOpened);
    }
    let shape =
        bytes.get(..length).and_then(|bytes| RingConfigMessage::read_from_bytes(bytes).ok());
    let (config, capacity) =
        shape.and_then(|shape| parse_ring_config(&shape)).ok_or(PipeError::NotAPipeEnd)?;
    if theirs.len() != config.readers {
        return Err(PipeError::NotAPipeEnd);
    }
    let window = capacity.is_none().then(|| {
        let scaling = ScalingParameters::for_in_place_resizing(cache_sizes())
            .with_minimum_size(SEGMENTS_MIN * SEGMENT_SIZE);
        SegmentWindow::new(scaling, SEGMENT_SIZE, INITIAL_COPY_MEMORY_SIZE)
    });
    let segments = match &window {
        Some(window) => window.segments_max(),
        None => capacity.unwrap_or_default() / SEGMENT_SIZE,
    };
    let segments = segments.max(SEGMENTS_MIN).next_power_of_two();
    let form = pool::PoolConfig { segment: SEGMENT_SIZE, segments };
    let memory = AllocationPool::new(backing, form, AccessList::private(effective_ids()))?;
    grants.with_owner(|owner| owner.share(&memory))?;
    let memory = window.into_iter().fold(Backing::new(memory), Backing::with_window);
    let (output, peers) = indirect_stream_to_sockets(&config, memory, theirs, grants)?;
    let mut writer = PointerWriter { output, peers, sent_dbufs: Vec::new() };
    writer.send_dbuf(backing, grants);
    Ok((writer, config.publish_threshold))
}

/// Opens a reading end of a pipe that carries pointers. Blocks until the writing end is opened.
/// Memory of trusted processes is read in place if `space` is trusting. Returns `None` if the
/// writing end was closed without being opened.
pub fn open_read(end: OwnedFd, space: &Space) -> Result<Option<Input>, PipeError> {
    if !first_message_begins_with(&end, crate::indirect::OFFER_MESSAGE)? {
        return Err(PipeError::NotAPipeEnd);
    }
    let mut message = [0; 8];
    let (length, mut descriptors) = descriptor::receive(&end, &mut message)?;
    if length == 0 {
        return Ok(None);
    }
    let server = descriptors.pop().ok_or(PipeError::NotAPipeEnd)?;
    space.add_owner(server);
    let ring = buffer::share::RingOffer::from_descriptors(descriptors)?;
    Ok(Some(Input::open(Offer::new(ring, SocketDoorbell::from(end)), space)?))
}

/// Extracts the configuration of the ring and the size in bytes of the memory for copied bytes from
/// a message. The size is `None` if the memory sizes itself. Returns `None` if the message is
/// invalid.
fn parse_ring_config(shape: &RingConfigMessage) -> Option<(Config, Option<usize>)> {
    let id = DbufId::new(shape.id).filter(|_| shape.magic == MAGIC)?;
    let number = |value: u64| usize::try_from(value).ok();
    let capacity = number(shape.capacity).filter(|_| shape.capacity <= COPY_MEMORY_SIZE_MAX)?;
    let policy = OverflowPolicy::from_code(shape.policy)?;
    let (readers, every) = (number(shape.readers)?, number(shape.every)?);
    let capacity = (shape.capacity != SELF_SIZING_CAPACITY).then_some(capacity);
    Some((Config { policy, readers, publish_threshold: every, ..Config::new(id) }, capacity))
}

impl PointerWriter {
    /// Returns the indirect stream to which this end of the pipe writes.
    #[inline]
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns the size in bytes of the memory for copied bytes, and the state of its automatic
    /// sizing (`None` if the size is fixed).
    #[must_use]
    pub fn memory_size(&self) -> (usize, Option<&SizingState>) {
        self.output.memory_size()
    }

    /// Moves up to `max` bytes from `from`, like [`splice`], by pointer where `from` lends blocks.
    /// Sends each dbuf to the readers before the first pointer into it. Dbufs of other processes
    /// are obtained through `space`; `None` means that all dbufs belong to this process.
    pub fn splice_from<F: StreamReader>(
        &mut self,
        from: &mut F,
        space: Option<&Space>,
        max: usize,
        grants: &GrantServer,
    ) -> Result<SpliceResult, Fault> {
        let Self { output, peers, sent_dbufs: sent } = self;
        let mut from = ForwardingReader::new(from, space, grants, (peers, sent));
        splice(&mut from, output, max)
    }

    /// Sends a dbuf of the grant server to the readers, so that they have it even if this process
    /// exits.
    fn send_dbuf(&mut self, dbuf: DbufId, grants: &GrantServer) {
        self.peers.iter().for_each(|peer| _ = grants.send_grant(*peer, dbuf));
        self.sent_dbufs.push(dbuf);
    }
}

impl From<GrantRefusal> for PipeError {
    fn from(refusal: GrantRefusal) -> Self {
        match refusal {
            GrantRefusal::System(error) => Self::System(error),
            _ => Self::NotAPipeEnd,
        }
    }
}
