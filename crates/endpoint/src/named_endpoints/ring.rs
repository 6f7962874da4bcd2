//! The size and configuration of the ring to which a `user` or `socket` sink writes.

use abi::DbufId;
use buffer::OverflowPolicy;
use buffer::stream::Config;
use filter::Arguments;
use serde::{Deserialize, Serialize};

/// Size of a ring that a path shares with other programs, and the history of its size changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RingState {
    /// Current capacity of the ring in bytes.
    pub bytes: u64,
    /// Number of times that the ring has grown.
    pub grown: u64,
    /// Number of times that the ring has shrunk.
    pub shrunk: u64,
    /// Reason for the last change of the ring's size; empty if the size has not changed.
    pub because: String,
}

/// Returns the configuration of the ring of a `user` or `socket` sink with these arguments. The
/// argument `size` fixes the size of the ring. Without it, a ring with `full=wait` grows from the
/// default size as needed. A ring that loses blocks keeps the default size, because the size
/// determines which blocks are lost (decision 0093).
pub(super) fn ring_config(id: DbufId, arguments: &Arguments) -> Config {
    let policy = match arguments.text("full") {
        Some("overwrite") => OverflowPolicy::Overwrite,
        Some("wait") => OverflowPolicy::Block,
        _ => OverflowPolicy::DropNew,
    };
    let config = Config::new(id).policy(policy);
    let requested = arguments.number("size").and_then(|bytes| usize::try_from(bytes).ok());
    requested.map_or_else(|| config.self_growing(), |bytes| config.capacity(bytes))
}

/// Returns the minimum and maximum size, in bytes, that the ring of a `user` or `socket` sink with
/// these arguments can have. The limits of a growing ring depend on the caches of this machine,
/// which the function detects.
#[must_use]
pub fn ring_size_bounds(arguments: &Arguments) -> (usize, usize) {
    size_bounds(&ring_config(DbufId::HOLE, arguments))
}

/// Returns the minimum and maximum size, in bytes, of a ring through which a program writes to a
/// `buffer`, if the program has requested no size.
#[must_use]
pub fn writer_ring_size_bounds() -> (usize, usize) {
    size_bounds(&Config::new(DbufId::HOLE).self_growing())
}

fn size_bounds(config: &Config) -> (usize, usize) {
    let fixed = config.ring.capacity;
    config.scaling.map_or((fixed, fixed), |scaling| scaling.size_bounds())
}
