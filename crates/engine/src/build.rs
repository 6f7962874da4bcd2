//! From a plan to spaces that are ready to run. [SL §7.1, allocation]
//!
//! Steps that can fail are taken in the order in which they are cheapest to undo: filters and
//! sections, sources (which only read), memory and rings, then the sinks (which make files), and
//! last the programs (which may do anything).
//! Everything is owned, so what was built is given back when a later step fails. Activation is
//! [`crate::run`]'s.

use self::between::Ends;
use self::builder::{Builder, Draft, Local, home, programs};
use self::copies::Shared;
pub use crate::error::BuildError;
use crate::kernel::Host;
use crate::kernel::point::Points;
use crate::live::Live;
use crate::numbering::Ids;
use crate::path::origins::Origins;
use crate::path::running::{self, State, Whole};
pub use crate::path::{Extras, GONE, Settings};
use crate::pools::{intake_for, intake_of};
use crate::record::Tape;
use buffer::pool::Config as PoolConfig;
use filter::Kind;
use pipeline::graph::{NodeId, Step};
use pipeline::plan::Plan;
use runtime::control::Control;
use runtime::space::graft::Key;
use runtime::space::node::Part;
use runtime::space::turn::Left;
use runtime::space::{Clock, GENERAL, Input, Parts, Space};
use std::sync::{Arc, Mutex};
use sys::steps::Steps;

mod again;
mod between;
mod builder;
mod copies;
mod inside;
mod latency;
mod nodes;
mod outside;
mod programs;
mod signals;

pub(crate) use again::{Prepared, prepare};
pub(crate) use builder::{Again, Succession};

/// Spaces that are ready to run: one connected part of a request.
#[derive(Debug)]
pub struct Path {
    /// In the order of the plan: sources first.
    pub(crate) spaces: Vec<Space>,
    /// The programs that run for them in the kernel.
    pub(crate) kernels: running::Kernels,
    /// Stops them.
    pub(crate) control: Arc<Control>,
    pub(crate) live: Live,
    /// The log of its allocation.
    pub(crate) steps: Steps,
}

impl Path {
    /// The path as it is reached while it runs, and after: see [`crate::live`].
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Returns true if nothing has come to any of its sources, as far as that can be read here.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let nodes = self.spaces.iter().flat_map(Space::nodes);
        let sources = nodes.filter_map(|node| match &node.part {
            Part::Source(part) => Some(part),
            _ => None,
        });
        // What a program in the kernel has seen, it alone knows.
        let quiet = |seen: endpoint::Seen| seen.seen.is_some_and(|seen| seen.blocks == 0);
        sources.into_iter().all(|part| !part.properties.chooses_arc && quiet(part.source.seen()))
    }
}

/// Builds every connected part of a plan. What begins in the kernel at one interface is one
/// program.
pub fn build(plan: &Plan, settings: Settings) -> Result<Vec<Path>, BuildError> {
    build_with(plan, settings, &Points::default(), &Extras::default())
}

/// Builds every connected part of a plan. What runs in the kernel is added there by this host: the
/// [`Points`] of this process, or somebody who may.
pub fn build_at(plan: &Plan, settings: Settings, host: &dyn Host) -> Result<Vec<Path>, BuildError> {
    build_with(plan, settings, host, &Extras::default())
}

/// Builds every connected part of a plan, with more than it needs to run.
pub fn build_with(
    plan: &Plan,
    settings: Settings,
    host: &dyn Host,
    extras: &Extras,
) -> Result<Vec<Path>, BuildError> {
    let mark = extras.steps.mark();
    let built = build_all(plan, settings, host, extras);
    if built.is_err() {
        extras.steps.roll_back_to(mark);
    }
    built
}

fn build_all(
    plan: &Plan,
    settings: Settings,
    host: &dyn Host,
    extras: &Extras,
) -> Result<Vec<Path>, BuildError> {
    let parts = plan.spaces.iter().map(|space| space.part + 1).max().unwrap_or(0);
    let left = settings.count.map(|blocks| Arc::new(Left::new(blocks)));
    let ids = Ids::of(plan, extras.tape.numbers_each_for_itself());
    let origins = Origins::of(&plan.graph, &ids.nodes);
    if let Tape::Record(recording) = &extras.tape {
        recording.name(origins.names());
    }
    let extras = &Extras { budget: Arc::default(), ..extras.clone() };
    let path = |part| {
        let with = (settings, extras);
        Builder::new((plan, &ids), part, (&origins, host), with)?.build(&left)
    };
    let built: Result<Vec<(Path, running::Part)>, BuildError> = (0..parts).map(path).collect();
    let (mut paths, parts): (Vec<Path>, Vec<running::Part>) = built?.into_iter().unzip();
    let state = State::new(plan.clone(), ids.clone(), origins, parts);
    let whole = Whole::new(settings, extras.clone(), state);
    for (part, path) in paths.iter_mut().enumerate() {
        path.live.belongs_to(&whole, part);
    }
    Ok(paths)
}

impl Builder<'_> {
    fn build(mut self, left: &Option<Arc<Left>>) -> Result<(Path, running::Part), BuildError> {
        let mut rings = self.rings()?;
        let running_rings = rings.iter().map(|ends| self.running_ring(ends)).collect();
        let mut shared = self.shared()?;
        let mut drafts = Vec::new();
        for place in 0..self.spaces.len() {
            drafts.push(self.space(place, &mut rings, &mut shared)?);
        }
        let lenders: Vec<_> = drafts.iter().flat_map(|draft| draft.lenders.clone()).collect();
        for draft in &mut drafts {
            for (local, id) in std::mem::take(&mut draft.sinks) {
                draft.assembly.replace(local, self.outside().sink(id, &lenders)?);
            }
        }
        for (id, used) in programs(&self.plan.graph) {
            self.program(id, used, &mut drafts)?;
        }
        self.bound_signals(&mut drafts, &shared);
        self.measure(&mut drafts);
        let rising = drafts.iter().flat_map(|draft| self.rising(draft)).collect();
        let (mut spaces, mut kernels) = (Vec::new(), Vec::new());
        for (place, draft) in drafts.into_iter().enumerate() {
            let Draft { assembly, inputs, lent, .. } = draft;
            kernels.extend(draft.kernels.into_iter().map(|(_, kernel)| kernel));
            let (nodes, shape) = assembly.done();
            let mut intakes = vec![self.intake(intake_of(&nodes))?];
            intakes.extend(lent);
            spaces.push(Space::new(Parts {
                name: self.name(place),
                nodes,
                shape,
                intakes,
                work: self.pool(PoolConfig::default())?,
                inputs,
                control: Arc::clone(&self.control),
                bell: Arc::clone(&self.bells[place]),
                clock: if self.tells_time { Clock::Blocks(0) } else { Clock::Live },
                epoch: self.epoch,
                options: self.options(left.clone(), self.spaces[place]),
            }));
        }
        let running_spaces =
            spaces.iter().enumerate().map(|(place, space)| running::RunningSpace {
                name: space.name.clone(),
                orders: space.queue(),
                bell: Arc::clone(&self.bells[place]),
            });
        let kernels = Arc::new(Mutex::new(kernels));
        let part = running::Part {
            control: Arc::clone(&self.control),
            demand: Arc::clone(&self.demand),
            left: left.clone(),
            clock: if self.tells_time { Clock::Blocks(0) } else { Clock::Live },
            epoch: self.epoch,
            lenders,
            spaces: running_spaces.collect(),
            rings: running_rings,
            gone: Vec::new(),
            listed: Arc::default(),
            rising,
            kernels: Arc::downgrade(&kernels),
            crew: running::Manned::NotYet,
        };
        for (space, processor) in spaces.iter_mut().zip(self.processors(&shared)) {
            space.processor = processor;
        }
        if let Some(bytes) = self.extras.history {
            spaces.iter_mut().for_each(|space| space.remember(bytes));
        }
        part.tell();
        let live = Live::new(Arc::clone(&self.control), Arc::clone(&part.listed));
        let steps = self.extras.steps.clone();
        Ok((Path { spaces, kernels, control: self.control, live, steps }, part))
    }

    /// Builds all of a space but what changes the world.
    fn space(
        &mut self,
        place: usize,
        rings: &mut [Ends],
        shared: &mut [Shared],
    ) -> Result<Draft, BuildError> {
        let graph = &self.plan.graph;
        let mut draft = Draft::default();
        let mut locals: Vec<Option<Local>> = vec![None; graph.nodes.len()];
        // A program is placed in a process, so its halves are not among them.
        let here = |id: NodeId| home(self.plan, self.plan.placed[id.0].space) == self.spaces[place];
        let (inner, outer): (Vec<_>, Vec<_>) = graph
            .ids()
            .filter(|(id, _)| here(*id) && !self.is_copied(*id))
            .partition(|(_, node)| node.inside.is_some());
        // What programs write comes first, as what sources give does; what they read, last.
        for (id, used) in programs(graph).filter(|(id, _)| self.gives(place, *id)) {
            let local = self.half(id, used, true, &mut draft);
            if !draft.kept.iter().any(|(kept, _)| *kept == local) {
                draft.inputs.push(Input::Source { node: local, intake: GENERAL });
            }
            locals[id.0] = Some(local);
        }
        let mut tells_time = false;
        for (id, _) in inner {
            let key = Key::Node(self.number(id));
            let kept = self.again.is_some_and(|again| again.keeps(key));
            self.renew(id, &locals, &mut draft)?;
            let made = if kept { self.place(id) } else { self.new_node(id, &locals)? };
            let local = draft.assembly.operand(made);
            draft.kept.extend(kept.then_some((local, key)));
            locals[id.0] = Some(local);
        }
        match self.again {
            None => self.programs_in_kernel(place, &mut locals, &mut draft)?,
            Some(again) if again.anew => {
                self.programs_anew(place, again, &mut locals, &mut draft)?;
            }
            Some(again) => self.rises_already(place, again, &mut locals, &mut draft)?,
        }
        for (id, node) in outer {
            if self.is_in_kernel(id) && node.kind() == Some(Kind::Source) {
                continue;
            }
            let key = Key::Node(self.number(id));
            let kept = self.again.is_some_and(|again| again.keeps(key));
            self.renew(id, &locals, &mut draft)?;
            let mut made = match kept && !matches!(node.step, Step::Boolean(_)) {
                true => self.place(id),
                false => self.new_node(id, &locals)?,
            };
            made.counted = self.is_counted(id);
            made.fragments = self.takes_fragments(id);
            let mut source = None;
            if let Part::Source(part) = &mut made.part {
                tells_time |= part.properties.tells_time;
                source = Some(match (part.properties.lender.clone(), self.again) {
                    (None, Some(_)) => {
                        draft.own(intake_for(part.properties.block_max), &self.extras.steps)?
                    }
                    (lent, _) => draft.intake(lent, &self.extras.steps)?,
                });
            }
            let local = draft.assembly.node(made);
            locals[id.0] = Some(local);
            if kept {
                draft.kept.push((local, key));
            } else if node.kind() == Some(Kind::Sink) {
                draft.sinks.push((local, id));
            }
            if let Some(intake) = source {
                draft.inputs.push(Input::Source { node: local, intake });
            }
        }
        self.tells_time |= tells_time;
        for (id, used) in programs(graph).filter(|(id, _)| self.takes(place, *id)) {
            locals[id.0] = Some(self.half(id, used, false, &mut draft));
        }
        self.copies(place, shared, &mut locals, &mut draft)?;
        self.arcs(place, &locals, &mut draft, rings)?;
        Ok(draft)
    }
}
