//! The current state of a running path, which a change to the request modifies.
//!
//! Nodes and edges have **numbers** that stay the same for the lifetime of the path, in every plan;
//! counters, rings and programs refer to them internally. Ledgers and reports refer to indices into
//! the plan instead ([`PathState::plan_indices`]); a node or edge that the current plan lacks has
//! the index [`REMOVED_INDEX`].

use super::origins::PathOrigins;
use super::starter::ThreadStarter;
use super::{PathOptions, RunSettings};
use crate::kernel::KernelSpace;
use crate::numbering::PlanNumbers;
use buffer::signal::Doorbell;
use filter::Time;
use pipeline::Graph;
use pipeline::plan::Plan;
use runtime::commands::CommandQueue;
use runtime::control::PathControl;
use runtime::counters::SpaceCounters;
use runtime::demand::DemandTracker;
use runtime::space::Clock;
use runtime::space::count_limit::CountLimit;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use sys::memory::SegmentLender;

/// Plan index, in ledgers, of nodes and edges that are not in the current plan.
pub const REMOVED_INDEX: usize = usize::MAX;

/// All connected components of a running request.
#[derive(Debug)]
pub(crate) struct RunningPath {
    pub(crate) settings: RunSettings,
    pub(crate) extras: PathOptions,
    state: Mutex<PathState>,
    /// Notified when a connected component has started or ended, for threads that wait for this.
    starter_changed: Condvar,
}

/// A function that is called with each automatic change of a path.
#[derive(Clone)]
pub(crate) struct AdaptationListener(pub(crate) Arc<dyn Fn(&str) + Send + Sync>);

impl std::fmt::Debug for AdaptationListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdaptationListener")
    }
}

/// The current state of a path: its request, plan, connected components and changes.
#[derive(Debug)]
pub(crate) struct PathState {
    /// The text of the request, or `None` if it was never set.
    pub(crate) text: Option<String>,
    /// The graph that the latest change parsed from `text`. The next change uses it instead of
    /// parsing the text again.
    pub(crate) parsed_graph: Option<Graph>,
    /// Number of changes to the path so far.
    pub(crate) changes: u64,
    /// Number of spaces in all plans of the path so far.
    pub(crate) spaces: usize,
    /// Number of observations of the path's costs, made to decide on automatic changes.
    pub(crate) observations: u64,
    /// The latest automatic changes, with their reasons.
    pub(crate) adaptations: VecDeque<String>,
    /// Listener that is called with each automatic change, if one is set.
    pub(crate) listener: Option<AdaptationListener>,
    pub(crate) plan: Plan,
    pub(crate) ids: PlanNumbers,
    /// All sources that the path has had so far.
    pub(crate) origins: PathOrigins,
    pub(crate) parts: Vec<RunningComponent>,
}

/// The running state of one connected component of a request's graph.
#[derive(Debug)]
pub(crate) struct RunningComponent {
    pub(crate) control: Arc<PathControl>,
    pub(crate) demand: Arc<DemandTracker>,
    pub(crate) count_limit: Option<Arc<CountLimit>>,
    pub(crate) clock: Clock,
    pub(crate) epoch: Time,
    pub(crate) lenders: Vec<Arc<dyn SegmentLender>>,
    pub(crate) spaces: Vec<RunningSpace>,
    pub(crate) rings: Vec<RunningRing>,
    /// Command queues of spaces that changes have removed from the component.
    pub(crate) removed_queues: Vec<Arc<CommandQueue>>,
    /// The command queues of the component's spaces, in a list that is shared with the handle
    /// [`PathHandle`](crate::live::PathHandle).
    pub(crate) listed_queues: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    /// Edges over which blocks leave the kernel, grouped by kernel program.
    pub(crate) kernel_exits: Vec<KernelExit>,
    /// Kernel programs of this component; the runner of the path owns them.
    pub(crate) kernels: Weak<Mutex<Vec<KernelSpace>>>,
    /// The final counters of the component's kernel programs; empty until the component ends.
    pub(crate) final_kernel_counters: Vec<SpaceCounters>,
    /// State of the handle that starts the component's threads.
    pub(crate) starter: StarterState,
}

/// The state of the handle that starts threads for a connected component.
#[derive(Debug)]
pub(crate) enum StarterState {
    /// The component has been built but has not started yet.
    Pending,
    Running(ThreadStarter),
    /// The component has ended, or runs without threads.
    Ended,
}

/// Kernel programs of a connected component. The runner of the path owns the list.
pub(crate) type SharedKernelSpaces = Arc<Mutex<Vec<KernelSpace>>>;

/// The edges over which a kernel program passes blocks to a thread, in the order of the program's
/// exits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelExit {
    /// The node number of the source under which the ledger reports the program.
    pub(crate) source_number: usize,
    /// The numbers of the edges that leave the kernel.
    pub(crate) exit_edges: Vec<usize>,
}

/// A running space of a path: its name, command queue and doorbell.
#[derive(Clone, Debug)]
pub(crate) struct RunningSpace {
    pub(crate) name: String,
    pub(crate) commands: Arc<CommandQueue>,
    pub(crate) doorbell: Arc<Doorbell>,
}

/// A running ring of a path. A change keeps the ring only if the new plan requires a ring with the
/// same properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunningRing {
    /// Number of the edge that the ring was created for.
    pub(crate) number: usize,
    pub(crate) from_space: String,
    pub(crate) to_space: String,
    /// Number of the node that reads the ring.
    pub(crate) to: usize,
    pub(crate) stride: usize,
    /// True if the entries of the ring carry marks. The entry size (`stride`) determines this,
    /// except for blocks from the kernel.
    pub(crate) marks: bool,
}

impl RunningComponent {
    /// Returns true if all spaces of the component have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.spaces.iter().all(|space| space.commands.lock_inbox().ended)
    }

    /// Publishes the current list of the component's spaces to the handle
    /// [`PathHandle`](crate::live::PathHandle).
    pub(crate) fn publish(&self) {
        let spaces = self.spaces.iter().map(|space| Arc::clone(&space.commands)).collect();
        *self.listed_queues.lock().unwrap_or_else(PoisonError::into_inner) = spaces;
    }
}

impl RunningRing {
    /// Returns true if the two rings are equal except for their numbers.
    pub(crate) fn is_same_except_number(&self, other: &Self) -> bool {
        Self { number: 0, ..self.clone() } == Self { number: 0, ..other.clone() }
    }
}

impl PathState {
    pub(crate) fn new(
        plan: Plan,
        ids: PlanNumbers,
        origins: PathOrigins,
        parts: Vec<RunningComponent>,
    ) -> Self {
        Self {
            text: None,
            parsed_graph: None,
            changes: 0,
            spaces: plan.spaces.len(),
            observations: 0,
            adaptations: VecDeque::new(),
            listener: None,
            plan,
            ids,
            origins,
            parts,
        }
    }

    /// Returns two maps to plan indices: one from node numbers, and one from edge numbers.
    pub(crate) fn plan_indices(&self) -> (PlanIndices, PlanIndices) {
        (PlanIndices(self.ids.nodes.clone()), PlanIndices(self.ids.edges.clone()))
    }
}

/// A map from the numbers of nodes, or of edges, to their indices in the current plan.
pub(crate) struct PlanIndices(Vec<usize>);

impl PlanIndices {
    /// Returns the plan index of a number; [`REMOVED_INDEX`] if the plan lacks it.
    pub(crate) fn index_of(&self, number: usize) -> usize {
        self.0.iter().position(|other| *other == number).unwrap_or(REMOVED_INDEX)
    }
}

impl RunningPath {
    pub(crate) fn new(settings: RunSettings, extras: PathOptions, state: PathState) -> Arc<Self> {
        let (state, starter_changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { settings, extras, state, starter_changed })
    }

    /// Sets the thread starter of a connected component. `None` means that the component has ended
    /// or runs without threads.
    pub(crate) fn set_thread_starter(&self, part: usize, starter: Option<ThreadStarter>) {
        if let Some(part) = self.lock_state().parts.get_mut(part) {
            part.starter = starter.map_or(StarterState::Ended, StarterState::Running);
        }
        self.starter_changed.notify_all();
    }

    /// Blocks for at most `limit` until every connected component has started or ended. Returns
    /// false if `limit` expires.
    pub(crate) fn wait_for_starters(&self, limit: Duration) -> bool {
        let awaited = |state: &mut PathState| {
            state.parts.iter().any(|part| matches!(part.starter, StarterState::Pending))
        };
        let waited = self.starter_changed.wait_timeout_while(self.lock_state(), limit, awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !awaited(&mut state)
    }

    /// Locks the state. No change is made while the returned guard exists.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, PathState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
