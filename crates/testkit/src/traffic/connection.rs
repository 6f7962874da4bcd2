//! One TCP connection as a tap sees it: handshake, data in segments, acknowledgements, end.

use std::net::IpAddr;

use super::{Capture, reply, segment};
use crate::packet::Frame;
use crate::random::Random;

/// The most data of a segment: Ethernet's 1500 bytes less the headers of IPv6 and TCP.
const SEGMENT_MAX: usize = 1_440;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The sender of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// A connection that is open.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    client: IpAddr,
    server: IpAddr,
    ports: (u16, u16),
    /// The next sequence number of the client and of the server.
    sequence: (u32, u32),
}

impl Connection {
    /// Shakes hands. The addresses are those of client and server.
    pub(crate) fn open(
        capture: &mut Capture,
        random: &mut Random,
        (client, server): (&str, &str),
        port: u16,
    ) -> Self {
        let parse = |text: &str| text.parse().expect("the addresses here are addresses");
        let ports = (random.within(32_768..61_000) as u16, port);
        let sequence = (random.next() as u32, random.next() as u32);
        let mut this = Self { client: parse(client), server: parse(server), ports, sequence };
        this.shake_hands(capture);
        this
    }

    /// Another connection between the same ports, whose numbers begin far from those of this one.
    pub(crate) fn again(&self, capture: &mut Capture) -> Self {
        let (client, server) = self.sequence;
        let away = |sequence: u32| sequence.wrapping_add(1 << 30);
        let mut this = Self { sequence: (away(client), away(server)), ..*self };
        this.shake_hands(capture);
        this
    }

    fn shake_hands(&mut self, capture: &mut Capture) {
        capture.add(500, self.handshake(Side::Client, SYN));
        self.advance(Side::Client, 1);
        capture.add(12_000, self.handshake(Side::Server, SYN | ACK));
        self.advance(Side::Server, 1);
        self.acknowledge(capture, Side::Client);
    }

    /// Sends data in segments; the other side acknowledges the last.
    pub(crate) fn send(&mut self, capture: &mut Capture, side: Side, data: &[u8]) {
        for segment in self.segments(side, data) {
            capture.add(220, segment);
        }
        self.acknowledge(capture, side.other());
    }

    /// The segments of some data, in order, for a caller who wants to disturb them.
    pub(crate) fn segments(&mut self, side: Side, data: &[u8]) -> Vec<Vec<u8>> {
        let last = data.len().div_ceil(SEGMENT_MAX).saturating_sub(1);
        let chunks = data.chunks(SEGMENT_MAX).enumerate();
        chunks
            .map(|(index, chunk)| {
                let flags = if index == last { PSH | ACK } else { ACK };
                let frame = self.frame(side, flags, &[], chunk);
                self.advance(side, chunk.len() as u32);
                frame
            })
            .collect()
    }

    /// Acknowledges all that the other side has sent.
    pub(crate) fn acknowledge(&self, capture: &mut Capture, side: Side) {
        capture.add(90, self.frame(side, ACK, &[], &[]));
    }

    /// Ends the connection from both sides.
    pub(crate) fn close(mut self, capture: &mut Capture) {
        for side in [Side::Client, Side::Server] {
            capture.add(700, self.frame(side, FIN | ACK, &[], &[]));
            self.advance(side, 1);
        }
        self.acknowledge(capture, Side::Client);
    }

    /// Ends the connection from the client's side, at once.
    pub(crate) fn reset(self, capture: &mut Capture) {
        capture.add(300, self.frame(Side::Client, RST | ACK, &[], &[]));
    }

    /// A segment with the options of a handshake: segment size, SACK permitted, window scale.
    fn handshake(&self, side: Side, flags: u8) -> Vec<u8> {
        let size = (SEGMENT_MAX as u16).to_be_bytes();
        let options = [2, 4, size[0], size[1], 4, 2, 1, 3, 3, 7];
        self.frame(side, flags, &options, &[])
    }

    fn frame(&self, side: Side, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
        let (client, server) = self.ports;
        let (mine, theirs) = self.sequence;
        let frame = match side {
            Side::Client => Frame::ethernet().ip(self.client, self.server),
            Side::Server => reply().ip(self.server, self.client),
        };
        let acknowledged = |number| if flags & ACK == 0 { 0 } else { number };
        let mut segment = match side {
            Side::Client => segment((client, server), mine, acknowledged(theirs), flags),
            Side::Server => segment((server, client), theirs, acknowledged(mine), flags),
        };
        segment.options = options.to_vec();
        frame.tcp(&segment, data)
    }

    /// A segment of one side whose data lies so far behind what it has sent.
    pub(crate) fn piece(&self, side: Side, flags: u8, ahead: u32, data: &[u8]) -> Vec<u8> {
        let mut moved = Self { ..*self };
        moved.advance(side, ahead);
        moved.frame(side, flags, &[], data)
    }

    /// Goes on behind so much more data of one side.
    pub(crate) const fn advance(&mut self, side: Side, by: u32) {
        let sequence = match side {
            Side::Client => &mut self.sequence.0,
            Side::Server => &mut self.sequence.1,
        };
        *sequence = sequence.wrapping_add(by);
    }
}

impl Side {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
