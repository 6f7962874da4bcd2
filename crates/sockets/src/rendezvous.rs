//! The socket over which the two ends of an edge exchange a ring and descriptors of files.

use abi::edge::Edge;
use sys::preload;

/// Returns true if the descriptor of the rendezvous socket is still that socket: the program may
/// have closed it and reused its number.
pub(crate) fn is_there(edge: &Edge) -> bool {
    preload::inode(edge.socket) == Some(edge.inode)
}
