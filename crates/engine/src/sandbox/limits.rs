//! Limits of a filter in a process of its own, and the reasons for which its blocks are dropped.

use buffer::stream::Config;

/// The reason for dropping input of a filter that has ended.
pub const FILTER_ENDED: &str = "filter ended";
/// The reason for dropping a block that is longer, with its header, than a ring takes.
pub const TOO_LONG: &str = "longer than a ring takes";

/// Bytes of each of the two rings: room for two of the longest blocks.
const RING: usize = 4 << 20;
/// Address space that a filter may use beyond its initial size, in bytes. Its blocks lie in two
/// pools of 16 MB, and it may hold 64 MB.
pub const MEMORY: u64 = 512 << 20;

/// The stream of this number between the path and the process.
pub(super) fn ring(id: u32) -> Config {
    Config::new(abi::DbufId::new(id).unwrap_or_default()).capacity(RING)
}
