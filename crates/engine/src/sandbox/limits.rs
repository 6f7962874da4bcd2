//! Limits of sandboxed filters, and reasons for dropping their blocks.

use buffer::stream::Config;

/// The reason for dropping input of a filter that has ended.
pub const FILTER_ENDED: &str = "filter ended";
/// The reason for dropping a block that, with its header, is longer than a ring accepts.
pub const BLOCK_TOO_LONG: &str = "longer than a ring accepts";

/// Size of each ring in bytes, enough for two blocks of maximum length.
const RING_BYTES: usize = 4 << 20;
/// Maximum address space that a sandbox process may use in addition to its initial size, in bytes.
/// It includes two pools of 16 MB for blocks, and 64 MB of blocks that the filter may hold.
pub const ADDRESS_SPACE_BYTES_MAX: u64 = 512 << 20;

/// Returns the configuration of a stream between a path and a sandbox process. `id` is the id of
/// the stream's ring.
pub(super) fn stream_config(id: u32) -> Config {
    Config::new(abi::DbufId::new(id).unwrap_or_default()).capacity(RING_BYTES)
}
