//! Filters of the application layer: messages out of streams.

pub mod http;
