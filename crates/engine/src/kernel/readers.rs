//! Readers of the output of filters that run in the kernel ([`super::taps`]).

use super::taps::NodeTaps;
use super::{Generation, Kernel};
use pipeline::graph::NodeId;
use std::time::Duration;

impl Kernel {
    /// Returns true if the program has a tap for the node with this number.
    pub(crate) fn has_tap(&self, node: usize) -> bool {
        let Generation { tree, ids, .. } = &self.generation;
        let place = ids.nodes.iter().position(|known| *known == node);
        place.is_some_and(|place| tree.tap_of(NodeId(place)).is_some())
    }

    /// Returns true if the output of the node with this number has a reader.
    pub(crate) fn has_reader(&self, node: usize) -> bool {
        self.taps.has_reader(node)
    }

    /// Adds a reader of the output of the node with this number; the program then exports each
    /// frame that leaves the node, once the node is part of the program. Blocks for at most
    /// `limit` if another process runs the program. Fails with the reason.
    pub(crate) fn open_tap(&mut self, node: usize, limit: Duration) -> Result<(), String> {
        let Generation { tree, ids, .. } = &self.generation;
        if self.has_tap(node) && !self.has_reader(node) {
            self.taps.in_tree(tree, ids).check_room()?;
        }
        let before = self.taps.clone();
        self.taps.add_reader(node);
        let set = self.set_taps(&before, limit);
        if set.is_err() {
            // The tap may be open, or open later: only the reply is known to be missing.
            let failed = std::mem::replace(&mut self.taps, before);
            let _ = self.set_taps(&failed, Duration::ZERO);
        }
        set
    }

    /// Removes a reader of the output of the node with this number, if the node has one. Does not
    /// block.
    pub(crate) fn close_tap(&mut self, node: usize) {
        let before = self.taps.clone();
        self.taps.remove_reader(node);
        // A program that no longer runs exports nothing.
        let _ = self.set_taps(&before, Duration::ZERO);
    }

    /// Opens and closes the program's taps, unless the same taps are open as `before`.
    fn set_taps(&self, before: &NodeTaps, limit: Duration) -> Result<(), String> {
        let Generation { tree, ids, handle, .. } = &self.generation;
        let open = self.taps.in_tree(tree, ids);
        if open == before.in_tree(tree, ids) {
            return Ok(());
        }
        handle.set_taps(&open, limit)
    }

    /// Opens the taps of a new generation, because readers may have changed since it was prepared.
    pub(super) fn renew_taps(&self) {
        if self.taps.is_used() {
            let Generation { tree, ids, handle, .. } = &self.generation;
            let _ = handle.set_taps(&self.taps.in_tree(tree, ids), Duration::ZERO);
        }
    }
}
