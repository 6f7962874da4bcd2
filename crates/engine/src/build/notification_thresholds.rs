//! Upper bounds on the notification thresholds of rings between spaces. The plan sets thresholds
//! without knowing the block lengths of the sources; these bounds take them into account.

use super::builder::{Builder, SpaceDraft};
use super::replicas::ReplicatedChain;
use crate::pools::intake_config;
use buffer::pool::PoolConfig;
use runtime::space::assemble::Assembly;
use runtime::space::node::Operator;

impl Builder<'_> {
    /// Limits the notification threshold of each ring, so that blocks never exhaust a pool before
    /// their reader is notified. The limit is the number of blocks that fill half of the smallest
    /// dbuf upstream of the ring. [SL §6.2]
    pub(super) fn limit_notification_thresholds(
        &self,
        drafts: &mut [SpaceDraft],
        shared: &[ReplicatedChain],
    ) {
        let mut bounds: Vec<u64> =
            drafts.iter().map(|draft| blocks_in_half_intake(&draft.assembly)).collect();
        let edges = self.plan.graph.edges.iter().filter(|edge| !edge.back);
        let ends = edges
            .filter_map(|edge| Some((self.exit_space(edge.from)?, self.entry_space(edge.to)?)));
        let ends = ends.chain(shared.iter().flat_map(ReplicatedChain::crossings));
        let ends: Vec<_> = ends.filter(|(near, far)| near != far).collect();
        // One pass per space suffices to propagate a minimum to all spaces downstream.
        for _ in 0..bounds.len() {
            for (near, far) in &ends {
                bounds[*far] = bounds[*far].min(bounds[*near]);
            }
        }
        for (draft, bound) in drafts.iter_mut().zip(bounds) {
            for node in draft.assembly.nodes_mut() {
                if let Operator::Export(export) = &mut node.operator {
                    export.limit_unnotified_blocks(bound);
                }
            }
        }
    }
}

/// Returns the number of blocks of maximum length that fill half of the pool into which the sources
/// of a space write. Returns `u64::MAX` if the space has no source.
fn blocks_in_half_intake(assembly: &Assembly) -> u64 {
    let PoolConfig { segment, segments } = intake_config(assembly.nodes());
    let sources = assembly.nodes().iter().filter_map(|node| match &node.operator {
        Operator::Source(part) => Some(part.properties.block_max),
        _ => None,
    });
    sources.max().map_or(u64::MAX, |longest| (segment * segments / 2 / longest.max(1)) as u64)
}
