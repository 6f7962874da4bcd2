//! A path that was built, as those that build, change and run it share it.
//!
//! - this file: how it is to run, and what it is built with beside its plan;
//! - [`origins`]: the sources of its blocks;
//! - [`crew`]: the threads of its spaces;
//! - [`running`]: what it is at the moment.

pub(crate) mod crew;
pub(crate) mod origins;
pub(crate) mod running;

pub use crew::runs_space;
pub use running::GONE;

use crate::kernel::Refuses;
use crate::record::Tape;
use crate::why::Why;
use endpoint::{SinkEntry, SourceEntry};
use pipeline::plan::{Adapts, Machine, Plan};
use runtime::latency::Budget;
use std::path::PathBuf;
use std::sync::Arc;
use sys::steps::Steps;

/// How a path is to run, beyond what the request says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Sources beside those of the catalogue: what an embedding program or a test brings along.
    pub sources: &'static [SourceEntry],
    /// Sinks beside those of the catalogue.
    pub sinks: &'static [SinkEntry],
    /// End when the sinks have taken this many blocks (`-c`).
    pub count: Option<u64>,
    /// Measure the time in each filter (`--stats`).
    pub timed: bool,
    /// Have the kernel measure the time of programs, too (`--analyze`).
    pub programs_timed: bool,
    /// Which of several processes this is that run the line, from 0 on, and of how many: so that no
    /// two of them number sessions alike.
    pub one_of: Option<(u32, u32)>,
    /// Edit nothing where it lies: every edit writes a copy.
    pub copies: bool,
    /// What the kernel is to refuse, besides what it does refuse: for tests.
    pub refuses: Refuses,
}

/// What a path is built with for the sake of who looks at it, now or later.
#[derive(Clone, Default, Debug)]
pub struct Extras {
    /// Whether it is written down, or comes from a record.
    pub tape: Tape,
    /// Sinks write their files into this folder, whatever they are called in the request.
    pub into: Option<PathBuf>,
    /// Sinks write nothing at all.
    pub silent: bool,
    /// In how many bytes each source of a live path remembers what it gave, for taps.
    pub history: Option<usize>,
    /// Who wants to know what becomes of a flow: then a turn has one block.
    pub why: Option<Arc<Why>>,
    /// What the path may do by itself while it runs; nothing: it stays as it is.
    pub adapt: Option<Arc<Adapt>>,
    /// The program that runs untrusted filters; none: this one, if it serves as such.
    pub helper: Option<PathBuf>,
    /// The log of this allocation. What it notes is kept when the paths are activated.
    pub steps: Steps,
    /// How long blocks are on their way, measured against what the request allows: of one path.
    pub budget: Arc<Budget>,
}

/// What a path may do by itself.
#[derive(Clone, Debug)]
pub struct Adapt {
    /// The machine, with what is known of costs before anything was seen.
    pub machine: Machine,
    /// Share work among copies.
    pub copies: bool,
    /// Move filters between the kernel and threads.
    pub moves: bool,
    /// How often it looks, and how sure it wants to be.
    pub pace: Pace,
}

impl Adapt {
    /// What the request of a plan lets the path do; nothing: it stays as it is.
    #[must_use]
    pub fn asked(plan: &Plan, machine: &Machine) -> Option<Arc<Self>> {
        let Adapts { copies, moves } = plan.adapts();
        let (machine, pace) = (machine.clone(), Pace::default());
        (copies || moves).then(|| Arc::new(Self { machine, copies, moves, pace }))
    }
}

/// How often is looked, and how sure one wants to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// How long a look takes, in ns.
    pub look_ns: u64,
    /// How many looks in a row must say the same.
    pub looks: u32,
    /// How long nothing is changed after a change, in ns, at first.
    pub rest_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { look_ns: 25_000_000, looks: 2, rest_ns: 500_000_000 }
    }
}
