//! The control messages of a datagram from the ring, in the form in which the kernel writes them
//! (cmsg(3)).

use crate::address::{self, EncodedAddress};
use crate::ring::Datagram;
use std::net::{SocketAddr, SocketAddrV4};
use sys::preload::udp::{ControlMessage, ControlMessages};

/// Length of `struct cmsghdr` in bytes.
const CMSG_HEADER_SIZE: usize = 16;
/// Maximum length in bytes of all control messages that this library writes for one datagram, with
/// their padding.
const CONTROL_LENGTH_MAX: usize = 24 * 9;
/// Levels and types of control messages.
mod kind {
    pub(super) const SOL_SOCKET: i32 = 1;
    pub(super) const SOL_IP: i32 = 0;
    pub(super) const SOL_IPV6: i32 = 41;
    pub(super) const TIMESTAMP_MESSAGE: (i32, i32) = (SOL_SOCKET, 29);
    pub(super) const TIMESTAMP_NS_MESSAGE: (i32, i32) = (SOL_SOCKET, 35);
    pub(super) const DROP_COUNT_MESSAGE: (i32, i32) = (SOL_SOCKET, 40);
    pub(super) const IP_PACKET_INFO: (i32, i32) = (SOL_IP, 8);
    pub(super) const IP_TIME_TO_LIVE: (i32, i32) = (SOL_IP, 2);
    pub(super) const IP_TYPE_OF_SERVICE: (i32, i32) = (SOL_IP, 1);
    pub(super) const IP_ORIGINAL_DESTINATION: (i32, i32) = (SOL_IP, 20);
    pub(super) const IPV6_PACKET_INFO: (i32, i32) = (SOL_IPV6, 50);
    pub(super) const IPV6_HOP_LIMIT: (i32, i32) = (SOL_IPV6, 52);
    pub(super) const IPV6_TRAFFIC_CLASS: (i32, i32) = (SOL_IPV6, 67);
}

/// The form in which a program expects the addresses and control messages of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceiveFormat {
    /// True for an IPv6 socket, which receives IPv4 addresses mapped to IPv6.
    pub(crate) is_v6: bool,
    /// The control messages that the program requests.
    pub(crate) control: ControlMessages,
}

/// The control messages of one datagram, in the encoding in which a receive call returns them to
/// the program.
#[derive(Debug)]
pub(crate) struct EncodedControl {
    bytes: [u8; CONTROL_LENGTH_MAX],
    length: usize,
    /// Size in bytes of the program's buffer for control messages.
    room: usize,
    /// True if a control message did not fit into the program's buffer.
    pub(crate) is_truncated: bool,
}

impl EncodedControl {
    /// Encodes the control messages that the program requests for a datagram, in the order in which
    /// the kernel writes them. `room` is the size of the program's buffer in bytes.
    pub(crate) fn new(form: ReceiveFormat, datagram: &Datagram<'_>, room: usize) -> Self {
        let mut encoded =
            Self { bytes: [0; CONTROL_LENGTH_MAX], length: 0, room, is_truncated: false };
        let wanted = form.control;
        let seconds = (datagram.time_ns / 1_000_000_000).to_ne_bytes();
        let nanoseconds = datagram.time_ns % 1_000_000_000;
        if wanted.contains(ControlMessage::Nanoseconds) {
            encoded
                .put_message(kind::TIMESTAMP_NS_MESSAGE, &[&seconds, &nanoseconds.to_ne_bytes()]);
        } else if wanted.contains(ControlMessage::Microseconds) {
            encoded.put_message(
                kind::TIMESTAMP_MESSAGE,
                &[&seconds, &(nanoseconds / 1000).to_ne_bytes()],
            );
        }
        if wanted.contains(ControlMessage::Drops) && datagram.drops > 0 {
            encoded.put_message(kind::DROP_COUNT_MESSAGE, &[&datagram.drops.to_ne_bytes()]);
        }
        if form.is_v6 && wanted.contains(ControlMessage::Destination6) {
            let host = address::to_ipv6_mapped(datagram.to.ip()).octets();
            encoded
                .put_message(kind::IPV6_PACKET_INFO, &[&host, &datagram.interface.to_ne_bytes()]);
        }
        match datagram.to {
            SocketAddr::V4(to) => encoded.put_ipv4_messages(wanted, datagram, to),
            SocketAddr::V6(_) => encoded.put_ipv6_messages(wanted, datagram),
        }
        encoded
    }

    fn put_ipv4_messages(
        &mut self,
        wanted: ControlMessages,
        datagram: &Datagram<'_>,
        to: SocketAddrV4,
    ) {
        let host = to.ip().octets();
        if wanted.contains(ControlMessage::Destination) {
            // The local address to answer from, and the destination address in the packet.
            self.put_message(
                kind::IP_PACKET_INFO,
                &[&datagram.interface.to_ne_bytes(), &host, &host],
            );
        }
        if wanted.contains(ControlMessage::Hops) {
            self.put_message(kind::IP_TIME_TO_LIVE, &[&i32::from(datagram.hops).to_ne_bytes()]);
        }
        if wanted.contains(ControlMessage::ServiceType) {
            self.put_message(kind::IP_TYPE_OF_SERVICE, &[&[datagram.service_type]]);
        }
        if wanted.contains(ControlMessage::DestinationPort) {
            let address = EncodedAddress::new(datagram.to, false, datagram.interface);
            self.put_message(kind::IP_ORIGINAL_DESTINATION, &[address.bytes()]);
        }
    }

    fn put_ipv6_messages(&mut self, wanted: ControlMessages, datagram: &Datagram<'_>) {
        if wanted.contains(ControlMessage::Hops6) {
            self.put_message(kind::IPV6_HOP_LIMIT, &[&i32::from(datagram.hops).to_ne_bytes()]);
        }
        if wanted.contains(ControlMessage::TrafficClass) {
            self.put_message(
                kind::IPV6_TRAFFIC_CLASS,
                &[&i32::from(datagram.service_type).to_ne_bytes()],
            );
        }
    }

    /// Appends a message whose data are `parts`. If the data do not fit, the message is truncated.
    /// If not even its header fits, nothing is appended.
    fn put_message(&mut self, (level, kind): (i32, i32), parts: &[&[u8]]) {
        let left = self.room.min(CONTROL_LENGTH_MAX) - self.length;
        if left < CMSG_HEADER_SIZE {
            self.is_truncated = true;
            return;
        }
        let data: usize = parts.iter().map(|part| part.len()).sum();
        let length = (CMSG_HEADER_SIZE + data).min(left);
        self.is_truncated |= length < CMSG_HEADER_SIZE + data;
        let header = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()];
        let source = header.iter().chain(parts).flat_map(|part| part.iter());
        let place = self.bytes.iter_mut().skip(self.length).take(length);
        place.zip(source).for_each(|(to, from)| *to = *from);
        self.length += (CMSG_HEADER_SIZE + data.next_multiple_of(8)).min(left);
    }

    /// Returns the encoded messages.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Adds `more` to the number of dropped datagrams that the kernel has reported in a control
/// message. `room` is the program's buffer for control messages, of which the kernel has filled
/// `used` bytes. Appends a message if none contains the number. Returns the new number of used
/// bytes, or `None` if the message does not fit.
pub(crate) fn add_drop_count(room: &mut [u8], used: usize, more: u32) -> Option<usize> {
    let word =
        |bytes: &[u8], at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0;
    while let Some(message) = room.get_mut(at..used).filter(|rest| rest.len() >= CMSG_HEADER_SIZE) {
        let length = message.first_chunk().map_or(0, |length| usize::from_ne_bytes(*length));
        let found = (word(message, 8), word(message, 12));
        if found == (Some(kind::DROP_COUNT_MESSAGE.0), Some(kind::DROP_COUNT_MESSAGE.1))
            && let Some(place) = message.get_mut(CMSG_HEADER_SIZE..CMSG_HEADER_SIZE + 4)
            && let Ok(drops) = <[u8; 4]>::try_from(&*place)
        {
            place.copy_from_slice(&u32::from_ne_bytes(drops).wrapping_add(more).to_ne_bytes());
            return Some(used);
        }
        at += length.next_multiple_of(8).max(CMSG_HEADER_SIZE);
    }
    let start = used.next_multiple_of(8);
    let place = room.get_mut(start..start + CMSG_HEADER_SIZE + 8)?;
    let length = (CMSG_HEADER_SIZE + 4).to_ne_bytes();
    let (level, kind) = kind::DROP_COUNT_MESSAGE;
    let words = [level.to_ne_bytes(), kind.to_ne_bytes(), more.to_ne_bytes(), [0; 4]];
    let source = length.iter().chain(words.as_flattened());
    place.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
    Some(start + CMSG_HEADER_SIZE + 8)
}
