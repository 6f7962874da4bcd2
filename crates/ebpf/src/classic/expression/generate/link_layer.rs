//! Generator for tests of logical link control, direction and interface.

use super::super::ast::Llc;
use super::super::condition::{Condition, alu_k, compare_k, plain_insn};
use super::load::HeaderBase;
use super::{Generated, Generator};
use crate::classic::insn::{ANCILLARY, code};
use crate::classic::link::LinkType as L;

/// Packet type of frames that this host sends (`PACKET_OUTGOING`).
const OUTGOING: u32 = 4;
/// Ancillary offset of the packet type (`SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = ANCILLARY + 4;
/// Ancillary offset of the interface index (`SKF_AD_IFINDEX`).
const INTERFACE: u32 = ANCILLARY + 8;

/// Mask of the LLC control field that identifies supervisory frames.
const SUPERVISORY_MASK: u32 = 0x0f;
/// Mask of the LLC control field that identifies unnumbered frames.
const UNNUMBERED_MASK: u32 = 0xef;

impl Generator<'_> {
    pub(super) fn llc(&mut self, llc: Llc) -> Generated<Condition> {
        let any = self.has_llc()?;
        let control = |g: &mut Self, k, mask| g.masked(HeaderBase::Llc.byte(2), k, mask);
        let kind = match llc {
            Llc::Any => return Ok(any),
            Llc::Information => self.any_bit(HeaderBase::Llc.byte(2), 0x01)?.not(),
            Llc::Supervisory(None) => control(self, 0x01, 0x03)?,
            Llc::Supervisory(Some(kind)) => control(self, kind, SUPERVISORY_MASK)?,
            Llc::Unnumbered(None) => control(self, 0x03, 0x03)?,
            Llc::Unnumbered(Some(kind)) => control(self, kind, UNNUMBERED_MASK)?,
        };
        Ok(any.and(kind))
    }

    fn has_llc(&mut self) -> Generated<Condition> {
        match self.link {
            L::EN10MB | L::DSA_TAG_BRCM | L::DSA_TAG_DSA => {
                let length = self.test(HeaderBase::Protocol.half(0), code::JGT, 1500)?.not();
                Ok(length.and(self.equal(HeaderBase::Llc.half(0), 0xffff)?.not()))
            }
            L::IEEE802 | L::FDDI | L::ATM_RFC1483 => Ok(Condition::Always),
            link if link.is_wlan() => self.wlan_field(0, 0x08, 0x0c),
            _ => Err(self.not_on_this_link("llc")),
        }
    }

    pub(super) fn direction(&mut self, outbound: bool) -> Generated<Condition> {
        let either_value = |out, within| if outbound { out } else { within };
        match self.link {
            L::SLIP | L::PPP_PPPD => self.equal(HeaderBase::Header.byte(0), either_value(1, 0)),
            L::IPNET => self.equal(HeaderBase::Header.half(2), either_value(1, 2)),
            L::LINUX_SLL => Ok(self.equal(HeaderBase::Header.half(0), OUTGOING)?.is(outbound)),
            L::LINUX_SLL2 => Ok(self.equal(HeaderBase::Header.byte(10), OUTGOING)?.is(outbound)),
            L::DSA_TAG_BRCM => {
                self.masked(HeaderBase::Header.byte(12), either_value(0x20, 0), 0xe0)
            }
            L::DSA_TAG_DSA => self.masked(
                HeaderBase::Header.byte(12),
                either_value(0x40, 0),
                either_value(0xc0, 0x40),
            ),
            link if link.is_juniper() => {
                let mut lines = self.load(HeaderBase::Header.byte(3))?;
                lines.push(alu_k(code::AND, 0x01));
                Ok(compare_k(lines, code::JEQ, either_value(0, 1)))
            }
            _ => {
                self.require_metadata(pick_word(outbound))?;
                let lines = vec![plain_insn(code::LD | code::H | code::ABS, PACKET_TYPE)];
                Ok(compare_k(lines, code::JEQ, OUTGOING).is(outbound))
            }
        }
    }

    pub(super) fn interface(&mut self, index: u32) -> Generated<Condition> {
        if self.link == L::LINUX_SLL2 {
            return self.equal(HeaderBase::Header.word(4), index);
        }
        self.require_metadata("ifindex")?;
        let lines = vec![plain_insn(code::LD | code::W | code::ABS, INTERFACE)];
        Ok(compare_k(lines, code::JEQ, index))
    }

    /// Fails if the frames come from a file, because they then lack the kernel metadata that the
    /// keyword `word` tests.
    fn require_metadata(&self, word: &str) -> Generated<()> {
        if self.options.live_metadata {
            return Ok(());
        }
        let what = format!("not a live capture: `{word}` is not in frames of {}", self.link);
        Err(self.mistake(what))
    }
}

fn pick_word(outbound: bool) -> &'static str {
    if outbound { "outbound" } else { "inbound" }
}
