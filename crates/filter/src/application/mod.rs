//! Application layer filters. They find messages in streams and datagrams, and recognize protocols.

pub mod dns;
pub mod http;
pub mod signature;
pub mod tls;

mod endpoints;

#[cfg(test)]
mod test_support;
