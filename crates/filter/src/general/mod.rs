//! Filters that belong to no particular protocol layer.

pub mod bpf;
pub mod join;
pub mod ratelimit;
pub mod sample;
pub mod shard;
pub mod split;
