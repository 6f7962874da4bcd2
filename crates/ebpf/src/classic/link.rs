//! Link types, identified by the numbers that libpcap uses (`DLT_…` on Linux).
//!
//! Input: a number from a capture file or a socket. Output: a [`LinkType`]. Capture files number a
//! few types differently, and [`LinkType::from_file_number`] converts their numbers.

use std::fmt;

/// A link type: the format of a frame's first header, identified by a `DLT_` number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkType(pub u32);

macro_rules! link_types {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl LinkType {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// Named link types: number, name and description.
            const NAMED_TYPES: &[(Self, &str, &str)] =
                &[$((Self($number), stringify!($name), $text),)*];
        }
    };
}

link_types! {
    NULL = 0, "BSD loopback";
    EN10MB = 1, "Ethernet";
    EN3MB = 2, "experimental Ethernet";
    AX25 = 3, "AX.25";
    PRONET = 4, "ProNET";
    CHAOS = 5, "Chaos";
    IEEE802 = 6, "Token Ring";
    ARCNET = 7, "ARCNET";
    SLIP = 8, "SLIP";
    PPP = 9, "PPP";
    FDDI = 10, "FDDI";
    ATM_RFC1483 = 11, "ATM with LLC";
    RAW = 12, "IP without a link header";
    SLIP_BSDOS = 15, "BSD/OS SLIP";
    PPP_BSDOS = 16, "BSD/OS PPP";
    ATM_CLIP = 19, "classical IP over ATM";
    REDBACK_SMARTEDGE = 32, "Redback SmartEdge";
    PPP_SERIAL = 50, "PPP over serial";
    PPP_ETHER = 51, "PPP over Ethernet";
    SYMANTEC_FIREWALL = 99, "Symantec firewall";
    C_HDLC = 104, "Cisco HDLC";
    IEEE802_11 = 105, "802.11";
    FRELAY = 107, "Frame Relay";
    LOOP = 108, "OpenBSD loopback";
    ENC = 109, "OpenBSD encapsulated IP";
    HDLC = 112, "NetBSD HDLC";
    LINUX_SLL = 113, "Linux cooked capture";
    LTALK = 114, "LocalTalk";
    PFLOG = 117, "PF log";
    PRISM_HEADER = 119, "802.11 with Prism header";
    HHDLC = 121, "Siemens HiPath HDLC";
    IP_OVER_FC = 122, "IP over Fibre Channel";
    SUNATM = 123, "Solaris ATM";
    IEEE802_11_RADIO = 127, "802.11 with radiotap header";
    ARCNET_LINUX = 129, "Linux ARCNET";
    JUNIPER_MLPPP = 130, "Juniper multi-link PPP";
    JUNIPER_MLFR = 131, "Juniper multi-link Frame Relay";
    JUNIPER_ES = 132, "Juniper encryption services";
    JUNIPER_GGSN = 133, "Juniper GGSN";
    JUNIPER_MFR = 134, "Juniper FRF.16 Frame Relay";
    JUNIPER_ATM2 = 135, "Juniper ATM2";
    JUNIPER_SERVICES = 136, "Juniper advanced services";
    JUNIPER_ATM1 = 137, "Juniper ATM1";
    APPLE_IP_OVER_IEEE1394 = 138, "Apple IP over IEEE 1394";
    MTP2_WITH_PHDR = 139, "MTP2 with pseudo-header";
    MTP2 = 140, "MTP2";
    IEEE802_11_RADIO_AVS = 163, "802.11 with AVS header";
    JUNIPER_MONITOR = 164, "Juniper passive monitor";
    BACNET_MS_TP = 165, "BACnet MS/TP";
    PPP_PPPD = 166, "PPP with direction";
    JUNIPER_PPPOE = 167, "Juniper PPPoE";
    JUNIPER_PPPOE_ATM = 168, "Juniper PPPoE over ATM";
    JUNIPER_ETHER = 178, "Juniper Ethernet";
    JUNIPER_PPP = 179, "Juniper PPP";
    JUNIPER_FRELAY = 180, "Juniper Frame Relay";
    JUNIPER_CHDLC = 181, "Juniper Cisco HDLC";
    MFR = 182, "FRF.16 Frame Relay";
    JUNIPER_VP = 183, "Juniper voice";
    PPI = 192, "802.11 with per-packet information";
    JUNIPER_ISM = 194, "Juniper services";
    ERF = 197, "Endace ERF";
    JUNIPER_ST = 200, "Juniper secure tunnel";
    AX25_KISS = 202, "AX.25 with KISS header";
    IPNET = 226, "Solaris IPNET";
    IPV4 = 228, "IPv4";
    IPV6 = 229, "IPv6";
    JUNIPER_VS = 232, "Juniper virtual server";
    JUNIPER_SRX_E2E = 233, "Juniper SRX";
    JUNIPER_FIBRECHANNEL = 234, "Juniper Fibre Channel";
    JUNIPER_ATM_CEMIC = 238, "Juniper ATM CEMIC";
    NETANALYZER = 240, "netANALYZER";
    NETANALYZER_TRANSPARENT = 241, "transparent netANALYZER";
    PFSYNC = 246, "PF state synchronization";
    LINUX_SLL2 = 276, "Linux cooked capture, second form";
    DSA_TAG_BRCM = 281, "Ethernet with a Broadcom switch tag";
    DSA_TAG_DSA = 284, "Ethernet with a DSA switch tag";
}

/// Maximum number that libpcap assigns to a link type (`DLT_HIGH_MATCHING_MAX`).
pub(super) const LINK_TYPE_MAX: u32 = 304;

impl LinkType {
    /// Converts the link type number from a capture file (`LINKTYPE_…`).
    pub const fn from_file_number(number: u32) -> Self {
        match number {
            100 => Self::ATM_RFC1483,
            101 => Self::RAW,
            102 => Self::SLIP_BSDOS,
            103 => Self::PPP_BSDOS,
            106 => Self::ATM_CLIP,
            other => Self(other),
        }
    }

    /// Yields every named link type.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMED_TYPES.iter().map(|(link, ..)| *link)
    }

    /// Returns the link type with this name, given without `DLT_`, or `None` if there is no such
    /// link type.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED_TYPES.iter().find(|(_, known, _)| *known == name).map(|(link, _, _)| *link)
    }

    /// Returns true for the 802.11 link types, with or without a preceding header.
    pub(super) const fn is_wlan(self) -> bool {
        matches!(
            self,
            Self::IEEE802_11
                | Self::PRISM_HEADER
                | Self::IEEE802_11_RADIO
                | Self::IEEE802_11_RADIO_AVS
                | Self::PPI
        )
    }

    /// Returns true for Ethernet, including Ethernet with a switch tag.
    pub(super) const fn is_ethernet(self) -> bool {
        matches!(
            self,
            Self::EN10MB
                | Self::NETANALYZER
                | Self::NETANALYZER_TRANSPARENT
                | Self::DSA_TAG_BRCM
                | Self::DSA_TAG_DSA
        )
    }

    /// Returns true for the Juniper link types, whose headers all begin with the same magic number.
    pub(super) const fn is_juniper(self) -> bool {
        matches!(
            self,
            Self::JUNIPER_MLPPP
                | Self::JUNIPER_MLFR
                | Self::JUNIPER_ES
                | Self::JUNIPER_GGSN
                | Self::JUNIPER_MFR
                | Self::JUNIPER_ATM2
                | Self::JUNIPER_SERVICES
                | Self::JUNIPER_ATM1
                | Self::JUNIPER_MONITOR
                | Self::JUNIPER_PPPOE
                | Self::JUNIPER_PPPOE_ATM
                | Self::JUNIPER_ETHER
                | Self::JUNIPER_PPP
                | Self::JUNIPER_FRELAY
                | Self::JUNIPER_CHDLC
                | Self::JUNIPER_VP
                | Self::JUNIPER_ISM
                | Self::JUNIPER_ST
                | Self::JUNIPER_VS
                | Self::JUNIPER_SRX_E2E
                | Self::JUNIPER_FIBRECHANNEL
                | Self::JUNIPER_ATM_CEMIC
        )
    }

    /// Returns true for link types whose six-byte addresses can be tested.
    pub(super) const fn has_mac(self) -> bool {
        self.is_ethernet()
            || self.is_wlan()
            || matches!(self, Self::FDDI | Self::IEEE802 | Self::IP_OVER_FC)
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED_TYPES.iter().find(|(link, _, _)| link == self) {
            Some((_, name, text)) => write!(f, "{name} ({text})"),
            None => write!(f, "link type {}", self.0),
        }
    }
}
