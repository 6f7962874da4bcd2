//! Generator for tests of link addresses, broadcast, multicast and gateways.

use super::super::ast::{DirQualifier, Protocol, Qualifiers};
use super::super::condition::Condition;
use super::link_protocol::{ETHERTYPE_IP, ETHERTYPE_IPV6};
use super::load::HeaderBase;
use super::{GenerateResult, Generator};
use crate::classic::link::LinkType as L;

impl Generator<'_> {
    /// Returns the condition that this six-byte link address is the source address, the destination
    /// address, or either of them, as `direction` selects. `thing` names the address in errors.
    pub(super) fn test_mac(
        &mut self,
        direction: Option<DirQualifier>,
        address: [u8; 6],
        thing: &str,
    ) -> GenerateResult<Condition> {
        let mut inner = None;
        let (source, target) = match self.link {
            link if link.is_ethernet() => {
                inner = self.preceding_header_condition()?;
                (6, 0)
            }
            link if link.is_wlan() => return self.test_wlan_host(direction, &address),
            L::FDDI => (7, 1),
            L::IEEE802 => (8, 2),
            L::IP_OVER_FC => (10, 2),
            _ => return Err(self.unsupported_on_link_error(thing)),
        };
        self.reject_wlan_direction(direction)?;
        let by_direction = self.apply_by_direction(direction, source, target, |g, at| {
            g.test_bytes(HeaderBase::Header, at, &address)
        })?;
        Ok(inner.unwrap_or(Condition::Always).and(by_direction))
    }

    /// Returns the condition that this one-byte link address is the source address, the destination
    /// address, or either of them, as `direction` selects. `thing` names the address in errors.
    pub(super) fn test_one_byte_mac(
        &mut self,
        direction: Option<DirQualifier>,
        address: u8,
        thing: &str,
    ) -> GenerateResult<Condition> {
        let (source, target) = match self.link {
            L::ARCNET | L::ARCNET_LINUX => (0, 1),
            L::BACNET_MS_TP => (4, 3),
            _ => return Err(self.unsupported_on_link_error(thing)),
        };
        self.apply_by_direction(direction, source, target, |g, at| {
            g.test_equal(HeaderBase::Header.byte(at), u32::from(address))
        })
    }

    /// Returns the condition that the link address of a named host is the source address, the
    /// destination address, or either of them, as `direction` selects. `thing` names the host in
    /// errors.
    pub(super) fn test_mac_name(
        &mut self,
        direction: Option<DirQualifier>,
        name: &str,
        thing: &str,
    ) -> GenerateResult<Condition> {
        if !self.link.has_mac() {
            return Err(self.unsupported_on_link_error(thing));
        }
        let address =
            self.options.resolver.resolve_link_address(name).ok_or_else(|| {
                self.invalid_error(format!("unknown link address of host `{name}`"))
            })?;
        self.test_mac(direction, address, thing)
    }

    /// Returns the condition that the frame passes through a gateway: it has the gateway's link
    /// address but not the gateway's IP address.
    pub(super) fn test_gateway(&mut self, q: Qualifiers, name: &str) -> GenerateResult<Condition> {
        match q.protocol {
            None | Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp) => {}
            Some(other) => return Err(self.invalid_qualifier_error(other.keyword(), "gateway")),
        }
        if self.mpls_depth > 0 {
            return Err(self.invalid_error("`gateway` cannot be used within MPLS"));
        }
        if self.is_in_tunnel {
            return Err(self.invalid_error("`gateway` cannot be used within VXLAN or Geneve"));
        }
        let either = Qualifiers { direction: Some(DirQualifier::Either), ..q };
        let link = self.test_mac_name(either.direction, name, "gateway")?;
        Ok(link.and(self.test_host_name(either, name, true)?))
    }

    pub(super) fn test_broadcast(
        &mut self,
        protocol: Option<Protocol>,
    ) -> GenerateResult<Condition> {
        match protocol {
            None | Some(Protocol::Link) => match self.link {
                L::ARCNET | L::ARCNET_LINUX => {
                    self.test_one_byte_mac(Some(DirQualifier::Target), 0, "broadcast")
                }
                L::BACNET_MS_TP => {
                    self.test_one_byte_mac(Some(DirQualifier::Target), 0xff, "broadcast")
                }
                _ => self.test_mac(Some(DirQualifier::Target), [0xff; 6], "broadcast"),
            },
            Some(Protocol::Ip) => {
                let Some(netmask) = self.options.netmask else {
                    let what = "the netmask is unknown, so `ip broadcast` is not supported";
                    return Err(self.invalid_error(what));
                };
                let ip = self.test_link_protocol(ETHERTYPE_IP)?;
                let hosts = !netmask;
                let zeros = self.test_masked_equal(HeaderBase::Network.word(16), 0, hosts)?;
                let ones = self.test_masked_equal(HeaderBase::Network.word(16), hosts, hosts)?;
                Ok(ip.and(zeros.or(ones)))
            }
            Some(other) => Err(self.invalid_qualifier_error(other.keyword(), "broadcast")),
        }
    }

    pub(super) fn test_multicast(
        &mut self,
        protocol: Option<Protocol>,
    ) -> GenerateResult<Condition> {
        match protocol {
            None | Some(Protocol::Link) => self.test_link_multicast(),
            Some(Protocol::Ip) => {
                let ip = self.test_link_protocol(ETHERTYPE_IP)?;
                Ok(ip.and(self.test_masked_equal(HeaderBase::Network.byte(16), 0xe0, 0xf0)?))
            }
            Some(Protocol::Ip6) => {
                let ip6 = self.test_link_protocol(ETHERTYPE_IPV6)?;
                Ok(ip6.and(self.test_equal(HeaderBase::Network.byte(24), 0xff)?))
            }
            Some(other) => Err(self.invalid_qualifier_error(other.keyword(), "multicast")),
        }
    }

    fn test_link_multicast(&mut self) -> GenerateResult<Condition> {
        match self.link {
            L::ARCNET | L::ARCNET_LINUX => {
                self.test_one_byte_mac(Some(DirQualifier::Target), 0, "multicast")
            }
            link if link.is_ethernet() => {
                let inner = self.preceding_header_condition()?;
                Ok(inner.unwrap_or(Condition::Always).and(self.test_group_bit(0)?))
            }
            link if link.is_wlan() => self.test_wlan_multicast(),
            L::FDDI => self.test_group_bit(1),
            L::IEEE802 | L::IP_OVER_FC => self.test_group_bit(2),
            _ => Err(self.unsupported_on_link_error("multicast")),
        }
    }

    /// Returns the condition that the group bit of the link address at offset `at` is set.
    pub(super) fn test_group_bit(&mut self, at: u32) -> GenerateResult<Condition> {
        self.test_any_bit(HeaderBase::Header.byte(at), 0x01)
    }
}
