//! Geneve and VXLAN: tunnels in UDP, behind which another frame begins.
//!
//! Where it begins depends on the IP header, so header, protocol number and payload of the inner
//! frame go into scratch words when the tunnel is found.

use super::super::ast::{Kind, Protocol, Qualifiers, Way};
use super::super::condition::{
    Compare, Condition, Line, TAX, TXA, Test, alu_k, alu_x, compare_x, constant_to_a, line,
    memory_to_a, memory_to_x, store_a,
};
use super::load::{Base, Size};
use super::port::Ports;
use super::{Generator, Lines, Offset, Result};
use crate::classic::insn::code;
use crate::classic::link::LinkType;

const GENEVE_PORT: u16 = 6081;
const VXLAN_PORT: u16 = 4789;
const NETWORK_MAX: u32 = 0xff_ffff;
/// The EtherType of an Ethernet frame inside (transparent Ethernet bridging).
const BRIDGED: u32 = 0x6558;
const UDP_LENGTH: u32 = 8;

/// The scratch words of an inner frame.
struct Inner {
    header: u32,
    protocol: u32,
    payload: u32,
}

impl Generator<'_> {
    pub(super) fn geneve(&mut self, network: Option<u32>) -> Result<Condition> {
        if let Some(network) = network {
            self.at_most("Geneve VNI", network, NETWORK_MAX)?;
        }
        let version = |g: &mut Self, base| g.masked(base, UDP_LENGTH, Size::Byte, 0, 0xc0);
        let found = self.tunnel(GENEVE_PORT, network, &version)?;
        let start = self.place(Base::Network)?.constant + UDP_LENGTH;
        let inner = self.inner()?;
        let (bridged, done) = (self.label(), self.label());
        let is_bridged = Compare { op: code::JEQ, with: Some(BRIDGED) };
        let lines = vec![
            alu_k(code::ADD, start),
            TAX,
            alu_k(code::ADD, 2),
            store_a(inner.protocol),
            line(code::LD | code::IND | code::B, 0),
            alu_k(code::AND, 0x3f),
            alu_k(code::MUL, 4),
            alu_k(code::ADD, 8),
            alu_x(code::ADD),
            store_a(inner.header),
            line(code::LD | code::IND | code::H, 2),
            memory_to_x(inner.header),
            Line::Branch { compare: is_bridged, yes: bridged, no: done },
            Line::Place(bridged),
            TXA,
            alu_k(code::ADD, 12),
            store_a(inner.protocol),
            alu_k(code::ADD, 2),
            TAX,
            Line::Place(done),
            line(code::STX, inner.payload),
        ];
        Ok(found.and(self.enter_tunnel(&inner, lines)))
    }

    pub(super) fn vxlan(&mut self, network: Option<u32>) -> Result<Condition> {
        if let Some(network) = network {
            self.at_most("VXLAN VNI", network, NETWORK_MAX)?;
        }
        let flags = |g: &mut Self, base| g.equal(base, UDP_LENGTH, Size::Byte, 0x08);
        let found = self.tunnel(VXLAN_PORT, network, &flags)?;
        let start = self.place(Base::Network)?.constant + UDP_LENGTH;
        let inner = self.inner()?;
        let lines = vec![
            alu_k(code::ADD, start + 8),
            store_a(inner.header),
            alu_k(code::ADD, 12),
            store_a(inner.protocol),
            alu_k(code::ADD, 2),
            store_a(inner.payload),
        ];
        Ok(found.and(self.enter_tunnel(&inner, lines)))
    }

    /// The outer packet is one of the tunnel; then A is how far behind the beginning of the network
    /// header the UDP header begins.
    fn tunnel(
        &mut self,
        port: u16,
        network: Option<u32>,
        mark: &dyn Fn(&mut Self, Base) -> Result<Condition>,
    ) -> Result<Condition> {
        let q = Qualifiers { protocol: None, way: Some(Way::Target), kind: Some(Kind::Port) };
        let ports = Ports(port, port);
        let over4 = self.ports_ip4(q, ports, Some(Protocol::Udp))?;
        let over4 = over4.and(self.tunnel_header(Base::TransportIp4, network, mark)?);
        let place = self.place(Base::TransportIp4)?;
        let mut to_udp = self.header_length_to_x(place);
        to_udp.push(TXA);
        let over4 = over4.and(always(to_udp));
        let over6 = self.ports_ip6(q, ports, Some(Protocol::Udp))?;
        let over6 = over6.and(self.tunnel_header(Base::TransportIp6, network, mark)?);
        let (mut to_udp, _, moves) = self.base(Base::TransportIp6)?;
        to_udp.push(constant_to_a(40));
        if moves {
            to_udp.push(alu_x(code::ADD));
        }
        Ok(over4.or(over6.and(always(to_udp))))
    }

    fn tunnel_header(
        &mut self,
        base: Base,
        network: Option<u32>,
        mark: &dyn Fn(&mut Self, Base) -> Result<Condition>,
    ) -> Result<Condition> {
        let marked = mark(self, base)?;
        let Some(network) = network else { return Ok(marked) };
        let at = UDP_LENGTH + 4;
        let own = self.masked(base, at, Size::Word, network << 8, 0xffff_ff00)?;
        Ok(marked.and(own))
    }

    fn inner(&mut self) -> Result<Inner> {
        Ok(Inner { header: self.word()?, protocol: self.word()?, payload: self.word()? })
    }

    /// From here on, the frame is the inner one, whose places `lines` compute from A.
    fn enter_tunnel(&mut self, inner: &Inner, lines: Lines) -> Condition {
        let place = |word| Offset { constant: 0, word: Some(word) };
        self.enter(LinkType::EN10MB, place(inner.header));
        self.protocol = Some(place(inner.protocol));
        self.payload = Some(place(inner.payload));
        self.nl = 0;
        self.encapsulated = true;
        always(lines)
    }

    /// The tunnel carries a link header: what has none begins with its payload.
    pub(super) fn inner_header_check(&mut self) -> Result<Condition> {
        let (Some(header), Some(payload)) =
            (self.header.word, self.payload.and_then(|place| place.word))
        else {
            return Err(self.unplaced());
        };
        Ok(compare_x(vec![memory_to_a(header), memory_to_x(payload)], code::JEQ).not())
    }
}

fn always(lines: Lines) -> Condition {
    Condition::Test(Test { lines, compare: None })
}
