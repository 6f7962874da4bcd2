//! From a plan to spaces that are ready to run. [SL §7.1, allocation]
//!
//! Steps that can fail are taken in the order in which they are cheapest to undo: filters and
//! sections, sources (which only read), memory and rings, and last the sinks (which make files).
//! Everything is owned, so what was built is given back when a later step fails. Activation is
//! [`crate::run`]'s.

use crate::control::Control;
use crate::ring::{Export, Import};
use crate::space::assemble::Assembly;
use crate::space::node::{Node, NodeId as Local, Part, SinkPart, SourcePart};
use crate::space::section::Section;
use crate::space::select::Wanted;
use crate::space::walk::Left;
use crate::space::{BATCH, Clock, Input, Parts, Space};
use abi::DbufId;
use buffer::crossing::{Config as RingConfig, crossing};
use buffer::ibuf::Lanes;
use buffer::pool::{Config as PoolConfig, Pool};
use buffer::signal::Bell;
use endpoint::{Failure, Opening, SinkEntry, SourceEntry};
use filter::{Classes, Counts, Description, Form, Holds, Kind, Mistake};
use pipeline::ClassSet;
use pipeline::graph::{Boolean, Edge, Graph, Link, NodeId, Step, Use};
use pipeline::plan::{Plan, PlannedEdge, RingPlan, SpaceKind};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many bytes a filter may hold, all sessions together.
const HOLD_BYTES: u64 = 64 << 20;
/// The least segment of an intake pool, in bytes.
const SEGMENT_MIN: usize = 128 << 10;

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
}

/// Spaces that are ready to run: one connected part of a request.
#[derive(Debug)]
pub struct Path {
    /// In the order of the plan: sources first.
    pub(crate) spaces: Vec<Space>,
    /// Stops them.
    pub(crate) control: Arc<Control>,
}

/// Why a plan could not be built.
#[derive(Debug)]
pub enum BuildError {
    /// An argument that no check of the request can refuse.
    Mistake {
        /// The node.
        node: NodeId,
        /// What is wrong.
        mistake: Mistake,
    },
    /// A source or sink could not be opened.
    Outside {
        /// The node.
        node: NodeId,
        /// Why.
        failure: Failure,
    },
    /// The machine refused memory or a descriptor.
    Machine(sys::Error),
    /// A step that a check should have refused: a bug of ours.
    Unexpected(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistake { mistake, .. } => write!(f, "{mistake}"),
            Self::Outside { failure, .. } => write!(f, "{failure}"),
            Self::Machine(error) => write!(f, "{error}"),
            Self::Unexpected(what) => write!(f, "a bug in this program: {what}"),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<sys::Error> for BuildError {
    fn from(error: sys::Error) -> Self {
        Self::Machine(error)
    }
}

/// Builds every connected part of a plan.
pub fn build(plan: &Plan, settings: Settings) -> Result<Vec<Path>, BuildError> {
    let parts = plan.spaces.iter().map(|space| space.part + 1).max().unwrap_or(0);
    let origins: Vec<String> = sources(&plan.graph).map(|(_, used)| title(used)).collect();
    let left = settings.count.map(|blocks| Arc::new(Left::new(blocks)));
    (0..parts).map(|part| Builder::new(plan, part, &origins, settings)?.build(&left)).collect()
}

fn sources(graph: &Graph) -> impl Iterator<Item = (NodeId, &Use)> {
    graph
        .ids()
        .filter_map(|(id, node)| Some((id, node.filter()?)))
        .filter(|(_, used)| used.description.kind == Kind::Source)
}

/// The name of a node as people read it: `tcp`, `tcp#X`.
fn title(used: &Use) -> String {
    match &used.mark {
        Some(mark) => format!("{}#{mark}", used.description.name),
        None => used.description.name.to_owned(),
    }
}

/// A ring that has been made and not yet been put between two nodes.
///
/// Edges from one space to one node share a ring: they are joined, in order, before they cross.
struct Ends {
    edges: Vec<usize>,
    export: Option<Export>,
    import: Option<Import>,
    /// Where the edges meet in the near space, once that is built.
    enter: Option<Local>,
}

struct Builder<'p> {
    plan: &'p Plan,
    origins: &'p [String],
    settings: Settings,
    /// The spaces of this part, by their place in the plan.
    spaces: Vec<usize>,
    bells: Vec<Arc<Bell>>,
    control: Arc<Control>,
    tells_time: bool,
    epoch: u64,
}

impl<'p> Builder<'p> {
    fn new(
        plan: &'p Plan,
        part: usize,
        origins: &'p [String],
        settings: Settings,
    ) -> Result<Self, BuildError> {
        let spaces: Vec<usize> =
            (0..plan.spaces.len()).filter(|s| plan.spaces[*s].part == part).collect();
        let control = Arc::new(Control::new()?);
        let epoch = sys::clock::real().wrapping_sub(sys::clock::monotonic());
        let bells: Vec<Arc<Bell>> = spaces.iter().map(|_| Arc::new(Bell::new())).collect();
        for bell in &bells {
            control.ring_too(bell);
        }
        Ok(Self { plan, origins, settings, spaces, bells, control, tells_time: false, epoch })
    }

    fn build(mut self, left: &Option<Arc<Left>>) -> Result<Path, BuildError> {
        let mut rings = self.rings()?;
        let mut drafts = Vec::new();
        for place in 0..self.spaces.len() {
            drafts.push(self.space(place, &mut rings)?);
        }
        for (assembly, sinks, _) in &mut drafts {
            for (local, id) in std::mem::take(sinks) {
                let part = self.sink(id)?;
                assembly.replace(local, part);
            }
        }
        let mut spaces = Vec::new();
        for (place, (assembly, _, inputs)) in drafts.into_iter().enumerate() {
            let (nodes, shape) = assembly.done();
            let intake = intake_of(&nodes);
            spaces.push(Space::new(Parts {
                name: self.plan.spaces[self.spaces[place]].name.clone(),
                nodes,
                shape,
                intake: pool(intake)?,
                work: pool(PoolConfig::default())?,
                inputs,
                left: left.clone(),
                timed: self.settings.timed,
                batch: BATCH,
                control: Arc::clone(&self.control),
                bell: Arc::clone(&self.bells[place]),
                clock: if self.tells_time { Clock::Blocks(0) } else { Clock::Live },
                epoch: self.epoch,
            }));
        }
        Ok(Path { spaces, control: self.control })
    }

    /// Makes the rings between the spaces of this part.
    fn rings(&self) -> Result<Vec<Ends>, BuildError> {
        let edges = &self.plan.graph.edges;
        let mut rings: Vec<Ends> = Vec::new();
        for (index, planned) in self.plan.edges.iter().enumerate() {
            let PlannedEdge::Ring(ring) = planned else { continue };
            let edge = &edges[index];
            let near = self.place_of(edge.from);
            let (Some(near), Some(far)) = (near, self.place_of(edge.to)) else { continue };
            let shared = rings.iter_mut().find(|ends| {
                let first = &edges[ends.edges[0]];
                first.to == edge.to && self.place_of(first.from) == Some(near)
            });
            match shared {
                Some(ends) => ends.edges.push(index),
                None => rings.push(self.ring(index, ring, near, far)?),
            }
        }
        Ok(rings)
    }

    fn ring(
        &self,
        edge: usize,
        ring: &RingPlan,
        near: usize,
        far: usize,
    ) -> Result<Ends, BuildError> {
        let lanes = match ring.stride {
            16 => Lanes::Pointer,
            32 => Lanes::Context,
            _ => Lanes::Marks,
        };
        let config = RingConfig { entries: ring.entries, lanes, ..RingConfig::default() };
        let (near, far) = (Arc::clone(&self.bells[near]), Arc::clone(&self.bells[far]));
        let made = crossing(&config, Arc::clone(&near), &[far]);
        let (writer, mut readers) =
            made.map_err(|fault| BuildError::Unexpected(fault.to_string()))?;
        let import = readers.pop().map(|reader| Import::new(edge, reader));
        let export = Some(Export::new(edge, writer, near, ring.signal_blocks));
        Ok(Ends { edges: vec![edge], export, import, enter: None })
    }

    /// Which of this part's spaces runs a node.
    fn place_of(&self, node: NodeId) -> Option<usize> {
        let space = self.plan.placed[node.0].space;
        self.spaces.iter().position(|s| *s == space)
    }

    /// Builds all of a space but its sinks, which are answered.
    #[expect(clippy::type_complexity, reason = "three things that only `build` takes apart")]
    fn space(
        &mut self,
        place: usize,
        rings: &mut [Ends],
    ) -> Result<(Assembly, Vec<(Local, NodeId)>, Vec<Input>), BuildError> {
        if self.plan.spaces[self.spaces[place]].kind == SpaceKind::Kernel {
            let what = "the kernel cannot be built yet, and no plan may ask for it";
            return Err(BuildError::Unexpected(what.to_owned()));
        }
        let graph = &self.plan.graph;
        let mut assembly = Assembly::default();
        let mut locals: Vec<Option<Local>> = vec![None; graph.nodes.len()];
        let (mut sinks, mut inputs) = (Vec::new(), Vec::new());
        let here = |id: NodeId| self.plan.placed[id.0].space == self.spaces[place];
        let (inner, outer): (Vec<_>, Vec<_>) =
            graph.ids().filter(|(id, _)| here(*id)).partition(|(_, node)| node.inside.is_some());
        let mut tells_time = false;
        for (id, _) in inner {
            locals[id.0] = Some(assembly.operand(self.node(id, &locals)?));
        }
        for (id, node) in outer {
            let mut made = self.node(id, &locals)?;
            made.counted = self.is_counted(id);
            if let Part::Source(part) = &made.part {
                tells_time |= part.source.tells_time();
            }
            let is_source = matches!(made.part, Part::Source(_));
            let local = assembly.node(made);
            locals[id.0] = Some(local);
            if node.kind() == Some(Kind::Sink) {
                sinks.push((local, id));
            }
            if is_source {
                inputs.push(Input::Source(local));
            }
        }
        self.tells_time |= tells_time;
        self.arcs(&locals, &mut assembly, rings, &mut inputs);
        Ok((assembly, sinks, inputs))
    }

    fn arcs(
        &self,
        locals: &[Option<Local>],
        assembly: &mut Assembly,
        rings: &mut [Ends],
        inputs: &mut Vec<Input>,
    ) {
        let graph = &self.plan.graph;
        let name = |id: NodeId| self.plan.space_of(id).name.clone();
        for (index, edge) in graph.edges.iter().enumerate() {
            let wanted = wanted(&edge.classes);
            let ring = rings.iter_mut().find(|ends| ends.edges.contains(&index));
            match (locals[edge.from.0], locals[edge.to.0], ring) {
                (Some(from), Some(to), _) => assembly.arc(from, to, wanted, edge.back, index),
                (Some(from), None, Some(ends)) => {
                    if let Some(export) = ends.export.take() {
                        let title = format!("ring to {}", name(edge.to));
                        let part = Part::Export(export);
                        let out = Node::new(title, edge.from.0, part, Counts::default());
                        ends.enter = Some(assembly.node(out));
                    }
                    let Some(out) = ends.enter else { continue };
                    assembly.arc(from, out, wanted, false, index);
                }
                (None, Some(to), Some(ends)) => {
                    let Some(import) = ends.import.take() else { continue };
                    let title = format!("ring from {}", name(edge.from));
                    let enter =
                        assembly.node(Node::new(title, edge.to.0, Part::Pass, Counts::default()));
                    assembly.arc(enter, to, Wanted::All, false, index);
                    inputs.push(Input::Ring { node: enter, import, ended: false });
                }
                _ => {}
            }
        }
    }

    /// Makes a node. A sink's place is kept by nothing until all else has succeeded.
    fn node(&self, id: NodeId, locals: &[Option<Local>]) -> Result<Node, BuildError> {
        let node = self.plan.graph.node(id);
        let used = match &node.step {
            Step::Filter(used) => used,
            Step::Boolean(body) => {
                let section = Part::Section(Arc::new(section(body, locals)));
                return Ok(Node::new("boolean", id.0, section, Counts::default()));
            }
            Step::Merge => return Ok(Node::new("merge", id.0, Part::Pass, Counts::default())),
            Step::Unknown => {
                return Err(BuildError::Unexpected("an unknown filter was planned".to_owned()));
            }
        };
        let description = used.description;
        let part = match description.kind {
            Kind::Source => self.source(id, used)?,
            Kind::Sink => Part::Pass,
            _ => {
                let make = description.user.ok_or_else(|| {
                    BuildError::Unexpected(format!("`{}` cannot be made", description.name))
                })?;
                let made = make(&used.arguments.clone().asked_for(self.asked(id)));
                Part::Filter(made.map_err(|mistake| BuildError::Mistake { node: id, mistake })?)
            }
        };
        Ok(describe(Node::new(title(used), id.0, part, counts(description)), description))
    }

    /// The ranges of classes that arcs from a node name.
    fn asked(&self, id: NodeId) -> Vec<(u32, u32)> {
        let graph = &self.plan.graph;
        let entered = |edge: &Edge| match &graph.node(edge.to).step {
            // What enters a section is what its operands ask for.
            Step::Boolean(Boolean::Any(links) | Boolean::All(links)) => {
                links.iter().map(|link| link.classes.clone()).collect()
            }
            _ => vec![edge.classes.clone()],
        };
        let named = graph.edges.iter().filter(|edge| edge.from == id).flat_map(entered);
        let named = named.filter(|classes| !classes.is_all() && !classes.is_plain());
        named.flat_map(|classes| classes.ranges().to_vec()).collect()
    }

    /// Whether a node is where the line ends for who counts its blocks: a sink, or the filter whose
    /// report is the output, and not the sink that the plan put behind that.
    fn is_counted(&self, id: NodeId) -> bool {
        let Plan { graph, reports, .. } = self.plan;
        let reported = |id: NodeId| graph.inputs(id).any(|edge| reports.contains(&edge.from));
        let sink = graph.node(id).kind() == Some(Kind::Sink);
        reports.contains(&id) || sink && !reported(id)
    }

    fn source(&self, id: NodeId, used: &Use) -> Result<Part, BuildError> {
        let origin = sources(&self.plan.graph).position(|(other, _)| other == id).unwrap_or(0);
        let opening = Opening {
            arguments: &used.arguments,
            form: Form::Bytes,
            classes: Classes::Same,
            origin: u16::try_from(origin).unwrap_or(u16::MAX),
            origins: self.origins,
        };
        let name = used.description.name;
        let own = self.settings.sources.iter().find(|entry| entry.description.name == name);
        let entry = own
            .or_else(|| endpoint::catalog::source(name))
            .ok_or_else(|| BuildError::Unexpected(format!("no source is called `{name}`")))?;
        let source = (entry.open)(&opening);
        let source = source.map_err(|failure| BuildError::Outside { node: id, failure })?;
        Ok(Part::Source(SourcePart { source, ended: false }))
    }

    fn sink(&self, id: NodeId) -> Result<Part, BuildError> {
        let graph = &self.plan.graph;
        let node = graph.node(id);
        let Some(used) = node.filter() else {
            return Err(BuildError::Unexpected("a sink without a filter".to_owned()));
        };
        let classes = node.classifiers.iter().filter_map(|id| graph.node(*id).filter()).next();
        let opening = Opening {
            arguments: &used.arguments,
            form: node.comes.first().copied().unwrap_or(Form::Bytes),
            classes: classes.map_or(Classes::Same, |used| used.description.classes),
            origin: 0,
            origins: self.origins,
        };
        let name = used.description.name;
        let own = self.settings.sinks.iter().find(|entry| entry.description.name == name);
        let entry = own
            .or_else(|| endpoint::catalog::sink(name))
            .ok_or_else(|| BuildError::Unexpected(format!("no sink is called `{name}`")))?;
        let sink = (entry.open)(&opening);
        let sink = sink.map_err(|failure| BuildError::Outside { node: id, failure })?;
        Ok(Part::Sink(SinkPart { sink, report: None }))
    }
}

fn counts(description: &Description) -> Counts {
    Counts::new(description.reasons.len(), description.counters.len())
}

fn describe(mut node: Node, description: &'static Description) -> Node {
    node.reasons = description.reasons;
    node.counters = description.counters;
    node.holds = Holds::new(description.held_max, HOLD_BYTES);
    node
}

fn section(body: &Boolean, locals: &[Option<Local>]) -> Section {
    let links = |links: &[Link]| -> Vec<(Wanted, Section)> {
        links.iter().map(|l| (wanted(&l.classes), section(&l.body, locals))).collect()
    };
    match body {
        Boolean::Filter(id) => Section::Filter(locals[id.0].unwrap_or_default()),
        Boolean::Chain { first, rest } => {
            let mut steps = vec![(Wanted::All, section(first, locals))];
            steps.extend(links(rest));
            Section::Chain(steps)
        }
        Boolean::Any(parts) => Section::Any(links(parts)),
        Boolean::All(parts) => Section::All(links(parts)),
        Boolean::Not(part) => Section::Not(Box::new(section(part, locals))),
    }
}

fn wanted(classes: &ClassSet) -> Wanted {
    Wanted::ranges(classes.ranges().to_vec())
}

/// The shape of a pool for the blocks of these sources: as much memory as always, in segments so
/// small that the two or three in use at a time stay in the cache (BASELINES, "Working set").
fn intake_of(nodes: &[Node]) -> PoolConfig {
    let longest = nodes.iter().filter_map(|node| match &node.part {
        Part::Source(part) => Some(part.source.block_max()),
        _ => None,
    });
    let whole = PoolConfig::default();
    let total = whole.segment * whole.segments;
    let longest = longest.max().unwrap_or(whole.segment);
    let segment = longest.next_power_of_two().clamp(SEGMENT_MIN, whole.segment);
    PoolConfig { segment, segments: total / segment }
}

/// A pool with an id that no other pool of this process has had.
fn pool(config: PoolConfig) -> Result<Pool, BuildError> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = DbufId::new(number)
        .ok_or_else(|| BuildError::Unexpected("all dbuf ids have been used".to_owned()))?;
    Ok(Pool::new(id, config)?)
}
