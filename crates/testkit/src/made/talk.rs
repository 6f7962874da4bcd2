//! A TCP connection with what its ends say, in order or out of it.

use crate::random::Random;
use crate::traffic::connection::{Connection, Side};
use crate::traffic::{CLIENT, CLIENT6, Capture, SERVER, SERVER6};

pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

/// A connection that is being captured.
pub(super) struct Talk {
    pub(super) capture: Capture,
    pub(super) connection: Connection,
}

impl Talk {
    /// A connection whose handshake was captured; its numbers follow from the seed.
    pub(super) fn new(seed: u64, port: u16) -> Self {
        Self::between(seed, (CLIENT, SERVER), port)
    }

    /// The same over IPv6.
    pub(super) fn six(seed: u64, port: u16) -> Self {
        Self::between(seed, (CLIENT6, SERVER6), port)
    }

    fn between(seed: u64, ends: (&str, &str), port: u16) -> Self {
        let mut capture = Capture::new();
        let connection = Connection::open(&mut capture, &mut Random::new(seed), ends, port);
        Self { capture, connection }
    }

    /// A connection that was open before the capture began.
    pub(super) fn midway(seed: u64, port: u16) -> Self {
        let mut talk = Self::new(seed, port);
        talk.capture.frames.clear();
        talk
    }

    /// The client sends this, and it is acknowledged.
    pub(super) fn client(mut self, data: impl AsRef<[u8]>) -> Self {
        self.connection.send(&mut self.capture, Side::Client, data.as_ref());
        self
    }

    /// The server sends this, and it is acknowledged.
    pub(super) fn server(mut self, data: impl AsRef<[u8]>) -> Self {
        self.connection.send(&mut self.capture, Side::Server, data.as_ref());
        self
    }

    /// The segments of this were sent, and come in this order; missing ones were not captured.
    pub(super) fn server_as(mut self, data: &[u8], order: &[usize]) -> Self {
        let segments = self.connection.segments(Side::Server, data);
        for at in order {
            self.capture.add(200, segments[*at].clone());
        }
        self.connection.acknowledge(&mut self.capture, Side::Client);
        self
    }

    /// Pieces of the client's data, by where they begin from here on; then it goes on behind the
    /// last of them.
    pub(super) fn pieces(mut self, pieces: &[(u32, &[u8])]) -> Self {
        for (at, data) in pieces {
            let frame = self.connection.piece(Side::Client, ACK, *at, data);
            self.capture.add(200, frame);
        }
        let end = pieces.iter().map(|(at, data)| at + data.len() as u32).max().unwrap_or(0);
        self.connection.advance(Side::Client, end);
        self.connection.acknowledge(&mut self.capture, Side::Server);
        self
    }

    /// Both ends say that they have no more.
    pub(super) fn close(mut self) -> Capture {
        self.connection.close(&mut self.capture);
        self.capture
    }

    /// The client ends it at once.
    pub(super) fn reset(mut self) -> Capture {
        self.connection.reset(&mut self.capture);
        self.capture
    }

    /// The capture ends before the connection.
    pub(super) fn open(self) -> Capture {
        self.capture
    }
}

/// One capture behind the other.
pub(super) fn joined(captures: impl IntoIterator<Item = Capture>) -> Capture {
    let frames = captures.into_iter().flat_map(|capture| capture.frames);
    Capture::of(frames.map(|(_, frame)| frame))
}
