//! Inputs of a space: sources, rings from other spaces, the input of a replica, and the join of a
//! replica chain.

use super::arc::NodeId;
use super::join_state::{LocalReplica, ReplicaJoin};
use crate::ring::RingImport;
use filter::BatchMemory;

/// The inputs of a space, and memory that they reuse for the next batch of blocks.
#[derive(Debug)]
pub(super) struct InputSet {
    pub(super) list: Vec<Input>,
    /// Maximum number of blocks that a source or ring supplies in one batch.
    pub(super) batch_max: usize,
    /// Memory of an earlier batch, which the next batch reuses; `None` while a batch uses the
    /// memory.
    pub(super) spare: Option<BatchMemory>,
}

/// An input of a space: a source, a ring, or the rings of a replica chain.
#[derive(Debug)]
pub enum Input {
    /// A source that runs in the space.
    Source {
        /// Node in the graph that represents the source.
        node: NodeId,
        /// Index of the pool that the source fills.
        intake: usize,
    },
    /// A ring from another space.
    Ring {
        /// Node at which the ring's blocks enter the graph.
        node: NodeId,
        /// Reading end of the ring.
        import: RingImport,
        /// True if the ring's writer has closed the ring and the space has taken every entry.
        ended: bool,
    },
    /// A ring from the dispatcher to the replica in this space.
    Replica {
        /// Node at which the ring's blocks enter the graph.
        node: NodeId,
        /// Reading end of the ring.
        import: RingImport,
        /// True if the dispatcher has closed the ring and the space has taken every entry.
        ended: bool,
        /// State of the replica: its index in the chain, and the progress of the chain.
        replica: LocalReplica,
    },
    /// The rings from all replicas to the join in this space.
    Join(Box<ReplicaJoin>),
}

impl Input {
    /// Returns the reading ends of the rings of this input.
    pub fn imports_mut(&mut self) -> Vec<&mut RingImport> {
        match self {
            Self::Source { .. } => Vec::new(),
            Self::Ring { import, .. } | Self::Replica { import, .. } => vec![import],
            Self::Join(gather) => gather.imports_mut().collect(),
        }
    }
}
