//! Packet and capture formats over `&[u8]`.
//!
//! Bytes go in, views and offsets come out: header views (`ethernet`, `vlan`, `ipv4`, `ipv6`,
//! `udp`, `tcp`), one cheap pass over a frame (`dissect::layers`, which sets the marks of a block),
//! the flow that a frame belongs to (`flow`), messages of two protocols (`dns`, `tls`), and capture
//! files (`capture`).
//!
//! What holds everywhere in this crate: no I/O, no allocation per packet, no panic on any bytes, no
//! `unsafe`, time and work bounded by the length of the input. A view checks its length once and
//! then only answers; a field that lies about a length is reported, never followed.
//!
//! What is absent: nothing here reassembles, decrypts or looks into a tunnel (PPPoE, MPLS, GRE,
//! VXLAN stay `Network::Other` or a protocol number), and 802.11 frames are not taken apart.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]
#![warn(clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "a test fails by panicking, and knows its numbers"
    )
)]

pub mod dissect;
pub mod flow;

pub mod link;

pub mod arp;
pub mod ethernet;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;
pub mod vlan;

pub mod address;
pub mod checksum;
pub mod ports;

pub mod dns;
pub mod http;
pub mod tls;

pub mod capture;
pub mod record;

pub use dissect::{Layers, layers};
pub use flow::Flow;
pub use link::LinkType;

mod read;
