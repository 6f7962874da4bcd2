//! Loads from headers, and tests of loaded values.

use super::super::condition::{Condition, TAX, alu_k, alu_x, compare_k, line, memory_to_x};
use super::{Code, ExpressionError, Generated, Generator, HEADER_WORD, Offset, PAYLOAD_WORD};
use crate::classic::insn::code;

/// The origin of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderBase {
    /// The start of the frame.
    Packet,
    /// The current link header.
    Header,
    /// The start of the link payload: the LLC header, if there is one.
    Llc,
    /// The protocol number field.
    Protocol,
    /// The network header.
    Network,
    /// The network header behind LLC without SNAP.
    NetworkNoSnap,
    /// The payload of the IPv4 header.
    TransportIp4,
    /// The payload of the IPv6 header.
    TransportIp6,
}

/// The size of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadSize {
    Byte,
    Half,
    Keyword,
}

impl LoadSize {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Byte => code::B,
            Self::Half => code::H,
            Self::Keyword => code::W,
        }
    }
}

impl Generator<'_> {
    /// Loads from `offset` behind `base` into A.
    pub(super) fn load(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
    ) -> Generated<Code> {
        let (mut lines, constant, indirect) = self.base(base)?;
        let mode = if indirect { code::IND } else { code::ABS };
        lines.push(line(code::LD | mode | size.code(), constant.wrapping_add(offset)));
        Ok(lines)
    }

    /// Loads the variable part of `base` into X; returns the constant part, and whether X is used.
    pub(super) fn base(&mut self, base: HeaderBase) -> Generated<(Code, u32, bool)> {
        let place = self.place(base)?;
        if base == HeaderBase::TransportIp4 {
            return Ok((self.header_length_to_x(place), place.constant, true));
        }
        Ok(match self.use_word(place) {
            Some(word) => (vec![memory_to_x(word)], place.constant, true),
            None => (Vec::new(), place.constant, false),
        })
    }

    /// Returns the offset of `base`; for [`HeaderBase::TransportIp4`] that of the IPv4 header.
    pub(super) fn place(&self, base: HeaderBase) -> Generated<Offset> {
        let payload = || self.payload.ok_or_else(|| self.unplaced());
        Ok(match base {
            HeaderBase::Packet => Offset { constant: 0, word: None },
            HeaderBase::Header => self.header,
            HeaderBase::Llc => payload()?,
            HeaderBase::Protocol => self.protocol.ok_or_else(|| self.unplaced())?,
            HeaderBase::Network | HeaderBase::TransportIp4 => payload()?.plus(self.nl),
            HeaderBase::NetworkNoSnap => payload()?.plus(self.nl_nosnap),
            HeaderBase::TransportIp6 => payload()?.plus(self.nl).plus(40),
        })
    }

    /// Loads the IPv4 header's length into X, plus the variable part of `place`.
    pub(super) fn header_length_to_x(&mut self, place: Offset) -> Code {
        let Some(word) = self.use_word(place) else {
            return vec![line(code::LDX | code::MSH | code::B, place.constant)];
        };
        vec![
            memory_to_x(word),
            line(code::LD | code::IND | code::B, place.constant),
            alu_k(code::AND, 0x0f),
            alu_k(code::LSH, 2),
            alu_x(code::ADD),
            TAX,
        ]
    }

    /// Returns the scratch word of an offset, and marks it as needed.
    pub(super) fn use_word(&mut self, place: Offset) -> Option<u32> {
        self.header_used |= place.word == Some(HEADER_WORD);
        self.payload_used |= place.word == Some(PAYLOAD_WORD);
        place.word
    }

    pub(super) fn unplaced(&self) -> ExpressionError {
        let what = format!("where the protocols stand in frames of {} is not known", self.link);
        self.error(super::ErrorKind::Unknown, what)
    }

    /// Compares a loaded value with a constant.
    pub(super) fn test(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
        op: u16,
        k: u32,
    ) -> Generated<Condition> {
        Ok(compare_k(self.load(base, offset, size)?, op, k))
    }

    /// Tests a loaded value for equality.
    pub(super) fn equal(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
        k: u32,
    ) -> Generated<Condition> {
        self.test(base, offset, size, code::JEQ, k)
    }

    /// Tests the bits of `mask` for equality.
    pub(super) fn masked(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
        k: u32,
        mask: u32,
    ) -> Generated<Condition> {
        match mask {
            0 if k == 0 => Ok(Condition::Always),
            0 => Ok(Condition::Never),
            _ => self.masked_test(base, offset, size, mask, (code::JEQ, k)),
        }
    }

    /// Compares the bits of `mask`.
    pub(super) fn masked_test(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
        mask: u32,
        (op, k): (u16, u32),
    ) -> Generated<Condition> {
        let mut lines = self.load(base, offset, size)?;
        if mask != u32::MAX {
            lines.push(alu_k(code::AND, mask));
        }
        Ok(compare_k(lines, op, k))
    }

    /// Tests for any set bit of `bits`.
    pub(super) fn any_bit(
        &mut self,
        base: HeaderBase,
        offset: u32,
        size: LoadSize,
        bits: u32,
    ) -> Generated<Condition> {
        self.test(base, offset, size, code::JSET, bits)
    }

    /// Tests bytes for equality, from the end, as libpcap does.
    pub(super) fn bytes(
        &mut self,
        base: HeaderBase,
        offset: u32,
        bytes: &[u8],
    ) -> Generated<Condition> {
        let mut condition = Condition::Always;
        let mut rest = bytes;
        while let Some((before, last)) = rest.split_last_chunk::<4>() {
            let at = offset + before.len() as u32;
            let test = self.equal(base, at, LoadSize::Keyword, u32::from_be_bytes(*last))?;
            condition = condition.and(test);
            rest = before;
        }
        if let Some((before, last)) = rest.split_last_chunk::<2>() {
            let at = offset + before.len() as u32;
            let k = u32::from(u16::from_be_bytes(*last));
            condition = condition.and(self.equal(base, at, LoadSize::Half, k)?);
            rest = before;
        }
        if let [byte] = rest {
            condition =
                condition.and(self.equal(base, offset, LoadSize::Byte, u32::from(*byte))?);
        }
        Ok(condition)
    }
}
