//! Generator for tests of 802.11 frames: types, directions, and the source and destination among
//! the four addresses.

use super::super::ast::DirQualifier;
use super::super::condition::Condition;
use super::load::HeaderBase;
use super::{GenerateResult, Generator};

/// Type bits of control frames, in the first byte of an 802.11 frame.
const TYPE_CONTROL: u32 = 0x04;
/// Type bits of data frames, in the first byte of an 802.11 frame.
const TYPE_DATA: u32 = 0x08;
/// Mask of the type in the first byte of an 802.11 frame.
const TYPE_MASK: u32 = 0x0c;
/// Mask of the subtype in the first byte of an 802.11 frame.
const SUBTYPE_MASK: u32 = 0xf0;
/// Subtype bits of CTS frames, in the first byte of an 802.11 frame.
const SUBTYPE_CTS: u32 = 0xc0;
/// Subtype bits of ACK frames, in the first byte of an 802.11 frame.
const SUBTYPE_ACK: u32 = 0xd0;

/// Bit of the second byte of an 802.11 frame that marks frames sent to the distribution system.
const TO_DS: u32 = 0x01;
/// Bit of the second byte of an 802.11 frame that marks frames sent by the distribution system.
const FROM_DS: u32 = 0x02;

/// Byte offset of the first address in an 802.11 header.
const ADDRESS1_OFFSET: u32 = 4;
/// Byte offset of the second address in an 802.11 header.
const ADDRESS2_OFFSET: u32 = 10;
/// Byte offset of the third address in an 802.11 header.
const ADDRESS3_OFFSET: u32 = 16;
/// Byte offset of the fourth address in an 802.11 header.
const ADDRESS4_OFFSET: u32 = 24;

impl Generator<'_> {
    /// Returns the condition that byte `byte` (0 or 1) of the frame control field, masked with
    /// `mask`, equals `value`.
    pub(super) fn test_wlan_field(
        &mut self,
        byte: u32,
        value: u32,
        mask: u32,
    ) -> GenerateResult<Condition> {
        if !self.link.is_wlan() {
            return Err(self.unsupported_on_link_error(if byte == 0 { "type" } else { "dir" }));
        }
        self.test_masked_equal(HeaderBase::Header.byte(byte), value, mask)
    }

    fn test_control_bit(&mut self, byte: u32, bit: u32) -> GenerateResult<Condition> {
        self.test_any_bit(HeaderBase::Header.byte(byte), bit)
    }

    pub(super) fn test_wlan_multicast(&mut self) -> GenerateResult<Condition> {
        self.test_wlan_destination(&|g: &mut Self, at| g.test_group_bit(at))
    }

    pub(super) fn test_wlan_host(
        &mut self,
        direction: Option<DirQualifier>,
        address: &[u8; 6],
    ) -> GenerateResult<Condition> {
        let at = |g: &mut Self, place: u32| g.test_bytes(HeaderBase::Header, place, address);
        match direction {
            Some(DirQualifier::Address1) => at(self, ADDRESS1_OFFSET),
            Some(DirQualifier::Address2) => {
                let has = self.test_second_address_presence()?;
                Ok(has.and(at(self, ADDRESS2_OFFSET)?))
            }
            Some(DirQualifier::Address3) => {
                let has = self
                    .test_masked_equal(HeaderBase::Header.byte(0), TYPE_CONTROL, TYPE_MASK)?
                    .not();
                Ok(has.and(at(self, ADDRESS3_OFFSET)?))
            }
            Some(DirQualifier::Address4) => {
                let both = TO_DS | FROM_DS;
                let has = self.test_masked_equal(HeaderBase::Header.byte(1), both, both)?;
                Ok(has.and(at(self, ADDRESS4_OFFSET)?))
            }
            Some(DirQualifier::Receiver) => {
                let data = self.test_control_bit(0, TYPE_DATA)?;
                Ok(data.and(at(self, ADDRESS1_OFFSET)?))
            }
            Some(DirQualifier::Transmitter) => {
                let data = self.test_control_bit(0, TYPE_DATA)?;
                let has = self.test_second_address_presence()?;
                Ok(data.and(has).and(at(self, ADDRESS2_OFFSET)?))
            }
            _ => self.combine_by_direction(
                direction,
                |g| g.test_wlan_source(&at),
                |g| g.test_wlan_destination(&at),
            ),
        }
    }

    /// Returns the condition that the frame has a second address, which two kinds of control frames
    /// lack.
    fn test_second_address_presence(&mut self) -> GenerateResult<Condition> {
        let other =
            self.test_masked_equal(HeaderBase::Header.byte(0), TYPE_CONTROL, TYPE_MASK)?.not();
        let cts = self.test_masked_equal(HeaderBase::Header.byte(0), SUBTYPE_CTS, SUBTYPE_MASK)?;
        let ack = self.test_masked_equal(HeaderBase::Header.byte(0), SUBTYPE_ACK, SUBTYPE_MASK)?;
        Ok(other.or(cts.not().and(ack.not())))
    }

    /// Returns the condition that the source address satisfies `test_address`: address 2, 3 or 4 of
    /// data frames, depending on their direction, and address 2 of management frames.
    fn test_wlan_source(
        &mut self,
        test_address: &dyn Fn(&mut Self, u32) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        self.test_wlan_endpoint(test_address, (ADDRESS2_OFFSET, FROM_DS), |g| {
            let from = g.test_control_bit(1, FROM_DS)?;
            let third = g.test_control_bit(1, TO_DS)?.not().and(test_address(g, ADDRESS3_OFFSET)?);
            let fourth = g.test_control_bit(1, TO_DS)?.and(test_address(g, ADDRESS4_OFFSET)?);
            Ok(from.and(third.or(fourth)))
        })
    }

    /// Returns the condition that the destination address satisfies `test_address`: address 1 or 3
    /// of data frames, depending on their direction, and address 1 of management frames.
    fn test_wlan_destination(
        &mut self,
        test_address: &dyn Fn(&mut Self, u32) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        self.test_wlan_endpoint(test_address, (ADDRESS1_OFFSET, TO_DS), |g| {
            Ok(g.test_control_bit(1, TO_DS)?.and(test_address(g, ADDRESS3_OFFSET)?))
        })
    }

    /// Returns the condition that one address of an 802.11 frame, the source or the destination,
    /// satisfies `test_address`. In management frames, and in data frames whose direction bit `bit`
    /// is clear, this address is at offset `place`. For all other data frames, `otherwise` builds
    /// the condition.
    fn test_wlan_endpoint(
        &mut self,
        test_address: &dyn Fn(&mut Self, u32) -> GenerateResult<Condition>,
        (place, bit): (u32, u32),
        otherwise: impl FnOnce(&mut Self) -> GenerateResult<Condition>,
    ) -> GenerateResult<Condition> {
        let not_control = self.test_control_bit(0, TYPE_CONTROL)?.not();
        let management = self.test_control_bit(0, TYPE_DATA)?.not().and(test_address(self, place)?);
        let data = self.test_control_bit(0, TYPE_DATA)?;
        let direct = self.test_control_bit(1, bit)?.not().and(test_address(self, place)?);
        let data = data.and(direct.or(otherwise(self)?));
        Ok(not_control.and(management.or(data)))
    }
}
