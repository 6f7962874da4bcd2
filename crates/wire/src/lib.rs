//! Parsers and builders for packet and capture formats, over `&[u8]`.
//!
//! Header views (`ethernet`, `vlan`, `arp`, `ipv4`, `ipv6`, `udp`, `tcp`), the layers of a frame
//! (`dissect::layers`, from which the marks of a block are set), flows (`flow`), application
//! messages (`dns`, `http`, `tls`), records that describe messages (`record`), and capture files
//! (`capture`).
//!
//! The crate does no I/O, allocates nothing per packet, never panics on any input, has no `unsafe`,
//! and needs time and memory bounded by the length of the input. Each view checks the length of its
//! bytes once. A length field with an invalid value is reported and never followed.
//!
//! Not supported: reassembly, decryption, tunnels (PPPoE, MPLS, GRE and VXLAN remain
//! `NetworkProtocol::Other` or a protocol number), and 802.11 frames.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]
#![warn(clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "tests fail by panicking, and their numbers are known"
    )
)]

pub mod dissect;
pub mod flow;

pub mod link;

pub mod arp;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;
pub mod vlan;

pub mod build;
pub mod linux_cooked;

pub mod address;
pub mod checksum;
pub mod ports;
pub mod source_route;

pub mod dns;
pub mod http;
pub mod tls;

pub mod capture;
pub mod record;

pub use dissect::{Layers, layers};
pub use flow::Flow;
pub use link::LinkType;

mod read;
