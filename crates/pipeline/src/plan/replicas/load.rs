//! The work of each thread with and without replicas, and the resulting gain.

use super::chain::{Chain, ChainSearch, downstream_nodes};
use crate::plan::model::SpaceKind;

/// The expected gain from a number of replicas of a chain of filters.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicaGain {
    pub(super) replica_count: usize,
    /// The expected time per block from a source, in ns, with the replicas: a lower bound from
    /// [`ThreadLoad::block_time`].
    pub(super) bound: f64,
    /// The expected time per block from a source, in ns, without replicas.
    pub(super) single: f64,
    /// The cost of a block in the chain of filters, in ns.
    pub(super) chain_cost: f64,
}

/// The work of each thread of a component, in ns per block from a source. It determines how much a
/// chain of filters, run by one of these threads, gains from replicas.
pub(super) struct ThreadLoad {
    /// The work on nodes that are neither in the chain nor downstream of it, in ns per block, in
    /// the thread that runs the chain.
    before: f64,
    pub(super) own: f64,
    /// The work on nodes downstream of the chain, in ns per block, in the thread that runs the
    /// chain.
    after: f64,
    /// The work of the busiest thread other than the one that runs the chain, in ns per block.
    busiest: f64,
    others: f64,
    /// The fraction of all blocks that enters the chain, and the fraction that leaves it.
    flows: (f64, f64),
    crossings: (f64, f64),
    dispatch: f64,
    processors: f64,
}

impl ThreadLoad {
    pub(super) fn new(work: &ChainSearch<'_>, chain: &Chain) -> Option<Self> {
        let plan = work.plan;
        let graph = &plan.graph;
        let (first, last) = (*chain.nodes.first()?, *chain.nodes.last()?);
        let thread = plan.placements[first.0].space;
        let component = plan.spaces[thread].component;
        let behind = downstream_nodes(graph, last);
        let mut threads = vec![0.0; plan.spaces.len()];
        let (mut before, mut own, mut after) = (0.0, 0.0, 0.0);
        for id in graph
            .nodes_with_ids()
            .map(|(id, _)| id)
            .filter(|id| plan.space_of(*id).component == component)
        {
            let space = plan.placements[id.0].space;
            match plan.spaces[space].kind {
                SpaceKind::Thread if space != thread => threads[space] += work.weighted_cost(id),
                SpaceKind::Thread if chain.nodes.contains(&id) => own += work.weighted_cost(id),
                SpaceKind::Thread if behind.contains(&id) => after += work.weighted_cost(id),
                SpaceKind::Thread => before += work.weighted_cost(id),
                SpaceKind::Kernel | SpaceKind::Process => {}
            }
        }
        let exits = graph.edges.iter().zip(&plan.flows.1).filter(|(edge, _)| edge.from == last);
        let costs = &work.machine.costs;
        let flows = (plan.flows.0[first.0], exits.map(|(_, flow)| flow).sum::<f64>().min(1.0));
        // The blocks of a batch that reach this point cross together, and share one wakeup.
        let crossing = |flow: f64| {
            costs.ring + costs.wake / (BATCH_BLOCKS * flow).clamp(1.0, BLOCKS_PER_READER_WAKEUP)
        };
        Some(Self {
            before,
            own,
            after,
            busiest: threads.iter().copied().fold(0.0, f64::max),
            others: threads.iter().sum(),
            flows,
            crossings: (crossing(flows.0), crossing(flows.1)),
            dispatch: if chain.sharing.is_some() { costs.call + costs.head } else { costs.call },
            processors: work.machine.processors as f64,
        })
    }

    /// Returns a lower bound of the time per block from a source, in ns, with this number of
    /// replicas. The bound is the work of the busiest thread, or the work of all threads divided by
    /// the number of processors, whichever is larger. With two or more replicas, the divisor is at
    /// most the number of replicas.
    pub(super) fn block_time(&self, replica_count: usize) -> f64 {
        let Self { before, own, after, busiest, others, flows, crossings, dispatch, processors } =
            self;
        let (before, own, after) = (*before, *own, *after);
        let all = before + own + after;
        if replica_count < 2 {
            return all.max(*busiest).max((all + others) / processors);
        }
        let replica_count = replica_count as f64;
        let away = (replica_count - 1.0) / replica_count;
        let more = flows.0 * (away * crossings.0 + dispatch) + flows.1 * away * crossings.1;
        let even = (all + more) / replica_count;
        let fixed = (before + flows.0 * dispatch).max(after);
        even.max(fixed)
            .max(*busiest)
            .max((all + more + others) / processors.min(replica_count.max(1.0)))
    }
}

/// The number of blocks in a full batch; dispatching a batch costs one call.
const BATCH_BLOCKS: f64 = 64.0;

/// The assumed number of blocks per wakeup of a reader. [Th §5.2.2]
const BLOCKS_PER_READER_WAKEUP: f64 = 32.0;
