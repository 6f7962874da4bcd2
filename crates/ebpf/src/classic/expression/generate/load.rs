//! Generator for loads from headers and for tests of the loaded values.

use super::super::condition::{
    Condition, TAX, alu_k, alu_x, compare_k, load_x_from_word, non_branching,
};
use super::super::error::ErrorKind;
use super::super::error::ExpressionError;
use super::{Code, GenerateResult, Generator, HEADER_OFFSET_WORD, Offset, PAYLOAD_OFFSET_WORD};
use crate::classic::insn::code;

/// The position in the frame from which an offset is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderBase {
    /// The start of the frame.
    Packet,
    /// The start of the current link header.
    Header,
    /// The start of the link payload: the LLC header, if there is one.
    Llc,
    /// The start of the field that contains the number of the encapsulated protocol.
    Protocol,
    /// The start of the network header after LLC and SNAP headers or, on link types without LLC,
    /// after the link header.
    Network,
    /// The start of the network header after an LLC header without a SNAP header.
    NetworkNoSnap,
    /// The start of the IPv4 payload.
    TransportIp4,
    /// The start of the IPv6 payload.
    TransportIp6,
}

/// The number of bytes that a load reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadSize {
    Byte,
    Half,
    Word,
}

impl LoadSize {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Byte => code::B,
            Self::Half => code::H,
            Self::Word => code::W,
        }
    }
}

/// A one-, two- or four-byte number in network byte order, `offset` bytes after `base`.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderField {
    pub(super) base: HeaderBase,
    pub(super) offset: u32,
    pub(super) size: LoadSize,
}

impl HeaderBase {
    pub(super) const fn byte(self, offset: u32) -> HeaderField {
        HeaderField { base: self, offset, size: LoadSize::Byte }
    }

    pub(super) const fn half(self, offset: u32) -> HeaderField {
        HeaderField { base: self, offset, size: LoadSize::Half }
    }

    pub(super) const fn word(self, offset: u32) -> HeaderField {
        HeaderField { base: self, offset, size: LoadSize::Word }
    }
}

impl Generator<'_> {
    /// Returns code that loads a header field into A.
    pub(super) fn load_field(&mut self, field: HeaderField) -> GenerateResult<Code> {
        let HeaderField { base, offset, size } = field;
        let (mut lines, constant, indirect) = self.load_base_offset(base)?;
        let mode = if indirect { code::IND } else { code::ABS };
        lines.push(non_branching(code::LD | mode | size.code(), constant.wrapping_add(offset)));
        Ok(lines)
    }

    /// Returns code that loads the varying part of the offset of `base` into X. Also returns the
    /// constant part of the offset, and true if there is a varying part.
    pub(super) fn load_base_offset(
        &mut self,
        base: HeaderBase,
    ) -> GenerateResult<(Code, u32, bool)> {
        let place = self.base_offset(base)?;
        if base == HeaderBase::TransportIp4 {
            return Ok((self.load_header_length_to_x(place), place.constant, true));
        }
        Ok(match self.use_offset_word(place) {
            Some(word) => (vec![load_x_from_word(word)], place.constant, true),
            None => (Vec::new(), place.constant, false),
        })
    }

    /// Returns the offset of `base`. For [`HeaderBase::TransportIp4`], returns the offset of the
    /// IPv4 header instead.
    pub(super) fn base_offset(&self, base: HeaderBase) -> GenerateResult<Offset> {
        let payload = || self.payload.ok_or_else(|| self.no_offset_error());
        Ok(match base {
            HeaderBase::Packet => Offset { constant: 0, word: None },
            HeaderBase::Header => self.header,
            HeaderBase::Llc => payload()?,
            HeaderBase::Protocol => self.protocol.ok_or_else(|| self.no_offset_error())?,
            HeaderBase::Network | HeaderBase::TransportIp4 => payload()?.plus(self.nl),
            HeaderBase::NetworkNoSnap => payload()?.plus(self.network_offset_without_snap),
            HeaderBase::TransportIp6 => payload()?.plus(self.nl).plus(40),
        })
    }

    /// Returns code that sets X to the length of the IPv4 header whose offset is `place`, plus the
    /// varying part of this offset.
    pub(super) fn load_header_length_to_x(&mut self, place: Offset) -> Code {
        let Some(word) = self.use_offset_word(place) else {
            return vec![non_branching(code::LDX | code::MSH | code::B, place.constant)];
        };
        vec![
            load_x_from_word(word),
            non_branching(code::LD | code::IND | code::B, place.constant),
            alu_k(code::AND, 0x0f),
            alu_k(code::LSH, 2),
            alu_x(code::ADD),
            TAX,
        ]
    }

    /// Returns the number of the scratch word that contains the varying part of an offset, and
    /// records that the program must set this word. Returns `None` if the offset is constant.
    pub(super) fn use_offset_word(&mut self, place: Offset) -> Option<u32> {
        self.header_used |= place.word == Some(HEADER_OFFSET_WORD);
        self.payload_used |= place.word == Some(PAYLOAD_OFFSET_WORD);
        place.word
    }

    pub(super) fn no_offset_error(&self) -> ExpressionError {
        let what = format!("the offsets of the protocols in frames of {} are unknown", self.link);
        self.error(ErrorKind::Unsupported, what)
    }

    /// Returns the condition that the comparison `op` holds between a field and the constant `k`.
    pub(super) fn test_field(
        &mut self,
        field: HeaderField,
        op: u16,
        k: u32,
    ) -> GenerateResult<Condition> {
        Ok(compare_k(self.load_field(field)?, op, k))
    }

    /// Returns the condition that a field equals the constant `k`.
    pub(super) fn test_equal(&mut self, field: HeaderField, k: u32) -> GenerateResult<Condition> {
        self.test_field(field, code::JEQ, k)
    }

    /// Returns the condition that a field, masked with `mask`, equals the constant `k`.
    pub(super) fn test_masked_equal(
        &mut self,
        field: HeaderField,
        k: u32,
        mask: u32,
    ) -> GenerateResult<Condition> {
        match mask {
            0 if k == 0 => Ok(Condition::Always),
            0 => Ok(Condition::Never),
            _ => self.test_masked(field, mask, (code::JEQ, k)),
        }
    }

    /// Returns the condition that the comparison `op` holds between a field masked with `mask` and
    /// the constant `k`.
    pub(super) fn test_masked(
        &mut self,
        field: HeaderField,
        mask: u32,
        (op, k): (u16, u32),
    ) -> GenerateResult<Condition> {
        let mut lines = self.load_field(field)?;
        if mask != u32::MAX {
            lines.push(alu_k(code::AND, mask));
        }
        Ok(compare_k(lines, op, k))
    }

    /// Returns the condition that a field has at least one of `bits` set.
    pub(super) fn test_any_bit(
        &mut self,
        field: HeaderField,
        bits: u32,
    ) -> GenerateResult<Condition> {
        self.test_field(field, code::JSET, bits)
    }

    /// Returns the condition that the frame contains these bytes, `offset` bytes after `base`. The
    /// last bytes are compared first, as in libpcap.
    pub(super) fn test_bytes(
        &mut self,
        base: HeaderBase,
        offset: u32,
        bytes: &[u8],
    ) -> GenerateResult<Condition> {
        let mut condition = Condition::Always;
        let mut rest = bytes;
        while let Some((before, last)) = rest.split_last_chunk::<4>() {
            let at = offset + before.len() as u32;
            let test = self.test_equal(base.word(at), u32::from_be_bytes(*last))?;
            condition = condition.and(test);
            rest = before;
        }
        if let Some((before, last)) = rest.split_last_chunk::<2>() {
            let at = offset + before.len() as u32;
            let k = u32::from(u16::from_be_bytes(*last));
            condition = condition.and(self.test_equal(base.half(at), k)?);
            rest = before;
        }
        if let [byte] = rest {
            condition = condition.and(self.test_equal(base.byte(offset), u32::from(*byte))?);
        }
        Ok(condition)
    }
}
