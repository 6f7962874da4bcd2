//! Multiway pipes: one end that writes, and several that read, each at its own place. [SL §5.1,
//! `mpipe(fds, num)`], FEATURES D9
//!
//! ```text
//!             ┌ end 0: a socket, in it the other ends of 1 to n-1
//!  mpipe(n) ──┼ end 1: a socket ◄────── the ring, when end 0 is opened; then it is the doorbell
//!             └ end 2: a socket ◄────── the ring, …
//! ```
//!
//! An end is one descriptor, as that of a pipe is: it can be kept over fork and exec, be a standard
//! stream, and be sent over a socket. Nothing is shared yet. Who opens the writing end makes the
//! ring, seals it, and sends it to the others; who opens a reading end waits for that. So ends may
//! go to processes that do not trust each other, and each is opened by one process: the kernel
//! gives what lies in a socket to the first that asks.
//!
//! An end that is closed without having been opened is closed as that of a pipe is: readers see the
//! end of the stream, the writer sees that they have left.

use abi::DbufId;
use buffer::share::Refusal;
use buffer::stream::{self, Config, Input, Offer, Output};
use buffer::{Fault, Policy};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::descriptor;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Makes a pipe of `n` ends: the first one writes, the others read. `config` is the shape of the
/// ring; how many readers it has is `n - 1`.
pub fn mpipe(n: usize, config: &Config) -> Result<Vec<OwnedFd>, PipeError> {
    if !(2..=ENDS_MAX).contains(&n) {
        return Err(PipeError::Ends(n));
    }
    let (server, writing) = descriptor::pair()?;
    let (mut ends, mut theirs) = (vec![writing], Vec::new());
    for _ in 1..n {
        let (here, there) = descriptor::pair()?;
        theirs.push(here);
        ends.push(there);
    }
    let shape = Shape::new(config, n - 1);
    let sent: Vec<BorrowedFd<'_>> = theirs.iter().map(AsFd::as_fd).collect();
    descriptor::send(server, shape.as_bytes(), &sent)?;
    Ok(ends)
}

/// The most ends of a pipe: what one message carries.
pub const ENDS_MAX: usize = descriptor::DESCRIPTORS_MAX + 1;

/// Opens the writing end: makes the ring, and hands it to the readers. The descriptor is closed.
/// Answers also after how many blocks what was written is shown.
pub fn open_write(end: OwnedFd) -> Result<(Output, usize), PipeError> {
    if !begins_with(&end, &MAGIC.to_ne_bytes())? {
        return Err(PipeError::NoEnd);
    }
    let mut bytes = [0; size_of::<Shape>()];
    let (length, theirs) = descriptor::receive(end, &mut bytes)?;
    if length == 0 {
        return Err(PipeError::Opened);
    }
    let shape = bytes.get(..length).and_then(|bytes| Shape::read_from_bytes(bytes).ok());
    let config = shape.and_then(|shape| shape.config()).ok_or(PipeError::NoEnd)?;
    if theirs.len() != config.ring.readers {
        return Err(PipeError::NoEnd);
    }
    // Who is gone already has left: the writer will see that.
    let (output, _) = stream::send_to(&config, theirs)?;
    Ok((output, config.every))
}

/// Opens a reading end: waits until the writing end was opened. `None`: it was closed, and there is
/// nothing to read.
pub fn open_read(end: OwnedFd) -> Result<Option<Input>, PipeError> {
    if !begins_with(&end, stream::OFFER)? {
        return Err(PipeError::NoEnd);
    }
    match Offer::arrived(end)? {
        Some(offer) => Ok(Some(offer.open()?)),
        None => Ok(None),
    }
}

/// Returns true if the first message in an end is of this kind, false if there will be none. Takes
/// nothing, so a wrong guess does no harm.
fn begins_with(end: &OwnedFd, magic: &[u8; 8]) -> Result<bool, PipeError> {
    if !descriptor::is_packet_socket(end) {
        return Ok(false);
    }
    let mut first = [0; 8];
    let length = descriptor::peek(end, &mut first)?;
    Ok(length == 0 || (length == first.len() && first == *magic))
}

/// The message in the writing end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Shape {
    magic: u64,
    capacity: u64,
    every: u64,
    id: u32,
    policy: u32,
    readers: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"SL pipe1");
const CAPACITY_MAX: u64 = 1 << 40;

impl Shape {
    fn new(config: &Config, readers: usize) -> Self {
        let policy = config.ring.policy.code();
        Self {
            magic: MAGIC,
            capacity: config.ring.capacity as u64,
            every: config.every as u64,
            id: config.ring.id.number(),
            policy,
            readers: readers as u64,
        }
    }

    fn config(&self) -> Option<Config> {
        let id = DbufId::new(self.id).filter(|_| self.magic == MAGIC)?;
        let policy = Policy::from_code(self.policy)?;
        let number = |value: u64| usize::try_from(value).ok();
        let capacity = number(self.capacity).filter(|_| self.capacity <= CAPACITY_MAX)?;
        let config = Config::new(id).capacity(capacity).policy(policy);
        Some(Config { every: number(self.every)?, ..config }.readers(number(self.readers)?))
    }
}

/// The reason for which there is no pipe, or an end was not opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PipeError {
    /// So many ends a pipe cannot have.
    Ends(usize),
    /// The descriptor is not an end of this kind.
    NoEnd,
    /// This end was opened before, here or in another process.
    Opened,
    /// A descriptor in the message is not what it must be.
    Refused(Refusal),
    /// A ring could not go on.
    Fault(Fault),
    /// The kernel refused a call.
    System(sys::Error),
}

impl fmt::Display for PipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends(n) => write!(
                f,
                "a multiway pipe has 2 to {ENDS_MAX} ends, not {n}: one that writes and at least \
                 one that reads"
            ),
            Self::NoEnd => f.write_str("this descriptor is no end of a multiway pipe of this kind"),
            Self::Opened => f.write_str(
                "this end was opened before, here or in another process: each end is for one",
            ),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PipeError {}

impl From<sys::Error> for PipeError {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

impl From<Refusal> for PipeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
