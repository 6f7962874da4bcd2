//! The counters of each edge (a pipe between two programs), in memory that `streamline sh` shares
//! with all programs of the pipeline and reports at the end. Each counter is written by only one of
//! the two programs of its edge.

use abi::edge::{Edge, EdgeCount};
use std::sync::OnceLock;
use sys::memory::{Mapping, Memfd};
use sys::preload;

static COUNTS_MAPPING: OnceLock<Mapping> = OnceLock::new();

/// Maps the counters, if the launcher has passed any. Called once, at start-up.
pub(crate) fn start() {
    let Ok(variable) = std::env::var(abi::edge::EDGE_COUNTS_VARIABLE) else { return };
    let Some((number, inode)) = variable.split_once(':') else { return };
    let (Ok(number), Ok(inode)) = (number.parse::<i32>(), inode.parse::<u64>()) else { return };
    // An inherited variable without its descriptor names another file, or none.
    if preload::inode(number) != Some(inode) {
        return;
    }
    let copy = preload::borrow_descriptor(number).and_then(|fd| fd.try_clone_to_owned().ok());
    if let Some(Ok(mapping)) = copy.map(|fd| Memfd::from_fd(fd).and_then(|file| file.map())) {
        let _ = COUNTS_MAPPING.set(mapping);
    }
}

/// Adds to a counter of an edge. Does nothing if there are no counters.
pub(crate) fn add(edge: &Edge, count: EdgeCount, bytes: usize) {
    let Some(mapping) = COUNTS_MAPPING.get() else { return };
    let offset = count.offset(edge.number);
    if let Some(before) = mapping.word(offset) {
        mapping.set_word(offset, before.wrapping_add(bytes as u64));
    }
}

/// Sets a counter of an edge that holds a current value, such as the size of its ring, instead of a
/// sum. Does nothing if there are no counters.
pub(crate) fn set(edge: &Edge, count: EdgeCount, value: u64) {
    if let Some(mapping) = COUNTS_MAPPING.get() {
        mapping.set_word(count.offset(edge.number), value);
    }
}

/// Adds the number of bytes that a system call returned to a counter of an edge. Adds nothing if
/// the call failed.
pub(crate) fn add_result(edge: &Edge, count: EdgeCount, result: isize) {
    add(edge, count, usize::try_from(result).unwrap_or(0));
}
