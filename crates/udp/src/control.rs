//! The control messages of a datagram from the ring, in the form in which the kernel writes them
//! (cmsg(3)).

use crate::address::{self, EncodedAddress};
use crate::ring::Datagram;
use crate::socket::ReceivedForm;
use std::net::{SocketAddr, SocketAddrV4};
use sys::preload::udp::{ControlMessage, ControlMessages};

/// Length of `struct cmsghdr` in bytes.
const HEADER_SIZE: usize = 16;
/// Length in bytes of all control messages that a ring can write, with their padding.
const LENGTH_MAX: usize = 24 * 8;
/// Levels and types of control messages.
mod kind {
    pub(super) const SOL_SOCKET: i32 = 1;
    pub(super) const IP: i32 = 0;
    pub(super) const IPV6: i32 = 41;
    pub(super) const TIMESTAMP: (i32, i32) = (SOL_SOCKET, 29);
    pub(super) const TIMESTAMP_NS: (i32, i32) = (SOL_SOCKET, 35);
    pub(super) const PACKET_INFO: (i32, i32) = (IP, 8);
    pub(super) const TIME_TO_LIVE: (i32, i32) = (IP, 2);
    pub(super) const SERVICE_TYPE: (i32, i32) = (IP, 1);
    pub(super) const DESTINATION_PORT: (i32, i32) = (IP, 20);
    pub(super) const PACKET_INFO_6: (i32, i32) = (IPV6, 50);
    pub(super) const HOP_LIMIT: (i32, i32) = (IPV6, 52);
    pub(super) const TRAFFIC_CLASS: (i32, i32) = (IPV6, 67);
}

/// Encoded control messages.
#[derive(Debug)]
pub(crate) struct EncodedControl {
    bytes: [u8; LENGTH_MAX],
    length: usize,
    /// Size in bytes of the program's buffer for control messages.
    room: usize,
    /// True if a message did not fit.
    pub(crate) is_truncated: bool,
}

impl EncodedControl {
    /// Encodes the wanted messages of a datagram into at most `room` bytes, in the kernel's order.
    pub(crate) fn new(form: ReceivedForm, datagram: &Datagram<'_>, room: usize) -> Self {
        let mut encoded = Self { bytes: [0; LENGTH_MAX], length: 0, room, is_truncated: false };
        let wanted = form.control;
        let seconds = (datagram.time_ns / 1_000_000_000).to_ne_bytes();
        let nanoseconds = datagram.time_ns % 1_000_000_000;
        if wanted.has(ControlMessage::Nanoseconds) {
            encoded.put(kind::TIMESTAMP_NS, &[&seconds, &nanoseconds.to_ne_bytes()]);
        } else if wanted.has(ControlMessage::Microseconds) {
            encoded.put(kind::TIMESTAMP, &[&seconds, &(nanoseconds / 1000).to_ne_bytes()]);
        }
        if form.is_v6 && wanted.has(ControlMessage::Destination6) {
            let host = address::mapped(datagram.to.ip()).octets();
            encoded.put(kind::PACKET_INFO_6, &[&host, &datagram.interface.to_ne_bytes()]);
        }
        match datagram.to {
            SocketAddr::V4(to) => encoded.put_v4(wanted, datagram, to),
            SocketAddr::V6(_) => encoded.put_v6(wanted, datagram),
        }
        encoded
    }

    fn put_v4(&mut self, wanted: ControlMessages, datagram: &Datagram<'_>, to: SocketAddrV4) {
        let host = to.ip().octets();
        if wanted.has(ControlMessage::Destination) {
            // The address to answer from, and the address in the packet.
            self.put(kind::PACKET_INFO, &[&datagram.interface.to_ne_bytes(), &host, &host]);
        }
        if wanted.has(ControlMessage::Hops) {
            self.put(kind::TIME_TO_LIVE, &[&i32::from(datagram.hops).to_ne_bytes()]);
        }
        if wanted.has(ControlMessage::ServiceType) {
            self.put(kind::SERVICE_TYPE, &[&[datagram.service_type]]);
        }
        if wanted.has(ControlMessage::DestinationPort) {
            let address = EncodedAddress::new(datagram.to, false, datagram.interface);
            self.put(kind::DESTINATION_PORT, &[address.bytes()]);
        }
    }

    fn put_v6(&mut self, wanted: ControlMessages, datagram: &Datagram<'_>) {
        if wanted.has(ControlMessage::Hops6) {
            self.put(kind::HOP_LIMIT, &[&i32::from(datagram.hops).to_ne_bytes()]);
        }
        if wanted.has(ControlMessage::TrafficClass) {
            self.put(kind::TRAFFIC_CLASS, &[&i32::from(datagram.service_type).to_ne_bytes()]);
        }
    }

    /// Appends a message whose data are `parts`. If the data do not fit, the message is truncated.
    /// If its header does not fit, it is omitted.
    fn put(&mut self, (level, kind): (i32, i32), parts: &[&[u8]]) {
        let left = self.room.min(LENGTH_MAX) - self.length;
        if left < HEADER_SIZE {
            self.is_truncated = true;
            return;
        }
        let data: usize = parts.iter().map(|part| part.len()).sum();
        let length = (HEADER_SIZE + data).min(left);
        self.is_truncated |= length < HEADER_SIZE + data;
        let header = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()];
        let source = header.iter().chain(parts).flat_map(|part| part.iter());
        let place = self.bytes.iter_mut().skip(self.length).take(length);
        place.zip(source).for_each(|(to, from)| *to = *from);
        self.length += (HEADER_SIZE + data.next_multiple_of(8)).min(left);
    }

    /// Returns the bytes for the program.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
