//! Generator for `protochain`, which searches the chain of headers for a protocol in a loop.
//!
//! In the loop, A contains the protocol number of the next header, and X the offset of that header.
//! As in libpcap, after an authentication header X is the length of this header alone, without the
//! offset at which it begins. The protocol number in the authentication header is still compared,
//! but later headers are not found.

use super::super::ast::Protocol;
use super::super::condition::{
    Condition, PseudoInsn, TAX, TXA, alu_k, alu_x, compare_k, load_a_from_word, non_branching,
    store_a,
};
use super::link_protocol::{ETHERTYPE_IP, ETHERTYPE_IPV6};
use super::load::HeaderBase;
use super::{Code, GenerateResult, Generator};
use crate::classic::insn::code;

/// Protocol number of the hop-by-hop options header.
const HOP_BY_HOP_OPTIONS_HEADER: u32 = 0;
/// Protocol number of the routing header.
const ROUTING_HEADER: u32 = 43;
/// Protocol number of the fragment header.
const FRAGMENT_HEADER: u32 = 44;
/// Protocol number of the authentication header.
const AUTHENTICATION_HEADER: u32 = 51;
/// Protocol number that ends the chain of headers.
const NO_NEXT_HEADER: u32 = 59;
/// Protocol number of the destination options header.
const DESTINATION_OPTIONS_HEADER: u32 = 60;

/// Scratch word for the protocol number of the next header.
const PROTOCOL_NUMBER_WORD: u32 = 0;

impl Generator<'_> {
    pub(super) fn test_protochain(
        &mut self,
        within: Option<Protocol>,
        number: u32,
    ) -> GenerateResult<Condition> {
        let ip6 = match within {
            None => {
                let ip = self.test_protochain(Some(Protocol::Ip), number)?;
                return Ok(ip.or(self.test_protochain(Some(Protocol::Ip6), number)?));
            }
            Some(Protocol::Ip) => false,
            Some(Protocol::Ip6) => true,
            Some(other) => return Err(self.invalid_qualifier_error(other.keyword(), "protochain")),
        };
        self.check_maximum("protocol number", number, 0xff)?;
        let place = self.base_offset(HeaderBase::Network)?;
        if place.word.is_some() {
            let what = "`protochain` is not supported with variable length headers";
            return Err(self.invalid_error(what));
        }
        let carried = self.test_link_protocol(if ip6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IP })?;
        let mut lines = self.load_field(HeaderBase::Network.byte(if ip6 { 6 } else { 9 }))?;
        if ip6 {
            lines.push(non_branching(code::LDX | code::IMM, 40));
        } else {
            lines.extend(self.load_header_length_to_x(place));
        }
        self.emit_chain_loop(&mut lines, place.constant, ip6, number);
        Ok(carried.and(compare_k(lines, code::JEQ, number)))
    }

    fn emit_chain_loop(&mut self, lines: &mut Code, network: u32, ip6: bool, number: u32) {
        let (again, end) = (self.new_label(), self.new_label());
        lines.push(PseudoInsn::Bind(again));
        self.jump_if(lines, code::JEQ, number, end);
        self.jump_if(lines, code::JEQ, NO_NEXT_HEADER, end);
        if ip6 {
            let (step, other) = (self.new_label(), self.new_label());
            for option in [
                HOP_BY_HOP_OPTIONS_HEADER,
                DESTINATION_OPTIONS_HEADER,
                ROUTING_HEADER,
                FRAGMENT_HEADER,
            ] {
                self.jump_if(lines, code::JEQ, option, step);
            }
            lines.extend([PseudoInsn::Jump(other), PseudoInsn::Bind(step)]);
            lines.extend([
                non_branching(code::LD | code::IND | code::B, network),
                store_a(PROTOCOL_NUMBER_WORD),
                non_branching(code::LD | code::IND | code::B, network + 1),
                alu_k(code::ADD, 1),
                alu_k(code::MUL, 8),
                alu_x(code::ADD),
                TAX,
                load_a_from_word(PROTOCOL_NUMBER_WORD),
                PseudoInsn::Jump(again),
                PseudoInsn::Bind(other),
            ]);
        }
        let authenticated = self.new_label();
        self.jump_if(lines, code::JEQ, AUTHENTICATION_HEADER, authenticated);
        lines.extend([
            PseudoInsn::Jump(end),
            PseudoInsn::Bind(authenticated),
            non_branching(code::LD | code::IND | code::B, network),
            store_a(PROTOCOL_NUMBER_WORD),
            TXA,
            alu_k(code::ADD, 1),
            TAX,
            non_branching(code::LD | code::IND | code::B, network),
            alu_k(code::ADD, 2),
            alu_k(code::MUL, 4),
            TAX,
            load_a_from_word(PROTOCOL_NUMBER_WORD),
            PseudoInsn::Jump(again),
            PseudoInsn::Bind(end),
        ]);
    }
}
