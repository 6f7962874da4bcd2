//! Bounds on the event intervals of rings between spaces, beyond those of the plan, which cannot
//! know the block lengths of a source.

use super::builder::{Builder, Draft};
use super::copies::Shared;
use crate::pools::intake_of;
use buffer::pool::Config as PoolConfig;
use runtime::space::assemble::Assembly;
use runtime::space::node::Part;

impl Builder<'_> {
    /// Has no ring wait for more blocks than the smallest dbuf that they may lie in can do without,
    /// which is half of what it holds, be it of this space or of one before it. [SL §6.2]
    pub(super) fn bound_signals(&self, drafts: &mut [Draft], shared: &[Shared]) {
        let mut bounds: Vec<u64> = drafts.iter().map(|draft| half_of(&draft.assembly)).collect();
        let edges = self.plan.graph.edges.iter().filter(|edge| !edge.back);
        let ends = edges.filter_map(|edge| Some((self.leaves(edge.from)?, self.enters(edge.to)?)));
        let ends = ends.chain(shared.iter().flat_map(Shared::crossings));
        let ends: Vec<_> = ends.filter(|(near, far)| near != far).collect();
        // As often as there are spaces: then the smallest has come to all behind it.
        for _ in 0..bounds.len() {
            for (near, far) in &ends {
                bounds[*far] = bounds[*far].min(bounds[*near]);
            }
        }
        for (draft, bound) in drafts.iter_mut().zip(bounds) {
            for node in draft.assembly.nodes_mut() {
                if let Part::Export(export) = &mut node.part {
                    export.bound(bound);
                }
            }
        }
    }
}

/// Returns the number of maximum-length blocks from a space's sources that fill half of its intake.
fn half_of(assembly: &Assembly) -> u64 {
    let PoolConfig { segment, segments } = intake_of(assembly.nodes());
    let sources = assembly.nodes().iter().filter_map(|node| match &node.part {
        Part::Source(part) => Some(part.properties.block_max),
        _ => None,
    });
    sources.max().map_or(u64::MAX, |longest| (segment * segments / 2 / longest.max(1)) as u64)
}
