//! Execution of one part of a path's graph in one thread. [SL §6.1], [Th §5.2]
//!
//! - [`arc`], [`node`], [`class_selection`], [`graph_shape`]: the graph; [`assemble`]: its
//!   construction;
//! - `run`: the loop over the inputs; `pull`: blocks from sources and rings; `sleep` and
//!   `shutdown`;
//! - [`walk`]: one batch through the graph; `pause` and [`edit`]: edits while no block
//!   is borrowed; `join`: branches merged in input order;
//! - [`section`], [`operands`]: Boolean sections;
//! - `gather`, `final_merge`, `replica_shutdown`: replicas of filters, joined in input order;
//! - [`swap`], `retire`, [`node_key`]: another graph in a running space; [`saved_state`]: filter
//!   state for another process;
//! - [`observe`]: observers of the walk; [`taps`] and [`tap`]: copies of frames for readers;
//!   [`published_state`]: filter state for other processes;
//! - [`events`], `replay`, [`stall`]: recording and replay of a run;
//! - [`writers`] and [`writer_port`]: blocks that programs outside the path add to the output of a
//!   node;
//! - [`memory`]: memory services for filters; [`results`]: counters and results when the space has
//!   ended.

pub mod arc;
pub mod assemble;
pub mod class_selection;
mod clock;
pub mod count_limit;
mod cpu_pin;
pub mod edit;
pub mod events;
mod final_merge;
mod final_sessions;
mod graph;
pub mod graph_shape;
mod input;
mod join;
pub mod join_state;
pub(crate) mod memory;
pub mod node;
pub mod node_key;
pub mod observe;
pub mod operands;
mod pass;
mod pause;
pub mod published_state;
mod pull;
mod replay;
mod replica_inputs;
mod replica_shutdown;
pub mod results;
mod retire;
mod run;
pub mod saved_state;
pub mod section;
pub mod session_moves;
mod sessions;
mod shutdown;
mod sleep;
pub mod stall;
pub mod swap;
pub mod tap;
mod tap_control;
pub mod tap_form;
mod tap_pipe;
mod tap_writer;
pub mod taps;
mod time_order;
pub mod walk;
pub mod writer_port;
pub mod writers;

use crate::commands::{BorrowRequest, CommandQueue, CommandReceiver};
use crate::control::PathControl;
use crate::counters::{RetiredCounters, SpaceCounters};
use crate::demand::DemandTracker;
use buffer::pool::Pool;
use buffer::signal::Doorbell;
use count_limit::CountLimit;
use events::EventPort;
use filter::{LANES, Time};
use graph::LocalGraph;
use graph_shape::GraphShape;
use input::InputSet;
use node::{Node, Operator};
use observe::{Observer, Observers};
use pass::PassState;
use stall::{StallProbe, StallRegistration};
use std::sync::Arc;

pub use crate::counters::ImportCounters;
pub use clock::Clock;
pub use input::Input;
pub use results::{SpaceResources, SpaceResults};
pub use sleep::TimeSpent;

/// Index of the intake (input pool) shared by the sources that have no memory of their own.
pub const GENERAL_INTAKE: usize = 0;

/// One thread's part of a path: its graph, memory, inputs and ports.
#[derive(Debug)]
pub struct Space {
    /// Name of the space, by which `explain` and pins in a request refer to it, for example
    /// `thread0`.
    pub name: String,
    /// CPU to which the thread is pinned, or `None` if it is not pinned.
    pub processor: Option<usize>,
    graph: LocalGraph,
    inputs: InputSet,
    programs: AttachedPrograms,
    accounts: SpaceWideCounters,
    /// True if at least one filter of the space publishes its state to other processes.
    publishes: bool,
    /// True if writers outside the path add blocks to the output of a node.
    has_writers: bool,
    /// Connections to other threads. Declared last, and therefore dropped last, because dropping
    /// them reports the end of the space; all other fields must be released by then.
    ports: SpacePorts,
}

/// A space's connections to other threads.
#[derive(Debug)]
struct SpacePorts {
    control: Arc<PathControl>,
    /// Number of the latest position request that the space has answered. Such a request asks the
    /// space to store the positions of its sources ([`PathControl::position_request_count`]).
    answered_requests: u32,
    commands: CommandReceiver,
    /// Pending request to borrow the space before its next pass, if any.
    borrow: Option<BorrowRequest>,
    doorbell: Arc<Doorbell>,
    /// Port through which the space records or replays its events.
    events: EventPort,
    /// Registration with the stall detector; `None` outside a replay. Dropped after all other
    /// fields.
    stall: Option<StallRegistration>,
}

impl SpacePorts {
    /// Returns the handle through which the space reports to the stall detector, or `None` outside
    /// a replay.
    fn stall_probe(&self) -> Option<StallProbe> {
        self.stall.as_ref().map(|registration| registration.0.clone())
    }

    /// Gives the writing ends of rings among `nodes` the status of this space, in which they report
    /// while their ring is full.
    fn connect_exports(&self, nodes: &mut [Node]) {
        for node in nodes {
            if let Operator::Export(export) = &mut node.operator {
                export
                    .connect_space_status(Arc::clone(&self.commands.0.status), self.stall_probe());
            }
        }
    }
}

/// The counters of a space, apart from the counters that its current nodes keep.
#[derive(Debug, Default)]
struct SpaceWideCounters {
    /// Final counters of the nodes, edges and rings that hot swaps have removed.
    retired: RetiredCounters,
    /// Number of hot swaps that this space has taken part in.
    swaps: u64,
    /// Total time asleep, in nanoseconds.
    asleep_ns: u64,
}

/// The programs that exchange blocks with a space.
#[derive(Debug)]
struct AttachedPrograms {
    /// Record of which nodes of the path still accept blocks.
    demand: Arc<DemandTracker>,
    /// Nodes that write the input of programs (`exec`) that have not exited. The flag is true once
    /// the node is marked as closed in [`DemandTracker`].
    inputs: Vec<(arc::NodeId, bool)>,
    /// Nodes that exchanged blocks with programs (`exec`) until a hot swap removed the nodes. They
    /// wrote the input or read the output of the programs.
    removed: Vec<Node>,
}

/// Components of a new space.
#[derive(Debug)]
pub struct SpaceParts {
    /// Name of the space, by which `explain` and pins in a request refer to it.
    pub name: String,
    /// Nodes of the graph.
    pub nodes: Vec<Node>,
    /// Shape of the graph, as returned by [`assemble::Assembly::finish`].
    pub shape: GraphShape,
    /// Pools for input. The first one serves all sources that have no memory of their own.
    pub intakes: Vec<Pool>,
    /// Pool for blocks that filters create.
    pub work: Pool,
    /// Inputs from which the space takes blocks.
    pub inputs: Vec<Input>,
    /// Control through which other threads stop the spaces of the path and query them.
    pub control: Arc<PathControl>,
    /// Doorbell on which the space sleeps.
    pub doorbell: Arc<Doorbell>,
    /// Clock that the spaces of the path use.
    pub clock: Clock,
    /// Offset from the monotonic clock to the time of day, in nanoseconds, measured when the path
    /// was built.
    pub epoch: Time,
    /// Optional features of the space.
    pub options: SpaceOptions,
}

/// The optional features of a space. By default nothing is limited, observed or recorded.
#[derive(Debug)]
pub struct SpaceOptions {
    /// Limit on delivered blocks (`-c`), shared by the spaces of the path; `None` for no limit.
    pub count_limit: Option<Arc<CountLimit>>,
    /// True if the time spent in each filter is measured.
    pub timed: bool,
    /// True if filters always edit a copy of a block, never the block in place.
    pub edits_in_copies: bool,
    /// Maximum number of blocks per batch.
    pub batch_max: usize,
    /// Record of which nodes of the path still accept blocks, shared by the path's spaces.
    pub demand: Arc<DemandTracker>,
    /// Port through which the space records or replays its events.
    pub events: EventPort,
    /// Observer that traces blocks through the space; `None` if blocks are not traced.
    pub tracer: Option<Box<dyn Observer>>,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        let (demand, events, tracer) = (Arc::default(), EventPort::Off, None);
        Self {
            count_limit: None,
            timed: false,
            edits_in_copies: false,
            batch_max: LANES,
            demand,
            events,
            tracer,
        }
    }
}

impl Space {
    /// Creates a space that is not running yet.
    #[must_use]
    pub fn new(parts: SpaceParts) -> Self {
        let SpaceParts { name, mut nodes, shape, intakes, work, inputs, .. } = parts;
        let SpaceParts { control, doorbell, clock, epoch, options, .. } = parts;
        let SpaceOptions {
            count_limit,
            timed,
            edits_in_copies: copies,
            batch_max,
            demand,
            events,
            tracer,
        } = options;
        let claims = events.claim_policy(count_limit.is_some());
        let commands =
            CommandReceiver(Arc::new(CommandQueue::new(name.clone(), Arc::clone(&doorbell))));
        let stall = events
            .replay_state()
            .map(|state| StallRegistration(StallProbe::new(state, Arc::clone(&commands.0.status))));
        let ports = SpacePorts {
            control,
            answered_requests: 0,
            commands,
            borrow: None,
            doorbell,
            events,
            stall,
        };
        ports.connect_exports(&mut nodes);
        let halves = (0..nodes.len()).filter(|at| nodes[*at].is_process_input());
        let programs = AttachedPrograms {
            demand,
            inputs: halves.map(|at| (at, false)).collect(),
            removed: Vec::new(),
        };
        let publishes = nodes.iter().any(|node| node.published.is_some());
        let observers = Observers::new(timed, tracer);
        let pass = PassState {
            count_limit,
            claims,
            observers,
            edits_in_copies: copies,
            ..PassState::default()
        };
        Self {
            name,
            processor: None,
            graph: LocalGraph { nodes, shape, intakes, work, pass, clock, epoch },
            inputs: InputSet { list: inputs, batch_max, spare: None },
            programs,
            accounts: SpaceWideCounters::default(),
            publishes,
            has_writers: false,
            ports,
        }
    }

    /// Returns the queue for commands to this space.
    pub fn command_queue(&self) -> Arc<CommandQueue> {
        Arc::clone(&self.ports.commands.0)
    }

    /// Enables or disables the measurement of the time spent in each filter.
    pub fn set_time_measurement(&mut self, on: bool) {
        self.graph.pass.observers.set_time_measurement(on);
    }

    /// Returns the memory that the space uses, and the processes of its programs.
    pub fn resources(&self) -> SpaceResources {
        let number = |node: &Node| Some((node.number, node.exec_process()?.process_id()?));
        SpaceResources {
            memory: self.pools().map(Pool::allocated_bytes).sum(),
            processes: self.graph.nodes.iter().filter_map(number).collect(),
        }
    }

    /// Returns the nodes of the space.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.graph.nodes
    }

    /// Returns the pools of the space: its intakes and the pool `work`.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.graph.intakes.iter().chain([&self.graph.work])
    }

    /// Returns the current counters of the space.
    pub fn counters(&self) -> SpaceCounters {
        let counters = self.counters_without_reports();
        counters.with_reports(&self.graph.nodes, &self.accounts.retired)
    }

    /// Returns the current counters of the space without the reports of its nodes.
    pub fn counters_without_reports(&self) -> SpaceCounters {
        let failed = self.graph.pass.failure.is_some();
        SpaceCounters::new(
            (&self.graph.nodes, &self.graph.pass.observers.retained_frames()),
            self.import_counters(),
            &self.accounts.retired,
            failed,
        )
    }

    /// Returns the counters of the nodes that the space currently contains, with their reports.
    fn current_node_counters(&self) -> SpaceCounters {
        let (nodes, none) = (&self.graph.nodes, &RetiredCounters::default());
        let retained = self.graph.pass.observers.retained_frames();
        let counters = SpaceCounters::new((nodes, &retained), self.import_counters(), none, false);
        counters.with_reports(nodes, none)
    }

    /// Returns the time on the path's clock. Must be called between two walks.
    fn now(&self) -> Time {
        match self.graph.clock {
            Clock::BlockTime(newest) => newest,
            Clock::Live => self.graph.wall_clock_time(),
        }
    }
}

#[cfg(test)]
mod tests;
