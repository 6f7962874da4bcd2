//! Filters of the application layer: messages out of streams and datagrams, and what speaks in
//! them.

pub mod dns;
pub mod http;
pub mod signature;
pub mod tls;

mod ends;

#[cfg(test)]
mod piped;
