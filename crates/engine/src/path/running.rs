//! The current state of a running path, which a change of the request modifies.
//!
//! Nodes and edges have **numbers** that stay the same for as long as the path lives, under any
//! plan; counters, rings and programs refer to them internally. Ledgers and reports refer to places
//! in the plan instead ([`PathState::place_of`]); an element of no current plan has the place
//! [`GONE`].

use super::crew::Crew;
use super::origins::Origins;
use super::{Extras, Settings};
use crate::kernel::Kernel;
use crate::numbering::Ids;
use buffer::signal::Doorbell;
use filter::Time;
use pipeline::plan::Plan;
use runtime::commands::CommandQueue;
use runtime::control::Control;
use runtime::demand::Demand;
use runtime::space::Clock;
use runtime::space::count_limit::CountLimit;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use sys::memory::Lender;

/// The place, in a ledger, of an element that the current plan no longer contains.
pub const GONE: usize = usize::MAX;

/// All connected parts of a running request.
#[derive(Debug)]
pub(crate) struct RunningPath {
    pub(crate) settings: Settings,
    pub(crate) extras: Extras,
    state: Mutex<PathState>,
    /// Notified when a part gains or loses its crew.
    crew_changed: Condvar,
}

/// The current state of a path.
#[derive(Debug)]
pub(crate) struct PathState {
    /// The text of the request; `None` if it was never set.
    pub(crate) text: Option<String>,
    /// Number of changes so far.
    pub(crate) changes: u64,
    /// Number of spaces in all plans so far.
    pub(crate) spaces: usize,
    /// Number of observations made for automatic changes.
    pub(crate) looks: u64,
    /// The latest automatic changes, with their reasons.
    pub(crate) adapted: VecDeque<String>,
    pub(crate) plan: Plan,
    pub(crate) ids: Ids,
    /// All sources so far.
    pub(crate) origins: Origins,
    pub(crate) parts: Vec<RunningPart>,
}

/// A connected part of the graph.
#[derive(Debug)]
pub(crate) struct RunningPart {
    pub(crate) control: Arc<Control>,
    pub(crate) demand: Arc<Demand>,
    pub(crate) left: Option<Arc<CountLimit>>,
    pub(crate) clock: Clock,
    pub(crate) epoch: Time,
    pub(crate) lenders: Vec<Arc<dyn Lender>>,
    pub(crate) spaces: Vec<RunningSpace>,
    pub(crate) rings: Vec<RunningRing>,
    /// Command queues of spaces that have left the part.
    pub(crate) gone: Vec<Arc<CommandQueue>>,
    /// The list of spaces that [`Live`](crate::live::Live) reads.
    pub(crate) listed: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    /// Edges out of the kernel.
    pub(crate) rising: Vec<KernelExit>,
    /// Kernel programs of this part; the runner of the path owns them.
    pub(crate) kernels: Weak<Mutex<Vec<Kernel>>>,
    /// The crew that starts its threads.
    pub(crate) crew: CrewState,
}

/// The state of a part's crew, which starts threads for it.
#[derive(Debug)]
pub(crate) enum CrewState {
    /// The part has been built but does not run yet.
    Pending,
    Running(Crew),
    /// The part has ended, or runs without threads.
    Ended,
}

/// Kernel programs of a part, owned by the runner of the path.
pub(crate) type Kernels = Arc<Mutex<Vec<Kernel>>>;

/// The edges over which a kernel program hands blocks to a thread, in the order of its outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelExit {
    /// The number of the source that represents the program.
    pub(crate) first: usize,
    /// The numbers of the edges.
    pub(crate) ways: Vec<usize>,
}

/// A space of a path.
#[derive(Clone, Debug)]
pub(crate) struct RunningSpace {
    pub(crate) name: String,
    pub(crate) orders: Arc<CommandQueue>,
    pub(crate) bell: Arc<Doorbell>,
}

/// A ring of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunningRing {
    /// The number of the edge for which it was created.
    pub(crate) number: usize,
    pub(crate) near: String,
    pub(crate) far: String,
    /// The number of the node that it leads to.
    pub(crate) to: usize,
    pub(crate) stride: usize,
    /// True if it carries frame metadata, whatever the stride.
    pub(crate) marks: bool,
}

impl RunningPart {
    /// Returns true if all its spaces have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.spaces.iter().all(|space| space.orders.inbox().ended)
    }

    /// Publishes the current list of spaces to [`Live`](crate::live::Live).
    pub(crate) fn publish(&self) {
        let spaces = self.spaces.iter().map(|space| Arc::clone(&space.orders)).collect();
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = spaces;
    }
}

impl RunningRing {
    /// Returns true if the two rings differ in at most their numbers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Self { number: 0, ..self.clone() } == Self { number: 0, ..other.clone() }
    }
}

impl PathState {
    pub(crate) fn new(plan: Plan, ids: Ids, origins: Origins, parts: Vec<RunningPart>) -> Self {
        Self {
            text: None,
            changes: 0,
            spaces: plan.spaces.len(),
            looks: 0,
            adapted: VecDeque::new(),
            plan,
            ids,
            origins,
            parts,
        }
    }

    /// Returns the maps from numbers of nodes and edges to places in the plan.
    pub(crate) fn place_of(&self) -> (PlaceMap, PlaceMap) {
        (PlaceMap(self.ids.nodes.clone()), PlaceMap(self.ids.edges.clone()))
    }
}

/// A map from numbers to places.
pub(crate) struct PlaceMap(Vec<usize>);

impl PlaceMap {
    /// Returns the place of this number, or [`GONE`].
    pub(crate) fn of(&self, number: usize) -> usize {
        self.0.iter().position(|other| *other == number).unwrap_or(GONE)
    }
}

impl RunningPath {
    pub(crate) fn new(settings: Settings, extras: Extras, state: PathState) -> Arc<Self> {
        let (state, crew_changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { settings, extras, state, crew_changed })
    }

    /// Sets or clears the crew of this part.
    pub(crate) fn is_run_by(&self, part: usize, crew: Option<Crew>) {
        if let Some(part) = self.state().parts.get_mut(part) {
            part.crew = crew.map_or(CrewState::Ended, CrewState::Running);
        }
        self.crew_changed.notify_all();
    }

    /// Waits until every part has, or had, a crew. Returns false if `limit` passes first.
    pub(crate) fn is_run_within(&self, limit: Duration) -> bool {
        let awaited = |state: &mut PathState| {
            state.parts.iter().any(|part| matches!(part.crew, CrewState::Pending))
        };
        let waited = self.crew_changed.wait_timeout_while(self.state(), limit, awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !awaited(&mut state)
    }

    /// Locks the state. No change happens while the guard lives.
    pub(crate) fn state(&self) -> MutexGuard<'_, PathState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
