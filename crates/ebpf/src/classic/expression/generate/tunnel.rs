//! Generator for tests of Geneve and VXLAN, UDP tunnels that carry another frame.
//!
//! The offset of the inner frame depends on the length of the IP header. The offsets of the inner
//! header, protocol number and payload are therefore stored in scratch words, which are set when
//! the tunnel matches.

use super::super::ast::{DirQualifier, Protocol, Qualifiers, TypeQualifier};
use super::super::condition::{
    Comparison, Condition, ConditionTest, PseudoInsn, TAX, TXA, alu_k, alu_x, compare_x,
    load_a_constant, load_a_from_word, load_x_from_word, non_branching, store_a,
};
use super::load::HeaderBase;
use super::port::PortRange;
use super::{Code, GenerateResult, Generator, Offset};
use crate::classic::insn::code;
use crate::classic::link::LinkType;

/// UDP port of Geneve.
const GENEVE_PORT: u16 = 6081;
/// UDP port of VXLAN.
const VXLAN_PORT: u16 = 4789;
/// Maximum network identifier of a tunnel, a number of 24 bits.
const NETWORK_ID_MAX: u32 = 0xff_ffff;
/// EtherType of an inner Ethernet frame (transparent Ethernet bridging).
const ETHERTYPE_BRIDGED_ETHERNET: u32 = 0x6558;
/// Length of the UDP header in bytes.
const UDP_HEADER_LENGTH: u32 = 8;

/// The scratch words that hold the offsets of the frame inside a tunnel.
struct InnerOffsetWords {
    header: u32,
    protocol: u32,
    payload: u32,
}

impl Generator<'_> {
    pub(super) fn test_geneve(&mut self, network: Option<u32>) -> GenerateResult<Condition> {
        if let Some(network) = network {
            self.check_maximum("Geneve VNI", network, NETWORK_ID_MAX)?;
        }
        let version = |g: &mut Self, base: HeaderBase| {
            g.test_masked_equal(base.byte(UDP_HEADER_LENGTH), 0, 0xc0)
        };
        let found = self.test_tunnel(GENEVE_PORT, network, &version)?;
        let start = self.base_offset(HeaderBase::Network)?.constant + UDP_HEADER_LENGTH;
        let inner = self.allocate_inner_words()?;
        let (bridged, done) = (self.new_label(), self.new_label());
        let is_bridged = Comparison { op: code::JEQ, with: Some(ETHERTYPE_BRIDGED_ETHERNET) };
        let lines = vec![
            alu_k(code::ADD, start),
            TAX,
            alu_k(code::ADD, 2),
            store_a(inner.protocol),
            non_branching(code::LD | code::IND | code::B, 0),
            alu_k(code::AND, 0x3f),
            alu_k(code::MUL, 4),
            alu_k(code::ADD, 8),
            alu_x(code::ADD),
            store_a(inner.header),
            non_branching(code::LD | code::IND | code::H, 2),
            load_x_from_word(inner.header),
            PseudoInsn::Branch { compare: is_bridged, yes: bridged, no: done },
            PseudoInsn::Bind(bridged),
            TXA,
            alu_k(code::ADD, 12),
            store_a(inner.protocol),
            alu_k(code::ADD, 2),
            TAX,
            PseudoInsn::Bind(done),
            non_branching(code::STX, inner.payload),
        ];
        Ok(found.and(self.enter_tunnel(&inner, lines)))
    }

    pub(super) fn test_vxlan(&mut self, network: Option<u32>) -> GenerateResult<Condition> {
        if let Some(network) = network {
            self.check_maximum("VXLAN VNI", network, NETWORK_ID_MAX)?;
        }
        let flags =
            |g: &mut Self, base: HeaderBase| g.test_equal(base.byte(UDP_HEADER_LENGTH), 0x08);
        let found = self.test_tunnel(VXLAN_PORT, network, &flags)?;
        let start = self.base_offset(HeaderBase::Network)?.constant + UDP_HEADER_LENGTH;
        let inner = self.allocate_inner_words()?;
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

    /// Returns the condition that the frame is in a UDP tunnel with the destination port `port`
    /// and, if `network` is given, this network identifier. `mark` builds the condition that the
    /// header of the tunnel protocol must meet.
    ///
    /// The generated code also leaves an offset in A for every frame that matches: the offset of
    /// the UDP header, less the constant part of the offset of the network header.
    fn test_tunnel(
        &mut self,
        port: u16,
        network: Option<u32>,
        mark: &dyn Fn(&mut Self, HeaderBase) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        let q = Qualifiers {
            protocol: None,
            direction: Some(DirQualifier::Target),
            kind: Some(TypeQualifier::Port),
        };
        let ports = PortRange(port, port);
        let over4 =
            self.test_tunnel_in_ip_version(HeaderBase::TransportIp4, q, ports, network, mark)?;
        let place = self.base_offset(HeaderBase::TransportIp4)?;
        let mut to_udp = self.load_header_length_to_x(place);
        to_udp.push(TXA);
        let over4 = over4.and(condition_from_code(to_udp));
        let over6 =
            self.test_tunnel_in_ip_version(HeaderBase::TransportIp6, q, ports, network, mark)?;
        let (mut to_udp, _, moves) = self.load_base_offset(HeaderBase::TransportIp6)?;
        to_udp.push(load_a_constant(40));
        if moves {
            to_udp.push(alu_x(code::ADD));
        }
        Ok(over4.or(over6.and(condition_from_code(to_udp))))
    }

    fn test_tunnel_in_ip_version(
        &mut self,
        base: HeaderBase,
        q: Qualifiers,
        ports: PortRange,
        network: Option<u32>,
        mark: &dyn Fn(&mut Self, HeaderBase) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        let carried = self.test_ports_in_ip_version(base, q, ports, Some(Protocol::Udp))?;
        let marked = carried.and(mark(self, base)?);
        let Some(network) = network else { return Ok(marked) };
        Ok(marked.and(self.test_masked_equal(
            base.word(UDP_HEADER_LENGTH + 4),
            network << 8,
            0xffff_ff00,
        )?))
    }

    fn allocate_inner_words(&mut self) -> GenerateResult<InnerOffsetWords> {
        Ok(InnerOffsetWords {
            header: self.allocate_word()?,
            protocol: self.allocate_word()?,
            payload: self.allocate_word()?,
        })
    }

    /// Makes the inner frame of a tunnel the current frame, to which later tests apply. Returns a
    /// condition that always holds and that executes `lines`, which compute the offsets of the
    /// inner frame from A.
    fn enter_tunnel(&mut self, inner: &InnerOffsetWords, lines: Code) -> Condition {
        let offset_of = |word| Offset { constant: 0, word: Some(word) };
        self.set_current_header(LinkType::EN10MB, offset_of(inner.header));
        self.protocol = Some(offset_of(inner.protocol));
        self.payload = Some(offset_of(inner.payload));
        self.nl = 0;
        self.is_in_tunnel = true;
        condition_from_code(lines)
    }

    /// Returns the condition that the frame inside the tunnel begins with a link header. Without a
    /// link header, it begins with its payload.
    pub(super) fn test_inner_header(&mut self) -> GenerateResult<Condition> {
        let (Some(header), Some(payload)) =
            (self.header.word, self.payload.and_then(|place| place.word))
        else {
            return Err(self.no_offset_error());
        };
        Ok(compare_x(vec![load_a_from_word(header), load_x_from_word(payload)], code::JEQ).not())
    }
}

fn condition_from_code(lines: Code) -> Condition {
    Condition::Test(ConditionTest { lines, compare: None })
}
