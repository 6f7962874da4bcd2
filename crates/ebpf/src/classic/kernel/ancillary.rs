//! Offsets of ancillary loads that the kernel supports (`SKF_AD_…`).

use super::super::insn::ANCILLARY;

/// Ancillary offset of the EtherType (`SKF_AD_PROTOCOL`). If the frame has a VLAN tag in the skb,
/// this is the EtherType of the tag's payload.
pub(super) const PROTOCOL_OFFSET: u32 = ANCILLARY;
/// Ancillary offset of the packet type (`SKF_AD_PKTTYPE`).
pub(super) const PACKET_TYPE_OFFSET: u32 = ANCILLARY + 4;
/// Ancillary offset of the device type (`SKF_AD_HATYPE`).
pub(super) const HARDWARE_TYPE_OFFSET: u32 = ANCILLARY + 28;
/// Ancillary offset of the control information of the VLAN tag (`SKF_AD_VLAN_TAG`).
pub(super) const VLAN_TCI_OFFSET: u32 = ANCILLARY + 44;
/// Ancillary offset of the tag-present flag: 1 if the frame has a VLAN tag in the skb, else 0
/// (`SKF_AD_VLAN_TAG_PRESENT`).
pub(super) const VLAN_PRESENT_OFFSET: u32 = ANCILLARY + 48;
/// Ancillary offset of the EtherType of the VLAN tag (`SKF_AD_VLAN_TPID`).
pub(super) const VLAN_TPID_OFFSET: u32 = ANCILLARY + 60;
