//! Parameters of a compilation.

use super::resolve::{NoResolver, Resolver};

/// Number of bytes kept of an accepted frame by default (libpcap's maximum).
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Parameters of a compilation in addition to text and link type.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Return value of the program for an accepted frame.
    pub snaplen: u32,
    /// True to optimize the program.
    pub optimize: bool,
    /// Resolver of names.
    pub resolver: &'a dyn Resolver,
    /// True if the program will see kernel metadata: a removed VLAN tag, the interface, the
    /// direction. True on live Linux sockets, false for files.
    pub live_metadata: bool,
    /// Mask of the captured network, for `ip broadcast`.
    pub netmask: Option<u32>,
    /// Address families in loopback headers.
    pub families: AddressFamilies,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            snaplen: SNAPLEN_DEFAULT,
            optimize: true,
            resolver: &NoResolver,
            live_metadata: false,
            netmask: None,
            families: AddressFamilies::Any,
        }
    }
}

/// The address family numbers of IPv4 and IPv6 in loopback headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamilies {
    /// The numbers of any BSD, in any byte order, for captures of unknown origin.
    Any,
    /// The numbers of one system.
    Exactly {
        /// Address family number of IPv4.
        inet: u32,
        /// Address family number of IPv6.
        inet6: u32,
        /// True if the numbers of [`LinkType::NULL`] are big-endian.
        big_endian: bool,
    },
}
