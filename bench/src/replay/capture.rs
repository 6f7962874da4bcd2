//! Generated captures of HTTP/1.1 between many clients and a server, as recorded by a tap that
//! loses a few packets. Random numbers have fixed seeds, so the size of a capture determines its
//! contents.
//!
//! Bodies have 200 bytes to 100 KB, with as many around 1 KB as around 10 KB; one in five is
//! chunked. Half of the connections carry one request, the others up to ten. One connection in
//! eight uses IPv6. One segment in a hundred is swapped with its successor, and one frame in a
//! thousand is missing. Lengths, checksums, sequence and acknowledgement numbers are correct.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use testkit::{Frame, Random, TcpHeader};
use wire::capture::write;

/// Number of connections that are open at any time in a generated capture.
const OPEN_CONNECTIONS: usize = 2_000;
/// Maximum data of a segment in bytes: Ethernet's 1500 less the headers of IPv6 and TCP.
const SEGMENT_LENGTH_MAX: usize = 1_440;
/// One in this many frames is omitted from the capture, as if it had been lost.
const FRAMES_PER_LOST_FRAME: u64 = 1_000;
/// One in this many segments is swapped with its successor.
const SEGMENTS_PER_SWAPPED_SEGMENT: u64 = 100;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Writes a capture of at least `size` bytes. Returns its size in bytes.
pub(super) fn write_mixed_capture(path: &Path, size: u64) -> Result<u64> {
    let mut tap = CaptureWriter::new(path, 17)?;
    let content: Vec<u8> = tap.random.bytes(1 << 20);
    let mut number = 0;
    let mut open: Vec<Connection> = Vec::new();
    while tap.written < size {
        if open.len() < OPEN_CONNECTIONS {
            number += 1;
            open.push(Connection::new(number, &mut tap.random));
        }
        let index = tap.random.within(0..open.len());
        let connection = &mut open[index];
        if connection.waiting.is_empty() && !connection.generate(&mut tap.random, &content) {
            open.swap_remove(index);
            continue;
        }
        let overtaken =
            connection.waiting.len() > 1 && tap.random.one_in(SEGMENTS_PER_SWAPPED_SEGMENT);
        if overtaken {
            connection.waiting.swap(0, 1);
        }
        if let Some(frame) = connection.waiting.pop_front() {
            tap.write_or_drop(&frame)?;
        }
    }
    tap.finish()
}

/// Writes a capture of `connections` connections, all of which are open at its end, each within a
/// response. Returns the size of the capture in bytes.
pub(super) fn write_open_connections(path: &Path, connections: u32) -> Result<u64> {
    let mut tap = CaptureWriter::new(path, 18)?;
    let mut open: Vec<Connection> = Vec::new();
    for number in 1..=connections {
        let mut connection = Connection::new(number, &mut tap.random);
        connection.send_handshake();
        open.push(connection);
    }
    let mut head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    head.extend([b'.'; 100]);
    for step in 0..5 {
        for connection in &mut open {
            match step {
                3 => connection.send_data(false, &request_message(b"GET", 7, b"")),
                4 => connection.send_data(true, &head),
                _ => {}
            }
            if let Some(frame) = connection.waiting.pop_front() {
                tap.write_frame(&frame)?;
            }
            if step > 2 {
                connection.waiting.clear();
            }
        }
    }
    tap.finish()
}

/// Counts the frames that begin a request in a generated capture. In these captures, each head fits
/// into one segment.
pub(crate) fn count_requests(path: &Path) -> Result<u64> {
    let capture = std::fs::read(path)?;
    let packets = wire::capture::packets(&capture).map_while(|packet| Some(packet.ok()?.1));
    let begins = |frame: &&[u8]| {
        let head = frame.get(54..).unwrap_or_default();
        head.windows(7).take(25).any(|bytes| matches!(bytes, b" /thing"))
    };
    Ok(packets.filter(begins).count() as u64)
}

/// A writer of a pcap file, which omits some frames as if they had been lost.
struct CaptureWriter {
    file: BufWriter<File>,
    random: Random,
    written: u64,
    now_ns: u64,
}

impl CaptureWriter {
    fn new(path: &Path, seed: u64) -> Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let header = write::encode_file_header(wire::LinkType::ETHERNET);
        file.write_all(&header)?;
        let now_ns = 1_767_225_600_000_000_000;
        Ok(Self { file, random: Random::new(seed), written: header.len() as u64, now_ns })
    }

    /// Writes a frame, or drops it with a small probability.
    fn write_or_drop(&mut self, frame: &[u8]) -> Result<()> {
        if self.random.one_in(FRAMES_PER_LOST_FRAME) { Ok(()) } else { self.write_frame(frame) }
    }

    fn write_frame(&mut self, frame: &[u8]) -> Result<()> {
        self.now_ns += 8 * frame.len() as u64;
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let record = write::encode_record_header(self.now_ns, length, length);
        self.written += (record.len() + frame.len()) as u64;
        self.file.write_all(&record)?;
        self.file.write_all(frame)
    }

    fn finish(mut self) -> Result<u64> {
        self.file.flush()?;
        Ok(self.written)
    }
}

/// One connection between a client and the server.
struct Connection {
    ends: [IpAddr; 2],
    ports: [u16; 2],
    /// Next sequence numbers of the client and of the server.
    sequence: [u32; 2],
    begun: bool,
    requests: u64,
    /// Generated frames that have not been written to the capture yet.
    waiting: VecDeque<Vec<u8>>,
}

impl Connection {
    fn new(number: u32, random: &mut Random) -> Self {
        let client = number / 20_000;
        let port = 20_000 + u16::try_from(number % 20_000).unwrap_or(0);
        let six = random.one_in(8);
        let ends = if six {
            let address = |low| IpAddr::V6(Ipv6Addr::from(0x2001_0db8_u128 << 96 | low));
            [address(u128::from(client) << 8 | 2), address(1)]
        } else {
            let address = |low| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | low));
            [address(client << 8 | 2), address(1)]
        };
        let requests = if random.one_in(2) { 1 } else { 2 + random.below(9) };
        let sequence = [random.next_u64() as u32, random.next_u64() as u32];
        let waiting = VecDeque::new();
        Self { ends, ports: [port, 80], sequence, begun: false, requests, waiting }
    }

    /// Generates the next frames of the connection: the handshake, or a request with its response.
    /// Returns false at the end of the connection.
    fn generate(&mut self, random: &mut Random, content: &[u8]) -> bool {
        if !self.begun {
            self.send_handshake();
        } else if self.requests > 0 {
            self.requests -= 1;
            self.exchange_message(random, content);
            if self.requests == 0 {
                self.push_frame(false, FIN | ACK, &[]);
                self.push_frame(true, FIN | ACK, &[]);
                self.push_frame(false, ACK, &[]);
            }
        }
        !self.waiting.is_empty()
    }

    fn send_handshake(&mut self) {
        self.begun = true;
        self.push_frame(false, SYN, &[]);
        self.push_frame(true, SYN | ACK, &[]);
        self.push_frame(false, ACK, &[]);
    }

    fn exchange_message(&mut self, random: &mut Random, content: &[u8]) {
        let body = |random: &mut Random, most: u64| {
            // The length is 200 bytes, doubled a random number of times, plus a random share of the
            // result.
            let doubled = 200 << random.below(most);
            let length = doubled + random.within(0..doubled);
            let from = random.within(0..content.len() - length);
            &content[from..from + length]
        };
        let number = random.below(1_000_000);
        match random.below(20) {
            0 => self.send_data(false, &request_message(b"POST", number, body(random, 5))),
            1 => {
                self.send_data(false, &request_message(b"HEAD", number, b""));
                return self.send_data(true, &response_message(b"200 OK", 4_711, b""));
            }
            2 => {
                self.send_data(false, &request_message(b"GET", number, b""));
                return self.send_data(true, b"HTTP/1.1 304 Not Modified\r\nETag: \"7\"\r\n\r\n");
            }
            _ => self.send_data(false, &request_message(b"GET", number, b"")),
        }
        let body = body(random, 9);
        match random.one_in(5) {
            true => self.send_data(true, &encode_chunks(body)),
            false => self.send_data(true, &response_message(b"200 OK", body.len(), body)),
        }
    }

    /// Sends data in segments. The peer acknowledges each second segment, and the last one.
    fn send_data(&mut self, backward: bool, data: &[u8]) {
        let segments = data.chunks(SEGMENT_LENGTH_MAX).count();
        for (index, segment) in data.chunks(SEGMENT_LENGTH_MAX).enumerate() {
            let last = index + 1 == segments;
            self.push_frame(backward, if last { PSH | ACK } else { ACK }, segment);
            if last || index % 2 == 1 {
                self.push_frame(!backward, ACK, &[]);
            }
        }
    }

    fn push_frame(&mut self, backward: bool, flags: u8, data: &[u8]) {
        let (mine, theirs) = (usize::from(backward), usize::from(!backward));
        let segment = TcpHeader {
            source: self.ports[mine],
            target: self.ports[theirs],
            sequence: self.sequence[mine],
            acknowledgement: if flags & ACK == 0 { 0 } else { self.sequence[theirs] },
            flags,
            window: 64_240,
            options: if flags & SYN == 0 { Vec::new() } else { vec![2, 4, 5, 160] },
        };
        let frame = Frame::ethernet().ip(self.ends[mine], self.ends[theirs]).tcp(&segment, data);
        let taken = data.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.sequence[mine] = self.sequence[mine].wrapping_add(taken);
        self.waiting.push_back(frame);
    }
}

fn request_message(method: &[u8], number: u64, body: &[u8]) -> Vec<u8> {
    let method = String::from_utf8_lossy(method);
    let length = match body.len() {
        0 => String::new(),
        length => format!("Content-Length: {length}\r\n"),
    };
    let head = format!(
        "{method} /things/{number} HTTP/1.1\r\nHost: www.example.org\r\n\
         User-Agent: streamline-bench/1\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n{length}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn response_message(status: &[u8], length: usize, body: &[u8]) -> Vec<u8> {
    let status = String::from_utf8_lossy(status);
    let head = format!(
        "HTTP/1.1 {status}\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: example\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn encode_chunks(body: &[u8]) -> Vec<u8> {
    let mut coded = b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
        Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec();
    for chunk in body.chunks(4_096) {
        coded.extend(format!("{:x}\r\n", chunk.len()).bytes());
        coded.extend(chunk);
        coded.extend(b"\r\n");
    }
    coded.extend(b"0\r\n\r\n");
    coded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_is_reproducible_and_loses_few_frames() {
        let folder = std::env::temp_dir();
        let path = |name: &str| folder.join(format!("{name}-{}.pcap", std::process::id()));
        let (one, two) = (path("one"), path("two"));
        let length = write_mixed_capture(&one, 3_000_000).unwrap();
        assert_eq!(length, write_mixed_capture(&two, 3_000_000).unwrap());
        let bytes = std::fs::read(&one).unwrap();
        assert!(bytes == std::fs::read(&two).unwrap() && bytes.len() as u64 == length);
        let packets = wire::capture::packets(&bytes).map(|packet| packet.unwrap().1);
        let is_syn = |packet: &&[u8]| packet[12..14] == [8, 0] && packet[47] == SYN;
        assert!(packets.filter(is_syn).count() > 500);
        let length = write_open_connections(&one, 1000).unwrap();
        let bytes = std::fs::read(&one).unwrap();
        assert_eq!((wire::capture::packets(&bytes).count(), bytes.len() as u64), (5000, length));
        std::fs::remove_file(one).unwrap();
        std::fs::remove_file(two).unwrap();
    }
}
