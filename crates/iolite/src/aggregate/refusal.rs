//! Reasons why memory is not shared, granted or mapped.

use super::holders::PeerId;
use abi::DbufId;
use sys::memory::Seals;
use thiserror::Error;

/// Reason why memory is not shared, granted or mapped.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GrantRefusal {
    /// The owner has no such dbuf, or no longer shares it.
    #[error("dbuf {} is not shared here", .0.number())]
    UnknownDbuf(DbufId),
    /// The peer has not joined, or has departed.
    #[error("this peer has not joined, or has left")]
    UnknownPeer(PeerId),
    /// The access list of the dbuf denies this user read access.
    #[error(
        "user {uid} may not read dbuf {}: ask its owner for a pool with another access list",
        dbuf.number()
    )]
    Forbidden {
        /// Dbuf that the user may not read.
        dbuf: DbufId,
        /// User ID of the peer that may not read the dbuf.
        uid: u32,
    },
    /// The peer holds the maximum number of segments.
    #[error("this peer holds {limit} segments, the maximum: it must release some first")]
    Limit {
        /// Peer that already holds the maximum number of segments.
        peer: PeerId,
        /// Maximum number of segments that each peer may hold.
        limit: usize,
    },
    /// Another dbuf is already shared under this id.
    #[error("another pool is shared as dbuf {}", .0.number())]
    Taken(DbufId),
    /// The memory of this dbuf cannot be granted to another process, because it is not a file, or
    /// is a file that cannot be a dbuf ([`crate::file::FileRefusal`]).
    #[error(
        "the memory of dbuf {} is not a file of its own: copy the data before passing it on",
        .0.number()
    )]
    NoFile(DbufId),
    /// The file lacks required seals: its owner could truncate or change it.
    #[error("dbuf {} lacks required seals ({seals:?})", dbuf.number())]
    Unsealed {
        /// Dbuf whose memory is the file.
        dbuf: DbufId,
        /// The seals that the file has.
        seals: Seals,
    },
    /// The size of the file is not valid for a pool.
    #[error("dbuf {} has {is} bytes, which is not a valid size for a pool", dbuf.number())]
    Size {
        /// Dbuf whose memory is the file.
        dbuf: DbufId,
        /// Actual size of the file in bytes.
        is: usize,
    },
    /// The owner has departed, has evicted this process, has sent an invalid reply, or has not
    /// replied in time.
    #[error("the process that owns this memory no longer replies")]
    Abandoned,
    /// A system call failed.
    #[error("{0}")]
    System(#[from] sys::Error),
}
