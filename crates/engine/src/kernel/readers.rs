//! Readers of the output of filters that run in the kernel ([`super::taps`]).

use super::host::KernelRefusal;
use super::taps::{NodeTapReaders, OPEN_TAPS_MAX, OpenTaps};
use super::tree::RequestTree;
use super::{Generation, KernelSpace};
use crate::error::BuildError;
use crate::numbering::PlanNumbers;
use pipeline::graph::NodeId;
use runtime::space::tap::TapStopHandle;
use std::time::Duration;

impl KernelSpace {
    /// Returns true if the program has a tap for the node with this number.
    pub(crate) fn has_tap(&self, node: usize) -> bool {
        let Generation { tree, ids, .. } = &self.generation;
        let place = ids.nodes.iter().position(|known| *known == node);
        place.is_some_and(|place| tree.tap_index(NodeId(place)).is_some())
    }

    /// Returns true if the output of the node with this number has a reader.
    pub(crate) fn has_reader(&self, node: usize) -> bool {
        self.taps.has_reader(node)
    }

    /// Adds a reader of the output of the node with this number. The program then exports each
    /// frame that leaves the node, once the node is part of the program. Blocks for at most `limit`
    /// if another process runs the program. Fails with the reason.
    pub(crate) fn open_tap(
        &mut self,
        node: usize,
        reader: &TapStopHandle,
        limit: Duration,
    ) -> Result<(), String> {
        let Generation { tree, ids, .. } = &self.generation;
        if self.has_tap(node) && !self.has_reader(node) {
            self.taps.open_taps_in_tree(tree, ids).check_tap_limit()?;
        }
        let before = self.taps.clone();
        self.taps.add_reader(node, reader);
        let set = self.set_taps(&before, limit);
        if set.is_err() {
            // The other process may have opened the tap although its reply is missing, so the tap
            // is closed again.
            let failed = std::mem::replace(&mut self.taps, before);
            let _ = self.set_taps(&failed, Duration::ZERO);
        }
        set
    }

    /// Removes `reader` from the readers of the node with number `node`. Does nothing if it is not
    /// one of them. Does not block.
    pub(crate) fn close_tap(&mut self, node: usize, reader: &TapStopHandle) {
        let before = self.taps.clone();
        self.taps.remove_reader(node, reader);
        // A program that no longer runs exports nothing.
        let _ = self.set_taps(&before, Duration::ZERO);
    }

    /// Opens and closes the program's taps to match the current readers. `before` contains the
    /// earlier readers. Does nothing if the current readers need the same taps as the earlier ones.
    fn set_taps(&self, before: &NodeTapReaders, limit: Duration) -> Result<(), String> {
        let Generation { tree, ids, handle, .. } = &self.generation;
        let open = self.taps.open_taps_in_tree(tree, ids);
        if open == before.open_taps_in_tree(tree, ids) {
            return Ok(());
        }
        handle.set_taps(&open, limit)
    }

    /// Checks a program that is about to replace the current one. Fails if the program could not
    /// export the output of a node that has a reader. The refusal names the node, which can run in
    /// a thread instead.
    pub(super) fn check_output_exported(
        &self,
        (tree, ids): (&RequestTree, &PlanNumbers),
        open: &OpenTaps,
    ) -> Result<(), BuildError> {
        let Some(node) = self.taps.unexported_nodes(tree, ids, open).next() else { return Ok(()) };
        let why = format!(
            "its output is being read, and at most {OPEN_TAPS_MAX} filters of a request can run \
             there while they are read"
        );
        Err(BuildError::Refused(KernelRefusal { node, why }))
    }

    /// Opens the taps that the readers need after a new generation has begun. Its program started
    /// with the taps in `opened`. Ends the taps of readers whose node the program does not export.
    /// Blocks for at most [`TAP_RENEWAL_TIMEOUT`] if another process runs the program.
    pub(super) fn renew_taps(&mut self, opened: &OpenTaps) {
        let Generation { tree, ids, handle, .. } = &self.generation;
        let mut open = self.taps.open_taps_in_tree(tree, ids);
        let changed = open != *opened;
        if changed && handle.set_taps(&open, TAP_RENEWAL_TIMEOUT).is_err() {
            // A refusal changes nothing.
            open = opened.clone();
        }
        let silent: Vec<usize> =
            self.taps.unexported_nodes(tree, ids, &open).map(|id| ids.nodes[id.0]).collect();
        if silent.is_empty() {
            return;
        }
        silent.into_iter().for_each(|node| self.taps.end_readers(node));
        // The program may have opened the taps after all, without a reply.
        let _ = handle.set_taps(&self.taps.open_taps_in_tree(tree, ids), Duration::ZERO);
    }
}

/// Maximum time to wait, after a change of the path, until another process has opened the taps of
/// the new program. The path is paused during this time.
const TAP_RENEWAL_TIMEOUT: Duration = Duration::from_millis(200);
