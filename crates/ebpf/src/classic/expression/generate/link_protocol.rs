//! Generator for tests of the protocol that a frame carries, using the protocol numbers of the
//! frame's link type.
//!
//! As in libpcap, one range of numbers serves all link types: EtherTypes, LLC service access points
//! below 1501, and PPP numbers for protocols that have neither.

use super::super::condition::Condition;
use super::super::error::ErrorKind;
use super::super::error::ExpressionError;
use super::super::options::AddressFamilies;
use super::load::HeaderBase;
use super::{GenerateResult, Generator};
use crate::classic::insn::code;
use crate::classic::link::LinkType as L;

/// EtherType of IPv4.
pub(super) const ETHERTYPE_IP: u32 = 0x0800;
/// EtherType of ARP.
pub(super) const ETHERTYPE_ARP: u32 = 0x0806;
/// EtherType of reverse ARP.
pub(super) const ETHERTYPE_RARP: u32 = 0x8035;
/// EtherType of IPv6.
pub(super) const ETHERTYPE_IPV6: u32 = 0x86dd;
/// EtherType of DECnet phase IV.
pub(super) const ETHERTYPE_DECNET: u32 = 0x6003;
/// EtherType of AppleTalk.
const ETHERTYPE_ATALK: u32 = 0x809b;
/// EtherType of AppleTalk ARP.
const ETHERTYPE_AARP: u32 = 0x80f3;
/// EtherType of Xerox NS.
const ETHERTYPE_XNS: u32 = 0x0600;
/// EtherType of Novell IPX.
const ETHERTYPE_IPX: u32 = 0x8137;
/// Maximum payload of an 802.3 frame in bytes. Larger values of the type field are EtherTypes; all
/// other values are lengths.
const PAYLOAD_LENGTH_MAX: u32 = 1500;

/// LLC service access point of IPv4.
const SAP_IP: u32 = 0x06;
/// LLC service access point of the spanning tree protocol.
const SAP_STP: u32 = 0x42;
/// LLC service access point of Novell IPX.
const SAP_IPX: u32 = 0xe0;
/// LLC service access point of NetBEUI.
const SAP_NETBEUI: u32 = 0xf0;
/// LLC service access point of ISO network protocols.
pub(super) const SAP_ISO: u32 = 0xfe;

/// Network layer protocol identifier of CLNP (ISO 9577).
pub(super) const NLPID_CLNP: u32 = 0x81;
/// Network layer protocol identifier of ES-IS (ISO 9577).
pub(super) const NLPID_ESIS: u32 = 0x82;
/// Network layer protocol identifier of IS-IS (ISO 9577).
pub(super) const NLPID_ISIS: u32 = 0x83;

impl Generator<'_> {
    /// Returns the condition that the frame carries `protocol`. As in libpcap, the condition holds
    /// for every Juniper frame.
    pub(super) fn test_link_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        if self.mpls_depth > 0 {
            return self.test_protocol_after_mpls(protocol);
        }
        match self.link {
            link if link.is_ethernet() || link == L::LINUX_SLL => {
                self.test_ethernet_protocol(protocol)
            }
            link if link.is_wlan() => {
                let data = self.test_masked_equal(HeaderBase::Header.byte(0), 0x08, 0x0c)?;
                Ok(data.and(self.test_llc_protocol(protocol)?))
            }
            link if link.is_juniper() => {
                self.test_masked_equal(HeaderBase::Header.word(0), 0x4d47_4300, 0xffff_ff00)
            }
            L::C_HDLC | L::HDLC => {
                self.check_maximum("HDLC protocol", protocol, 0xffff)?;
                let number = if protocol == SAP_ISO { 0xfefe } else { protocol };
                self.test_equal(HeaderBase::Protocol.half(0), number)
            }
            L::FDDI | L::IEEE802 | L::ATM_RFC1483 | L::ATM_CLIP | L::IP_OVER_FC => {
                self.test_llc_protocol(protocol)
            }
            L::SLIP | L::SLIP_BSDOS | L::RAW => match protocol {
                ETHERTYPE_IP => self.test_ip_version(HeaderBase::Header, 4),
                ETHERTYPE_IPV6 => self.test_ip_version(HeaderBase::Header, 6),
                _ => Ok(Condition::Never),
            },
            L::IPV4 => Ok(constant_condition(protocol == ETHERTYPE_IP)),
            L::IPV6 => Ok(constant_condition(protocol == ETHERTYPE_IPV6)),
            L::LTALK => Ok(constant_condition(protocol == ETHERTYPE_ATALK)),
            L::PPP | L::PPP_PPPD | L::PPP_SERIAL | L::PPP_ETHER | L::PPP_BSDOS => {
                self.test_ppp_protocol(protocol)
            }
            L::NULL | L::LOOP | L::ENC => self.test_loopback_protocol(protocol),
            L::ARCNET | L::ARCNET_LINUX => self.test_byte_protocol(
                protocol,
                &[
                    (ETHERTYPE_IP, 212),
                    (ETHERTYPE_ARP, 213),
                    (ETHERTYPE_RARP, 214),
                    (ETHERTYPE_ATALK, 221),
                    (ETHERTYPE_IPV6, 0xc4),
                ],
            ),
            L::IPNET => {
                self.test_byte_protocol(protocol, &[(ETHERTYPE_IP, 2), (ETHERTYPE_IPV6, 26)])
            }
            L::FRELAY => self.test_frame_relay_protocol(protocol),
            L::MFR => Err(self.protocol_number_error()),
            _ if self.protocol.is_some() => {
                self.check_maximum("EtherType", protocol, 0xffff)?;
                self.test_equal(HeaderBase::Protocol.half(0), protocol)
            }
            _ => Err(self.protocol_number_error()),
        }
    }

    fn protocol_number_error(&self) -> ExpressionError {
        let what = format!("the protocol that a frame of {} carries is unknown", self.link);
        self.error(ErrorKind::Unsupported, what)
    }

    /// Returns the condition that the frame's protocol field, a single byte, contains the number of
    /// `protocol`. `numbers` maps each supported protocol to its number; the condition never holds
    /// for other protocols.
    fn test_byte_protocol(
        &mut self,
        protocol: u32,
        numbers: &[(u32, u32)],
    ) -> GenerateResult<Condition> {
        match numbers.iter().find(|(known, _)| *known == protocol) {
            Some((_, number)) => self.test_equal(HeaderBase::Protocol.byte(0), *number),
            None => Ok(Condition::Never),
        }
    }

    /// Returns the condition that the version field of the IP header at `base` has this value.
    pub(super) fn test_ip_version(
        &mut self,
        base: HeaderBase,
        version: u32,
    ) -> GenerateResult<Condition> {
        self.test_masked_equal(base.byte(0), version << 4, 0xf0)
    }

    /// Returns the condition that the EtherType or, if there is an LLC header, the LLC header
    /// indicates `protocol`. An Ethernet frame has an LLC header if its type field is a length, and
    /// a Linux cooked frame if its type field has a reserved value.
    fn test_ethernet_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        const COOKED_LLC: u32 = 4;
        const COOKED_NOVELL: u32 = 1;
        let cooked = self.link == L::LINUX_SLL;
        let number = |g: &mut Self, k| g.test_equal(HeaderBase::Protocol.half(0), k);
        let has_llc = |g: &mut Self| match cooked {
            true => number(g, COOKED_LLC),
            false => {
                Ok(g.test_field(HeaderBase::Protocol.half(0), code::JGT, PAYLOAD_LENGTH_MAX)?.not())
            }
        };
        match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                let has_llc = has_llc(self)?;
                let saps = self.test_equal(HeaderBase::Llc.half(0), protocol << 8 | protocol)?;
                Ok(has_llc.and(saps))
            }
            SAP_IPX if cooked => {
                let llc = self.test_equal(HeaderBase::Llc.byte(0), SAP_IPX)?;
                let either = llc.or(self.test_snap_protocol(0, ETHERTYPE_IPX)?);
                let after_llc = has_llc(self)?.and(either);
                let novell = number(self, COOKED_NOVELL)?.or(after_llc);
                Ok(number(self, ETHERTYPE_IPX)?.or(novell))
            }
            SAP_IPX => {
                let raw = self.test_equal(HeaderBase::Llc.half(0), 0xffff)?;
                let llc = self.test_equal(HeaderBase::Llc.byte(0), SAP_IPX)?.or(raw);
                let any = self.test_snap_protocol(0, ETHERTYPE_IPX)?.or(llc);
                let after_length = has_llc(self)?.and(any);
                Ok(number(self, ETHERTYPE_IPX)?.or(after_length))
            }
            ETHERTYPE_ATALK | ETHERTYPE_AARP => {
                let snap = self.test_snap_protocol(
                    if protocol == ETHERTYPE_ATALK { 0x08_0007 } else { 0 },
                    protocol,
                )?;
                let after_llc = has_llc(self)?.and(snap);
                Ok(number(self, protocol)?.or(after_llc))
            }
            0..=PAYLOAD_LENGTH_MAX => {
                self.check_maximum("LLC DSAP", protocol, 0xff)?;
                let has_llc = has_llc(self)?;
                let (base, dsap) =
                    if cooked { (HeaderBase::Llc, 0) } else { (HeaderBase::Protocol, 2) };
                Ok(has_llc.and(self.test_equal(base.byte(dsap), protocol)?))
            }
            _ => {
                self.check_maximum("EtherType", protocol, 0xffff)?;
                number(self, protocol)
            }
        }
    }

    /// Returns the condition that the frame carries `protocol`, for link types whose payload begins
    /// with an LLC header.
    fn test_llc_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        match protocol {
            SAP_IP | SAP_ISO | SAP_NETBEUI => {
                self.test_equal(HeaderBase::Llc.half(0), protocol << 8 | protocol)
            }
            ETHERTYPE_ATALK => self.test_snap_protocol(0x08_0007, ETHERTYPE_ATALK),
            0..=PAYLOAD_LENGTH_MAX => {
                self.check_maximum("LLC DSAP", protocol, 0xff)?;
                self.test_equal(HeaderBase::Llc.byte(0), protocol)
            }
            _ => {
                self.check_maximum("EtherType", protocol, 0xffff)?;
                self.test_equal(HeaderBase::Llc.half(6), protocol)
            }
        }
    }

    /// Returns the condition that the frame has a SNAP header with this organization and protocol.
    fn test_snap_protocol(
        &mut self,
        organization: u32,
        protocol: u32,
    ) -> GenerateResult<Condition> {
        let [_, a, b, c] = organization.to_be_bytes();
        let [_, _, d, e] = protocol.to_be_bytes();
        self.test_bytes(HeaderBase::Llc, 0, &[0xaa, 0xaa, 0x03, a, b, c, d, e])
    }

    fn test_ppp_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        /// PPP number of TCP/IP with Van Jacobson compression.
        const VJ_COMPRESSED: u32 = 0x002d;
        /// PPP number of TCP/IP that Van Jacobson compression left uncompressed.
        const VJ_UNCOMPRESSED: u32 = 0x002f;
        let number = match protocol {
            ETHERTYPE_IP => 0x0021,
            ETHERTYPE_IPV6 => 0x0057,
            ETHERTYPE_DECNET => 0x0027,
            ETHERTYPE_ATALK => 0x0029,
            ETHERTYPE_XNS => 0x0025,
            SAP_ISO => 0x0023,
            SAP_STP => 0x0031,
            SAP_IPX => 0x002b,
            other => {
                self.check_maximum("PPP protocol", other, 0xffff)?;
                other
            }
        };
        let own = self.test_equal(HeaderBase::Protocol.half(0), number)?;
        if self.link != L::PPP_BSDOS || protocol != ETHERTYPE_IP {
            return Ok(own);
        }
        let compressed = self.test_equal(HeaderBase::Protocol.half(0), VJ_COMPRESSED)?;
        let uncompressed = self.test_equal(HeaderBase::Protocol.half(0), VJ_UNCOMPRESSED)?;
        Ok(own.or(compressed).or(uncompressed))
    }

    fn test_loopback_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        let in_order = self.link == L::LOOP;
        match self.options.address_families {
            AddressFamilies::Any if in_order => self.test_address_family(protocol, false),
            AddressFamilies::Any => Ok(self
                .test_address_family(protocol, false)?
                .or(self.test_address_family(protocol, true)?)),
            AddressFamilies::Exactly { big_endian, .. } => {
                self.test_address_family(protocol, !in_order && !big_endian)
            }
        }
    }

    /// Returns the condition that the first word of the loopback header is the address family of
    /// `protocol`, byte-swapped if `swapped` is true.
    fn test_address_family(&mut self, protocol: u32, swapped: bool) -> GenerateResult<Condition> {
        let numbers: &[u32] = match (protocol, self.options.address_families) {
            (ETHERTYPE_IP, AddressFamilies::Any) => &[2],
            (ETHERTYPE_IPV6, AddressFamilies::Any) => &[30, 24, 28],
            (ETHERTYPE_IP, AddressFamilies::Exactly { inet, .. }) => &[inet],
            (ETHERTYPE_IPV6, AddressFamilies::Exactly { inet6, .. }) => &[inet6],
            _ => &[],
        };
        let mut condition = Condition::Never;
        for number in numbers {
            let number = if swapped { number.swap_bytes() } else { *number };
            condition = condition.or(self.test_equal(HeaderBase::Header.word(0), number)?);
        }
        Ok(condition)
    }

    fn test_frame_relay_protocol(&mut self, protocol: u32) -> GenerateResult<Condition> {
        match protocol {
            ETHERTYPE_IP => self.test_frame_relay_nlpid(0xcc),
            ETHERTYPE_IPV6 => self.test_frame_relay_nlpid(0x8e),
            SAP_ISO => {
                let clnp = self.test_frame_relay_nlpid(NLPID_CLNP)?;
                let esis = self.test_frame_relay_nlpid(NLPID_ESIS)?;
                Ok(clnp.or(esis.or(self.test_frame_relay_nlpid(NLPID_ISIS)?)))
            }
            _ => Ok(Condition::Never),
        }
    }

    pub(super) fn test_frame_relay_nlpid(&mut self, nlpid: u32) -> GenerateResult<Condition> {
        self.test_equal(HeaderBase::Header.half(2), 0x0300 | nlpid)
    }

    /// Returns the condition that the frame inside the current tunnel begins with a link header.
    /// Returns `None` outside of tunnels.
    pub(super) fn preceding_header_condition(&mut self) -> GenerateResult<Option<Condition>> {
        self.is_in_tunnel.then(|| self.test_inner_header()).transpose()
    }
}

fn constant_condition(holds: bool) -> Condition {
    if holds { Condition::Always } else { Condition::Never }
}
