//! A builder for the capture of one TCP connection, with segments in order or out of order.

use crate::random::Random;
use crate::traffic::connection::{Connection, Side};
use crate::traffic::{
    CLIENT_ADDRESS, CLIENT_IPV6_ADDRESS, Capture, SERVER_ADDRESS, SERVER_IPV6_ADDRESS,
};

/// The TCP flag SYN.
pub(super) const SYN: u8 = 0x02;
/// The TCP flag RST.
pub(super) const RST: u8 = 0x04;
/// The TCP flag ACK.
pub(super) const ACK: u8 = 0x10;

/// A connection that is being captured. Each method appends frames to the capture.
pub(super) struct ConnectionCapture {
    pub(super) capture: Capture,
    pub(super) connection: Connection,
}

impl ConnectionCapture {
    /// Opens a connection to `port`, and captures its handshake. The seed determines the client's
    /// port and the initial sequence numbers.
    pub(super) fn new(seed: u64, port: u16) -> Self {
        Self::new_between_addresses(seed, (CLIENT_ADDRESS, SERVER_ADDRESS), port)
    }

    /// Like [`ConnectionCapture::new`], but over IPv6.
    pub(super) fn new_over_ipv6(seed: u64, port: u16) -> Self {
        Self::new_between_addresses(seed, (CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS), port)
    }

    fn new_between_addresses(seed: u64, ends: (&str, &str), port: u16) -> Self {
        let mut capture = Capture::new();
        let connection = Connection::open(&mut capture, &mut Random::new(seed), ends, port);
        Self { capture, connection }
    }

    /// Opens a connection before the capture begins, so that the handshake is missing.
    pub(super) fn new_without_handshake(seed: u64, port: u16) -> Self {
        let mut talk = Self::new(seed, port);
        talk.capture.frames.clear();
        talk
    }

    /// Sends data from the client, which the server acknowledges.
    pub(super) fn send_from_client(mut self, data: impl AsRef<[u8]>) -> Self {
        self.connection.send(&mut self.capture, Side::Client, data.as_ref());
        self
    }

    /// Sends data from the server, which the client acknowledges.
    pub(super) fn send_from_server(mut self, data: impl AsRef<[u8]>) -> Self {
        self.connection.send(&mut self.capture, Side::Server, data.as_ref());
        self
    }

    /// Sends data from the server, and captures the segments in the order given by `order`, a list
    /// of segment indices. A segment that the list omits was sent, but not captured; a segment that
    /// the list repeats was captured twice.
    pub(super) fn send_from_server_in_order(mut self, data: &[u8], order: &[usize]) -> Self {
        let segments = self.connection.split_into_segments(Side::Server, data);
        for at in order {
            self.capture.add(200, segments[*at].clone());
        }
        self.connection.acknowledge(&mut self.capture, Side::Client);
        self
    }

    /// Sends segments from the client. Each segment is given by its data, and by its offset from
    /// the client's current sequence number. The server then acknowledges all data up to the end of
    /// the segment that reaches farthest, where later data continues.
    pub(super) fn send_client_segments(mut self, pieces: &[(u32, &[u8])]) -> Self {
        for (at, data) in pieces {
            let frame = self.connection.segment_at_offset(Side::Client, ACK, *at, data);
            self.capture.add(200, frame);
        }
        let end = pieces.iter().map(|(at, data)| at + data.len() as u32).max().unwrap_or(0);
        self.connection.advance(Side::Client, end);
        self.connection.acknowledge(&mut self.capture, Side::Server);
        self
    }

    /// Closes both directions (FIN) and returns the capture.
    pub(super) fn close(mut self) -> Capture {
        self.connection.close(&mut self.capture);
        self.capture
    }

    /// Resets the connection from the client and returns the capture.
    pub(super) fn reset(mut self) -> Capture {
        self.connection.reset(&mut self.capture);
        self.capture
    }

    /// Returns the capture without closing the connection.
    pub(super) fn finish_open(self) -> Capture {
        self.capture
    }
}

/// Concatenates captures. The frames get new times, 1 µs apart.
pub(super) fn concat_captures(captures: impl IntoIterator<Item = Capture>) -> Capture {
    let frames = captures.into_iter().flat_map(|capture| capture.frames);
    Capture::from_frames(frames.map(|(_, frame)| frame))
}
