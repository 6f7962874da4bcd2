//! Generator for qualified identifiers. The qualifiers and the form of the identifier select the
//! test.

use std::net::Ipv6Addr;

use super::super::ast::{Identifier, Protocol, Qualifiers, TypeQualifier, format_id};
use super::super::condition::Condition;
use super::super::word_tables;
use super::host::{Ipv4Net, Ipv6Net};
use super::{GenerateResult, Generator};

impl Generator<'_> {
    pub(super) fn lower_id(&mut self, q: Qualifiers, id: &Identifier) -> GenerateResult<Condition> {
        match id {
            Identifier::Name(name) => self.lower_name(q, name),
            Identifier::Number(number) => self.lower_number(q, *number),
            Identifier::Dotted(text) => {
                let (value, bits) = self.parse_dotted_bytes(text)?;
                let net = Ipv4Net { address: value, mask: u32::MAX << (32 - bits) };
                self.lower_address(q, net, text)
            }
            Identifier::DottedPrefix(text, length) => {
                self.check_maximum("netmask length", *length, 32)?;
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                self.lower_network(q, id, text, mask)
            }
            Identifier::DottedMask(text, mask) => {
                let (mask, _) = self.parse_dotted_bytes(mask)?;
                self.lower_network(q, id, text, mask)
            }
            Identifier::Ip6(address, length) => self.lower_ipv6_network(q, *address, *length),
            Identifier::Mac(address) => {
                let host = matches!(q.kind, None | Some(TypeQualifier::Host));
                if !host || q.protocol != Some(Protocol::Link) {
                    return Err(self.invalid_error("Ethernet address used in non-ether expression"));
                }
                self.test_mac(q.direction, *address, "link host XX:XX:XX:XX:XX:XX")
            }
            Identifier::Mac8(address) => {
                self.reject_wlan_direction(q.direction)?;
                if let Some(kind) = q.kind
                    && kind != TypeQualifier::Host
                {
                    return Err(self.invalid_qualifier_error(kind.keyword(), &format_id(id)));
                }
                if q.protocol != Some(Protocol::Link) {
                    return Err(
                        self.invalid_error("`link` is the only protocol for an address `$XX`")
                    );
                }
                self.test_one_byte_mac(q.direction, *address, "link host $XX")
            }
        }
    }

    fn lower_name(&mut self, q: Qualifiers, name: &str) -> GenerateResult<Condition> {
        match q.kind {
            Some(TypeQualifier::Net) => {
                let number =
                    self.options.resolver.resolve_network(name).filter(|number| *number != 0);
                let Some(number) = number else {
                    return Err(self.invalid_error(format!("unknown network `{name}`")));
                };
                self.test_ipv4_nets(q, &[left_aligned_net(number)], true, "net")
            }
            None | Some(TypeQualifier::Host) if q.protocol == Some(Protocol::Link) => {
                self.test_mac_name(q.direction, name, "link host")
            }
            None | Some(TypeQualifier::Host) => self.test_host_name(q, name, false),
            Some(TypeQualifier::Port) => self.test_port_name(q, name),
            Some(TypeQualifier::PortRange) => self.test_port_range(q, name),
            Some(TypeQualifier::Gateway) => self.test_gateway(q, name),
            Some(TypeQualifier::Protocol) => {
                let number = self.resolve_protocol(q, name)?;
                self.test_protocol_number(q.protocol, number)
            }
            Some(TypeQualifier::ProtocolChain) => {
                let number = self.resolve_protocol(q, name)?;
                self.test_protochain(q.protocol, number)
            }
        }
    }

    fn resolve_protocol(&self, q: Qualifiers, name: &str) -> GenerateResult<u32> {
        let number = match q.protocol {
            None | Some(Protocol::Ip | Protocol::Ip6) => {
                self.options.resolver.resolve_protocol(name).map(u32::from)
            }
            Some(Protocol::Link) => word_tables::find_word_value(word_tables::LINK_PROTOCOLS, name),
            Some(Protocol::Iso) => word_tables::find_word_value(word_tables::ISO_PROTOCOLS, name),
            _ => None,
        };
        number.ok_or_else(|| {
            let kind = q.kind.map_or("proto", TypeQualifier::keyword);
            let within = q.protocol.map(|p| format!("{} ", p.keyword())).unwrap_or_default();
            self.invalid_error(format!("unknown `{within}{kind}` value `{name}`"))
        })
    }

    fn lower_number(&mut self, q: Qualifiers, number: u32) -> GenerateResult<Condition> {
        match q.kind {
            None | Some(TypeQualifier::Host) => self.lower_address(
                q,
                Ipv4Net { address: number, mask: u32::MAX },
                &number.to_string(),
            ),
            Some(TypeQualifier::Net) => {
                self.lower_address(q, left_aligned_net(number), &number.to_string())
            }
            Some(TypeQualifier::Port | TypeQualifier::PortRange) => {
                self.test_port_number(q, number)
            }
            Some(TypeQualifier::Protocol) => self.test_protocol_number(q.protocol, number),
            Some(TypeQualifier::ProtocolChain) => self.test_protochain(q.protocol, number),
            Some(kind @ TypeQualifier::Gateway) => {
                Err(self.invalid_qualifier_error(kind.keyword(), &number.to_string()))
            }
        }
    }

    fn lower_address(
        &mut self,
        q: Qualifiers,
        net: Ipv4Net,
        text: &str,
    ) -> GenerateResult<Condition> {
        match q.kind {
            None | Some(TypeQualifier::Host | TypeQualifier::Net) => {}
            Some(kind) => return Err(self.invalid_qualifier_error(kind.keyword(), text)),
        }
        if q.protocol == Some(Protocol::Link) {
            return Err(self.invalid_error(format!("illegal link-layer address `{text}`")));
        }
        let thing = format!("{} {text}", q.kind.map_or("host", TypeQualifier::keyword));
        self.test_ipv4_nets(q, &[net], true, &thing)
    }

    fn lower_network(
        &mut self,
        q: Qualifiers,
        id: &Identifier,
        text: &str,
        mask: u32,
    ) -> GenerateResult<Condition> {
        let (address, _) = self.parse_dotted_bytes(text)?;
        let whole = format_id(id);
        if address & !mask != 0 {
            return Err(self.invalid_error(format!("non-network bits set in `{whole}`")));
        }
        if q.kind != Some(TypeQualifier::Net) {
            return Err(
                self.invalid_qualifier_error(q.kind.map_or("host", TypeQualifier::keyword), &whole)
            );
        }
        self.test_ipv4_nets(q, &[Ipv4Net { address, mask }], true, &format!("net {whole}"))
    }

    fn lower_ipv6_network(
        &mut self,
        q: Qualifiers,
        address: Ipv6Addr,
        length: u32,
    ) -> GenerateResult<Condition> {
        self.check_maximum("prefix length", length, 128)?;
        let net = Ipv6Net::new(address, length);
        let whole = format_id(&Identifier::Ip6(address, length));
        if address.to_bits() & !net.mask != 0 {
            return Err(self.invalid_error(format!("non-network bits set in `{whole}`")));
        }
        match q.kind {
            None | Some(TypeQualifier::Host) if length == 128 => {}
            Some(TypeQualifier::Net) => {}
            kind => {
                return Err(self
                    .invalid_qualifier_error(kind.map_or("host", TypeQualifier::keyword), &whole));
            }
        }
        let thing = format!("{} {whole}", q.kind.map_or("host", TypeQualifier::keyword));
        self.test_ipv6_nets(q, &[net], true, &thing)
    }

    /// Parses one to four decimal bytes separated by dots, most significant first. Returns their
    /// value and their total length in bits.
    fn parse_dotted_bytes(&self, text: &str) -> GenerateResult<(u32, u32)> {
        let mut value = 0u32;
        let mut bits = 0;
        for part in text.split('.') {
            let decimal = part.bytes().all(|b| b.is_ascii_digit());
            let byte = part.parse::<u32>().ok().filter(|byte| decimal && *byte < 256 && bits < 32);
            let Some(byte) = byte else {
                return Err(self.invalid_error(format!("invalid IPv4 address `{text}`")));
            };
            bits += 8;
            value |= byte << (32 - bits);
        }
        Ok((value, bits))
    }
}

/// Returns the IPv4 network whose leading bytes are those of `number`. For example, 10 is the
/// network 10.0.0.0/8.
fn left_aligned_net(number: u32) -> Ipv4Net {
    let (mut address, mut mask) = (number, u32::MAX);
    while address != 0 && address >> 24 == 0 {
        address <<= 8;
        mask <<= 8;
    }
    Ipv4Net { address, mask }
}
