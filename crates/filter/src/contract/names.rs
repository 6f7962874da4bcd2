//! Name resolver for filter expressions: hosts, networks, services, protocols.
//!
//! A lookup is I/O, so the resolver is passed in with a filter's arguments. Each name is looked up
//! once per request; the result is written into the request, so that no later run, on any machine,
//! repeats the lookup.

use ebpf::classic::Transports;
use std::fmt;
use std::net::IpAddr;

pub use ebpf::classic::NameQuery;

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// Addresses of a host.
    Addresses(Vec<IpAddr>),
    /// Number of an IPv4 network: the one to four leading bytes of its addresses, right-aligned.
    Network(u32),
    /// Link-layer address.
    Ethernet([u8; 6]),
    /// Port of a service, and its transport protocols.
    Port(u16, Transports),
    /// IP protocol number.
    Protocol(u8),
}

/// A name resolver.
pub trait Names: fmt::Debug + Send + Sync {
    /// Looks up a name; may block until a name server answers.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the name cannot be resolved to a meaning of this kind.
    fn answer(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String>;
}
