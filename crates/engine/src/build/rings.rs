//! Connections between spaces, and between nodes within a space: rings, arcs, and the doorbells on
//! which spaces sleep.

use super::builder::{Builder, Local, SpaceDraft};
use super::nodes::to_selected_classes;
use crate::error::BuildError;
use crate::path::running_path::RunningRing;
use crate::record::RecordMode;
use buffer::crossing::{RingConfig, crossing};
use buffer::ibuf::EntryColumns;
use buffer::scale::ScalingParameters;
use buffer::signal::wakeup_moderation::WakeupThreshold;
use filter::Counts;
use pipeline::plan::{PlannedEdge, RingPlan};
use runtime::ledger::{NodeName, RingEnd};
use runtime::ring::{RingExport, RingImport};
use runtime::space::Input;
use runtime::space::class_selection::SelectedClasses;
use runtime::space::node::{Node, Operator};
use runtime::space::node_key::NodeKey;
use std::sync::Arc;
use sys::rollback::StepResource;

/// A ring between two spaces of a path that is being built, with the nodes at its ends.
///
/// All edges from one space to one node share a ring, which keeps the order of their blocks.
pub(super) struct PendingRing {
    pub(super) edges: Vec<usize>,
    ends: RingEnds,
    /// For a running ring that the new plan keeps, its number, and a flag that is true once the
    /// build has placed its reading end. `None` for a new ring.
    kept: Option<(usize, bool)>,
    /// The node of the writing space through which all edges lead into the ring. `None` until this
    /// node is built.
    entry_node: Option<Local>,
}

/// The two ends of a ring that is being built. An end becomes `None` once a node owns it.
#[derive(Default)]
pub(super) struct RingEnds {
    pub(super) export: Option<RingExport>,
    pub(super) import: Option<RingImport>,
}

impl PendingRing {
    /// Returns the pending ring for a ring that already runs and stays. Both of its ends are
    /// `None`, because nodes own them already.
    fn from_running_ring(edge: usize, number: usize) -> Self {
        let kept = Some((number, false));
        Self { edges: vec![edge], ends: RingEnds::default(), kept, entry_node: None }
    }
}

/// Minimum number of entries of each ring in a path that replays a recording.
const REPLAY_ENTRIES_MIN: usize = 1 << 16;

impl SpaceDraft {
    /// Adds the node at one end of a ring to a space. `export` is the writing end, which the node
    /// then owns. It is `None` at the reading end, where the node only passes blocks on. `name` is
    /// the name of the space at the other end, and `planned` the number of the node.
    pub(super) fn add_ring_node(
        &mut self,
        (end, name): (RingEnd, String),
        planned: usize,
        export: Option<RingExport>,
    ) -> Local {
        let part = export.map_or(Operator::Pass, |export| Operator::Export(Box::new(export)));
        let title = NodeName::ring(end, &name);
        self.assembly.add_node(Node::new(title, planned, part, Counts::default()))
    }
}

impl Builder<'_> {
    /// Builds the rings between the spaces of this component. Keeps rings that already run.
    pub(super) fn build_rings(&self) -> Result<Vec<PendingRing>, BuildError> {
        let edges = &self.plan.graph.edges;
        let mut rings: Vec<PendingRing> = Vec::new();
        for (index, planned) in self.plan.edges.iter().enumerate() {
            let PlannedEdge::Ring(ring) = planned else { continue };
            let edge = &edges[index];
            let (near, far) = (self.exit_space(edge.from), self.entry_space(edge.to));
            let (Some(near), Some(far)) = (near, far) else { continue };
            // No ring is needed if the destination runs in the thread where the blocks of a kernel
            // program enter user space.
            if near == far {
                continue;
            }
            let shared = rings.iter_mut().find(|ends| {
                let first = &edges[ends.edges[0]];
                first.to == edge.to && self.exit_space(first.from) == Some(near)
            });
            match shared {
                Some(ends) => ends.edges.push(index),
                None => {
                    let known = self.swap.and_then(|again| {
                        let wanted = self.required_ring(index, near, far, ring.stride);
                        again.part.rings.iter().find(|known| known.is_same_except_number(&wanted))
                    });
                    rings.push(match known {
                        Some(known) => PendingRing::from_running_ring(index, known.number),
                        None => self.create_pending_ring(index, ring, (near, far))?,
                    });
                }
            }
        }
        Ok(rings)
    }

    /// Describes the ring that the edge with index `edge` needs. The ring leads from space `near`
    /// to space `far`, and its entries have `stride` bytes. Nodes and edges are identified by
    /// numbers that stay the same in every plan.
    fn required_ring(&self, edge: usize, near: usize, far: usize, stride: usize) -> RunningRing {
        RunningRing {
            number: self.ids.edges[edge],
            from_space: self.space_name(near),
            to_space: self.space_name(far),
            to: self.node_number(self.plan.graph.edges[edge].to),
            stride,
            marks: matches!(self.metadata_columns(edge, stride), EntryColumns::Marks),
        }
    }

    /// Describes a pending ring as an entry of the path's list of running rings.
    pub(super) fn running_ring(&self, ends: &PendingRing) -> RunningRing {
        let first = ends.edges[0];
        let edge = &self.plan.graph.edges[first];
        let (near, far) = (self.exit_space(edge.from), self.entry_space(edge.to));
        let stride = match &self.plan.edges[first] {
            PlannedEdge::Ring(ring) => ring.stride,
            _ => 0,
        };
        let ring = self.required_ring(first, near.unwrap_or(0), far.unwrap_or(0), stride);
        RunningRing { number: ends.kept.map_or(ring.number, |(number, _)| number), ..ring }
    }

    /// Returns the metadata columns that a ring for the edge with index `edge` carries. `stride` is
    /// the size of the ring's entries in bytes.
    fn metadata_columns(&self, edge: usize, stride: usize) -> EntryColumns {
        match stride {
            _ if self.is_in_kernel(self.plan.graph.edges[edge].from) => EntryColumns::Marks,
            16 => EntryColumns::Pointer,
            32 => EntryColumns::Metadata,
            _ => EntryColumns::Marks,
        }
    }

    fn create_pending_ring(
        &self,
        edge: usize,
        ring: &RingPlan,
        (near, far): (usize, usize),
    ) -> Result<PendingRing, BuildError> {
        let lanes = self.metadata_columns(edge, ring.stride);
        // A replaying space reads its inputs in the recorded order. Its other rings fill up in the
        // meantime, so they must be large.
        let (entries, entries_min) = match self.extras.record_mode {
            RecordMode::Replay(_) => (ring.entries.max(REPLAY_ENTRIES_MIN), usize::MAX),
            _ => (ring.entries, ring.entries_min),
        };
        let ring = RingPlan { entries, entries_min, ..ring.clone() };
        let ends = self.create_ring(self.ids.edges[edge], &ring, lanes, (near, far))?;
        Ok(PendingRing { edges: vec![edge], ends, kept: None, entry_node: None })
    }

    /// Creates ring number `number` from space `near` to space `far`.
    pub(super) fn create_ring(
        &self,
        number: usize,
        ring: &RingPlan,
        lanes: EntryColumns,
        (near, far): (usize, usize),
    ) -> Result<RingEnds, BuildError> {
        let scales = ring.entries_min < ring.entries;
        // A ring starts with a size between its limits. A burst doubles the size, and a lap in
        // which the reader keeps up halves it.
        let entries = if scales { ring.entries_min.max(ring.entries / 4) } else { ring.entries };
        let config = RingConfig { entries, columns: lanes, ..RingConfig::default() };
        let (near, far) = (Arc::clone(&self.doorbells[near]), Arc::clone(&self.doorbells[far]));
        self.extras.steps.announce_creation(StepResource::Memory, "a ring between spaces")?;
        let made = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]);
        let (writer, mut readers) =
            made.map_err(|fault| BuildError::Unexpected(fault.to_string()))?;
        let import = readers.pop().map(|reader| RingImport::new(number, reader));
        let threshold = WakeupThreshold { blocks: ring.signal_blocks as u64, ns: ring.signal_ns };
        let mut export = RingExport::new(number, writer, (near, far), threshold);
        let bytes = |entries: usize| entries * lanes.stride();
        let scaling = scales
            .then(|| ScalingParameters::for_pointers(bytes(ring.entries_min), bytes(ring.entries)));
        export.enable_adaptation(ring.signal_blocks_max as u64, scaling);
        Ok(RingEnds { export: Some(export), import })
    }

    /// Connects the nodes of a space to each other, and to rings if their neighbors are in other
    /// spaces.
    pub(super) fn connect_nodes(
        &self,
        place: usize,
        locals: &[Option<Local>],
        draft: &mut SpaceDraft,
        rings: &mut [PendingRing],
    ) -> Result<(), BuildError> {
        let graph = &self.plan.graph;
        for (index, edge) in graph.edges.iter().enumerate() {
            if self.is_within_replicas(index) {
                continue;
            }
            let wanted = to_selected_classes(&self.plan.classes_on_edge(edge));
            let number = self.ids.edges[index];
            let ring = rings.iter_mut().find(|ends| ends.edges.contains(&index));
            // A program has one half in this space, and the neighbor may be the other half.
            let from = locals[edge.from.0].filter(|_| self.exit_space(edge.from) == Some(place));
            let to = locals[edge.to.0].filter(|_| self.entry_space(edge.to) == Some(place));
            match (from, to, ring) {
                // [`Builder::add_arcs_out_of_kernel`] adds these edges.
                (Some(_), ..) if self.is_source_in_kernel(edge.from) => {}
                (Some(from), Some(to), _) => {
                    draft.assembly.add_arc(from, to, wanted, edge.back, number);
                }
                (Some(from), None, Some(ends)) => {
                    let Some(out) = self.find_or_add_ring_exit(draft, ends, index) else {
                        continue;
                    };
                    draft.assembly.add_arc(from, out, wanted, false, number);
                }
                (None, Some(to), Some(ends)) => {
                    let kept = ends.kept.as_mut().filter(|(_, placed)| !placed);
                    let kept = kept.map(|(number, placed)| {
                        *placed = true;
                        *number
                    });
                    let import = ends.ends.import.take();
                    if kept.is_none() && import.is_none() {
                        continue;
                    }
                    let from = self.exit_space(edge.from).map(|place| self.space_name(place));
                    let title = (RingEnd::Import, from.unwrap_or_default());
                    let enter = draft.add_ring_node(title, self.node_number(edge.to), None);
                    draft.assembly.add_arc(enter, to, SelectedClasses::All, false, number);
                    draft.kept.extend(kept.map(|number| (enter, NodeKey::Import(number))));
                    let ring = |import| Input::Ring { node: enter, import, ended: false };
                    draft.inputs.extend(import.map(ring));
                }
                _ => {}
            }
        }
        self.add_arcs_out_of_kernel(place, locals, draft, rings)
    }

    /// Returns the node through which the edge with index `edge` leaves this space over a ring. The
    /// first call for a ring adds the node. Returns `None` if the ring has neither a node nor a
    /// writing end to place.
    pub(super) fn find_or_add_ring_exit(
        &self,
        draft: &mut SpaceDraft,
        ends: &mut PendingRing,
        edge: usize,
    ) -> Option<Local> {
        let export = ends.ends.export.take();
        let kept = ends.kept.filter(|_| ends.entry_node.is_none()).map(|(number, _)| number);
        if export.is_some() || kept.is_some() {
            let edge = &self.plan.graph.edges[edge];
            let to = self.entry_space(edge.to).map(|place| self.space_name(place));
            let title = (RingEnd::Export, to.unwrap_or_default());
            let out = draft.add_ring_node(title, self.node_number(edge.from), export);
            draft.kept.extend(kept.map(|number| (out, NodeKey::Export(number))));
            ends.entry_node = Some(out);
        }
        ends.entry_node
    }
}
