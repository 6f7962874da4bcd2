//! Filters that are not tied to a protocol layer.

pub mod bpf;
pub mod join;
pub mod ratelimit;
pub mod sample;
pub mod shard;
pub mod split;
