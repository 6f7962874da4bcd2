//! What is remembered of a path that runs, so that another request can be put in its place.
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
    /// Is told when somebody runs a part, or does so no more.
    manned: Condvar,
}

/// What a path is at the moment.
#[derive(Debug)]
pub(crate) struct State {
    /// The request, if anybody has said it.
    pub(crate) text: Option<String>,
    /// How often it has been changed.
    pub(crate) changes: u64,
    /// How many spaces all its plans had.
    pub(crate) spaces: usize,
    /// How often it has looked whether it should be changed.
    pub(crate) looks: u64,
    /// What it did by itself, and why: the last of it.
    pub(crate) adapted: VecDeque<String>,
    pub(crate) plan: Plan,
    pub(crate) ids: Ids,
    /// All sources that there have been.
    pub(crate) origins: Origins,
    pub(crate) parts: Vec<Part>,
}

/// One connected part.
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
    /// What comes up out of the kernel.
    pub(crate) rising: Vec<Rising>,
    /// What runs in the kernel for it, as long as somebody runs the path.
    pub(crate) kernels: Weak<Mutex<Vec<Kernel>>>,
    /// Who starts threads for it.
    pub(crate) crew: Manned,
}

/// Whether somebody runs a part, who then starts threads for it.
#[derive(Debug)]
pub(crate) enum Manned {
    /// Nobody yet: it has been built.
    NotYet,
    By(Crew),
    /// It has ended, or is run by somebody who has no threads.
    NoMore,
}

/// What runs in the kernel for a part: of whoever runs that.
pub(crate) type Kernels = Arc<Mutex<Vec<Kernel>>>;

/// What a program hands over to a thread: along which edges, in the order of its ways out.
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
    /// Whether it carries what is known of frames, whatever the stride.
    pub(crate) marks: bool,
}

impl Part {
    /// Whether all its spaces have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.spaces.iter().all(|space| space.orders.inbox().ended)
    }

    /// Says which spaces there are now.
    pub(crate) fn tell(&self) {
        let spaces = self.spaces.iter().map(|space| Arc::clone(&space.orders)).collect();
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = spaces;
    }
}

impl RunningRing {
    /// Whether one can do for the other.
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

    /// Where the nodes and edges of these numbers stand in the plan.
    pub(crate) fn place_of(&self) -> (Places, Places) {
        (Places(self.ids.nodes.clone()), Places(self.ids.edges.clone()))
    }
}

/// Numbers by place.
pub(crate) struct Places(Vec<usize>);

impl Places {
    /// Where this number stands, or [`GONE`].
    pub(crate) fn of(&self, number: usize) -> usize {
        self.0.iter().position(|other| *other == number).unwrap_or(GONE)
    }
}

impl Whole {
    pub(crate) fn new(settings: Settings, extras: Extras, state: State) -> Arc<Self> {
        let (state, manned) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { settings, extras, state, manned })
    }

    /// Somebody runs this part, or does so no more.
    pub(crate) fn is_run_by(&self, part: usize, crew: Option<Crew>) {
        if let Some(part) = self.state().parts.get_mut(part) {
            part.crew = crew.map_or(Manned::NoMore, Manned::By);
        }
        self.manned.notify_all();
    }

    /// Waits until all parts have somebody who runs them; answers whether they have, or had.
    pub(crate) fn is_run_within(&self, limit: Duration) -> bool {
        let awaited =
            |state: &mut State| state.parts.iter().any(|part| matches!(part.crew, Manned::NotYet));
        let waited = self.manned.wait_timeout_while(self.state(), limit, awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !awaited(&mut state)
    }

    /// What the path is; nobody changes it meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
