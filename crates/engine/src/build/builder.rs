//! A part of a plan while it is built: what is given, what is made, and which space is whose.

use crate::error::BuildError;
use crate::kernel::{Host, Kernel, Next};
use crate::numbering::{Ids, links};
use crate::path::origins::{Origins, sources};
use crate::path::running::Part;
use crate::path::{Extras, Settings};
use crate::pools::{fresh_id, pool};
use crate::record::Tape;
use crate::why::Why;
use buffer::pool::{Config as PoolConfig, Pool};
use buffer::signal::Doorbell;
use filter::Filter;
use pipeline::graph::{Graph, NodeId, Use};
use pipeline::plan::{Plan, SpaceKind};
use runtime::control::Control;
use runtime::process::Demand;
use runtime::space::assemble::Assembly;
use runtime::space::graft::Key;
pub(super) use runtime::space::node::NodeId as Local;
use runtime::space::turn::Left;
use runtime::space::{GENERAL, Input, SpaceOptions};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use sys::memory::Lender;
use sys::steps::{Resource, Steps};

/// The running state of a part for which another plan is built.
pub(crate) struct Again<'a> {
    pub(crate) part: &'a Part,
    /// The nodes that stay.
    pub(crate) kept: &'a HashSet<usize>,
    /// The kept nodes that are created anew.
    pub(crate) renewed: &'a HashSet<usize>,
    /// New place of every edge out of the kernel, by its number.
    pub(crate) ways: &'a HashMap<usize, usize>,
    /// True if the program in the kernel is to be replaced.
    pub(crate) anew: bool,
    /// Number of spaces in all earlier plans: a record continues counting from here.
    pub(crate) spaces: usize,
}

impl Again<'_> {
    /// Returns true if this node stays.
    pub(super) fn keeps(&self, key: Key) -> bool {
        matches!(key, Key::Node(number) | Key::Given(number) if self.kept.contains(&number))
    }
}

/// A replacement for a running kernel program, ready to be installed.
#[derive(Debug)]
pub(crate) struct Succession {
    /// Index of the program in the part.
    pub(crate) kernel: usize,
    /// The number of the source that it stands for.
    pub(crate) first: usize,
    /// The new program, and how it is installed.
    pub(crate) next: Next,
}

/// A space without what changes the world: sinks and programs, for which room is left.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) assembly: Assembly,
    pub(super) sinks: Vec<(Local, NodeId)>,
    pub(super) programs: Vec<(Local, NodeId)>,
    pub(super) inputs: Vec<Input>,
    /// The memory that sources brought along, and who lends it.
    pub(super) lent: Vec<Pool>,
    pub(super) lenders: Vec<Arc<dyn Lender>>,
    /// The programs whose frames come in here.
    pub(super) kernels: Vec<(Local, Kernel)>,
    /// Replacements of running kernel programs.
    pub(super) successors: Vec<(Local, Succession)>,
    /// Entry points of the output of programs that run already: the node, and its edges.
    pub(super) rising: Vec<(Local, Vec<(usize, NodeId)>)>,
    /// The places of what runs already.
    pub(super) kept: Vec<(Local, Key)>,
    /// Running filters that are created anew.
    pub(super) renewed: Vec<(Key, Filter)>,
}

impl Draft {
    /// The intake of a source that lends this memory, or none.
    pub(super) fn intake(
        &mut self,
        lent: Option<Arc<dyn Lender>>,
        steps: &Steps,
    ) -> Result<usize, BuildError> {
        let Some(lender) = lent else { return Ok(GENERAL) };
        steps.take(Resource::Memory, "an intake that is lent")?;
        self.lent.push(Pool::lent(fresh_id()?, Arc::clone(&lender))?);
        self.lenders.push(lender);
        Ok(GENERAL + self.lent.len())
    }

    /// An intake of its own.
    pub(super) fn own(&mut self, config: PoolConfig, steps: &Steps) -> Result<usize, BuildError> {
        self.lent.push(pool(config, steps)?);
        Ok(GENERAL + self.lent.len())
    }
}

pub(super) struct Builder<'p> {
    pub(super) plan: &'p Plan,
    /// The numbers that nodes and edges of the plan keep for as long as the path lives.
    pub(super) ids: &'p Ids,
    /// The running part, if this build is for a hot swap.
    pub(super) again: Option<&'p Again<'p>>,
    pub(super) origins: &'p Origins,
    pub(super) host: &'p dyn Host,
    pub(super) settings: Settings,
    pub(super) extras: &'p Extras,
    pub(super) part: usize,
    /// The spaces of this part, by their place in the plan.
    pub(super) spaces: Vec<usize>,
    pub(super) bells: Vec<Arc<Doorbell>>,
    pub(super) control: Arc<Control>,
    pub(super) demand: Arc<Demand>,
    pub(super) tells_time: bool,
    pub(super) epoch: u64,
}

impl<'p> Builder<'p> {
    pub(super) fn new(
        (plan, ids): (&'p Plan, &'p Ids),
        part: usize,
        (origins, host): (&'p Origins, &'p dyn Host),
        (settings, extras): (Settings, &'p Extras),
    ) -> Result<Self, BuildError> {
        let spaces = threads(plan, part);
        let steps = &extras.steps;
        steps.take(Resource::Descriptor, "control over a path")?;
        let control = Arc::new(Control::new()?);
        let epoch = sys::clock::real().wrapping_sub(sys::clock::monotonic());
        let bells = spaces.iter().map(|space| bell(plan, *space, steps).map(Arc::new));
        let bells = bells.collect::<sys::Result<Vec<_>>>()?;
        let demand = Arc::<Demand>::default();
        demand.follow(links(&plan.graph, &ids.nodes));
        for bell in &bells {
            control.ring_too(bell);
        }
        let (tells_time, again) = (false, None);
        Ok(Self {
            plan,
            ids,
            again,
            origins,
            host,
            settings,
            extras,
            part,
            spaces,
            bells,
            control,
            demand,
            tells_time,
            epoch,
        })
    }

    pub(super) fn pool(&self, config: PoolConfig) -> Result<Pool, BuildError> {
        pool(config, &self.extras.steps)
    }

    /// Memory for what sources give.
    pub(super) fn intake(&self, mut config: PoolConfig) -> Result<Pool, BuildError> {
        if let Tape::Play(_) = self.extras.tape {
            // Memory that a source lent is not there, and nobody may have to wait for any.
            config.segments *= 16;
        }
        self.pool(config)
    }

    /// Returns how a space of this number in the record is to run.
    pub(super) fn options(&self, left: Option<Arc<Left>>, number: usize) -> SpaceOptions {
        let why = self.extras.why.as_ref();
        SpaceOptions {
            left,
            timed: self.settings.timed,
            copies: self.settings.copies,
            batch_max: if why.is_some() { 1 } else { self.plan.at_once.most },
            demand: Arc::clone(&self.demand),
            events: self.extras.tape.port(number),
            tracer: why.map(Why::observer),
        }
    }

    /// Returns the space of this part that feeds a node: its own, unless it is a program.
    pub(super) fn enters(&self, node: NodeId) -> Option<usize> {
        let space = home(self.plan, self.plan.placed[node.0].enters);
        self.spaces.iter().position(|s| *s == space)
    }

    /// Returns the space of this part that takes a node's output: its own, unless it is a program.
    pub(super) fn leaves(&self, node: NodeId) -> Option<usize> {
        let space = home(self.plan, self.plan.placed[node.0].leaves);
        self.spaces.iter().position(|s| *s == space)
    }
}

/// Iterates over all nodes that run in a process of their own: programs and untrusted filters.
pub(super) fn programs(graph: &Graph) -> impl Iterator<Item = (NodeId, &Use)> {
    let nodes = graph.ids().filter_map(|(id, node)| Some((id, node.filter()?)));
    nodes.filter(|(_, used)| used.is_process())
}

/// The spaces of a part that are threads of ours.
pub(super) fn threads(plan: &Plan, part: usize) -> Vec<usize> {
    let here = |kind: SpaceKind| {
        let spaces = plan.spaces.iter().enumerate();
        let found = spaces.filter(move |(_, space)| space.part == part && space.kind == kind);
        found.map(|(place, _)| place)
    };
    // A process is a space that we start and do not build.
    let threads: Vec<usize> = here(SpaceKind::Thread).collect();
    if threads.is_empty() { here(SpaceKind::Kernel).collect() } else { threads }
}

/// Returns the space at which a space's blocks enter this process: itself, unless it is the kernel.
pub(super) fn home(plan: &Plan, space: usize) -> usize {
    let Some(kernel) = plan.spaces.get(space).filter(|space| space.kind == SpaceKind::Kernel)
    else {
        return space;
    };
    threads(plan, kernel.part).first().copied().unwrap_or(space)
}

/// Creates the doorbell on which a space sleeps; one that also wakes a wait on descriptors if the
/// space reads them.
pub(super) fn bell(plan: &Plan, space: usize, steps: &Steps) -> sys::Result<Doorbell> {
    if !reads(plan, space) {
        return Ok(Doorbell::new());
    }
    steps.take(Resource::Descriptor, "a bell")?;
    Doorbell::with_alarm()
}

/// Returns true if a space may sleep on descriptors.
pub(super) fn reads(plan: &Plan, space: usize) -> bool {
    let leaves = |id: NodeId| home(plan, plan.placed[id.0].leaves);
    let graph = &plan.graph;
    sources(graph).chain(programs(graph)).any(|(id, _)| leaves(id) == space)
}
