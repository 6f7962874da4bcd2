//! Kernel spaces: the part of a plan that runs as a program at an interface. [SL §5.3, §7.1]
//!
//! - [`tree`]: what one line does there;
//! - [`joint`]: what several lines do there, with what they have in common done once;
//! - [`assemble`]: that as one program;
//! - [`load`]: the program as the kernel takes it;
//! - [`point`]: the interface, where lines come and go while the program runs;
//! - [`told`]: what was counted there, as nodes and edges of the ledger.
//!
//! The user implementation of every filter stands behind the program in the first thread of its
//! part, for the blocks that the twin is unsure of (CONTRACT 18); what both have counted is added
//! up at the end. Nothing is pinned: what was attached goes away with its path, or with the process
//! however it ends.

mod assemble;
mod joint;
mod load;
pub mod point;
mod told;
mod tree;

pub(crate) use told::Told;

use crate::build::BuildError;
use ebpf::emit::tap::{self, Bell};
use endpoint::source::kernel::place::{Closed, Place};
use endpoint::source::kernel::{Edge, KernelSource, Parts};
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{KernelRing, Program as Planned, Refused};
use point::{Added, New, Points, Standing, Steps};
use std::sync::Arc;
use sys::bpf::Shape;
use sys::bpf::ring::place;
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
    standing: Arc<Standing>,
    place: Place,
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
    /// The nodes of this part.
    pub(crate) ours: &'p dyn Fn(NodeId) -> bool,
    /// The number of the source among those of the path.
    pub(crate) origin: u16,
    /// Where programs are shared with other parts and paths.
    pub(crate) points: &'p Points,
    /// Whose line it is.
    pub(crate) owner: u32,
    /// Whether programs must load without CAP_PERFMON.
    pub(crate) hardened: bool,
    pub(crate) refuses: Refuses,
}

/// The most time between two bells that a program can count with, in ns.
const WAIT_MAX: u64 = i32::MAX as u64;

impl Kernel {
    /// Adds a line to the program of its interface, and opens what that hands over.
    pub(crate) fn build(wanted: &Wanted<'_>) -> Result<(Self, KernelSource), BuildError> {
        let Wanted { graph, planned, ours, refuses, .. } = *wanted;
        let sources: Vec<NodeId> = planned.sources.iter().copied().filter(|id| ours(*id)).collect();
        let source = sources.first().copied().unwrap_or(NodeId(0));
        let refused = |why: String| BuildError::Refused(Refusal { node: source, why });
        let closed = |closed| match closed {
            Closed::Nobody(failure) => BuildError::Outside { node: source, failure },
            Closed::Program(why) => refused(why),
        };
        let place = Place::find(&planned.attach).map_err(closed)?;
        let point = wanted.points.at(&planned.attach, wanted.hardened).map_err(closed)?;
        let tree = Tree::new(planned, graph, ours);
        let ring = &planned.ring;
        let asked = graph.node(source).filter().and_then(|used| used.arguments.number("ring"));
        let shape = shape(ring, tree.hands.len(), asked)?;
        if let Some(refusal) = refuses.loading(&tree, graph, source) {
            return Err(BuildError::Refused(refusal));
        }
        let added = point.add(New {
            owner: wanted.owner,
            graph: Arc::new(graph.clone()),
            tree: tree.clone(),
            source,
            shape,
            bell: bell(ring, shape),
            refuses,
        });
        let Added { standing, rings, bell, behind_tag } = added.map_err(BuildError::Refused)?;
        let edges = behind_tag.iter().map(|behind_tag| Edge { behind_tag: *behind_tag });
        let gives = KernelSource::new(Parts {
            rings,
            bell,
            standing: Arc::clone(&standing) as Arc<_>,
            place: place.clone(),
            edges: edges.collect(),
            origin: wanted.origin,
            wait_ns: ring.signal_ns.min(WAIT_MAX),
        });
        Ok((Self { source, tree, sources, standing, place }, gives))
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
