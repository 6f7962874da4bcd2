//! Connections between spaces, and between nodes within one: rings, arcs, and the doorbells on
//! which spaces sleep.

use super::builder::{Builder, Draft, Local};
use super::nodes::wanted;
use crate::error::BuildError;
use crate::path::running::RunningRing;
use crate::record::Tape;
use buffer::crossing::{Config as RingConfig, crossing};
use buffer::ibuf::Lanes;
use buffer::signal::moderate::Threshold;
use filter::Counts;
use pipeline::plan::{PlannedEdge, RingPlan};
use runtime::ledger::{NodeName, RingEnd};
use runtime::ring::{Export, Import};
use runtime::space::Input;
use runtime::space::graft::Key;
use runtime::space::node::{Node, Part};
use runtime::space::select::Wanted;
use std::sync::Arc;
use sys::steps::Resource;

/// A ring that has been made and not yet been put between two nodes.
///
/// Edges from one space to one node share a ring: they are joined, in order, before they cross.
pub(super) struct Ends {
    pub(super) edges: Vec<usize>,
    export: Option<Export>,
    import: Option<Import>,
    /// The number of a ring that is there already, and whether its far side has its place.
    kept: Option<(usize, bool)>,
    /// Node in the near space at which the edges are joined, once built.
    enter: Option<Local>,
}

impl Ends {
    /// The ends of a ring that is there already.
    fn kept(edge: usize, number: usize) -> Self {
        let kept = Some((number, false));
        Self { edges: vec![edge], export: None, import: None, kept, enter: None }
    }
}

/// Entries of a ring, at least, where a record is played.
const ENTRIES_PLAYED: usize = 1 << 16;

impl Builder<'_> {
    /// Resource the rings between the spaces of this part.
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
                None => {
                    let known = self.again.and_then(|again| {
                        let wanted = self.wanted_ring(index, near, far, ring.stride);
                        again.part.rings.iter().find(|known| known.is_same(&wanted))
                    });
                    rings.push(match known {
                        Some(known) => Ends::kept(index, known.number),
                        None => self.ring(index, ring, near, far)?,
                    });
                }
            }
        }
        Ok(rings)
    }

    /// Returns the description of the ring that this edge needs, in terms that outlive the plan.
    fn wanted_ring(&self, edge: usize, near: usize, far: usize, stride: usize) -> RunningRing {
        RunningRing {
            number: self.ids.edges[edge],
            near: self.name(near),
            far: self.name(far),
            to: self.number(self.plan.graph.edges[edge].to),
            stride,
            marks: matches!(self.lanes(edge, stride), Lanes::Marks),
        }
    }

    /// The ring between these ends, as what runs remembers it.
    pub(super) fn running_ring(&self, ends: &Ends) -> RunningRing {
        let first = ends.edges[0];
        let edge = &self.plan.graph.edges[first];
        let (near, far) = (self.leaves(edge.from), self.enters(edge.to));
        let stride = match &self.plan.edges[first] {
            PlannedEdge::Ring(ring) => ring.stride,
            _ => 0,
        };
        let ring = self.wanted_ring(first, near.unwrap_or(0), far.unwrap_or(0), stride);
        RunningRing { number: ends.kept.map_or(ring.number, |(number, _)| number), ..ring }
    }

    /// Returns the metadata columns that a ring for this edge carries.
    fn lanes(&self, edge: usize, stride: usize) -> Lanes {
        match stride {
            _ if self.is_in_kernel(self.plan.graph.edges[edge].from) => Lanes::Marks,
            16 => Lanes::Pointer,
            32 => Lanes::Context,
            _ => Lanes::Marks,
        }
    }

    fn ring(
        &self,
        edge: usize,
        ring: &RingPlan,
        near: usize,
        far: usize,
    ) -> Result<Ends, BuildError> {
        let lanes = self.lanes(edge, ring.stride);
        // A space that plays takes what its record says, however long that lets another ring fill.
        let entries = match self.extras.tape {
            Tape::Play(_) => ring.entries.max(ENTRIES_PLAYED),
            _ => ring.entries,
        };
        let config = RingConfig { entries, lanes, ..RingConfig::default() };
        let (near, far) = (Arc::clone(&self.bells[near]), Arc::clone(&self.bells[far]));
        self.extras.steps.take(Resource::Memory, "a ring between spaces")?;
        let made = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]);
        let (writer, mut readers) =
            made.map_err(|fault| BuildError::Unexpected(fault.to_string()))?;
        let number = self.ids.edges[edge];
        let import = readers.pop().map(|reader| Import::new(number, reader));
        let threshold = Threshold { blocks: ring.signal_blocks as u64, ns: ring.signal_ns };
        let export = Some(Export::new(number, writer, (near, far), threshold));
        Ok(Ends { edges: vec![edge], export, import, kept: None, enter: None })
    }

    /// Joins the nodes of a space, and those at its border to the rings.
    pub(super) fn arcs(
        &self,
        place: usize,
        locals: &[Option<Local>],
        draft: &mut Draft,
        rings: &mut [Ends],
    ) -> Result<(), BuildError> {
        let graph = &self.plan.graph;
        for (index, edge) in graph.edges.iter().enumerate() {
            if self.is_within_copies(index) {
                continue;
            }
            let wanted = wanted(&edge.classes);
            let number = self.ids.edges[index];
            let ring = rings.iter_mut().find(|ends| ends.edges.contains(&index));
            // Of a program one half is here, which may be the other one.
            let from = locals[edge.from.0].filter(|_| self.leaves(edge.from) == Some(place));
            let to = locals[edge.to.0].filter(|_| self.enters(edge.to) == Some(place));
            match (from, to, ring) {
                // These go along with what a program hands over.
                (Some(_), ..) if self.is_source_in_kernel(edge.from) => {}
                (Some(from), Some(to), _) => {
                    draft.assembly.arc(from, to, wanted, edge.back, number);
                }
                (Some(from), None, Some(ends)) => {
                    let Some(out) = self.way_out(draft, ends, index) else { continue };
                    draft.assembly.arc(from, out, wanted, false, number);
                }
                (None, Some(to), Some(ends)) => {
                    let kept = ends.kept.as_mut().filter(|(_, placed)| !placed);
                    let kept = kept.map(|(number, placed)| {
                        *placed = true;
                        *number
                    });
                    let import = ends.import.take();
                    if kept.is_none() && import.is_none() {
                        continue;
                    }
                    let from = self.leaves(edge.from).map(|place| self.name(place));
                    let title = NodeName::ring(RingEnd::From, &from.unwrap_or_default());
                    let to_number = self.number(edge.to);
                    let enter = Node::new(title, to_number, Part::Pass, Counts::default());
                    let enter = draft.assembly.node(enter);
                    draft.assembly.arc(enter, to, Wanted::All, false, number);
                    draft.kept.extend(kept.map(|number| (enter, Key::Import(number))));
                    let ring = |import| Input::Ring { node: enter, import, ended: false };
                    draft.inputs.extend(import.map(ring));
                }
                _ => {}
            }
        }
        self.arcs_out_of_kernel(place, locals, draft, rings)
    }

    /// The node at which an edge of the graph leaves this space over a ring.
    pub(super) fn way_out(&self, draft: &mut Draft, ends: &mut Ends, edge: usize) -> Option<Local> {
        let export = ends.export.take();
        let kept = ends.kept.filter(|_| ends.enter.is_none()).map(|(number, _)| number);
        if export.is_some() || kept.is_some() {
            let edge = &self.plan.graph.edges[edge];
            let to = self.enters(edge.to).map(|place| self.name(place));
            let title = NodeName::ring(RingEnd::To, &to.unwrap_or_default());
            let part = export.map_or(Part::Pass, |export| Part::Export(Box::new(export)));
            let out = Node::new(title, self.number(edge.from), part, Counts::default());
            let out = draft.assembly.node(out);
            draft.kept.extend(kept.map(|number| (out, Key::Export(number))));
            ends.enter = Some(out);
        }
        ends.enter
    }
}
