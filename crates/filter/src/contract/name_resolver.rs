//! Interface to a resolver of names in filter expressions: hosts, networks, services, protocols.
//!
//! A lookup is I/O, which filters must not do, so the resolver is passed in with a filter's
//! arguments. Each name is looked up once per request. The result is written into the request, so
//! that later runs use the same result on every machine.

use ebpf::classic::Transports;
use std::fmt;
use std::net::IpAddr;

pub use ebpf::classic::NameQuery;

/// The result of looking up a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// Addresses of a host.
    Addresses(Vec<IpAddr>),
    /// Number of an IPv4 network: the one to four leading bytes of its addresses, right-aligned.
    Network(u32),
    /// A link-layer address, as in the Ethernet header.
    Ethernet([u8; 6]),
    /// The port of a service, and the transport protocols that use it.
    Port(u16, Transports),
    /// An IP protocol number.
    Protocol(u8),
}

/// A service that resolves the names in filter expressions.
pub trait NameResolver: fmt::Debug + Send + Sync {
    /// Looks up a name. May block until a name server replies.
    ///
    /// # Errors
    ///
    /// Fails with the reason if the name cannot be resolved to a value of the requested kind.
    fn resolve(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String>;
}
