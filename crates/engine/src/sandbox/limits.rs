//! Limits of sandboxed filters, and the drop reasons of their blocks.

use buffer::stream::Config;

/// The reason for dropping input of a filter that has ended.
pub const FILTER_ENDED: &str = "filter ended";
/// The reason for dropping a block that is longer, with its header, than a ring accepts.
pub const TOO_LONG: &str = "longer than a ring takes";

/// Size of each ring in bytes: space for two blocks of maximum length.
const RING_BYTES: usize = 4 << 20;
/// Address space that a sandbox process may use in addition to its initial size, in bytes. Its
/// blocks are in two pools of 16 MB, and the filter may hold 64 MB.
pub const ADDRESS_SPACE_MAX: u64 = 512 << 20;

/// Returns the configuration of the stream with this id between the path and the process.
pub(super) fn stream_config(id: u32) -> Config {
    Config::new(abi::DbufId::new(id).unwrap_or_default()).capacity(RING_BYTES)
}
