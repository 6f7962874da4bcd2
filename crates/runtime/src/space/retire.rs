//! Removal of nodes before a hot swap. The removed nodes are drained and ended, and their output
//! follows the arcs of the old graph.

use super::Space;
use super::arc::NodeId;
use super::input::Input;
use super::node::{Node, Operator};
use super::node_key::NodeKey;
use super::pass::PassResult;
use super::sessions::SessionBirths;
use endpoint::SourceCounters;

impl Space {
    /// Ends all nodes for which `stays` returns false, in order from the sources to the sinks.
    /// Blocks that these nodes hold are released over the arcs of the old graph.
    pub fn retire_nodes(&mut self, stays: &dyn Fn(NodeKey) -> bool) {
        let keys = self.node_keys();
        let now = self.record_retire_time();
        for i in 0..self.graph.shape.order.len() {
            let at = self.graph.shape.order[i];
            if stays(keys[at]) {
                continue;
            }
            self.end_writers(at);
            let failed = self.graph.pass.failure.is_some();
            self.finish_node(at, now, failed);
        }
        // Every swap removes replicas, so the join must not wait for them.
        self.report_local_replica_finished(true);
        (self.graph.pass.finishing_filter, self.graph.pass.births) = (0, SessionBirths::default());
        self.record_retired_nodes();
    }

    /// Drains the rings that a hot swap removes. Returns true if no more blocks can arrive over
    /// these rings, or if the path has failed. Does not block.
    pub fn drain_rings(&mut self, is_removed: &dyn Fn(NodeKey) -> bool) -> bool {
        let mut emptied = true;
        for i in 0..self.inputs.list.len() {
            while let Input::Ring { import, ended: false, .. } = &self.inputs.list[i]
                && is_removed(NodeKey::Import(import.planned))
                && self.graph.pass.failure.is_none()
            {
                let mut pass = PassResult::default();
                self.import_ring(i, &mut pass);
                if !pass.moved {
                    break;
                }
                self.report_progress();
            }
            match &self.inputs.list[i] {
                Input::Ring { import, ended, .. } => {
                    emptied &= *ended || !is_removed(NodeKey::Import(import.planned));
                }
                // Replicas are removed by every swap.
                Input::Replica { .. } | Input::Join(_) => emptied &= self.drain_replica_ring(i),
                Input::Source { .. } => {}
            }
        }
        emptied || self.graph.pass.failure.is_some()
    }

    /// Drains the input with index `i`: the ring of a replica, or the rings of a join. Returns true
    /// if no more blocks can arrive over the input. Stops draining if the path fails.
    fn drain_replica_ring(&mut self, i: usize) -> bool {
        while self.graph.pass.failure.is_none() {
            let mut pass = PassResult::default();
            match &self.inputs.list[i] {
                Input::Replica { ended: false, .. } => self.walk_dispatched_batch(i, &mut pass),
                Input::Join(gather) if !gather.ended => self.join_replicas(i, &mut pass),
                _ => return true,
            }
            if !pass.moved {
                break;
            }
        }
        match &self.inputs.list[i] {
            Input::Replica { ended, .. } => *ended,
            Input::Join(gather) => gather.ended,
            _ => true,
        }
    }

    /// Returns true if the rings that will be removed are empty. The spaces that write to these
    /// rings must be paused.
    pub fn are_removed_rings_empty(&mut self, is_removed: &dyn Fn(NodeKey) -> bool) -> bool {
        self.inputs.list.iter_mut().all(|input| match input {
            Input::Ring { import, ended: false, .. }
                if is_removed(NodeKey::Import(import.planned)) =>
            {
                // A faulty ring is reported by its next read.
                import.untaken_entries().is_ok_and(|waiting| waiting == 0)
            }
            _ => true,
        })
    }

    /// Returns one end of the program with node number `number`: the sink that writes the program's
    /// input, or the source that reads its output. `of` extracts the end from its node, and returns
    /// `None` for all other nodes. Returns `None` if the end is in another space.
    pub fn program_endpoint<H>(
        &mut self,
        number: usize,
        of: fn(&mut Node) -> Option<&mut H>,
    ) -> Option<&mut H> {
        self.graph.nodes.iter_mut().filter(|node| node.number == number).find_map(of)
    }

    /// Returns the index in this space of the source with node number `number`, and the index of
    /// its intake. Returns `None` if the source runs in another space.
    fn source_node_and_input(&self, number: usize) -> Option<(NodeId, usize)> {
        self.inputs.list.iter().find_map(|input| match input {
            Input::Source { node, intake } if self.graph.nodes[*node].number == number => {
                Some((*node, *intake))
            }
            _ => None,
        })
    }

    /// Passes all available output of the program with node number `number` through the graph.
    /// Returns false if another space reads the program's output, or if the path has failed.
    pub fn walk_program_output(&mut self, number: usize) -> bool {
        let Some((at, intake)) = self.source_node_and_input(number) else { return false };
        loop {
            let mut pass = PassResult::default();
            self.pull_source((at, intake), None, &mut pass);
            if !pass.moved || self.graph.pass.failure.is_some() {
                self.flush_outputs();
                return self.graph.pass.failure.is_none();
            }
        }
    }

    /// Returns the counters of the source that receives the output of a kernel program. `first` is
    /// the node number of the source under which the ledger reports the kernel program. Returns
    /// `None` if the output enters the path in another space.
    pub fn kernel_output_counts(&mut self, first: usize) -> Option<SourceCounters> {
        self.graph.nodes.iter().find_map(|node| match &node.operator {
            Operator::Source(part) if node.number == first && part.properties.chooses_arc => {
                Some(part.source.counters())
            }
            _ => None,
        })
    }

    /// Passes the remaining output of an ended kernel program through the graph, without blocking.
    /// `first` is the node number of the source under which the ledger reports the program. Returns
    /// true if no output remains, if another space receives the output, or if the path has failed.
    pub fn drain_kernel_output(&mut self, first: usize) -> bool {
        let Some((at, intake)) = self.source_node_and_input(first) else { return true };
        loop {
            match &mut self.graph.nodes[at].operator {
                Operator::Source(part) if !part.ended => drop(part.source.stop()),
                _ => return true,
            }
            let mut pass = PassResult::default();
            self.pull_source((at, intake), None, &mut pass);
            if self.graph.pass.failure.is_some() {
                return true;
            }
            if !pass.moved {
                // Reclaim memory that readers of rings have released.
                self.flush_outputs();
                return !pass.expects_input;
            }
        }
    }

    /// Passes the entries that are currently in the rings through the graph, and flushes sinks and
    /// rings.
    pub fn walk_ring_entries(&mut self) {
        for i in 0..self.inputs.list.len() {
            while matches!(&self.inputs.list[i], Input::Ring { ended: false, .. })
                && self.graph.pass.failure.is_none()
            {
                let mut pass = PassResult::default();
                self.import_ring(i, &mut pass);
                if !pass.moved {
                    break;
                }
            }
        }
        self.flush_outputs();
    }
}
