//! Filters of the application layer: messages out of streams, and what speaks in them.

pub mod http;
pub mod signature;
