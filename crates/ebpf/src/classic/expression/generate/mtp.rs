//! Signalling system 7: signal units of MTP2 and fields of MTP3.
//!
//! Fields of MTP3 have their lowest byte first; their bits are compared where they stand. An order
//! such as `dpc > 5` compares these swapped bits, as in libpcap.

use super::super::ast::{Mtp2, Mtp3, Mtp3Field, Relation};
use super::super::condition::Condition;
use super::load::{HeaderBase, LoadSize};
use super::{Generated, Generator, comparison};
use crate::classic::insn::code;
use crate::classic::link::LinkType;

const POINT_CODE_MAX: u32 = 0x3fff;
const SELECTION_MAX: u32 = 0x0f;

impl Generator<'_> {
    pub(super) fn mtp2(&mut self, unit: Mtp2) -> Generated<Condition> {
        let base = self.mtp2_header("fisu")?;
        let low = (base + 2, LoadSize::Byte, 0x3f, 2);
        let high = (base + 4, LoadSize::Half, 0xff80, 0x0100);
        let (at, size, mask, most) = match unit {
            Mtp2::Fisu | Mtp2::Lssu | Mtp2::Msu => low,
            Mtp2::HighFisu | Mtp2::HighLssu | Mtp2::HighMsu => high,
        };
        let length =
            |g: &mut Self, op, k| g.masked_test(HeaderBase::Packet, at, size, mask, (op, k));
        match unit {
            Mtp2::Fisu | Mtp2::HighFisu => length(self, code::JEQ, 0),
            Mtp2::Msu | Mtp2::HighMsu => length(self, code::JGT, most),
            Mtp2::Lssu | Mtp2::HighLssu => {
                let some = length(self, code::JGT, 0)?;
                Ok(some.and(length(self, code::JGT, most)?.not()))
            }
        }
    }

    pub(super) fn mtp3(
        &mut self,
        Mtp3Field { field, high }: Mtp3Field,
        relation: Relation,
        value: u32,
    ) -> Generated<Condition> {
        let word = match (field, high) {
            (Mtp3::Sio, false) => "sio",
            (Mtp3::Opc, false) => "opc",
            (Mtp3::Dpc, false) => "dpc",
            (Mtp3::Sls, false) => "sls",
            (Mtp3::Sio, true) => "hsio",
            (Mtp3::Opc, true) => "hopc",
            (Mtp3::Dpc, true) => "hdpc",
            (Mtp3::Sls, true) => "hsls",
        };
        let base = self.mtp2_header(word)? + if high { 3 } else { 0 };
        let maximum = match field {
            Mtp3::Sio => 0xff,
            Mtp3::Opc | Mtp3::Dpc => POINT_CODE_MAX,
            Mtp3::Sls => SELECTION_MAX,
        };
        self.at_most(word, value, maximum)?;
        let swapped = |value: u32| u32::from((value as u16).swap_bytes());
        let (at, size, mask, value) = match field {
            Mtp3::Sio => (3, LoadSize::Byte, u32::MAX, value),
            Mtp3::Opc => (
                4,
                LoadSize::Keyword,
                (POINT_CODE_MAX << 14).swap_bytes(),
                (value << 14).swap_bytes(),
            ),
            Mtp3::Dpc => (4, LoadSize::Half, swapped(POINT_CODE_MAX), swapped(value)),
            Mtp3::Sls => (7, LoadSize::Byte, SELECTION_MAX << 4, value << 4),
        };
        let (op, wanted) = comparison(relation);
        let test = self.masked_test(HeaderBase::Packet, base + at, size, mask, (op, value))?;
        Ok(test.is(wanted))
    }

    /// Offset of the MTP2 header.
    fn mtp2_header(&self, word: &str) -> Generated<u32> {
        match self.link {
            LinkType::MTP2 => Ok(0),
            LinkType::MTP2_WITH_PHDR => Ok(4),
            LinkType::ERF => Ok(20),
            _ => {
                Err(self
                    .mistake(format!("`{word}` is supported only on SS7, not on {}", self.link)))
            }
        }
    }
}
