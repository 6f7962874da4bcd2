//! Literal segments, and what must come of them.
//!
//! A case is a list of segments of one connection, port 4000 to 80, and what leaves, written in one
//! line: `>` for what the client sends, `<` for the server, the bytes, `*n` for n missing ones,
//! `^` at a beginning, `$` at an end.

mod exam;
mod gaps;
mod life;
mod nonsense;
mod order;
mod overlaps;
mod resets;
mod run;

use crate::testing::Frame;
use wire::tcp::flag::{ACK, FIN, RST, SYN};

/// The ports of the client and of the server.
const PORTS: (u16, u16) = (4000, 80);

/// A segment of the client.
fn client(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment(PORTS, flags, sequence, payload)
}

/// A segment of the server.
fn server(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment((PORTS.1, PORTS.0), flags, sequence, payload).swapped()
}

/// The beginning of a connection: the client's data begin at 101, the server's at 501.
fn handshake() -> Vec<Frame> {
    vec![
        client(SYN, 100, b""),
        server(SYN, 500, b"").acknowledging(101),
        client(0, 101, b"").acknowledging(501),
    ]
}

/// A connection that has begun, and then these segments.
fn begun(rest: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    handshake().into_iter().chain(rest).collect()
}
