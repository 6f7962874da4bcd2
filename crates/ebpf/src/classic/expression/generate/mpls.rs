//! Code generation for the primitives `mpls` and `pppoe`, whose headers have a fixed length.

use super::super::condition::Condition;
use super::link_protocol::{ETHERTYPE_IP, ETHERTYPE_IPV6};
use super::load::HeaderBase;
use super::{GenerateResult, Generator, Offset};
use crate::classic::link::LinkType as L;

/// EtherType of MPLS.
const ETHERTYPE_MPLS: u32 = 0x8847;
/// PPP number of MPLS.
const PPP_MPLS: u32 = 0x0281;
/// EtherType of PPPoE discovery.
const ETHERTYPE_PPPOE_DISCOVERY: u32 = 0x8863;
/// EtherType of a PPPoE session.
const ETHERTYPE_PPPOE_SESSION: u32 = 0x8864;
/// Maximum MPLS label, a number of 20 bits.
const LABEL_MAX: u32 = 0xf_ffff;
/// Length of an MPLS label stack entry in bytes.
const LABEL_ENTRY_LENGTH: u32 = 4;

impl Generator<'_> {
    /// Returns the condition that the frame has an MPLS header, with this label if one is given. A
    /// repeated `mpls` refers to the next entry of the label stack.
    pub(super) fn test_mpls(&mut self, label: Option<u32>) -> GenerateResult<Condition> {
        let mut condition = if self.mpls_depth > 0 {
            self.test_bottom_of_stack()?.not()
        } else {
            match self.link {
                L::C_HDLC | L::HDLC => self.test_link_protocol(ETHERTYPE_MPLS)?,
                link if link.is_ethernet() => self.test_link_protocol(ETHERTYPE_MPLS)?,
                L::PPP => self.test_link_protocol(PPP_MPLS)?,
                _ => return Err(self.unsupported_on_link_error("mpls")),
            }
        };
        if let Some(label) = label {
            self.check_maximum("MPLS label", label, LABEL_MAX)?;
            let mask = LABEL_MAX << 12;
            condition = condition.and(self.test_masked_equal(
                HeaderBase::Network.word(0),
                label << 12,
                mask,
            )?);
        }
        self.nl += LABEL_ENTRY_LENGTH;
        self.network_offset_without_snap += LABEL_ENTRY_LENGTH;
        self.mpls_depth += 1;
        Ok(condition)
    }

    /// Returns the condition that the label stack entry before the current header is the last of
    /// the stack.
    fn test_bottom_of_stack(&mut self) -> GenerateResult<Condition> {
        self.test_any_bit(HeaderBase::Network.byte(2u32.wrapping_sub(LABEL_ENTRY_LENGTH)), 0x01)
    }

    /// Returns the condition that the header after the label stack is an IP header of the version
    /// that `protocol` names. Fails unless `protocol` is IPv4 or IPv6, because only the version
    /// field in the first four bits identifies the header.
    pub(super) fn test_protocol_after_mpls(&mut self, protocol: u32) -> GenerateResult<Condition> {
        let version = match protocol {
            ETHERTYPE_IP => 4,
            ETHERTYPE_IPV6 => 6,
            _ => {
                return Err(
                    self.invalid_error("unsupported protocol over MPLS: only ip and ip6 are")
                );
            }
        };
        let bottom = self.test_bottom_of_stack()?;
        Ok(bottom.and(self.test_ip_version(HeaderBase::Network, version)?))
    }

    pub(super) fn test_pppoe_discovery(&mut self) -> GenerateResult<Condition> {
        self.test_link_protocol(ETHERTYPE_PPPOE_DISCOVERY)
    }

    /// Returns the condition that the frame belongs to a PPPoE session, with this session number if
    /// one is given. Later tests apply to the PPP frame in the session.
    pub(super) fn test_pppoe_session(&mut self, session: Option<u32>) -> GenerateResult<Condition> {
        let mut condition = self.test_link_protocol(ETHERTYPE_PPPOE_SESSION)?;
        if let Some(session) = session {
            self.check_maximum("PPPoE session number", session, 0xffff)?;
            condition = condition.and(self.test_equal(HeaderBase::Network.half(2), session)?);
        }
        let header = self.base_offset(HeaderBase::Network)?.plus(6);
        self.set_current_header(L::PPP, header);
        self.protocol = Some(header);
        self.payload = Some(header.plus(2));
        self.nl = 0;
        self.network_offset_without_snap = 0;
        Ok(condition)
    }

    /// Makes the header of type `link` at offset `header` the current header, to which later tests
    /// apply.
    pub(super) fn set_current_header(&mut self, link: L, header: Offset) {
        self.has_inner_link = true;
        self.link = link;
        self.header = header;
        self.is_in_tunnel = false;
    }
}
