//! What joins spaces, and nodes within one: rings, arcs, the bells on which spaces sleep.

use super::{BuildError, Builder, Draft, Local, sources, wanted};
use crate::ring::{Export, Import};
use crate::space::Input;
use crate::space::node::{Node, Part};
use crate::space::select::Wanted;
use buffer::crossing::{Config as RingConfig, crossing};
use buffer::ibuf::Lanes;
use buffer::signal::Bell;
use buffer::signal::moderate::Threshold;
use filter::Counts;
use pipeline::plan::{Plan, PlannedEdge, RingPlan};
use std::sync::Arc;

/// A ring that has been made and not yet been put between two nodes.
///
/// Edges from one space to one node share a ring: they are joined, in order, before they cross.
pub(super) struct Ends {
    edges: Vec<usize>,
    export: Option<Export>,
    import: Option<Import>,
    /// Where the edges meet in the near space, once that is built.
    enter: Option<Local>,
}

/// What a space sleeps on: where it reads descriptors, whoever rings must wake it too.
pub(super) fn bell(plan: &Plan, space: usize) -> sys::Result<Bell> {
    let reads = sources(&plan.graph).any(|(id, _)| plan.placed[id.0].leaves == space);
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
        let Draft { assembly, inputs, .. } = draft;
        let graph = &self.plan.graph;
        let name = |place: Option<usize>| {
            let space = place.and_then(|place| self.plan.spaces.get(self.spaces[place]));
            space.map_or_else(String::new, |space| space.name.clone())
        };
        for (index, edge) in graph.edges.iter().enumerate() {
            let wanted = wanted(&edge.classes);
            let ring = rings.iter_mut().find(|ends| ends.edges.contains(&index));
            // Of a program one half is here, which may be the other one.
            let from = locals[edge.from.0].filter(|_| self.leaves(edge.from) == Some(place));
            let to = locals[edge.to.0].filter(|_| self.enters(edge.to) == Some(place));
            match (from, to, ring) {
                (Some(from), Some(to), _) => assembly.arc(from, to, wanted, edge.back, index),
                (Some(from), None, Some(ends)) => {
                    if let Some(export) = ends.export.take() {
                        let title = format!("ring to {}", name(self.enters(edge.to)));
                        let part = Part::Export(Box::new(export));
                        let out = Node::new(title, edge.from.0, part, Counts::default());
                        ends.enter = Some(assembly.node(out));
                    }
                    let Some(out) = ends.enter else { continue };
                    assembly.arc(from, out, wanted, false, index);
                }
                (None, Some(to), Some(ends)) => {
                    let Some(import) = ends.import.take() else { continue };
                    let title = format!("ring from {}", name(self.leaves(edge.from)));
                    let enter =
                        assembly.node(Node::new(title, edge.to.0, Part::Pass, Counts::default()));
                    assembly.arc(enter, to, Wanted::All, false, index);
                    inputs.push(Input::Ring { node: enter, import, ended: false });
                }
                _ => {}
            }
        }
    }
}
