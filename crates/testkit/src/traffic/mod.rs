//! Generated traffic: a small mixed web capture that never changes, and any amount of similar
//! traffic for tests and benchmarks.
//!
//! The order and the times of the frames are what a capture near the client would contain. All
//! contents depend only on a seed. Checksums, lengths and sequence numbers are correct, and HTTP,
//! DNS and the first flight of TLS are valid.

pub(crate) mod connection;
pub(crate) mod content;
mod script;

pub use connection::Side;
pub use script::ConnectionScript;

use crate::packet::{Frame, TcpHeader};
use crate::random::Random;
use connection::Connection;

/// A capture in memory: Ethernet frames with their times.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Each Ethernet frame, with its time in ns since 1970.
    pub frames: Vec<(u64, Vec<u8>)>,
    now_ns: u64,
}

impl Capture {
    /// Returns a pcap file of the frames, with timestamps in ns.
    pub fn to_pcap(&self) -> Vec<u8> {
        use wire::capture::write;
        let mut file = write::encode_file_header(wire::LinkType::ETHERNET).to_vec();
        for (time_ns, frame) in &self.frames {
            let length = frame.len() as u32;
            file.extend(write::encode_record_header(*time_ns, length, length));
            file.extend(frame);
        }
        file
    }

    /// Creates a capture from frames, with times 1 µs apart.
    pub fn from_frames(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut capture = Self::new();
        frames.into_iter().for_each(|frame| capture.add(1, frame));
        capture
    }

    /// Returns an empty capture whose clock starts at the beginning of 2026.
    pub(crate) const fn new() -> Self {
        Self { frames: Vec::new(), now_ns: 1_767_225_600_000_000_000 }
    }

    /// Appends a frame whose time is `after_us` µs later than that of the last frame.
    pub(crate) fn add(&mut self, after_us: u64, frame: Vec<u8>) {
        self.now_ns += after_us * 1_000;
        self.frames.push((self.now_ns, frame));
    }
}

/// The IPv4 address of the client in generated traffic.
pub(crate) const CLIENT_ADDRESS: &str = "10.0.0.1";
/// The IPv4 address of the client's router.
const ROUTER_ADDRESS: &str = "10.0.0.254";
/// The IPv4 address of the DNS resolver.
const RESOLVER_ADDRESS: &str = "10.0.0.53";
/// The IPv4 address of the web server in generated traffic.
pub(crate) const SERVER_ADDRESS: &str = "192.0.2.80";
/// The IPv4 address of a second server in generated traffic.
const OTHER_SERVER_ADDRESS: &str = "198.51.100.7";
/// The IPv6 address of the client in generated traffic.
pub(crate) const CLIENT_IPV6_ADDRESS: &str = "2001:db8::1";
/// The IPv6 address of the web server in generated traffic.
pub(crate) const SERVER_IPV6_ADDRESS: &str = "2001:db8:80::80";

/// Returns the contents of `examples/web.pcap`: six connections to port 80 (one with a reordered
/// and a repeated segment, one over IPv6), one to port 443, DNS, ARP, ICMP echo, and a frame with a
/// VLAN tag.
pub fn web_capture() -> Capture {
    let (mut capture, mut random) = (Capture::new(), Random::new(2026));
    add_neighbour_traffic(&mut capture);
    add_dns_lookups(&mut capture, 0x1001, "www.example.org", SERVER_ADDRESS);
    add_page_with_style(&mut capture, &mut random);
    add_dns_lookups(&mut capture, 0x1002, "download.example.org", OTHER_SERVER_ADDRESS);
    add_disordered_download(&mut capture, &mut random);
    add_posts_and_errors(&mut capture, &mut random);
    add_tls_flight(&mut capture, &mut random);
    add_ipv6_connection(&mut capture, &mut random);
    add_tagged_frame(&mut capture);
    capture
}

/// Returns a capture with the same kinds of traffic as [`web_capture`]. It consists of
/// `connections` scenes of about twenty frames each, such as a page with its DNS lookups, or an ARP
/// exchange.
pub fn mixed_traffic(seed: u64, connections: usize) -> Capture {
    let (mut capture, mut random) = (Capture::new(), Random::new(seed));
    for _ in 0..connections {
        match random.below(10) {
            0 => add_neighbour_traffic(&mut capture),
            1 => add_tls_flight(&mut capture, &mut random),
            2 => add_ipv6_connection(&mut capture, &mut random),
            3 => add_disordered_download(&mut capture, &mut random),
            4 => add_posts_and_errors(&mut capture, &mut random),
            5 => add_tagged_frame(&mut capture),
            _ => {
                let id = random.below(0x1000) as u16;
                add_dns_lookups(&mut capture, id, "www.example.org", SERVER_ADDRESS);
                add_page_with_style(&mut capture, &mut random);
            }
        }
    }
    capture
}

/// Adds an ARP exchange and two ICMP echoes between the client and its router.
fn add_neighbour_traffic(capture: &mut Capture) {
    let broadcast = Frame::ethernet_between(crate::packet::SOURCE_MAC, [0xff; 6]).padded_to(60);
    capture.add(0, broadcast.arp(true, CLIENT_ADDRESS, ROUTER_ADDRESS));
    capture.add(180, reply_frame().padded_to(60).arp(false, ROUTER_ADDRESS, CLIENT_ADDRESS));
    for number in 1..=2 {
        let payload = b"is anybody there?";
        let request =
            Frame::ethernet().ipv4(CLIENT_ADDRESS, ROUTER_ADDRESS).echo(true, 7, number, payload);
        capture.add(1_000, request);
        let answer =
            reply_frame().ipv4(ROUTER_ADDRESS, CLIENT_ADDRESS).echo(false, 7, number, payload);
        capture.add(350, answer);
    }
}

/// Adds a DNS query with its response, and then a query with the response NXDOMAIN.
fn add_dns_lookups(capture: &mut Capture, id: u16, name: &str, address: &str) {
    let ask = |question: &[u8], port| {
        Frame::ethernet().ipv4(CLIENT_ADDRESS, RESOLVER_ADDRESS).udp(port, 53, question)
    };
    let reply_with = |answer: &[u8], port| {
        reply_frame().ipv4(RESOLVER_ADDRESS, CLIENT_ADDRESS).udp(53, port, answer)
    };
    capture.add(2_000, ask(&content::dns_query(id, name, 1), 40_001));
    let address = address.parse().expect("the addresses of this file are addresses");
    capture.add(9_000, reply_with(&content::dns_answer(id, name, address), 40_001));
    capture.add(40, ask(&content::dns_query(id + 0x100, "nobody.example.org", 28), 40_002));
    capture.add(
        8_000,
        reply_with(&content::nxdomain_response(id + 0x100, "nobody.example.org", 28), 40_002),
    );
}

/// Adds the download of a page and its style sheet over one connection, and a concurrent connection
/// that downloads random bytes.
fn add_page_with_style(capture: &mut Capture, random: &mut Random) {
    let mut page = Connection::open(capture, random, (CLIENT_ADDRESS, SERVER_ADDRESS), 80);
    page.send(capture, Side::Client, &content::get_request("www.example.org", "/"));
    page.send(
        capture,
        Side::Server,
        &content::ok_response("text/html", &content::html_page(1_900)),
    );
    page.send(capture, Side::Client, &content::get_request("www.example.org", "/style.css"));
    page.send(capture, Side::Server, &content::ok_response("text/css", content::STYLE_SHEET));
    let mut sample = Connection::open(capture, random, (CLIENT_ADDRESS, SERVER_ADDRESS), 80);
    sample.send(capture, Side::Client, &content::get_request("www.example.org", "/sample"));
    sample.send(
        capture,
        Side::Server,
        &content::ok_response("application/octet-stream", &random.bytes(3_200)),
    );
    page.close(capture);
    sample.close(capture);
}

/// Adds a download whose second and third segments are swapped and whose fourth segment is
/// repeated.
fn add_disordered_download(capture: &mut Capture, random: &mut Random) {
    let mut connection =
        Connection::open(capture, random, (CLIENT_ADDRESS, OTHER_SERVER_ADDRESS), 80);
    connection.send(capture, Side::Client, &content::get_request("download.example.org", "/text"));
    let body = content::html_page(7_000);
    let mut segments =
        connection.split_into_segments(Side::Server, &content::ok_response("text/plain", &body));
    segments.swap(1, 2);
    segments.insert(4, segments[3].clone());
    for segment in segments {
        capture.add(220, segment);
    }
    connection.acknowledge(capture, Side::Client);
    connection.close(capture);
}

/// Adds a connection with a form, a chunked response and a HEAD request, and another connection
/// with a 404 response, which the client resets.
fn add_posts_and_errors(capture: &mut Capture, random: &mut Random) {
    let mut form = Connection::open(capture, random, (CLIENT_ADDRESS, SERVER_ADDRESS), 80);
    form.send(
        capture,
        Side::Client,
        &content::post_request("www.example.org", "/search", "q=streams"),
    );
    form.send(capture, Side::Server, &content::chunked_response(&content::html_page(900), 400));
    form.send(capture, Side::Client, &content::head_request("www.example.org", "/"));
    form.send(capture, Side::Server, &content::head_response("200 OK", 1_900));
    form.close(capture);
    let mut missing = Connection::open(capture, random, (CLIENT_ADDRESS, OTHER_SERVER_ADDRESS), 80);
    missing.send(capture, Side::Client, &content::get_request("download.example.org", "/gone"));
    missing.send(capture, Side::Server, &content::not_found_response());
    missing.reset(capture);
}

/// Adds a connection with a TLS handshake (the ClientHello and the first flight of the server) and
/// encrypted records.
fn add_tls_flight(capture: &mut Capture, random: &mut Random) {
    let mut connection =
        Connection::open(capture, random, (CLIENT_ADDRESS, OTHER_SERVER_ADDRESS), 443);
    let hello = content::client_hello(random, "secret.example.org");
    connection.send(capture, Side::Client, &hello);
    connection.send(capture, Side::Server, &content::tls_server_flight(random));
    connection.send(capture, Side::Client, &content::tls_application_data(random, 220));
    connection.send(capture, Side::Server, &content::tls_application_data(random, 1_800));
    connection.close(capture);
}

fn add_ipv6_connection(capture: &mut Capture, random: &mut Random) {
    let mut connection =
        Connection::open(capture, random, (CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS), 80);
    connection.send(capture, Side::Client, &content::get_request("www.example.org", "/six"));
    connection.send(
        capture,
        Side::Server,
        &content::ok_response("text/html", &content::html_page(1_600)),
    );
    connection.close(capture);
}

/// Adds a syslog message in VLAN 42.
fn add_tagged_frame(capture: &mut Capture) {
    let message = b"<134>1 2026-01-01T00:00:00Z host streamline - - - one line of log";
    let frame = Frame::ethernet()
        .append_vlan_tag(42)
        .ipv4(CLIENT_ADDRESS, "10.0.42.5")
        .udp(40_514, 514, message);
    capture.add(5_000, frame);
}

/// Returns the beginning of an Ethernet frame from the server to the client, to which layers are
/// added.
pub(crate) fn reply_frame() -> Frame {
    Frame::ethernet_between(crate::packet::TARGET_MAC, crate::packet::SOURCE_MAC)
}

/// Returns the TCP header of a segment without options.
pub(crate) fn tcp_header(
    ports: (u16, u16),
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
) -> TcpHeader {
    let (source, target) = ports;
    TcpHeader { source, target, sequence, acknowledgement, flags, window: 64_240, options: vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_capture_equals_generated_capture() {
        let file = std::fs::read(crate::cases::workspace_root().join("examples/web.pcap")).unwrap();
        assert!(file == web_capture().to_pcap(), "run the example make_web_capture again");
        assert!(file.len() <= 60 * 1024, "{}", file.len());
    }

    #[test]
    fn mixed_traffic_is_determined_by_its_seed() {
        let one = mixed_traffic(1, 20);
        assert_eq!(one.frames, mixed_traffic(1, 20).frames);
        assert_ne!(one.frames, mixed_traffic(2, 20).frames);
        assert!(one.frames.is_sorted_by_key(|(time_ns, _)| *time_ns));
    }
}
