//! Definitions shared by IPv4 and IPv6: protocol numbers and fragments.

/// Protocol numbers assigned by IANA.
pub mod protocol {
    /// Number of the IPv6 hop-by-hop options header.
    pub const HOP_BY_HOP: u8 = 0;
    /// Protocol number of ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// Protocol number of TCP.
    pub const TCP: u8 = 6;
    /// Protocol number of UDP.
    pub const UDP: u8 = 17;
    /// Number of the IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// Number of the IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Protocol number of GRE.
    pub const GRE: u8 = 47;
    /// Protocol number of the IPsec encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Protocol number of the IPsec authentication header.
    pub const AH: u8 = 51;
    /// Protocol number of ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// Protocol number in an IPv6 header that means that no header follows.
    pub const NONE: u8 = 59;
    /// Number of the IPv6 destination options header.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// Protocol number of SCTP.
    pub const SCTP: u8 = 132;
    /// Number of the IPv6 mobility header.
    pub const MOBILITY: u8 = 135;
    /// Protocol number of the host identity protocol.
    pub const HIP: u8 = 139;
    /// Number of the IPv6 shim6 header.
    pub const SHIM6: u8 = 140;

    /// Returns the short name of a protocol, in lower case; `None` for an unnamed number.
    pub const fn name(number: u8) -> Option<&'static str> {
        Some(match number {
            ICMP => "icmp",
            2 => "igmp",
            TCP => "tcp",
            UDP => "udp",
            GRE => "gre",
            ESP => "esp",
            AH => "ah",
            ICMPV6 => "icmp6",
            89 => "ospf",
            112 => "vrrp",
            SCTP => "sctp",
            _ => return None,
        })
    }
}

/// The position of a frame among the fragments of an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragment {
    /// The IP packet is not fragmented.
    Whole,
    /// The frame holds the first fragment, with the transport header or its beginning.
    First,
    /// The frame holds a later fragment, which has no transport header.
    Later,
}

impl Fragment {
    /// Classifies a fragment by its offset in the packet and by the more-fragments flag `more`.
    #[inline]
    pub const fn classify(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}
