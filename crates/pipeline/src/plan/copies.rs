//! Copies: a chain of filters that costs enough is run several times, each in a thread of its own,
//! where they share its work. [Th §5.4], [Par §IV]; CONTRACT 8, 16
//!
//! In: a plan, and a machine. Out: the same plan, in which the dearest chain has copies if that
//! pays, and why none has if it does not. `split | f + f | join` as the sources write it is not put
//! into the graph: whoever asks the path meets one filter there, as the request has it, and one
//! report (docs/book/decisions/0022-parallel.md).
//!
//! The first copy runs where the chain ran; what follows it there moves behind the last copy, into
//! its thread, where the copies are joined. So there are as many threads more as copies more, and a
//! path still moves only forward. Where all that follows runs in one other thread, that joins them.
//!
//! - What keeps nothing gets whole batches, by load.
//! - What keeps sessions gets those that are its own, both ways ([`Sharing`]).
//! - Everything else has one copy.

use super::edges::between;
use super::{Machine, Plan, PlannedEdge, PlannedSpace, RingPlan, SpaceKind};
use crate::explain::{names, spent};
use crate::graph::{Edge, Graph, NodeId, Step};
use filter::sharing::Sharing;
use filter::{Form, Keeps, Kind};

/// A chain of filters that is run several times.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// The filters, one behind the other.
    pub nodes: Vec<NodeId>,
    /// The space of each copy; what comes to the chain is shared out in the first.
    pub spaces: Vec<usize>,
    /// The node at which the replicas are merged.
    pub join: usize,
    /// The key by which blocks stay together; `None` if blocks are distributed by load.
    pub sharing: Option<Sharing>,
    /// The rings to and from the copies.
    pub ring: RingPlan,
    /// The expected gain, as text.
    pub because: String,
}

/// A filter costly enough for replicas that has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alone {
    /// The filter.
    pub node: NodeId,
    /// The reason.
    pub why: String,
}

/// The most copies that can be asked for.
pub const COPIES_MAX: u64 = 64;
/// The least gain in blocks per second that justifies replicas.
const PAYS: f64 = 1.1;
/// The least gain by session: the merge waits for the slowest replica of a batch, which no sum of
/// costs shows (`bench parallel`, tcp and http: two replicas got 0.76 to 1.03 of the blocks of one
/// through, in several runs).
const MORE_BY_SESSION: f64 = 1.3;
/// The least utilization of each further replica: by default, and for `power`.
const USE: f64 = 0.5;
const USE_OF_POWER: f64 = 0.75;
/// The least gain of a further replica for `latency`.
const GAIN_OF_LATENCY: f64 = 1.02;
/// The cost, in crossings, from which on `explain` says why a filter has no replicas.
const EXPLAINED: f64 = 4.0;

/// Blocks in a full batch, and blocks per event. [Th §5.2.2]
const BATCH: f64 = 64.0;
const EVENT: f64 = 32.0;

/// The value of `--parallel`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wish {
    /// As many as are used to at least this part each, and gain this much together.
    Measured { used: f64, gain: f64 },
    /// This many.
    Number(usize),
    /// None.
    No,
}

impl Wish {
    fn of(graph: &Graph) -> Self {
        let gain = PAYS;
        match graph.options.text("parallel") {
            Some("auto") => Self::Measured { used: USE, gain },
            Some("power") => Self::Measured { used: USE_OF_POWER, gain },
            Some("latency") => Self::Measured { used: 0.0, gain: GAIN_OF_LATENCY },
            Some(number) => number.parse().map_or(Self::No, Self::Number),
            // What has copies can be neither changed while it runs nor recorded.
            None => Self::No,
        }
    }
}

/// Changes that a path may make to itself while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapts {
    /// Give filters copies, and take them away.
    pub copies: bool,
    /// Move filters between the kernel and threads.
    pub moves: bool,
}

impl Plan {
    /// Returns the changes that the request allows.
    #[must_use]
    pub fn adapts(&self) -> Adapts {
        let copies = matches!(Wish::of(&self.graph), Wish::Measured { .. });
        Adapts { copies, moves: self.graph.options.flag("adapt") }
    }
}

/// Returns true if the text is a value of `--parallel=`.
pub(crate) fn is_wish(text: &str) -> bool {
    matches!(text, "auto" | "no" | "power" | "latency")
        || text.parse().is_ok_and(|number: u64| (1..=COPIES_MAX).contains(&number))
}

/// Gives copies to the chains for which they pay, one in every part.
pub(super) fn rewrite(plan: &mut Plan, machine: &Machine) {
    copy(plan, machine, &|_| true);
}

/// Gives copies to chains of which this holds, where that pays.
fn copy(plan: &mut Plan, machine: &Machine, may: &dyn Fn(&Chain) -> bool) {
    let wish = Wish::of(&plan.graph);
    if wish == Wish::No || wish == Wish::Number(1) {
        return;
    }
    let parts = plan.spaces.iter().map(|space| space.part + 1).max().unwrap_or(0);
    for part in 0..parts {
        let work = Work { plan, machine };
        let chains: Vec<Chain> = work.chains(part).into_iter().filter(|chain| may(chain)).collect();
        let best = chains
            .iter()
            .filter_map(|chain| Some((chain, work.worth(chain, wish)?)))
            // Where several are as good, the longest: then nothing need be done before it.
            .min_by(|(a, of_a), (b, of_b)| {
                of_a.bound.total_cmp(&of_b.bound).then(b.nodes.len().cmp(&a.nodes.len()))
            });
        let alone = work.alone(part, &chains, best.is_some(), wish);
        match best.map(|(chain, worth)| (chain.clone(), worth)) {
            Some((chain, worth)) => make(plan, &chain, worth, machine),
            None => plan.alone.extend(alone),
        }
    }
}

/// A chain that could be copied.
#[derive(Debug, Clone)]
struct Chain {
    nodes: Vec<NodeId>,
    sharing: Option<Sharing>,
}

/// The worth of replicas of a chain.
#[derive(Debug, Clone, Copy)]
struct Worth {
    copies: usize,
    /// The least cost of a block, in ns, with all processors busy.
    bound: f64,
    /// The same without copies.
    single: f64,
    /// The cost of a block in the chain.
    own: f64,
}

struct Work<'p> {
    plan: &'p Plan,
    machine: &'p Machine,
}

impl Work<'_> {
    /// All chains of a part that could be copied.
    fn chains(&self, part: usize) -> Vec<Chain> {
        let graph = &self.plan.graph;
        let here = |id: &NodeId| self.plan.space_of(*id).part == part;
        let mut found = Vec::new();
        for head in graph.ids().map(|(id, _)| id).filter(here) {
            let mut chain = Chain { nodes: Vec::new(), sharing: None };
            let mut next = Some(head);
            while let Some(id) = next {
                let Ok(sharing) = self.joins(&chain, id) else { break };
                chain.nodes.push(id);
                chain.sharing = sharing;
                if self.keeps_order(&chain).is_ok() {
                    found.push(chain.clone());
                }
                next = self.behind(id);
            }
        }
        found
    }

    /// The only node behind one, if that is called and nothing else leads there.
    fn behind(&self, id: NodeId) -> Option<NodeId> {
        let (graph, edges) = (&self.plan.graph, &self.plan.edges);
        let mut out = graph.edges.iter().zip(edges).filter(|(edge, _)| edge.from == id);
        let (Some((edge, PlannedEdge::Call)), None) = (out.next(), out.next()) else { return None };
        (graph.inputs(edge.to).count() == 1).then_some(edge.to)
    }

    /// Returns the key by which a chain is distributed once this filter belongs to it, or the
    /// reason why it cannot.
    fn joins(&self, chain: &Chain, id: NodeId) -> Result<Option<Sharing>, String> {
        let node = self.plan.graph.node(id);
        let used = match &node.step {
            Step::Filter(used) => used,
            Step::Boolean(_) => return Err("a section, which runs in one thread".to_owned()),
            Step::Merge | Step::Unknown => return Err("not a filter".to_owned()),
        };
        let description = used.description;
        if let Some(why) = used.bound() {
            return Err(why);
        }
        if node.inside.is_some() {
            return Err("part of a section".to_owned());
        }
        if used.is_process() || description.user.is_none() {
            return Err("not a filter of this process".to_owned());
        }
        if used.published_as().is_some() {
            return Err("others see what it knows (`state=`): one state by that name".to_owned());
        }
        if self.plan.space_of(id).kind != SpaceKind::Thread {
            return Err("runs in the kernel".to_owned());
        }
        match description.state.keeps {
            Keeps::Nothing => Ok(chain.sharing),
            Keeps::Private => Err("private state: one for all blocks".to_owned()),
            Keeps::Pinned(why) => Err(format!("state that cannot move: {why}")),
            Keeps::Sessions => self.sessions(chain, id),
        }
    }

    /// Returns the key of a filter with sessions behind those of a chain.
    fn sessions(&self, chain: &Chain, id: NodeId) -> Result<Option<Sharing>, String> {
        let graph = &self.plan.graph;
        let description = |id: NodeId| graph.node(id).filter().map(|used| used.description);
        let sessions_of = |id: NodeId| description(id).and_then(|known| known.state.sharing);
        let head = chain.nodes.first().copied().unwrap_or(id);
        let tells = |id: &NodeId| description(*id).is_some_and(|known| known.state.numbers);
        match sessions_of(id) {
            Some(own) => {
                let raw = |form: &Form| matches!(form, Form::Frame | Form::Packet | Form::Segment);
                let changed = |id: &NodeId| graph.node(*id).kind() >= Some(Kind::Editing);
                let changes = |id: &NodeId| sessions_of(*id).is_none() && changed(id);
                match chain.sharing {
                    None if !graph.node(head).comes.iter().all(raw) => {
                        Err("its sessions cannot be seen in what comes".to_owned())
                    }
                    // Sessions are told apart before anything is changed.
                    None if chain.nodes.iter().any(changes) => {
                        Err("what is before it changes blocks".to_owned())
                    }
                    None => Ok(Some(own)),
                    Some(Sharing::Addresses) => Ok(Some(Sharing::Addresses)),
                    Some(_) => Err("other sessions than before".to_owned()),
                }
            }
            None if chain.nodes.iter().any(tells) => Ok(chain.sharing),
            None if self.before(head).iter().any(tells) => match chain.sharing {
                None | Some(Sharing::Session) => Ok(Some(Sharing::Session)),
                Some(_) => Err("other sessions than before".to_owned()),
            },
            None => match description(id).map(|known| known.state.keeps_alone) {
                Some(Keeps::Nothing) => Ok(chain.sharing),
                _ => Err("private state: nothing before it tells sessions apart".to_owned()),
            },
        }
    }

    /// Checks that the order behind a chain survives its merge.
    fn keeps_order(&self, chain: &Chain) -> Result<(), String> {
        let graph = &self.plan.graph;
        let Some(last) = chain.nodes.last().copied() else { return Ok(()) };
        let behind = reach(graph, last, |edge| (edge.from, edge.to));
        let part = self.plan.space_of(last).part;
        let of_part = |id: NodeId| self.plan.space_of(id).part == part;
        if graph.edges.iter().any(|edge| edge.back && of_part(edge.from)) {
            return Err("a cycle, which runs in one thread".to_owned());
        }
        let from_elsewhere = |id: &NodeId| {
            graph.inputs(*id).any(|edge| edge.from != last && !behind.contains(&edge.from))
        };
        match behind.iter().any(from_elsewhere) {
            true => Err("another branch meets what follows".to_owned()),
            false => Ok(()),
        }
    }

    /// All nodes before one.
    fn before(&self, id: NodeId) -> Vec<NodeId> {
        reach(&self.plan.graph, id, |edge| (edge.to, edge.from))
    }

    /// Returns the cost of a block in a node, weighted by the share of blocks that come to it.
    fn cost(&self, id: NodeId) -> f64 {
        self.plan.expected(id).unwrap_or(0.0) * self.plan.flows.0[id.0]
    }

    /// Returns the worth of the best number of replicas, if any are wanted.
    fn worth(&self, chain: &Chain, wish: Wish) -> Option<Worth> {
        let load = Load::new(self, chain)?;
        let single = load.bound(1);
        let worth = |copies| Worth { copies, bound: load.bound(copies), single, own: load.own };
        let (used, gain) = match wish {
            Wish::No => return None,
            Wish::Number(copies) => return Some(worth(copies.min(COPIES_MAX as usize))),
            Wish::Measured { used, gain } => (used, gain),
        };
        let mut best: Option<Worth> = None;
        for copies in 2..=self.machine.processors.min(COPIES_MAX as usize) {
            let next = worth(copies);
            let before = best.map_or(single, |best| best.bound);
            let useful = single / (next.bound * copies as f64) >= used;
            if next.bound * GAIN_OF_LATENCY <= before && useful {
                best = Some(next);
            }
        }
        let more = if chain.sharing.is_some() { MORE_BY_SESSION } else { 1.0 };
        best.filter(|best| best.bound * gain * more <= single)
    }

    /// Returns the reasons why costly filters of a part have no replicas, if none has.
    fn alone(&self, part: usize, chains: &[Chain], made: bool, wish: Wish) -> Vec<Alone> {
        let graph = &self.plan.graph;
        let asked = matches!(wish, Wish::Number(_));
        let dear = |id: NodeId| self.cost(id) >= EXPLAINED * self.machine.costs.crossing();
        let concerns = |id: &NodeId| {
            let node = graph.node(*id);
            let is_filter = node.filter().is_some_and(|used| used.description.user.is_some());
            let space = self.plan.space_of(*id);
            is_filter && space.part == part && space.kind == SpaceKind::Thread && !made
        };
        let filters = graph.ids().map(|(id, _)| id).filter(concerns);
        let why = |node: NodeId| {
            let none = Chain { nodes: Vec::new(), sharing: None };
            let own = Chain { nodes: vec![node], sharing: None };
            match (self.joins(&none, node), self.keeps_order(&own)) {
                (Err(why), _) | (_, Err(why)) => why,
                _ if self.machine.processors < 2 => "there is one processor".to_owned(),
                _ => self.costs_more(node, chains),
            }
        };
        filters.filter(|id| asked || dear(*id)).map(|node| Alone { node, why: why(node) }).collect()
    }

    /// Formats the cost of the replicas that are not made.
    fn costs_more(&self, node: NodeId, chains: &[Chain]) -> String {
        let with = chains.iter().filter(|chain| chain.nodes.contains(&node));
        let two = with.filter_map(|chain| {
            let load = Load::new(self, chain)?;
            Some((load.bound(1), load.bound(2)))
        });
        match two.min_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((one, two)) => format!(
                "crossing costs more: with two copies a block takes {} at best, with one {}",
                spent(two),
                spent(one)
            ),
            None => "crossing costs more".to_owned(),
        }
    }
}

/// The work of the threads of a part for one block of a source.
struct Load {
    /// Before the chain, in its thread; what is in no way behind it counts, too.
    before: f64,
    own: f64,
    /// Behind the chain, in its thread.
    after: f64,
    /// The dearest of the other threads, and all of them.
    most: f64,
    others: f64,
    /// The shares that enter and leave the chain, and the cost of a crossing there.
    flows: (f64, f64),
    crossings: (f64, f64),
    deal: f64,
    processors: f64,
}

impl Load {
    fn new(work: &Work<'_>, chain: &Chain) -> Option<Self> {
        let plan = work.plan;
        let graph = &plan.graph;
        let (first, last) = (*chain.nodes.first()?, *chain.nodes.last()?);
        let thread = plan.placed[first.0].space;
        let part = plan.spaces[thread].part;
        let behind = reach(graph, last, |edge| (edge.from, edge.to));
        let mut threads = vec![0.0; plan.spaces.len()];
        let (mut before, mut own, mut after) = (0.0, 0.0, 0.0);
        for id in graph.ids().map(|(id, _)| id).filter(|id| plan.space_of(*id).part == part) {
            let space = plan.placed[id.0].space;
            match plan.spaces[space].kind {
                SpaceKind::Thread if space != thread => threads[space] += work.cost(id),
                SpaceKind::Thread if chain.nodes.contains(&id) => own += work.cost(id),
                SpaceKind::Thread if behind.contains(&id) => after += work.cost(id),
                SpaceKind::Thread => before += work.cost(id),
                SpaceKind::Kernel | SpaceKind::Process => {}
            }
        }
        let leaves = graph.edges.iter().zip(&plan.flows.1).filter(|(edge, _)| edge.from == last);
        let costs = &work.machine.costs;
        let flows = (plan.flows.0[first.0], leaves.map(|(_, flow)| flow).sum::<f64>().min(1.0));
        // Of a batch, as much crosses at once as comes that far.
        let crossing = |flow: f64| costs.ring + costs.wake / (BATCH * flow).clamp(1.0, EVENT);
        Some(Self {
            before,
            own,
            after,
            most: threads.iter().copied().fold(0.0, f64::max),
            others: threads.iter().sum(),
            flows,
            crossings: (crossing(flows.0), crossing(flows.1)),
            deal: if chain.sharing.is_some() { costs.call + costs.head } else { costs.call },
            processors: work.machine.processors as f64,
        })
    }

    /// Returns the least cost of a block: that of the busiest thread, or of all threads on the
    /// processors they share.
    fn bound(&self, copies: usize) -> f64 {
        let Self { before, own, after, most, others, flows, crossings, deal, processors } = self;
        let (before, own, after) = (*before, *own, *after);
        let all = before + own + after;
        if copies < 2 {
            return all.max(*most).max((all + others) / processors);
        }
        let copies = copies as f64;
        let away = (copies - 1.0) / copies;
        let more = flows.0 * (away * crossings.0 + deal) + flows.1 * away * crossings.1;
        let even = (all + more) / copies;
        let fixed = (before + flows.0 * deal).max(after);
        even.max(fixed).max(*most).max((all + more + others) / processors.min(copies.max(1.0)))
    }
}

/// All nodes that edges lead to from one, each edge seen from one end to the other.
fn reach(graph: &Graph, from: NodeId, ends: impl Fn(&Edge) -> (NodeId, NodeId)) -> Vec<NodeId> {
    let mut found = Vec::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for (near, far) in graph.edges.iter().filter(|edge| !edge.back).map(&ends) {
            if near == at && !found.contains(&far) {
                found.push(far);
                open.push(far);
            }
        }
    }
    found
}

/// Puts the copies of a chain into the plan.
fn make(plan: &mut Plan, chain: &Chain, worth: Worth, machine: &Machine) {
    let (Some(first), Some(last)) = (chain.nodes.first(), chain.nodes.last()) else { return };
    let all_names = names(&plan.graph);
    let thread = plan.placed[first.0].space;
    let part = plan.spaces[thread].part;
    let more = worth.copies - 1;
    let ring = between(&plan.graph, machine);
    let behind = reach(&plan.graph, *last, |edge| (edge.from, edge.to));
    let here = |id: &&NodeId| plan.placed[id.0].enters == thread;
    let moves: Vec<NodeId> = behind.iter().filter(here).copied().collect();
    let mut next: Vec<usize> =
        plan.graph.outputs(*last).map(|edge| plan.placed[edge.to.0].enters).collect();
    next.sort_unstable();
    next.dedup();
    let new = spaces(plan, part, more);
    let new_names: Vec<String> = new.iter().map(|space| space.name.clone()).collect();
    plan.spaces.splice(thread + 1..thread + 1, new);
    let shifted = |space: usize| if space > thread { space + more } else { space };
    for placed in &mut plan.placed {
        (placed.space, placed.enters, placed.leaves) =
            (shifted(placed.space), shifted(placed.enters), shifted(placed.leaves));
    }
    for copied in &mut plan.copied {
        copied.spaces.iter_mut().for_each(|space| *space = shifted(*space));
        copied.join = shifted(copied.join);
    }
    let join = match next.as_slice() {
        // All that follows is in one other thread.
        [only] if moves.is_empty() => shifted(*only),
        _ => thread + more,
    };
    for (edge, planned) in plan.graph.edges.iter().zip(&mut plan.edges) {
        let joins = edge.from == *last && plan.placed[edge.to.0].enters == join;
        if joins && matches!(planned, PlannedEdge::Ring(_)) {
            *planned = PlannedEdge::Call;
        }
    }
    let to = new_names.last().cloned().unwrap_or_default();
    for id in moves {
        let old = plan.spaces[thread].name.clone();
        let placed = &mut plan.placed[id.0];
        for space in [&mut placed.space, &mut placed.enters, &mut placed.leaves] {
            if *space == thread {
                *space = join;
            }
        }
        for candidate in placed.candidates.iter_mut().filter(|known| known.space == old) {
            candidate.space.clone_from(&to);
        }
        if placed.by_neighbor {
            placed.because = format!("behind the copies of `{}`", all_names[last.0]);
        }
    }
    plan.placed[last.0].leaves = join;
    let share = if chain.sharing.is_some() { "by session" } else { "by load" };
    let Worth { copies, bound, single, own } = worth;
    let because = format!(
        "{copies} copies, {share}: a block takes {} in one, and {} with all of them at best; {} in \
         one thread",
        spent(own),
        spent(bound),
        spent(single),
    );
    for id in &chain.nodes {
        plan.placed[id.0].because = format!("{copies} copies, {share}");
    }
    let spaces = (0..copies).map(|copy| thread + copy).collect();
    let (nodes, sharing) = (chain.nodes.clone(), chain.sharing);
    plan.copied.push(Copied { nodes, spaces, join, sharing, ring, because });
}

/// So many more threads, under names that nobody has.
fn spaces(plan: &Plan, part: usize, more: usize) -> Vec<PlannedSpace> {
    let taken = |name: &str| plan.spaces.iter().any(|s| s.part == part && s.name == name);
    (0..)
        .map(|number: usize| format!("thread{number}"))
        .filter(|name| !taken(name))
        .take(more)
        .map(|name| PlannedSpace { name, kind: SpaceKind::Thread, part })
        .collect()
}

impl Plan {
    /// This plan, which has no copies, with those that its request asks for and that a path can get
    /// while it runs: of chains that keep nothing, as many as pay by what is known of costs now.
    /// None if none do.
    #[must_use]
    pub fn shared_out(&self, machine: &Machine) -> Option<Self> {
        let mut plan = Self { copied: Vec::new(), alone: Vec::new(), ..self.clone() };
        copy(&mut plan, machine, &|chain| chain.sharing.is_none());
        super::latency::spread(&mut plan);
        (!plan.copied.is_empty()).then_some(plan)
    }

    /// Returns the replicas, and if the edge enters them, for an edge at the border of their chain.
    #[must_use]
    pub fn is_border(&self, edge: &Edge) -> Option<(&Copied, bool)> {
        let chain = |near: NodeId, far: NodeId| {
            self.copies_of(near).filter(|copied| !copied.nodes.contains(&far))
        };
        let into = chain(edge.to, edge.from).map(|copied| (copied, true));
        into.or_else(|| chain(edge.from, edge.to).map(|copied| (copied, false)))
    }

    /// The chain that a node is copied with.
    #[must_use]
    pub fn copies_of(&self, node: NodeId) -> Option<&Copied> {
        self.copied.iter().find(|copied| copied.nodes.contains(&node))
    }
}
