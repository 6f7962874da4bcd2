//! Taps of filters in the kernel: exits of a program that stay closed until a reader opens them. A
//! machine word in the program's memory opens a tap, so the program need not be replaced. [SL §4.1]
//!
//! Each filter of a request has a tap, and so has its source. At most [`OPEN_TAPS_MAX`] taps of a
//! request are open at once. If a frame takes an open tap, the program sets a *slot*, which is a
//! mark of the current frame; a program has a fixed number of slots for all its requests.

use super::fused_tree::FusedTree;
use super::tree::RequestTree;
use crate::numbering::PlanNumbers;
use ebpf::emit::tap::{EXITS_MAX, SWITCHED_EXITS_MAX};
use ebpf::emit::{Layers, Scope};
use pipeline::graph::NodeId;
use runtime::space::tap::{TapEndReason, TapStopHandle};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of taps of a request that are open at once.
pub(crate) const OPEN_TAPS_MAX: usize = SWITCHED_EXITS_MAX as usize;

/// A tap of a request in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeTap {
    /// The step whose output is tapped, or `None` for the source.
    pub(crate) from: Option<usize>,
    /// The nodes of the graph that the tapped step implements.
    pub(crate) nodes: Vec<NodeId>,
}

/// The indices of a request's open taps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTaps(BTreeSet<usize>);

impl OpenTaps {
    /// Fails with the reason if no further tap can be opened.
    pub(super) fn check_tap_limit(&self) -> Result<(), String> {
        if self.0.len() < OPEN_TAPS_MAX {
            return Ok(());
        }
        Err(format!(
            "at most {OPEN_TAPS_MAX} kernel filters of a path can be read at once: close one of \
             its readers"
        ))
    }

    /// Returns the indices of the request's open taps, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Creates the set of the open taps with these indices. If there are more than
    /// [`OPEN_TAPS_MAX`], the taps with the highest indices are omitted.
    #[must_use]
    pub fn from_indices(indices: impl IntoIterator<Item = usize>) -> Self {
        let all: BTreeSet<usize> = indices.into_iter().collect();
        Self(all.into_iter().take(OPEN_TAPS_MAX).collect())
    }

    fn contains(&self, tap: usize) -> bool {
        self.0.contains(&tap)
    }
}

/// The readers that tap the output of a path's nodes, by node number. Node numbers stay the same
/// across changes to the path. A node with readers may run in a thread now, and a later change may
/// move it into the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTapReaders {
    /// The readers of each node's output, by node number.
    readers: BTreeMap<usize, Vec<TapStopHandle>>,
}

impl NodeTapReaders {
    /// Adds a reader of the output of a node.
    pub(super) fn add_reader(&mut self, node: usize, reader: &TapStopHandle) {
        self.readers.entry(node).or_default().push(reader.clone());
    }

    /// Removes `reader` from the readers of a node's output. Does nothing if it is not one of them.
    pub(super) fn remove_reader(&mut self, node: usize, reader: &TapStopHandle) {
        let Some(readers) = self.readers.get_mut(&node) else { return };
        readers.retain(|known| !known.is_same_tap(reader));
        if readers.is_empty() {
            self.readers.remove(&node);
        }
    }

    /// Returns true if the output of a node has a reader.
    pub(super) fn has_reader(&self, node: usize) -> bool {
        self.readers.contains_key(&node)
    }

    /// Returns the taps to open in the program of the request `tree`: those of the nodes that have
    /// readers, but at most [`OPEN_TAPS_MAX`] ([`Self::unexported_nodes`]). `ids` contains the
    /// numbers of the nodes.
    pub(super) fn open_taps_in_tree(&self, tree: &RequestTree, ids: &PlanNumbers) -> OpenTaps {
        OpenTaps::from_indices(self.readers.keys().filter_map(|number| {
            let place = ids.nodes.iter().position(|known| known == number)?;
            tree.tap_index(NodeId(place))
        }))
    }

    /// Returns the nodes of a tree whose output has a reader but no open tap. Exactly the taps in
    /// `open` are open.
    pub(super) fn unexported_nodes(
        &self,
        tree: &RequestTree,
        ids: &PlanNumbers,
        open: &OpenTaps,
    ) -> impl Iterator<Item = NodeId> {
        let is_open = |id| tree.tap_index(id).is_some_and(|tap| open.contains(tap));
        let all = tree.steps.iter().flat_map(|step| step.nodes.iter().copied());
        all.filter(move |id| self.has_reader(ids.nodes[id.0]) && !is_open(*id))
    }

    /// Ends the taps of a node's readers, and removes the readers.
    pub(super) fn end_readers(&mut self, node: usize) {
        let readers = self.readers.remove(&node).unwrap_or_default();
        readers.iter().for_each(|reader| reader.end(TapEndReason::NotExported));
    }
}

impl RequestTree {
    /// Adds a tap for the source, whose node is `source`, and for each step, unless the request
    /// would then have too many exits.
    pub(super) fn add_taps(&mut self, source: Option<NodeId>) {
        let count = self.steps.len() + 1;
        if self.exits.len() + count > EXITS_MAX as usize {
            return;
        }
        let of_source = TreeTap { from: None, nodes: source.into_iter().collect() };
        let steps = self.steps.iter().enumerate();
        let of_steps =
            steps.map(|(step, it)| TreeTap { from: Some(step), nodes: it.nodes.clone() });
        self.taps = [of_source].into_iter().chain(of_steps).collect();
    }

    /// Returns the index of the tap of a node, or `None` if the node has no tap.
    pub(crate) fn tap_index(&self, node: NodeId) -> Option<usize> {
        self.taps.iter().position(|tap| tap.nodes.contains(&node))
    }
}

/// The part of the assembly that emits the code of taps into the program of a fused tree.
pub(super) struct TapEmitter<'t> {
    fused: &'t FusedTree,
}

impl<'t> TapEmitter<'t> {
    pub(super) const fn new(fused: &'t FusedTree) -> Self {
        Self { fused }
    }

    /// Emits the code of the taps after a step, or after the source if `at` is `None`. `on` is the
    /// parse state of a frame that leaves the step. While none of these taps is open, the code
    /// executes one load and one branch, regardless of the number of requests.
    pub(super) fn emit<'s>(&self, s: &mut Scope<'s, '_>, at: Option<usize>, on: Layers<'s>) {
        if self.fused.taps_of_step(at).next().is_some() {
            let place = switch_word_index(at);
            s.arm(|s, closed| {
                s.leave_unless_exit_open(place, closed);
                s.record_frame_for_open_exits(place, on);
            });
        }
    }
}

/// Returns the index of the machine word that opens the taps of a step, or of the source if `at` is
/// `None`.
pub(super) fn switch_word_index(at: Option<usize>) -> u32 {
    at.map_or(0, |step| u32::try_from(step).unwrap_or(u32::MAX - 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tree::TreeStep;
    use super::*;
    use crate::numbering::SessionNumbering;
    use pipeline::ClassSet;
    use pipeline::graph::Graph;
    use runtime::space::tap::{OverrunPolicy, Tap};
    use runtime::space::tap_form::TapForm;
    use std::time::Duration;

    #[test]
    fn open_taps_never_exceed_the_maximum() {
        OpenTaps::from_indices(0..OPEN_TAPS_MAX - 1).check_tap_limit().unwrap();
        let open = OpenTaps::from_indices(0..9);
        assert_eq!(open.iter().count(), OPEN_TAPS_MAX);
        assert!(open.check_tap_limit().unwrap_err().contains("at most 4 kernel filters"));
    }

    /// Creates a tap, and the handle that ends it.
    fn reader() -> (Tap, TapStopHandle) {
        let (_, pipe) = sys::descriptor::pipe().unwrap();
        let forms = (vec![TapForm::Capture], None);
        let (tap, feed) =
            Tap::new((pipe, None), OverrunPolicy::Skip, Duration::from_secs(60), forms).unwrap();
        // Dropping the feed would end the tap, as the end of a path does.
        std::mem::forget(feed);
        let end_handle = tap.stop_handle();
        (tap, end_handle)
    }

    #[test]
    fn tap_stays_open_until_its_last_reader_leaves() {
        let mut taps = NodeTapReaders::default();
        let readers = [reader(), reader(), reader()];
        for (node, (_, reader)) in [5, 5, 6].into_iter().zip(&readers) {
            taps.add_reader(node, reader);
        }
        taps.remove_reader(5, &readers[0].1);
        taps.remove_reader(5, &readers[0].1);
        assert_eq!([5, 6].map(|node| taps.has_reader(node)), [true, true]);
        taps.remove_reader(5, &readers[1].1);
        assert_eq!([5, 6].map(|node| taps.has_reader(node)), [false, true]);
    }

    #[test]
    fn readers_beyond_the_maximum_of_open_taps_are_ended() {
        let step = |node: usize| TreeStep {
            nodes: vec![NodeId(node)],
            from: node.checked_sub(2),
            classes: ClassSet::all(),
        };
        let mut tree = RequestTree { steps: (1..7).map(step).collect(), ..RequestTree::default() };
        let numbering = SessionNumbering::for_first_plan(&Graph::default(), &[], false);
        let nodes = (10..17).collect();
        let ids = PlanNumbers {
            nodes,
            edges: Vec::new(),
            first_replica_ring: 0,
            numbering,
            next_free: (17, 0),
        };
        let mut taps = NodeTapReaders::default();
        let readers: Vec<(Tap, TapStopHandle)> = (0..6).map(|_| reader()).collect();
        for (node, (_, reader)) in (10..).zip(&readers) {
            taps.add_reader(node, reader);
        }
        let none = taps.open_taps_in_tree(&tree, &ids);
        assert_eq!(taps.unexported_nodes(&tree, &ids, &none).count(), 5, "a tree without taps");
        tree.add_taps(Some(NodeId(0)));
        let open = taps.open_taps_in_tree(&tree, &ids);
        assert_eq!(open, OpenTaps::from_indices(0..OPEN_TAPS_MAX));
        let silent: Vec<NodeId> = taps.unexported_nodes(&tree, &ids, &open).collect();
        assert_eq!(silent, [NodeId(4), NodeId(5)]);
        taps.end_readers(15);
        let ends: Vec<_> = readers.iter().map(|(tap, _)| tap.stats().end_reason).collect();
        assert_eq!(ends[5], Some(TapEndReason::NotExported));
        assert_eq!(ends[..5], [None; 5]);
    }
}
