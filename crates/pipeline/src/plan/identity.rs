//! The ID of a plan, by which logs and tools distinguish plans.

use super::model::{Plan, PlannedEdge};
use std::fmt::Write as _;

/// Initial value of the 64-bit FNV-1a hash; `FNV_PRIME` is its multiplier.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

impl Plan {
    /// Returns the plan's ID: 16 hexadecimal digits that are equal for plans with the same graph,
    /// the same space for each node, and the same kind of each edge. All processes of one version
    /// of Streamline compute the same ID.
    #[must_use]
    pub fn id(&self) -> String {
        let mut text = self.graph.to_string();
        for placement in &self.placements {
            let space = self.spaces.get(placement.space).map_or("", |space| &space.name);
            let _ = write!(text, "\n{space}");
        }
        for edge in &self.edges {
            let kind = match edge {
                PlannedEdge::Call => "call",
                PlannedEdge::Back => "back",
                PlannedEdge::Ring(_) => "ring",
                PlannedEdge::Kernel(_) => "kernel",
                PlannedEdge::Pipe => "pipe",
            };
            let _ = write!(text, "\n{kind}");
        }
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        format!("{:016x}", text.bytes().fold(FNV_OFFSET, step))
    }
}
