//! Generator for tests of IP addresses and networks, such as `src host 1.2.3.4`, `net 10.0.0.0/8`
//! or `ip6 net fe80::/10`.

use std::net::{IpAddr, Ipv6Addr};

use super::super::ast::{DirQualifier, Protocol, Qualifiers};
use super::super::condition::Condition;
use super::super::error::ExpressionError;
use super::link_protocol::{ETHERTYPE_ARP, ETHERTYPE_IP, ETHERTYPE_IPV6, ETHERTYPE_RARP};
use super::load::HeaderBase;
use super::{GenerateResult, Generator};

/// Maximum number of addresses, per IP version, that a name may resolve to.
const ADDRESSES_MAX: usize = 100;

/// An IPv4 network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv4Net {
    pub(super) address: u32,
    pub(super) mask: u32,
}

/// An IPv6 network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Net {
    pub(super) address: Ipv6Addr,
    pub(super) mask: u128,
}

impl Ipv6Net {
    /// Creates the network that consists of the first `length` bits of `address`.
    pub(super) fn new(address: Ipv6Addr, length: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        Self { address, mask }
    }
}

impl Generator<'_> {
    /// Returns the condition that an address of the frame is in one of these IPv4 networks or, if
    /// `wanted` is false, in none of them. `thing` names the networks in errors.
    pub(super) fn test_ipv4_nets(
        &mut self,
        q: Qualifiers,
        nets: &[Ipv4Net],
        wanted: bool,
        thing: &str,
    ) -> GenerateResult<Condition> {
        self.reject_wlan_direction(q.direction)?;
        let Some(protocol) = q.protocol else {
            let ip = self.test_nets_in_protocol(ETHERTYPE_IP, q.direction, nets, wanted)?;
            if self.mpls_depth > 0 {
                return Ok(ip);
            }
            let arp = self.test_nets_in_protocol(ETHERTYPE_ARP, q.direction, nets, wanted)?;
            return Ok(ip.or(arp).or(self.test_nets_in_protocol(
                ETHERTYPE_RARP,
                q.direction,
                nets,
                wanted,
            )?));
        };
        let link_protocol = match protocol {
            Protocol::Ip => ETHERTYPE_IP,
            Protocol::Arp => ETHERTYPE_ARP,
            Protocol::Rarp => ETHERTYPE_RARP,
            other => return Err(self.invalid_qualifier_error(other.keyword(), thing)),
        };
        self.test_nets_in_protocol(link_protocol, q.direction, nets, wanted)
    }

    fn test_nets_in_protocol(
        &mut self,
        link_protocol: u32,
        direction: Option<DirQualifier>,
        nets: &[Ipv4Net],
        wanted: bool,
    ) -> GenerateResult<Condition> {
        let carried = self.test_link_protocol(link_protocol)?;
        if carried == Condition::Never {
            return Ok(carried);
        }
        let (source, target) = if link_protocol == ETHERTYPE_IP { (12, 16) } else { (14, 24) };
        let mut any = Condition::Never;
        for net in nets {
            any = any.or(self.apply_by_direction(direction, source, target, |g, at| {
                g.test_masked_equal(HeaderBase::Network.word(at), net.address, net.mask)
            })?);
        }
        Ok(carried.and(any.negate_unless(wanted)))
    }

    /// Returns the condition that an address of the frame is in one of these IPv6 networks or, if
    /// `wanted` is false, in none of them. `thing` names the networks in errors.
    pub(super) fn test_ipv6_nets(
        &mut self,
        q: Qualifiers,
        nets: &[Ipv6Net],
        wanted: bool,
        thing: &str,
    ) -> GenerateResult<Condition> {
        self.reject_wlan_direction(q.direction)?;
        if let Some(other) = q.protocol
            && other != Protocol::Ip6
        {
            return Err(self.invalid_qualifier_error(other.keyword(), thing));
        }
        let carried = self.test_link_protocol(ETHERTYPE_IPV6)?;
        let mut any = Condition::Never;
        for net in nets {
            any = any.or(self.apply_by_direction(q.direction, 8, 24, |g, at| {
                g.test_ipv6_address_field(at, net)
            })?);
        }
        Ok(carried.and(any.negate_unless(wanted)))
    }

    fn test_ipv6_address_field(&mut self, at: u32, net: &Ipv6Net) -> GenerateResult<Condition> {
        let words = |value: u128| [96, 64, 32, 0].map(|shift| (value >> shift) as u32);
        let (address, mask) = (words(net.address.to_bits()), words(net.mask));
        let mut condition = Condition::Always;
        for (index, (address, mask)) in address.into_iter().zip(mask).enumerate() {
            let at = at + 4 * index as u32;
            condition = condition.and(self.test_masked_equal(
                HeaderBase::Network.word(at),
                address,
                mask,
            )?);
        }
        Ok(condition)
    }

    /// Returns a condition on the source address, the destination address, or both combined by
    /// `and` or `or`, as `direction` selects. `test` builds the condition for the address at a
    /// given offset; `source` and `target` are the offsets of the two addresses.
    pub(super) fn apply_by_direction(
        &mut self,
        direction: Option<DirQualifier>,
        source: u32,
        target: u32,
        test: impl Fn(&mut Self, u32) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        self.combine_by_direction(direction, |g| test(g, source), |g| test(g, target))
    }

    /// Returns the condition that `source` builds, the condition that `target` builds, or both
    /// combined by `and` or `or`, as `direction` selects.
    pub(super) fn combine_by_direction(
        &mut self,
        direction: Option<DirQualifier>,
        source: impl FnOnce(&mut Self) -> GenerateResult<Condition>,
        target: impl FnOnce(&mut Self) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        match direction {
            Some(DirQualifier::Source) => source(self),
            Some(DirQualifier::Target) => target(self),
            Some(DirQualifier::Both) => Ok(source(self)?.and(target(self)?)),
            None | Some(DirQualifier::Either) => Ok(source(self)?.or(target(self)?)),
            Some(other) => Err(self.wlan_only_error(other)),
        }
    }

    /// Fails if `direction` is a qualifier that applies only to 802.11 frames, such as `ra` or
    /// `ta`.
    pub(super) fn reject_wlan_direction(
        &self,
        direction: Option<DirQualifier>,
    ) -> GenerateResult<()> {
        match direction.filter(|direction| direction.is_wlan()) {
            None => Ok(()),
            Some(wlan) => Err(self.wlan_only_error(wlan)),
        }
    }

    fn wlan_only_error(&self, direction: DirQualifier) -> ExpressionError {
        self.invalid_error(format!(
            "`{}` is for link addresses of 802.11 frames only",
            direction.keywords()
        ))
    }

    /// Returns the condition that an address of the frame is an address of the host `name`. If
    /// `gateway` is true, returns instead the condition that no IPv4 address of the frame is an
    /// address of this host.
    pub(super) fn test_host_name(
        &mut self,
        q: Qualifiers,
        name: &str,
        gateway: bool,
    ) -> GenerateResult<Condition> {
        let addresses = self
            .options
            .resolver
            .resolve_host(name)
            .map_err(|why| self.invalid_error(format!("unknown host `{name}`: {why}")))?;
        let wants_ip4 = q.protocol != Some(Protocol::Ip6);
        let wants_ip6 =
            !gateway && !matches!(q.protocol, Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp));
        let mut nets = Vec::new();
        let mut nets6 = Vec::new();
        for address in addresses {
            match address {
                IpAddr::V4(address) if wants_ip4 => {
                    nets.push(Ipv4Net { address: address.to_bits(), mask: u32::MAX });
                }
                IpAddr::V6(address) if wants_ip6 => nets6.push(Ipv6Net::new(address, 128)),
                _ => {}
            }
        }
        if nets.len().max(nets6.len()) > ADDRESSES_MAX {
            let what = format!("`{name}` has more than {ADDRESSES_MAX} addresses");
            return Err(self.invalid_error(what));
        }
        if nets.is_empty() && nets6.is_empty() {
            let what = format!("unknown host `{name}`: it has no address of this family");
            return Err(self.invalid_error(what));
        }
        nets.sort_by_key(|net| net.address);
        nets6.sort_by_key(|net| net.address);
        let thing = "host";
        let mut condition = Condition::Never;
        if !nets.is_empty() {
            condition = condition.or(self.test_ipv4_nets(q, &nets, !gateway, thing)?);
        }
        if !nets6.is_empty() {
            condition = condition.or(self.test_ipv6_nets(q, &nets6, !gateway, thing)?);
        }
        Ok(condition)
    }
}
