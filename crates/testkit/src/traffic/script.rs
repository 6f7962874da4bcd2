//! A builder for the capture of a TCP connection, step by step: data from both sides, and forged
//! segments.

use super::connection::Side;
use super::{CLIENT_ADDRESS, Capture, SERVER_ADDRESS, reply_frame, tcp_header};
use crate::packet::Frame;

/// The TCP flag FIN.
const FIN: u8 = 0x01;
/// The TCP flag SYN.
const SYN: u8 = 0x02;
/// The TCP flag RST.
const RST: u8 = 0x04;
/// The TCP flag ACK.
const ACK: u8 = 0x10;
/// The ports of the client and of the server in every script.
const PORTS: (u16, u16) = (40_000, 80);

/// A connection to port 80 whose capture begins with the handshake. Frames are 1 ms apart.
#[derive(Clone, Debug)]
pub struct ConnectionScript {
    capture: Capture,
    /// The next sequence number of the client and of the server.
    next: [u32; 2],
}

impl ConnectionScript {
    /// Returns a script that begins with a completed handshake.
    pub fn with_handshake() -> Self {
        let mut this = Self { capture: Capture::new(), next: [1_000, 9_000] };
        this.send_segment(Side::Client, SYN, &[], &[]);
        this.next[0] += 1;
        this.send_segment(Side::Server, SYN | ACK, &[], &[]);
        this.next[1] += 1;
        this.send_segment(Side::Client, ACK, &[], &[]);
        this
    }

    /// Sends data from a side in one segment, which the peer acknowledges.
    pub fn send_data(mut self, side: Side, data: &[u8]) -> Self {
        self.send_segment(side, ACK, &[], data);
        self.next[side as usize] += data.len() as u32;
        self.send_segment(side.peer(), ACK, &[], &[]);
        self
    }

    /// Closes one direction with a FIN, which the peer acknowledges.
    pub fn close_direction(mut self, side: Side) -> Self {
        self.send_segment(side, FIN | ACK, &[], &[]);
        self.next[side as usize] += 1;
        self.send_segment(side.peer(), ACK, &[], &[]);
        self
    }

    /// Sends a reset with the source address of `side` and these TCP options.
    pub fn send_reset(mut self, side: Side, options: &[u8]) -> Self {
        self.send_segment(side, RST | ACK, options, &[]);
        self
    }

    /// Advances the clock by `ms` milliseconds.
    pub fn advance_clock(mut self, ms: u64) -> Self {
        self.capture.now_ns += ms * 1_000_000;
        self
    }

    /// Returns the capture of all frames so far.
    pub fn into_capture(self) -> Capture {
        self.capture
    }

    fn send_segment(&mut self, side: Side, flags: u8, options: &[u8], data: &[u8]) {
        let [client, server] = self.next;
        let acknowledged = |number| if flags & ACK == 0 { 0 } else { number };
        let (frame, mut header) = match side {
            Side::Client => (
                Frame::ethernet().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS),
                tcp_header(PORTS, client, acknowledged(server), flags),
            ),
            Side::Server => (
                reply_frame().ipv4(SERVER_ADDRESS, CLIENT_ADDRESS),
                tcp_header((PORTS.1, PORTS.0), server, acknowledged(client), flags),
            ),
        };
        header.options = options.to_vec();
        self.capture.add(1_000, frame.tcp(&header, data));
    }
}
