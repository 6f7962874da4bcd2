//! A connected component of a plan under construction: its context, the drafts of its spaces, and
//! the mapping from nodes to spaces.
//!
//! An *intake* is a pool of a space into which sources write their blocks. A space has a general
//! intake for all its sources, and further intakes for single sources.

use crate::error::BuildError;
use crate::kernel::{KernelHost, KernelSpace, NextGeneration};
use crate::numbering::{PlanNumbers, edges_by_node_number};
use crate::path::origins::{PathOrigins, sources_and_programs};
use crate::path::running_path::RunningComponent;
use crate::path::{PathOptions, RunSettings};
use crate::pools::{allocate_dbuf_id, create_pool};
use crate::record::RecordMode;
use crate::why::FlowQuery;
use buffer::pool::{Pool, PoolConfig};
use buffer::signal::Doorbell;
use filter::Filter;
use pipeline::graph::{FilterUse, Graph, NodeId};
use pipeline::plan::{Plan, SpaceKind};
use runtime::control::PathControl;
use runtime::demand::DemandTracker;
pub(super) use runtime::space::arc::NodeId as Local;
use runtime::space::assemble::Assembly;
use runtime::space::count_limit::CountLimit;
use runtime::space::node_key::NodeKey;
use runtime::space::{GENERAL_INTAKE, Input, SpaceOptions};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use sys::memory::SegmentLender;
use sys::rollback::{RollbackLog, StepResource};

/// The running state of a connected component, for which new content is prepared.
pub(crate) struct SwapContext<'a> {
    pub(crate) part: &'a RunningComponent,
    /// Numbers of the nodes that the hot swap keeps.
    pub(crate) kept: &'a HashSet<usize>,
    /// Numbers of the kept nodes whose filter the hot swap replaces by a new filter.
    pub(crate) renewed: &'a HashSet<usize>,
    /// Edges of the running plan that leave the kernel: the number of the edge, and the index of
    /// the same edge in the new plan.
    pub(crate) exit_edges: &'a HashMap<usize, usize>,
    /// True if the hot swap replaces the component's kernel program.
    pub(crate) replaces_program: bool,
    /// Number of spaces in all earlier plans of the path. New spaces are numbered from this number
    /// on in a recording.
    pub(crate) spaces: usize,
}

impl SwapContext<'_> {
    /// Returns true if the hot swap keeps the node with this key. Always returns false for the ends
    /// of rings.
    pub(super) fn is_kept(&self, key: NodeKey) -> bool {
        match key {
            NodeKey::Node(number) | NodeKey::ProgramOutput(number) => self.kept.contains(&number),
            NodeKey::Export(_) | NodeKey::Import(_) => false,
        }
    }
}

/// The replacement of a running kernel program by a successor that is ready to be installed.
#[derive(Debug)]
pub(crate) struct ProgramSuccession {
    /// Index of the running program among the kernel programs of its connected component.
    pub(crate) program_index: usize,
    /// Node number of the program's first source, under which the ledger reports the program.
    pub(crate) source_number: usize,
    /// The successor program, and the handle that installs it.
    pub(crate) next: NextGeneration,
}

/// A space under construction. Placeholders stand for its sinks and programs until all other steps
/// have succeeded.
#[derive(Default)]
pub(super) struct SpaceDraft {
    pub(super) assembly: Assembly,
    pub(super) sinks: Vec<(Local, NodeId)>,
    pub(super) programs: Vec<(Local, NodeId)>,
    pub(super) inputs: Vec<Input>,
    /// Pools that serve a single source each. Such a pool is the memory that the source lends, or
    /// memory that the space allocates for the source.
    pub(super) lent: Vec<Pool>,
    /// Sources that lend memory to the space.
    pub(super) lenders: Vec<Arc<dyn SegmentLender>>,
    /// Kernel programs whose output enters this space.
    pub(super) kernels: Vec<(Local, KernelSpace)>,
    /// Successors of running kernel programs, each with the node through which the output of the
    /// program enters the space.
    pub(super) successors: Vec<(Local, ProgramSuccession)>,
    /// Running kernel programs whose output enters this space. Each is given as the node through
    /// which its output enters, and the list of its edges out of the kernel with their target
    /// nodes.
    pub(super) kernel_exits: Vec<(Local, Vec<(usize, NodeId)>)>,
    /// Placeholders for nodes that already run, each with the [`NodeKey`] of its node.
    pub(super) kept: Vec<(Local, NodeKey)>,
    /// New filters for nodes that the hot swap keeps, each with the [`NodeKey`] of its node.
    pub(super) renewed: Vec<(NodeKey, Filter)>,
}

impl SpaceDraft {
    /// Returns the index of the intake for a source. If the source lends a pool (`lent`), adds this
    /// pool as the intake; otherwise the source uses the general intake.
    pub(super) fn add_source_intake(
        &mut self,
        lent: Option<Arc<dyn SegmentLender>>,
        steps: &RollbackLog,
    ) -> Result<usize, BuildError> {
        let Some(lender) = lent else { return Ok(GENERAL_INTAKE) };
        steps.announce_creation(StepResource::Memory, "an intake that is lent")?;
        self.lent.push(Pool::lent(allocate_dbuf_id()?, Arc::clone(&lender))?);
        self.lenders.push(lender);
        Ok(GENERAL_INTAKE + self.lent.len())
    }

    /// Adds an intake for a single source. Returns the index of the intake.
    pub(super) fn add_single_source_intake(
        &mut self,
        config: PoolConfig,
        steps: &RollbackLog,
    ) -> Result<usize, BuildError> {
        self.lent.push(create_pool(config, steps)?);
        Ok(GENERAL_INTAKE + self.lent.len())
    }
}

pub(super) struct Builder<'p> {
    pub(super) plan: &'p Plan,
    /// The numbers of the plan's nodes and edges. A number stays the same for the lifetime of the
    /// path.
    pub(super) ids: &'p PlanNumbers,
    /// The running state of the component if this build prepares a hot swap of it; otherwise
    /// `None`.
    pub(super) swap: Option<&'p SwapContext<'p>>,
    pub(super) origins: &'p PathOrigins,
    pub(super) host: &'p dyn KernelHost,
    pub(super) settings: RunSettings,
    pub(super) extras: &'p PathOptions,
    pub(super) part: usize,
    /// The spaces of this connected component, as indices into the plan.
    pub(super) spaces: Vec<usize>,
    pub(super) doorbells: Vec<Arc<Doorbell>>,
    pub(super) control: Arc<PathControl>,
    pub(super) demand: Arc<DemandTracker>,
    pub(super) drives_clock: bool,
    pub(super) epoch: u64,
}

impl<'p> Builder<'p> {
    pub(super) fn new(
        (plan, ids): (&'p Plan, &'p PlanNumbers),
        part: usize,
        (origins, host): (&'p PathOrigins, &'p dyn KernelHost),
        (settings, extras): (RunSettings, &'p PathOptions),
    ) -> Result<Self, BuildError> {
        let spaces = thread_spaces(plan, part);
        let steps = &extras.steps;
        steps.announce_creation(StepResource::Descriptor, "control over a path")?;
        let control = Arc::new(PathControl::new()?);
        let epoch = sys::clock::realtime_ns().wrapping_sub(sys::clock::monotonic_ns());
        let doorbells =
            spaces.iter().map(|space| create_doorbell(plan, *space, steps).map(Arc::new));
        let doorbells = doorbells.collect::<sys::Result<Vec<_>>>()?;
        let demand = Arc::<DemandTracker>::default();
        demand.set_path_edges(edges_by_node_number(&plan.graph, &ids.nodes));
        for doorbell in &doorbells {
            control.add_doorbell(doorbell);
        }
        let (drives_clock, again) = (false, None);
        Ok(Self {
            plan,
            ids,
            swap: again,
            origins,
            host,
            settings,
            extras,
            part,
            spaces,
            doorbells,
            control,
            demand,
            drives_clock,
            epoch,
        })
    }

    pub(super) fn create_pool(&self, config: PoolConfig) -> Result<Pool, BuildError> {
        create_pool(config, &self.extras.steps)
    }

    /// Creates a pool that a space uses as an intake.
    pub(super) fn create_intake_pool(&self, mut config: PoolConfig) -> Result<Pool, BuildError> {
        if let RecordMode::Replay(_) = self.extras.record_mode {
            // A replay lacks the memory that sources lent, but it must never wait for memory.
            config.segments *= 16;
        }
        self.create_pool(config)
    }

    /// Returns the run options of a space. `count_limit` is the path's limit on delivered blocks,
    /// if any; `number` is the space's number in a recording.
    pub(super) fn space_options(
        &self,
        count_limit: Option<Arc<CountLimit>>,
        number: usize,
    ) -> SpaceOptions {
        let why = self.extras.flow_query.as_ref();
        SpaceOptions {
            count_limit,
            timed: self.settings.timed,
            edits_in_copies: self.settings.edits_in_copies,
            batch_max: if why.is_some() { 1 } else { self.plan.batch.max },
            demand: Arc::clone(&self.demand),
            events: self.extras.record_mode.event_port(number),
            tracer: why.map(FlowQuery::observer),
        }
    }

    /// Returns the space where a node receives its blocks. For a program, this is the space that
    /// writes the program's input. Returns `None` if the space belongs to another component.
    pub(super) fn entry_space(&self, node: NodeId) -> Option<usize> {
        let space = entry_thread_space(self.plan, self.plan.placements[node.0].input_space);
        self.spaces.iter().position(|s| *s == space)
    }

    /// Returns the space where a node emits its blocks; for a program, the space that receives its
    /// output. Returns `None` if that space belongs to another component.
    pub(super) fn exit_space(&self, node: NodeId) -> Option<usize> {
        let space = entry_thread_space(self.plan, self.plan.placements[node.0].output_space);
        self.spaces.iter().position(|s| *s == space)
    }
}

/// Returns all nodes that run in processes of their own: programs and untrusted filters.
pub(super) fn nodes_in_processes(graph: &Graph) -> impl Iterator<Item = (NodeId, &FilterUse)> {
    let nodes = graph.nodes_with_ids().filter_map(|(id, node)| Some((id, node.filter()?)));
    nodes.filter(|(_, used)| used.has_own_process())
}

/// Returns the spaces of a connected component that run as threads of this process, as indices into
/// the plan. A component that runs entirely in the kernel has no such spaces; for it, returns its
/// kernel spaces, each of which gets a thread.
pub(super) fn thread_spaces(plan: &Plan, part: usize) -> Vec<usize> {
    let here = |kind: SpaceKind| {
        let spaces = plan.spaces.iter().enumerate();
        let found = spaces.filter(move |(_, space)| space.component == part && space.kind == kind);
        found.map(|(place, _)| place)
    };
    // Processes of programs and untrusted filters are not in the list.
    let threads: Vec<usize> = here(SpaceKind::Thread).collect();
    if threads.is_empty() { here(SpaceKind::Kernel).collect() } else { threads }
}

/// Returns the space of this process where the blocks of `space` arrive. For a kernel space, this
/// is the first thread of its component or, if the component has no thread, its first kernel space.
/// For any other space, it is `space` itself.
pub(super) fn entry_thread_space(plan: &Plan, space: usize) -> usize {
    let Some(kernel) = plan.spaces.get(space).filter(|space| space.kind == SpaceKind::Kernel)
    else {
        return space;
    };
    thread_spaces(plan, kernel.component).first().copied().unwrap_or(space)
}

/// Creates the doorbell that wakes a space. If the space may sleep on file descriptors, a
/// notification also interrupts that sleep.
pub(super) fn create_doorbell(
    plan: &Plan,
    space: usize,
    steps: &RollbackLog,
) -> sys::Result<Doorbell> {
    if !sleeps_on_descriptors(plan, space) {
        return Ok(Doorbell::new());
    }
    steps.announce_creation(StepResource::Descriptor, "a bell")?;
    Doorbell::with_alarm()
}

/// Returns true if a source or process emits its blocks in this space, so that the space may sleep
/// on a file descriptor.
pub(super) fn sleeps_on_descriptors(plan: &Plan, space: usize) -> bool {
    let leaves = |id: NodeId| entry_thread_space(plan, plan.placements[id.0].output_space);
    let graph = &plan.graph;
    sources_and_programs(graph).chain(nodes_in_processes(graph)).any(|(id, _)| leaves(id) == space)
}
