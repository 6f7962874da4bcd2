//! Offsets of ancillary loads that the kernel supports (`SKF_AD_…`).

use super::super::insn::ANCILLARY;

/// Packet type (`SKF_AD_PKTTYPE`).
pub(super) const PACKET_TYPE: u32 = ANCILLARY + 4;
/// Device type (`SKF_AD_HATYPE`).
pub(super) const HARDWARE_TYPE: u32 = ANCILLARY + 28;
/// Control information of the VLAN tag (`SKF_AD_VLAN_TAG`).
pub(super) const VLAN_TCI: u32 = ANCILLARY + 44;
/// Presence of a VLAN tag, 1 or 0 (`SKF_AD_VLAN_TAG_PRESENT`).
pub(super) const VLAN_PRESENT: u32 = ANCILLARY + 48;
/// EtherType of the VLAN tag (`SKF_AD_VLAN_TPID`).
pub(super) const VLAN_TPID: u32 = ANCILLARY + 60;
