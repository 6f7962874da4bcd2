//! Application payloads for generated traffic: HTTP/1.1 (RFC 9112), DNS (RFC 1035), the first
//! flight of TLS 1.3 (RFC 8446).

use std::net::Ipv4Addr;

use crate::random::Random;

/// The contents of a style sheet.
pub(crate) const STYLE_SHEET: &[u8] =
    b"body { font-family: serif; max-width: 40em; margin: auto }\n";

pub(crate) fn get_request(host: &str, path: &str) -> Vec<u8> {
    http_request("GET", host, path, "", "")
}

pub(crate) fn head_request(host: &str, path: &str) -> Vec<u8> {
    http_request("HEAD", host, path, "", "")
}

pub(crate) fn post_request(host: &str, path: &str, form: &str) -> Vec<u8> {
    let length = form.len();
    let kind = "application/x-www-form-urlencoded";
    let fields = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n");
    http_request("POST", host, path, &fields, form)
}

fn http_request(method: &str, host: &str, path: &str, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: streamline-testkit/1\r\n\
         Accept: */*\r\n{fields}\r\n{body}"
    )
    .into_bytes()
}

/// Returns a 200 response with a `Content-Length`.
pub(crate) fn ok_response(kind: &str, body: &[u8]) -> Vec<u8> {
    let fields = format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    http_response("200 OK", &fields, body)
}

/// Returns a 200 response with a chunked body, in chunks of `size` bytes.
pub(crate) fn chunked_response(body: &[u8], size: usize) -> Vec<u8> {
    let mut coded = Vec::new();
    for chunk in body.chunks(size) {
        coded.extend(format!("{:x}\r\n", chunk.len()).bytes());
        coded.extend(chunk);
        coded.extend(b"\r\n");
    }
    coded.extend(b"0\r\n\r\n");
    http_response("200 OK", "Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n", &coded)
}

/// Returns the response to a HEAD request: a `Content-Length` without a body.
pub(crate) fn head_response(status: &str, length: usize) -> Vec<u8> {
    http_response(status, &format!("Content-Type: text/html\r\nContent-Length: {length}\r\n"), &[])
}

pub(crate) fn not_found_response() -> Vec<u8> {
    let body = b"<!DOCTYPE html><title>404</title><p>There is nothing here.\n";
    let length = body.len();
    let fields = format!("Content-Type: text/html\r\nContent-Length: {length}\r\n");
    http_response("404 Not Found", &fields, body)
}

pub(crate) fn http_response(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: example\r\n\
         {fields}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns an HTML page of exactly `length` bytes.
pub(crate) fn html_page(length: usize) -> Vec<u8> {
    let mut page = String::from("<!DOCTYPE html>\n<title>Streams</title>\n");
    let mut number = 1;
    while page.len() < length {
        page.push_str(&format!("<p>Paragraph {number}: blocks flow from a source to a sink.\n"));
        number += 1;
    }
    page.truncate(length);
    page.into_bytes()
}

/// Returns a DNS query of type `kind`, such as 1 (A) or 28 (AAAA).
pub(crate) fn dns_query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    dns_message(id, 0x0100, 0, name, kind)
}

/// Returns the DNS response to a query of type A, with a compressed name and a TTL of 300 s.
pub(crate) fn dns_answer(id: u16, name: &str, address: Ipv4Addr) -> Vec<u8> {
    let mut bytes = dns_message(id, 0x8180, 1, name, 1);
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
    bytes.extend(address.octets());
    bytes
}

/// Returns a DNS response with the code NXDOMAIN.
pub(crate) fn nxdomain_response(id: u16, name: &str, kind: u16) -> Vec<u8> {
    dns_message(id, 0x8183, 0, name, kind)
}

pub(crate) fn dns_message(id: u16, flags: u16, answers: u16, name: &str, kind: u16) -> Vec<u8> {
    let header = [id, flags, 1, answers, 0, 0];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u16::to_be_bytes).collect();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

/// Returns a TLS 1.3 client hello with a server name.
pub(crate) fn client_hello(random: &mut Random, name: &str) -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend(random.bytes(32));
    hello.push(32);
    hello.extend(random.bytes(32));
    hello.extend(prefix_with_length([0x13, 0x01, 0x13, 0x02, 0x13, 0x03]));
    hello.extend([1, 0]);
    let host = [&[0][..], &prefix_with_length(name.bytes())].concat();
    let key = [&[0, 0x1d][..], &prefix_with_length(random.bytes(32))].concat();
    let extensions = [
        tls_extension(0, &prefix_with_length(host)),
        tls_extension(10, &prefix_with_length([0, 0x1d, 0, 0x17])),
        tls_extension(13, &prefix_with_length([4, 3, 8, 4])),
        tls_extension(16, &prefix_with_length(*b"\x08http/1.1")),
        tls_extension(43, &[2, 3, 4]),
        tls_extension(51, &prefix_with_length(key)),
    ];
    hello.extend(prefix_with_length(extensions.concat()));
    tls_record(22, [3, 1], &tls_handshake(1, &hello))
}

/// Returns a TLS 1.3 server hello, a change cipher spec for middlebox compatibility, and an
/// encrypted record.
pub(crate) fn tls_server_flight(random: &mut Random) -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend(random.bytes(32));
    hello.push(32);
    hello.extend(random.bytes(32));
    hello.extend([0x13, 0x01, 0]);
    let key = [&[0, 0x1d][..], &prefix_with_length(random.bytes(32))].concat();
    hello
        .extend(prefix_with_length([tls_extension(43, &[3, 4]), tls_extension(51, &key)].concat()));
    let mut flight = tls_record(22, [3, 3], &tls_handshake(2, &hello));
    flight.extend(tls_record(20, [3, 3], &[1]));
    flight.extend(tls_application_data(random, 1_100));
    flight
}

/// Returns a TLS application data record with random contents.
pub(crate) fn tls_application_data(random: &mut Random, length: usize) -> Vec<u8> {
    tls_record(23, [3, 3], &random.bytes(length))
}

pub(crate) fn tls_record(kind: u8, version: [u8; 2], body: &[u8]) -> Vec<u8> {
    [&[kind, version[0], version[1]][..], &prefix_with_length(body.iter().copied())].concat()
}

pub(crate) fn tls_handshake(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 0][..], &prefix_with_length(body.iter().copied())].concat()
}

pub(crate) fn tls_extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &prefix_with_length(body.iter().copied())].concat()
}

/// Returns the bytes, preceded by their number as a 16-bit integer.
pub(crate) fn prefix_with_length(bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
}
