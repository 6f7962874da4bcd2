//! The results and counters that a space returns when it ends, and the function that waits for its
//! programs to exit.

use super::node::Node;
use crate::counters::{ImportCounters, KernelCounts, RetiredCounters};
use crate::failure::PathFailure;
use crate::ledger::RetainedFrames;
use endpoint::process::Process;
use std::sync::Arc;

/// The results and counters that a space returns when it ends.
#[derive(Debug, Default)]
pub struct SpaceResults {
    /// All nodes that the space had at its end, each with its final counters.
    pub nodes: Vec<Node>,
    /// Blocks and bytes that the space took from each of its input rings.
    pub imported: Vec<ImportCounters>,
    /// Failure that ended the space; `None` if the space did not fail.
    pub failure: Option<PathFailure>,
    /// Counters that only a space in the kernel has; `None` for a thread.
    pub kernel_counts: Option<KernelCounts>,
    /// Counters of nodes, edges and rings removed by hot swaps.
    pub retired: RetiredCounters,
    /// Frames stored in the histories of nodes' past output. Each history is paired with the number
    /// of its node.
    pub retained_frames: Vec<(usize, RetainedFrames)>,
    /// Nodes that exchanged blocks with programs (`exec`) until a hot swap removed the nodes. They
    /// wrote the input or read the output of the programs.
    pub removed_programs: Vec<Node>,
}

impl SpaceResults {
    /// Returns the programs of the space, each with the name of its node. A program occurs twice if
    /// the space both writes its input and reads its output.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &Arc<Process>)> {
        let nodes = self.nodes.iter().chain(&self.removed_programs);
        nodes.filter_map(|node| Some((&*node.name, node.exec_process()?)))
    }
}

/// The memory that a space uses, and the processes of its programs.
#[derive(Clone, Debug, Default)]
pub struct SpaceResources {
    /// Number of bytes of memory that back the slots of the space's pools, including unused slots.
    pub memory: u64,
    /// Programs, each with its node number and its process id.
    pub processes: Vec<(usize, u32)>,
}

/// Blocks until all programs of a path that has ended have exited. Returns a failure for each
/// program that failed. Must be called after all spaces have ended, because only then are all pipes
/// closed.
pub fn finish_programs(results: &[SpaceResults]) -> Vec<PathFailure> {
    let mut finished: Vec<&Arc<Process>> = Vec::new();
    let mut failures = Vec::new();
    for (name, process) in results.iter().flat_map(SpaceResults::programs) {
        if finished.iter().any(|other| Arc::ptr_eq(other, process)) {
            continue;
        }
        finished.push(process);
        match process.finish() {
            Ok(Ok(())) => {}
            Ok(Err(bad)) => failures.push(PathFailure::from_program(name.to_owned(), bad)),
            Err(error) => failures.push(PathFailure::from_unknown_exit(name.to_owned(), error)),
        }
    }
    failures
}
