//! Application layer filters: messages in streams and datagrams, and protocol recognition.

pub mod dns;
pub mod http;
pub mod signature;
pub mod tls;

mod endpoints;

#[cfg(test)]
mod test_support;
