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
pub mod handout;
mod joint;
mod load;
pub mod point;
mod taking;
mod told;
mod tree;

pub use told::ProgramRan;
pub(crate) use told::Told;

use crate::build::BuildError;
use ebpf::emit::tap::{self, Bell};
use endpoint::source::kernel::place::{Closed, Place};
use endpoint::source::kernel::{Edge, KernelSource, Parts, Standing};
use endpoint::{Opening, Source};
use handout::Ended;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{KernelRing, Program as Planned, Refused};
use point::{New, Points, Steps};
use std::fmt;
use std::sync::Arc;
use sys::bpf::ring::place;
use sys::bpf::{RingBuffer, Rings, Shape, Statistics};
use tree::Tree;

/// What the kernel would not take, and whose fault it is.
pub(crate) type Refusal = Refused;

/// What a path runs in the kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The source that it stands for; of several, the first.
    pub(crate) source: NodeId,
    /// What it does.
    pub(crate) tree: Tree,
    /// The sources of this part that it stands for.
    sources: Vec<NodeId>,
    standing: Arc<dyn Held>,
    /// As long as it is there, the kernel counts the time of programs.
    _statistics: Option<Statistics>,
    place: Place,
}

/// Who adds lines to programs: this process, or somebody who may.
pub trait Host: fmt::Debug + Sync {
    /// Adds a line, or says why not, and then nothing has changed.
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError>;
}

/// A line that is to run in the kernel.
#[derive(Debug)]
pub struct Asked<'p> {
    /// What it is part of, its ends complete.
    pub graph: &'p Graph,
    /// The program of the plan, which may have nodes of other parts too.
    pub planned: &'p Planned,
    /// Which of its nodes are ours, ascending.
    pub nodes: &'p [NodeId],
    /// The first source among them.
    pub source: NodeId,
    /// Whether programs must load without CAP_PERFMON.
    pub hardened: bool,
    /// What a test has the kernel refuse.
    pub refuses: Refuses,
}

/// A line that runs in the kernel.
#[derive(Debug)]
pub struct Lent {
    /// Where what it hands over lies.
    pub rings: Arc<Rings>,
    /// What it rings.
    pub bell: RingBuffer,
    /// Of each way out, whether what is seen there begins behind a tag that may lie beside.
    pub behind_tag: Vec<bool>,
    /// What keeps it there.
    pub held: Arc<dyn Held>,
}

/// A line that runs in the kernel until it is told to leave.
pub trait Held: Standing {
    /// What it has left behind; it leaves if it has not.
    fn ended(&self) -> &Ended;
    /// The same object.
    fn standing(self: Arc<Self>) -> Arc<dyn Standing>;
}

/// What a test has the kernel refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Refuses {
    /// Nothing but what it refuses itself.
    #[default]
    Nothing,
    /// Loading any program.
    Loading,
    /// Putting any program at an interface.
    Attaching,
    /// The code of this filter.
    Filter(&'static str),
    /// The step of this number, of those in which a line is added.
    Step(u32),
}

/// What a kernel space is built from.
pub(crate) struct Wanted<'p> {
    pub(crate) graph: &'p Graph,
    pub(crate) planned: &'p Planned,
    /// Those of its nodes that are of this part.
    pub(crate) nodes: Vec<NodeId>,
    /// The number of the source among those of the path.
    pub(crate) origin: u16,
    /// Who adds it.
    pub(crate) host: &'p dyn Host,
    /// Whether programs must load without CAP_PERFMON.
    pub(crate) hardened: bool,
    pub(crate) refuses: Refuses,
    /// Whether the time of its runs is measured, where the kernel lets us.
    pub(crate) timed: bool,
    /// What the source would be told that reads in a process.
    pub(crate) opening: &'p Opening<'p>,
}

/// The most time between two bells that a program can count with, in ns.
const WAIT_MAX: u64 = i32::MAX as u64;

impl Kernel {
    /// Adds a line to the program of its interface, and opens what that hands over.
    pub(crate) fn build(wanted: &Wanted<'_>) -> Result<(Self, Box<dyn Source>), BuildError> {
        let Wanted { graph, planned, hardened, refuses, .. } = *wanted;
        let ours = |id: &NodeId| wanted.nodes.contains(id);
        let sources: Vec<NodeId> = planned.sources.iter().copied().filter(ours).collect();
        let source = sources.first().copied().unwrap_or(NodeId(0));
        let place = Place::find(&planned.attach).map_err(|why| closed(why, source))?;
        let nodes = &wanted.nodes;
        let asked = Asked { graph, planned, nodes, source, hardened, refuses };
        // Costs each run of every program 70 ns, so only where it was asked for.
        let statistics = wanted.timed.then(|| Statistics::enable().ok()).flatten();
        if planned.attach.takes {
            let (kernel, gives) = taking::build(wanted, place, asked.tree(), (source, sources))?;
            return Ok((Self { _statistics: statistics, ..kernel }, gives));
        }
        let Lent { rings, bell, behind_tag, held } = wanted.host.add(&asked)?;
        let edges = behind_tag.iter().map(|behind_tag| Edge { behind_tag: *behind_tag });
        let gives = KernelSource::new(Parts {
            rings,
            bell,
            standing: Arc::clone(&held).standing(),
            place: place.clone(),
            edges: edges.collect(),
            origin: wanted.origin,
            wait_ns: planned.ring.signal_ns.min(WAIT_MAX),
        });
        let tree = asked.tree();
        let kernel = Self { source, tree, sources, standing: held, place, _statistics: statistics };
        Ok((kernel, Box::new(gives)))
    }
}

impl Asked<'_> {
    /// What it does there.
    fn tree(&self) -> Tree {
        Tree::new(self.planned, self.graph, |id| self.nodes.contains(&id))
    }

    /// The line as a point takes it, for this owner.
    fn new_line(&self, owner: u32) -> Result<New, BuildError> {
        let Self { graph, planned, source, refuses, .. } = *self;
        let tree = self.tree();
        let (ways, most) = (tree.hands.len(), tap::HANDED_MAX);
        if ways > most as usize {
            let why = format!("it leaves the kernel on {ways} ways, and a line has {most}");
            return Err(BuildError::Refused(Refusal { node: source, why }));
        }
        let asked = graph.node(source).filter().and_then(|used| used.arguments.number("ring"));
        let shape = shape(&planned.ring, tree.hands.len(), asked)?;
        if let Some(refusal) = refuses.loading(&tree, graph, source) {
            return Err(BuildError::Refused(refusal));
        }
        let (graph, bell) = (Arc::new(graph.clone()), bell(&planned.ring, shape));
        Ok(New { owner, graph, tree, source, shape, bell, refuses })
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
        let point = self.at(&asked.planned.attach, asked.hardened);
        let point = point.map_err(|why| closed(why, asked.source))?;
        point.add(asked.new_line(owner)?).map_err(BuildError::Refused)
    }
}

fn closed(why: Closed, node: NodeId) -> BuildError {
    match why {
        Closed::Nobody(failure) => BuildError::Outside { node, failure },
        Closed::Program(why) => BuildError::Refused(Refusal { node, why }),
    }
}

/// What a test is told.
const TESTED: &str = "the kernel refuses it, because a test says so";

impl Refuses {
    fn loading(self, tree: &Tree, graph: &Graph, source: NodeId) -> Option<Refusal> {
        let why = TESTED.to_owned();
        match self {
            Self::Nothing | Self::Step(_) => None,
            Self::Loading | Self::Attaching => Some(Refusal { node: source, why }),
            Self::Filter(name) => {
                let mut nodes = tree.steps.iter().filter_map(|step| step.nodes.first());
                let node = nodes.find(|id| graph.node(**id).name() == name)?;
                Some(Refusal { node: *node, why })
            }
        }
    }

    /// The steps of adding a line, of which one may fail.
    const fn steps(self) -> Steps {
        match self {
            Self::Step(step) => Steps::failing_at(step),
            _ => Steps::NONE,
        }
    }
}

/// The most pointers that a way out has on one processor, and the most bytes of records.
const POINTERS_MAX: u32 = 1 << 16;
const BYTES_MAX: u64 = 1 << 27;

/// The memory for what leaves on so many ways: what the plan or the request says, and as many
/// pointers as frames of 256 bytes fit beside each other.
fn shape(ring: &KernelRing, ways: usize, asked: Option<u64>) -> Result<Shape, BuildError> {
    let cpus = sys::machine::possible_processors().map_err(BuildError::Machine)?;
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    let least = 2 * ring.record_max.next_power_of_two();
    let bytes = match asked {
        Some(all) => {
            let each = (all / u64::from(cpus)).clamp(least.into(), BYTES_MAX);
            1 << each.ilog2()
        }
        None => ring.bytes.max(least),
    };
    Ok(Shape {
        cpus,
        sinks: u32::try_from(ways).unwrap_or(u32::MAX).max(1),
        pointers: (bytes / 256).clamp(ring.pointers, POINTERS_MAX.max(ring.pointers)),
        bytes,
        record_max: ring.record_max,
    })
}

/// When the bell rings.
fn bell(ring: &KernelRing, shape: Shape) -> Bell {
    let ns = |ns: u64| u32::try_from(ns.min(WAIT_MAX)).unwrap_or(u32::MAX);
    Bell {
        blocks: ring.signal_blocks.min(i32::MAX.unsigned_abs()),
        apart_ns: ns(ring.apart_ns),
        wait_ns: ns(ring.signal_ns),
        bytes: shape.bytes / 4,
    }
}

// The two sides of the memory agree.
const _: () = {
    use tap::{POINTER, READERS_MAX, at, record};
    assert!(at::HEADS as u32 == place::HEADS && at::RESERVED as u32 == place::RESERVED);
    assert!(at::COMMITTED as u32 == place::COMMITTED && at::FAILED as u32 == place::FAILED);
    assert!(at::BELL_TIME as u32 == place::BELL_TIME && at::BELLS as u32 == place::BELLS);
    assert!(at::TALLIES as u32 == place::TALLIES && at::END as u32 == place::POINTERS);
    assert!(at::CHOSEN as u32 == place::SCRATCH && READERS_MAX == sys::bpf::ring::SINKS_MAX);
    assert!(POINTER == place::POINTER && record::HEADER == place::HEADER);
    assert!(record::ALIGNED == place::ALIGNED);
};
