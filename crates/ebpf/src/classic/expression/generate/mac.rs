//! Link addresses, broadcast, multicast, gateways.

use super::super::ast::{Protocol, Qualifiers, Way};
use super::super::condition::Condition;
use super::link_protocol::{IP, IP6};
use super::load::{Base, Size};
use super::{Generator, Result};
use crate::classic::link::LinkType as L;

impl Generator<'_> {
    /// A link address of six bytes; `thing` is for messages.
    pub(super) fn mac(
        &mut self,
        way: Option<Way>,
        address: [u8; 6],
        thing: &str,
    ) -> Result<Condition> {
        let mut inner = None;
        let (source, target) = match self.link {
            link if link.is_ethernet() => {
                inner = self.previous_check()?;
                (6, 0)
            }
            link if link.is_wlan() => return self.wlan_host(way, &address),
            L::FDDI => (7, 1),
            L::IEEE802 => (8, 2),
            L::IP_OVER_FC => (10, 2),
            _ => return Err(self.not_on_this_link(thing)),
        };
        self.only_ends(way)?;
        let ends = self.ends(way, source, target, |g, at| g.bytes(Base::Header, at, &address))?;
        Ok(inner.unwrap_or(Condition::Always).and(ends))
    }

    /// A link address of one byte.
    pub(super) fn mac8(&mut self, way: Option<Way>, address: u8, thing: &str) -> Result<Condition> {
        let (source, target) = match self.link {
            L::ARCNET | L::ARCNET_LINUX => (0, 1),
            L::BACNET_MS_TP => (4, 3),
            _ => return Err(self.not_on_this_link(thing)),
        };
        self.ends(way, source, target, |g, at| {
            g.equal(Base::Header, at, Size::Byte, u32::from(address))
        })
    }

    /// A link address by the name of its host.
    pub(super) fn mac_name(
        &mut self,
        way: Option<Way>,
        name: &str,
        thing: &str,
    ) -> Result<Condition> {
        if !self.link.has_mac() {
            return Err(self.not_on_this_link(thing));
        }
        let address = self
            .options
            .resolver
            .ethernet(name)
            .ok_or_else(|| self.mistake(format!("unknown link address of host `{name}`")))?;
        self.mac(way, address, thing)
    }

    /// Frames that a gateway passes on: its link address, but not its IP address.
    pub(super) fn gateway(&mut self, q: Qualifiers, name: &str) -> Result<Condition> {
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
        let either = Qualifiers { way: Some(Way::Either), ..q };
        let link = self.mac_name(either.way, name, "gateway")?;
        Ok(link.and(self.host_name(either, name, true)?))
    }

    pub(super) fn broadcast(&mut self, protocol: Option<Protocol>) -> Result<Condition> {
        match protocol {
            None | Some(Protocol::Link) => match self.link {
                L::ARCNET | L::ARCNET_LINUX => self.mac8(Some(Way::Target), 0, "broadcast"),
                L::BACNET_MS_TP => self.mac8(Some(Way::Target), 0xff, "broadcast"),
                _ => self.mac(Some(Way::Target), [0xff; 6], "broadcast"),
            },
            Some(Protocol::Ip) => {
                let Some(netmask) = self.options.netmask else {
                    let what = "the netmask is not known, so `ip broadcast` cannot be asked";
                    return Err(self.mistake(what));
                };
                let ip = self.link_protocol(IP)?;
                let hosts = !netmask;
                let zeros = self.masked(Base::Network, 16, Size::Word, 0, hosts)?;
                let ones = self.masked(Base::Network, 16, Size::Word, hosts, hosts)?;
                Ok(ip.and(zeros.or(ones)))
            }
            Some(other) => Err(self.not_valid(other.word(), "broadcast")),
        }
    }

    pub(super) fn multicast(&mut self, protocol: Option<Protocol>) -> Result<Condition> {
        match protocol {
            None | Some(Protocol::Link) => self.link_multicast(),
            Some(Protocol::Ip) => {
                let ip = self.link_protocol(IP)?;
                Ok(ip.and(self.masked(Base::Network, 16, Size::Byte, 0xe0, 0xf0)?))
            }
            Some(Protocol::Ip6) => {
                let ip6 = self.link_protocol(IP6)?;
                Ok(ip6.and(self.equal(Base::Network, 24, Size::Byte, 0xff)?))
            }
            Some(other) => Err(self.not_valid(other.word(), "multicast")),
        }
    }

    fn link_multicast(&mut self) -> Result<Condition> {
        match self.link {
            L::ARCNET | L::ARCNET_LINUX => self.mac8(Some(Way::Target), 0, "multicast"),
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

    /// The bit that tells an address of many from an address of one.
    pub(super) fn group_bit(&mut self, at: u32) -> Result<Condition> {
        self.any_bit(Base::Header, at, Size::Byte, 0x01)
    }
}
