//! Captures of the protocols that filters parse: HTTP/1, DNS, TLS, and the first bytes of SSH, RTSP
//! and telnet.

use super::connection_capture::{ConnectionCapture, concat_captures};
use crate::packet::Frame;
use crate::random::Random;
use crate::traffic::{CLIENT_ADDRESS, Capture, SERVER_ADDRESS, content, reply_frame};
use std::net::Ipv4Addr;

const HOST: &str = "www.example.org";

pub(super) fn http_captures() -> Vec<(&'static str, Capture)> {
    let page = content::html_page(2_500);
    let get = |path: &str| content::get_request(HOST, path);
    let ok = || content::ok_response("text/html", &page);
    let chunked = |length: usize| content::chunked_response(&page, length);
    let talk = |seed: u64| ConnectionCapture::new(seed, 80);
    let answer = |fields: &str, body: &[u8]| content::http_response("200 OK", fields, body);
    let pipelined =
        [get("/one"), get("/two"), content::head_request(HOST, "/three"), get("/four")].concat();
    let answers =
        [ok(), content::not_found_response(), content::head_response("200 OK", 900), ok()].concat();
    let coded = "Content-Type: text/html\r\nContent-Encoding: gzip\r\n";
    let packed = gzip_file(&page);
    let packed = answer(&format!("{coded}Content-Length: {}\r\n", packed.len()), &packed);
    let trailer = [
        b"Transfer-Encoding: chunked\r\n\r\n5;name=value\r\nfirst\r\n".as_slice(),
        b"7\r\n and 2.\r\n0\r\nDigest: none\r\n\r\n",
    ]
    .concat();
    let trailer = [b"HTTP/1.1 200 OK\r\n".as_slice(), &trailer].concat();
    let upgrade =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n\
                    not HTTP any more";
    let proceed = content::http_response("100 Continue", "", b"");
    vec![
        ("plain", talk(31).send_from_client(get("/")).send_from_server(ok()).close()),
        ("pipelined", talk(32).send_from_client(pipelined).send_from_server(answers).close()),
        ("chunked", talk(33).send_from_client(get("/")).send_from_server(chunked(700)).close()),
        ("chunked-small", talk(34).send_from_client(get("/")).send_from_server(chunked(3)).close()),
        ("trailer", talk(35).send_from_client(get("/")).send_from_server(trailer).close()),
        ("packed", talk(36).send_from_client(get("/")).send_from_server(packed).close()),
        (
            "until-close",
            talk(37).send_from_client(get("/")).send_from_server(answer("", &page)).close(),
        ),
        (
            "not-modified",
            talk(38)
                .send_from_client(get("/"))
                .send_from_server(content::head_response("304 Not Modified", 2_500))
                .close(),
        ),
        (
            "upgraded",
            talk(39)
                .send_from_client(get("/chat"))
                .send_from_server(upgrade)
                .send_from_client("and so on")
                .close(),
        ),
        (
            "form",
            talk(40)
                .send_from_client(content::post_request(HOST, "/search", "q=streams"))
                .send_from_server([proceed, ok()].concat())
                .close(),
        ),
        (
            "gap-in-body",
            talk(41)
                .send_from_client(get("/"))
                .send_from_server_in_order(
                    &content::ok_response("text/plain", &content::html_page(6_000)),
                    &[0, 1, 3, 4],
                )
                .close(),
        ),
        ("byte-by-byte", byte_by_byte_connection()),
        (
            "other-port",
            ConnectionCapture::new(43, 8_123)
                .send_from_client(get("/"))
                .send_from_server(ok())
                .close(),
        ),
        (
            "no-http",
            talk(44).send_from_client("HELO there\r\n").send_from_server("250 nobody\r\n").close(),
        ),
        (
            "wrong",
            talk(45)
                .send_from_client("GET / HTTP/1.1\r\nHost : a\r\nContent-Length: x\r\n\r\n")
                .send_from_server("HTTP/1.1 2OO OK\r\n\r\n")
                .close(),
        ),
        (
            "six",
            ConnectionCapture::new_over_ipv6(46, 80)
                .send_from_client(get("/six"))
                .send_from_server(ok())
                .close(),
        ),
    ]
}

/// Returns a connection in which each byte of the request and of the response is sent in a separate
/// segment.
fn byte_by_byte_connection() -> Capture {
    let mut talk = ConnectionCapture::new(42, 80);
    for byte in content::get_request(HOST, "/slow") {
        talk = talk.send_from_client([byte]);
    }
    for byte in content::ok_response("text/plain", b"slowly") {
        talk = talk.send_from_server([byte]);
    }
    talk.close()
}

/// Returns a gzip file (RFC 1952) with one uncompressed block (RFC 1951 §3.2.4).
fn gzip_file(data: &[u8]) -> Vec<u8> {
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let length = data.len() as u16;
    packed.push(1);
    packed.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
    packed.extend(data);
    let mut sum = u32::MAX;
    for byte in data {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    packed.extend((!sum).to_le_bytes());
    packed.extend((data.len() as u32).to_le_bytes());
    packed
}

pub(super) fn dns_captures() -> Vec<(&'static str, Capture)> {
    let address = Ipv4Addr::new(192, 0, 2, 80);
    let ask = |id: u16, name: &str, kind: u16| {
        Frame::ethernet().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).udp(
            5_353,
            53,
            &content::dns_query(id, name, kind),
        )
    };
    let reply_with =
        |message: &[u8]| reply_frame().ipv4(SERVER_ADDRESS, CLIENT_ADDRESS).udp(53, 5_353, message);
    let datagrams = Capture::from_frames([
        ask(1, HOST, 1),
        reply_with(&content::dns_answer(1, HOST, address)),
        ask(2, "no.example.org", 28),
        reply_with(&content::nxdomain_response(2, "no.example.org", 28)),
        ask(3, "mail.example.org", 15),
        ask(4, "xn--bcher-kva.example", 65_399),
        reply_with(&content::dns_answer(3, HOST, address)[..20]),
    ]);
    let counted = |message: Vec<u8>| [&(message.len() as u16).to_be_bytes()[..], &message].concat();
    let both = [5, 6].map(|id| counted(content::dns_query(id, HOST, 1))).concat();
    let answers = [6, 5].map(|id| counted(content::dns_answer(id, HOST, address))).concat();
    let stream =
        ConnectionCapture::new(51, 53).send_from_client(both).send_from_server(answers).close();
    vec![("datagrams", datagrams), ("stream", stream)]
}

pub(super) fn tls_captures() -> Vec<(&'static str, Capture)> {
    let mut random = Random::new(61);
    let hello = content::client_hello(&mut random, "secret.example.org");
    let flight = content::tls_server_flight(&mut random);
    let data = content::tls_application_data(&mut random, 900);
    let (begin, end) = hello.split_at(100);
    let whole = ConnectionCapture::new(61, 443)
        .send_from_client(&hello)
        .send_from_server(&flight)
        .send_from_client(&data)
        .close();
    let pieces = ConnectionCapture::new(62, 443)
        .send_from_client(begin)
        .send_from_client(end)
        .send_from_server(&flight)
        .close();
    let records = ConnectionCapture::new(63, 8_443)
        .send_from_client(split_into_tls_records(&hello))
        .send_from_server(&flight)
        .close();
    let other = content::client_hello(&mut random, "other.example.org");
    let unanswered = ConnectionCapture::new(64, 443).send_from_client(other).close();
    let alert = ConnectionCapture::new(65, 443)
        .send_from_client(&hello)
        .send_from_server([21, 3, 3, 0, 2, 2, 40])
        .close();
    let none =
        ConnectionCapture::new(66, 443).send_from_client([22, 3, 1, 0xff, 0xff, 1, 0, 0]).close();
    vec![
        ("whole", whole),
        ("pieces", pieces),
        ("two-records", records),
        ("unanswered", unanswered),
        ("refused", alert),
        ("malformed", none),
    ]
}

/// Splits the handshake message of one TLS record into two records (RFC 8446 §5.1).
fn split_into_tls_records(record: &[u8]) -> Vec<u8> {
    let (one, other) = record[5..].split_at(60);
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    [record(one), record(other)].concat()
}

/// Returns captures of protocols that are recognized by their first bytes.
pub(super) fn text_protocol_captures() -> Vec<(&'static str, Capture)> {
    let ssh = |seed| {
        let server = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
        ConnectionCapture::new(seed, 22)
            .send_from_server(server)
            .send_from_client("SSH-2.0-streamline\r\n")
            .send_from_server([0, 0, 1, 4])
            .close()
    };
    let rtsp = |seed| {
        let ask = "OPTIONS rtsp://media.example.org/ RTSP/1.0\r\nCSeq: 1\r\n\r\n";
        ConnectionCapture::new(seed, 554)
            .send_from_client(ask)
            .send_from_server("RTSP/1.0 200 OK\r\nCSeq: 1\r\n\r\n")
            .close()
    };
    let telnet = |seed| {
        let server = b"\xff\xfb\x03\xff\xfb\x01\r\nlogin: ";
        ConnectionCapture::new(seed, 23)
            .send_from_server(server)
            .send_from_client(b"\xff\xfd\x03\xff\xfd\x01alice\r\n")
            .close()
    };
    let mail = ConnectionCapture::new(74, 25)
        .send_from_server("220 mail.example.org\r\n")
        .send_from_client("EHLO me\r\n")
        .close();
    let all = (75..85).map(|seed| match seed % 3 {
        0 => ssh(seed),
        1 => rtsp(seed),
        _ => telnet(seed),
    });
    vec![
        ("ssh", ssh(71)),
        ("rtsp", rtsp(72)),
        ("telnet", telnet(73)),
        ("mail", mail),
        ("mixed", concat_captures(all)),
    ]
}
