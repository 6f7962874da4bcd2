//! VLAN tags of IEEE 802.1Q, of 802.1ad, and of stacking with the older ethertype 0x9100.
//!
//! The parser follows at most [`TAGS_MAX`] tags. It does not read deeper tags, and makes no guess
//! about the packet after them.

use crate::read::{read_array, truncate_to_u16};

/// Ethertype of an 802.1Q customer tag (C-TAG).
pub const CUSTOMER_TAG: u16 = 0x8100;
/// Ethertype of an 802.1ad service tag (S-TAG).
pub const SERVICE_TAG: u16 = 0x88a8;
/// Ethertype of an outer tag under conventions older than 802.1ad.
pub const STACKED_TAG: u16 = 0x9100;
/// Length of a VLAN tag in bytes, from its control information to the next ethertype.
pub const TAG_LENGTH: usize = 4;
/// Byte offset of the control information in a VLAN tag, which begins after its own ethertype.
pub const CONTROL_OFFSET: usize = 0;
/// Byte offset of the next ethertype in a VLAN tag, which begins after its own ethertype.
pub const NEXT_ETHERTYPE_OFFSET: usize = 2;
/// Maximum number of tags that the parser follows. Arkime has the same limit, and at most two occur
/// in practice.
pub const TAGS_MAX: u8 = 8;

/// Returns true if the ethertype announces a VLAN tag.
#[inline]
pub const fn is_tag_ethertype(ethertype: u16) -> bool {
    matches!(ethertype, CUSTOMER_TAG | SERVICE_TAG | STACKED_TAG)
}

/// The control information of a VLAN tag: VLAN id, priority and drop eligibility.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u16);

impl Tag {
    /// Returns the 12-bit VLAN id.
    pub const fn id(self) -> u16 {
        self.0 & 0x0fff
    }

    /// Returns the 3-bit priority.
    pub const fn priority(self) -> u16 {
        self.0 >> 13
    }
}

/// The location of the tags in a frame, as plain data that can be stored in the marks of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// Offset in bytes of the control information of the first tag.
    pub at: u8,
    /// Number of VLAN tags.
    pub count: u8,
}

impl Tags {
    /// The tag location of a frame without VLAN tags.
    pub const NONE: Self = Self { at: 0, count: 0 };

    /// Iterates over the tags of a frame, outermost first.
    pub fn iter(self, frame: &[u8]) -> impl Iterator<Item = Tag> {
        let at = usize::from(self.at);
        let bytes = frame.get(at..).unwrap_or_default();
        bytes.chunks_exact(TAG_LENGTH).take(usize::from(self.count)).filter_map(|tag| {
            let control = read_array(tag, CONTROL_OFFSET)?;
            Some(Tag(u16::from_be_bytes(control)))
        })
    }

    /// Returns the outermost tag; `None` if the frame has no tags.
    pub fn outer_tag(self, frame: &[u8]) -> Option<Tag> {
        self.iter(frame).next()
    }

    /// Returns the innermost tag; `None` if the frame has no tags.
    pub fn inner_tag(self, frame: &[u8]) -> Option<Tag> {
        self.iter(frame).last()
    }
}

/// Follows the tags that `ethertype` announces, from offset `at`. Returns the tags, the ethertype
/// after the last tag, and the offset after that ethertype; `None` if a tag is truncated.
///
/// If there are more than [`TAGS_MAX`] tags, the returned ethertype announces a tag.
#[inline]
pub(crate) fn parse_tags(frame: &[u8], ethertype: u16, at: u16) -> Option<(Tags, u16, u16)> {
    let mut tags = Tags { at: u8::try_from(at).ok()?, count: 0 };
    let (mut ethertype, mut at) = (ethertype, at);
    while is_tag_ethertype(ethertype) && tags.count < TAGS_MAX {
        let next = read_array(frame, usize::from(at) + NEXT_ETHERTYPE_OFFSET)?;
        ethertype = u16::from_be_bytes(next);
        at += truncate_to_u16(TAG_LENGTH);
        tags.count += 1;
    }
    Some((if tags.count == 0 { Tags::NONE } else { tags }, ethertype, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_and_inner_tag_are_read() {
        let frame = [0xa0, 100, 0x81, 0, 0x10, 200, 8, 0];
        let (tags, ethertype, at) = parse_tags(&frame, SERVICE_TAG, 0).unwrap();
        assert_eq!((tags.count, ethertype, at), (2, 0x0800, 8));
        let outer = tags.outer_tag(&frame).unwrap();
        assert_eq!((outer.id(), outer.priority()), (100, 5));
        let inner = tags.inner_tag(&frame).unwrap();
        assert_eq!((inner.id(), inner.priority()), (200, 0));
    }

    #[test]
    fn eight_tags_are_followed_but_not_a_ninth() {
        let tag = [0, 1, 0x81, 0];
        let deep: Vec<u8> = tag.iter().cycle().take(9 * TAG_LENGTH).copied().collect();
        let (tags, ethertype, at) = parse_tags(&deep, CUSTOMER_TAG, 0).unwrap();
        assert_eq!((tags.count, ethertype, at), (8, CUSTOMER_TAG, 32));
    }

    #[test]
    fn truncated_tag_is_rejected() {
        assert_eq!(parse_tags(&[0, 1, 8], CUSTOMER_TAG, 0), None);
        assert_eq!(Tags { at: 200, count: 8 }.outer_tag(&[0, 1, 8]), None);
    }
}
