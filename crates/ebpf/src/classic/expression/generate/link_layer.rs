//! Generator for tests of logical link control, direction and interface.

use super::super::ast::LlcFrameType;
use super::super::condition::{Condition, alu_k, compare_k, non_branching};
use super::load::HeaderBase;
use super::{GenerateResult, Generator};
use crate::classic::insn::{ANCILLARY_OFFSET, code};
use crate::classic::link::LinkType as L;

/// Kernel packet type of frames that this host sends (`PACKET_OUTGOING`).
const PACKET_OUTGOING: u32 = 4;
/// Offset of an ancillary load of the packet type (`SKF_AD_PKTTYPE`).
const PACKET_TYPE_OFFSET: u32 = ANCILLARY_OFFSET + 4;
/// Offset of an ancillary load of the interface index (`SKF_AD_IFINDEX`).
const INTERFACE_INDEX_OFFSET: u32 = ANCILLARY_OFFSET + 8;

/// Mask of the LLC control field bits that identify the kind of a supervisory frame.
const SUPERVISORY_MASK: u32 = 0x0f;
/// Mask of the LLC control field bits that identify the kind of an unnumbered frame.
const UNNUMBERED_MASK: u32 = 0xef;

impl Generator<'_> {
    pub(super) fn test_llc(&mut self, llc: LlcFrameType) -> GenerateResult<Condition> {
        let any = self.test_llc_presence()?;
        let control = |g: &mut Self, k, mask| g.test_masked_equal(HeaderBase::Llc.byte(2), k, mask);
        let kind = match llc {
            LlcFrameType::Any => return Ok(any),
            LlcFrameType::Information => self.test_any_bit(HeaderBase::Llc.byte(2), 0x01)?.not(),
            LlcFrameType::Supervisory(None) => control(self, 0x01, 0x03)?,
            LlcFrameType::Supervisory(Some(kind)) => control(self, kind, SUPERVISORY_MASK)?,
            LlcFrameType::Unnumbered(None) => control(self, 0x03, 0x03)?,
            LlcFrameType::Unnumbered(Some(kind)) => control(self, kind, UNNUMBERED_MASK)?,
        };
        Ok(any.and(kind))
    }

    fn test_llc_presence(&mut self) -> GenerateResult<Condition> {
        match self.link {
            L::EN10MB | L::DSA_TAG_BRCM | L::DSA_TAG_DSA => {
                let length = self.test_field(HeaderBase::Protocol.half(0), code::JGT, 1500)?.not();
                Ok(length.and(self.test_equal(HeaderBase::Llc.half(0), 0xffff)?.not()))
            }
            L::IEEE802 | L::FDDI | L::ATM_RFC1483 => Ok(Condition::Always),
            link if link.is_wlan() => self.test_wlan_field(0, 0x08, 0x0c),
            _ => Err(self.unsupported_on_link_error("llc")),
        }
    }

    pub(super) fn test_direction(&mut self, outbound: bool) -> GenerateResult<Condition> {
        let either_value = |out, within| if outbound { out } else { within };
        match self.link {
            L::SLIP | L::PPP_PPPD => {
                self.test_equal(HeaderBase::Header.byte(0), either_value(1, 0))
            }
            L::IPNET => self.test_equal(HeaderBase::Header.half(2), either_value(1, 2)),
            L::LINUX_SLL => Ok(self
                .test_equal(HeaderBase::Header.half(0), PACKET_OUTGOING)?
                .negate_unless(outbound)),
            L::LINUX_SLL2 => Ok(self
                .test_equal(HeaderBase::Header.byte(10), PACKET_OUTGOING)?
                .negate_unless(outbound)),
            L::DSA_TAG_BRCM => {
                self.test_masked_equal(HeaderBase::Header.byte(12), either_value(0x20, 0), 0xe0)
            }
            L::DSA_TAG_DSA => self.test_masked_equal(
                HeaderBase::Header.byte(12),
                either_value(0x40, 0),
                either_value(0xc0, 0x40),
            ),
            link if link.is_juniper() => {
                let mut lines = self.load_field(HeaderBase::Header.byte(3))?;
                lines.push(alu_k(code::AND, 0x01));
                Ok(compare_k(lines, code::JEQ, either_value(0, 1)))
            }
            _ => {
                self.require_metadata(direction_keyword(outbound))?;
                let lines = vec![non_branching(code::LD | code::H | code::ABS, PACKET_TYPE_OFFSET)];
                Ok(compare_k(lines, code::JEQ, PACKET_OUTGOING).negate_unless(outbound))
            }
        }
    }

    pub(super) fn test_interface(&mut self, index: u32) -> GenerateResult<Condition> {
        if self.link == L::LINUX_SLL2 {
            return self.test_equal(HeaderBase::Header.word(4), index);
        }
        self.require_metadata("ifindex")?;
        let lines = vec![non_branching(code::LD | code::W | code::ABS, INTERFACE_INDEX_OFFSET)];
        Ok(compare_k(lines, code::JEQ, index))
    }

    /// Fails if the frames come from a file, because they then lack the kernel metadata that the
    /// keyword `word` tests.
    fn require_metadata(&self, word: &str) -> GenerateResult<()> {
        if self.options.live_metadata {
            return Ok(());
        }
        let what = format!("not a live capture: `{word}` is not in frames of {}", self.link);
        Err(self.invalid_error(what))
    }
}

fn direction_keyword(outbound: bool) -> &'static str {
    if outbound { "outbound" } else { "inbound" }
}
