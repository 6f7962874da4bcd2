//! Filters that belong to no layer.

pub mod bpf;
pub mod ratelimit;
pub mod sample;
pub mod shard;
pub mod split;
