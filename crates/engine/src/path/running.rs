//! The state of a running path, kept so that another request can replace it.
//!
//! Nodes and edges have **numbers** that they keep for as long as the path lives, whatever plan it
//! follows at the moment: counters, rings and programs are known by them inside. Outside, in the
//! ledger and in reports, they have the places of the plan ([`State::place_of`]); what is in no
//! plan any more has the place [`GONE`].

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
use runtime::process::Demand;
use runtime::space::Clock;
use runtime::space::turn::Left;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use sys::memory::Lender;

/// The place, in the ledger, of what was in the path once and is in its plan no more.
pub const GONE: usize = usize::MAX;

/// All connected parts of a request that runs.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) settings: Settings,
    pub(crate) extras: Extras,
    state: Mutex<State>,
    /// Notified when a part gains or loses its runner.
    manned: Condvar,
}

/// The current state of a path.
#[derive(Debug)]
pub(crate) struct State {
    /// The request, if anybody has said it.
    pub(crate) text: Option<String>,
    /// Number of changes so far.
    pub(crate) changes: u64,
    /// Number of spaces in all its plans.
    pub(crate) spaces: usize,
    /// Number of observations made for automatic changes.
    pub(crate) looks: u64,
    /// The latest automatic changes, with their reasons.
    pub(crate) adapted: VecDeque<String>,
    pub(crate) plan: Plan,
    pub(crate) ids: Ids,
    /// All sources so far.
    pub(crate) origins: Origins,
    pub(crate) parts: Vec<Part>,
}

/// A connected part.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) control: Arc<Control>,
    pub(crate) demand: Arc<Demand>,
    pub(crate) left: Option<Arc<Left>>,
    pub(crate) clock: Clock,
    pub(crate) epoch: Time,
    pub(crate) lenders: Vec<Arc<dyn Lender>>,
    pub(crate) spaces: Vec<RunningSpace>,
    pub(crate) rings: Vec<RunningRing>,
    /// The spaces that have left it.
    pub(crate) gone: Vec<Arc<CommandQueue>>,
    /// The spaces as [`Live`](crate::live::Live) knows them.
    pub(crate) listed: Arc<Mutex<Vec<Arc<CommandQueue>>>>,
    /// Edges out of the kernel.
    pub(crate) rising: Vec<Rising>,
    /// Kernel programs of this part, alive as long as the path is run.
    pub(crate) kernels: Weak<Mutex<Vec<Kernel>>>,
    /// The handle that starts its threads.
    pub(crate) crew: Manned,
}

/// The state of a part's runner, which starts threads for it.
#[derive(Debug)]
pub(crate) enum Manned {
    /// Not yet: the part has been built.
    NotYet,
    By(Crew),
    /// The part has ended, or its runner has no threads.
    NoMore,
}

/// Kernel programs of a part, owned by its runner.
pub(crate) type Kernels = Arc<Mutex<Vec<Kernel>>>;

/// The edges over which a kernel program hands over to a thread, in the order of its outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rising {
    /// The number of the source that stands for the program.
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
    /// The number of the edge for which it was made.
    pub(crate) number: usize,
    pub(crate) near: String,
    pub(crate) far: String,
    /// The number of the node to which it leads.
    pub(crate) to: usize,
    pub(crate) stride: usize,
    /// True if it carries frame metadata, whatever the stride.
    pub(crate) marks: bool,
}

impl Part {
    /// Returns true if all its spaces have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.spaces.iter().all(|space| space.orders.inbox().ended)
    }

    /// Publishes the current list of spaces.
    pub(crate) fn tell(&self) {
        let spaces = self.spaces.iter().map(|space| Arc::clone(&space.orders)).collect();
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = spaces;
    }
}

impl RunningRing {
    /// Returns true if the two are interchangeable.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Self { number: 0, ..self.clone() } == Self { number: 0, ..other.clone() }
    }
}

impl State {
    pub(crate) fn new(plan: Plan, ids: Ids, origins: Origins, parts: Vec<Part>) -> Self {
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
    pub(crate) fn place_of(&self) -> (Places, Places) {
        (Places(self.ids.nodes.clone()), Places(self.ids.edges.clone()))
    }
}

/// Numbers by place.
pub(crate) struct Places(Vec<usize>);

impl Places {
    /// Returns the place of this number, or [`GONE`].
    pub(crate) fn of(&self, number: usize) -> usize {
        self.0.iter().position(|other| *other == number).unwrap_or(GONE)
    }
}

impl Whole {
    pub(crate) fn new(settings: Settings, extras: Extras, state: State) -> Arc<Self> {
        let (state, manned) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { settings, extras, state, manned })
    }

    /// Sets or clears the runner of this part.
    pub(crate) fn is_run_by(&self, part: usize, crew: Option<Crew>) {
        if let Some(part) = self.state().parts.get_mut(part) {
            part.crew = crew.map_or(Manned::NoMore, Manned::By);
        }
        self.manned.notify_all();
    }

    /// Waits until every part has, or had, a runner; returns false if `limit` passes first.
    pub(crate) fn is_run_within(&self, limit: Duration) -> bool {
        let awaited =
            |state: &mut State| state.parts.iter().any(|part| matches!(part.crew, Manned::NotYet));
        let waited = self.manned.wait_timeout_while(self.state(), limit, awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !awaited(&mut state)
    }

    /// Locks the state; no change happens while the guard lives.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
