//! Tests of `tcp` on literal segments, compared with the expected output.
//!
//! A case is a list of segments of one connection, port 4000 to 80, and the output as one line: `>`
//! for the client's data, `<` for the server's, the bytes, `*n` for n missing ones, `^` at a start,
//! `$` at an end.

mod forged_state;
mod gaps;
mod lifecycle;
mod order;
mod overlaps;
mod random;
mod resets;
mod run;

use crate::testing::Frame;
use wire::tcp::flag::{ACK, FIN, RST, SYN};

/// Ports of client and server.
const PORTS: (u16, u16) = (4000, 80);

/// Makes a segment of the client.
fn client(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment(PORTS, flags, sequence, payload)
}

/// Makes a segment of the server.
fn server(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment((PORTS.1, PORTS.0), flags, sequence, payload).swapped()
}

/// Makes a handshake: the client's data begin at 101, the server's at 501.
fn handshake() -> Vec<Frame> {
    vec![
        client(SYN, 100, b""),
        server(SYN, 500, b"").acknowledging(101),
        client(0, 101, b"").acknowledging(501),
    ]
}

/// Makes a handshake followed by these segments.
fn after_handshake(rest: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    handshake().into_iter().chain(rest).collect()
}
