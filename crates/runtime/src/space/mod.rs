//! A space: a thread, its memory, and the part of the graph that runs in it. [SL §6.1], [Th §5.2]
//!
//! - `coming`: blocks from sources and rings, and their way;
//! - `ending`: what is held leaves, sinks and rings end;
//! - [`node`]: what runs where, and what was counted;
//! - [`select`]: which classes an arc lets through;
//! - [`walk`]: one batch through the local graph;
//! - `replica`: how replicas of filters end;
//! - `saved`: what a filter knows, as a value that can leave the process;
//! - [`section`]: Boolean sections by sequence; [`asks`]: those whose operands hold blocks;
//! - [`join`]: branches back into input order;
//! - `shown`: what filters know, where others see it;
//! - `sleep`: until something may have come;
//! - `behind`: what replicas let out at their end, joined;
//! - [`copies`]: copies of filters that share the work with others;
//! - [`pause`]: the walk at rest;
//! - [`graft`]: another graph in a space that goes on;
//! - [`edit`]: blocks changed when nobody has a view of them;
//! - [`events`]: the port over which a run is written down and repeated;
//! - `repeat`: a space that repeats a run;
//! - [`stall`]: spaces that repeat, and wait for one another;
//! - [`observe`]: observers of the walk; [`taps`]: those that copy frames to readers;
//! - [`memory`]: what the space does for its filters.

pub mod asks;
pub mod assemble;
mod behind;
mod clock;
mod coming;
pub mod copies;
pub mod edit;
mod ending;
pub mod events;
pub mod graft;
mod graph;
mod join;
pub(crate) mod memory;
pub mod node;
pub mod observe;
mod pause;
mod repeat;
mod replica;
pub mod saved;
pub mod section;
pub mod select;
pub mod shown;
mod sleep;
pub mod stall;
pub mod taps;
pub mod turn;
pub mod walk;

use crate::commands::{BorrowRequest, CommandQueue, CommandReceiver};
use crate::control::Control;
use crate::failure::PathFailure;
use crate::process::{self, Demand};
use crate::report::{Counted, OutsideCounts, Retired};
use crate::ring::Import;
use buffer::pool::Pool;
use buffer::signal::Doorbell;
use coming::Taking;
use events::EventPort;
use filter::{LANES, Room, Time};
use graph::LocalGraph;
use node::{Node, NodeId, Part};
use observe::{Observer, Observers};
use stall::{StallProbe, StallRegistration};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use turn::Turn;
use walk::Shape;

pub use clock::Clock;
pub use sleep::TimeSpent;

/// The intake of sources that bring no memory along.
pub const GENERAL: usize = 0;
/// A thread's part of a path.
#[derive(Debug)]
pub struct Space {
    /// Its name in `explain` and in pins: `thread0`.
    pub name: String,
    /// The processor that it is to stay on.
    pub processor: Option<usize>,
    /// The nodes, with their memory and their clock.
    graph: LocalGraph,
    inputs: Vec<Input>,
    /// Most blocks of a batch.
    batch_max: usize,
    spare: Option<Room>,
    control: Arc<Control>,
    /// Total time asleep, in ns.
    asleep: u64,
    /// Number of requests when the space last answered.
    answered: u32,
    /// Commands from outside.
    commands: CommandReceiver,
    /// A request to hand the space over before its next pass.
    borrow: Option<BorrowRequest>,
    /// Number of hot swaps.
    grafts: u64,
    /// Counters of removed nodes and rings.
    retired: Retired,
    programs: Programs,
    bell: Arc<Doorbell>,
    /// True if a filter publishes its state.
    shows: bool,
    /// The port over which its run is written down or repeated.
    events: EventPort,
    /// Its registration among the spaces that repeat a run. The last, so that it goes when all else
    /// has.
    stall: Option<StallRegistration>,
}

/// The programs that a space exchanges blocks with.
#[derive(Debug)]
struct Programs {
    /// The nodes of the path that still take blocks.
    demand: Arc<Demand>,
    /// The halves to which blocks go here, until their end is known; true: the others know that it
    /// takes no more.
    inputs: Vec<(NodeId, bool)>,
    /// The halves that are no more.
    gone: Vec<Node>,
}

/// Input of a space.
#[derive(Debug)]
pub enum Input {
    /// From a source.
    Source {
        /// The node.
        node: NodeId,
        /// Index of the intake that it fills.
        intake: usize,
    },
    /// Over a ring, into this node.
    Ring {
        /// The node behind the ring.
        node: NodeId,
        /// The reading end.
        import: Import,
        /// True if the other side has ended and everything was taken.
        ended: bool,
    },
    /// The part of a copy that shares the work with others, over a ring into this node.
    Copy {
        /// The node behind the ring.
        node: NodeId,
        /// The reading end.
        import: Import,
        /// True if the other side has ended and everything was taken.
        ended: bool,
        /// Identity of the replica.
        own: copies::Own,
    },
    /// Output of such replicas, over a ring from each.
    Join(Box<copies::Gather>),
}

impl Input {
    /// The reading ends of its rings.
    pub fn imports_mut(&mut self) -> Vec<&mut Import> {
        match self {
            Self::Source { .. } => Vec::new(),
            Self::Ring { import, .. } | Self::Copy { import, .. } => vec![import],
            Self::Join(gather) => gather.imports_mut().collect(),
        }
    }
}

/// Parts from which a space is built.
#[derive(Debug)]
pub struct Parts {
    /// Its name in `explain` and in pins.
    pub name: String,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The fixed shape of the graph ([`assemble::Assembly::done`]).
    pub shape: Shape,
    /// Memory of blocks that come in: the first for sources that bring none along.
    pub intakes: Vec<Pool>,
    /// Memory of blocks that filters make.
    pub work: Pool,
    /// Inputs of the space.
    pub inputs: Vec<Input>,
    /// The control that the spaces of the path share.
    pub control: Arc<Control>,
    /// The doorbell on which the space sleeps.
    pub bell: Arc<Doorbell>,
    /// The clock of the path.
    pub clock: Clock,
    /// Offset from the monotonic clock to the time of day when the path was built, in ns.
    pub epoch: Time,
    /// Optional features of the space.
    pub options: SpaceOptions,
}

/// Optional features of a space. By default nothing is limited, observed or recorded.
#[derive(Debug)]
pub struct SpaceOptions {
    /// The limit of blocks that the sinks of the path may take (`-c`).
    pub left: Option<Arc<turn::Left>>,
    /// True if the time in filters is measured.
    pub timed: bool,
    /// True if every edit writes a copy.
    pub copies: bool,
    /// Most blocks of a batch.
    pub batch_max: usize,
    /// The nodes of the path that still take blocks.
    pub demand: Arc<Demand>,
    /// The port over which its run is written down or repeated.
    pub events: EventPort,
    /// An observer that traces blocks.
    pub tracer: Option<Box<dyn Observer>>,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        let (left, demand, events, tracer) = (None, Arc::default(), EventPort::Off, None);
        Self { left, timed: false, copies: false, batch_max: LANES, demand, events, tracer }
    }
}

/// Remains of a space that has ended.
#[derive(Debug, Default)]
pub struct Remains {
    /// The nodes with their counters.
    pub nodes: Vec<Node>,
    /// Amounts taken from rings.
    pub imported: Vec<Imported>,
    /// Failure that ended it early, if any.
    pub failure: Option<PathFailure>,
    /// Counts of a space that runs outside this process, in the kernel.
    pub outside: Option<OutsideCounts>,
    /// Counters of nodes and rings removed before it ended.
    pub retired: Retired,
    /// The halves of programs that were no more when it ended.
    pub programs: Vec<Node>,
}

/// Amount that came over a ring, counted by the side that took it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// Index of the edge in the plan.
    pub planned: usize,
    /// The node behind the ring, among those of the space.
    pub node: usize,
    /// Its name, which it may share with one behind another ring.
    pub name: crate::ledger::NodeName,
    /// Amount taken.
    pub taken: filter::Amount,
}

/// Resources of a space, without its counters.
#[derive(Clone, Debug, Default)]
pub struct SpaceResources {
    /// Bytes of its own pools that are backed by memory.
    pub memory: u64,
    /// The processes that it exchanges blocks with, by the number of the node.
    pub processes: Vec<(usize, u32)>,
}

/// Result of one pass over the inputs.
#[derive(Clone, Copy, Default)]
struct Pass {
    moved: bool,
    open: bool,
    until: Option<Time>,
    readable: bool,
}

/// CPU placement of a space's thread.
#[derive(Default)]
struct Stand {
    /// The processor that it keeps to.
    kept: Option<usize>,
    /// CPUs on which it might run before it was pinned to one.
    before: Vec<usize>,
}

impl Stand {
    /// Keeps this thread to a processor, or lets it run where it might before. What refuses that
    /// lets it run where it is.
    fn keep_to(&mut self, processor: Option<usize>) {
        if processor == self.kept {
            return;
        }
        if self.kept.is_none() {
            self.before = sys::process::allowed_processors().unwrap_or_default();
        }
        let kept = match processor {
            Some(processor) => sys::process::pin_to(processor),
            None => sys::process::pin_among(&self.before),
        };
        if kept.is_ok() {
            self.kept = processor;
        }
    }
}

impl Space {
    /// Makes a space, which does not run yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { name, nodes, shape, intakes, work, inputs, .. } = parts;
        let Parts { control, bell, clock, epoch, options, .. } = parts;
        let SpaceOptions { left, timed, copies, batch_max, demand, events, tracer } = options;
        let claims = events.claims(left.is_some());
        let queue = Arc::new(CommandQueue::new(name.clone(), Arc::clone(&bell)));
        let commands = CommandReceiver(queue);
        let stall = events
            .shared()
            .map(|script| StallRegistration(StallProbe::new(script, Arc::clone(&commands.0))));
        let mut nodes = nodes;
        let observers = Observers::new(timed, tracer);
        let turn = Turn { left, claims, observers, copies, ..Turn::default() };
        for node in &mut nodes {
            if let Part::Export(export) = &mut node.part {
                export.tells(Arc::clone(&commands.0), stall.as_ref().map(|stall| stall.0.clone()));
            }
        }
        let inputs_of_programs = (0..nodes.len()).filter(|at| process::is_input(&nodes[*at]));
        let programs = inputs_of_programs.map(|at| (at, false)).collect();
        let shows = nodes.iter().any(|node| node.shown.is_some());
        Self {
            name,
            processor: None,
            graph: LocalGraph { nodes, shape, intakes, work, turn, clock, epoch },
            inputs,
            batch_max,
            spare: None,
            control,
            asleep: 0,
            answered: 0,
            commands,
            borrow: None,
            grafts: 0,
            retired: Retired::default(),
            programs: Programs { demand, inputs: programs, gone: Vec::new() },
            bell,
            shows,
            events,
            stall,
        }
    }

    /// Runs until all sources have ended or the path is stopped, then lets everything that is held
    /// leave.
    pub fn run(mut self) -> Remains {
        self.commands.0.is_run_here(self.resources());
        let mut stand = Stand::default();
        stand.keep_to(self.processor);
        if let Some(script) = self.events.script() {
            return self.repeat(script);
        }
        loop {
            let mut pass = self.pass();
            if let Some(request) = self.borrow.take() {
                match request.lend(self) {
                    Ok(back) => self = back,
                    Err(remains) => return *remains,
                }
                // The borrower may have made it a replica, or the only instance again.
                stand.keep_to(self.processor);
                continue;
            }
            if pass.open && !pass.moved && self.graph.turn.failure.is_none() {
                self.settle();
                // Whoever rings after this has the space look once more before it sleeps.
                let ticket = self.bell.listen();
                pass = self.pass();
                if pass.open && !pass.moved && self.graph.turn.failure.is_none() {
                    self.sleep(pass, ticket);
                }
            }
            if !self.goes_on(pass) {
                return self.end();
            }
        }
    }

    /// Returns true if a borrow of the space is requested: checked before [`Space::lend`], because
    /// a space is large and moving it in and out costs as much as a walk.
    pub const fn is_asked_for(&self) -> bool {
        self.borrow.is_some()
    }

    /// Gives the space to who wants it, if anybody does, until it comes back.
    pub fn lend(mut self) -> Result<Self, Box<Remains>> {
        match self.borrow.take() {
            Some(request) => request.lend(self),
            None => Ok(self),
        }
    }

    /// Hands the space over before its next pass.
    pub fn requests_borrow(&mut self, request: BorrowRequest) {
        self.borrow = Some(request);
    }

    /// Asks every input once and never sleeps; answers whether there may be more. For a caller that
    /// runs several spaces in one thread.
    pub fn step(&mut self) -> bool {
        let pass = self.pass();
        if !pass.moved {
            self.settle();
        }
        self.goes_on(pass)
    }

    fn goes_on(&mut self, pass: Pass) -> bool {
        if self.has_enough() {
            self.control.stop();
        }
        if !self.programs.inputs.is_empty() {
            self.look_at_programs();
        }
        self.graph.turn.failure.is_none() && pass.open
    }

    /// Returns true if the sinks of the path have taken the requested number of blocks.
    fn has_enough(&self) -> bool {
        self.graph.turn.left.as_ref().is_some_and(|left| left.is_used_up())
    }

    /// Looks for programs that take no more blocks: if nobody else does, the path stops; if one did
    /// not end well, it fails.
    fn look_at_programs(&mut self) {
        let Programs { inputs, demand, .. } = &mut self.programs;
        let (nodes, control) = (&self.graph.nodes, &self.control);
        let mut failure = None;
        inputs.retain_mut(|(at, told)| {
            let node = &nodes[*at];
            let Some(process) = process::of(node).filter(|process| process.is_deaf()) else {
                return true;
            };
            if !std::mem::replace(told, true) && demand.ended(node.planned) {
                control.stop();
            }
            let ended = process.ended();
            if let Some(Err(bad)) = &ended {
                let told = || PathFailure::program(node.name.clone(), bad.clone());
                failure.get_or_insert_with(told);
            }
            ended.is_none()
        });
        self.graph.turn.failure = self.graph.turn.failure.take().or(failure);
    }

    /// Lets everything that is held leave, and ends the sinks and the rings.
    pub fn end(mut self) -> Remains {
        if self.graph.turn.failure.is_some() {
            self.control.stop();
        }
        // Others may run on for long, and who asks them wants to know what came in all.
        if self.control.asked() > 0 {
            self.answer(true);
        }
        let now = self.now();
        self.finish(now);
        self.finish_part(true);
        if self.shows {
            self.show(false);
        }
        self.commands.leave(self.counted());
        self.remains()
    }

    /// Returns the queue of commands to this space.
    pub fn queue(&self) -> Arc<CommandQueue> {
        Arc::clone(&self.commands.0)
    }

    /// Executes the commands that wait.
    #[cold]
    fn execute_commands(&mut self) {
        while let Some(command) = self.commands.0.next() {
            let done = catch_unwind(AssertUnwindSafe(|| command(self)));
            if let Err(panic) = done {
                // Who knows what it left behind.
                let failed = || PathFailure::panicked(self.name.clone(), &*panic, None);
                self.graph.turn.failure.get_or_insert_with(failed);
            }
        }
    }

    /// Measures the time in each filter from now on, or no more.
    pub fn measure_time(&mut self, on: bool) {
        self.graph.turn.observers.set_timed(on);
    }

    /// Returns what the space has, beside its counters.
    pub fn resources(&self) -> SpaceResources {
        let number = |node: &Node| Some((node.planned, process::of(node)?.number()?));
        SpaceResources {
            memory: self.pools().map(Pool::backed).sum(),
            processes: self.graph.nodes.iter().filter_map(number).collect(),
        }
    }

    /// Returns its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.graph.nodes
    }

    /// Returns its own memory.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.graph.intakes.iter().chain([&self.graph.work])
    }

    /// Returns the counters up to now.
    pub fn counted(&self) -> Counted {
        let failed = self.graph.turn.failure.is_some();
        Counted::new(&self.graph.nodes, self.imported(), &self.retired, failed)
    }

    /// Asks every input once.
    fn pass(&mut self) -> Pass {
        let mut pass = Pass::default();
        if self.commands.0.has_pending() {
            self.execute_commands();
            if self.borrow.is_some() {
                return Pass { moved: true, open: true, ..pass };
            }
        }
        if self.control.asked() != self.answered {
            self.answer(false);
        }
        for i in 0..self.inputs.len() {
            if self.graph.turn.failure.is_some() {
                break;
            }
            match &self.inputs[i] {
                Input::Source { node, intake } => self.pull((*node, *intake), &mut pass),
                Input::Ring { .. } => self.import(i, &mut pass),
                Input::Copy { .. } => self.take_part(i, &mut pass),
                Input::Join(_) => self.gather(i, &mut pass),
            }
        }
        if !pass.moved {
            self.tick(&mut pass);
        }
        if self.shows {
            self.show(pass.moved);
        }
        pass
    }

    /// Says what the sources here have seen, and whether that is all.
    fn answer(&mut self, last: bool) {
        self.answered = self.control.asked();
        for input in &self.inputs {
            let Input::Source { node, .. } = input else { continue };
            let node = &self.graph.nodes[*node];
            let inner = process::of(node).is_some_and(|program| !program.is_head());
            if let (Part::Source(part), false) = (&node.part, inner) {
                self.control.answer(node.planned, &node.name, part.source.seen(), last);
            }
        }
    }

    /// Calls the filters whose time has come although no block has.
    fn tick(&mut self, pass: &mut Pass) {
        let now = match self.graph.clock {
            Clock::Live => self.live(),
            // Block time stands still while no block comes.
            Clock::Blocks(_) => return,
        };
        if self.is_due(now) {
            pass.moved = true;
            self.note_tick(now);
            self.graph.tick(now, &[]);
            self.note_claims();
            self.turn_pools();
        }
    }

    /// Returns true if a filter's timer is due.
    fn is_due(&self, now: Time) -> bool {
        self.graph.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now))
    }

    /// Nothing moved: lets sinks show what they have, tells the spaces behind, takes memory back.
    pub fn settle(&mut self) {
        for node in &mut self.graph.nodes {
            let settled = match &mut node.part {
                Part::Sink(part) => part
                    .sink
                    .idle()
                    .map_err(|failure| PathFailure::outside(node.name.clone(), failure)),
                Part::Export(export) => {
                    export.flush().map_err(|why| PathFailure::ring(node.name.clone(), why))
                }
                _ => Ok(()),
            };
            if let Err(failure) = settled {
                self.graph.turn.failure = Some(failure);
                return;
            }
        }
        self.turn_pools();
        self.events.flush();
    }

    /// Ends a turn: nobody looks at blocks any more, and what is not kept can be used again.
    fn turn_pools(&mut self) {
        self.graph.turn_pools();
        self.forget_births();
        if !self.graph.shape.deals.is_empty() {
            self.finish_part(false);
        }
    }

    /// The path's clock between two walks.
    fn now(&self) -> Time {
        match self.graph.clock {
            Clock::Blocks(newest) => newest,
            Clock::Live => self.live(),
        }
    }

    fn live(&self) -> Time {
        self.graph.live()
    }
}

#[cfg(test)]
mod tests;
