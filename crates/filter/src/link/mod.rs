//! Filters of the link layer: Ethernet and what stands in its place, VLAN tags.

pub mod eth;
pub mod strip;
pub mod vlan;
