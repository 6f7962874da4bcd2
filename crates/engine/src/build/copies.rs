//! Copies of a chain that share its work: in the first space what shares out, in each a copy, in
//! one the join.
//!
//! In: a [`Copied`] of the plan. Out: nodes in the drafts of its spaces. To the rest of the build
//! the chain is one node: what leads to its first filter leads to what shares out, what leaves its
//! last one leaves the join.

use super::builder::{Builder, Draft, Local};
use super::nodes::wanted;
use crate::error::BuildError;
use buffer::crossing::{Config as RingConfig, crossing};
use buffer::ibuf::Lanes;
use buffer::signal::moderate::Threshold;
use filter::Counts;
use pipeline::ClassSet;
use pipeline::graph::NodeId;
use pipeline::plan::Copied;
use runtime::copies::Board;
use runtime::copies::deal::Deal;
use runtime::ledger::{EdgeKind, NodeName, RingEnd};
use runtime::ring::{Export, Import};
use runtime::space::Input;
use runtime::space::copies::{Gather, LATE, Own, Way};
use runtime::space::node::{Node, Part};
use runtime::space::select::Wanted;
use std::sync::Arc;
use sys::steps::Resource;

/// Connections between the replicas of a chain, until they have been placed.
pub(super) struct Shared {
    board: Arc<Board>,
    /// Indices, among the spaces of the part, of the replicas and of the join.
    places: Vec<usize>,
    join: usize,
    /// Rings to and from each replica; empty where it shares the space.
    to: Vec<Ring>,
    from: Vec<Ring>,
}

/// The two ends of a ring.
#[derive(Default)]
struct Ring {
    export: Option<Export>,
    import: Option<Import>,
}

impl Shared {
    /// Iterates over the pairs of spaces between which blocks cross, to the replicas and from them.
    pub(super) fn crossings(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.places.first().copied().unwrap_or(self.join);
        self.places.iter().flat_map(move |place| [(first, *place), (*place, self.join)])
    }

    /// The copy in a space.
    pub(super) fn copy_in(&self, place: usize) -> Option<usize> {
        self.places.iter().position(|there| *there == place)
    }
}

impl Builder<'_> {
    /// Returns the chains of this part that have replicas, with the rings between their spaces.
    pub(super) fn shared(&self) -> Result<Vec<Shared>, BuildError> {
        let mut number = self.ids.copies;
        self.copied().map(|copied| self.ends(copied, &mut number)).collect()
    }

    fn copied(&self) -> impl Iterator<Item = &Copied> {
        self.plan.copied.iter().filter(|copied| self.spaces.contains(&copied.join))
    }

    fn place_of(&self, space: usize) -> Result<usize, BuildError> {
        let found = self.spaces.iter().position(|known| *known == space);
        found.ok_or_else(|| BuildError::Unexpected("a copy in another part".to_owned()))
    }

    fn ends(&self, copied: &Copied, number: &mut usize) -> Result<Shared, BuildError> {
        let places = copied.spaces.iter().map(|space| self.place_of(*space));
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        let join = self.place_of(copied.join)?;
        let board = Arc::new(Board::new(places.len(), Arc::clone(&self.bells[join])));
        let first = places.first().copied().unwrap_or(join);
        let mut ring = |near: usize, far: usize, kind: EdgeKind| {
            if near == far {
                return Ok(Ring::default());
            }
            *number += 1;
            self.ring_of_copy(copied, (near, far), kind, *number - 1)
        };
        let (mut to, mut from) = (Vec::new(), Vec::new());
        for place in &places {
            to.push(ring(first, *place, EdgeKind::Deal)?);
            from.push(ring(*place, join, EdgeKind::Join)?);
        }
        Ok(Shared { board, places, join, to, from })
    }

    fn ring_of_copy(
        &self,
        copied: &Copied,
        (near, far): (usize, usize),
        kind: EdgeKind,
        number: usize,
    ) -> Result<Ring, BuildError> {
        let entries = copied.ring.entries;
        let config = RingConfig { entries, lanes: Lanes::Marks, ..RingConfig::default() };
        let (near, far) = (Arc::clone(&self.bells[near]), Arc::clone(&self.bells[far]));
        self.extras.steps.take(Resource::Memory, "a ring of a copy")?;
        let made = crossing(&config, Arc::clone(&near), &[Arc::clone(&far)]);
        let (writer, mut readers) =
            made.map_err(|fault| BuildError::Unexpected(fault.to_string()))?;
        let (blocks, ns) = (copied.ring.signal_blocks as u64, copied.ring.signal_ns);
        let mut export = Export::new(number, writer, (near, far), Threshold { blocks, ns });
        export.kind = kind;
        let import = readers.pop().map(|reader| Import::new(number, reader));
        Ok(Ring { export: Some(export), import })
    }

    /// Returns true if a node has replicas: [`Builder::copies`] puts them where they belong.
    pub(super) fn is_copied(&self, id: NodeId) -> bool {
        self.plan.copies_of(id).is_some()
    }

    /// Returns true if an edge joins two filters of a chain that has replicas.
    pub(super) fn is_within_copies(&self, edge: usize) -> bool {
        let edge = &self.plan.graph.edges[edge];
        let chain = self.plan.copies_of(edge.from);
        chain.is_some_and(|copied| copied.nodes.contains(&edge.to))
    }

    /// Adds the operators of replicated chains that belong to a space.
    pub(super) fn copies(
        &self,
        place: usize,
        shared: &mut [Shared],
        locals: &mut [Option<Local>],
        draft: &mut Draft,
    ) -> Result<(), BuildError> {
        for (copied, shared) in self.copied().zip(shared) {
            let (Some(first), Some(last)) = (copied.nodes.first(), copied.nodes.last()) else {
                continue;
            };
            match shared.copy_in(place) {
                Some(0) => locals[first.0] = Some(self.first_copy(copied, shared, draft)?),
                Some(copy) if shared.join != place => {
                    self.middle_copy(copied, shared, copy, draft)?;
                }
                _ => {}
            }
            if shared.join == place {
                locals[last.0] = Some(self.join(copied, shared, draft)?);
            }
        }
        Ok(())
    }

    /// The processor of each space, by its place: each copy keeps to one of its own, as far as
    /// there are so many. They are as many as are to be busy, and none is to wait behind another.
    /// [Par §IV-A]
    pub(super) fn processors(&self, shared: &[Shared]) -> Vec<Option<usize>> {
        let mut processors = vec![None; self.spaces.len()];
        let Ok(allowed) = sys::process::allowed_processors() else { return processors };
        for shared in shared {
            for (place, processor) in shared.places.iter().zip(&allowed) {
                if let Some(known) = processors.get_mut(*place) {
                    *known = Some(*processor);
                }
            }
        }
        processors
    }

    /// Builds the dispatcher with the replica beside it; returns the node at which blocks enter.
    fn first_copy(
        &self,
        copied: &Copied,
        shared: &mut Shared,
        draft: &mut Draft,
    ) -> Result<Local, BuildError> {
        let planned = copied.nodes.first().map_or(0, |id| self.number(*id));
        let deal = Deal::new(copied.sharing, Arc::clone(&shared.board), 0);
        let title = NodeName::ring(RingEnd::Share, &self.chain_name(copied));
        let deal = Node::new(title, planned, Part::Deal(Box::new(deal)), Counts::default());
        let deal = draft.assembly.node(deal);
        for copy in 0..shared.places.len() {
            let Some(export) = shared.to[copy].export.take() else {
                let (head, last) = self.chain(copied, (copy, shared.places.len()), draft)?;
                draft.assembly.arc(deal, head, Wanted::All, false, NOWHERE);
                self.leave(copied, &mut shared.from[copy], (last, shared.join), draft);
                continue;
            };
            let edge = export.planned;
            let title = NodeName::ring(RingEnd::To, &self.name(shared.places[copy]));
            let part = Part::Export(Box::new(export));
            let out = draft.assembly.node(Node::new(title, planned, part, Counts::default()));
            draft.assembly.arc(deal, out, Wanted::All, false, edge);
        }
        Ok(deal)
    }

    /// A copy that is neither where is shared out nor where is joined.
    fn middle_copy(
        &self,
        copied: &Copied,
        shared: &mut Shared,
        copy: usize,
        draft: &mut Draft,
    ) -> Result<(), BuildError> {
        let (head, last) = self.chain(copied, (copy, shared.places.len()), draft)?;
        if let Some(import) = shared.to[copy].import.take() {
            let from = self.name(shared.places[0]);
            let node = self.enter(copied, &from, head, import.planned, draft);
            let own = Own { board: Arc::clone(&shared.board), number: copy, near: 0 };
            draft.inputs.push(Input::Copy { node, import, ended: false, own });
        }
        self.leave(copied, &mut shared.from[copy], (last, shared.join), draft);
        Ok(())
    }

    /// Builds the join of the replicas, with the one that runs there, if any.
    fn join(
        &self,
        copied: &Copied,
        shared: &mut Shared,
        draft: &mut Draft,
    ) -> Result<Local, BuildError> {
        let planned = copied.nodes.last().map_or(0, |id| self.number(*id));
        let title = NodeName::ring(RingEnd::Join, &self.chain_name(copied));
        let mut join = Node::new(title, planned, Part::Pass, Counts::new(0, LATE.len()));
        join.counters = LATE;
        let join = draft.assembly.node(join);
        let mixed = copied.sharing.is_some();
        if !mixed {
            draft.assembly.in_turn(join);
        }
        let (copies, entries) = (shared.places.len(), copied.ring.entries);
        let mut ways = Vec::new();
        for copy in 0..copies {
            if let Some(import) = shared.from[copy].import.take() {
                let from = self.name(shared.places[copy]);
                let node = self.enter(copied, &from, join, import.planned, draft);
                ways.push(Way { node, import, entries, own: None });
            } else if let Some(import) = shared.to[copy].import.take() {
                let (head, last) = self.chain(copied, (copy, copies), draft)?;
                let from = self.name(shared.places[0]);
                let node = self.enter(copied, &from, head, import.planned, draft);
                draft.assembly.arc(last, join, self.leaves_copies(copied), false, NOWHERE);
                let own = Own { board: Arc::clone(&shared.board), number: copy, near: 0 };
                ways.push(Way { node, import, entries, own: Some(own) });
            }
        }
        let gather = Gather::new(Arc::clone(&shared.board), ways, join, mixed);
        draft.inputs.push(Input::Join(Box::new(gather)));
        Ok(join)
    }

    /// The filters of one copy; answers the first and the last.
    fn chain(
        &self,
        copied: &Copied,
        (copy, of): (usize, usize),
        draft: &mut Draft,
    ) -> Result<(Local, Local), BuildError> {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut locals: Vec<(NodeId, Local)> = Vec::new();
        for id in &copied.nodes {
            let mut made = self.node(*id, &[], Some((number(copy), number(of))))?;
            made.counted = self.is_counted(*id);
            made.fragments = self.takes_fragments(*id);
            made.copied = true;
            locals.push((*id, draft.assembly.node(made)));
        }
        for pair in locals.windows(2) {
            let [(near, from), (far, to)] = pair else { continue };
            let edges = self.plan.graph.edges.iter().enumerate();
            for (at, edge) in edges.filter(|(_, edge)| edge.from == *near && edge.to == *far) {
                let number = self.ids.edges[at];
                draft.assembly.arc(*from, *to, wanted(&edge.classes), false, number);
            }
        }
        match (locals.first(), locals.last()) {
            (Some((_, first)), Some((_, last))) => Ok((*first, *last)),
            _ => Err(BuildError::Unexpected("a chain without filters".to_owned())),
        }
    }

    /// Connects a replica's output to the join.
    fn leave(
        &self,
        copied: &Copied,
        ring: &mut Ring,
        (last, join): (Local, usize),
        draft: &mut Draft,
    ) {
        let Some(export) = ring.export.take() else { return };
        let edge = export.planned;
        let planned = copied.nodes.last().map_or(0, |id| self.number(*id));
        let title = NodeName::ring(RingEnd::To, &self.name(join));
        let part = Part::Export(Box::new(export));
        let out = draft.assembly.node(Node::new(title, planned, part, Counts::default()));
        draft.assembly.arc(last, out, self.leaves_copies(copied), false, edge);
    }

    /// Returns the union of the classes wanted by the edges behind a chain.
    fn leaves_copies(&self, copied: &Copied) -> Wanted {
        let last = copied.nodes.last().copied();
        let edges = self.plan.graph.edges.iter().filter(|edge| Some(edge.from) == last);
        wanted(&ClassSet::all_of(edges.map(|edge| &edge.classes)))
    }

    /// The node at which a ring comes in, before this one.
    fn enter(
        &self,
        copied: &Copied,
        from: &str,
        to: Local,
        edge: usize,
        draft: &mut Draft,
    ) -> Local {
        let planned = copied.nodes.first().map_or(0, |id| self.number(*id));
        let title = NodeName::ring(RingEnd::From, from);
        let enter = Node::new(title, planned, Part::Pass, Counts::default());
        let enter = draft.assembly.node(enter);
        draft.assembly.arc(enter, to, Wanted::All, false, edge);
        enter
    }

    fn chain_name(&self, copied: &Copied) -> String {
        let names = copied.nodes.iter().map(|id| self.plan.graph.node(*id).name());
        names.collect::<Vec<_>>().join(" and ")
    }
}

/// The number of an arc that is no edge of the graph and no ring.
const NOWHERE: usize = usize::MAX;
