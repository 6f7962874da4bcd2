//! Writers outside the path, whose blocks leave a node as if the node had emitted them.
//!
//! A writer is a source that is not a node of the graph. It is attached to a node and adds blocks
//! to the node's output. It moves and ends with that node, which counts the blocks as made. Without
//! writers, the support for them costs a space one load per pass, and nothing per node.

use super::arc::NodeId;
use super::node::Node;
use super::pass::{PassResult, earlier_time};
use super::{Clock, GENERAL_INTAKE, Space};
use crate::failure::PathFailure;
use endpoint::external_writers::WriterSource;
use endpoint::{DropReason, Intake, Source as _, SourceStatus};
use std::os::fd::BorrowedFd;

/// Reason why a space refused to attach a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriterRefusal {
    /// The space has no node with the requested number that accepts writers.
    #[error("the path was being changed: try again")]
    NodeNotFound,
    /// The run is being recorded, and a record with blocks from a writer could not be replayed.
    #[error("the path is recorded, and a record contains no writers")]
    RunIsRecorded,
}

impl Space {
    /// Returns true if a writer can be attached to the node with number `number`.
    pub fn can_attach_writer(&self, number: usize) -> bool {
        self.node_for_writer(number).is_some()
    }

    /// Attaches a writer to the output of the node with number `number`. Fails if the run is
    /// recorded, if this space does not contain the node, or if the node accepts no writers.
    pub fn attach_writer(
        &mut self,
        number: usize,
        writer: WriterSource,
    ) -> Result<(), WriterRefusal> {
        if self.ports.events.is_recording() {
            return Err(WriterRefusal::RunIsRecorded);
        }
        let at = self.node_for_writer(number).ok_or(WriterRefusal::NodeNotFound)?;
        let port = self.graph.nodes[at].writers.get_or_insert_default();
        port.writers.push(writer);
        self.has_writers = true;
        Ok(())
    }

    fn node_for_writer(&self, number: usize) -> Option<NodeId> {
        let inside = &self.graph.shape.section_of;
        let mut nodes = self.graph.nodes.iter().enumerate();
        let found = nodes.find(|(at, node)| {
            let operand = inside.get(*at).copied().flatten().is_some();
            node.number == number && node.accepts_writers() && !operand
        });
        found.map(|(at, _)| at)
    }

    /// Updates the flag that is true if any node of the space has writers.
    pub(super) fn update_has_writers(&mut self) {
        let open = |node: &Node| node.writers.as_ref().is_some_and(|port| !port.writers.is_empty());
        self.has_writers = self.graph.nodes.iter().any(open);
    }

    /// Returns descriptors that become readable when a writer has written, one per writer.
    pub(super) fn writer_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ports = self.graph.nodes.iter().filter_map(|node| node.writers.as_ref());
        ports.flat_map(|port| port.writers.iter().filter_map(|writer| writer.descriptor()))
    }

    /// Passes one batch from each writer through the graph. If all inputs have ended or the path
    /// has been stopped, stops the writers first; later passes then process the blocks that were
    /// already accepted from the writers.
    #[cold]
    pub(super) fn pull_writers(&mut self, pass: &mut PassResult) {
        let over = self.ports.control.is_stopped() || !pass.expects_input;
        for at in 0..self.graph.nodes.len() {
            if over {
                self.stop_writers(at);
            }
            self.pull_node_writers(at, pass);
        }
        self.update_has_writers();
    }

    /// Stops the writers of a node that a hot swap removes, and passes all blocks that they have
    /// written through the graph. Bytes for which there is no memory, because held blocks and rings
    /// occupy it, count as lost.
    pub(super) fn end_writers(&mut self, at: NodeId) {
        if self.graph.nodes[at].writers.is_none() {
            return;
        }
        self.stop_writers(at);
        self.drain_writers(at);
        // Flushing may release memory that readers of a ring no longer use.
        self.flush_outputs();
        self.drain_writers(at);
        if self.graph.pass.failure.is_some() {
            return;
        }
        if let Some(port) = &mut self.graph.nodes[at].writers {
            port.discard_unread_bytes(DropReason::NoRoom);
        }
        // The ends of sessions need no memory.
        self.drain_writers(at);
    }

    fn drain_writers(&mut self, at: NodeId) {
        let mut pass = PassResult { moved: true, expects_input: true, ..PassResult::default() };
        while pass.expects_input && pass.moved {
            pass = PassResult::default();
            self.pull_node_writers(at, &mut pass);
        }
    }

    fn stop_writers(&mut self, at: NodeId) {
        let port = self.graph.nodes[at].writers.as_mut();
        for writer in port.into_iter().flat_map(|port| &mut port.writers) {
            writer.stop();
        }
    }

    fn pull_node_writers(&mut self, at: NodeId, pass: &mut PassResult) {
        let mut writer = 0;
        while self.graph.pass.failure.is_none() {
            let Some(ended) = self.pull_writer(at, writer, pass) else { return };
            match (ended, &mut self.graph.nodes[at].writers) {
                (true, Some(port)) => port.remove(writer),
                _ => writer += 1,
            }
        }
    }

    /// Takes a batch from a writer and passes it through the graph. Returns `Some(true)` if the
    /// writer has ended, `Some(false)` if it has not, and `None` if there is no writer with this
    /// index.
    fn pull_writer(&mut self, at: NodeId, writer: usize, pass: &mut PassResult) -> Option<bool> {
        let now = self.now();
        let source = self.graph.nodes[at].writers.as_mut()?.writers.get_mut(writer)?;
        let mut room = self.inputs.spare.take().unwrap_or_default();
        room.columns.clear();
        let pool = &self.graph.intakes[GENERAL_INTAKE];
        let given = {
            let mut intake = Intake::new(pool, &mut room.columns, self.inputs.batch_max, now);
            source.produce(&mut intake)
        };
        let mut ended = false;
        match given {
            Ok(SourceStatus::Blocks) => pass.expects_input = true,
            Ok(SourceStatus::Wait { until, readable }) => {
                pass.expects_input = true;
                pass.next_event_time = earlier_time(pass.next_event_time, until);
                pass.has_descriptor |= readable;
            }
            Ok(SourceStatus::End) => ended = true,
            Err(failure) => {
                ended = true;
                let name = self.graph.nodes[at].name.clone();
                self.graph.pass.failure = Some(PathFailure::from_endpoint(name, failure));
            }
        }
        if room.columns.is_empty() {
            self.inputs.spare = Some(room);
            return Some(ended);
        }
        pass.moved = true;
        self.ports.control.report_blocks_arrived();
        let now = match self.graph.clock {
            Clock::Live => now,
            Clock::BlockTime(_) => self.graph.clock.advance(&room.columns, now),
        };
        let room = self.walk_pulled_blocks((at, GENERAL_INTAKE, None), room, now, true);
        self.record_claims();
        self.inputs.spare = Some(room);
        Some(ended)
    }
}
