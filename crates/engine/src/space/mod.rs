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
//! - [`taped`]: turns written into a record, and turns taken from one;
//! - `tapped`: who looks at what leaves a node;
//! - [`traced`]: the walk while somebody asks what becomes of a flow;
//! - [`memory`]: what the space does for its filters.

pub mod asks;
pub(crate) mod assemble;
mod behind;
mod clock;
mod coming;
pub(crate) mod copies;
pub mod edit;
mod ending;
pub(crate) mod graft;
mod join;
pub(crate) mod memory;
pub mod node;
pub(crate) mod pause;
mod replica;
pub(crate) mod saved;
pub mod section;
pub mod select;
pub(crate) mod shown;
mod sleep;
mod taped;
mod tapped;
mod traced;
pub(crate) mod turn;
pub(crate) mod walk;

use crate::control::Control;
use crate::failure::PathFailure;
use crate::kernel::Told;
use crate::live::{Duty, Loan, Orders};
use crate::process::{self, Demand};
use crate::record::still::Here;
use crate::report::{Counted, Retired};
use crate::ring::Import;
use crate::why::Why;
use buffer::pool::Pool;
use buffer::signal::Doorbell;
use coming::Taking;
use edit::Stage;
use filter::{Room, Time};
use node::{Node, NodeId, Part};
use pipeline::plan::AtOnce;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use taped::Taped;
use turn::Turn;
use walk::Shape;

pub use clock::Clock;

/// The intake of sources that bring no memory along.
pub(crate) const GENERAL: usize = 0;
/// A thread's part of a path.
#[derive(Debug)]
pub struct Space {
    /// Its name in `explain` and in pins: `thread0`.
    pub name: String,
    /// The processor that it is to stay on.
    pub(crate) processor: Option<usize>,
    nodes: Vec<Node>,
    shape: Shape,
    /// The memory of blocks that come: the first is for sources that bring none along.
    intakes: Vec<Pool>,
    work: Pool,
    inputs: Vec<Input>,
    turn: Turn,
    at_once: AtOnce,
    spare: Option<Room>,
    control: Arc<Control>,
    /// How long it has slept, in ns.
    asleep: u64,
    /// How often somebody had asked when we answered last.
    answered: u32,
    /// What somebody outside wants done.
    duty: Duty,
    /// Who wants the space for a while.
    wanted: Option<Loan>,
    /// How often another graph was put in.
    grafts: u64,
    /// What was counted by what is no more.
    retired: Retired,
    /// The halves of programs that are no more.
    programs_gone: Vec<Node>,
    demand: Arc<Demand>,
    /// The halves of programs to which blocks go here, until their end is known; and whether it is
    /// known to the others that they take no more.
    programs: Vec<(NodeId, bool)>,
    bell: Arc<Doorbell>,
    clock: Clock,
    /// What the monotonic clock lacks to the time of day at which the path was built, in ns.
    epoch: Time,
    /// Whether a filter shows what it knows.
    shows: bool,
    /// Whether its turns are written down, or come from a record.
    taped: Taped,
    /// Its place among those that play a record. The last, so that it goes when all else has.
    here: Option<Here>,
}

/// Where blocks come into a space.
#[derive(Debug)]
pub(crate) enum Input {
    /// From a source.
    Source {
        /// The node.
        node: NodeId,
        /// Which intake it puts into.
        intake: usize,
    },
    /// Over a ring, into this node.
    Ring {
        /// The node behind the ring.
        node: NodeId,
        /// The reading end.
        import: Import,
        /// Whether the other side has ended and everything was taken.
        ended: bool,
    },
    /// The part of a copy that shares the work with others, over a ring into this node.
    Copy {
        /// The node behind the ring.
        node: NodeId,
        /// The reading end.
        import: Import,
        /// Whether the other side has ended and everything was taken.
        ended: bool,
        /// Which copy it is.
        own: copies::Own,
    },
    /// What such copies made, over a ring from each.
    Join(Box<copies::Gather>),
}

impl Input {
    /// The reading ends of its rings.
    pub(crate) fn imports_mut(&mut self) -> Vec<&mut Import> {
        match self {
            Self::Source { .. } => Vec::new(),
            Self::Ring { import, .. } | Self::Copy { import, .. } => vec![import],
            Self::Join(gather) => gather.imports_mut().collect(),
        }
    }
}

/// What a space is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) shape: Shape,
    pub(crate) intakes: Vec<Pool>,
    pub(crate) work: Pool,
    pub(crate) inputs: Vec<Input>,
    pub(crate) left: Option<Arc<turn::Left>>,
    pub(crate) timed: bool,
    pub(crate) copies: bool,
    pub(crate) at_once: AtOnce,
    pub(crate) control: Arc<Control>,
    pub(crate) demand: Arc<Demand>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) clock: Clock,
    pub(crate) epoch: Time,
    /// What of it is written down or played, and its number in the plan.
    pub(crate) tape: (crate::record::Tape, usize),
    /// Who wants to know what becomes of a flow.
    pub(crate) why: Option<Arc<Why>>,
}

/// What a space leaves behind when it has ended.
#[derive(Debug, Default)]
pub struct Remains {
    /// The nodes with their counters.
    pub nodes: Vec<Node>,
    /// What its rings took.
    pub imported: Vec<Imported>,
    /// Why it ended early, if it did.
    pub failure: Option<PathFailure>,
    /// Of a kernel space, what was counted beside its nodes.
    pub(crate) kernel: Option<Told>,
    /// What was counted by what was no more when it ended.
    pub(crate) retired: Retired,
    /// The halves of programs that were no more when it ended.
    pub(crate) programs: Vec<Node>,
}

/// What came over a ring, counted by the side that took it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// Which edge of the plan it is.
    pub planned: usize,
    /// The node behind the ring, among those of the space.
    pub node: usize,
    /// Its name, which it may share with one behind another ring.
    pub name: String,
    /// What was taken.
    pub taken: filter::Amount,
}

/// What one pass over the inputs gave.
#[derive(Clone, Copy, Default)]
struct Pass {
    moved: bool,
    open: bool,
    until: Option<Time>,
    readable: bool,
}

/// Where the thread of a space runs.
#[derive(Default)]
struct Stand {
    /// The processor that it keeps to.
    kept: Option<usize>,
    /// Where it might run before it kept to one.
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
            self.before = sys::process::allowed().unwrap_or_default();
        }
        let kept = match processor {
            Some(processor) => sys::process::pin_to(processor),
            None => sys::process::keep_among(&self.before),
        };
        if kept.is_ok() {
            self.kept = processor;
        }
    }
}

impl Space {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { name, nodes, shape, intakes, work, inputs, .. } = parts;
        let Parts { left, timed, copies, at_once, control, demand, bell, clock, epoch, .. } = parts;
        let (taped, claims) = Taped::new(parts.tape, left.is_some());
        let duty = Duty(Arc::new(Orders::new(name.clone(), Arc::clone(&bell))));
        let here = taped.here(&duty.0);
        let mut nodes = nodes;
        let timed = timed || parts.why.is_some();
        let turn = Turn { left, claims, timed, why: parts.why, copies, ..Turn::default() };
        turn.trace(&mut nodes);
        for node in &mut nodes {
            if let Part::Export(export) = &mut node.part {
                export.tells(Arc::clone(&duty.0), here.as_ref().map(|here| here.0.clone()));
            }
        }
        let inputs_of_programs = (0..nodes.len()).filter(|at| process::is_input(&nodes[*at]));
        let programs = inputs_of_programs.map(|at| (at, false)).collect();
        let shows = nodes.iter().any(|node| node.shown.is_some());
        Self {
            name,
            processor: None,
            nodes,
            shape,
            intakes,
            work,
            inputs,
            turn,
            at_once,
            spare: None,
            control,
            asleep: 0,
            answered: 0,
            duty,
            wanted: None,
            grafts: 0,
            retired: Retired::default(),
            programs_gone: Vec::new(),
            demand,
            programs,
            bell,
            clock,
            epoch,
            shows,
            taped,
            here,
        }
    }

    /// Runs until all sources have ended or the path is stopped, then lets everything that is held
    /// leave.
    pub fn run(mut self) -> Remains {
        self.duty.0.is_run_here(self.has());
        let mut stand = Stand::default();
        stand.keep_to(self.processor);
        if let Some(player) = self.taped.player() {
            return self.play(player);
        }
        loop {
            let mut pass = self.pass();
            if let Some(loan) = self.wanted.take() {
                match loan.out(self) {
                    Ok(back) => self = back,
                    Err(remains) => return *remains,
                }
                // Whoever had it may have made a copy of it, or the only one again.
                stand.keep_to(self.processor);
                continue;
            }
            if pass.open && !pass.moved && self.turn.failure.is_none() {
                self.settle();
                // Whoever rings after this has the space look once more before it sleeps.
                let ticket = self.bell.listen();
                pass = self.pass();
                if pass.open && !pass.moved && self.turn.failure.is_none() {
                    self.sleep(pass, ticket);
                }
            }
            if !self.goes_on(pass) {
                return self.end();
            }
        }
    }

    /// Whether somebody wants the space: asked before [`Space::lend`], because a space is large and
    /// moving it in and out costs as much as a walk.
    pub(crate) const fn is_asked_for(&self) -> bool {
        self.wanted.is_some()
    }

    /// Gives the space to who wants it, if anybody does, until it comes back.
    pub(crate) fn lend(mut self) -> Result<Self, Box<Remains>> {
        match self.wanted.take() {
            Some(loan) => loan.out(self),
            None => Ok(self),
        }
    }

    /// Whom the space is to be given to before its next pass.
    pub(crate) fn is_wanted(&mut self, loan: Loan) {
        self.wanted = Some(loan);
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
        if !self.programs.is_empty() {
            self.look_at_programs();
        }
        self.turn.failure.is_none() && pass.open
    }

    /// Whether the sinks of the path have taken all that was asked for.
    fn has_enough(&self) -> bool {
        self.turn.left.as_ref().is_some_and(|left| left.is_used_up())
    }

    /// Looks for programs that take no more blocks: if nobody else does, the path stops; if one did
    /// not end well, it fails.
    fn look_at_programs(&mut self) {
        let (nodes, demand, control) = (&self.nodes, &self.demand, &self.control);
        let mut failure = None;
        self.programs.retain_mut(|(at, told)| {
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
        self.turn.failure = self.turn.failure.take().or(failure);
    }

    /// Lets everything that is held leave, and ends the sinks and the rings.
    pub fn end(mut self) -> Remains {
        if self.turn.failure.is_some() {
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
        self.duty.leave(self.counted());
        self.remains()
    }

    /// Where orders to this space lie.
    pub(crate) fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.duty.0)
    }

    /// Does what somebody outside wants done.
    #[cold]
    fn obey(&mut self) {
        while let Some(order) = self.duty.0.next() {
            let done = catch_unwind(AssertUnwindSafe(|| order(self)));
            if let Err(panic) = done {
                // Who knows what it left behind.
                let failed = || PathFailure::panicked(self.name.clone(), &*panic, None);
                self.turn.failure.get_or_insert_with(failed);
            }
        }
    }

    /// Measures the time in each filter from now on, or no more.
    pub(crate) fn measure_time(&mut self, on: bool) {
        self.turn.timed = on;
    }

    /// Its nodes, and its own memory.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.intakes.iter().chain([&self.work])
    }

    /// What was counted here until now.
    pub(crate) fn counted(&self) -> Counted {
        let failed = self.turn.failure.is_some();
        Counted::new(&self.nodes, self.imported(), &self.retired, failed)
    }

    /// Asks every input once.
    fn pass(&mut self) -> Pass {
        let mut pass = Pass::default();
        if self.duty.0.waits() {
            self.obey();
            if self.wanted.is_some() {
                return Pass { moved: true, open: true, ..pass };
            }
        }
        if self.control.asked() != self.answered {
            self.answer(false);
        }
        for i in 0..self.inputs.len() {
            if self.turn.failure.is_some() {
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
            let node = &self.nodes[*node];
            let inner = process::of(node).is_some_and(|program| !program.is_head());
            if let (Part::Source(part), false) = (&node.part, inner) {
                self.control.answer(node.planned, &node.name, part.source.seen(), last);
            }
        }
    }

    /// Calls the filters whose time has come although no block has.
    fn tick(&mut self, pass: &mut Pass) {
        let now = match self.clock {
            Clock::Live => self.live(),
            // Block time stands still while no block comes.
            Clock::Blocks(_) => return,
        };
        if self.is_due(now) {
            pass.moved = true;
            self.note_tick(now);
            self.stage(now).tick(&[]);
            self.note_claims();
            self.turn_pools();
        }
    }

    /// Whether a filter asked to be called by now.
    fn is_due(&self, now: Time) -> bool {
        self.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now))
    }

    /// The space between two walks.
    fn stage(&mut self, now: Time) -> Stage<'_> {
        Stage {
            nodes: &mut self.nodes,
            shape: &self.shape,
            intakes: &mut self.intakes,
            work: &mut self.work,
            turn: &mut self.turn,
            now,
        }
    }

    /// Nothing moved: lets sinks show what they have, tells the spaces behind, takes memory back.
    pub(crate) fn settle(&mut self) {
        for node in &mut self.nodes {
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
                self.turn.failure = Some(failure);
                return;
            }
        }
        self.turn_pools();
        self.taped.flush();
    }

    /// Ends a turn: nobody looks at blocks any more, and what is not kept can be used again.
    fn turn_pools(&mut self) {
        self.intakes.iter_mut().for_each(Pool::turn);
        self.work.turn();
        self.forget_births();
        if !self.shape.deals.is_empty() {
            self.finish_part(false);
        }
    }

    /// The path's clock between two walks.
    fn now(&self) -> Time {
        match self.clock {
            Clock::Blocks(newest) => newest,
            Clock::Live => self.live(),
        }
    }

    fn live(&self) -> Time {
        sys::clock::monotonic().wrapping_add(self.epoch)
    }
}

#[cfg(test)]
mod tests;
