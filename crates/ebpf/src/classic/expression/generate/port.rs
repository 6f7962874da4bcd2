//! Generator for tests of ports, such as `tcp port 80`, `dst portrange 6000-6008` or `port domain`.
//!
//! The ports of an IPv4 packet are tested only in the first fragment. The ports of an IPv6 packet
//! are tested only if the transport header directly follows the IPv6 header. IPv6 is tested first.

use super::super::ast::{Protocol, Qualifiers, TypeQualifier};
use super::super::condition::Condition;
use super::super::lex;
use super::super::resolve::Transports;
use super::link_protocol::{ETHERTYPE_IP, ETHERTYPE_IPV6};
use super::load::HeaderBase;
use super::protocol::ip_protocol_number;
use super::{GenerateResult, Generator};
use crate::classic::insn::code;

/// Offset of the source port in a transport header.
const SOURCE_PORT_OFFSET: u32 = 0;
/// Offset of the destination port in a transport header.
const DESTINATION_PORT_OFFSET: u32 = 2;

/// A range of ports, given by its first and last port in either order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortRange(pub(super) u16, pub(super) u16);

impl Generator<'_> {
    /// Returns the condition that a port of the frame has this number. `q` selects the source or
    /// destination port and the transport.
    pub(super) fn test_port_number(
        &mut self,
        q: Qualifiers,
        number: u32,
    ) -> GenerateResult<Condition> {
        let transport = self.required_transport(q)?;
        self.check_maximum("port number", number, 0xffff)?;
        let port = number as u16;
        self.test_ports(q, PortRange(port, port), transport)
    }

    /// Returns the condition that a port of the frame has this name. `q` selects the source or
    /// destination port and the transport.
    pub(super) fn test_port_name(
        &mut self,
        q: Qualifiers,
        name: &str,
    ) -> GenerateResult<Condition> {
        let wanted = self.required_transport(q)?;
        let known = self.options.resolver.resolve_port(name);
        let (port, by) =
            known.ok_or_else(|| self.invalid_error(format!("unknown port `{name}`")))?;
        let transport = self.common_transports(wanted, by, name)?;
        self.test_ports(q, PortRange(port, port), transport)
    }

    /// Returns the condition that a port of the frame is in a range whose bounds are names or
    /// numbers. `q` selects the source or destination port and the transport.
    pub(super) fn test_port_range(
        &mut self,
        q: Qualifiers,
        text: &str,
    ) -> GenerateResult<Condition> {
        let wanted = self.required_transport(q)?;
        let (first, last) = text
            .split_once('-')
            .ok_or_else(|| self.invalid_error(format!("port range `{text}` has no hyphen")))?;
        if last.contains('-') {
            return Err(self.invalid_error(format!("port range `{text}` has more than one hyphen")));
        }
        let (first, by_first) = self.resolve_range_bound(first)?;
        let (last, by_last) = self.resolve_range_bound(last)?;
        let by = if by_first == by_last { by_first } else { Transports::Both };
        let transport = self.common_transports(wanted, by, text)?;
        self.test_ports(q, PortRange(first, last), transport)
    }

    fn resolve_range_bound(&mut self, word: &str) -> GenerateResult<(u16, Transports)> {
        if word.starts_with(|c: char| c.is_ascii_digit())
            && word.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'x' | b'X'))
        {
            let number = lex::parse_number(word).map_err(|what| self.invalid_error(what))?;
            self.check_maximum("port number", number, 0xffff)?;
            return Ok((number as u16, Transports::Both));
        }
        self.options
            .resolver
            .resolve_port(word)
            .ok_or_else(|| self.invalid_error(format!("`{word}` is not a valid port")))
    }

    /// Returns the transport protocol that the qualifiers require, or `None` if they require none.
    fn required_transport(&self, q: Qualifiers) -> GenerateResult<Option<Protocol>> {
        match q.protocol {
            None => Ok(None),
            Some(p @ (Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => Ok(Some(p)),
            Some(other) => Err(self.invalid_qualifier_error(
                other.keyword(),
                q.kind.map_or("port", TypeQualifier::keyword),
            )),
        }
    }

    /// Returns the transport protocol to test: the only one that both the qualifiers and the
    /// service `name` allow, or `None` if they allow every transport. Fails if the qualifiers and
    /// the service exclude each other.
    fn common_transports(
        &self,
        wanted: Option<Protocol>,
        by: Transports,
        name: &str,
    ) -> GenerateResult<Option<Protocol>> {
        let only = match by {
            Transports::Both => return Ok(wanted),
            Transports::Tcp => Protocol::Tcp,
            Transports::Udp => Protocol::Udp,
        };
        match wanted {
            Some(wanted) if wanted != only => Err(self.invalid_error(format!(
                "port `{name}` is {}, not {}",
                only.keyword(),
                wanted.keyword()
            ))),
            _ => Ok(Some(only)),
        }
    }

    /// Returns the condition that a port of the frame is in the range `ports`, over IPv6 or IPv4.
    fn test_ports(
        &mut self,
        q: Qualifiers,
        ports: PortRange,
        transport: Option<Protocol>,
    ) -> GenerateResult<Condition> {
        let over6 = self.test_ports_in_ip_version(HeaderBase::TransportIp6, q, ports, transport)?;
        Ok(over6.or(self.test_ports_in_ip_version(
            HeaderBase::TransportIp4,
            q,
            ports,
            transport,
        )?))
    }

    /// Returns the condition that a port of the frame is in the range `ports`, over the IP version
    /// of `base`.
    pub(super) fn test_ports_in_ip_version(
        &mut self,
        base: HeaderBase,
        q: Qualifiers,
        ports: PortRange,
        transport: Option<Protocol>,
    ) -> GenerateResult<Condition> {
        let over4 = base == HeaderBase::TransportIp4;
        let ip = self.test_link_protocol(if over4 { ETHERTYPE_IP } else { ETHERTYPE_IPV6 })?;
        let carries = self.test_transport(
            if over4 { Self::test_ip_protocol } else { Self::test_ip6_next_header },
            transport,
        )?;
        let first = if over4 { self.test_first_fragment()? } else { Condition::Always };
        Ok(ip.and(carries).and(first).and(self.test_ports_by_direction(base, q, ports)?))
    }

    fn test_transport(
        &mut self,
        field: impl Fn(&mut Self, u32) -> GenerateResult<Condition>,
        transport: Option<Protocol>,
    ) -> GenerateResult<Condition> {
        if let Some(number) = transport.and_then(ip_protocol_number) {
            return field(self, number);
        }
        let tcp = field(self, 6)?;
        let udp = field(self, 17)?;
        Ok(tcp.or(udp).or(field(self, 132)?))
    }

    /// Returns the condition that the IPv4 packet is unfragmented or a first fragment.
    pub(super) fn test_first_fragment(&mut self) -> GenerateResult<Condition> {
        Ok(self.test_any_bit(HeaderBase::Network.half(6), 0x1fff)?.not())
    }

    fn test_ports_by_direction(
        &mut self,
        base: HeaderBase,
        q: Qualifiers,
        ports: PortRange,
    ) -> GenerateResult<Condition> {
        if let Some(other) = q.direction.filter(|direction| direction.is_wlan()) {
            return Err(self.invalid_qualifier_error(
                other.keywords(),
                q.kind.map_or("port", TypeQualifier::keyword),
            ));
        }
        self.apply_by_direction(
            q.direction,
            SOURCE_PORT_OFFSET,
            DESTINATION_PORT_OFFSET,
            |g, at| g.test_port_field(base, at, ports),
        )
    }

    fn test_port_field(
        &mut self,
        base: HeaderBase,
        at: u32,
        ports: PortRange,
    ) -> GenerateResult<Condition> {
        let (PortRange(a, b), field) = (ports, base.half(at));
        if a == b {
            return self.test_equal(field, u32::from(a));
        }
        let least = self.test_field(field, code::JGE, u32::from(a.min(b)))?;
        let most = self.test_field(field, code::JGT, u32::from(a.max(b)))?.not();
        Ok(least.and(most))
    }
}
