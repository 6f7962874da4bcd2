//! Offsets of ancillary loads that the kernel supports (`SKF_AD_…`).

use super::super::insn::ANCILLARY;

pub(super) const PACKET_TYPE: u32 = ANCILLARY + 4;
pub(super) const HARDWARE_TYPE: u32 = ANCILLARY + 28;
pub(super) const VLAN_TCI: u32 = ANCILLARY + 44;
pub(super) const VLAN_PRESENT: u32 = ANCILLARY + 48;
pub(super) const VLAN_TPID: u32 = ANCILLARY + 60;
