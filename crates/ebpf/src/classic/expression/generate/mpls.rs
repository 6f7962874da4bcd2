//! MPLS labels and PPP over Ethernet: headers that move what follows by a known length.

use super::super::condition::Condition;
use super::link_protocol::{IP, IP6};
use super::load::{Base, Size};
use super::{Generator, Offset, Result};
use crate::classic::link::LinkType as L;

const MPLS: u32 = 0x8847;
const PPP_MPLS: u32 = 0x0281;
const PPPOE_DISCOVERY: u32 = 0x8863;
const PPPOE_SESSION: u32 = 0x8864;
const LABEL_MAX: u32 = 0xf_ffff;
/// How long an entry of the label stack is.
const ENTRY: u32 = 4;

impl Generator<'_> {
    /// A label, or any; asked again, the next entry of the stack.
    pub(super) fn mpls(&mut self, label: Option<u32>) -> Result<Condition> {
        let mut condition = if self.mpls_depth > 0 {
            self.bottom_of_stack()?.not()
        } else {
            match self.link {
                L::C_HDLC | L::HDLC => self.link_protocol(MPLS)?,
                link if link.is_ethernet() => self.link_protocol(MPLS)?,
                L::PPP => self.link_protocol(PPP_MPLS)?,
                _ => return Err(self.not_on_this_link("mpls")),
            }
        };
        if let Some(label) = label {
            self.at_most("MPLS label", label, LABEL_MAX)?;
            let mask = LABEL_MAX << 12;
            condition =
                condition.and(self.masked(Base::Network, 0, Size::Word, label << 12, mask)?);
        }
        self.nl += ENTRY;
        self.nl_nosnap += ENTRY;
        self.mpls_depth += 1;
        Ok(condition)
    }

    /// The entry before the current place is the last one.
    fn bottom_of_stack(&mut self) -> Result<Condition> {
        self.any_bit(Base::Network, 2u32.wrapping_sub(ENTRY), Size::Byte, 0x01)
    }

    /// Behind the stack, nothing but the first nibble tells the protocol.
    pub(super) fn behind_mpls(&mut self, protocol: u32) -> Result<Condition> {
        let version = match protocol {
            IP => 4,
            IP6 => 6,
            _ => return Err(self.mistake("unsupported protocol over MPLS: only ip and ip6 are")),
        };
        let bottom = self.bottom_of_stack()?;
        Ok(bottom.and(self.ip_version(Base::Network, version)?))
    }

    pub(super) fn pppoe_discovery(&mut self) -> Result<Condition> {
        self.link_protocol(PPPOE_DISCOVERY)
    }

    /// A session, or any; behind it, the frame is a PPP frame.
    pub(super) fn pppoe_session(&mut self, session: Option<u32>) -> Result<Condition> {
        let mut condition = self.link_protocol(PPPOE_SESSION)?;
        if let Some(session) = session {
            self.at_most("PPPoE session number", session, 0xffff)?;
            condition = condition.and(self.equal(Base::Network, 2, Size::Half, session)?);
        }
        let header = self.place(Base::Network)?.plus(6);
        self.enter(L::PPP, header);
        self.protocol = Some(header);
        self.payload = Some(header.plus(2));
        self.nl = 0;
        self.nl_nosnap = 0;
        Ok(condition)
    }

    /// From here on, the current header is one of `link` at `header`.
    pub(super) fn enter(&mut self, link: L, header: Offset) {
        self.previous = Some((self.link, self.header));
        self.link = link;
        self.header = header;
        self.encapsulated = false;
    }
}
