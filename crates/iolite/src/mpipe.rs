//! Multiway pipes: one write end and several read ends, each with its own position. [SL §5.1,
//! `mpipe(fds, num)`], FEATURES D9
//!
//! ```text
//!             ┌ end 0: a socket that contains the other ends of 1 to n-1
//!  mpipe(n) ──┼ end 1: a socket ◄────── the ring, when end 0 is opened; then it is the doorbell
//!             └ end 2: a socket ◄────── the ring, …
//! ```
//!
//! An end is a single descriptor, like an end of a Unix pipe: it survives fork and exec, can be a
//! standard stream, and can be sent over a socket. At first the ends share no memory. Opening the
//! write end creates the ring, seals it, and sends it to the readers; opening a read end waits for
//! the ring. The ends may therefore belong to processes that do not trust each other. Each end can
//! be opened by one process only: the kernel delivers the message in a socket to the first reader.
//!
//! Closing an unopened end has the same effect as for a pipe: readers observe the end of the
//! stream, and the writer observes the departure of readers.

use abi::DbufId;
use buffer::share::OfferRefusal;
use buffer::stream::{self, Config, Input, Offer, Output};
use buffer::{Fault, OverflowPolicy};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::descriptor;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod pointers;

pub use pointers::{
    PointerWriter, carries_pointers, open_read as open_pointer_read,
    open_write as open_pointer_write, pointer_pipe,
};

/// Creates a pipe with `n` ends: the first one is for writing, the others are for reading. `config`
/// describes the ring; its number of readers is set to `n - 1`. Fails unless `n` is from 2 to
/// [`PIPE_ENDS_MAX`].
pub fn mpipe(n: usize, config: &Config) -> Result<Vec<OwnedFd>, PipeError> {
    create_ends(n, &RingConfigMessage::new(config, n.saturating_sub(1)))
}

/// Creates `n` connected ends of a pipe. Puts the ring configuration `shape` into the writing end
/// as a message.
fn create_ends(n: usize, shape: &RingConfigMessage) -> Result<Vec<OwnedFd>, PipeError> {
    if !(2..=PIPE_ENDS_MAX).contains(&n) {
        return Err(PipeError::Ends(n));
    }
    let (server, writing) = descriptor::socket_pair()?;
    let (mut ends, mut theirs) = (vec![writing], Vec::new());
    for _ in 1..n {
        let (local, peer) = descriptor::socket_pair()?;
        theirs.push(local);
        ends.push(peer);
    }
    let sent: Vec<BorrowedFd<'_>> = theirs.iter().map(AsFd::as_fd).collect();
    descriptor::send(server, shape.as_bytes(), &sent)?;
    Ok(ends)
}

/// Maximum number of ends that a pipe can have. The limit results from the maximum number of
/// descriptors in one message.
pub const PIPE_ENDS_MAX: usize = descriptor::DESCRIPTORS_MAX + 1;

/// Opens the writing end of a multiway pipe of bytes: creates the ring and sends it to the readers.
/// Consumes the descriptor. Returns the stream, and the number of blocks after which written blocks
/// are published.
pub fn open_write_end(end: OwnedFd) -> Result<(Output, usize), PipeError> {
    if !first_message_begins_with(&end, &MAGIC.to_ne_bytes())? {
        return Err(PipeError::NotAPipeEnd);
    }
    let mut bytes = [0; size_of::<RingConfigMessage>()];
    let (length, theirs) = descriptor::receive(end, &mut bytes)?;
    if length == 0 {
        return Err(PipeError::AlreadyOpened);
    }
    let shape =
        bytes.get(..length).and_then(|bytes| RingConfigMessage::read_from_bytes(bytes).ok());
    let config = shape.and_then(|shape| shape.config()).ok_or(PipeError::NotAPipeEnd)?;
    if theirs.len() != config.ring.readers {
        return Err(PipeError::NotAPipeEnd);
    }
    // Departed readers are detected by the writer.
    let (output, _) = stream::stream_to_sockets(&config, theirs)?;
    Ok((output, config.every))
}

/// Opens a reading end of a multiway pipe of bytes. Blocks until the writing end is opened. Returns
/// `None` if the writing end was closed without being opened.
pub fn open_read_end(end: OwnedFd) -> Result<Option<Input>, PipeError> {
    if !first_message_begins_with(&end, stream::OFFER_MESSAGE)? {
        return Err(PipeError::NotAPipeEnd);
    }
    match Offer::receive(end)? {
        Some(offer) => Ok(Some(offer.open()?)),
        None => Ok(None),
    }
}

/// Returns true if the first message of an end begins with `magic`, or if the peer has closed its
/// end. Blocks until there is a message, which stays in the socket.
fn first_message_begins_with(end: &OwnedFd, magic: &[u8; 8]) -> Result<bool, PipeError> {
    if !descriptor::is_seqpacket_socket(end) {
        return Ok(false);
    }
    let mut first = [0; 8];
    let length = descriptor::peek(end, &mut first)?;
    Ok(length == 0 || (length == first.len() && first == *magic))
}

/// The message that waits in the writing end of a multiway pipe until the end is opened: the
/// configuration of the ring to create.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RingConfigMessage {
    magic: u64,
    /// Capacity, in bytes, of a ring of bytes or, in a pipe of pointers, of the memory for copied
    /// bytes. [`SELF_SIZING_CAPACITY`] requests automatic sizing.
    capacity: u64,
    every: u64,
    id: u32,
    policy: u32,
    readers: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"SL pipe1");
const CAPACITY_MAX: u64 = 1 << 40;
/// Capacity value that requests automatic sizing.
const SELF_SIZING_CAPACITY: u64 = 0;

impl RingConfigMessage {
    fn new(config: &Config, readers: usize) -> Self {
        let policy = config.ring.policy.code();
        Self {
            magic: MAGIC,
            capacity: if config.scaling.is_some() {
                SELF_SIZING_CAPACITY
            } else {
                config.ring.capacity as u64
            },
            every: config.every as u64,
            id: config.ring.id.number(),
            policy,
            readers: readers as u64,
        }
    }

    fn config(&self) -> Option<Config> {
        let id = DbufId::new(self.id).filter(|_| self.magic == MAGIC)?;
        let policy = OverflowPolicy::from_code(self.policy)?;
        let number = |value: u64| usize::try_from(value).ok();
        let capacity = number(self.capacity).filter(|_| self.capacity <= CAPACITY_MAX)?;
        let config = Config::new(id).policy(policy);
        let config = match self.capacity {
            SELF_SIZING_CAPACITY => config.self_sizing(),
            _ => config.capacity(capacity),
        };
        Some(Config { every: number(self.every)?, ..config }.readers(number(self.readers)?))
    }
}

/// Reason why a pipe could not be created, or an end could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PipeError {
    /// The requested number of ends of a multiway pipe is out of range.
    #[error(
        "a multiway pipe has 2 to {PIPE_ENDS_MAX} ends, not {0}: one that writes and at least \
         one that reads"
    )]
    Ends(usize),
    /// The descriptor is not the end that the call expects: the writing end, or a reading end, of a
    /// multiway pipe.
    #[error("this descriptor is not the expected end of a multiway pipe")]
    NotAPipeEnd,
    /// This end has already been opened, by this or another process.
    #[error("this end was already opened, here or in another process: an end can be opened once")]
    AlreadyOpened,
    /// A descriptor in the message is invalid.
    #[error("{0}")]
    Refused(#[from] OfferRefusal),
    /// Access to a ring failed.
    #[error("{0}")]
    Fault(Fault),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] sys::Error),
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
