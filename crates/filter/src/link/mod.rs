//! Link layer filters: Ethernet and its equivalents, VLAN tags.

pub mod eth;
pub mod strip;
pub mod vlan;
