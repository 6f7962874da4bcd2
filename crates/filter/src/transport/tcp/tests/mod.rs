//! Tests of `tcp` on literal segments, compared with the expected output.
//!
//! A test case is a list of segments of one connection from port 4000 to port 80, and the expected
//! output as one line. In this line, `>` begins the client's data and `<` the server's data, `*n`
//! stands for n missing bytes, `^` for the start of a stream, and `$` for its end.

mod ends;
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

/// Ports of the client and the server.
const PORTS: (u16, u16) = (4000, 80);

/// Makes a segment sent by the client.
fn client_segment(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment(PORTS, flags, sequence, payload)
}

/// Makes a segment sent by the server.
fn server_segment(flags: u8, sequence: u32, payload: &[u8]) -> Frame {
    Frame::segment((PORTS.1, PORTS.0), flags, sequence, payload).with_swapped_addresses()
}

/// Makes a handshake. The client's data then begins at sequence number 101, and the server's at
/// 501.
fn handshake_frames() -> Vec<Frame> {
    vec![
        client_segment(SYN, 100, b""),
        server_segment(SYN, 500, b"").with_acknowledgement(101),
        client_segment(0, 101, b"").with_acknowledgement(501),
    ]
}

/// Makes a handshake followed by these segments.
fn with_handshake(rest: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    handshake_frames().into_iter().chain(rest).collect()
}
