//! Reasons for which memory is not shared, granted or mapped.

use super::holders::PeerId;
use abi::DbufId;
use std::fmt;
use sys::memory::Seals;

/// The reason for which memory is not shared, granted or mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GrantRefusal {
    /// The owner has no such dbuf, or shares it no more.
    UnknownDbuf(DbufId),
    /// The peer has not joined, or is gone.
    UnknownPeer(PeerId),
    /// The access list of the dbuf does not let this user read.
    Forbidden {
        /// The dbuf.
        dbuf: DbufId,
        /// The user that the peer runs under.
        uid: u32,
    },
    /// The peer keeps as many segments as it may.
    Limit {
        /// The peer.
        peer: PeerId,
        /// Segments that a peer may keep.
        limit: usize,
    },
    /// Another pool is shared under this id.
    Taken(DbufId),
    /// The memory of this pool is not a file of its own and cannot be handed to another process.
    NoFile(DbufId),
    /// The file lacks seals that must be on: its owner could cut, empty or change it.
    Unsealed {
        /// The dbuf.
        dbuf: DbufId,
        /// The seals that are on.
        seals: Seals,
    },
    /// No pool has this size.
    Size {
        /// The dbuf.
        dbuf: DbufId,
        /// Bytes that the file has.
        is: usize,
    },
    /// The owner is gone, has shown us out, or answers what is no answer.
    Abandoned,
    /// The kernel refused a call.
    System(sys::Error),
}

impl fmt::Display for GrantRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDbuf(dbuf) => write!(f, "dbuf {} is not shared here", dbuf.number()),
            Self::UnknownPeer(_) => f.write_str("this peer has not joined, or is gone"),
            Self::Forbidden { dbuf, uid } => write!(
                f,
                "user {uid} may not read dbuf {}: ask its owner for a pool with another access \
                 list",
                dbuf.number()
            ),
            Self::Limit { limit, .. } => write!(
                f,
                "this peer keeps {limit} segments, as many as it may: it must give some back first"
            ),
            Self::Taken(dbuf) => write!(f, "another pool is shared as dbuf {}", dbuf.number()),
            Self::NoFile(dbuf) => write!(
                f,
                "the memory of dbuf {} is not a file of its own: copy what is to be handed on",
                dbuf.number()
            ),
            Self::Unsealed { dbuf, seals } => {
                write!(f, "dbuf {} is not sealed as it must be ({seals:?})", dbuf.number())
            }
            Self::Size { dbuf, is } => {
                write!(f, "dbuf {} has {is} bytes, which no pool has", dbuf.number())
            }
            Self::Abandoned => f.write_str("the owner of this memory answers no more"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GrantRefusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sys::Error> for GrantRefusal {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}
