//! Turns places in headers into loads, and loads into tests.

use super::super::condition::{Condition, TAX, alu_k, alu_x, compare_k, line, memory_to_x};
use super::{ExpressionError, Generator, HEADER_WORD, Lines, Offset, PAYLOAD_WORD, Result};
use crate::classic::insn::code;

/// What a place is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The beginning of the frame.
    Packet,
    /// The current link header.
    Header,
    /// The link header around the current one.
    PreviousHeader,
    /// The beginning of the link payload: the LLC header, where there is one.
    Llc,
    /// The protocol number.
    Protocol,
    /// The network header.
    Network,
    /// The network header behind LLC without SNAP.
    NetworkNoSnap,
    /// What the IPv4 header carries.
    TransportIp4,
    /// What the IPv6 header carries.
    TransportIp6,
}

/// How much is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Byte,
    Half,
    Word,
}

impl Size {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Byte => code::B,
            Self::Half => code::H,
            Self::Word => code::W,
        }
    }
}

impl Generator<'_> {
    /// Loads what stands at `offset` from `base` into A.
    pub(super) fn load(&mut self, base: Base, offset: u32, size: Size) -> Result<Lines> {
        let (mut lines, constant, indirect) = self.base(base)?;
        let mode = if indirect { code::IND } else { code::ABS };
        lines.push(line(code::LD | mode | size.code(), constant.wrapping_add(offset)));
        Ok(lines)
    }

    /// Puts the moving part of `base` into X; answers the constant part, and whether X counts.
    pub(super) fn base(&mut self, base: Base) -> Result<(Lines, u32, bool)> {
        let place = self.place(base)?;
        if base == Base::TransportIp4 {
            return Ok((self.header_length_to_x(place), place.constant, true));
        }
        Ok(match self.use_word(place) {
            Some(word) => (vec![memory_to_x(word)], place.constant, true),
            None => (Vec::new(), place.constant, false),
        })
    }

    /// Where `base` is; of [`Base::TransportIp4`], where the IPv4 header begins.
    pub(super) fn place(&self, base: Base) -> Result<Offset> {
        let payload = || self.payload.ok_or_else(|| self.unplaced());
        Ok(match base {
            Base::Packet => Offset { constant: 0, word: None },
            Base::Header => self.header,
            Base::PreviousHeader => self.previous.map_or(self.header, |(_, header)| header),
            Base::Llc => payload()?,
            Base::Protocol => self.protocol.ok_or_else(|| self.unplaced())?,
            Base::Network | Base::TransportIp4 => payload()?.plus(self.nl),
            Base::NetworkNoSnap => payload()?.plus(self.nl_nosnap),
            Base::TransportIp6 => payload()?.plus(self.nl).plus(40),
        })
    }

    /// X becomes the length of the IPv4 header at `place`, plus what moves the place.
    pub(super) fn header_length_to_x(&mut self, place: Offset) -> Lines {
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

    /// The scratch word of a place; notes that the program must compute it.
    pub(super) fn use_word(&mut self, place: Offset) -> Option<u32> {
        self.header_used |= place.word == Some(HEADER_WORD);
        self.payload_used |= place.word == Some(PAYLOAD_WORD);
        place.word
    }

    pub(super) fn unplaced(&self) -> ExpressionError {
        let what = format!("where the protocols stand in frames of {} is not known", self.link);
        self.error(super::ErrorKind::Unknown, what)
    }

    /// Tests what stands there against a constant.
    pub(super) fn test(
        &mut self,
        base: Base,
        offset: u32,
        size: Size,
        op: u16,
        k: u32,
    ) -> Result<Condition> {
        Ok(compare_k(self.load(base, offset, size)?, op, k))
    }

    /// Equal.
    pub(super) fn equal(
        &mut self,
        base: Base,
        offset: u32,
        size: Size,
        k: u32,
    ) -> Result<Condition> {
        self.test(base, offset, size, code::JEQ, k)
    }

    /// Equal in the bits of `mask`.
    pub(super) fn masked(
        &mut self,
        base: Base,
        offset: u32,
        size: Size,
        k: u32,
        mask: u32,
    ) -> Result<Condition> {
        match mask {
            0 if k == 0 => Ok(Condition::Always),
            0 => Ok(Condition::Never),
            _ => self.masked_test(base, offset, size, mask, (code::JEQ, k)),
        }
    }

    /// A comparison of the bits of `mask`.
    pub(super) fn masked_test(
        &mut self,
        base: Base,
        offset: u32,
        size: Size,
        mask: u32,
        (op, k): (u16, u32),
    ) -> Result<Condition> {
        let mut lines = self.load(base, offset, size)?;
        if mask != u32::MAX {
            lines.push(alu_k(code::AND, mask));
        }
        Ok(compare_k(lines, op, k))
    }

    /// Any bit of `bits` is set.
    pub(super) fn any_bit(
        &mut self,
        base: Base,
        offset: u32,
        size: Size,
        bits: u32,
    ) -> Result<Condition> {
        self.test(base, offset, size, code::JSET, bits)
    }

    /// Equal bytes; asked from the end, as libpcap does.
    pub(super) fn bytes(&mut self, base: Base, offset: u32, bytes: &[u8]) -> Result<Condition> {
        let mut condition = Condition::Always;
        let mut rest = bytes;
        while let Some((before, last)) = rest.split_last_chunk::<4>() {
            let at = offset + before.len() as u32;
            let test = self.equal(base, at, Size::Word, u32::from_be_bytes(*last))?;
            condition = condition.and(test);
            rest = before;
        }
        if let Some((before, last)) = rest.split_last_chunk::<2>() {
            let at = offset + before.len() as u32;
            let k = u32::from(u16::from_be_bytes(*last));
            condition = condition.and(self.equal(base, at, Size::Half, k)?);
            rest = before;
        }
        if let [byte] = rest {
            condition = condition.and(self.equal(base, offset, Size::Byte, u32::from(*byte))?);
        }
        Ok(condition)
    }
}
