//! The types of a built path, shared by the modules that build, change and run it.
//!
//! - this file: run settings and options;
//! - [`processors`]: the processors on which the threads of a path start;
//! - [`origins`]: the sources of its blocks;
//! - [`starter`]: the threads of its spaces;
//! - [`running_path`]: its current state.

pub(crate) mod origins;
pub(crate) mod processors;
pub(crate) mod running_path;
pub(crate) mod starter;

pub use running_path::REMOVED_INDEX;
pub use starter::is_space_thread;

use crate::kernel::InjectedRefusal;
use crate::record::RecordMode;
use crate::registry::MachineRegistry;
use crate::why::FlowQuery;
use endpoint::{SinkEntry, SourceEntry};
use pipeline::Registry;
use pipeline::plan::{Machine, MovePeriod, Plan, RuntimeChanges};
use runtime::latency::LatencyBudget;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use sys::rollback::RollbackLog;

/// Run settings of a path that are not part of its request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSettings {
    /// Additional sources from an embedding program or a test.
    pub sources: &'static [SourceEntry],
    /// Additional sinks from an embedding program or a test.
    pub sinks: &'static [SinkEntry],
    /// Number of blocks after which the sinks stop the run (`-c`); `None` means no limit.
    pub count: Option<u64>,
    /// True if the time spent in each filter is measured (`--stats`).
    pub timed: bool,
    /// True if the kernel measures the run time of its BPF programs (`--analyze`).
    pub programs_timed: bool,
    /// Index of this process among the worker processes that run the request, from 0, and their
    /// number. `None` if the request runs in one process. Each worker uses its own share of the
    /// session numbers.
    pub worker: Option<(u32, u32)>,
    /// True if an edit always copies the block instead of changing it in place.
    pub edits_in_copies: bool,
    /// Kernel features that are treated as refused, for tests.
    pub refuses: InjectedRefusal,
}

/// Options of a path that concern how it runs, such as recording, observation and adaptation.
#[derive(Clone, Default, Debug)]
pub struct PathOptions {
    /// Mode of the path: live, recorded, or a replay.
    pub record_mode: RecordMode,
    /// Directory into which all files written by sinks are confined, whatever directories the
    /// request names; `None` if the sinks use the directories in the request.
    pub output_directory: Option<PathBuf>,
    /// True if sinks discard their output.
    pub discards_output: bool,
    /// Number of bytes of past output that each source of a live path stores for taps; `None` if
    /// sources store no output.
    pub history_bytes: Option<usize>,
    /// A query about the fate of one flow; `None` in an ordinary run. With a query, all batches
    /// consist of one block.
    pub flow_query: Option<Arc<FlowQuery>>,
    /// Automatic changes that the path may make, or `None` if it may make none.
    pub adaptation: Option<Arc<AdaptationSettings>>,
    /// The program that runs untrusted filters; `None` for the running program itself.
    pub helper: Option<PathBuf>,
    /// The log of the steps that allocate the path's resources. It is committed when the path is
    /// activated.
    pub steps: RollbackLog,
    /// The latency of blocks in the path, compared with the bound that the request sets.
    pub budget: Arc<LatencyBudget>,
    /// The registry with which changes of the path are read and planned, if an embedding program
    /// has added filters, sources or sinks; `None` for the registry of this machine.
    pub registry: Option<ProgramRegistry>,
}

impl PathOptions {
    /// Returns the registry with which changes of a path are read and planned.
    pub(crate) fn registry(&self) -> &dyn Registry {
        match &self.registry {
            Some(ProgramRegistry(registry)) => registry.as_ref(),
            None => &MachineRegistry::Local,
        }
    }
}

/// The registry of an embedding program, with the filters, sources and sinks of this program.
#[derive(Clone)]
pub struct ProgramRegistry(pub Arc<dyn Registry + Send + Sync>);

impl fmt::Debug for ProgramRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgramRegistry")
    }
}

/// Automatic changes that a path may make.
#[derive(Clone, Debug)]
pub struct AdaptationSettings {
    /// The machine on which the path runs, with its cost table from before the run.
    pub machine: Machine,
    /// True if filters may be replicated over several spaces to share their work.
    pub may_replicate: bool,
    /// True if a stage, a filter with everything downstream of it, may be moved to a thread of its
    /// own.
    pub may_move_stages: bool,
    /// Period of the run in which filters may move between the kernel and threads.
    pub moves: MovePeriod,
    /// True if a sink may be moved to a thread of its own after its writes have delayed the thread
    /// of a source.
    pub may_move_sinks: bool,
    /// True if sessions may move from one replica to another.
    pub may_move_sessions: bool,
    /// Rate of observations, and number of observations that must agree before a change.
    pub rate_policy: RatePolicy,
}

impl AdaptationSettings {
    /// Returns the automatic changes that a plan's request permits, or `None` if it permits none.
    #[must_use]
    pub fn permitted_by(plan: &Plan, machine: &Machine) -> Option<Arc<Self>> {
        let RuntimeChanges { replicas: copies, stages, moves, sessions } = plan.runtime_changes();
        let stages = stages && machine.processors > 1;
        let (machine, rate_policy) = (machine.clone(), RatePolicy::default());
        let relieves = !plan.sinks_in_reader_threads().is_empty();
        let any = copies || stages || relieves || sessions || moves != MovePeriod::Never;
        any.then(|| {
            Arc::new(Self {
                machine,
                may_replicate: copies,
                may_move_stages: stages,
                moves,
                may_move_sinks: relieves,
                may_move_sessions: sessions,
                rate_policy,
            })
        })
    }
}

/// The rate of observations, and the agreement among observations that a change requires.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RatePolicy {
    /// Length of one observation, during which the path's costs are measured, in ns.
    pub observation_ns: u64,
    /// Number of consecutive observations that must propose the same change before it is made.
    pub agreeing_observations: u32,
    /// Pause after an automatic change, in ns; it is longer after a change that did not pay off or
    /// was repeated.
    pub pause_ns: u64,
}

impl Default for RatePolicy {
    fn default() -> Self {
        Self { observation_ns: 25_000_000, agreeing_observations: 2, pause_ns: 500_000_000 }
    }
}
