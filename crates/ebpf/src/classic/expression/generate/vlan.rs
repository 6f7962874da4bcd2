//! Generator for tests of VLAN tags: `vlan`, `vlan 100`, and a repeated `vlan` for an inner tag.
//!
//! A tag shifts everything to its right by four bytes. On a live socket, the kernel has moved the
//! outer tag into metadata, and nothing is shifted. Later offsets are therefore kept in scratch
//! words, to which the program adds four for frames with an inline tag.

use super::super::condition::{
    Compare, Condition, PseudoInsn, alu_k, compare_k, memory_to_a, plain_insn, store_a,
};
use super::load::HeaderBase;
use super::{Code, Generated, Generator};
use crate::classic::insn::{ANCILLARY, code};
use crate::classic::link::LinkType as L;

/// Ancillary offset of the tag (`SKF_AD_VLAN_TAG`).
const TAG: u32 = ANCILLARY + 44;
/// Ancillary offset of the tag's presence (`SKF_AD_VLAN_TAG_PRESENT`).
const TAG_PRESENT: u32 = ANCILLARY + 48;
/// Maximum VLAN id.
const NUMBER_MAX: u32 = 0x0fff;
/// Length of a tag in bytes.
const LENGTH: u32 = 4;

impl Generator<'_> {
    pub(super) fn vlan(&mut self, number: Option<u32>) -> Generated<Condition> {
        if self.mpls_depth > 0 {
            return Err(self.mistake("no VLAN match after MPLS"));
        }
        if let Some(number) = number {
            self.check_maximum("VLAN tag", number, NUMBER_MAX)?;
        }
        let condition = match self.link {
            L::EN10MB if self.options.live_metadata && self.vlan_depth == 0 && !self.entered => {
                self.inline_or_metadata_tag(number)?
            }
            link if (link.is_ethernet() || link.is_wlan()) && link != L::PPI => {
                self.inline_tag(number)?
            }
            _ => return Err(self.not_on_this_link("vlan")),
        };
        self.vlan_depth += 1;
        Ok(condition)
    }

    fn inline_tag(&mut self, number: Option<u32>) -> Generated<Condition> {
        let mut condition = self.tag_protocol()?;
        if let Some(number) = number {
            let own = self.masked(HeaderBase::Network.half(0), number, NUMBER_MAX)?;
            condition = condition.and(own);
        }
        self.payload = self.payload.map(|place| place.plus(LENGTH));
        self.protocol = self.protocol.map(|place| place.plus(LENGTH));
        Ok(condition)
    }

    fn tag_protocol(&mut self) -> Generated<Condition> {
        let customer = self.link_protocol(0x8100)?;
        let service = self.link_protocol(0x88a8)?;
        Ok(customer.or(service).or(self.link_protocol(0x9100)?))
    }

    fn inline_or_metadata_tag(&mut self, number: Option<u32>) -> Generated<Condition> {
        let beside = compare_k(vec![present()], code::JEQ, 1);
        let inside = self.tag_protocol()?;
        let own = match number {
            Some(number) => self.tag_number(number)?,
            None => Condition::Always,
        };
        let mut moved = Code::new();
        for place in [HeaderBase::Llc, HeaderBase::Protocol] {
            let word = self.allocate_word()?;
            moved.extend([memory_to_a(word), alu_k(code::ADD, LENGTH), store_a(word)]);
            let place =
                if place == HeaderBase::Llc { &mut self.payload } else { &mut self.protocol };
            if let Some(place) = place {
                place.word = Some(word);
            }
        }
        Ok(beside.or(inside.after(moved)).and(own))
    }

    /// Tests the VLAN id of the tag, whether inline or in metadata.
    fn tag_number(&mut self, number: u32) -> Generated<Condition> {
        let (beside, inside, read) = (self.label(), self.label(), self.label());
        let compare = Compare { op: code::JEQ, with: Some(1) };
        let mut lines = vec![
            present(),
            PseudoInsn::Branch { compare, yes: beside, no: inside },
            PseudoInsn::Place(beside),
            plain_insn(code::LD | code::H | code::ABS, TAG),
            PseudoInsn::Goto(read),
            PseudoInsn::Place(inside),
        ];
        lines.extend(self.load(HeaderBase::Network.half(0))?);
        lines.extend([PseudoInsn::Place(read), alu_k(code::AND, NUMBER_MAX)]);
        Ok(compare_k(lines, code::JEQ, number))
    }
}

fn present() -> PseudoInsn {
    plain_insn(code::LD | code::B | code::ABS, TAG_PRESENT)
}
