//! Faults: reasons for which a pointer did not become bytes, or a ring cannot go on.

use abi::{DbufId, Extent};
use std::fmt;

/// A fault of a rich pointer, or of the other party of a ring. [SL §5.3.1, "buffer fault"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The pointer names a dbuf that is not known here.
    UnknownDbuf(DbufId),
    /// The place is not (or no longer) in the window of the dbuf: recycled, lapped, or never
    /// written.
    OutOfWindow(Extent),
    /// The place runs over the end of its segment, or of its block.
    CrossesSegment(Extent),
    /// The block is longer than this ring or pool can ever take.
    TooLong {
        /// Bytes asked for.
        length: usize,
        /// Bytes that one block may have.
        limit: usize,
    },
    /// The pointer is a hole: bytes that nobody has seen.
    Hole,
    /// The other party showed a position that it cannot have: it is broken or it lies. The ring is
    /// poisoned and must be closed.
    Poisoned {
        /// The position that it showed.
        shown: u64,
        /// Our own position.
        mine: u64,
    },
    /// A record in the ring is not one: its writer is broken or lies. The ring is poisoned.
    Damaged {
        /// Position at which the record should begin.
        position: u64,
    },
    /// All readers of this ring are gone.
    Abandoned,
    /// This operation needs a ring whose blocks are kept until they are read; this one overwrites.
    Lossy,
    /// The call needs a trusted writer: this one may be an untrusted peer, or the stream was not
    /// opened trusting.
    Foreign,
    /// The owner of a dbuf does not let this user read it: asked when the first pointer into it
    /// came.
    Forbidden {
        /// The dbuf.
        dbuf: DbufId,
        /// The user that we run under, as the owner knows it.
        uid: u32,
    },
    /// A pointer leads into a dbuf that is not mapped here, and its owner is there no more.
    OwnerGone(DbufId),
    /// A dbuf was granted and could not be mapped, or not sealed as it must be.
    Unmapped {
        /// The dbuf.
        dbuf: DbufId,
        /// Error number of the kernel; 0: the memory is not what its owner claims.
        errno: i32,
    },
    /// The dbuf that stands behind a stream is full of what others keep.
    NoRoom(DbufId),
    /// The writer lets us read no further: it went on in a segment that we did not get.
    Revoked {
        /// Up to here everything was there to be read.
        position: u64,
    },
    /// The ring goes on in a segment that is not what it must be. The ring is poisoned.
    Segment {
        /// Position at which that segment should begin.
        position: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDbuf(dbuf) => write!(f, "dbuf {} is not known here", dbuf.number()),
            Self::OutOfWindow(place) => write!(
                f,
                "{} bytes at position {} are not in the window of their dbuf (recycled or lapped)",
                place.length(),
                place.position()
            ),
            Self::CrossesSegment(place) => write!(
                f,
                "{} bytes at position {} run over the end of their segment",
                place.length(),
                place.position()
            ),
            Self::TooLong { length, limit } => {
                write!(f, "a block of {length} bytes is longer than the {limit} that fit: split it")
            }
            Self::Hole => f.write_str("a hole has a length and no bytes"),
            Self::Poisoned { shown, mine } => write!(
                f,
                "the other party of the ring shows position {shown}, which cannot be at our \
                 {mine}: close the ring"
            ),
            Self::Damaged { position } => {
                write!(f, "there is no record at position {position} of the ring: close the ring")
            }
            Self::Revoked { position } => {
                write!(f, "the writer lets us read no further than position {position}")
            }
            Self::Segment { position } => write!(
                f,
                "what should be the ring from position {position} on is not: close the ring"
            ),
            Self::Abandoned => f.write_str("nobody reads this ring any more"),
            Self::Lossy => {
                f.write_str("this ring overwrites its oldest blocks: read copies instead")
            }
            Self::Foreign => f.write_str(
                "the writer of this ring is not trusted: its bytes can be copied, not looked at in \
                 place (open the stream trusting, of a process of this user or of root)",
            ),
            Self::Forbidden { dbuf, uid } => write!(
                f,
                "user {uid} may not read dbuf {}: ask its owner for another access list",
                dbuf.number()
            ),
            Self::OwnerGone(dbuf) => write!(
                f,
                "dbuf {} is not mapped here, and its owner answers no more",
                dbuf.number()
            ),
            Self::Unmapped { dbuf, errno: 0 } => write!(
                f,
                "dbuf {} is not sealed or not as long as it must be: it was not mapped",
                dbuf.number()
            ),
            Self::Unmapped { dbuf, errno } => {
                write!(f, "dbuf {} could not be mapped (error {errno})", dbuf.number())
            }
            Self::NoRoom(dbuf) => write!(
                f,
                "dbuf {} is full of what other streams keep: let them be read, or make it larger",
                dbuf.number()
            ),
        }
    }
}

impl std::error::Error for Fault {}
