//! The end of a space: what is held leaves, then sinks, sources and rings end.

use super::node::{NodeId, Part};
use super::{Imported, Input, Remains, Space};
use crate::failure::PathFailure;
use crate::ring::Import;
use filter::Time;

impl Space {
    /// Lets what is held leave, from the sources to the sinks, then ends the sinks and the rings.
    pub(super) fn finish(&mut self, now: Time) {
        let failed = self.graph.turn.failure.is_some();
        self.events.finish(now, self.graph.turn.failure.as_ref());
        for i in 0..self.graph.shape.order.len() {
            let at = self.graph.shape.order[i];
            self.finish_node(at, now, failed);
        }
        self.note_claims();
    }

    /// Lets a node let out what it holds, unless something has `failed`, and ends it.
    pub(super) fn finish_node(&mut self, at: NodeId, now: Time, failed: bool) {
        if matches!(self.graph.nodes[at].part, Part::Deal(_)) {
            self.close_deal(at);
        }
        let now = if self.graph.nodes[at].copied { self.ends_replica(now) } else { now };
        if !failed {
            self.graph.walk(now, &[], |walk| walk.finish(at));
        }
        self.turn_pools();
        self.end_node(at);
    }

    pub(super) fn end_node(&mut self, at: NodeId) {
        let node = &mut self.graph.nodes[at];
        match &mut node.part {
            Part::Sink(part) => {
                match part.sink.finish() {
                    Ok(report) => part.report = Some(report),
                    Err(failure) => {
                        let first = PathFailure::outside(node.name.clone(), failure);
                        self.graph.turn.failure.get_or_insert(first);
                    }
                }
                // What the sink took and could not get out is lost, whenever it noticed.
                self.events.heard(node.planned, &*part.sink);
                if let Some(written) = part.sink.written() {
                    node.flow.settle(written, &part.sink.dropped());
                }
            }
            Part::Source(part) => {
                part.source.close();
                self.events.seen(node.planned, &*part.source);
            }
            Part::Export(export) => export.close(),
            _ => {}
        }
    }

    pub(super) fn remains(self) -> Remains {
        let imported = self.imported();
        let (retired, programs) = (self.retired, self.programs.gone);
        let failure = self.graph.turn.failure;
        Remains { nodes: self.graph.nodes, imported, failure, outside: None, retired, programs }
    }

    /// Returns the amounts taken from rings.
    pub(super) fn imported(&self) -> Vec<Imported> {
        let imported = |node: NodeId, import: &Import| Imported {
            planned: import.planned,
            node,
            name: self.graph.nodes[node].name.clone(),
            taken: import.taken(),
        };
        let rings = self.inputs.iter().flat_map(|input| match input {
            Input::Ring { node, import, .. } | Input::Copy { node, import, .. } => {
                vec![imported(*node, import)]
            }
            Input::Join(gather) => {
                gather.imports().map(|(node, import)| imported(node, import)).collect()
            }
            Input::Source { .. } => Vec::new(),
        });
        rings.collect()
    }
}
