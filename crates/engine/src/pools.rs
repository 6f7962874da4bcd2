//! Pools for blocks. Each space has one or more *intakes*, pools into which its sources write, and
//! one pool into which its filters write.

use crate::error::BuildError;
use abi::DbufId;
use buffer::pool::{Pool, PoolConfig};
use runtime::space::node::{Node, Operator};
use sys::rollback::{RollbackLog, StepResource};

/// Minimum segment size of an intake pool, in bytes.
const SEGMENT_BYTES_MIN: usize = 128 << 10;

/// Returns the configuration of an intake pool for the sources among `nodes`. The pool has the
/// default amount of memory. Its segments are so small that the two or three segments in use at a
/// time stay in the cache (BASELINES, "Working set").
pub(crate) fn intake_config(nodes: &[Node]) -> PoolConfig {
    let longest = nodes.iter().filter_map(|node| match &node.operator {
        Operator::Source(part) => Some(part.properties.block_max),
        _ => None,
    });
    intake_config_for_length(longest.max().unwrap_or_else(|| PoolConfig::default().segment))
}

/// Returns the configuration of an intake pool for blocks of at most `longest` bytes.
pub(crate) fn intake_config_for_length(longest: usize) -> PoolConfig {
    let whole = PoolConfig::default();
    let total = whole.segment * whole.segments;
    let segment = longest.next_power_of_two().clamp(SEGMENT_BYTES_MIN, whole.segment);
    PoolConfig { segment, segments: total / segment }
}

pub(crate) fn create_pool(config: PoolConfig, steps: &RollbackLog) -> Result<Pool, BuildError> {
    steps.announce_creation(StepResource::Memory, "a pool")?;
    Ok(Pool::new(allocate_dbuf_id()?, config)?)
}

/// Creates a pool without logging the allocation, so that no rollback covers it.
pub(crate) fn create_unlogged_pool(config: PoolConfig) -> Result<Pool, BuildError> {
    Ok(Pool::without_allocation(allocate_dbuf_id()?, config)?)
}

/// Returns an id that no other dbuf has ever had ([`buffer::ids`]). Fails after all ids have been
/// used.
pub(crate) fn allocate_dbuf_id() -> Result<DbufId, BuildError> {
    buffer::ids::allocate_id().ok_or_else(|| {
        BuildError::Unexpected(
            "the ids of dbufs in this process tree are used up: start the program again".to_owned(),
        )
    })
}
