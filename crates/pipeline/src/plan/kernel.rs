//! The kernel space: which nodes it can run, and which programs a plan makes of those.
//!
//! In: a graph and what was refused before; out: verdicts for the selection, and the programs of a
//! finished plan. [SL §5.3, §7.1; CONTRACT 1 to 3, 18, 29]
//!
//! What runs in the kernel is a tree: a source that a program can stand for, and behind it filters
//! whose twins can be joined to those before them. Where branches meet, a section begins or a
//! cycle closes, the path has left the kernel. Lines that begin at one interface and go the same
//! way are one program, and what they do alike from its beginning on is done once: **prefix
//! sharing**. All of it is newly initialised, so filters that keep something may be shared too.
//!
//! What a twin does not say (the session that `ip` and `udp` set, marks and view) is no matter of
//! the plan: whoever takes a block up behind its edge gives it what the user implementations of the
//! filters on its way would have given it.

use super::{Kernel, Machine, Placed, PlannedSpace, RingPlan, SpaceKind, edges};
use crate::classes::ClassSet;
use crate::graph::{Edge, EdgeId, Graph, Node, NodeId, Step, Use};
use filter::{Attach, Classes, Keeps, Kind, expressible, target};

/// A refusal at load time: by the verifier, the loader or an interface. The planner is asked again
/// and places the node elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The node.
    pub node: NodeId,
    /// The reason, in the words of the refusing party.
    pub why: String,
}

/// One program of the kernel space: all that begins at one interface and goes the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The attachment point.
    pub attach: Attach,
    /// The sources that it stands for.
    pub sources: Vec<NodeId>,
    /// The steps for a frame, each behind the one from which its blocks come.
    pub steps: Vec<ProgramStep>,
    /// The output: the number of an edge here is that of its ring's sink.
    pub leaves: Vec<Leave>,
    /// The memory in which frames and pointers to them leave, be it only those that a twin is
    /// unsure of.
    pub ring: KernelRing,
}

/// A filter in a program. Several nodes that do the same with the same frames are one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStep {
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// The step before it, none if that is the frame as it came.
    pub from: Option<usize>,
    /// The classes with which a block must leave the step before.
    pub classes: ClassSet,
}

/// An edge that leaves the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// The edge.
    pub edge: EdgeId,
    /// The step that it leaves, none if the source.
    pub from: Option<usize>,
    /// The classes that take it.
    pub classes: ClassSet,
}

/// The size of the rings of a program, and when it rings its bell. One region for each processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRing {
    /// Pointers for each edge.
    pub pointers: u32,
    /// Bytes of records.
    pub bytes: u32,
    /// The most bytes of a frame.
    pub record_max: u32,
    /// The bell rings after this many blocks (T_b),
    pub signal_blocks: u32,
    /// if so many ns have passed since the last time (T_min);
    pub apart_ns: u64,
    /// or after this time in any case (T_t).
    pub signal_ns: u64,
}

/// Bytes of the records of a processor: 20 ms of 1500-byte frames at 1.6 Gbit/s, and what fits a
/// last-level cache.
const BYTES: u32 = 4 << 20;
/// The most bytes of a frame: 64 KB that the kernel has joined, with its Ethernet header and tags.
const RECORD_MAX: u32 = (64 << 10) + 64;

/// Returns the reason why the kernel cannot run a node, whatever is chosen for the others.
pub(super) fn refusal(
    graph: &Graph,
    id: NodeId,
    machine: &Machine,
    refused: &[Refused],
) -> Option<String> {
    let hardened = match &machine.kernel {
        Kernel::Closed { why, .. } => return Some(why.clone()),
        Kernel::Open { hardened, .. } => *hardened,
    };
    let way = match way(graph, id) {
        Ok(way) => way,
        Err(why) => return Some(why),
    };
    if let Some(found) = refused.iter().find(|refused| refused.node == id) {
        return Some(found.why.clone());
    }
    let before = way.iter().find(|before| refused.iter().any(|refused| refused.node == **before));
    if let Some(before) = before {
        return Some(format!("behind `{}`, which the kernel refused", graph.node(*before).name()));
    }
    let chain = way.iter().skip(1).filter_map(|id| graph.node(*id).filter());
    let chain: Vec<_> = chain.map(|used| (used.description, &used.arguments)).collect();
    let attach = way.first().and_then(|head| source(graph.node(*head)).ok())?;
    if attach.takes && way.len() == 1 {
        return alone(graph, id, machine, refused);
    }
    let (at, why) = expressible(&chain, target(&attach, hardened)).err()?;
    let first = way.get(at + 1).copied().unwrap_or(id);
    Some(if first == id { why } else { behind(graph, first) })
}

/// Returns the reason why no process can read a source, if only programs see its frames.
pub(super) fn only_in_kernel(node: &Node) -> Option<&'static str> {
    let own = source(node).is_ok_and(|attach| attach.own);
    own.then_some(
        "only a program in the kernel sees what sockets exchange; a daemon of root's (`sudo \
         streamline daemon`) runs it for whoever may not",
    )
}

/// Returns the reason why a source that takes frames is better read in a process: a program that
/// only hands on is one hop more.
fn alone(graph: &Graph, id: NodeId, machine: &Machine, refused: &[Refused]) -> Option<String> {
    let mut behind = graph.outputs(id).map(|edge| edge.to);
    let runs = |id: NodeId| {
        let pin = graph.node(id).filter().and_then(|used| used.pin.as_deref());
        pin.is_none_or(|pin| pin == "kernel") && refusal(graph, id, machine, refused).is_none()
    };
    if behind.any(runs) {
        return None;
    }
    Some("nothing behind it runs there, and what is taken comes by sockets of AF_XDP".to_owned())
}

/// The nodes from the source to this one, or why it cannot run in the kernel.
fn way(graph: &Graph, id: NodeId) -> Result<Vec<NodeId>, String> {
    let way = upstream(graph, id);
    let head = way.first().copied().unwrap_or(id);
    let node = graph.node(head);
    let feeds = node.filter().is_some_and(|used| used.endpoint.attaches.is_some());
    if node.kind() != Some(Kind::Source) {
        return Err("no source in the kernel".to_owned());
    }
    if head != id && !feeds {
        return Err(format!("`{}` gives its blocks in a process", node.name()));
    }
    let told = |at: NodeId, why: String| if at == id { why } else { behind(graph, at) };
    let attach = source(node).map_err(|why| told(head, why))?;
    for at in way.iter().skip(1) {
        fits(graph, *at, attach.takes).map_err(|why| told(*at, why))?;
        is_observed(graph.node(*at)).map_err(|why| told(*at, why))?;
        has_sessions(graph, *at).map_err(|why| told(*at, why))?;
        leads(graph.node(*at), &attach).map_err(|why| told(*at, why))?;
        let is_last = is_last_word(graph.node(*at), attach.takes);
        if is_last && !is_alone(graph, &way, *at, &attach) {
            let why = "does something with a frame that others get, too";
            return Err(told(*at, why.to_owned()));
        }
    }
    Ok(way)
}

/// Refuses a filter of which others see what it knows: what a twin keeps lies in maps of each
/// processor, and whoever reads them makes a system call for each.
fn is_observed(node: &Node) -> Result<(), String> {
    match node.filter().and_then(Use::published_as) {
        None => Ok(()),
        Some(_) => Err("others see what it knows (`state=`), which a thread writes".to_owned()),
    }
}

/// Refuses a filter that tells sessions apart, which its twin does not, where somebody behind it
/// may ask for them.
fn has_sessions(graph: &Graph, id: NodeId) -> Result<(), String> {
    let used = graph.node(id).filter();
    if !used.is_some_and(|used| used.description.state.numbers) {
        return Ok(());
    }
    match below(graph, id).into_iter().find(|id| may_ask_session(graph.node(*id))) {
        None => Ok(()),
        Some(asks) => {
            let name = graph.node(asks).name();
            Err(format!("`{name}` behind it may ask for sessions, which a twin sets not"))
        }
    }
}

/// Returns true if a node may read the session of a block. A filter with a twin does not: twins
/// know no sessions and answer the same.
fn may_ask_session(node: &Node) -> bool {
    let Some(used) = node.filter() else { return false };
    let description = used.description;
    let plain = ["pcap", "discard"].contains(&description.name);
    let decides = description.classes != Classes::Same && description.state.keeps == Keeps::Nothing;
    !(plain || decides || description.kernel.is_some())
}

/// All nodes behind one, and the operands of sections among them.
fn below(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut found = vec![id];
    let mut next = 0;
    while let Some(at) = found.get(next).copied() {
        next += 1;
        let inside = graph.ids().filter(|(_, node)| node.inside == Some(at)).map(|(id, _)| id);
        for new in graph.outputs(at).map(|edge| edge.to).chain(inside) {
            if !found.contains(&new) {
                found.push(new);
            }
        }
    }
    found.remove(0);
    found
}

/// From where everything begins that comes to a node over its first edge, down to the node.
fn upstream(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut way = vec![id];
    let mut at = id;
    while let Some(edge) = graph.inputs(at).find(|edge| !edge.back) {
        at = edge.from;
        way.push(at);
    }
    way.reverse();
    way
}

fn behind(graph: &Graph, id: NodeId) -> String {
    format!("behind `{}`, which cannot run there", graph.node(id).name())
}

/// Returns true if the twin of a node changes the frame or ends its way, so that no other branch
/// can have the frame as it was. Where a program takes frames, a frame sent out goes nowhere else;
/// where it observes, a copy is sent.
fn is_last_word(node: &Node, takes: bool) -> bool {
    let changes = node.kind() == Some(Kind::Editing);
    let of = |used: &Use| {
        used.description.kind == Kind::Editing || takes && used.endpoint.outlet.is_some()
    };
    changes || node.filter().is_some_and(of)
}

/// Refuses a sink that sends frames out where a program at this place cannot.
fn leads(node: &Node, attach: &Attach) -> Result<(), String> {
    let Some(outlet) = node.filter().and_then(Use::outlet) else { return Ok(()) };
    if attach.own {
        return Err("what sockets exchange has no link header to leave with".to_owned());
    }
    if outlet.netns != attach.netns {
        let why = "a program sends within the name space in which it stands";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Returns true if no other node gets the blocks that come to a node over a way: no branch before
/// it selects them, and no other line is attached at the same place.
fn is_alone(graph: &Graph, way: &[NodeId], at: NodeId, attach: &Attach) -> bool {
    let steps = way.iter().zip(way.iter().skip(1));
    let mut steps = steps.take_while(|(before, _)| **before != at);
    let alone = steps.all(|(before, next)| {
        let ours = |edge: &&Edge| edge.to == *next;
        let Some(this) = graph.outputs(*before).find(ours) else { return false };
        let mut others = graph.outputs(*before).filter(|edge| !ours(edge));
        others.all(|other| other.classes.intersection(&this.classes).ranges().is_empty())
    });
    let heads = graph.ids().filter(|(_, node)| node.kind() == Some(Kind::Source));
    alone && heads.filter(|(_, node)| source(node).as_ref() == Ok(attach)).count() == 1
}

/// Returns the attachment point of a source.
fn source(node: &Node) -> Result<Attach, String> {
    let attach = node.filter().and_then(Use::attach);
    attach.unwrap_or_else(|| Err("reads in a process".to_owned()))
}

/// Checks that a node other than a source can be a step of a program, as far as the node alone
/// tells.
fn fits(graph: &Graph, id: NodeId, takes: bool) -> Result<(), String> {
    let node = graph.node(id);
    let mut comes = graph.inputs(id);
    let several = comes.next().is_some() && comes.next().is_some();
    let around = graph.inputs(id).chain(graph.outputs(id)).any(|edge| edge.back);
    let changes = node.kind() == Some(Kind::Editing);
    let why = match &node.step {
        Step::Merge => "merges sources, which takes a thread",
        Step::Boolean(_) => "a section, which runs in one thread",
        Step::Unknown => "not known",
        Step::Filter(_) if around => "part of a cycle, which runs in one thread",
        Step::Filter(_) if several => "branches meet, which takes a thread",
        Step::Filter(used) if used.description.kernel.is_none() => "no twin",
        Step::Filter(_) if changes && !takes => {
            "changes frames that the host is to get as they are"
        }
        Step::Filter(_) => return Ok(()),
    };
    Err(why.to_owned())
}

/// The programs of a plan: one for each attach point.
pub(super) fn programs(
    graph: &Graph,
    spaces: &[PlannedSpace],
    placed: &[Placed],
    ring: &KernelRing,
) -> Vec<Program> {
    let inside = |id: NodeId| {
        let place = placed.get(id.0).and_then(|placed| spaces.get(placed.space));
        place.is_some_and(|space| space.kind == SpaceKind::Kernel)
    };
    made(graph, &inside, ring)
}

/// The programs that run these nodes of a graph whose ends are complete, as a plan that places them
/// in the kernel has them. For who is asked to run what somebody else has planned: nothing is taken
/// on trust but which nodes these are.
pub fn programs_of(
    graph: &Graph,
    nodes: &[NodeId],
    machine: &Machine,
    ring: &KernelRing,
) -> Result<Vec<Program>, Refused> {
    for &node in nodes {
        let known = node.0 < graph.nodes.len();
        let why = if known {
            refusal(graph, node, machine, &[])
        } else {
            Some("the line has no such node".into())
        };
        if let Some(why) = why {
            return Err(Refused { node, why });
        }
    }
    Ok(made(graph, &|id| nodes.contains(&id), ring))
}

fn made(graph: &Graph, inside: &dyn Fn(NodeId) -> bool, ring: &KernelRing) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    for (id, node) in graph.ids().filter(|(id, _)| inside(*id)) {
        let (Some(Kind::Source), Ok(attach)) = (node.kind(), source(node)) else { continue };
        let known = programs.iter().position(|program| program.attach == attach);
        let at = known.unwrap_or_else(|| {
            let (sources, steps, leaves) = (Vec::new(), Vec::new(), Vec::new());
            programs.push(Program { attach, sources, steps, leaves, ring: ring.clone() });
            programs.len() - 1
        });
        programs[at].sources.push(id);
        programs[at].follow(graph, id, None, inside);
    }
    programs
}

impl Program {
    /// Takes in what follows a node that is the step `from`.
    fn follow(
        &mut self,
        graph: &Graph,
        id: NodeId,
        from: Option<usize>,
        inside: &dyn Fn(NodeId) -> bool,
    ) {
        for (number, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == id) {
            let classes = edge.classes.clone();
            if inside(edge.to) {
                let step = self.step(graph, edge.to, from, classes);
                self.follow(graph, edge.to, Some(step), inside);
            } else {
                self.leaves.push(Leave { edge: EdgeId(number), from, classes });
            }
        }
    }

    /// The step that a node is: one that does the same with the same frames, or a new one.
    fn step(&mut self, graph: &Graph, id: NodeId, from: Option<usize>, classes: ClassSet) -> usize {
        let same = |step: &ProgramStep| {
            let first = step.nodes.first().and_then(|first| graph.node(*first).filter());
            let alike = first.zip(graph.node(id).filter()).is_some_and(|(one, other)| {
                let same = std::ptr::eq(one.description, other.description);
                // Who sends a frame twice means two frames.
                same && one.arguments == other.arguments && one.endpoint.outlet.is_none()
            });
            step.from == from && step.classes == classes && alike
        };
        if let Some(known) = self.steps.iter().position(same) {
            self.steps[known].nodes.push(id);
            return known;
        }
        self.steps.push(ProgramStep { nodes: vec![id], from, classes });
        self.steps.len() - 1
    }

    /// The steps that several nodes share, and those nodes.
    pub fn shared(&self) -> impl Iterator<Item = &[NodeId]> {
        self.steps.iter().filter(|step| step.nodes.len() > 1).map(|step| step.nodes.as_slice())
    }

    /// Returns true if the edge of this number leaves the program.
    #[must_use]
    pub fn leaves(&self, edge: usize) -> bool {
        self.leaves.iter().any(|leave| leave.edge.0 == edge)
    }

    /// The step that a node is.
    #[must_use]
    pub fn step_of(&self, node: NodeId) -> Option<usize> {
        self.steps.iter().position(|step| step.nodes.contains(&node))
    }
}

impl Default for KernelRing {
    /// Returns the ring of a line that sets neither batches nor latency.
    fn default() -> Self {
        Self::of(&edges::usual_out_of_kernel())
    }
}

impl KernelRing {
    /// Returns the ring of a program whose edges are rings like this.
    pub(super) fn of(ring: &RingPlan) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            pointers: number(ring.entries),
            bytes: BYTES,
            record_max: RECORD_MAX,
            signal_blocks: number(ring.signal_blocks),
            // A bell costs 12 us on a virtual machine, and 30 if somebody sleeps: as seldom as
            // there is time. [CONTRACT 29]
            apart_ns: ring.signal_ns / 2,
            signal_ns: ring.signal_ns,
        }
    }
}
