//! Name resolver for filter expressions: hosts, networks, services, protocols.
//!
//! The service comes with a filter's arguments, as the compiler does: to look a name up is I/O, and
//! this crate does none. Each name is looked up once for a request; the result is written into the
//! request, so that a repeated run, or a part of it elsewhere, looks nothing up.

use ebpf::classic::Transports;
use std::fmt;
use std::net::IpAddr;

pub use ebpf::classic::NameQuery;

/// The meaning of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// The addresses of a host.
    Addresses(Vec<IpAddr>),
    /// The number of an IPv4 network: four bytes, or fewer at the right end, which then stand for
    /// the first bytes of the address.
    Network(u32),
    /// A link address.
    Ethernet([u8; 6]),
    /// A port, and the transports by which the service is reached there.
    Port(u16, Transports),
    /// The number of an IP protocol.
    Protocol(u8),
}

/// Looks names up.
pub trait Names: fmt::Debug + Send + Sync {
    /// The meaning of a name, or why it has none. It is asked seldom, and may take the time that a
    /// name server takes.
    fn answer(&self, question: NameQuery, name: &str) -> Result<NameAnswer, String>;
}
