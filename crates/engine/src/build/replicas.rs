//! Replicas of a chain of filters, which share the work of the chain. The first space contains the
//! dispatcher, each of the chain's spaces contains a replica, and one space contains the join.
//!
//! Input: a [`ReplicaChain`] of the plan. Output: nodes in the drafts of its spaces. The rest of
//! the build treats the chain as one node: edges to its first filter lead to the dispatcher, and
//! edges from its last filter leave the join.

use super::builder::{Builder, Local, SpaceDraft};
use super::nodes::to_selected_classes;
use super::rings::RingEnds;
use crate::error::BuildError;
use buffer::ibuf::EntryColumns;
use filter::Counts;
use pipeline::ClassSet;
use pipeline::graph::NodeId;
use pipeline::plan::ReplicaChain;
use runtime::ledger::{EdgeKind, NodeName, RingEnd};
use runtime::replicas::ReplicaProgress;
use runtime::replicas::dispatch::Dispatcher;
use runtime::space::Input;
use runtime::space::class_selection::SelectedClasses;
use runtime::space::join_state::{JOIN_COUNTER_NAMES, LocalReplica, ReplicaInput, ReplicaJoin};
use runtime::space::node::{Node, Operator};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

/// A replicated chain of filters under construction. It contains the rings between the chain's
/// spaces until nodes own these rings.
pub(super) struct ReplicatedChain {
    progress: Arc<ReplicaProgress>,
    /// Spaces of the replicas, as indices into the component's spaces. The dispatcher runs in the
    /// first of these spaces.
    places: Vec<usize>,
    /// Space of the join, as an index into the component's spaces.
    join: usize,
    /// Rings from the dispatcher to each replica. No ring leads to the replica in the dispatcher's
    /// space; both ends are then `None`.
    to: Vec<RingEnds>,
    /// Rings from each replica to the join of the chain. No ring leads from the replica in the
    /// join's space; both ends are then `None`.
    to_join: Vec<RingEnds>,
    /// Seed of the hash functions of all replicas, so that a session has the same key in each.
    seed: u64,
}

/// The index of a replica, the total number of replicas, and their common seed.
#[derive(Clone, Copy)]
pub(super) struct ReplicaIdentity {
    pub(super) number: usize,
    pub(super) of: usize,
    pub(super) seed: u64,
}

impl ReplicatedChain {
    /// Returns the pairs of spaces between which blocks cross: for each replica, from the
    /// dispatcher to the replica and from the replica to the join.
    pub(super) fn crossings(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.places.first().copied().unwrap_or(self.join);
        self.places.iter().flat_map(move |place| [(first, *place), (*place, self.join)])
    }

    /// Returns a replica of the chain by its index.
    const fn replica(&self, number: usize) -> ReplicaIdentity {
        ReplicaIdentity { number, of: self.places.len(), seed: self.seed }
    }

    /// Returns the index of the replica that runs in the space `place`, or `None` if the space has
    /// no replica.
    pub(super) fn replica_in_space(&self, place: usize) -> Option<usize> {
        self.places.iter().position(|there| *there == place)
    }
}

impl Builder<'_> {
    /// Creates the rings of this component's replicated chains, and returns the chains with their
    /// rings.
    pub(super) fn create_replicated_chains(&self) -> Result<Vec<ReplicatedChain>, BuildError> {
        let mut number = self.ids.first_replica_ring;
        self.component_replicas()
            .map(|copied| self.create_replicated_chain(copied, &mut number))
            .collect()
    }

    fn component_replicas(&self) -> impl Iterator<Item = &ReplicaChain> {
        self.plan.replicas.iter().filter(|copied| self.spaces.contains(&copied.join))
    }

    fn space_index(&self, space: usize) -> Result<usize, BuildError> {
        let found = self.spaces.iter().position(|known| *known == space);
        found.ok_or_else(|| BuildError::Unexpected("a copy in another part".to_owned()))
    }

    fn create_replicated_chain(
        &self,
        copied: &ReplicaChain,
        number: &mut usize,
    ) -> Result<ReplicatedChain, BuildError> {
        let places = copied.spaces.iter().map(|space| self.space_index(*space));
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        let join = self.space_index(copied.join)?;
        let progress =
            Arc::new(ReplicaProgress::new(places.len(), Arc::clone(&self.doorbells[join])));
        let first = places.first().copied().unwrap_or(join);
        let mut ring = |near: usize, far: usize, kind: EdgeKind| {
            if near == far {
                return Ok::<_, BuildError>(RingEnds::default());
            }
            *number += 1;
            let mut ring =
                self.create_ring(*number - 1, &copied.ring, EntryColumns::Marks, (near, far))?;
            ring.export.iter_mut().for_each(|export| export.kind = kind);
            Ok(ring)
        };
        let (mut to, mut from) = (Vec::new(), Vec::new());
        for place in &places {
            to.push(ring(first, *place, EdgeKind::Dispatch)?);
            from.push(ring(*place, join, EdgeKind::Join)?);
        }
        // The seed is secret, so that no sender can force all sessions into one class.
        let seed = RandomState::new().hash_one(0);
        Ok(ReplicatedChain { progress, places, join, to, to_join: from, seed })
    }

    /// Returns true if a node has replicas.
    pub(super) fn is_replicated(&self, id: NodeId) -> bool {
        self.plan.replicas_of(id).is_some()
    }

    /// Returns true if an edge connects two filters of a replicated chain.
    pub(super) fn is_within_replicas(&self, edge: usize) -> bool {
        let edge = &self.plan.graph.edges[edge];
        let chain = self.plan.replicas_of(edge.from);
        chain.is_some_and(|copied| copied.nodes.contains(&edge.to))
    }

    /// Adds the operators of the replicated chains that run in this space.
    pub(super) fn add_replicas(
        &self,
        place: usize,
        shared: &mut [ReplicatedChain],
        locals: &mut [Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        for (copied, shared) in self.component_replicas().zip(shared) {
            let (Some(first), Some(last)) = (copied.nodes.first(), copied.nodes.last()) else {
                continue;
            };
            match shared.replica_in_space(place) {
                Some(0) => locals[first.0] = Some(self.build_dispatcher(copied, shared, draft)?),
                Some(copy) if shared.join != place => {
                    self.build_replica(copied, shared, copy, draft)?;
                }
                _ => {}
            }
            if shared.join == place {
                locals[last.0] = Some(self.build_join(copied, shared, draft)?);
            }
        }
        Ok(())
    }

    /// Returns the processor to which each space is pinned, or `None` for a space that is not
    /// pinned. The replicas of a chain get different processors, because all of them are busy at
    /// the same time. If there are too few processors, the last replicas are not pinned. [Par
    /// §IV-A]
    pub(super) fn replica_processors(&self, shared: &[ReplicatedChain]) -> Vec<Option<usize>> {
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

    /// Builds the dispatcher of a replicated chain. If the dispatcher's space also has a replica,
    /// builds this replica, too. Returns the dispatcher.
    fn build_dispatcher(
        &self,
        copied: &ReplicaChain,
        shared: &mut ReplicatedChain,
        draft: &mut SpaceDraft,
    ) -> Result<Local, BuildError> {
        let planned = copied.nodes.first().map_or(0, |id| self.node_number(*id));
        let progress = Arc::clone(&shared.progress);
        let dispatcher = Dispatcher::new(copied.shard_key, progress, (0, shared.seed));
        let title = NodeName::ring(RingEnd::Dispatch, &self.chain_name(copied));
        let dispatcher =
            Node::new(title, planned, Operator::Dispatch(Box::new(dispatcher)), Counts::default());
        let dispatcher = draft.assembly.add_node(dispatcher);
        for copy in 0..shared.places.len() {
            let Some(export) = shared.to[copy].export.take() else {
                let (head, last) = self.build_replica_chain(copied, shared.replica(copy), draft)?;
                draft.assembly.add_arc(dispatcher, head, SelectedClasses::All, false, NO_EDGE);
                self.connect_to_join(copied, &mut shared.to_join[copy], (last, shared.join), draft);
                continue;
            };
            let edge = export.planned;
            let title = (RingEnd::Export, self.space_name(shared.places[copy]));
            let out = draft.add_ring_node(title, planned, Some(export));
            draft.assembly.add_arc(dispatcher, out, SelectedClasses::All, false, edge);
        }
        Ok(dispatcher)
    }

    /// Builds a replica in a space that has neither the dispatcher nor the join.
    fn build_replica(
        &self,
        copied: &ReplicaChain,
        shared: &mut ReplicatedChain,
        copy: usize,
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        let (head, last) = self.build_replica_chain(copied, shared.replica(copy), draft)?;
        if let Some(import) = shared.to[copy].import.take() {
            let from = self.space_name(shared.places[0]);
            let node = self.build_ring_entry(copied, from, head, import.planned, draft);
            let own = LocalReplica {
                progress: Arc::clone(&shared.progress),
                number: copy,
                last_batch_id: 0,
            };
            draft.inputs.push(Input::Replica { node, import, ended: false, replica: own });
        }
        self.connect_to_join(copied, &mut shared.to_join[copy], (last, shared.join), draft);
        Ok(())
    }

    /// Builds the join of a replicated chain. If the join's space also has a replica, builds this
    /// replica, too. Returns the join.
    fn build_join(
        &self,
        copied: &ReplicaChain,
        shared: &mut ReplicatedChain,
        draft: &mut SpaceDraft,
    ) -> Result<Local, BuildError> {
        let planned = copied.nodes.last().map_or(0, |id| self.node_number(*id));
        let title = NodeName::ring(RingEnd::Join, &self.chain_name(copied));
        let mut join =
            Node::new(title, planned, Operator::Pass, Counts::new(0, JOIN_COUNTER_NAMES.len()));
        join.counters = JOIN_COUNTER_NAMES;
        let join = draft.assembly.add_node(join);
        let mixed = copied.shard_key.is_some();
        if !mixed {
            draft.assembly.declare_exclusive_inputs(join);
        }
        let (copies, entries) = (shared.places.len(), copied.ring.entries);
        let mut ways = Vec::new();
        for copy in 0..copies {
            if let Some(import) = shared.to_join[copy].import.take() {
                let from = self.space_name(shared.places[copy]);
                let node = self.build_ring_entry(copied, from, join, import.planned, draft);
                ways.push(ReplicaInput { node, import, entries, local_replica: None });
            } else if let Some(import) = shared.to[copy].import.take() {
                let (head, last) = self.build_replica_chain(copied, shared.replica(copy), draft)?;
                let from = self.space_name(shared.places[0]);
                let node = self.build_ring_entry(copied, from, head, import.planned, draft);
                draft.assembly.add_arc(last, join, self.output_classes(copied), false, NO_EDGE);
                let own = LocalReplica {
                    progress: Arc::clone(&shared.progress),
                    number: copy,
                    last_batch_id: 0,
                };
                ways.push(ReplicaInput { node, import, entries, local_replica: Some(own) });
            }
        }
        let gather = ReplicaJoin::new(Arc::clone(&shared.progress), ways, join, mixed);
        draft.inputs.push(Input::Join(Box::new(gather)));
        Ok(join)
    }

    /// Builds the filters of one replica. Returns the first and the last one.
    fn build_replica_chain(
        &self,
        copied: &ReplicaChain,
        replica: ReplicaIdentity,
        draft: &mut SpaceDraft,
    ) -> Result<(Local, Local), BuildError> {
        let mut locals: Vec<(NodeId, Local)> = Vec::new();
        for id in &copied.nodes {
            let mut made = self.create_node(*id, &[], Some(replica))?;
            made.counts_to_limit = self.counts_toward_limit(*id);
            made.fragments = self.accepts_fragments(*id);
            made.is_replica = true;
            locals.push((*id, draft.assembly.add_node(made)));
        }
        for pair in locals.windows(2) {
            let [(near, from), (far, to)] = pair else { continue };
            let edges = self.plan.graph.edges.iter().enumerate();
            for (at, edge) in edges.filter(|(_, edge)| edge.from == *near && edge.to == *far) {
                let number = self.ids.edges[at];
                let wanted = to_selected_classes(&self.plan.classes_on_edge(edge));
                draft.assembly.add_arc(*from, *to, wanted, false, number);
            }
        }
        match (locals.first(), locals.last()) {
            (Some((_, first)), Some((_, last))) => Ok((*first, *last)),
            _ => Err(BuildError::Unexpected("a chain without filters".to_owned())),
        }
    }

    /// Connects the last filter of a replica to the ring that leads to the join's space. Does
    /// nothing if the replica runs in the join's space.
    fn connect_to_join(
        &self,
        copied: &ReplicaChain,
        ring: &mut RingEnds,
        (last, join): (Local, usize),
        draft: &mut SpaceDraft,
    ) {
        let Some(export) = ring.export.take() else { return };
        let edge = export.planned;
        let planned = copied.nodes.last().map_or(0, |id| self.node_number(*id));
        let out =
            draft.add_ring_node((RingEnd::Export, self.space_name(join)), planned, Some(export));
        draft.assembly.add_arc(last, out, self.output_classes(copied), false, edge);
    }

    /// Returns all classes that the edges out of a replicated chain select.
    fn output_classes(&self, copied: &ReplicaChain) -> SelectedClasses {
        let last = copied.nodes.last().copied();
        let edges = self.plan.graph.edges.iter().filter(|edge| Some(edge.from) == last);
        let classes: Vec<ClassSet> = edges.map(|edge| self.plan.classes_on_edge(edge)).collect();
        to_selected_classes(&ClassSet::union_of(&classes))
    }

    /// Builds the node through which the blocks of a ring enter this space, and connects it to the
    /// node `to`. `from` is the name of the space that writes the ring.
    fn build_ring_entry(
        &self,
        copied: &ReplicaChain,
        from: String,
        to: Local,
        edge: usize,
        draft: &mut SpaceDraft,
    ) -> Local {
        let planned = copied.nodes.first().map_or(0, |id| self.node_number(*id));
        let enter = draft.add_ring_node((RingEnd::Import, from), planned, None);
        draft.assembly.add_arc(enter, to, SelectedClasses::All, false, edge);
        enter
    }

    fn chain_name(&self, copied: &ReplicaChain) -> String {
        let names = copied.nodes.iter().map(|id| self.plan.graph.node(*id).name());
        names.collect::<Vec<_>>().join(" and ")
    }
}

/// Edge number of an arc that belongs neither to an edge of the graph nor to a ring.
const NO_EDGE: usize = usize::MAX;
