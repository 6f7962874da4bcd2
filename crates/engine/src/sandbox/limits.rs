//! What a filter in a process of its own may use, and why its blocks are dropped.

use buffer::stream::Config;

/// Why what comes to a filter that has ended is dropped.
pub const FILTER_ENDED: &str = "filter ended";
/// Why a block cannot be handed over: with what stands before it, it is longer than a ring takes.
pub const TOO_LONG: &str = "longer than a ring takes";

/// Bytes of each of the two rings: room for two of the longest blocks.
const RING: usize = 4 << 20;
/// How much address space a filter may use besides what it begins with, in bytes. Its blocks lie in
/// two pools of 16 MB, and it may hold 64 MB.
pub const MEMORY: u64 = 512 << 20;

/// The stream of this number between the path and the process.
pub(super) fn ring(id: u32) -> Config {
    Config::new(abi::DbufId::new(id).unwrap_or_default()).capacity(RING)
}
