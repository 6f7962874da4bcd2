//! The fate of a flow: which nodes received its blocks, the classes they returned, where blocks
//! were held and for how long, where and why they were dropped, and where they left. (CONTRACT 19,
//! for one flow)
//!
//! Input: a pcap-filter expression, and a path that runs again (from a recording, or a request over
//! a capture) with one block per batch. Every change of a filter's counters during a call is
//! therefore due to a single block. Output: a [`NodeFate`] per node. A frame belongs to the flow if
//! it matches the expression, as a [`FlowMatcher`] tests it. A block that a filter made (a
//! description, a decoded body) belongs to the flow if its session does. [SL §7.1, "debugging"]
//!
//! The spaces feed a query through an [`Observer`].

use crate::record::RecordMode;
use abi::Class;
use filter::general::bpf::flow_matcher::FlowMatcher;
use filter::{
    Amount, Arguments, Batch, Block, Classes, Counts, LaneMask, Mistake, Time, Value, lanes,
};
use pipeline::graph::{Graph, NodeId};
use runtime::space::node::{Node, Operator};
use runtime::space::observe::Observer;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The fate of a flow's blocks at one node of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeFate {
    /// The index of the node in the plan.
    pub plan_index: usize,
    /// Blocks and bytes of the flow that arrived at the node.
    pub arrived: Amount,
    /// Blocks that left the node, by class. Classes have names if the node declares them.
    pub answered: BTreeMap<String, u64>,
    /// Blocks that no arc from the node selected.
    pub unselected: u64,
    /// Blocks without a packet number that left the node. This node or a node upstream has created
    /// or edited them.
    pub made: u64,
    /// Number of blocks that the node consumed.
    pub consumed: u64,
    /// Number of blocks that the node held for a time.
    pub held: u64,
    /// The longest time for which the node held a block, in ns.
    pub held_max: Time,
    /// Held blocks that the node released.
    pub released: u64,
    /// Number of blocks that the node dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Blocks for which the node returned no class, by reason.
    pub unanswered: BTreeMap<String, u64>,
    /// Numbers of the frames that arrived at or left the node. Frames are numbered by arrival at
    /// the source, from 1.
    pub packets: Vec<u64>,
}

/// A query about a flow, shared by the spaces of the path that runs again.
#[derive(Debug)]
pub struct FlowQuery {
    /// For each node of the plan, the classes of its output, and the index of the node that
    /// numbered the sessions of its blocks. The index matters only in replays of older recordings,
    /// where each filter numbers sessions independently. In other runs it is always 0.
    nodes: Vec<(Vec<Classes>, usize)>,
    /// For each node, the node at the start of its first input edge, or the node itself if it has
    /// no input.
    upstream: Vec<usize>,
    state: Mutex<QueryState>,
}

#[derive(Debug)]
struct QueryState {
    matcher: FlowMatcher,
    rows: BTreeMap<usize, NodeFate>,
    /// Sessions of the flow, each with the node that assigned its number.
    sessions: HashSet<(usize, u32)>,
    /// Held blocks by node and key, each with the time at which its hold began.
    held: HashMap<(usize, u64), Time>,
    /// Packet numbers of the flow's frames. The key is derived from the time and the bytes of a
    /// frame ([`frame_key`]).
    numbers: HashMap<u64, u64>,
    /// Number of packets so far, by source node number.
    packets: HashMap<usize, u64>,
}

/// Maximum number of frames whose packet numbers a query stores, and maximum number of packet
/// numbers listed per node.
const PACKET_NUMBERS_MAX: usize = 1 << 20;

impl FlowQuery {
    /// Creates a query for the frames that match `expression`, on a path of this graph. Fails if
    /// the expression does not compile.
    pub fn new(expression: &str, graph: &Graph, record_mode: &RecordMode) -> Result<Self, Mistake> {
        let mut arguments = Arguments::default();
        arguments.set("expression", Value::Text(expression.to_owned()));
        let matcher = FlowMatcher::new(arguments)?;
        let domain = |id| match record_mode.has_independent_session_numbers() {
            true => numbering_node(graph, id),
            false => 0,
        };
        let nodes =
            graph.nodes_with_ids().map(|(id, _)| (graph.output_classes(id), domain(id))).collect();
        let state = QueryState {
            matcher,
            rows: BTreeMap::new(),
            sessions: HashSet::new(),
            held: HashMap::new(),
            numbers: HashMap::new(),
            packets: HashMap::new(),
        };
        let upstream = graph
            .nodes_with_ids()
            .map(|(id, _)| upstream_node(graph, id).unwrap_or(id).0)
            .collect();
        Ok(Self { nodes, upstream, state: Mutex::new(state) })
    }

    /// Returns the fate of the flow's blocks at each node of the plan.
    #[must_use]
    pub fn node_fates(&self) -> Vec<NodeFate> {
        self.lock_state().rows.values().cloned().collect()
    }

    /// Prepares a second run of the path, if the first run was incomplete. It was incomplete if
    /// fragments arrived before the first fragment of their datagram, which alone contains the
    /// ports. In this case, discards the recorded fates and returns true; the second run recognizes
    /// these fragments. Otherwise does nothing and returns false.
    #[must_use]
    pub fn rewind_if_incomplete(&self) -> bool {
        let mut state = self.lock_state();
        let missed = state.matcher.has_missed_fragments();
        if missed {
            state.matcher.prepare_second_pass();
            state.rows.clear();
            state.sessions.clear();
            state.held.clear();
            state.numbers.clear();
            state.packets.clear();
        }
        missed
    }

    fn lock_state(&self) -> MutexGuard<'_, QueryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an observer that reports to this query how blocks pass through the nodes of one
    /// space.
    pub(crate) fn observer(self: &Arc<Self>) -> Box<dyn Observer> {
        Box::new(FlowObserver { why: Arc::clone(self), running: Vec::new() })
    }

    /// Assigns the next packet number to a block from a source. Remembers the number if the block
    /// is a frame of the flow, for at most [`PACKET_NUMBERS_MAX`] frames.
    fn number_packet(&self, planned: usize, block: &Block<'_>) {
        let mut state = self.lock_state();
        let number = state.packets.entry(planned).or_default();
        *number += 1;
        let number = *number;
        if block.marks.is_frame()
            && state.matcher.matches(block)
            && state.numbers.len() < PACKET_NUMBERS_MAX
        {
            state.numbers.entry(frame_key(block)).or_insert(number);
        }
    }

    /// Records the arrival of a block at a node. Returns true if the block belongs to the flow.
    fn record_arrival(&self, planned: usize, block: &Block<'_>) -> bool {
        let mut state = self.lock_state();
        let upstream = self.upstream.get(planned).copied().unwrap_or(planned);
        let domain = self.nodes.get(upstream).map_or(0, |(_, domain)| *domain);
        if !state.is_flow_block(domain, block) {
            return false;
        }
        let number = state.numbers.get(&frame_key(block)).copied();
        let row = state.node_fate(planned);
        row.arrived.add_block(block.length());
        row.add_packet(number);
        true
    }

    /// Records what a node did to a block of the flow. The action follows from the node's counters
    /// before and after the call. `reasons` contains the names of the node's drop reasons. A
    /// forwarded block is recorded by [`FlowQuery::record_departure`] instead.
    fn record_action(
        &self,
        planned: usize,
        (before, after): (&Counts, &Counts),
        (reasons, block, now): (&[&str], u64, Time),
    ) {
        let mut state = self.lock_state();
        if after.held.blocks > before.held.blocks {
            state.held.insert((planned, block), now);
            state.node_fate(planned).held += 1;
        }
        let row = state.node_fate(planned);
        row.consumed += after.consumed.blocks.saturating_sub(before.consumed.blocks);
        let named = |number: usize| reasons.get(number).copied().unwrap_or("unnamed").to_owned();
        let dropped = after.dropped.iter().zip(&before.dropped).enumerate();
        let dropped = dropped.map(|(i, (now, then))| (named(i), now.blocks - then.blocks));
        let evicted = after.evicted.blocks - before.evicted.blocks;
        let no_room = after.no_room.blocks - before.no_room.blocks;
        let more = [("evicted".to_owned(), evicted), ("no room".to_owned(), no_room)];
        for (why, count) in dropped.chain(more).filter(|(_, count)| *count > 0) {
            *row.dropped.entry(why).or_default() += count;
        }
        let unanswered = after.unanswered.iter().zip(&before.unanswered).enumerate();
        for (i, (now, then)) in unanswered.filter(|(_, (now, then))| now > then) {
            *row.unanswered.entry(named(i)).or_default() += now - then;
        }
    }

    /// Records the departure of a block from a node. `wanted` is true if an arc selects the block.
    fn record_departure(&self, planned: usize, block: &Block<'_>, wanted: bool, now: Time) {
        let mut state = self.lock_state();
        let (classes, domain) =
            self.nodes.get(planned).map_or((&[][..], 0), |(classes, domain)| (classes, *domain));
        if !state.is_flow_block(domain, block) {
            return;
        }
        let session = block.context.session;
        if block.marks.is_frame() && session != 0 {
            state.sessions.insert((domain, session));
        }
        let name = frame_key(block);
        let since = state.held.remove(&(planned, name));
        let number = state.numbers.get(&name).copied();
        let row = state.node_fate(planned);
        row.add_packet(number);
        *row.answered.entry(class_name(classes, block.pointer.class)).or_default() += 1;
        row.unselected += u64::from(!wanted);
        row.made += u64::from(number.is_none());
        if let Some(since) = since {
            row.released += 1;
            row.held_max = row.held_max.max(now.saturating_sub(since));
        }
    }
}

/// An observer that reports to a query about a flow how blocks pass through the nodes of one space.
#[derive(Debug)]
struct FlowObserver {
    why: Arc<FlowQuery>,
    /// The nodes that are running, outermost first. A node whose input contains exactly one block
    /// of the flow is stored as the key of this block and the node's counters before the call. Any
    /// other node is stored as `None`.
    running: Vec<Option<(u64, Counts)>>,
}

/// Returns true if a node is part of the request, rather than the end of a ring.
const fn belongs_to_request(node: &Node) -> bool {
    !matches!(node.operator, Operator::Export(_) | Operator::Pass)
}

impl Observer for FlowObserver {
    fn before_node(&mut self, node: &Node, batch: &Batch<'_>) {
        let blocks =
            lanes(batch.live_lanes()).filter(|_| belongs_to_request(node)).map(|l| batch.block(l));
        let ours = blocks.filter(|block| self.why.record_arrival(node.number, block));
        // A batch has one block. Even blocks that a filter releases together are routed one by one.
        let running = match *ours.collect::<Vec<_>>() {
            [block] => Some((frame_key(&block), node.counts.clone())),
            _ => None,
        };
        self.running.push(running);
    }

    fn after_node(&mut self, node: &mut Node, now: Time) {
        if let Some((block, before)) = self.running.pop().flatten() {
            self.why.record_action(
                node.number,
                (&before, &node.counts),
                (node.reasons, block, now),
            );
        }
    }

    fn before_routing(&mut self, node: &Node, batch: &Batch<'_>, wanted: LaneMask, now: Time) {
        for l in lanes(batch.live_lanes()).filter(|_| belongs_to_request(node)) {
            let block = batch.block(l);
            if matches!(node.operator, Operator::Source(_)) {
                self.why.number_packet(node.number, &block);
            }
            self.why.record_departure(node.number, &block, wanted >> l & 1 != 0, now);
        }
    }

    fn splits_batches(&self) -> bool {
        true
    }
}

impl QueryState {
    fn node_fate(&mut self, planned: usize) -> &mut NodeFate {
        self.rows
            .entry(planned)
            .or_insert_with(|| NodeFate { plan_index: planned, ..NodeFate::default() })
    }

    fn is_flow_block(&mut self, domain: usize, block: &Block<'_>) -> bool {
        match block.marks.is_frame() && !block.pointer.is_hole() {
            true => self.matcher.matches(block),
            false => self.sessions.contains(&(domain, block.context.session)),
        }
    }
}

impl NodeFate {
    /// Adds the number of a packet, unless it is `None` or already in the list, or the list has
    /// [`PACKET_NUMBERS_MAX`] numbers.
    fn add_packet(&mut self, number: Option<u64>) {
        let Some(number) = number else { return };
        if let (Err(at), true) =
            (self.packets.binary_search(&number), self.packets.len() < PACKET_NUMBERS_MAX)
        {
            self.packets.insert(at, number);
        }
    }
}

/// Returns a key derived from a frame's time and bytes, which stays the same when the frame moves
/// to another address.
fn frame_key(block: &Block<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(block.context.time);
    hasher.write(block.frame);
    hasher.finish()
}

/// Returns the node at the start of a node's first input edge, ignoring back edges, or `None` if
/// there is no such edge.
fn upstream_node(graph: &Graph, id: NodeId) -> Option<NodeId> {
    graph.inputs(id).find(|edge| !edge.back).map(|edge| edge.from)
}

/// Returns a node and the nodes upstream of it, nearest first. Follows only the first input of each
/// node.
fn node_and_upstream(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    std::iter::successors(Some(id), |at| upstream_node(graph, *at)).take(graph.nodes.len())
}

/// Returns the node that numbers the sessions of the blocks that leave a node. This is the node
/// itself, or the nearest node upstream that numbers sessions. If there is none, it is the most
/// upstream node.
fn numbering_node(graph: &Graph, id: NodeId) -> usize {
    let numbers = |at: &NodeId| {
        graph.node(*at).filter().is_some_and(|used| used.description.state.writes_session_numbers)
    };
    let giving = node_and_upstream(graph, id).find(numbers);
    giving.or_else(|| node_and_upstream(graph, id).last()).unwrap_or(id).0
}

fn class_name(classes: &[Classes], class: Class) -> String {
    match Classes::name_of(classes, class) {
        Some(name) => name.to_owned(),
        None if class == Class::NONE => "no answer".to_owned(),
        None if class == Class::YES && !classes.iter().any(|one| one.are_numbers()) => {
            "yes".to_owned()
        }
        None => Classes::number_of(classes, class).to_string(),
    }
}
