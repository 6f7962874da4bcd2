//! Link layer filters: Ethernet and similar link types, VLAN tags.

pub mod eth;
pub mod strip;
pub mod vlan;
