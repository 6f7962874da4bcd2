//! Generator for tests of a protocol by name or number, such as `tcp`, `ip proto 17`, `iso proto
//! \isis` or `l1`.

use super::super::ast::Protocol;
use super::super::condition::Condition;
use super::link_protocol as link;
use super::load::HeaderBase;
use super::{GenerateResult, Generator};
use crate::classic::link::LinkType as L;

/// Protocol number of the IPv6 fragment header.
const FRAGMENT_HEADER: u32 = 44;

/// PDU type of an IS-IS level 1 hello.
const ISIS_L1_HELLO: u32 = 15;
/// PDU type of an IS-IS level 2 hello.
const ISIS_L2_HELLO: u32 = 16;
/// PDU type of an IS-IS point-to-point hello.
const ISIS_PTP_HELLO: u32 = 17;
/// PDU type of an IS-IS level 1 link state PDU.
const ISIS_L1_LSP: u32 = 18;
/// PDU type of an IS-IS level 2 link state PDU.
const ISIS_L2_LSP: u32 = 20;
/// PDU type of an IS-IS level 1 complete sequence number PDU.
const ISIS_L1_CSNP: u32 = 24;
/// PDU type of an IS-IS level 2 complete sequence number PDU.
const ISIS_L2_CSNP: u32 = 25;
/// PDU type of an IS-IS level 1 partial sequence number PDU.
const ISIS_L1_PSNP: u32 = 26;
/// PDU type of an IS-IS level 2 partial sequence number PDU.
const ISIS_L2_PSNP: u32 = 27;
/// Maximum IS-IS PDU type.
const ISIS_PDU_TYPE_MAX: u32 = 31;

/// Returns the IP protocol number of a protocol; `None` if it does not run directly over IP.
pub(super) fn ip_protocol_number(protocol: Protocol) -> Option<u32> {
    Some(match protocol {
        Protocol::Icmp => 1,
        Protocol::Igmp => 2,
        Protocol::Tcp => 6,
        Protocol::Igrp => 9,
        Protocol::Udp => 17,
        Protocol::Esp => 50,
        Protocol::Ah => 51,
        Protocol::Icmp6 => 58,
        Protocol::Pim => 103,
        Protocol::Vrrp | Protocol::Carp => 112,
        Protocol::Sctp => 132,
        _ => return None,
    })
}

/// Returns the EtherType or service access point of a protocol, or `None` if it has neither.
fn link_protocol_number(protocol: Protocol) -> Option<u32> {
    Some(match protocol {
        Protocol::Ip => link::ETHERTYPE_IP,
        Protocol::Ip6 => link::ETHERTYPE_IPV6,
        Protocol::Arp => link::ETHERTYPE_ARP,
        Protocol::Rarp => link::ETHERTYPE_RARP,
        Protocol::Atalk => 0x809b,
        Protocol::Aarp => 0x80f3,
        Protocol::Lat => 0x6004,
        Protocol::Sca => 0x6007,
        Protocol::Moprc => 0x6002,
        Protocol::Mopdl => 0x6001,
        Protocol::Iso => link::SAP_ISO,
        Protocol::Stp => 0x42,
        Protocol::Ipx => 0xe0,
        Protocol::Netbeui => 0xf0,
        _ => return None,
    })
}

/// Returns the PDU types that a keyword for IS-IS messages matches, in the order of the tests.
fn isis_pdu_types(protocol: Protocol) -> &'static [u32] {
    match protocol {
        Protocol::IsisL1 => {
            &[ISIS_L1_PSNP, ISIS_L1_CSNP, ISIS_L1_LSP, ISIS_L1_HELLO, ISIS_PTP_HELLO]
        }
        Protocol::IsisL2 => {
            &[ISIS_L2_PSNP, ISIS_L2_CSNP, ISIS_L2_LSP, ISIS_L2_HELLO, ISIS_PTP_HELLO]
        }
        Protocol::IsisIih => &[ISIS_PTP_HELLO, ISIS_L1_HELLO, ISIS_L2_HELLO],
        Protocol::IsisLsp => &[ISIS_L1_LSP, ISIS_L2_LSP],
        Protocol::IsisSnp => &[ISIS_L2_PSNP, ISIS_L1_PSNP, ISIS_L1_CSNP, ISIS_L2_CSNP],
        Protocol::IsisCsnp => &[ISIS_L1_CSNP, ISIS_L2_CSNP],
        Protocol::IsisPsnp => &[ISIS_L1_PSNP, ISIS_L2_PSNP],
        _ => &[],
    }
}

impl Generator<'_> {
    /// Returns the condition that the frame carries this protocol.
    pub(super) fn test_protocol(&mut self, protocol: Protocol) -> GenerateResult<Condition> {
        match protocol {
            Protocol::Sctp
            | Protocol::Tcp
            | Protocol::Udp
            | Protocol::Ah
            | Protocol::Esp
            | Protocol::Pim => {
                self.test_protocol_number(None, ip_protocol_number(protocol).unwrap_or(0))
            }
            Protocol::Icmp | Protocol::Igmp | Protocol::Igrp | Protocol::Vrrp | Protocol::Carp => {
                self.test_protocol_number(
                    Some(Protocol::Ip),
                    ip_protocol_number(protocol).unwrap_or(0),
                )
            }
            Protocol::Icmp6 => self.test_protocol_number(Some(Protocol::Ip6), 58),
            Protocol::Esis => self.test_protocol_number(Some(Protocol::Iso), link::NLPID_ESIS),
            Protocol::Isis => self.test_protocol_number(Some(Protocol::Iso), link::NLPID_ISIS),
            Protocol::Clnp => self.test_protocol_number(Some(Protocol::Iso), link::NLPID_CLNP),
            _ => {
                if let Some(number) = link_protocol_number(protocol) {
                    return self.test_link_protocol(number);
                }
                let types = isis_pdu_types(protocol);
                if types.is_empty() {
                    let word = protocol.keyword();
                    return Err(self.invalid_error(format!("`{word}` cannot be used alone")));
                }
                let mut condition = Condition::Never;
                for kind in types {
                    let one = self.test_protocol_number(Some(Protocol::Isis), *kind)?;
                    condition = condition.or(one);
                }
                Ok(condition)
            }
        }
    }

    /// Returns the condition of the primitive `[within] proto number`: the header of `within`, or
    /// of IPv4 or IPv6 if `within` is `None`, contains this protocol number.
    pub(super) fn test_protocol_number(
        &mut self,
        within: Option<Protocol>,
        number: u32,
    ) -> GenerateResult<Condition> {
        match within {
            None => {
                let ip = self.test_protocol_number(Some(Protocol::Ip), number)?;
                Ok(ip.or(self.test_protocol_number(Some(Protocol::Ip6), number)?))
            }
            Some(Protocol::Link) => self.test_link_protocol(number),
            Some(Protocol::Ip) => {
                self.check_maximum("protocol number", number, 0xff)?;
                let ip = self.test_link_protocol(link::ETHERTYPE_IP)?;
                Ok(ip.and(self.test_ip_protocol(number)?))
            }
            Some(Protocol::Ip6) => {
                self.check_maximum("protocol number", number, 0xff)?;
                let ip6 = self.test_link_protocol(link::ETHERTYPE_IPV6)?;
                let direct = self.test_ip6_next_header(number)?;
                let fragment = self.test_ip6_next_header(FRAGMENT_HEADER)?;
                let behind = self.test_equal(HeaderBase::Network.byte(40), number)?;
                Ok(ip6.and(direct.or(fragment.and(behind))))
            }
            Some(Protocol::Iso) => self.test_iso_protocol(number),
            Some(Protocol::Isis) => {
                self.check_maximum("IS-IS PDU type", number, ISIS_PDU_TYPE_MAX)?;
                let isis = self.test_iso_protocol(link::NLPID_ISIS)?;
                let at = if matches!(self.link, L::C_HDLC | L::HDLC) { 5 } else { 4 };
                let kind = self.test_masked_equal(
                    HeaderBase::NetworkNoSnap.byte(at),
                    number,
                    ISIS_PDU_TYPE_MAX,
                )?;
                Ok(isis.and(kind))
            }
            Some(other) => Err(self.invalid_qualifier_error(other.keyword(), "proto")),
        }
    }

    fn test_iso_protocol(&mut self, number: u32) -> GenerateResult<Condition> {
        self.check_maximum("ISO protocol", number, 0xff)?;
        match self.link {
            L::FRELAY => self.test_frame_relay_nlpid(number),
            L::C_HDLC | L::HDLC => {
                let iso = self.test_link_protocol(0xfefe)?;
                Ok(iso.and(self.test_equal(HeaderBase::NetworkNoSnap.byte(1), number)?))
            }
            _ => {
                let iso = self.test_link_protocol(link::SAP_ISO)?;
                Ok(iso.and(self.test_equal(HeaderBase::NetworkNoSnap.byte(0), number)?))
            }
        }
    }

    /// Returns the condition that the protocol field of the IPv4 header has the value `number`.
    pub(super) fn test_ip_protocol(&mut self, number: u32) -> GenerateResult<Condition> {
        self.test_equal(HeaderBase::Network.byte(9), number)
    }

    /// Returns the condition that the next-header field of the IPv6 header has the value `number`.
    pub(super) fn test_ip6_next_header(&mut self, number: u32) -> GenerateResult<Condition> {
        self.test_equal(HeaderBase::Network.byte(6), number)
    }
}
