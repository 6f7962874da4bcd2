//! The fate of a flow: which nodes saw its blocks, what they answered, where blocks were held and
//! how long, dropped and why, and what left. (CONTRACT 19, for one flow)
//!
//! In: a pcap-filter expression, and a path that is run again (a record, or a line over a capture)
//! with one block in each turn: then what a filter counts while it is called is what it did with
//! that block. Out: a row for each node. A block belongs to the flow if its frame matches; what a
//! filter made itself (a description, a decoded body) belongs to it by the session that frames of
//! the flow had there. [SL §7.1, "debugging"]
//!
//! It looks as an [`Observer`] of the spaces.

use crate::record::Tape;
use filter::general::bpf::Matcher;
use filter::{
    Amount, Arguments, Batch, Block, Classes, Counts, LaneMask, Mistake, Time, Value, lanes,
};
use pipeline::graph::{Graph, NodeId};
use runtime::space::node::{Node, Part};
use runtime::space::observe::Observer;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The fate of a flow's blocks at one node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The node of the plan.
    pub planned: usize,
    /// Input.
    pub came: Amount,
    /// With which classes blocks left, and how many; in words where the node has names for them.
    pub answered: BTreeMap<String, u64>,
    /// Blocks that no arc behind it wanted.
    pub unselected: u64,
    /// Blocks that came out and had not come in.
    pub made: u64,
    /// Blocks that were used up.
    pub consumed: u64,
    /// Blocks that had to wait, how long the longest did in ns, and how many were let go.
    pub held: u64,
    /// The longest wait, in ns.
    pub held_max: Time,
    /// Held blocks that left.
    pub released: u64,
    /// Blocks that ended here, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Unanswered blocks, by reason.
    pub unanswered: BTreeMap<String, u64>,
    /// The numbers of the packets (as they came, from 1) whose frames came or left here.
    pub packets: Vec<u64>,
}

/// A question about a flow, put to a path that is built with it.
#[derive(Debug)]
pub struct Why {
    /// For each node of the plan, the names of its classes, and the node that numbers the sessions
    /// of its blocks: the request's numbering, or in older records that of one filter.
    nodes: Vec<(Classes, usize)>,
    /// The node before each.
    above: Vec<usize>,
    asked: Mutex<Asked>,
}

#[derive(Debug)]
struct Asked {
    matcher: Matcher,
    rows: BTreeMap<usize, Row>,
    /// Sessions of the flow, with the filter that numbered them.
    sessions: HashSet<(usize, u32)>,
    /// Held blocks by node, each with the time since when.
    held: HashMap<(usize, u64), Time>,
    /// Packet numbers of the flow's frames, by key.
    numbers: HashMap<u64, u64>,
    /// Number of packets so far, by source.
    packets: HashMap<usize, u64>,
}

/// Maximum number of frames remembered by number, and of packets listed per node.
const NUMBERS_MAX: usize = 1 << 20;

impl Why {
    /// Asks about the frames that this expression matches, of a path of this graph and this tape.
    pub fn new(expression: &str, graph: &Graph, tape: &Tape) -> Result<Self, Mistake> {
        let mut arguments = Arguments::default();
        arguments.set("expression", Value::Text(expression.to_owned()));
        let matcher = Matcher::new(arguments)?;
        let domain = |id| match tape.numbers_each_for_itself() {
            true => domain(graph, id),
            false => 0,
        };
        let nodes = graph.ids().map(|(id, _)| (classes(graph, id), domain(id))).collect();
        let asked = Asked {
            matcher,
            rows: BTreeMap::new(),
            sessions: HashSet::new(),
            held: HashMap::new(),
            numbers: HashMap::new(),
            packets: HashMap::new(),
        };
        let above = |(id, _): (NodeId, &_)| {
            graph.inputs(id).find(|edge| !edge.back).map_or(id.0, |edge| edge.from.0)
        };
        let above = graph.ids().map(above).collect();
        Ok(Self { nodes, above, asked: Mutex::new(asked) })
    }

    /// Returns the fate of the flow, by node of the plan.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.asked().rows.values().cloned().collect()
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an observer that asks this question of a space.
    pub(crate) fn observer(self: &Arc<Self>) -> Box<dyn Observer> {
        Box::new(FlowObserver { why: Arc::clone(self), running: Vec::new() })
    }

    /// A block comes from a source, which numbers it.
    fn begins(&self, planned: usize, block: &Block<'_>) {
        let mut asked = self.asked();
        let number = asked.packets.entry(planned).or_default();
        *number += 1;
        let number = *number;
        if block.marks.is_frame()
            && asked.matcher.matches(block)
            && asked.numbers.len() < NUMBERS_MAX
        {
            asked.numbers.entry(key(block)).or_insert(number);
        }
    }

    /// A block comes to a node; answers whether it is of the flow.
    fn comes(&self, planned: usize, block: &Block<'_>) -> bool {
        let mut asked = self.asked();
        let above = self.above.get(planned).copied().unwrap_or(planned);
        let domain = self.nodes.get(above).map_or(0, |(_, domain)| *domain);
        if !asked.is_ours(domain, block) {
            return false;
        }
        let number = asked.numbers.get(&key(block)).copied();
        let row = asked.row(planned);
        row.came.add(block.length());
        row.number(number);
        true
    }

    /// Derives a node's action on a block of the flow from its counters before and after;
    /// forwarding shows only when the block leaves.
    fn did(
        &self,
        planned: usize,
        (before, after): (&Counts, &Counts),
        (reasons, block, now): (&[&str], u64, Time),
    ) {
        let mut asked = self.asked();
        if after.held.blocks > before.held.blocks {
            asked.held.insert((planned, block), now);
            asked.row(planned).held += 1;
        }
        let row = asked.row(planned);
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

    /// A block leaves a node; `wanted`: an arc takes it.
    fn leaves(&self, planned: usize, block: &Block<'_>, wanted: bool, now: Time) {
        let mut asked = self.asked();
        let (classes, domain) = self.nodes.get(planned).copied().unwrap_or((Classes::Same, 0));
        if !asked.is_ours(domain, block) {
            return;
        }
        let session = block.context.session;
        if block.marks.is_frame() && session != 0 {
            asked.sessions.insert((domain, session));
        }
        let name = key(block);
        let since = asked.held.remove(&(planned, name));
        let number = asked.numbers.get(&name).copied();
        let row = asked.row(planned);
        row.number(number);
        *row.answered.entry(class_name(classes, block.pointer.class.0)).or_default() += 1;
        row.unselected += u64::from(!wanted);
        row.made += u64::from(number.is_none());
        if let Some(since) = since {
            row.released += 1;
            row.held_max = row.held_max.max(now.saturating_sub(since));
        }
    }
}

/// A question about a flow as one space is asked it.
#[derive(Debug)]
struct FlowObserver {
    why: Arc<Why>,
    /// For each node that runs the block of the flow that came, and what the node had counted.
    running: Vec<Option<(u64, Counts)>>,
}

/// Returns true if a node is one of the request, not the end of a ring.
const fn is_of_request(node: &Node) -> bool {
    !matches!(node.part, Part::Export(_) | Part::Pass)
}

impl Observer for FlowObserver {
    fn begins(&mut self, node: &Node, batch: &Batch<'_>) {
        let blocks = lanes(batch.live()).filter(|_| is_of_request(node)).map(|l| batch.block(l));
        let ours = blocks.filter(|block| self.why.comes(node.planned, block));
        // Where a filter let go several, they were routed one by one.
        let running = match *ours.collect::<Vec<_>>() {
            [block] => Some((key(&block), node.counts.clone())),
            _ => None,
        };
        self.running.push(running);
    }

    fn done(&mut self, node: &mut Node, now: Time) {
        if let Some((block, before)) = self.running.pop().flatten() {
            self.why.did(node.planned, (&before, &node.counts), (node.reasons, block, now));
        }
    }

    fn routed(&mut self, node: &Node, batch: &Batch<'_>, wanted: LaneMask, now: Time) {
        for l in lanes(batch.live()).filter(|_| is_of_request(node)) {
            let block = batch.block(l);
            if matches!(node.part, Part::Source(_)) {
                self.why.begins(node.planned, &block);
            }
            self.why.leaves(node.planned, &block, wanted >> l & 1 != 0, now);
        }
    }

    fn splits_batches(&self) -> bool {
        true
    }
}

impl Asked {
    fn row(&mut self, planned: usize) -> &mut Row {
        self.rows.entry(planned).or_insert_with(|| Row { planned, ..Row::default() })
    }

    fn is_ours(&mut self, domain: usize, block: &Block<'_>) -> bool {
        match block.marks.is_frame() && !block.pointer.is_hole() {
            true => self.matcher.matches(block),
            false => self.sessions.contains(&(domain, block.context.session)),
        }
    }
}

impl Row {
    /// Notes the number of a packet, once.
    fn number(&mut self, number: Option<u64>) {
        let Some(number) = number else { return };
        if let (Err(at), true) =
            (self.packets.binary_search(&number), self.packets.len() < NUMBERS_MAX)
        {
            self.packets.insert(at, number);
        }
    }
}

/// Returns a key that identifies a frame wherever it lies, from its time and its bytes.
fn key(block: &Block<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(block.context.time);
    hasher.write(block.frame);
    hasher.finish()
}

/// Returns the class names behind a node: its own, or those of the nearest node before it.
fn classes(graph: &Graph, id: NodeId) -> Classes {
    let mut at = id;
    for _ in 0..graph.nodes.len() {
        let own = graph.node(at).filter().map_or(Classes::Same, |used| used.description.classes);
        let above = graph.inputs(at).find(|edge| !edge.back).map(|edge| edge.from);
        match (own, above) {
            (Classes::Same, Some(above)) => at = above,
            (own, _) => return own,
        }
    }
    Classes::Same
}

/// The filter that gave blocks behind a node their sessions: it, or the nearest before it.
fn domain(graph: &Graph, id: NodeId) -> usize {
    let mut at = id;
    for _ in 0..graph.nodes.len() {
        let used = graph.node(at).filter();
        if used.is_some_and(|used| used.description.state.numbers) {
            break;
        }
        let Some(above) = graph.inputs(at).find(|edge| !edge.back) else { break };
        at = above.from;
    }
    at.0
}

fn class_name(classes: Classes, class: u32) -> String {
    match (classes, class) {
        (_, 0) => "no answer".to_owned(),
        (Classes::YesNo | Classes::Same, 1) => "yes".to_owned(),
        (Classes::Number { names, .. }, class) => {
            let value = if class == abi::Class::ZERO.0 { 0 } else { class };
            let name = names.iter().find(|(_, named)| *named == value);
            name.map_or_else(|| value.to_string(), |(name, _)| (*name).to_owned())
        }
        (_, class) => class.to_string(),
    }
}
