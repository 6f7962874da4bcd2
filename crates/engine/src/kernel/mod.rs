//! Kernel spaces: the part of a plan that runs as a program at an interface. [SL §5.3, §7.1]
//!
//! - [`tree`]: what one line does there;
//! - [`joint`]: what several lines do there, with what they have in common done once;
//! - [`assemble`]: that as one program;
//! - [`load`]: the program as the kernel takes it;
//! - [`taking`]: a program that takes frames from the host, which is one line's alone;
//! - [`point`]: the interface, where lines come and go while the program runs;
//! - [`handout`]: a line for a process that may not load programs;
//! - [`told`]: what was counted there, as nodes and edges of the ledger.
//!
//! The user implementation of every filter stands behind the program in the first thread of its
//! part, for the blocks that the twin is unsure of (CONTRACT 18); what both have counted is added
//! up at the end. Nothing is pinned: what was attached goes away with its path, or with the process
//! however it ends.

mod assemble;
mod ended;
pub mod handout;
mod host;
mod joint;
mod load;
pub mod point;
mod taking;
mod timing;
mod told;
mod tree;

pub use host::{Asked, Held, Host, Lent, NotSwitched, Refuses, Succeeds, Successor};
pub use told::ProgramRan;
pub(crate) use told::SoFar;

use crate::error::BuildError;
use crate::numbering::Ids;
use ebpf::emit::tap::{self, WakePolicy, Wakeup};
use ebpf::emit::user_sockets;
use endpoint::source::kernel::place::Place;
use endpoint::source::kernel::{Edge, KernelSource, Parts, Standing};
use endpoint::{Opening, Seen, Source};
use host::{Refusal, closed};
use pipeline::Share;
use pipeline::graph::{Graph, NodeId, Use};
use pipeline::plan::{KernelRing, Program as Planned};
use point::{New, Points};
use runtime::ledger::loses_of_kernel;
use std::sync::Arc;
use sys::bpf::RingsLayout;
use sys::bpf::ring::region_offset;
use sys::machine::Capabilities;
use sys::privilege::Privilege;
use timing::Timing;
use tree::{Step, Tree};

/// The kernel part of a path at one interface, with its history.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The era that runs now.
    pub(crate) era: Era,
    /// Earlier eras, oldest first.
    before: Vec<Era>,
    /// As long as it is there, the kernel counts the time of programs.
    timing: Option<Timing>,
    place: Place,
}

/// The kernel part of a path between two changes.
#[derive(Debug)]
pub(crate) struct Era {
    /// The graph of the plan, and the numbers of its nodes and edges.
    graph: Arc<Graph>,
    ids: Ids,
    /// The source that it stands for; of several, the first.
    source: NodeId,
    /// The tree of its filters.
    pub(crate) tree: Tree,
    /// The sources of this part that it stands for.
    sources: Vec<NodeId>,
    standing: Arc<dyn Held>,
    /// The number of the source among those of the path.
    origin: u16,
    /// Totals that the process had taken when the era ended.
    taken: Option<Seen>,
}

/// The prepared successor of an era.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) era: Era,
    /// The handle that performs the switch.
    pub(crate) switch: Box<dyn Succeeds>,
}

/// A line that runs there, and what hands over in this process what it gives.
type Opened = (Arc<dyn Held>, Box<dyn Source>);

/// Returns true if the verifier treats programs of this process as privileged (CAP_PERFMON or
/// CAP_SYS_ADMIN).
pub(crate) fn is_trusted() -> bool {
    let may = Privilege::detect().effective;
    may.has(Capabilities::PERFMON) || may.has(Capabilities::SYS_ADMIN)
}

/// A line at an interface for as long as its path runs, whatever was put in its place meanwhile.
#[derive(Debug)]
struct Line {
    held: Arc<dyn Held>,
    before: Vec<Arc<dyn Held>>,
}

impl Standing for Line {
    fn leave(&self) {
        self.held.leave();
    }

    fn frames(&self) -> Option<u64> {
        let all = self.before.iter().chain([&self.held]).map(|held| held.ended());
        all.map(|ended| (!ended.lost).then_some(ended.counted.ran.blocks)).sum()
    }

    fn lost(&self) -> Option<endpoint::Failure> {
        self.held.lost()
    }
}

/// Input for building a kernel space.
pub(crate) struct Wanted<'p> {
    pub(crate) graph: &'p Graph,
    /// The numbers of its nodes and edges.
    pub(crate) ids: &'p Ids,
    pub(crate) planned: &'p Planned,
    /// The nodes of this part.
    pub(crate) nodes: &'p [NodeId],
    /// The number of the source among those of the path.
    pub(crate) origin: u16,
    /// The host that adds it.
    pub(crate) host: &'p dyn Host,
    /// True if programs must load without CAP_PERFMON.
    pub(crate) hardened: bool,
    pub(crate) refuses: Refuses,
    /// True if the kernel shall measure the time of its runs, where permitted.
    pub(crate) timed: bool,
    /// Options that the source would open with in a process.
    pub(crate) opening: &'p Opening<'p>,
}

/// The most time between two bells that a program can count with, in ns.
const WAIT_MAX: u64 = i32::MAX as u64;

impl Kernel {
    /// Adds a line to the program of its interface, and opens what that hands over.
    pub(crate) fn build(wanted: &Wanted<'_>) -> Result<(Self, Box<dyn Source>), BuildError> {
        let Wanted { planned, timed, .. } = *wanted;
        let asked = wanted.asked();
        let place = Place::find(&planned.attach).map_err(|why| closed(why, asked.source))?;
        let timing = timed.then(Timing::begin).flatten();
        let (standing, gives): Opened = match planned.attach.takes {
            true => taking::build(wanted, &asked.tree(), (asked.source, &place))?,
            false => wanted.opened(wanted.host.add(&asked)?, place.clone(), Vec::new()),
        };
        let era = wanted.era(standing);
        Ok((Self { era, before: Vec::new(), place, timing }, gives))
    }

    /// Makes what is to run in the place of what runs, and what then hands over.
    pub(crate) fn successor(
        &self,
        wanted: &Wanted<'_>,
    ) -> Result<(Next, Box<dyn Source>), BuildError> {
        let asked = wanted.asked();
        let stays = self.era.stays_in(&asked.tree(), wanted.ids);
        let standing = Arc::clone(&self.era.standing);
        let Successor { lent, switch } = standing.successor(&asked, &stays)?;
        let before = self.eras().map(|era| Arc::clone(&era.standing)).collect();
        let (standing, gives) = wanted.opened(lent, self.place.clone(), before);
        Ok((Next { era: wanted.era(standing), switch }, gives))
    }

    /// Goes on with what was put in the place of what ran, of which so much had been taken.
    pub(crate) fn goes_on(&mut self, era: Era, taken: Seen) {
        let mut old = std::mem::replace(&mut self.era, era);
        old.taken = Some(taken);
        self.before.push(old);
    }
}

impl Era {
    /// The number of the source that it stands for.
    pub(crate) fn first(&self) -> usize {
        self.ids.nodes[self.source.0]
    }

    /// The number of that source among those of the path.
    pub(crate) const fn origin(&self) -> u16 {
        self.origin
    }

    /// The steps that are the same filters in another tree: the numbers here and there.
    fn stays_in(&self, tree: &Tree, ids: &Ids) -> Vec<(usize, usize)> {
        let number = |ids: &Ids, step: &Step| step.nodes.first().map(|id| ids.nodes[id.0]);
        let theirs = |step: &Step| {
            let own = number(&self.ids, step);
            tree.steps.iter().position(|other| number(ids, other) == own)
        };
        let all = self.tree.steps.iter().enumerate();
        all.filter_map(|(own, step)| Some((own, theirs(step)?))).collect()
    }
}

impl<'p> Wanted<'p> {
    fn asked(&self) -> Asked<'p> {
        let Wanted { graph, planned, hardened, refuses, .. } = *self;
        let source = self.sources().first().copied().unwrap_or(NodeId(0));
        let (nodes, steps) = (self.nodes, self.opening.steps);
        Asked { graph, planned, nodes, source, hardened, refuses, steps }
    }

    /// The sources of this part.
    fn sources(&self) -> Vec<NodeId> {
        let ours = |id: &NodeId| self.nodes.contains(id);
        self.planned.sources.iter().copied().filter(ours).collect()
    }

    /// Opens the source that reads a request's frames in this process; it succeeds those in
    /// `before`.
    fn opened(&self, lent: Lent, place: Place, before: Vec<Arc<dyn Held>>) -> Opened {
        let Lent { rings, bell, behind_tag, held } = lent;
        let tree = self.asked().tree();
        let ways = behind_tag.iter().zip(&tree.hands);
        let edges =
            ways.map(|(behind_tag, hand)| Edge { behind_tag: *behind_tag, sink: hand.sink });
        let gives = KernelSource::new(Parts {
            rings,
            bell,
            standing: Arc::new(Line { held: Arc::clone(&held), before }),
            place,
            edges: edges.collect(),
            origin: self.origin,
            wait_ns: self.planned.ring.signal_ns.min(WAIT_MAX),
            loses: loses_of_kernel(),
        });
        (held, Box::new(gives))
    }

    fn era(&self, standing: Arc<dyn Held>) -> Era {
        let (sources, origin) = (self.sources(), self.origin);
        let asked = self.asked();
        let (graph, ids) = (Arc::new(self.graph.clone()), self.ids.clone());
        let (source, tree) = (asked.source, asked.tree());
        Era { graph, ids, source, tree, sources, standing, origin, taken: None }
    }
}

impl Asked<'_> {
    /// Returns a fingerprint of the tree, equal in every process that understands the request
    /// alike.
    #[must_use]
    pub fn print(&self) -> u64 {
        self.tree().print(self.graph)
    }

    /// Returns the tree of its filters.
    fn tree(&self) -> Tree {
        Tree::new(self.planned, self.graph, |id| self.nodes.contains(&id))
    }

    /// The line with the interfaces by which it sends frames out.
    fn sending(&self, place: &Place, new: New) -> Result<New, BuildError> {
        let leads = leads(self.graph, &new.tree, place)?;
        Ok(New { leads, ..new })
    }

    /// The line as a point takes it, for this owner; it sends nothing out.
    fn new_line(&self, owner: u32) -> Result<New, BuildError> {
        let Self { graph, planned, source, refuses, steps, .. } = *self;
        let tree = self.tree();
        if !assemble::fits(&tree) {
            let (ways, sinks) = (tree.hands.len(), tree.sinks());
            let why = match ways > tap::EXITS_MAX as usize {
                true => {
                    format!(
                        "it leaves the kernel on {ways} ways, and a line has {}",
                        tap::EXITS_MAX
                    )
                }
                false => format!(
                    "a frame may leave the kernel on {sinks} ways at once, and a line has {}",
                    tap::DELIVERIES_MAX
                ),
            };
            // What stands before it stays.
            let node = tree.beyond(assemble::fits).unwrap_or(source);
            return Err(BuildError::Refused(Refusal { node, why }));
        }
        let asked = graph.node(source).filter().and_then(|used| used.arguments.number("ring"));
        let shape = shape(planned, tree.sinks(), asked)?;
        let share = Share::asked(graph);
        if share != Share::User && planned.attach.own {
            let why = format!(
                "what your own sockets exchange is for you alone: leave `--share={share}` out"
            );
            return Err(BuildError::Refused(Refusal { node: source, why }));
        }
        if let Some(refusal) = refuses.loading(&tree, graph, source) {
            return Err(BuildError::Refused(refusal));
        }
        let (graph, bell) = (Arc::new(graph.clone()), bell(&planned.ring, shape));
        Ok(New {
            owner,
            share,
            graph,
            tree,
            source,
            shape,
            bell,
            leads: Vec::new(),
            states: Vec::new(),
            about: String::new(),
            steps: steps.clone(),
        })
    }
}

impl Host for Points {
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError> {
        self.add_for(asked, sys::process::identity().0)
    }
}

impl Points {
    /// Adds a line for a user.
    fn add_for(&self, asked: &Asked<'_>, owner: u32) -> Result<Lent, BuildError> {
        let attach = &asked.planned.attach;
        let place = Place::find(attach).map_err(|why| closed(why, asked.source))?;
        let new = asked.sending(&place, asked.new_line(owner)?)?;
        self.put((attach, asked.hardened), &new)
    }
}

/// The steps that send frames out, and the numbers of the interfaces by which they do.
fn leads(graph: &Graph, tree: &Tree, place: &Place) -> Result<Vec<(usize, u32)>, BuildError> {
    let mut found = Vec::new();
    for (number, step) in tree.steps.iter().enumerate() {
        let Some(node) = step.nodes.first().copied() else { continue };
        let Some(outlet) = graph.node(node).filter().and_then(Use::outlet) else { continue };
        if !Privilege::detect().effective.has(Capabilities::NET_RAW) {
            let why = "sending frames takes CAP_NET_RAW, in the kernel too".to_owned();
            return Err(BuildError::Refused(Refusal { node, why }));
        }
        let index = place.outlet(&outlet.interface).map_err(|why| closed(why, node))?;
        found.push((number, index));
    }
    Ok(found)
}

/// The refusal that a test injects.
const TESTED: &str = "the kernel refuses it, because a test says so";

impl Refuses {
    fn loading(self, tree: &Tree, graph: &Graph, source: NodeId) -> Option<Refusal> {
        let why = TESTED.to_owned();
        match self {
            Self::Nothing => None,
            Self::Loading | Self::Attaching => Some(Refusal { node: source, why }),
            Self::Filter(name) => {
                let mut nodes = tree.steps.iter().filter_map(|step| step.nodes.first());
                let node = nodes.find(|id| graph.node(**id).name() == name)?;
                Some(Refusal { node: *node, why })
            }
        }
    }
}

/// The most pointers that a way out has on one processor, and the most bytes of records.
const POINTERS_MAX: u32 = 1 << 16;
const BYTES_MAX: u64 = 1 << 27;

/// The memory for what leaves to so many sinks: what the plan or the request says, and as many
/// pointers as frames of 256 bytes fit beside each other. Before sockets a processor has several
/// seats, of which all but the first two are hardly ever taken.
fn shape(planned: &Planned, sinks: usize, asked: Option<u64>) -> Result<RingsLayout, BuildError> {
    let ring = &planned.ring;
    let processors = sys::machine::possible_processors().map_err(BuildError::Machine)?;
    let (seats, part) =
        if planned.attach.own { (user_sockets::REGIONS_PER_CPU, 2) } else { (1, 1) };
    let cpus = u32::try_from(processors).unwrap_or(u32::MAX).saturating_mul(seats);
    let least = 2 * ring.record_max.next_power_of_two();
    let bytes = match asked {
        Some(all) => {
            let each = (all / u64::from(cpus)).clamp(least.into(), BYTES_MAX);
            1 << each.ilog2()
        }
        None => (ring.bytes / part).max(least),
    };
    Ok(RingsLayout {
        cpus,
        sinks: u32::try_from(sinks).unwrap_or(u32::MAX).max(1),
        pointers: (bytes / 256).clamp(ring.pointers, POINTERS_MAX.max(ring.pointers)),
        bytes,
        record_max: ring.record_max,
    })
}

/// Returns the doorbell policy for rings of this shape. It wakes the source, which drains
/// notifications before it looks for frames.
#[must_use]
pub fn bell(ring: &KernelRing, shape: RingsLayout) -> WakePolicy {
    let ns = |ns: u64| u32::try_from(ns.min(WAIT_MAX)).unwrap_or(u32::MAX);
    WakePolicy {
        blocks: ring.signal_blocks.min(i32::MAX.unsigned_abs()),
        apart_ns: ns(ring.apart_ns),
        wait_ns: ns(ring.signal_ns),
        bytes: shape.bytes / 4,
        most: shape.pointers / 4,
        wakes: Wakeup::Consumer,
    }
}

// The two sides of the memory agree.
const _: () = {
    use tap::{POINTER, READERS_MAX, offset, record};
    assert!(
        offset::HEADS as u32 == region_offset::HEADS
            && offset::RESERVED as u32 == region_offset::RESERVED
    );
    assert!(
        offset::COMMITTED as u32 == region_offset::COMMITTED
            && offset::FAILED as u32 == region_offset::FAILED
    );
    assert!(
        offset::DOORBELL_TIME as u32 == region_offset::NOTIFY_TIME
            && offset::DOORBELLS as u32 == region_offset::NOTIFIED
    );
    assert!(
        offset::COUNTS as u32 == region_offset::COUNTS
            && tap::EXITS_MAX * 8 <= region_offset::POINTERS - region_offset::COUNTS
    );
    assert!(
        offset::TALLIES as u32 == region_offset::TALLIES
            && offset::END as u32 == region_offset::POINTERS
    );
    assert!(
        offset::CHOSEN as u32 == region_offset::SCRATCH && READERS_MAX == sys::bpf::ring::SINKS_MAX
    );
    assert!(POINTER == region_offset::POINTER && record::HEADER == region_offset::HEADER);
    assert!(record::ALIGNED == region_offset::ALIGNED);
};
