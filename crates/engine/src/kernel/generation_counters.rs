//! Counters of running kernel programs. A *generation* is the kernel part of a path between two
//! changes ([`Generation`]); only the counters of the current generation still increase.

use super::final_counters::FinalCounters;
use super::report::amount_or_zero;
use super::tree::ExitBlocks;
use super::{Generation, KernelSpace};
use endpoint::SourceCounters;
use runtime::counters::SpaceCounters;
use runtime::space::SpaceResults;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Counters that a kernel program has collected since the last change of the path. The lists
/// contain the number of blocks by node number and by edge number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct GenerationCounters {
    pub(crate) nodes: Vec<(usize, u64)>,
    pub(crate) edges: Vec<(usize, u64)>,
}

/// Returns the counters of kernel programs so far. `threads` contains the counters of the threads
/// that read from the programs, collected beforehand. Blocks for at most `limit` if another process
/// runs the programs. If that process does not respond, the counters are lower bounds derived from
/// the frames that arrived.
pub(crate) fn query_counters(
    kernels: &Mutex<Vec<KernelSpace>>,
    threads: &[SpaceCounters],
    limit: Duration,
) -> Vec<SpaceCounters> {
    let lock = || kernels.lock().unwrap_or_else(PoisonError::into_inner);
    // The lock is not held while another process is queried.
    let handles: Vec<_> =
        lock().iter().map(|kernel| Arc::clone(&kernel.generation.handle)).collect();
    let share = limit / u32::try_from(handles.len().max(1)).unwrap_or(u32::MAX);
    let queried: Vec<_> = handles.iter().map(|handle| handle.query_counters(share)).collect();
    let mut counted = Vec::new();
    for kernel in lock().iter() {
        let source = kernel.generation.source_number();
        let received = threads.iter().find_map(|space| space.received_from_kernel(source));
        let known = handles.iter().zip(&queried);
        let mut known = known.filter(|(handle, _)| Arc::ptr_eq(handle, &kernel.generation.handle));
        let counters = known.next().and_then(|(_, counters)| counters.clone());
        let results = kernel.current_results(counters, &received.cloned().unwrap_or_default());
        counted.extend(results.iter().map(SpaceCounters::from));
    }
    counted
}

impl KernelSpace {
    /// Returns the counters of the nodes and edges, summed over the current program and all
    /// programs that it replaced. `queried` contains the current program's counters; it is `None`
    /// if they are unknown. `received` contains the totals that this process has received from the
    /// program.
    fn current_results(
        &self,
        queried: Option<FinalCounters>,
        received: &SourceCounters,
    ) -> Vec<SpaceResults> {
        let mut received = received.clone();
        // A frame that the reader has not consumed yet belongs to the edge.
        received.arrived.iter_mut().for_each(|exit| exit.unread = 0);
        self.collect_results(|generation| match &generation.taken {
            Some(taken) => (generation.final_counters(taken), taken.clone()),
            None => {
                let bounds = || FinalCounters::lower_bounds(&generation.tree, &received.arrived);
                let counters = queried.clone().filter(|counters| !counters.lost);
                (Cow::Owned(counters.unwrap_or_else(bounds)), received.clone())
            }
        })
    }

    /// Returns the counters that the program has collected since the last change of the path, or
    /// `None` if this process cannot read them.
    pub(crate) fn generation_counters(&self) -> Option<GenerationCounters> {
        let Generation { graph, ids, tree, sources, handle, .. } = &self.generation;
        let counted = handle.current_counters()?.counted;
        let mut counters = GenerationCounters::default();
        let ran = counted.ran.blocks;
        counters.nodes.extend(sources.iter().map(|id| (ids.nodes[id.0], ran)));
        for (number, step) in tree.steps.iter().enumerate() {
            let entered = amount_or_zero(&counted.entered, number).blocks;
            for id in &step.nodes {
                counters.nodes.push((ids.nodes[id.0], entered));
                let into = graph.edges.iter().zip(&ids.edges).filter(|(edge, _)| edge.to == *id);
                counters.edges.extend(into.map(|(_, number)| (*number, entered)));
            }
        }
        for (number, exit) in tree.exits.iter().enumerate() {
            if matches!(exit.which, ExitBlocks::Classes(_)) {
                let handed = amount_or_zero(&counted.handed, number).blocks;
                counters.edges.push((ids.edges[exit.edge], handed));
            }
        }
        Some(counters)
    }
}
