//! `rewrite`: overwrites addresses, ports or the TTL, and updates checksums.
//!
//! Input: frames, packets or segments. Output: the same blocks with these fields changed. Checksums
//! are updated incrementally (RFC 1624) and never recomputed, so a wrong checksum stays wrong, and
//! no payload is read. If the device has yet to fill in the checksum (offload), only the sum of the
//! pseudo header is updated. [SL §6.1, rewriting]
//!
//! The twin edits the frame, so it runs only on redirected frames. XDP does not report whether a
//! checksum has been filled in. The twin therefore leaves a frame whose checksum equals the sum of
//! its pseudo header to the user implementation.

mod change;
mod emit;

#[cfg(test)]
mod tests;

use crate::layers::{self, HEAD_SIZE, HeaderError};
use crate::prelude::*;
use change::{Change, Changes};
use std::net::Ipv4Addr;
use wire::ip::{Fragment, protocol};
use wire::{LinkType, ethernet, ipv4, ipv6, ports, tcp, udp};

/// Catalog entry of `rewrite`, which overwrites addresses, ports or the TTL, and updates checksums.
pub const REWRITE: Description = Description {
    name: "rewrite",
    summary: "overwrite addresses, ports or the TTL, and update checksums",
    details: "\
Overwrites header fields: the addresses of Ethernet (`smac=`, `dmac=`) and IPv4 (`src=`, `dst=`),
the ports of TCP or UDP (`sport=`, `dport=`), and the time to live or IPv6 hop limit (`ttl=`). Class
and view stay. Checksums are updated by the difference, so a wrong one stays wrong; a UDP checksum
of 0 stays 0. Other branches still see the old bytes.

A block of which one field cannot be changed stays as it was. Reasons for no class: `not ethernet`,
`not ip`, `not ipv4`, `malformed`, `cut`, `too deep`, `fragment` (a later one has no ports), `no
port` (neither TCP nor UDP), `other checksum` (DCCP and UDP-Lite, which cover addresses).",
    example: "replay web.pcap | rewrite dst=10.0.0.9 ttl=3 | pcap other.pcap",
    kind: FilterKind::Editing,
    input_forms: Forms::FRAMED,
    reads: ReadDepth::Head(HEAD_SIZE),
    parameters: &[
        Parameter::optional(
            "smac",
            ParameterType::Text,
            "source address of Ethernet, such as 02:00:00:00:00:01",
        ),
        Parameter::optional("dmac", ParameterType::Text, "target address of Ethernet"),
        Parameter::optional("src", ParameterType::Text, "source address of IPv4, such as 10.0.0.1"),
        Parameter::optional("dst", ParameterType::Text, "target address of IPv4"),
        Parameter::optional("sport", PORT_PARAMETER_TYPE, "source port of TCP or UDP"),
        Parameter::optional("dport", PORT_PARAMETER_TYPE, "target port of TCP or UDP"),
        Parameter::optional(
            "ttl",
            ParameterType::Number { low: 1, high: 255 },
            "time to live, or hop limit of IPv6",
        ),
    ],
    reasons: &[
        "not ip",
        "malformed",
        "cut",
        "too deep",
        "fragment",
        "not ethernet",
        "not ipv4",
        "no port",
        "other checksum",
    ],
    constructor: Some(make_filter),
    emit_twin: Some(emit::emit_twin),
    twin_right: Some(FilterRight::ChangeFrames),
    twin_test_arguments: &[
        "smac=02:00:00:00:00:01 dmac=02:00:00:00:00:fe",
        "ttl=7",
        "dst=192.168.7.9 sport=0 ttl=255",
        "src=0.0.0.0 dst=255.255.255.255 dport=65535",
    ],
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(REWRITE.reasons, 5);
const NOT_ETHERNET: Reason = REWRITE.reason("not ethernet");
const NOT_IPV4: Reason = REWRITE.reason("not ipv4");
const NO_PORT: Reason = REWRITE.reason("no port");
const UNSUPPORTED_CHECKSUM: Reason = REWRITE.reason("other checksum");
const PORT_PARAMETER_TYPE: ParameterType = ParameterType::Number { low: 0, high: 0xffff };
/// Protocol numbers of DCCP and UDP-Lite. Their checksums cover the addresses, but this filter
/// cannot update them.
const UNSUPPORTED_CHECKSUM_PROTOCOLS: [u8; 2] = [33, 136];

/// The new values of the header fields; `None` for each field that stays unchanged.
#[derive(Clone, Copy, Debug)]
struct RewriteFields {
    macs: [Option<[u8; 6]>; 2],
    addresses: [Option<u32>; 2],
    ports: [Option<u16>; 2],
    ttl: Option<u8>,
}

impl RewriteFields {
    fn from_arguments(arguments: &Arguments) -> Result<Self, Mistake> {
        let address = |name: &'static str| match arguments.text(name) {
            None => Ok(None),
            Some(text) => match text.parse::<Ipv4Addr>() {
                Ok(address) => Ok(Some(address.to_bits())),
                Err(_) => Err(Mistake::new(
                    name,
                    format!("`{text}` is not an IPv4 address; write it as 10.0.0.1"),
                )),
            },
        };
        let port = |name| arguments.number(name).and_then(|port| u16::try_from(port).ok());
        let wanted = Self {
            macs: [mac_argument(arguments, "dmac")?, mac_argument(arguments, "smac")?],
            addresses: [address("src")?, address("dst")?],
            ports: [port("sport"), port("dport")],
            ttl: arguments.number("ttl").and_then(|ttl| u8::try_from(ttl).ok()),
        };
        if wanted.needs_link_header() || wanted.needs_ip_header() {
            return Ok(wanted);
        }
        Err(Mistake::new("dst", "there is nothing to change; give an address, a port or a TTL"))
    }

    fn needs_link_header(&self) -> bool {
        self.macs.iter().any(Option::is_some)
    }

    fn needs_ip_header(&self) -> bool {
        self.ttl.is_some() || self.has_addresses() || self.has_ports()
    }

    fn has_addresses(&self) -> bool {
        self.addresses.iter().any(Option::is_some)
    }

    fn has_ports(&self) -> bool {
        self.ports.iter().any(Option::is_some)
    }
}

fn mac_argument(arguments: &Arguments, name: &'static str) -> Result<Option<[u8; 6]>, Mistake> {
    let Some(text) = arguments.text(name) else { return Ok(None) };
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    let two_digits = |part: &&str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    for byte in &mut mac {
        let part = parts.next().filter(two_digits);
        *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or_else(|| {
            Mistake::new(
                name,
                format!("`{text}` is not an Ethernet address; write it as 02:00:00:00:00:01"),
            )
        })?;
    }
    match parts.next() {
        None => Ok(Some(mac)),
        Some(_) => Err(Mistake::new(name, format!("`{text}` has more than six bytes"))),
    }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::edit(Rewrite { wanted: RewriteFields::from_arguments(arguments)? }))
}

struct Rewrite {
    wanted: RewriteFields,
}

impl Edit for Rewrite {
    fn edit(&mut self, block: &mut EditableBlock<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        if block.pointer.is_hole() {
            // A gap of a connection has no headers to change.
            return block.class();
        }
        let (pointer, marks, context) = (block.pointer, block.marks, block.context);
        let mut readable = Block { pointer, frame: block.frame(), marks, context };
        let changes = match self.wanted.planned_changes(&mut readable) {
            Ok(changes) => changes,
            Err(why) => return cx.answer_absent(why),
        };
        let range = changes.covered_range();
        if let Some(bytes) = block.write_frame(range.start, range.len(), OldBytes::Keep) {
            changes.apply(bytes);
        }
        block.class()
    }
}

/// Transport protocols whose checksum covers the addresses and can be updated: protocol number,
/// offset of the checksum, number of header bytes required, and true if a checksum of 0 means that
/// there is no checksum.
const CHECKSUM_PROTOCOLS: [(u8, usize, usize, bool); 2] = [
    (protocol::TCP, tcp::CHECKSUM_OFFSET, tcp::CHECKSUM_OFFSET + 2, false),
    (protocol::UDP, udp::CHECKSUM_OFFSET, udp::HEADER_LENGTH, true),
];

impl RewriteFields {
    fn planned_changes(&self, block: &mut Block<'_>) -> Result<Changes, Reason> {
        let mut changes = Changes::default();
        if self.needs_link_header() {
            if block.marks.link != LinkType::ETHERNET.0 {
                return Err(NOT_ETHERNET);
            }
            if block.frame.len() < ethernet::HEADER_LENGTH {
                return Err(HeaderError::Truncated.reason());
            }
            for (at, mac) in [ethernet::DST_OFFSET, ethernet::SRC_OFFSET].into_iter().zip(self.macs)
            {
                changes.extend(mac.map(|mac| Change::new(at, &mac)));
            }
        }
        if self.needs_ip_header() {
            self.packet_changes(block, &mut changes)?;
        }
        Ok(changes)
    }

    fn packet_changes(&self, block: &mut Block<'_>, changes: &mut Changes) -> Result<(), Reason> {
        let packet = layers::packet(block).map_err(HeaderError::reason)?;
        let network = packet.network as usize;
        let is_four = block.frame.get(network).is_some_and(|first| first >> 4 == 4);
        if self.has_addresses() && !is_four {
            return Err(NOT_IPV4);
        }
        let transport = self.transport_checksum(block, &packet)?;
        let frame = block.frame;
        let mut header =
            is_four.then(|| ChecksumUpdate::read(frame, network + ipv4::CHECKSUM_OFFSET));
        let unfilled = block.context.flags.contains(BlockFlags::CHECKSUM_UNSET);
        let mut covered = transport.map(|(at, may_be_absent)| ChecksumUpdate {
            unfilled,
            may_be_absent,
            ..ChecksumUpdate::read(frame, at)
        });
        if let Some(ttl) = self.ttl {
            if let Some(sum) = &mut header {
                let old = read_word(frame, network + ipv4::TTL_OFFSET);
                let new = u16::from(ttl) << 8 | old & 0xff;
                sum.value = wire::checksum::update_checksum_u16(sum.value, old, new);
                changes.push(Change::new(network + ipv4::TTL_OFFSET, &[ttl]));
            } else {
                changes.push(Change::new(network + ipv6::HOP_LIMIT_OFFSET, &[ttl]));
            }
        }
        for (at, new) in [ipv4::SRC_OFFSET, ipv4::DST_OFFSET].into_iter().zip(self.addresses) {
            let Some(new) = new else { continue };
            let old = u32::from(read_word(frame, network + at)) << 16;
            let old = old | u32::from(read_word(frame, network + at + 2));
            if let Some(sum) = &mut header {
                sum.value = wire::checksum::update_checksum_u32(sum.value, old, new);
            }
            if let Some(sum) = &mut covered {
                sum.replace_field(true, old, new);
            }
            changes.push(Change::new(network + at, &new.to_be_bytes()));
        }
        let data = packet.data as usize;
        for (at, new) in
            [ports::SRC_PORT_OFFSET, ports::DST_PORT_OFFSET].into_iter().zip(self.ports)
        {
            if let (Some(new), Some(sum)) = (new, &mut covered) {
                sum.replace_field(false, read_word(frame, data + at).into(), new.into());
                changes.push(Change::new(data + at, &new.to_be_bytes()));
            }
        }
        changes.extend([header, covered].into_iter().flatten().map(ChecksumUpdate::into_change));
        Ok(())
    }

    /// Finds the transport checksum that covers the changed fields. Returns its offset in the
    /// frame, and true if a checksum of 0 means that there is none. Returns `Ok(None)` if no
    /// checksum in the packet covers the changed fields. Fails with the reason if the packet cannot
    /// be changed.
    fn transport_checksum(
        &self,
        block: &Block<'_>,
        packet: &layers::Packet,
    ) -> Result<Option<(usize, bool)>, Reason> {
        if !self.has_addresses() && !self.has_ports() {
            return Ok(None);
        }
        if self.has_addresses() && UNSUPPORTED_CHECKSUM_PROTOCOLS.contains(&packet.protocol) {
            return Err(UNSUPPORTED_CHECKSUM);
        }
        let checked = CHECKSUM_PROTOCOLS.iter().find(|(protocol, ..)| *protocol == packet.protocol);
        let Some((_, at, length, may_be_absent)) = checked else {
            return if self.has_ports() { Err(NO_PORT) } else { Ok(None) };
        };
        if packet.fragment == Fragment::Later {
            return if self.has_ports() { Err(HeaderError::Fragment.reason()) } else { Ok(None) };
        }
        let (data, here) = (packet.data as usize, layers::head_bytes(block).len());
        if (packet.end as usize) < data + length {
            return Err(HeaderError::Malformed.reason());
        }
        if here < data + length {
            return Err(HeaderError::Truncated.reason());
        }
        Ok(Some((data + at, *may_be_absent)))
    }
}

/// An update of the checksum in a header, for changes to the fields that the checksum covers.
#[derive(Clone, Copy, Debug)]
struct ChecksumUpdate {
    at: usize,
    value: u16,
    unfilled: bool,
    may_be_absent: bool,
}

impl ChecksumUpdate {
    fn read(frame: &[u8], at: usize) -> Self {
        Self { at, value: read_word(frame, at), unfilled: false, may_be_absent: false }
    }

    /// Updates a transport checksum, as the kernel does, when `new` replaces `old` in a field that
    /// the checksum covers. `pseudo` is true if the field belongs to the pseudo header.
    fn replace_field(&mut self, pseudo: bool, old: u32, new: u32) {
        use wire::checksum::{update_checksum_u32, update_pseudo_header_sum_u32};
        let mended = match self.unfilled {
            _ if self.may_be_absent && self.value == 0 => return,
            true if pseudo => update_pseudo_header_sum_u32(self.value, old, new),
            true => self.value,
            false => update_checksum_u32(self.value, old, new),
        };
        self.value = if self.may_be_absent && mended == 0 { 0xffff } else { mended };
    }

    fn into_change(self) -> Change {
        Change::new(self.at, &self.value.to_be_bytes())
    }
}

fn read_word(frame: &[u8], at: usize) -> u16 {
    frame.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_be_bytes(*word))
}
