//! Offsets of ancillary loads that the kernel supports (`SKF_AD_…`).

use super::super::insn::ANCILLARY_OFFSET;

/// Offset of an ancillary load of the EtherType (`SKF_AD_PROTOCOL`). If the frame has a VLAN tag in
/// the skb, this is the EtherType of the tag's payload.
pub(super) const PROTOCOL_OFFSET: u32 = ANCILLARY_OFFSET;
/// Offset of an ancillary load of the packet type (`SKF_AD_PKTTYPE`).
pub(super) const PACKET_TYPE_OFFSET: u32 = ANCILLARY_OFFSET + 4;
/// Offset of an ancillary load of the device type (`SKF_AD_HATYPE`).
pub(super) const HARDWARE_TYPE_OFFSET: u32 = ANCILLARY_OFFSET + 28;
/// Offset of an ancillary load of the VLAN tag's control information (`SKF_AD_VLAN_TAG`).
pub(super) const VLAN_TCI_OFFSET: u32 = ANCILLARY_OFFSET + 44;
/// Offset of an ancillary load of the tag-present flag: 1 if the frame has a VLAN tag in the skb,
/// else 0 (`SKF_AD_VLAN_TAG_PRESENT`).
pub(super) const VLAN_PRESENT_OFFSET: u32 = ANCILLARY_OFFSET + 48;
/// Offset of an ancillary load of the VLAN tag's own EtherType (`SKF_AD_VLAN_TPID`).
pub(super) const VLAN_TPID_OFFSET: u32 = ANCILLARY_OFFSET + 60;
