//! Generator for qualified identifiers. It selects a test by the qualifiers and the form of the
//! identifier.

use std::net::Ipv6Addr;

use super::super::ast::{Id, Protocol, Qualifiers, TypeQualifier, describe};
use super::super::condition::Condition;
use super::super::names;
use super::host::{Net, Net6};
use super::{Generated, Generator};

impl Generator<'_> {
    pub(super) fn id(&mut self, q: Qualifiers, id: &Id) -> Generated<Condition> {
        match id {
            Id::Name(name) => self.id_name(q, name),
            Id::Number(number) => self.id_number(q, *number),
            Id::Dotted(text) => {
                let (value, bits) = self.parse_dotted(text)?;
                let net = Net { address: value, mask: u32::MAX << (32 - bits) };
                self.id_address(q, net, text)
            }
            Id::DottedPrefix(text, length) => {
                self.check_maximum("netmask length", *length, 32)?;
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                self.id_network(q, id, text, mask)
            }
            Id::DottedMask(text, mask) => {
                let (mask, _) = self.parse_dotted(mask)?;
                self.id_network(q, id, text, mask)
            }
            Id::Ip6(address, length) => self.id_ip6(q, *address, *length),
            Id::Mac(address) => {
                let host = matches!(q.kind, None | Some(TypeQualifier::Host));
                if !host || q.protocol != Some(Protocol::Link) {
                    return Err(self.mistake("Ethernet address used in non-ether expression"));
                }
                self.mac(q.direction, *address, "link host XX:XX:XX:XX:XX:XX")
            }
            Id::Mac8(address) => {
                self.reject_wlan_direction(q.direction)?;
                if let Some(kind) = q.kind
                    && kind != TypeQualifier::Host
                {
                    return Err(self.not_valid(kind.word(), &describe(id)));
                }
                if q.protocol != Some(Protocol::Link) {
                    return Err(self.mistake("`link` is the only protocol for an address `$XX`"));
                }
                self.mac8(q.direction, *address, "link host $XX")
            }
        }
    }

    fn id_name(&mut self, q: Qualifiers, name: &str) -> Generated<Condition> {
        match q.kind {
            Some(TypeQualifier::Net) => {
                let number = self.options.resolver.network(name).filter(|number| *number != 0);
                let Some(number) = number else {
                    return Err(self.mistake(format!("unknown network `{name}`")));
                };
                self.nets(q, &[left_aligned(number)], true, "net")
            }
            None | Some(TypeQualifier::Host) if q.protocol == Some(Protocol::Link) => {
                self.mac_name(q.direction, name, "link host")
            }
            None | Some(TypeQualifier::Host) => self.host_name(q, name, false),
            Some(TypeQualifier::Port) => self.port_name(q, name),
            Some(TypeQualifier::PortRange) => self.port_range(q, name),
            Some(TypeQualifier::Gateway) => self.gateway(q, name),
            Some(TypeQualifier::Protocol) => {
                let number = self.resolve_protocol(q, name)?;
                self.protocol_number(q.protocol, number)
            }
            Some(TypeQualifier::ProtocolChain) => {
                let number = self.resolve_protocol(q, name)?;
                self.protochain(q.protocol, number)
            }
        }
    }

    fn resolve_protocol(&self, q: Qualifiers, name: &str) -> Generated<u32> {
        let number = match q.protocol {
            None | Some(Protocol::Ip | Protocol::Ip6) => {
                self.options.resolver.protocol(name).map(u32::from)
            }
            Some(Protocol::Link) => names::find(names::LINK_PROTOCOLS, name),
            Some(Protocol::Iso) => names::find(names::ISO_PROTOCOLS, name),
            _ => None,
        };
        number.ok_or_else(|| {
            let kind = q.kind.map_or("proto", TypeQualifier::word);
            let within = q.protocol.map(|p| format!("{} ", p.word())).unwrap_or_default();
            self.mistake(format!("unknown `{within}{kind}` value `{name}`"))
        })
    }

    fn id_number(&mut self, q: Qualifiers, number: u32) -> Generated<Condition> {
        match q.kind {
            None | Some(TypeQualifier::Host) => {
                self.id_address(q, Net { address: number, mask: u32::MAX }, &number.to_string())
            }
            Some(TypeQualifier::Net) => {
                self.id_address(q, left_aligned(number), &number.to_string())
            }
            Some(TypeQualifier::Port | TypeQualifier::PortRange) => self.port_number(q, number),
            Some(TypeQualifier::Protocol) => self.protocol_number(q.protocol, number),
            Some(TypeQualifier::ProtocolChain) => self.protochain(q.protocol, number),
            Some(kind @ TypeQualifier::Gateway) => {
                Err(self.not_valid(kind.word(), &number.to_string()))
            }
        }
    }

    fn id_address(&mut self, q: Qualifiers, net: Net, text: &str) -> Generated<Condition> {
        match q.kind {
            None | Some(TypeQualifier::Host | TypeQualifier::Net) => {}
            Some(kind) => return Err(self.not_valid(kind.word(), text)),
        }
        if q.protocol == Some(Protocol::Link) {
            return Err(self.mistake(format!("illegal link-layer address `{text}`")));
        }
        let thing = format!("{} {text}", q.kind.map_or("host", TypeQualifier::word));
        self.nets(q, &[net], true, &thing)
    }

    fn id_network(
        &mut self,
        q: Qualifiers,
        id: &Id,
        text: &str,
        mask: u32,
    ) -> Generated<Condition> {
        let (address, _) = self.parse_dotted(text)?;
        let whole = describe(id);
        if address & !mask != 0 {
            return Err(self.mistake(format!("non-network bits set in `{whole}`")));
        }
        if q.kind != Some(TypeQualifier::Net) {
            return Err(self.not_valid(q.kind.map_or("host", TypeQualifier::word), &whole));
        }
        self.nets(q, &[Net { address, mask }], true, &format!("net {whole}"))
    }

    fn id_ip6(&mut self, q: Qualifiers, address: Ipv6Addr, length: u32) -> Generated<Condition> {
        self.check_maximum("prefix length", length, 128)?;
        let net = Net6::new(address, length);
        let whole = describe(&Id::Ip6(address, length));
        if address.to_bits() & !net.mask != 0 {
            return Err(self.mistake(format!("non-network bits set in `{whole}`")));
        }
        match q.kind {
            None | Some(TypeQualifier::Host) if length == 128 => {}
            Some(TypeQualifier::Net) => {}
            kind => return Err(self.not_valid(kind.map_or("host", TypeQualifier::word), &whole)),
        }
        let thing = format!("{} {whole}", q.kind.map_or("host", TypeQualifier::word));
        self.nets6(q, &[net], true, &thing)
    }

    /// Parses one to four decimal bytes, most significant byte first. Returns the value and the
    /// number of bits.
    fn parse_dotted(&self, text: &str) -> Generated<(u32, u32)> {
        let mut value = 0u32;
        let mut bits = 0;
        for part in text.split('.') {
            let decimal = part.bytes().all(|b| b.is_ascii_digit());
            let byte = part.parse::<u32>().ok().filter(|byte| decimal && *byte < 256 && bits < 32);
            let Some(byte) = byte else {
                return Err(self.mistake(format!("invalid IPv4 address `{text}`")));
            };
            bits += 8;
            value |= byte << (32 - bits);
        }
        Ok((value, bits))
    }
}

/// Returns the network whose first bytes form this number. For example, 10 is the network
/// 10.0.0.0/8.
fn left_aligned(number: u32) -> Net {
    let (mut address, mut mask) = (number, u32::MAX);
    while address != 0 && address >> 24 == 0 {
        address <<= 8;
        mask <<= 8;
    }
    Net { address, mask }
}
