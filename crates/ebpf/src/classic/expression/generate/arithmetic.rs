//! Generator for relations between values, such as `ip[6:2] & 0x1fff = 0`, `len > 100` or
//! `tcp[tcpflags] & tcp-syn != 0`.
//!
//! Values are computed in A, pending values are kept in the lowest scratch words, and constant
//! operations are folded. A value in a protocol's header is loaded only after a test that the frame
//! carries the protocol. As in libpcap, this test is omitted for the right operand of an arithmetic
//! operator.

use super::super::ast::{Arithmetic, Protocol};
use super::super::condition::{
    Condition, TAX, alu_k, alu_x, compare_k, compare_x, load_a_constant, load_a_from_word,
    load_x_from_word, non_branching, store_a,
};
use super::super::error::ExpressionError;
use super::load::{HeaderBase, HeaderField, LoadSize};
use super::protocol::ip_protocol_number;
use super::{Code, GenerateResult, Generator, comparison_operator};
use crate::classic::insn::code;
use crate::classic::link::LinkType as L;
use crate::insn::{Alu, Cond};

/// Maximum offset of a frame byte in a load instruction. The kernel treats larger offsets as
/// ancillary loads.
const OFFSET_MAX: u32 = 0x7fff_ffff;

/// Code that computes a value in A, and the condition under which the frame contains the header
/// from which the value is computed.
struct LoweredValue {
    lines: Code,
    given: Condition,
}

impl Generator<'_> {
    pub(super) fn lower_relation(
        &mut self,
        relation: Cond,
        left: &Arithmetic,
        right: &Arithmetic,
    ) -> GenerateResult<Condition> {
        let (a, b) = (self.fold_constant(left)?, self.fold_constant(right)?);
        let (op, wanted) = comparison_operator(relation);
        let (given, test) = match (a, b) {
            (Some(a), Some(b)) => {
                let holds = relation.holds(a.into(), b.into());
                return Ok(if holds { Condition::Always } else { Condition::Never });
            }
            (None, Some(b)) => {
                let value = self.lower_value(left, 0)?;
                (value.given, compare_k(value.lines, op, b))
            }
            (Some(a), None) => {
                let value = self.lower_value(right, 0)?;
                let (op, wanted) = comparison_operator(swap_relation_sides(relation));
                return Ok(value.given.and(compare_k(value.lines, op, a).negate_unless(wanted)));
            }
            (None, None) => {
                let right = self.lower_value(right, 0)?;
                let left = self.lower_value(left, 1)?;
                let mut lines = right.lines;
                lines.push(store_a(0));
                lines.extend(left.lines);
                lines.push(load_x_from_word(0));
                (right.given.and(left.given), compare_x(lines, op))
            }
        };
        Ok(given.and(test.negate_unless(wanted)))
    }

    /// Returns the value of an arithmetic expression if it is constant; `None` if it depends on the
    /// frame. Fails if a constant divisor is 0 or a constant shift exceeds 31 bits.
    fn fold_constant(&self, value: &Arithmetic) -> GenerateResult<Option<u32>> {
        match value {
            Arithmetic::Number(number) => Ok(Some(*number)),
            Arithmetic::Length | Arithmetic::Index { .. } => Ok(None),
            Arithmetic::Negate(inner) => Ok(self.fold_constant(inner)?.map(u32::wrapping_neg)),
            Arithmetic::Binary { op, left, right, span } => {
                let refuse =
                    |what| ExpressionError { span: span.clone(), ..self.invalid_error(what) };
                let (left, right) = (self.fold_constant(left)?, self.fold_constant(right)?);
                match (op, right) {
                    (Alu::Div, Some(0)) => return Err(refuse("division by zero")),
                    (Alu::Mod, Some(0)) => return Err(refuse("modulus by zero")),
                    (Alu::Shl | Alu::Shr, Some(32..)) => {
                        return Err(refuse("shift by more than 31 bits"));
                    }
                    _ => {}
                }
                let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
                Ok(op.apply(left, right))
            }
        }
    }

    /// Returns code that computes a value in A, and the condition under which the frame contains
    /// the value. The code stores intermediate results in the scratch words from number `free` on.
    fn lower_value(&mut self, value: &Arithmetic, free: u32) -> GenerateResult<LoweredValue> {
        if let Some(number) = self.fold_constant(value)? {
            return Ok(LoweredValue {
                lines: vec![load_a_constant(number)],
                given: Condition::Always,
            });
        }
        if free >= self.lowest_offset_word {
            return Err(
                self.invalid_error("the expression is nested too deeply: no scratch word is left")
            );
        }
        match value {
            Arithmetic::Number(number) => {
                Ok(LoweredValue { lines: vec![load_a_constant(*number)], given: Condition::Always })
            }
            Arithmetic::Length => {
                let lines = vec![non_branching(code::LD | code::LEN, 0)];
                Ok(LoweredValue { lines, given: Condition::Always })
            }
            Arithmetic::Negate(inner) => {
                let mut value = self.lower_value(inner, free)?;
                value.lines.push(non_branching(code::ALU | code::NEG, 0));
                Ok(value)
            }
            Arithmetic::Index { protocol, offset, size, span } => {
                let outer = std::mem::replace(&mut self.span, span.clone());
                let value = self.lower_header_load(*protocol, offset, *size, free)?;
                self.span = outer;
                Ok(value)
            }
            Arithmetic::Binary { op, left, right, .. } => {
                if let Some(k) = self.fold_constant(right)? {
                    let mut value = self.lower_value(left, free)?;
                    value.lines.push(alu_k(*op as u16, k));
                    return Ok(value);
                }
                let right = self.lower_value(right, free)?;
                let left = self.lower_value(left, free + 1)?;
                let mut lines = right.lines;
                lines.push(store_a(free));
                lines.extend(left.lines);
                lines.push(load_x_from_word(free));
                lines.push(alu_x(*op as u16));
                Ok(LoweredValue { lines, given: left.given })
            }
        }
    }

    /// Returns code that loads `size` bytes at `offset` in the header of `protocol`, and the
    /// condition under which the frame contains this header.
    fn lower_header_load(
        &mut self,
        protocol: Protocol,
        offset: &Arithmetic,
        size: u32,
        free: u32,
    ) -> GenerateResult<LoweredValue> {
        let size = match size {
            1 => LoadSize::Byte,
            2 => LoadSize::Half,
            4 => LoadSize::Word,
            _ => return Err(self.invalid_error(format!("data size must be 1, 2 or 4, not {size}"))),
        };
        let (base, given) = self.locate_header(protocol)?;
        let place = self.base_offset(base)?;
        let constant = self.fold_constant(offset)?;
        if let Some(k) = constant
            && let Some(at) = place.constant.checked_add(k)
            && at <= OFFSET_MAX
        {
            return Ok(LoweredValue {
                lines: self.load_field(HeaderField { base, offset: k, size })?,
                given,
            });
        }
        let mut value = self.lower_value(offset, free)?;
        if base == HeaderBase::TransportIp4 && place.word.is_some() {
            value.lines.push(store_a(free));
            value.lines.extend(self.load_header_length_to_x(place));
            value.lines.push(load_a_from_word(free));
            value.lines.push(alu_x(code::ADD));
        } else {
            let (to_x, _, moves) = self.load_base_offset(base)?;
            value.lines.extend(to_x);
            if moves {
                value.lines.push(alu_x(code::ADD));
            }
        }
        value.lines.push(TAX);
        value.lines.push(non_branching(code::LD | code::IND | size.code(), place.constant));
        Ok(LoweredValue { lines: value.lines, given: value.given.and(given) })
    }

    /// Returns the position from which offsets in the header of `protocol` are measured, and the
    /// condition under which the frame contains this header.
    fn locate_header(&mut self, protocol: Protocol) -> GenerateResult<(HeaderBase, Condition)> {
        match protocol {
            Protocol::Radio => match self.link {
                L::IEEE802_11_RADIO_AVS | L::IEEE802_11_RADIO | L::PRISM_HEADER => {
                    Ok((HeaderBase::Packet, Condition::Always))
                }
                _ => Err(self.invalid_error("these frames have no radio information")),
            },
            Protocol::Link => Ok((HeaderBase::Header, Condition::Always)),
            Protocol::Ip
            | Protocol::Ip6
            | Protocol::Arp
            | Protocol::Rarp
            | Protocol::Atalk
            | Protocol::Sca
            | Protocol::Lat
            | Protocol::Moprc
            | Protocol::Mopdl => Ok((HeaderBase::Network, self.test_protocol(protocol)?)),
            Protocol::Sctp
            | Protocol::Tcp
            | Protocol::Udp
            | Protocol::Icmp
            | Protocol::Igmp
            | Protocol::Igrp
            | Protocol::Pim
            | Protocol::Vrrp
            | Protocol::Carp => {
                let ip = self.test_protocol(Protocol::Ip)?;
                let carries = self.test_ip_protocol(ip_protocol_number(protocol).unwrap_or(0))?;
                let given = ip.and(carries).and(self.test_first_fragment()?);
                Ok((HeaderBase::TransportIp4, given))
            }
            Protocol::Icmp6 => {
                let ip6 = self.test_protocol(Protocol::Ip6)?;
                Ok((HeaderBase::TransportIp6, ip6.and(self.test_ip6_next_header(58)?)))
            }
            other => {
                let what = format!("`{}` does not support the index operation", other.keyword());
                Err(self.invalid_error(what))
            }
        }
    }
}

/// Returns the relation that holds for swapped operands: `<` for `>`, `=` for `=`, and so on.
fn swap_relation_sides(relation: Cond) -> Cond {
    match relation {
        Cond::Gt => Cond::Lt,
        Cond::Lt => Cond::Gt,
        Cond::Ge => Cond::Le,
        Cond::Le => Cond::Ge,
        same => same,
    }
}
