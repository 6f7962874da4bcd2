//! A TCP connection as seen in a capture: handshake, data segments, acknowledgements and close.

use std::net::IpAddr;

use super::{Capture, reply_frame, tcp_header};
use crate::packet::Frame;
use crate::random::Random;

/// Maximum payload of a segment in bytes: the Ethernet MTU of 1500 without the headers of IPv6 and
/// TCP.
const SEGMENT_PAYLOAD_MAX: usize = 1_440;

/// The TCP flag FIN.
const FIN: u8 = 0x01;
/// The TCP flag SYN.
const SYN: u8 = 0x02;
/// The TCP flag RST.
const RST: u8 = 0x04;
/// The TCP flag PSH.
const PSH: u8 = 0x08;
/// The TCP flag ACK.
const ACK: u8 = 0x10;

/// The side of a connection, client or server, that sends a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// A generated TCP connection between a client and a server, after the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    client: IpAddr,
    server: IpAddr,
    ports: (u16, u16),
    /// The next sequence numbers of the client and of the server.
    sequence: (u32, u32),
}

impl Connection {
    /// Opens a connection between the addresses of the client and the server, and captures its
    /// handshake.
    pub(crate) fn open(
        capture: &mut Capture,
        random: &mut Random,
        (client, server): (&str, &str),
        port: u16,
    ) -> Self {
        let parse = |text: &str| text.parse().expect("the addresses here are addresses");
        let ports = (random.within(32_768..61_000) as u16, port);
        let sequence = (random.next_u64() as u32, random.next_u64() as u32);
        let mut this = Self { client: parse(client), server: parse(server), ports, sequence };
        this.capture_handshake(capture);
        this
    }

    /// Opens a second connection between the same ports, with initial sequence numbers 2³⁰ higher.
    pub(crate) fn reopen(&self, capture: &mut Capture) -> Self {
        let (client, server) = self.sequence;
        let away = |sequence: u32| sequence.wrapping_add(1 << 30);
        let mut this = Self { sequence: (away(client), away(server)), ..*self };
        this.capture_handshake(capture);
        this
    }

    fn capture_handshake(&mut self, capture: &mut Capture) {
        capture.add(500, self.handshake_segment(Side::Client, SYN));
        self.advance(Side::Client, 1);
        capture.add(12_000, self.handshake_segment(Side::Server, SYN | ACK));
        self.advance(Side::Server, 1);
        self.acknowledge(capture, Side::Client);
    }

    /// Sends data in segments. The peer sends one acknowledgement, after the last segment.
    pub(crate) fn send(&mut self, capture: &mut Capture, side: Side, data: &[u8]) {
        for segment in self.split_into_segments(side, data) {
            capture.add(220, segment);
        }
        self.acknowledge(capture, side.peer());
    }

    /// Splits data into segments, and returns them without adding them to a capture. The caller
    /// adds them to a capture, and can reorder or omit some of them.
    pub(crate) fn split_into_segments(&mut self, side: Side, data: &[u8]) -> Vec<Vec<u8>> {
        let last = data.len().div_ceil(SEGMENT_PAYLOAD_MAX).saturating_sub(1);
        let chunks = data.chunks(SEGMENT_PAYLOAD_MAX).enumerate();
        chunks
            .map(|(index, chunk)| {
                let flags = if index == last { PSH | ACK } else { ACK };
                let frame = self.segment_frame(side, flags, &[], chunk);
                self.advance(side, chunk.len() as u32);
                frame
            })
            .collect()
    }

    /// Adds an acknowledgement by `side` to the capture. It acknowledges all data that its peer has
    /// sent so far.
    pub(crate) fn acknowledge(&self, capture: &mut Capture, side: Side) {
        capture.add(90, self.segment_frame(side, ACK, &[], &[]));
    }

    /// Adds the close of both directions to the capture: two FINs and the last acknowledgement.
    pub(crate) fn close(mut self, capture: &mut Capture) {
        for side in [Side::Client, Side::Server] {
            capture.add(700, self.segment_frame(side, FIN | ACK, &[], &[]));
            self.advance(side, 1);
        }
        self.acknowledge(capture, Side::Client);
    }

    /// Adds a reset by the client to the capture.
    pub(crate) fn reset(self, capture: &mut Capture) {
        capture.add(300, self.segment_frame(Side::Client, RST | ACK, &[], &[]));
    }

    /// Returns a segment with the TCP options of a handshake: maximum segment size, SACK permitted,
    /// window scale.
    fn handshake_segment(&self, side: Side, flags: u8) -> Vec<u8> {
        let size = (SEGMENT_PAYLOAD_MAX as u16).to_be_bytes();
        let options = [2, 4, size[0], size[1], 4, 2, 1, 3, 3, 7];
        self.segment_frame(side, flags, &options, &[])
    }

    fn segment_frame(&self, side: Side, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
        let (client, server) = self.ports;
        let (mine, theirs) = self.sequence;
        let frame = match side {
            Side::Client => Frame::ethernet().ip(self.client, self.server),
            Side::Server => reply_frame().ip(self.server, self.client),
        };
        let acknowledged = |number| if flags & ACK == 0 { 0 } else { number };
        let mut segment = match side {
            Side::Client => tcp_header((client, server), mine, acknowledged(theirs), flags),
            Side::Server => tcp_header((server, client), theirs, acknowledged(mine), flags),
        };
        segment.options = options.to_vec();
        frame.tcp(&segment, data)
    }

    /// Returns a segment whose data begins `ahead` bytes after the next sequence number of `side`.
    /// Does not advance the sequence number.
    pub(crate) fn segment_at_offset(
        &self,
        side: Side,
        flags: u8,
        ahead: u32,
        data: &[u8],
    ) -> Vec<u8> {
        let mut moved = Self { ..*self };
        moved.advance(side, ahead);
        moved.segment_frame(side, flags, &[], data)
    }

    /// Advances the next sequence number of a side.
    pub(crate) const fn advance(&mut self, side: Side, by: u32) {
        let sequence = match side {
            Side::Client => &mut self.sequence.0,
            Side::Server => &mut self.sequence.1,
        };
        *sequence = sequence.wrapping_add(by);
    }
}

impl Side {
    pub(super) const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
