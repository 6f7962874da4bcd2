//! Hot swap: replacement of a running space's graph. Kept nodes retain filters, state and counters;
//! removed nodes are ended; new nodes and inputs are added. [Th §5.4]
//!
//! A swap happens between two passes, while no block is in flight in the space. First, the removed
//! nodes are **retired**, from the sources to the sinks: filters release held blocks over the old
//! arcs, and sinks are finished. Then, the graph is **swapped**: kept nodes move into their
//! placeholders in the new graph. Counters of kept arcs continue; final counters of removed nodes
//! and arcs stay in the ledger.

use super::arc::NodeId;
use super::arc::{EdgeDrops, GraphArc};
use super::assemble::Assembly;
use super::memory::Memory;
use super::node::{Node, Operator};
use super::node_key::{NodeKey, node_keys};
use super::{GENERAL_INTAKE, ImportCounters, Input, Space};
use crate::ledger::{DropReason, NodeName};
use buffer::pool::Pool;
use filter::{Amount, Arguments, Filter, Gateway, Mistake, MovedSession, PRIVATE_SESSION_KEY};
use std::collections::HashMap;

/// The new graph of a space in a hot swap, with the filters, inputs and pools to install.
#[derive(Debug, Default)]
pub struct HotSwap {
    /// The new graph, with placeholders for kept nodes.
    pub assembly: Assembly,
    /// Placeholder nodes in the new graph, each with the identity of the kept node that takes its
    /// place.
    pub kept: Vec<(NodeId, NodeKey)>,
    /// New filters that take over the state of old filters, each with the identity of its node.
    pub renewed: Vec<(NodeKey, Filter)>,
    /// New inputs, in addition to the inputs of kept nodes.
    pub inputs: Vec<Input>,
    /// Pools into which the new sources write. A new input refers to its pool by the index in this
    /// list.
    pub intakes: Vec<Pool>,
    /// CPU to which the space is pinned after the swap; `None` if it is not pinned.
    pub processor: Option<usize>,
    /// Node numbers of all nodes of the new plan, in any space of the path; empty if unknown.
    pub live: Vec<usize>,
}

/// The identity of an arc across hot swaps: its start node, its end node, and the number of its
/// edge.
type ArcKey = (NodeKey, NodeKey, usize);
/// Counters of an arc: the amount put on it, the amounts dropped from it, and the amount taken from
/// it.
type ArcCounters = (Amount, EdgeDrops, Amount);

impl Space {
    /// Returns the identity of each node, by node index.
    pub fn node_keys(&self) -> Vec<NodeKey> {
        node_keys(&self.graph.nodes, &self.inputs.list)
    }

    /// Returns the losses of the sources so far: name of the source, reason, and number of blocks.
    /// Omits losses whose counter cannot be read.
    pub fn source_loss_counts(&self) -> Vec<(String, DropReason, u64)> {
        let mut all = Vec::new();
        for node in &self.graph.nodes {
            let Operator::Source(part) = &node.operator else { continue };
            let lost = part.source.counters().dropped.into_iter();
            let lost = lost.filter_map(|(place, blocks)| Some((place, blocks?)));
            all.extend(lost.map(|(place, blocks)| (node.name.to_string(), place, blocks)));
        }
        all
    }

    /// Restores `bytes`, the final state of a filter's kernel twin, in the user implementation with
    /// node number `number`. Does nothing if the filter does not run in this space.
    pub fn load_twin_state(&mut self, number: usize, bytes: &[u8]) {
        let mut nodes = self.graph.nodes.iter_mut();
        let node = nodes.find(|node| node.number == number && !node.has_moved);
        if let Some(Node { operator: Operator::Filter(filter), holds, .. }) = node
            && let Some(state) = filter.state()
        {
            let moved =
                MovedSession { key: PRIVATE_SESSION_KEY, bytes: bytes.to_vec(), held: Vec::new() };
            // The tests of twins ensure that the filter accepts the state.
            let put = state.put_session(moved, holds);
            debug_assert!(put.is_ok(), "{put:?}");
        }
    }

    /// Replaces filters of this space by those in `renewed`, and transfers the state of the old
    /// filters to the new ones. Afterwards, `renewed` contains the old filters. If any new filter
    /// rejects the state, all replacements are undone.
    pub fn replace_filters(&mut self, renewed: &mut [(NodeKey, Filter)]) -> Result<(), Mistake> {
        let keys = self.node_keys();
        for done in 0..renewed.len() {
            let (key, filter) = &mut renewed[done];
            let Some(at) = keys.iter().position(|other| other == key) else { continue };
            let Err(mistake) = replace_filter(&mut self.graph.nodes[at], filter) else { continue };
            for (key, filter) in &mut renewed[..done] {
                if let Some(at) = keys.iter().position(|other| other == key) {
                    // A session taken from a filter can always be put back into it.
                    let _ = replace_filter(&mut self.graph.nodes[at], filter);
                }
            }
            return Err(mistake);
        }
        Ok(())
    }

    /// Sets arguments of filters, and of their replicas in this space. `values` contains the node
    /// number of each filter and its new arguments. On failure, the filters before the failed
    /// filter keep the new arguments.
    pub fn set_arguments(&mut self, values: &[(usize, Arguments)]) -> Result<(), Mistake> {
        for node in self.graph.nodes.iter_mut().filter(|node| !node.has_moved) {
            let Operator::Filter(filter) = &mut node.operator else { continue };
            let Some((_, values)) = values.iter().find(|(number, _)| *number == node.number) else {
                continue;
            };
            filter.set(values)?;
            if matches!(filter, Filter::Stream(_)) {
                // The new arguments may make a timer due earlier.
                node.wake = Some(0);
            }
        }
        Ok(())
    }

    /// Records in the journal that a change set arguments of filters at this point in the run.
    /// `number` is the sequence number of the change among all hot swaps of the path.
    pub fn record_arguments_set(&mut self, number: u64) {
        self.record_stop_for_swap(number);
        // A reader of the record that sees the change can read all events before it.
        self.ports.events.flush();
        self.accounts.swaps += 1;
    }

    /// Installs the new graph of a hot swap in this space. `arrived` contains the nodes that have
    /// moved to this space from others.
    pub fn swap(&mut self, swap: HotSwap, arrived: &mut HashMap<NodeKey, Node>) {
        let HotSwap { mut assembly, kept, mut inputs, intakes, processor, live, .. } = swap;
        self.processor = processor;
        self.accounts.retired.merge_counters_by_name(&live);
        let before = self.current_node_counters();
        let (old_keys, mut between) = (self.node_keys(), self.arc_counters());
        let key_of = |at: NodeId, arc: &GraphArc| (old_keys[at], old_keys[arc.to], arc.planned);
        let nodes = self.graph.nodes.iter().enumerate();
        let arcs: Vec<Vec<ArcKey>> =
            nodes.map(|(at, node)| node.arcs.iter().map(|arc| key_of(at, arc)).collect()).collect();
        let old_names: Vec<NodeName> =
            self.graph.nodes.iter().map(|node| node.name.clone()).collect();
        let reported: Vec<NodeKey> = self
            .programs
            .inputs
            .iter()
            .filter(|(_, is_reported)| *is_reported)
            .map(|(at, _)| old_keys[*at])
            .collect();
        let mut old: Vec<Option<Node>> =
            std::mem::take(&mut self.graph.nodes).into_iter().map(Some).collect();
        let mut places: HashMap<NodeKey, NodeId> = HashMap::new();
        for (local, key) in &kept {
            let here = |node: &Option<Node>| node.as_ref().is_some_and(|node| !node.has_moved);
            let from = (0..old.len()).find(|at| old_keys[*at] == *key && here(&old[*at]));
            let comes = || {
                let node = arrived.remove(key)?;
                if matches!(node.operator, Operator::Source(_)) {
                    inputs.push(Input::Source { node: *local, intake: GENERAL_INTAKE });
                }
                Some(node)
            };
            if let Some(node) = from.and_then(|at| old[at].take()).or_else(comes) {
                places.insert(*key, *local);
                fill_placeholder(&mut assembly.nodes_mut()[*local], node);
            }
        }
        let names: HashMap<NodeId, NodeKey> =
            places.iter().map(|(key, local)| (*local, *key)).collect();
        transfer_arc_counters(assembly.nodes_mut(), &names, &mut between);
        let gone = |at: NodeId, arc: usize| {
            arcs.get(at).and_then(|arcs| arcs.get(arc)).is_some_and(|arc| between.contains_key(arc))
        };
        let ended = |at: NodeId| old.get(at).and_then(Option::as_ref).is_some_and(|n| !n.has_moved);
        self.accounts.retired.add(before, &ended, &gone);
        self.programs
            .removed
            .extend(old.into_iter().flatten().filter(|n| n.exec_process().is_some()));
        (self.graph.nodes, self.graph.shape) = assembly.finish();
        self.accounts.swaps += 1;
        self.install_inputs((&old_keys, &old_names), &places, inputs);
        self.graph.intakes.extend(intakes);
        let programs =
            (0..self.graph.nodes.len()).filter(|at| self.graph.nodes[*at].is_process_input());
        self.programs.inputs = programs
            .map(|at| (at, names.get(&at).is_some_and(|key| reported.contains(key))))
            .collect();
        self.retain_taps();
        self.update_has_writers();
        self.publishes = self.graph.nodes.iter().any(|node| node.published.is_some());
        self.ports.connect_exports(&mut self.graph.nodes);
    }

    /// Removes a node that continues in another space. The node's counts so far stay in this
    /// space's ledger. Returns `None` if there is no such node.
    pub fn remove_moved_node(&mut self, key: NodeKey) -> Option<Node> {
        let at = self.node_keys().iter().position(|other| *other == key)?;
        let place = Node::new("", usize::MAX, Operator::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        let place = &mut self.graph.nodes[at];
        // The arcs stay until the swap, which keeps their counters.
        (place.name, place.number) = (node.name.clone(), node.number);
        place.arcs = std::mem::take(&mut node.arcs);
        place.taken = node.taken.clone();
        place.has_moved = true;
        Some(node)
    }

    /// Copies the blocks that an arriving node holds to this space's pool. `from` is the node's
    /// previous space. Returns the number of blocks that were lost for lack of memory.
    pub fn copy_held_blocks(&mut self, node: &mut Node, from: &mut Self) -> u64 {
        let mut theirs =
            Memory { intakes: &from.graph.intakes, work: &from.graph.work, imported: &[] };
        let ours = Memory { intakes: &self.graph.intakes, work: &self.graph.work, imported: &[] };
        let mut lost = 0;
        node.holds.relocate_blocks(|entry, pin| {
            let moved = ours.copy_foreign_block(entry, theirs.frame(entry));
            theirs.unpin(pin);
            moved.unwrap_or_else(|| {
                lost += 1;
                (*entry, pin)
            })
        });
        lost
    }

    /// Installs the inputs of a new graph: the inputs of kept nodes, and the new inputs. `old_keys`
    /// and `old_names` contain the identity and name of each old node. `places` maps the identity
    /// of a kept node to its new index. Adds the counters of removed rings to the retired counters.
    fn install_inputs(
        &mut self,
        (old_keys, old_names): (&[NodeKey], &[NodeName]),
        places: &HashMap<NodeKey, NodeId>,
        new: Vec<Input>,
    ) {
        let old = std::mem::take(&mut self.inputs.list);
        for mut input in old {
            let over = |node: NodeId, import: &crate::ring::RingImport| ImportCounters {
                planned: import.planned,
                node: usize::MAX,
                name: old_names[node].clone(),
                taken: import.taken_amount(),
            };
            let node = match &mut input {
                Input::Source { node, .. } | Input::Ring { node, .. } => node,
                // Replicas are removed by every swap.
                Input::Replica { node, import, .. } => {
                    self.accounts.retired.add_import_counters(over(*node, import));
                    continue;
                }
                Input::Join(gather) => {
                    let all = gather.imports().map(|(node, import)| over(node, import));
                    all.for_each(|imported| self.accounts.retired.add_import_counters(imported));
                    continue;
                }
            };
            match places.get(&old_keys[*node]) {
                Some(local) => {
                    *node = *local;
                    self.inputs.list.push(input);
                }
                None => {
                    if let Input::Ring { node, import, .. } = &input {
                        self.accounts.retired.add_import_counters(over(*node, import));
                    }
                }
            }
        }
        let first = self.graph.intakes.len();
        self.inputs.list.extend(new.into_iter().map(|input| match input {
            Input::Source { node, intake } if intake != GENERAL_INTAKE => {
                Input::Source { node, intake: first + intake - 1 }
            }
            other => other,
        }));
    }

    /// Returns the counters of every arc of the graph, by the identity of the arc.
    fn arc_counters(&self) -> HashMap<ArcKey, ArcCounters> {
        let keys = self.node_keys();
        let mut all = HashMap::new();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            for GraphArc { to, branch, planned, put, dropped, .. } in &node.arcs {
                let taken = self.graph.nodes[*to].taken[*branch];
                all.insert((keys[at], keys[*to], *planned), (*put, *dropped, taken));
            }
        }
        all
    }
}

/// Moves a kept node's operator, state and counters into its placeholder. A section's operator is
/// not moved: the placeholder has a new section, which takes over the waiting blocks.
fn fill_placeholder(place: &mut Node, old: Node) {
    let taken = old.total_taken();
    // The section is new; its operands are kept.
    match (&mut place.operator, old.operator) {
        (Operator::OperandSection(section), Operator::OperandSection(old)) => {
            section.take_over(*old)
        }
        (Operator::Section(_) | Operator::OperandSection(_), _) => {}
        (part, old) => *part = old,
    }
    if matches!(place.operator, Operator::Export(_)) {
        // The incoming arcs may be new; the counters continue.
        place.number = old.number;
    }
    place.flow = old.flow;
    place.counts = old.counts;
    place.holds = old.holds;
    place.wake = old.wake;
    place.writers = old.writers;
    place.reasons = old.reasons;
    place.counters = old.counters;
    place.published = old.published;
    place.taken_before = taken;
}

/// Transfers the counters of kept arcs to the new graph.
fn transfer_arc_counters(
    nodes: &mut [Node],
    names: &HashMap<NodeId, NodeKey>,
    between: &mut HashMap<ArcKey, ArcCounters>,
) {
    for at in 0..nodes.len() {
        let Some(from) = names.get(&at) else { continue };
        for arc in 0..nodes[at].arcs.len() {
            let GraphArc { to, branch, planned, .. } = nodes[at].arcs[arc];
            let Some(target) = names.get(&to) else { continue };
            let Some((put, dropped, taken)) = between.remove(&(*from, *target, planned)) else {
                continue;
            };
            let arc = &mut nodes[at].arcs[arc];
            (arc.put, arc.dropped) = (put, dropped);
            nodes[to].taken[branch] = taken;
            let before = &mut nodes[to].taken_before;
            before.blocks -= taken.blocks;
            before.bytes -= taken.bytes;
        }
    }
}

/// Replaces the filter of a node by `filter`, and transfers all sessions to it. Afterwards,
/// `filter` contains the old filter. On failure, the node keeps the old filter with all of its
/// sessions.
fn replace_filter(node: &mut Node, filter: &mut Filter) -> Result<(), Mistake> {
    let Operator::Filter(old) = &mut node.operator else { return Ok(()) };
    let holds = &mut node.holds;
    let sessions = old.state().map(|state| state.session_keys()).unwrap_or_default();
    for (done, key) in sessions.iter().enumerate() {
        let Some(moved) = old.state().and_then(|state| state.take_session(*key, holds)) else {
            continue;
        };
        let copy = moved.clone();
        let put = match filter.state() {
            Some(state) => state.put_session(moved, holds),
            None => Err(Mistake {
                parameter: None,
                value_index: 0,
                range: None,
                message: "the new filter keeps no state".to_owned(),
                hint: None,
            }),
        };
        let Err(mistake) = put else { continue };
        if let Some(state) = old.state() {
            let _ = state.put_session(copy, holds);
            for key in &sessions[..done] {
                let back = filter.state().and_then(|new| new.take_session(*key, holds));
                back.into_iter().for_each(|back| drop(state.put_session(back, holds)));
            }
        }
        return Err(mistake);
    }
    std::mem::swap(old, filter);
    if let Some(published) = &mut node.published {
        published.mark_all_rows_changed();
    }
    Ok(())
}
