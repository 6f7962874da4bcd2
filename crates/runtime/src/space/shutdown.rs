//! The shutdown of a space, which releases held blocks, and then ends sinks, sources and rings.

use super::arc::NodeId;
use super::node::Operator;
use super::{ImportCounters, Input, Space, SpaceResults};
use crate::failure::PathFailure;
use crate::ring::RingImport;
use endpoint::DropReason;
use filter::Time;

impl Space {
    /// Ends all nodes from the sources to the sinks.
    pub(super) fn finish_all_nodes(&mut self, now: Time) {
        let failed = self.graph.pass.failure.is_some();
        self.ports.events.record_finish(now, self.graph.pass.failure.as_ref());
        for i in 0..self.graph.shape.order.len() {
            let at = self.graph.shape.order[i];
            self.finish_node(at, now, failed);
        }
        self.record_claims();
    }

    /// Ends the node at `at`. First releases the blocks that the node holds, unless `failed` is
    /// true because the path has failed.
    pub(super) fn finish_node(&mut self, at: NodeId, now: Time, failed: bool) {
        if matches!(self.graph.nodes[at].operator, Operator::Dispatch(_)) {
            self.close_dispatch(at);
        }
        let now =
            if self.graph.nodes[at].is_replica { self.begin_replica_shutdown(now) } else { now };
        if !failed {
            self.graph.walk(now, &[], |walk| walk.finish_node(at));
        }
        self.end_pass();
        self.end_node(at);
    }

    pub(super) fn end_node(&mut self, at: NodeId) {
        let node = &mut self.graph.nodes[at];
        if let Some(port) = &mut node.writers {
            // Only a failed path ends before it has read all blocks of its writers.
            port.discard_unread_bytes(DropReason::Failed);
        }
        match &mut node.operator {
            Operator::Sink(part) => {
                match part.sink.finish() {
                    Ok(report) => part.report = Some(report),
                    Err(failure) => {
                        let first = PathFailure::from_endpoint(node.name.clone(), failure);
                        self.graph.pass.failure.get_or_insert(first);
                    }
                }
                // Blocks that the sink accepted but could not deliver count as lost, even if the
                // sink detected this only now.
                self.ports.events.record_program_counts(node.number, &*part.sink);
                if let Some(written) = part.sink.amount_written() {
                    node.flow.split_accepted_amount(written, &part.sink.drops_by_reason());
                }
            }
            Operator::Source(part) => {
                part.source.close();
                self.ports.events.record_source_counts(node.number, &*part.source);
            }
            Operator::Export(export) => export.close(),
            _ => {}
        }
    }

    pub(super) fn into_results(self) -> SpaceResults {
        let imported = self.import_counters();
        let (retired, removed_programs) = (self.accounts.retired, self.programs.removed);
        let kept = self.graph.pass.observers.retained_frames();
        let failure = self.graph.pass.failure;
        SpaceResults {
            nodes: self.graph.nodes,
            imported,
            failure,
            kernel_counts: None,
            retired,
            retained_frames: kept,
            removed_programs,
        }
    }

    /// Returns the blocks and bytes received over each ring.
    pub(super) fn import_counters(&self) -> Vec<ImportCounters> {
        let counters_of = |node: NodeId, import: &RingImport| ImportCounters {
            planned: import.planned,
            node,
            name: self.graph.nodes[node].name.clone(),
            taken: import.taken_amount(),
        };
        let rings = self.inputs.list.iter().flat_map(|input| match input {
            Input::Ring { node, import, .. } | Input::Replica { node, import, .. } => {
                vec![counters_of(*node, import)]
            }
            Input::Join(gather) => {
                gather.imports().map(|(node, import)| counters_of(node, import)).collect()
            }
            Input::Source { .. } => Vec::new(),
        });
        rings.collect()
    }
}
