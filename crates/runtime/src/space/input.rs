//! Inputs of a space: sources, rings, and the two ends of a replica chain.

use super::arc::NodeId;
use super::join_state::{LocalReplica, ReplicaJoin};
use crate::ring::Import;
use filter::BatchMemory;

/// Inputs of a space, with the memory for a batch of their blocks.
#[derive(Debug)]
pub(super) struct InputSet {
    pub(super) list: Vec<Input>,
    /// Maximum number of blocks per batch.
    pub(super) batch_max: usize,
    /// Memory of the last batch, reused by the next.
    pub(super) spare: Option<BatchMemory>,
}

/// Input of a space.
#[derive(Debug)]
pub enum Input {
    /// Source of the space.
    Source {
        /// Node of the source.
        node: NodeId,
        /// Index of the pool that the source fills.
        intake: usize,
    },
    /// Ring from another space.
    Ring {
        /// Entry node of the ring.
        node: NodeId,
        /// Reading end of the ring.
        import: Import,
        /// True if the writer has closed the ring and every entry was taken.
        ended: bool,
    },
    /// Ring from the dispatcher to the replica in this space.
    Replica {
        /// Entry node of the ring.
        node: NodeId,
        /// Reading end of the ring.
        import: Import,
        /// True if the writer has closed the ring and every entry was taken.
        ended: bool,
        /// Identity and progress of the replica.
        own: LocalReplica,
    },
    /// Rings from all replicas to the join in this space.
    Join(Box<ReplicaJoin>),
}

impl Input {
    /// Returns the reading ends of the input's rings.
    pub fn imports_mut(&mut self) -> Vec<&mut Import> {
        match self {
            Self::Source { .. } => Vec::new(),
            Self::Ring { import, .. } | Self::Replica { import, .. } => vec![import],
            Self::Join(gather) => gather.imports_mut().collect(),
        }
    }
}
