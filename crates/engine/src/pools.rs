//! The memory that blocks lie in: a pool for each intake, and one for what filters write.

use crate::error::BuildError;
use abi::DbufId;
use buffer::pool::{Config as PoolConfig, Pool};
use runtime::space::node::{Node, Part};
use std::sync::atomic::{AtomicU32, Ordering};
use sys::steps::{Resource, Steps};

/// The least segment of an intake pool, in bytes.
const SEGMENT_MIN: usize = 128 << 10;

/// The shape of a pool for the blocks of these sources: as much memory as always, in segments so
/// small that the two or three in use at a time stay in the cache (BASELINES, "Working set").
pub(crate) fn intake_of(nodes: &[Node]) -> PoolConfig {
    let longest = nodes.iter().filter_map(|node| match &node.part {
        Part::Source(part) => Some(part.properties.block_max),
        _ => None,
    });
    intake_for(longest.max().unwrap_or_else(|| PoolConfig::default().segment))
}

/// The same for the longest block.
pub(crate) fn intake_for(longest: usize) -> PoolConfig {
    let whole = PoolConfig::default();
    let total = whole.segment * whole.segments;
    let segment = longest.next_power_of_two().clamp(SEGMENT_MIN, whole.segment);
    PoolConfig { segment, segments: total / segment }
}

pub(crate) fn pool(config: PoolConfig, steps: &Steps) -> Result<Pool, BuildError> {
    steps.take(Resource::Memory, "a pool")?;
    Ok(Pool::new(fresh_id()?, config)?)
}

/// The same for a process that may not ask for memory later.
pub(crate) fn pool_unasked(config: PoolConfig) -> Result<Pool, BuildError> {
    Ok(Pool::unasked(fresh_id()?, config)?)
}

/// An id that no other pool of this process has had.
pub(crate) fn fresh_id() -> Result<DbufId, BuildError> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    DbufId::new(number)
        .ok_or_else(|| BuildError::Unexpected("all dbuf ids have been used".to_owned()))
}
