//! Faults: reasons why a rich pointer cannot be resolved or a ring cannot continue.

use abi::{DbufId, Extent};
use std::fmt;

/// A fault of a rich pointer, or of the other party of a ring. [SL §5.3.1, "buffer fault"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The pointer names a dbuf that this process has not mapped.
    UnknownDbuf(DbufId),
    /// The block is not in the window of the dbuf: recycled, overwritten, or never written.
    OutOfWindow(Extent),
    /// The block exceeds its segment or its record.
    CrossesSegment(Extent),
    /// The block is longer than this ring or pool can ever hold.
    TooLong {
        /// Requested length in bytes.
        length: usize,
        /// Maximum length of a block in bytes.
        limit: usize,
    },
    /// The pointer is a hole: a length without bytes.
    Hole,
    /// The other party published an impossible position. The ring is poisoned and must be closed.
    Poisoned {
        /// The published position.
        published: u64,
        /// The local position.
        own: u64,
    },
    /// The ring contains an invalid record, written by a broken or hostile writer. The ring is
    /// poisoned.
    Damaged {
        /// Expected position of the record.
        position: u64,
    },
    /// All readers of this ring have left.
    Abandoned,
    /// The operation requires a ring that keeps blocks until they are read; this one overwrites
    /// them.
    Lossy,
    /// The operation requires a trusted writer, but the stream was not opened with
    /// [`crate::stream::Offer::open_trusting`] or its writer does not qualify.
    Foreign,
    /// The owner of a dbuf denies this user read access. Detected at the first pointer into it.
    Forbidden {
        /// Id in the pointer.
        dbuf: DbufId,
        /// User ID of this process, as reported to the owner.
        uid: u32,
    },
    /// A pointer refers to a dbuf that is not mapped, and its owner has exited.
    OwnerGone(DbufId),
    /// A dbuf was granted but could not be mapped, or lacks the required seals or size.
    Unmapped {
        /// Id in the pointer.
        dbuf: DbufId,
        /// Error number of mmap; 0: seals or size are wrong.
        errno: i32,
    },
    /// The dbuf behind a stream is full of blocks that other streams still need.
    NoRoom(DbufId),
    /// The writer has revoked access: it continues in a segment that was not handed to this reader.
    Revoked {
        /// Position up to which the reader could read.
        position: u64,
    },
    /// The ring continues in a segment that fails validation. The ring is poisoned.
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
            Self::Poisoned { published, own } => write!(
                f,
                "the other party of the ring shows position {published}, which cannot be at our \
                 {own}: close the ring"
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
