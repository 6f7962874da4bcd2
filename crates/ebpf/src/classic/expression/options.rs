//! Options of the pcap-filter compiler.

use super::resolve::{NoResolver, Resolver};

/// Default snapshot length in bytes, which is libpcap's maximum.
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Options for a compilation, in addition to the text and the link type.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Snapshot length: the number of bytes of an accepted frame to capture, which is also the
    /// return value of the program.
    pub snaplen: u32,
    /// True to optimize the compiled program.
    pub optimize: bool,
    /// Resolver of the host, network, port and protocol names in the expression.
    pub resolver: &'a dyn Resolver,
    /// True if the program will run on a live Linux socket, where it can read kernel metadata: a
    /// removed VLAN tag, the interface and the direction. False for frames from files.
    pub live_metadata: bool,
    /// Netmask of the network on which frames are captured, for `ip broadcast`; `None` if unknown.
    pub netmask: Option<u32>,
    /// Address families that loopback headers may contain.
    pub address_families: AddressFamilies,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            snaplen: SNAPLEN_DEFAULT,
            optimize: true,
            resolver: &NoResolver,
            live_metadata: false,
            netmask: None,
            address_families: AddressFamilies::Any,
        }
    }
}

/// The address family numbers of IPv4 and IPv6 in loopback headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamilies {
    /// The numbers of every BSD in both byte orders, for captures of unknown origin.
    Any,
    /// The numbers that one operating system uses.
    Exactly {
        /// Address family number of IPv4.
        inet: u32,
        /// Address family number of IPv6.
        inet6: u32,
        /// True if the address family in frames of type `DLT_NULL` is big-endian.
        big_endian: bool,
    },
}
