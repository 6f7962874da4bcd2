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

/// Run settings of a path, beyond its request.
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
    /// Index, from 0 on, and number of the processes that run the line: they number sessions
    /// differently.
    pub one_of: Option<(u32, u32)>,
    /// Edit nothing in place: every edit writes a copy.
    pub copies: bool,
    /// Kernel features that are treated as refused, in addition to those that are: for tests.
    pub refuses: Refuses,
}

/// Facilities for observing a path, now or later.
#[derive(Clone, Default, Debug)]
pub struct Extras {
    /// Record or replay, if either.
    pub tape: Tape,
    /// Sinks write their files into this folder, whatever they are called in the request.
    pub into: Option<PathBuf>,
    /// Sinks write nothing at all.
    pub silent: bool,
    /// Bytes of output that each source of a live path remembers for taps.
    pub history: Option<usize>,
    /// The observer of a flow; with one, a pass has one block.
    pub why: Option<Arc<Why>>,
    /// Permitted automatic changes; none: the path stays as it is.
    pub adapt: Option<Arc<Adapt>>,
    /// The program that runs untrusted filters; none: this one, if it serves as such.
    pub helper: Option<PathBuf>,
    /// The log of this allocation. What it notes is kept when the paths are activated.
    pub steps: Steps,
    /// Measured latency of blocks against the request's budget, for one path.
    pub budget: Arc<Budget>,
}

/// Automatic changes that a path may make.
#[derive(Clone, Debug)]
pub struct Adapt {
    /// The machine, with what is known of costs before anything was seen.
    pub machine: Machine,
    /// Replicate filters to share their work.
    pub copies: bool,
    /// Move filters between the kernel and threads.
    pub moves: bool,
    /// Rate and certainty of the observations.
    pub pace: Pace,
}

impl Adapt {
    /// Returns the automatic changes that a plan's request permits; none: the path stays as it is.
    #[must_use]
    pub fn asked(plan: &Plan, machine: &Machine) -> Option<Arc<Self>> {
        let Adapts { copies, moves } = plan.adapts();
        let (machine, pace) = (machine.clone(), Pace::default());
        (copies || moves).then(|| Arc::new(Self { machine, copies, moves, pace }))
    }
}

/// The rate of observations, and the certainty required for a change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// Length of an observation, in ns.
    pub look_ns: u64,
    /// Number of consecutive observations that must agree.
    pub looks: u32,
    /// Initial wait after a change, in ns.
    pub rest_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { look_ns: 25_000_000, looks: 2, rest_ns: 500_000_000 }
    }
}
