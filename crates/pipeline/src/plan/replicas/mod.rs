//! Replicas: several instances of an expensive chain of filters, each in its own thread, that share
//! its work. [Th §5.4], [Par §IV]; CONTRACT 8, 16
//!
//! In each connected component, the chain with the highest gain gets replicas if they are
//! worthwhile; otherwise the plan records why they are not. The papers write `split | f + f |
//! join`. Here the graph stays unchanged: a client of the path sees one filter with one report, as
//! in the request (docs/book/decisions/0022-parallel.md).
//!
//! The first replica runs in the thread of the chain. The successors of the chain move to the
//! thread of the last replica, where the outputs are merged. Therefore every additional replica
//! adds one thread, and blocks still pass through the threads in one direction. If all successors
//! run in one other thread, that thread merges the outputs.
//!
//! - The replicas of a stateless chain receive whole batches, by load.
//! - The replicas of a chain with sessions receive blocks by session, both directions together
//!   ([`ReplicaChain::shard_key`](super::ReplicaChain::shard_key)).
//! - Other chains have no replicas.

mod chain;
mod insert;
mod load;

use super::machine::Machine;
use super::model::{Plan, ReplicaChain, ReplicaRefusal, SpaceKind};
use super::moves::MovePeriod;
use crate::format::format_short_duration;
use crate::graph::{Graph, Node, NodeId};
use chain::{Chain, ChainSearch};
use insert::insert_replicas;
use load::{ReplicaGain, ThreadLoad};

/// The maximum number of replicas of a chain.
pub const REPLICAS_MAX: u64 = 64;
/// The minimum expected speedup for which a chain of filters gets replicas.
const SPEEDUP_MIN: f64 = 1.1;
/// Factor by which the minimum speedup is multiplied if blocks are distributed among replicas by
/// session. The merge of the replicas waits for the slowest replica of each batch, a delay that the
/// sum of costs does not include (`bench parallel`, tcp and http: two replicas had 0.76 to 1.03
/// times the throughput of one, in several runs).
const SESSION_SPEEDUP_FACTOR: f64 = 1.3;
/// The default minimum utilization of all replicas together, from 0 to 1.
const DEFAULT_UTILISATION_MIN: f64 = 0.5;
/// The minimum utilization of all replicas together with `--parallel=power` or `--policy=power`.
const POWER_UTILISATION_MIN: f64 = 0.75;
/// The minimum speedup that each additional replica must bring. With `--parallel=latency` or
/// `--policy=latency`, the minimum speedup that all replicas together must bring.
const LATENCY_SPEEDUP_MIN: f64 = 1.02;
/// Minimum ratio of a filter's cost to the cost of handing a block to another thread, at which
/// `explain` prints the reason why the filter has no replicas.
const EXPLAINED_COST_RATIO_MIN: f64 = 4.0;

/// The minimum utilization of all threads together, from 0 to 1, with `--policy=throughput`. The
/// constant after it is the minimum speedup.
const THROUGHPUT_UTILISATION_MIN: f64 = 0.25;
const THROUGHPUT_SPEEDUP_MIN: f64 = 1.05;

/// The minimum benefit for which a plan uses additional threads for replicas or stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BenefitRequirement {
    /// The minimum utilization of the threads, from 0 to 1: the speedup divided by the number of
    /// threads.
    pub(super) utilization_min: f64,
    /// The minimum speedup of all threads together.
    pub(super) speedup_min: f64,
}

impl BenefitRequirement {
    /// Returns the minimum benefit that a division of the request into stages must have. Returns
    /// `None` if the stages may not be distributed to several threads.
    pub(super) fn from_graph(graph: &Graph) -> Option<Self> {
        let options = &graph.options;
        let named = match options.text("parallel") {
            None | Some("auto") => options.text("policy"),
            Some(policy @ ("power" | "latency")) => Some(policy),
            Some(_) => return None,
        };
        // Each crossing would use up part of the latency budget, and worker processes already
        // occupy the processors.
        if options.number("latency").is_some() || options.text("engines").is_some() {
            return None;
        }
        (named != Some("deepest")).then(|| Self::from_policy(named))
    }

    fn from_policy(policy: Option<&str>) -> Self {
        match policy {
            Some("power") => {
                Self { utilization_min: POWER_UTILISATION_MIN, speedup_min: SPEEDUP_MIN }
            }
            Some("latency") => Self { utilization_min: 0.0, speedup_min: LATENCY_SPEEDUP_MIN },
            Some("throughput") => Self {
                utilization_min: THROUGHPUT_UTILISATION_MIN,
                speedup_min: THROUGHPUT_SPEEDUP_MIN,
            },
            _ => Self { utilization_min: DEFAULT_UTILISATION_MIN, speedup_min: SPEEDUP_MIN },
        }
    }
}

/// The value of the option `--parallel`, which determines the number of replicas of a chain.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Parallelism {
    /// The largest number of replicas with at least the benefit that the contained
    /// [`BenefitRequirement`] requires.
    Measured(BenefitRequirement),
    /// This number of replicas, given by the user.
    Number(usize),
    /// No replicas are created.
    Off,
}

impl Parallelism {
    fn from_graph(graph: &Graph) -> Self {
        match graph.options.text("parallel") {
            Some("auto") => {
                Self::Measured(BenefitRequirement::from_policy(graph.options.text("policy")))
            }
            Some(policy @ ("power" | "latency")) => {
                Self::Measured(BenefitRequirement::from_policy(Some(policy)))
            }
            Some(number) => number.parse().map_or(Self::Off, Self::Number),
            // Replicas prevent changes of a running path and recording, so they are off by default.
            None => Self::Off,
        }
    }
}

/// The changes that a running path may make to its own plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeChanges {
    /// True if the path may add and remove replicas.
    pub replicas: bool,
    /// True if the path may move stages to their own threads, and back.
    pub stages: bool,
    /// The period in which the path may move filters between the kernel and threads.
    pub moves: MovePeriod,
    /// True if sessions may move between replicas.
    pub sessions: bool,
}

impl Plan {
    /// Returns the changes that the request allows.
    #[must_use]
    pub fn runtime_changes(&self) -> RuntimeChanges {
        let copies = matches!(Parallelism::from_graph(&self.graph), Parallelism::Measured(_));
        let stages = !self.graph.options.flag("no-adapt") && self.may_have_stages();
        let sessions = self.replicas.iter().any(|replicas| self.may_move_sessions(replicas));
        RuntimeChanges { replicas: copies, stages, moves: self.move_period(), sessions }
    }

    /// Returns true if sessions may move between these replicas: the dispatcher can find their
    /// state, and the request permits changes while it runs.
    #[must_use]
    pub fn may_move_sessions(&self, replicas: &ReplicaChain) -> bool {
        let found = replicas.shard_key.is_some_and(|sharing| sharing.can_find_sessions());
        found && !self.graph.options.flag("no-adapt")
    }
}

/// Returns true if the text is a valid value for `--parallel=`.
pub(crate) fn is_valid_parallel_value(text: &str) -> bool {
    matches!(text, "auto" | "no" | "power" | "latency")
        || text.parse().is_ok_and(|number: u64| (1..=REPLICAS_MAX).contains(&number))
}

/// Distributes the work of a plan to several threads, by replicas or by stages, if that is
/// worthwhile. Uses stages if the sources are assumed to saturate the path, and stages gain more
/// than replicas. Otherwise adds replicas, of at most one chain in every component.
pub(super) fn spread_work(plan: &mut Plan, machine: &Machine) {
    let single = plan.clone();
    let gain = add_replicas(plan, machine, &|_| true);
    let Some(stages) = single.divide_into_stages(machine).filter(|_| single.is_saturated()) else {
        return;
    };
    if stages.after_ns * gain >= stages.before_ns {
        return;
    }
    if let Some(staged) = single.with_stages(&stages, machine) {
        let replica_refusals = std::mem::take(&mut plan.replica_refusals);
        *plan = Plan { replica_refusals, ..staged };
    }
}

/// Adds replicas to the chain with the highest gain in each component, if they are worthwhile.
/// Considers only chains for which `may` returns true. Returns the largest expected speedup of a
/// component, or 1.0 if there are no replicas.
fn add_replicas(plan: &mut Plan, machine: &Machine, may: &dyn Fn(&Chain) -> bool) -> f64 {
    let parallelism = Parallelism::from_graph(&plan.graph);
    let mut gain: f64 = 1.0;
    if parallelism == Parallelism::Off || parallelism == Parallelism::Number(1) {
        return gain;
    }
    let components = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    for component in 0..components {
        let work = ChainSearch { plan, machine };
        let chains: Vec<Chain> =
            work.replicable_chains(component).into_iter().filter(|chain| may(chain)).collect();
        let best = chains
            .iter()
            .filter_map(|chain| Some((chain, work.best_replica_gain(chain, parallelism)?)))
            // Among equally good chains the longest is best, because it leaves less work in front
            // of it.
            .min_by(|(a, of_a), (b, of_b)| {
                of_a.bound.total_cmp(&of_b.bound).then(b.nodes.len().cmp(&a.nodes.len()))
            });
        let replica_refusals =
            work.explain_missing_replicas(component, &chains, best.is_some(), parallelism);
        match best.map(|(chain, worth)| (chain.clone(), worth)) {
            Some((chain, worth)) => {
                gain = gain.max(worth.single / worth.bound);
                insert_replicas(plan, &chain, worth, machine);
            }
            None => plan.replica_refusals.extend(replica_refusals),
        }
    }
    gain
}

impl ChainSearch<'_> {
    /// Returns the expected gain from the best number of replicas of a chain. Returns `None` if
    /// replicas are not worthwhile, or if the request forbids them. If the request sets a number of
    /// replicas, returns the gain from that number in any case.
    fn best_replica_gain(&self, chain: &Chain, parallelism: Parallelism) -> Option<ReplicaGain> {
        let load = ThreadLoad::new(self, chain)?;
        let single = load.block_time(1);
        let worth = |replica_count| ReplicaGain {
            replica_count,
            bound: load.block_time(replica_count),
            single,
            chain_cost: load.own,
        };
        let (used, gain) = match parallelism {
            Parallelism::Off => return None,
            Parallelism::Number(count) => return Some(worth(count.min(REPLICAS_MAX as usize))),
            Parallelism::Measured(BenefitRequirement {
                utilization_min: used,
                speedup_min: gain,
            }) => (used, gain),
        };
        let mut best: Option<ReplicaGain> = None;
        for replica_count in 2..=self.machine.processors.min(REPLICAS_MAX as usize) {
            let next = worth(replica_count);
            let before = best.map_or(single, |best| best.bound);
            let useful = single / (next.bound * replica_count as f64) >= used;
            if next.bound * LATENCY_SPEEDUP_MIN <= before && useful {
                best = Some(next);
            }
        }
        let more = if chain.sharing.is_some() { SESSION_SPEEDUP_FACTOR } else { 1.0 };
        best.filter(|best| best.bound * gain * more <= single)
    }

    /// Returns, for each expensive filter of a component, the reason why it has no replicas.
    /// `found` is true if the component has replicas; the list is then empty. If the request sets
    /// the number of replicas, every filter in a thread counts as expensive.
    fn explain_missing_replicas(
        &self,
        component: usize,
        chains: &[Chain],
        found: bool,
        parallelism: Parallelism,
    ) -> Vec<ReplicaRefusal> {
        let graph = &self.plan.graph;
        let requested = matches!(parallelism, Parallelism::Number(_));
        let costly = |id: NodeId| {
            self.weighted_cost(id) >= EXPLAINED_COST_RATIO_MIN * self.machine.costs.crossing_cost()
        };
        let is_eligible = |id: &NodeId| {
            let node = graph.node(*id);
            let is_filter =
                node.filter().is_some_and(|used| used.description.constructor.is_some());
            let space = self.plan.space_of(*id);
            is_filter && space.component == component && space.kind == SpaceKind::Thread && !found
        };
        let filters = graph.nodes_with_ids().map(|(id, _)| id).filter(is_eligible);
        let why = |node: NodeId| {
            let none = Chain { nodes: Vec::new(), sharing: None };
            let own = Chain { nodes: vec![node], sharing: None };
            match (self.shard_key_with_filter(&none, node), self.check_merge_order(&own)) {
                (Err(why), _) | (_, Err(why)) => why,
                _ if self.machine.processors < 2 => "there is one processor".to_owned(),
                _ => self.explain_cost(node, chains),
            }
        };
        filters
            .filter(|id| requested || costly(*id))
            .map(|node| ReplicaRefusal { node, why: why(node) })
            .collect()
    }

    /// Explains that replicas of a node's chain would cost more than they gain: formats the time
    /// per block with two replicas and with one.
    fn explain_cost(&self, node: NodeId, chains: &[Chain]) -> String {
        let with = chains.iter().filter(|chain| chain.nodes.contains(&node));
        let two = with.filter_map(|chain| {
            let load = ThreadLoad::new(self, chain)?;
            Some((load.block_time(1), load.block_time(2)))
        });
        match two.min_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((one, two)) => format!(
                "crossing costs more: with two replicas a block takes {} at best, with one {}",
                format_short_duration(two),
                format_short_duration(one)
            ),
            None => "crossing costs more".to_owned(),
        }
    }
}

impl Plan {
    /// Returns true if the sources are assumed to emit as many blocks as the path can process. This
    /// is the case if no source is an interface, whose input rate is known only while the path
    /// runs. It is also assumed with `--policy=latency`, `--policy=throughput` and
    /// `--parallel=latency`.
    fn is_saturated(&self) -> bool {
        let attaches =
            |node: &Node| node.filter().is_some_and(|used| used.endpoint.attach_point.is_some());
        let named = matches!(self.graph.options.text("policy"), Some("latency" | "throughput"));
        let latency = self.graph.options.text("parallel") == Some("latency");
        named || latency || !self.graph.nodes.iter().any(attaches)
    }

    /// Plans replicas that a running path can start: replicas of stateless chains, as many as are
    /// worthwhile at current costs. Returns this plan with these replicas in place of its own, and
    /// the expected speedup; `None` if no replicas are worthwhile.
    #[must_use]
    pub fn with_replicas(&self, machine: &Machine) -> Option<(Self, f64)> {
        let mut plan = Self { replicas: Vec::new(), replica_refusals: Vec::new(), ..self.clone() };
        let gain = add_replicas(&mut plan, machine, &|chain| chain.sharing.is_none());
        super::latency::distribute_latency(&mut plan);
        (!plan.replicas.is_empty()).then_some((plan, gain))
    }
}
