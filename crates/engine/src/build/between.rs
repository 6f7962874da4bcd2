//! What joins spaces, and nodes within one: rings, arcs, the bells on which spaces sleep.

use super::{BuildError, Builder, Draft, Local, inside, sources, wanted};
use crate::ring::{Export, Import};
use crate::space::Input;
use crate::space::node::{Node, Part};
use crate::space::select::Wanted;
use buffer::crossing::{Config as RingConfig, crossing};
use buffer::ibuf::Lanes;
use buffer::signal::Bell;
use buffer::signal::moderate::Threshold;
use filter::Counts;
use pipeline::graph::NodeId;
use pipeline::plan::{Plan, PlannedEdge, RingPlan};
use std::sync::Arc;

/// A ring that has been made and not yet been put between two nodes.
///
/// Edges from one space to one node share a ring: they are joined, in order, before they cross.
pub(super) struct Ends {
    pub(super) edges: Vec<usize>,
    export: Option<Export>,
    import: Option<Import>,
    /// Where the edges meet in the near space, once that is built.
    enter: Option<Local>,
}

/// What a space sleeps on: where it reads descriptors, whoever rings must wake it too.
pub(super) fn bell(plan: &Plan, space: usize) -> sys::Result<Bell> {
    let leaves = |id: NodeId| inside::home(plan, plan.placed[id.0].leaves);
    let reads = sources(&plan.graph).any(|(id, _)| leaves(id) == space);
    if reads { Bell::with_alarm() } else { Ok(Bell::new()) }
}

impl Builder<'_> {
    /// Makes the rings between the spaces of this part.
    pub(super) fn rings(&self) -> Result<Vec<Ends>, BuildError> {
        let edges = &self.plan.graph.edges;
        let mut rings: Vec<Ends> = Vec::new();
        for (index, planned) in self.plan.edges.iter().enumerate() {
            let PlannedEdge::Ring(ring) = planned else { continue };
            let edge = &edges[index];
            let (near, far) = (self.leaves(edge.from), self.enters(edge.to));
            let (Some(near), Some(far)) = (near, far) else { continue };
            // What leaves the kernel comes up in a thread, and may go on in the same.
            if near == far {
                continue;
            }
            let shared = rings.iter_mut().find(|ends| {
                let first = &edges[ends.edges[0]];
                first.to == edge.to && self.leaves(first.from) == Some(near)
            });
            match shared {
                Some(ends) => ends.edges.push(index),
                None => rings.push(self.ring(index, ring, near, far)?),
            }
        }
        Ok(rings)
    }

    fn ring(
        &self,
        edge: usize,
        ring: &RingPlan,
        near: usize,
        far: usize,
    ) -> Result<Ends, BuildError> {
        let lanes = match ring.stride {
            _ if self.is_in_kernel(self.plan.graph.edges[edge].from) => Lanes::Marks,
            16 => Lanes::Pointer,
            32 => Lanes::Context,
            _ => Lanes::Marks,
        };
        let config = RingConfig { entries: ring.entries, lanes, ..RingConfig::default() };
        let (near, far) = (Arc::clone(&self.bells[near]), Arc::clone(&self.bells[far]));
        let made = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]);
        let (writer, mut readers) =
            made.map_err(|fault| BuildError::Unexpected(fault.to_string()))?;
        let import = readers.pop().map(|reader| Import::new(edge, reader));
        let threshold = Threshold { blocks: ring.signal_blocks as u64, ns: ring.signal_ns };
        let export = Some(Export::new(edge, writer, (near, far), threshold));
        Ok(Ends { edges: vec![edge], export, import, enter: None })
    }

    /// Joins the nodes of a space, and those at its border to the rings.
    pub(super) fn arcs(
        &self,
        place: usize,
        locals: &[Option<Local>],
        draft: &mut Draft,
        rings: &mut [Ends],
    ) {
        let graph = &self.plan.graph;
        for (index, edge) in graph.edges.iter().enumerate() {
            let wanted = wanted(&edge.classes);
            let ring = rings.iter_mut().find(|ends| ends.edges.contains(&index));
            // Of a program one half is here, which may be the other one.
            let from = locals[edge.from.0].filter(|_| self.leaves(edge.from) == Some(place));
            let to = locals[edge.to.0].filter(|_| self.enters(edge.to) == Some(place));
            match (from, to, ring) {
                // These go along with what a program hands over.
                (Some(_), ..) if self.is_source_in_kernel(edge.from) => {}
                (Some(from), Some(to), _) => draft.assembly.arc(from, to, wanted, edge.back, index),
                (Some(from), None, Some(ends)) => {
                    let Some(out) = self.way_out(draft, ends, index) else { continue };
                    draft.assembly.arc(from, out, wanted, false, index);
                }
                (None, Some(to), Some(ends)) => {
                    let Some(import) = ends.import.take() else { continue };
                    let from = self.leaves(edge.from).map(|place| self.name(place));
                    let title = format!("ring from {}", from.unwrap_or_default());
                    let enter = Node::new(title, edge.to.0, Part::Pass, Counts::default());
                    let enter = draft.assembly.node(enter);
                    draft.assembly.arc(enter, to, Wanted::All, false, index);
                    draft.inputs.push(Input::Ring { node: enter, import, ended: false });
                }
                _ => {}
            }
        }
        self.arcs_out_of_kernel(place, locals, draft, rings);
    }

    /// The node at which an edge of the graph leaves this space over a ring.
    pub(super) fn way_out(&self, draft: &mut Draft, ends: &mut Ends, edge: usize) -> Option<Local> {
        if let Some(export) = ends.export.take() {
            let edge = &self.plan.graph.edges[edge];
            let to = self.enters(edge.to).map(|place| self.name(place));
            let title = format!("ring to {}", to.unwrap_or_default());
            let part = Part::Export(Box::new(export));
            let out = Node::new(title, edge.from.0, part, Counts::default());
            ends.enter = Some(draft.assembly.node(out));
        }
        ends.enter
    }
}
