//! VLAN tags: IEEE 802.1Q, 802.1ad and the older 0x9100 stack.
//!
//! In: the bytes behind an ethertype that announces a tag. Out: where the tags are, and the type
//! behind the last. At most [`TAGS_MAX`] are followed; what lies deeper is not looked at, so that
//! nobody hides a packet by believing that we would guess.

use crate::read::{array, low16};

/// The ethertype of a customer tag.
pub const CUSTOMER: u16 = 0x8100;
/// The ethertype of a service tag.
pub const SERVICE: u16 = 0x88a8;
/// The ethertype of a tag in stacks that are older than 802.1ad.
pub const STACKED: u16 = 0x9100;
/// How many bytes a tag takes: its control information and the next type.
pub const LENGTH: usize = 4;
/// The offset of the tag control information in a tag.
pub const CONTROL: usize = 0;
/// The offset of the type behind the tag.
pub const NEXT: usize = 2;
/// How many tags are followed. Arkime caps at the same depth; two are in use.
pub const TAGS_MAX: u8 = 8;

/// Whether an ethertype announces a tag.
#[inline]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, CUSTOMER | SERVICE | STACKED)
}

/// The control information of one tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u16);

impl Tag {
    /// The VLAN identifier, 12 bits.
    pub const fn id(self) -> u16 {
        self.0 & 0x0fff
    }

    /// The priority, 3 bits.
    pub const fn priority(self) -> u16 {
        self.0 >> 13
    }

    /// Whether the frame may be dropped first.
    pub const fn drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

/// Where the tags of a frame are: plain data that can travel in the marks of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// The offset of the first tag's control information.
    pub at: u8,
    /// How many tags there are.
    pub count: u8,
}

impl Tags {
    /// No tags.
    pub const NONE: Self = Self { at: 0, count: 0 };

    /// The tags, outermost first.
    pub fn iter(self, frame: &[u8]) -> impl Iterator<Item = Tag> {
        let at = usize::from(self.at);
        let bytes = frame.get(at..).unwrap_or_default();
        bytes.chunks_exact(LENGTH).take(usize::from(self.count)).filter_map(|tag| {
            let control = array(tag, CONTROL)?;
            Some(Tag(u16::from_be_bytes(control)))
        })
    }

    /// The outermost tag.
    pub fn outer(self, frame: &[u8]) -> Option<Tag> {
        self.iter(frame).next()
    }

    /// The innermost tag.
    pub fn inner(self, frame: &[u8]) -> Option<Tag> {
        self.iter(frame).last()
    }
}

/// Follows the tags that `ethertype` announces from offset `at` on. Answers the tags, the type
/// behind them and the offset behind that type; nothing where a tag is not whole.
///
/// The type answered is a tag's own when there are more than [`TAGS_MAX`].
#[inline]
pub(crate) fn walk(frame: &[u8], ethertype: u16, at: u16) -> Option<(Tags, u16, u16)> {
    let mut tags = Tags { at: u8::try_from(at).ok()?, count: 0 };
    let (mut ethertype, mut at) = (ethertype, at);
    while is_tag(ethertype) && tags.count < TAGS_MAX {
        let next = array(frame, usize::from(at) + NEXT)?;
        ethertype = u16::from_be_bytes(next);
        at += low16(LENGTH);
        tags.count += 1;
    }
    Some((if tags.count == 0 { Tags::NONE } else { tags }, ethertype, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tags() {
        let frame = [0xa0, 100, 0x81, 0, 0x10, 200, 8, 0];
        let (tags, ethertype, at) = walk(&frame, SERVICE, 0).unwrap();
        assert_eq!((tags.count, ethertype, at), (2, 0x0800, 8));
        let outer = tags.outer(&frame).unwrap();
        assert_eq!((outer.id(), outer.priority(), outer.drop_eligible()), (100, 5, false));
        let inner = tags.inner(&frame).unwrap();
        assert_eq!((inner.id(), inner.priority(), inner.drop_eligible()), (200, 0, true));
    }

    #[test]
    fn eight_tags_pass_and_nine_do_not() {
        let tag = [0, 1, 0x81, 0];
        let deep: Vec<u8> = tag.iter().cycle().take(9 * LENGTH).copied().collect();
        let (tags, ethertype, at) = walk(&deep, CUSTOMER, 0).unwrap();
        assert_eq!((tags.count, ethertype, at), (8, CUSTOMER, 32));
    }

    #[test]
    fn half_a_tag() {
        assert_eq!(walk(&[0, 1, 8], CUSTOMER, 0), None);
        assert_eq!(Tags { at: 200, count: 8 }.outer(&[0, 1, 8]), None);
    }
}
