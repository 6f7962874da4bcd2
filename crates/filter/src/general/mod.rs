//! Filters that belong to no layer.

pub mod bpf;
pub mod ratelimit;
pub mod sample;
pub mod share;
pub mod split;
