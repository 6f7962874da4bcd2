//! The socket over which the two ends of an edge exchange a ring and descriptors of files.

use abi::edge::Edge;
use sys::preload;

/// Returns true if the number of the rendezvous socket still refers to that socket. The program may
/// have closed the socket and reused the number.
pub(crate) fn is_open(edge: &Edge) -> bool {
    preload::inode(edge.socket) == Some(edge.inode)
}
