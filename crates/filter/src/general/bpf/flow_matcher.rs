//! Matching of all frames of a flow, for the command `why`.
//!
//! A libpcap expression tests only the first headers of a frame. It finds no ports after VLAN tags
//! or IPv6 extension headers, as the filter `dport` does. It does not assign the later fragments of
//! a datagram to the first fragment, as the filter `ip` does. A [`FlowMatcher`] therefore also
//! tests frames with tags and extension headers removed, and accepts a later fragment if the first
//! fragment of its datagram matches.

use super::ExpressionMatcher;
use crate::contract::{Arguments, Block, Mistake, Time};
use crate::layers;
use std::collections::HashMap;
use std::net::IpAddr;
use wire::ethernet::ethertype;
use wire::ip::Fragment;
use wire::ipv4::Ipv4;
use wire::ipv6::{self, Ipv6, UpperLayer};
use wire::link::NetworkProtocol;
use wire::{Layers, LinkType};

/// Maximum number of fragmented datagrams in each of the two tables of a [`FlowMatcher`].
const FRAGMENTED_DATAGRAMS_MAX: usize = 1 << 20;

/// Maximum time in ns between two fragments of one datagram, equal to the time after which `ip`
/// drops an incomplete datagram.
const FRAGMENT_TIME_NS_MAX: Time = 30_000_000_000;

/// The fields that identify a fragmented datagram: addresses, protocol and identification.
type DatagramKey = (IpAddr, IpAddr, u8, u32);

/// A compiled expression, and the fragmented datagrams whose first fragment it has accepted.
#[derive(Debug)]
pub struct FlowMatcher {
    matcher: ExpressionMatcher,
    /// Arrival times of the first fragments that the expression has accepted, by datagram.
    datagrams: HashMap<DatagramKey, Vec<Time>>,
    /// Arrival times, by datagram, of later fragments that were rejected because no first fragment
    /// of their datagram had been accepted.
    unmatched_fragments: HashMap<DatagramKey, Vec<Time>>,
    has_missed: bool,
    /// Buffer for a frame without its tags and extension headers.
    plain: Vec<u8>,
}

impl FlowMatcher {
    /// Creates the matcher from the arguments of a `bpf` filter.
    pub fn new(arguments: Arguments) -> Result<Self, Mistake> {
        Ok(Self {
            matcher: ExpressionMatcher::new(arguments)?,
            datagrams: HashMap::new(),
            unmatched_fragments: HashMap::new(),
            has_missed: false,
            plain: Vec::new(),
        })
    }

    /// Returns true if the block's frame belongs to a flow that the expression accepts.
    pub fn matches(&mut self, block: &Block<'_>) -> bool {
        if !block.marks.is_frame() {
            return false;
        }
        let layers = wire::layers(LinkType(block.marks.link), layers::head_bytes(block));
        let matched =
            self.matcher.matches(block) || self.plain_frame_matches(block, &layers) == Some(true);
        if layers.fragment == Fragment::Whole {
            return matched;
        }
        let Some(key) = datagram_key(block.frame, &layers) else { return matched };
        let time = block.context.time;
        if !matches!(layers.fragment, Fragment::Later) {
            if matched {
                self.has_missed |=
                    is_within_fragment_time(self.unmatched_fragments.get(&key), time);
                record_arrival_time(&mut self.datagrams, key, time);
            }
            return matched;
        }
        let ours = is_within_fragment_time(self.datagrams.get(&key), time);
        if !ours && !matched {
            record_arrival_time(&mut self.unmatched_fragments, key, time);
        }
        matched || ours
    }

    /// Returns true if the matcher has rejected a fragment of the flow, because the fragment
    /// arrived before the first fragment of its datagram. A second pass over the same frames
    /// accepts such a fragment.
    #[must_use]
    pub const fn has_missed_fragments(&self) -> bool {
        self.has_missed
    }

    /// Prepares the matcher for a second pass over the frames of the first pass.
    pub fn prepare_second_pass(&mut self) {
        self.has_missed = false;
        self.unmatched_fragments.clear();
    }

    /// Removes the tags and extension headers from a copy of the frame, and applies the expression
    /// to the copy. Returns true if the expression accepts the copy. Returns `None` if there is
    /// nothing to remove, or if a header was not captured.
    fn plain_frame_matches(&mut self, block: &Block<'_>, layers: &Layers) -> Option<bool> {
        let network = usize::from(layers.l3?);
        let packet = block.frame.get(network..)?;
        let plain = &mut self.plain;
        plain.clear();
        let link = match block.marks.link {
            link if link == LinkType::ETHERNET.0 => {
                plain.extend_from_slice(block.frame.get(..12)?);
                let ethertype = match layers.network {
                    NetworkProtocol::Ipv4 => ethertype::IPV4,
                    NetworkProtocol::Ipv6 => ethertype::IPV6,
                    _ => return None,
                };
                plain.extend_from_slice(&ethertype.to_be_bytes());
                LinkType::ETHERNET
            }
            _ => LinkType::RAW,
        };
        let header = plain.len();
        match (layers.network, layers.fragment) {
            (NetworkProtocol::Ipv6, Fragment::Whole | Fragment::First) => {
                let UpperLayer::Protocol { protocol, offset, .. } = ipv6::find_upper_layer(packet)
                else {
                    return None;
                };
                let (ip, _) = Ipv6::parse(packet)?;
                let skipped = offset.checked_sub(ipv6::HEADER_LENGTH as u16)?;
                if skipped == 0 && layers.tags.count == 0 {
                    return None;
                }
                plain.extend_from_slice(packet.get(..ipv6::HEADER_LENGTH)?);
                let length = ip.payload_length().saturating_sub(skipped);
                plain.get_mut(header + 4..header + 6)?.copy_from_slice(&length.to_be_bytes());
                *plain.get_mut(header + 6)? = protocol;
                plain.extend_from_slice(packet.get(usize::from(offset)..)?);
            }
            _ if layers.tags.count == 0 => return None,
            _ => plain.extend_from_slice(packet),
        }
        let removed = block.frame.len().saturating_sub(plain.len());
        let wire_length = block.marks.wire_length.saturating_sub(removed as u32);
        self.matcher.frame_matches(link, &self.plain, wire_length)
    }
}

/// Returns the datagram to which a fragment belongs, or `None` if its headers were not captured.
fn datagram_key(frame: &[u8], layers: &Layers) -> Option<DatagramKey> {
    let packet = frame.get(usize::from(layers.l3?)..)?;
    if let NetworkProtocol::Ipv4 = layers.network {
        let (ip, _) = Ipv4::parse(packet)?;
        let identification = ip.identification().into();
        return Some((ip.source().into(), ip.target().into(), ip.protocol(), identification));
    }
    let (ip, _) = Ipv6::parse(packet)?;
    let header = ipv6::find_fragment_header(packet)?;
    // RFC 8200 identifies a datagram without its protocol number.
    Some((ip.source().into(), ip.target().into(), 0, header.identification))
}

/// Adds `time` to the arrival times of a datagram, unless it is less than a second from the last of
/// them. Does nothing if the datagram is not in the table and the table is full.
fn record_arrival_time(
    datagrams: &mut HashMap<DatagramKey, Vec<Time>>,
    key: DatagramKey,
    time: Time,
) {
    const SECOND: Time = 1_000_000_000;
    if datagrams.len() >= FRAGMENTED_DATAGRAMS_MAX && !datagrams.contains_key(&key) {
        return;
    }
    let times = datagrams.entry(key).or_default();
    if times.last().is_none_or(|last| last.abs_diff(time) >= SECOND) {
        times.push(time);
    }
}

/// Returns true if `time` is at most [`FRAGMENT_TIME_NS_MAX`] from one of `times`, so that both may
/// be times of fragments of one datagram.
fn is_within_fragment_time(times: Option<&Vec<Time>>, time: Time) -> bool {
    times.is_some_and(|times| times.iter().any(|one| one.abs_diff(time) <= FRAGMENT_TIME_NS_MAX))
}
