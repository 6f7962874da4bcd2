//! From a plan to spaces that are ready to run. [SL §7.1, allocation]
//!
//! Steps that can fail are taken in the order in which they are cheapest to undo: filters and
//! sections, sources (which only read), memory and rings, then the sinks (which make files), and
//! last the programs (which may do anything).
//! Everything is owned, so what was built is given back when a later step fails. Activation is
//! [`crate::run`]'s.

use self::between::{Ends, bell};
use self::copies::Shared;
use self::origins::Origins;
use self::outside::Outside;
use self::running::{Ids, State, Whole};
use crate::adapt::Adapt;
use crate::kernel::point::Points;
use crate::kernel::{Host, Kernel, Refuses};
use crate::live::Live;
use crate::record::Tape;
use crate::why::Why;
use buffer::pool::{Config as PoolConfig, Pool};
use buffer::signal::Doorbell;
use endpoint::{SinkEntry, SourceEntry};
use filter::{Filter, Kind};
use pipeline::graph::{Graph, NodeId, Step, Use};
use pipeline::plan::Plan;
use runtime::control::Control;
use runtime::latency::Budget;
use runtime::process::{Demand, Links};
use runtime::space::assemble::Assembly;
use runtime::space::graft::Key;
use runtime::space::node::{NodeId as Local, Part};
use runtime::space::turn::Left;
use runtime::space::{Clock, GENERAL, Input, Parts, Space};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use sys::memory::Lender;
use sys::steps::{Makes, Steps};

mod again;
mod between;
mod copies;
mod error;
mod inside;
mod latency;
mod nodes;
pub(crate) mod numbering;
pub(crate) mod origins;
mod outside;
mod pools;
mod programs;
pub(crate) mod running;
mod signals;

pub(crate) use again::{Again, Prepared, prepare};
pub use error::BuildError;
pub(crate) use inside::Succession;
use nodes::wanted;
pub(crate) use nodes::{HOLD_BYTES, counts, describe};
use pools::pool;
use pools::{fresh_id, intake_of};
pub(crate) use pools::{intake_for, pool_unasked};
pub use running::GONE;

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
    /// The log of this allocation. What it notes is kept when the paths are activated.
    pub steps: Steps,
    /// How long blocks are on their way, measured against what the request allows: of one path.
    pub budget: Arc<Budget>,
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
        extras.steps.back_to(mark);
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

/// Returns the edges and heads of a graph by the numbers of its nodes.
pub(crate) fn links(graph: &Graph, numbers: &[usize]) -> Links {
    let number = |id: NodeId| numbers[id.0];
    Links {
        edges: graph.edges.iter().map(|edge| (number(edge.from), number(edge.to))).collect(),
        heads: graph.heads().into_iter().map(number).collect(),
    }
}

/// What gives blocks of its own.
pub(crate) fn sources(graph: &Graph) -> impl Iterator<Item = (NodeId, &Use)> {
    graph
        .ids()
        .filter_map(|(id, node)| Some((id, node.filter()?)))
        .filter(|(_, used)| used.description.kind == Kind::Source || used.endpoint.process)
}

/// What runs in a process of its own, in all parts: programs, and filters that nobody vouches for.
fn programs(graph: &Graph) -> impl Iterator<Item = (NodeId, &Use)> {
    let nodes = graph.ids().filter_map(|(id, node)| Some((id, node.filter()?)));
    nodes.filter(|(_, used)| used.is_process())
}

/// The name of a node as people read it: `tcp`, `tcp#X`.
pub(crate) fn title(used: &Use) -> String {
    match &used.mark {
        Some(mark) => format!("{}#{mark}", used.description.name),
        None => used.description.name.to_owned(),
    }
}

/// A space without what changes the world: sinks and programs, for which room is left.
#[derive(Default)]
struct Draft {
    assembly: Assembly,
    sinks: Vec<(Local, NodeId)>,
    programs: Vec<(Local, NodeId)>,
    inputs: Vec<Input>,
    /// The memory that sources brought along, and who lends it.
    lent: Vec<Pool>,
    lenders: Vec<Arc<dyn Lender>>,
    /// The programs whose frames come in here.
    kernels: Vec<(Local, Kernel)>,
    /// What is to run in the place of what programs run.
    successors: Vec<(Local, Succession)>,
    /// What comes up from programs that run already: where, and along which edges.
    rising: Vec<(Local, Vec<(usize, NodeId)>)>,
    /// The places of what runs already.
    kept: Vec<(Local, Key)>,
    /// What is made anew although it runs.
    renewed: Vec<(Key, Filter)>,
}

impl Draft {
    /// The intake of a source that lends this memory, or none.
    fn intake(
        &mut self,
        lent: Option<Arc<dyn Lender>>,
        steps: &Steps,
    ) -> Result<usize, BuildError> {
        let Some(lender) = lent else { return Ok(GENERAL) };
        steps.take(Makes::Memory, "an intake that is lent")?;
        self.lent.push(Pool::lent(fresh_id()?, Arc::clone(&lender))?);
        self.lenders.push(lender);
        Ok(GENERAL + self.lent.len())
    }

    /// An intake of its own.
    fn own(&mut self, config: PoolConfig, steps: &Steps) -> Result<usize, BuildError> {
        self.lent.push(pool(config, steps)?);
        Ok(GENERAL + self.lent.len())
    }
}

struct Builder<'p> {
    plan: &'p Plan,
    /// The numbers that nodes and edges of the plan keep for as long as the path lives.
    ids: &'p Ids,
    /// What runs already.
    again: Option<&'p Again<'p>>,
    origins: &'p Origins,
    host: &'p dyn Host,
    settings: Settings,
    extras: &'p Extras,
    part: usize,
    /// The spaces of this part, by their place in the plan.
    spaces: Vec<usize>,
    bells: Vec<Arc<Doorbell>>,
    control: Arc<Control>,
    demand: Arc<Demand>,
    tells_time: bool,
    epoch: u64,
}

impl<'p> Builder<'p> {
    fn new(
        (plan, ids): (&'p Plan, &'p Ids),
        part: usize,
        (origins, host): (&'p Origins, &'p dyn Host),
        (settings, extras): (Settings, &'p Extras),
    ) -> Result<Self, BuildError> {
        let spaces = inside::threads(plan, part);
        let steps = &extras.steps;
        steps.take(Makes::Descriptor, "control over a path")?;
        let control = Arc::new(Control::new()?);
        let epoch = sys::clock::real().wrapping_sub(sys::clock::monotonic());
        let bells = spaces.iter().map(|space| bell(plan, *space, steps).map(Arc::new));
        let bells = bells.collect::<sys::Result<Vec<_>>>()?;
        let demand = Arc::<Demand>::default();
        demand.follow(links(&plan.graph, &ids.nodes));
        for bell in &bells {
            control.ring_too(bell);
        }
        let (tells_time, again) = (false, None);
        Ok(Self {
            plan,
            ids,
            again,
            origins,
            host,
            settings,
            extras,
            part,
            spaces,
            bells,
            control,
            demand,
            tells_time,
            epoch,
        })
    }

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
                left: left.clone(),
                timed: self.settings.timed,
                copies: self.settings.copies,
                batch_max: self.batch_max(),
                control: Arc::clone(&self.control),
                demand: Arc::clone(&self.demand),
                bell: Arc::clone(&self.bells[place]),
                clock: if self.tells_time { Clock::Blocks(0) } else { Clock::Live },
                epoch: self.epoch,
                events: self.extras.tape.port(self.spaces[place]),
                tracer: self.extras.why.as_ref().map(Why::observer),
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

    fn pool(&self, config: PoolConfig) -> Result<Pool, BuildError> {
        pool(config, &self.extras.steps)
    }

    /// Memory for what sources give.
    fn intake(&self, mut config: PoolConfig) -> Result<Pool, BuildError> {
        if let Tape::Play(_) = self.extras.tape {
            // Memory that a source lent is not there, and nobody may have to wait for any.
            config.segments *= 16;
        }
        self.pool(config)
    }

    /// Returns the most blocks of a batch.
    const fn batch_max(&self) -> usize {
        if self.extras.why.is_some() { 1 } else { self.plan.at_once.most }
    }

    fn outside(&self) -> Outside<'p> {
        let Self { plan, ids, origins, settings, extras, .. } = *self;
        Outside { plan, ids, origins, settings, extras }
    }

    /// Which of this part's spaces hands a node what comes: its own, unless it is a program.
    fn enters(&self, node: NodeId) -> Option<usize> {
        let space = inside::home(self.plan, self.plan.placed[node.0].enters);
        self.spaces.iter().position(|s| *s == space)
    }

    /// Which of this part's spaces takes up what a node gives: its own, unless it is a program.
    fn leaves(&self, node: NodeId) -> Option<usize> {
        let space = inside::home(self.plan, self.plan.placed[node.0].leaves);
        self.spaces.iter().position(|s| *s == space)
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
        let here = |id: NodeId| {
            inside::home(self.plan, self.plan.placed[id.0].space) == self.spaces[place]
        };
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
