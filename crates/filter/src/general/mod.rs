//! Filters that belong to no layer.

pub mod bpf;
