//! Generator for tests of VLAN tags: `vlan`, `vlan 100`, and a repeated `vlan` for an inner tag.
//!
//! A tag shifts all later headers by four bytes. On a live socket, the kernel has moved the outer
//! tag into metadata, and nothing is shifted. Later offsets are therefore stored in scratch words,
//! to which the program adds four for frames with an inline tag.

use super::super::condition::{
    Comparison, Condition, PseudoInsn, alu_k, compare_k, load_a_from_word, non_branching, store_a,
};
use super::load::HeaderBase;
use super::{Code, GenerateResult, Generator};
use crate::classic::insn::{ANCILLARY_OFFSET, code};
use crate::classic::link::LinkType as L;

/// Offset of an ancillary load of the VLAN tag (`SKF_AD_VLAN_TAG`).
const TAG_OFFSET: u32 = ANCILLARY_OFFSET + 44;
/// Offset of an ancillary load of the flag that a VLAN tag is present (`SKF_AD_VLAN_TAG_PRESENT`).
const TAG_PRESENT_OFFSET: u32 = ANCILLARY_OFFSET + 48;
/// Maximum VLAN id.
const VLAN_ID_MAX: u32 = 0x0fff;
/// Length of a VLAN tag in bytes.
const TAG_LENGTH: u32 = 4;

impl Generator<'_> {
    pub(super) fn test_vlan(&mut self, number: Option<u32>) -> GenerateResult<Condition> {
        if self.mpls_depth > 0 {
            return Err(self.invalid_error("no VLAN match after MPLS"));
        }
        if let Some(number) = number {
            self.check_maximum("VLAN tag", number, VLAN_ID_MAX)?;
        }
        let condition = match self.link {
            L::EN10MB
                if self.options.live_metadata && self.vlan_depth == 0 && !self.has_inner_link =>
            {
                self.test_inline_or_metadata_tag(number)?
            }
            link if (link.is_ethernet() || link.is_wlan()) && link != L::PPI => {
                self.test_inline_tag(number)?
            }
            _ => return Err(self.unsupported_on_link_error("vlan")),
        };
        self.vlan_depth += 1;
        Ok(condition)
    }

    fn test_inline_tag(&mut self, number: Option<u32>) -> GenerateResult<Condition> {
        let mut condition = self.test_tag_protocol()?;
        if let Some(number) = number {
            let id_matches =
                self.test_masked_equal(HeaderBase::Network.half(0), number, VLAN_ID_MAX)?;
            condition = condition.and(id_matches);
        }
        self.payload = self.payload.map(|place| place.plus(TAG_LENGTH));
        self.protocol = self.protocol.map(|place| place.plus(TAG_LENGTH));
        Ok(condition)
    }

    fn test_tag_protocol(&mut self) -> GenerateResult<Condition> {
        let customer = self.test_link_protocol(0x8100)?;
        let service = self.test_link_protocol(0x88a8)?;
        Ok(customer.or(service).or(self.test_link_protocol(0x9100)?))
    }

    fn test_inline_or_metadata_tag(&mut self, number: Option<u32>) -> GenerateResult<Condition> {
        let in_metadata = compare_k(vec![load_tag_presence()], code::JEQ, 1);
        let inline = self.test_tag_protocol()?;
        let id_matches = match number {
            Some(number) => self.test_vlan_id(number)?,
            None => Condition::Always,
        };
        let mut shifts = Code::new();
        for place in [HeaderBase::Llc, HeaderBase::Protocol] {
            let word = self.allocate_word()?;
            shifts.extend([load_a_from_word(word), alu_k(code::ADD, TAG_LENGTH), store_a(word)]);
            let place =
                if place == HeaderBase::Llc { &mut self.payload } else { &mut self.protocol };
            if let Some(place) = place {
                place.word = Some(word);
            }
        }
        Ok(in_metadata.or(inline.prepend_code(shifts)).and(id_matches))
    }

    /// Returns the condition that the tag, which is either inline or in metadata, has this VLAN id.
    fn test_vlan_id(&mut self, number: u32) -> GenerateResult<Condition> {
        let (in_metadata, inline, read) = (self.new_label(), self.new_label(), self.new_label());
        let compare = Comparison { op: code::JEQ, with: Some(1) };
        let mut lines = vec![
            load_tag_presence(),
            PseudoInsn::Branch { compare, yes: in_metadata, no: inline },
            PseudoInsn::Bind(in_metadata),
            non_branching(code::LD | code::H | code::ABS, TAG_OFFSET),
            PseudoInsn::Jump(read),
            PseudoInsn::Bind(inline),
        ];
        lines.extend(self.load_field(HeaderBase::Network.half(0))?);
        lines.extend([PseudoInsn::Bind(read), alu_k(code::AND, VLAN_ID_MAX)]);
        Ok(compare_k(lines, code::JEQ, number))
    }
}

fn load_tag_presence() -> PseudoInsn {
    non_branching(code::LD | code::B | code::ABS, TAG_PRESENT_OFFSET)
}
