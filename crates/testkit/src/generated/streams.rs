//! TCP connections with loss, reordering, overlap or unusual ends. Each capture is named after its
//! unusual property.
//!
//! The payloads reveal incorrect reassembly: a correct peer accepts `GOOD` and discards `EVIL`.

use super::connection_capture::{ACK, ConnectionCapture, RST, SYN};
use crate::packet::Frame;
use crate::traffic::connection::Side;
use crate::traffic::{CLIENT_ADDRESS, Capture, SERVER_ADDRESS, content, reply_frame, tcp_header};

pub(super) fn stream_captures() -> Vec<(&'static str, Capture)> {
    let page = content::html_page(6_000);
    let ask = || {
        ConnectionCapture::new(11, 80)
            .send_from_client(content::get_request("www.example.org", "/page"))
    };
    let answer = content::ok_response("text/html", &page);
    vec![
        ("gap", ask().send_from_server_in_order(&answer, &[0, 1, 3, 4]).close()),
        ("gap-unacknowledged", unacknowledged_connection()),
        ("first-missing", ask().send_from_server_in_order(&answer, &[1, 2, 3, 4]).close()),
        ("reversed", ask().send_from_server_in_order(&answer, &[4, 3, 2, 1, 0]).close()),
        ("twice", ask().send_from_server_in_order(&answer, &[0, 0, 1, 2, 1, 3, 4, 4]).close()),
        ("overlap", overlapping_segments()),
        ("overlap-longer", enclosing_segment()),
        (
            "leading-gap",
            ConnectionCapture::new(15, 4000).send_client_segments(&[(4, b"GOODDATA")]).close(),
        ),
        (
            "midway",
            ConnectionCapture::new_without_handshake(16, 80)
                .send_from_client("GET / HTTP/1.1\r\n\r\n")
                .send_from_server(&answer)
                .close(),
        ),
        ("data-in-syn", connection_with_data_in_syn()),
        ("data-in-reset", connection_with_data_in_reset()),
        ("reset", ask().send_from_server(&answer).reset()),
        ("no-end", ask().send_from_server(&answer).finish_open()),
        ("one-side", one_sided_connection()),
        ("around-zero", wrapping_sequence_numbers()),
        ("same-ports-again", connections_with_reused_ports()),
        ("many-small", many_small_connections()),
        (
            "six",
            ConnectionCapture::new_over_ipv6(18, 80)
                .send_from_server_in_order(&answer, &[0, 2, 1, 3, 4])
                .close(),
        ),
    ]
}

/// Returns a connection in which a segment of the server was lost before the capture point, so the
/// client does not acknowledge the server's data.
fn unacknowledged_connection() -> Capture {
    let mut talk = ConnectionCapture::new(12, 80).send_from_client("GET /lost HTTP/1.1\r\n\r\n");
    let segments = talk.connection.split_into_segments(Side::Server, &content::html_page(4_000));
    talk.capture.add(200, segments[0].clone());
    talk.capture.add(200, segments[2].clone());
    talk.finish_open()
}

/// Returns a connection with two segments that contain different data for the same sequence
/// numbers. Both segments are captured before the data that precede them in the stream.
fn overlapping_segments() -> Capture {
    ConnectionCapture::new(13, 4000)
        .send_client_segments(&[(4, b"GOOD"), (4, b"EVIL"), (0, b"THE "), (8, b" END")])
        .close()
}

/// Returns a connection whose second segment starts before its first segment and ends after it.
fn enclosing_segment() -> Capture {
    let pieces: &[(u32, &[u8])] = &[(8, b"GOOD"), (6, b"..EVIL.."), (0, b"BEFORE"), (14, b"AFTER")];
    ConnectionCapture::new(14, 4000).send_client_segments(pieces).close()
}

fn connection_with_data_in_syn() -> Capture {
    let client = |sequence, acknowledgement, flags, data: &[u8]| {
        let segment = tcp_header((40_100, 80), sequence, acknowledgement, flags);
        Frame::ethernet().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).tcp(&segment, data)
    };
    let server = |sequence, acknowledgement, flags, data: &[u8]| {
        let segment = tcp_header((80, 40_100), sequence, acknowledgement, flags);
        reply_frame().ipv4(SERVER_ADDRESS, CLIENT_ADDRESS).tcp(&segment, data)
    };
    Capture::from_frames([
        client(1_000, 0, SYN, b"GET /fast HTTP/1.0\r\n\r\n"),
        server(9_000, 1_023, SYN | ACK, b""),
        client(1_023, 9_001, ACK, b""),
        server(9_001, 1_023, ACK, b"HTTP/1.0 204 No Content\r\n\r\n"),
        client(1_023, 9_028, ACK, b""),
    ])
}

/// Returns a connection that ends with a reset carrying a diagnostic text, which is not part of the
/// stream (RFC 9293 §3.5.3).
fn connection_with_data_in_reset() -> Capture {
    let mut talk = ConnectionCapture::new(19, 4000).send_from_client("GOOD DATA");
    let frame = talk.connection.segment_at_offset(Side::Server, RST | ACK, 0, b"EVIL REASON");
    talk.capture.add(200, frame);
    talk.finish_open()
}

fn one_sided_connection() -> Capture {
    let whole = ConnectionCapture::new(20, 80)
        .send_from_client("GET / HTTP/1.0\r\n\r\n")
        .send_from_server(content::html_page(3_000));
    let from_server = |frame: &Vec<u8>| frame[6..12] == crate::packet::TARGET_MAC;
    let frames = whole.close().frames.into_iter().map(|(_, frame)| frame);
    Capture::from_frames(frames.filter(from_server))
}

/// Returns a stream whose sequence numbers wrap around zero.
fn wrapping_sequence_numbers() -> Capture {
    let mut frames = Vec::new();
    let mut put = |sequence: u32, flags, data: &[u8]| {
        let segment = tcp_header((40_200, 4000), sequence, 1, flags);
        frames.push(Frame::ethernet().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).tcp(&segment, data));
    };
    put(u32::MAX - 8, SYN, b"");
    put(4, ACK, b"behind");
    put(u32::MAX - 7, ACK, b"before zero ");
    put(10, ACK, b" it");
    Capture::from_frames(frames)
}

/// Returns two successive connections between the same ports.
fn connections_with_reused_ports() -> Capture {
    let first = ConnectionCapture::new(17, 80).send_from_client(b"first or second");
    let (connection, mut capture) = (first.connection.clone(), first.close());
    let connection = connection.reopen(&mut capture);
    ConnectionCapture { capture, connection }.send_from_client(b"first or second").close()
}

/// Returns 80 concurrent connections, each of which sends a different text in two swapped segments.
fn many_small_connections() -> Capture {
    let mut talks: Vec<_> = (100..180).map(|seed| ConnectionCapture::new(seed, 4000)).collect();
    for (number, talk) in talks.iter_mut().enumerate() {
        let word = format!("connection {number} says this in two pieces");
        let (one, other) = word.as_bytes().split_at(20);
        let frames = [(20, other), (0, one)]
            .map(|(at, data)| talk.connection.segment_at_offset(Side::Client, ACK, at, data));
        for frame in frames {
            talk.capture.add(100, frame);
        }
        talk.connection.advance(Side::Client, word.len() as u32);
        talk.connection.acknowledge(&mut talk.capture, Side::Server);
    }
    let mut captures: Vec<_> = talks.into_iter().map(|talk| talk.close().frames).collect();
    let longest = captures.iter().map(Vec::len).max().unwrap_or(0);
    let mut frames = Vec::new();
    for _ in 0..longest {
        for capture in captures.iter_mut().filter(|capture| !capture.is_empty()) {
            frames.push(capture.remove(0).1);
        }
    }
    Capture::from_frames(frames)
}
