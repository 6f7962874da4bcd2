//! Generator for tests of link addresses, broadcast, multicast and gateways.

use super::super::ast::{DirQualifier, Protocol, Qualifiers};
use super::super::condition::Condition;
use super::link_protocol::{IP, IP6};
use super::load::HeaderBase;
use super::{Generated, Generator};
use crate::classic::link::LinkType as L;

impl Generator<'_> {
    /// Tests for a six-byte link address. `thing` names the address in errors.
    pub(super) fn mac(
        &mut self,
        direction: Option<DirQualifier>,
        address: [u8; 6],
        thing: &str,
    ) -> Generated<Condition> {
        let mut inner = None;
        let (source, target) = match self.link {
            link if link.is_ethernet() => {
                inner = self.previous_check()?;
                (6, 0)
            }
            link if link.is_wlan() => return self.wlan_host(direction, &address),
            L::FDDI => (7, 1),
            L::IEEE802 => (8, 2),
            L::IP_OVER_FC => (10, 2),
            _ => return Err(self.not_on_this_link(thing)),
        };
        self.reject_wlan_direction(direction)?;
        let by_direction = self.by_direction(direction, source, target, |g, at| {
            g.bytes(HeaderBase::Header, at, &address)
        })?;
        Ok(inner.unwrap_or(Condition::Always).and(by_direction))
    }

    /// Tests for a one-byte link address.
    pub(super) fn mac8(
        &mut self,
        direction: Option<DirQualifier>,
        address: u8,
        thing: &str,
    ) -> Generated<Condition> {
        let (source, target) = match self.link {
            L::ARCNET | L::ARCNET_LINUX => (0, 1),
            L::BACNET_MS_TP => (4, 3),
            _ => return Err(self.not_on_this_link(thing)),
        };
        self.by_direction(direction, source, target, |g, at| {
            g.equal(HeaderBase::Header.byte(at), u32::from(address))
        })
    }

    /// Tests for the link address of a named host.
    pub(super) fn mac_name(
        &mut self,
        direction: Option<DirQualifier>,
        name: &str,
        thing: &str,
    ) -> Generated<Condition> {
        if !self.link.has_mac() {
            return Err(self.not_on_this_link(thing));
        }
        let address = self
            .options
            .resolver
            .ethernet(name)
            .ok_or_else(|| self.mistake(format!("unknown link address of host `{name}`")))?;
        self.mac(direction, address, thing)
    }

    /// Tests for frames that pass through a gateway: they have the gateway's link address but not
    /// its IP address.
    pub(super) fn gateway(&mut self, q: Qualifiers, name: &str) -> Generated<Condition> {
        match q.protocol {
            None | Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp) => {}
            Some(other) => return Err(self.not_valid(other.word(), "gateway")),
        }
        if self.mpls_depth > 0 {
            return Err(self.mistake("`gateway` cannot be used within MPLS"));
        }
        if self.encapsulated {
            return Err(self.mistake("`gateway` cannot be used within VXLAN or Geneve"));
        }
        let either = Qualifiers { direction: Some(DirQualifier::Either), ..q };
        let link = self.mac_name(either.direction, name, "gateway")?;
        Ok(link.and(self.host_name(either, name, true)?))
    }

    pub(super) fn broadcast(&mut self, protocol: Option<Protocol>) -> Generated<Condition> {
        match protocol {
            None | Some(Protocol::Link) => match self.link {
                L::ARCNET | L::ARCNET_LINUX => {
                    self.mac8(Some(DirQualifier::Target), 0, "broadcast")
                }
                L::BACNET_MS_TP => self.mac8(Some(DirQualifier::Target), 0xff, "broadcast"),
                _ => self.mac(Some(DirQualifier::Target), [0xff; 6], "broadcast"),
            },
            Some(Protocol::Ip) => {
                let Some(netmask) = self.options.netmask else {
                    let what = "the netmask is not known, so `ip broadcast` cannot be asked";
                    return Err(self.mistake(what));
                };
                let ip = self.link_protocol(IP)?;
                let hosts = !netmask;
                let zeros = self.masked(HeaderBase::Network.word(16), 0, hosts)?;
                let ones = self.masked(HeaderBase::Network.word(16), hosts, hosts)?;
                Ok(ip.and(zeros.or(ones)))
            }
            Some(other) => Err(self.not_valid(other.word(), "broadcast")),
        }
    }

    pub(super) fn multicast(&mut self, protocol: Option<Protocol>) -> Generated<Condition> {
        match protocol {
            None | Some(Protocol::Link) => self.link_multicast(),
            Some(Protocol::Ip) => {
                let ip = self.link_protocol(IP)?;
                Ok(ip.and(self.masked(HeaderBase::Network.byte(16), 0xe0, 0xf0)?))
            }
            Some(Protocol::Ip6) => {
                let ip6 = self.link_protocol(IP6)?;
                Ok(ip6.and(self.equal(HeaderBase::Network.byte(24), 0xff)?))
            }
            Some(other) => Err(self.not_valid(other.word(), "multicast")),
        }
    }

    fn link_multicast(&mut self) -> Generated<Condition> {
        match self.link {
            L::ARCNET | L::ARCNET_LINUX => self.mac8(Some(DirQualifier::Target), 0, "multicast"),
            link if link.is_ethernet() => {
                let inner = self.previous_check()?;
                Ok(inner.unwrap_or(Condition::Always).and(self.group_bit(0)?))
            }
            link if link.is_wlan() => self.wlan_multicast(),
            L::FDDI => self.group_bit(1),
            L::IEEE802 | L::IP_OVER_FC => self.group_bit(2),
            _ => Err(self.not_on_this_link("multicast")),
        }
    }

    /// Tests the group bit of the link address at offset `at`.
    pub(super) fn group_bit(&mut self, at: u32) -> Generated<Condition> {
        self.any_bit(HeaderBase::Header.byte(at), 0x01)
    }
}
