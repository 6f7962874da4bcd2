//! Placement of the gauges that measure the latency of blocks in a path ([`runtime::latency`]).

use super::builder::{Builder, SpaceDraft};
use crate::record::RecordMode;
use pipeline::explain;
use runtime::latency::{AgeGauge, LatencyGauge};
use runtime::space::Input;
use runtime::space::node::{Node, Operator};
use std::collections::HashMap;
use std::sync::Arc;

impl Builder<'_> {
    /// Attaches latency gauges to new rings, to new sinks, and to new sources that read a kernel
    /// ring. Does nothing unless the request bounds the latency. If block timestamps drive the
    /// path's clock, only rings get gauges. A replayed recording gets none, because its blocks are
    /// as old as the recording.
    pub(super) fn attach_gauges(&self, drafts: &mut [SpaceDraft]) {
        if matches!(self.extras.record_mode, RecordMode::Replay(_)) {
            return;
        }
        let Some(latency) = &self.plan.latency else { return };
        self.extras.budget.set_bound(latency.bound_ns);
        let mut rings: HashMap<usize, Arc<LatencyGauge>> = HashMap::new();
        for node in drafts.iter_mut().flat_map(|draft| draft.assembly.nodes_mut()) {
            if let Operator::Export(export) = &mut node.operator {
                let name = self.ring_label(export.planned, &node.name);
                let gauge = self.extras.budget.add_wait_gauge(name, export.wakeup_threshold().ns);
                export.attach_gauge(Arc::clone(&gauge));
                rings.insert(export.planned, gauge);
            } else if !self.drives_clock {
                self.attach_age_gauge(node);
            }
        }
        let inputs = drafts.iter_mut().flat_map(|draft| &mut draft.inputs);
        for import in inputs.flat_map(Input::imports_mut) {
            if let Some(gauge) = rings.get(&import.planned) {
                import.attach_gauge(Arc::clone(gauge));
            }
        }
    }

    /// Attaches a gauge that compares block times with the clock, if the node is a sink or a source
    /// that reads a kernel ring.
    fn attach_age_gauge(&self, node: &mut Node) {
        let budget = &self.extras.budget;
        match &mut node.operator {
            Operator::Sink(part) => {
                part.age = Some(AgeGauge::new(
                    budget.add_sink_gauge(self.node_name(node.number)),
                    self.epoch,
                ));
            }
            Operator::Source(part) => {
                let name = self.node_name(node.number);
                let program =
                    part.properties.chooses_arc.then(|| format!("{name}: out of the kernel"));
                let ring = || Some(format!("{name}: ring of the kernel"));
                let share = self.wait_bound_ns(node.number, program.is_some());
                let gauge = share.zip(program.or_else(ring));
                part.age = gauge.map(|(share, name)| {
                    AgeGauge::new(budget.add_wait_gauge(name, share), self.epoch)
                });
            }
            _ => {}
        }
    }

    /// Returns the maximum time in ns that frames may wait in a kernel ring before a source reads
    /// them. `number` is the node number of the source. `program` is true if the ring contains the
    /// output of a kernel program. Returns `None` if the source reads no kernel ring.
    fn wait_bound_ns(&self, number: usize, program: bool) -> Option<u64> {
        let id = self
            .plan
            .graph
            .nodes_with_ids()
            .map(|(id, _)| id)
            .find(|id| self.node_number(*id) == number)?;
        if !program {
            return self.plan.latency.as_ref()?.source_share(id);
        }
        let mut programs = self.plan.programs.iter();
        programs.find(|program| program.sources.contains(&id)).map(|known| known.ring.signal_ns)
    }

    /// Returns the name of the node with this number.
    fn node_name(&self, number: usize) -> String {
        let names = explain::unique_names(&self.plan.graph);
        let at = self.ids.nodes.iter().position(|known| *known == number);
        at.and_then(|at| names.get(at).cloned()).unwrap_or_default()
    }

    /// Returns the label of a ring for reports: the names of the nodes at both ends of its edge. A
    /// ring to or from a replica lies on no edge of the plan; its label is `title` and the ring's
    /// number.
    fn ring_label(&self, number: usize, title: &str) -> String {
        let edge = self.ids.edges.iter().position(|known| *known == number);
        let Some(edge) = edge.and_then(|at| self.plan.graph.edges.get(at)) else {
            return format!("{title}, {number}");
        };
        let names = explain::unique_names(&self.plan.graph);
        format!("{} → {}", names[edge.from.0], names[edge.to.0])
    }
}
