//! Faults: reasons why a rich pointer cannot be resolved or a ring cannot continue.

use abi::{DbufId, Extent};
use thiserror::Error;

/// An error in reading or writing a ring, or in resolving a rich pointer. [SL §5.3.1, "buffer
/// fault"]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// The pointer refers to a dbuf that this process has not mapped.
    #[error("dbuf {} is unknown here", .0.number())]
    UnknownDbuf(DbufId),
    /// The block is not in the window of the dbuf: recycled, overwritten, or never written.
    #[error(
        "{} bytes at position {} are not in the window of their dbuf (recycled or lapped)",
        .0.length(), .0.position()
    )]
    OutOfWindow(Extent),
    /// The block extends beyond the end of the segment or record that contains it.
    #[error(
        "{} bytes at position {} extend beyond the end of their segment", .0.length(), .0.position()
    )]
    CrossesSegment(Extent),
    /// The block is longer than any block that this ring, pool or buffer can hold.
    #[error("a block of {length} bytes is longer than the {limit} that fit: split it")]
    TooLong {
        /// Requested length in bytes.
        length: usize,
        /// Maximum length of a block in bytes.
        limit: usize,
    },
    /// The pointer is a hole: a length without bytes.
    #[error("a hole has a length and no bytes")]
    Hole,
    /// The other party published an impossible position. The ring is *poisoned*: all later calls of
    /// this party fail, so this party must close the ring.
    #[error(
        "the other party of the ring published position {published}, which is impossible at \
         position {own} here: close the ring"
    )]
    Poisoned {
        /// Position that the other party has published.
        published: u64,
        /// Position of this party in the ring. The position `published` is impossible because it
        /// contradicts this one.
        own: u64,
    },
    /// The ring contains an invalid record from a broken or hostile writer. The ring is poisoned,
    /// as with [`Fault::Poisoned`].
    #[error("there is no record at position {position} of the ring: close the ring")]
    Damaged {
        /// Position at which a record should begin.
        position: u64,
    },
    /// The other side of the ring is gone: all readers have left, or the writer was killed and all
    /// its blocks have been read.
    #[error("the ring has no reader left")]
    Abandoned,
    /// The operation requires a ring that keeps blocks until they are read, but this ring
    /// overwrites them. [`crate::stream::Input::open_block`], in contrast, requires a ring that
    /// overwrites, and fails with this fault on other rings.
    #[error("this ring overwrites its oldest blocks: read copies instead")]
    Lossy,
    /// The operation requires a trusted writer, but the stream was not opened with
    /// [`crate::stream::Offer::open_trusting`] or its writer does not qualify.
    #[error(
        "the writer of this ring is not trusted: copy its bytes instead of reading them in place \
         (only a stream of this user or of root can be opened as trusted)"
    )]
    Foreign,
    /// The owner of a dbuf denies this user read access. Reported at the first pointer into the
    /// dbuf.
    #[error(
        "user {uid} may not read dbuf {}: ask its owner for another access list", dbuf.number()
    )]
    Forbidden {
        /// Dbuf to which the pointer refers.
        dbuf: DbufId,
        /// User ID of this process, as the owner of the dbuf received it from the kernel.
        uid: u32,
    },
    /// A pointer refers to a dbuf that is not mapped, and its owner has exited.
    #[error("dbuf {} is not mapped here, and its owner no longer replies", .0.number())]
    OwnerGone(DbufId),
    /// A dbuf was granted but could not be mapped, or lacks the required seals or size.
    #[error("dbuf {} {}", dbuf.number(), unmapped_reason(*errno))]
    Unmapped {
        /// Dbuf to which the pointer refers.
        dbuf: DbufId,
        /// `errno` of mmap(2), or 0 if the seals or the size are wrong.
        errno: i32,
    },
    /// The dbuf of this stream has no room, because readers of other streams in the dbuf still need
    /// its blocks.
    #[error(
        "dbuf {} is full of blocks of other streams: read those first, or enlarge the dbuf",
        .0.number()
    )]
    NoRoom(DbufId),
    /// The writer has revoked access: it continues in a segment that this reader does not receive.
    #[error("the writer permits reads only up to position {position}")]
    Revoked {
        /// Position at which the reader's access ends.
        position: u64,
    },
    /// The ring continues in a segment that fails validation. The ring is poisoned, as with
    /// [`Fault::Poisoned`].
    #[error("the ring continues in an invalid segment at position {position}: close the ring")]
    Segment {
        /// Position at which the segment should begin.
        position: u64,
    },
}

/// Returns the reason why a dbuf was not mapped, as a part of a sentence. In the message of
/// [`Fault::Unmapped`], it follows the id of the dbuf.
fn unmapped_reason(errno: i32) -> String {
    match errno {
        0 => "lacks the required seals or size, and was not mapped".to_owned(),
        errno => format!("could not be mapped (error {errno})"),
    }
}
