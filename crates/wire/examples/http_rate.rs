//! Benchmark of HTTP/1 head parsers: this crate against `httparse`, which splits a head without
//! interpreting its fields. `cargo run --release -p streamline-wire --example http_rate`.
//!
//! Each row is the shortest of 501 passes over 1,000 adjacent heads. The passes of all parsers are
//! interleaved. Most passes are too short to be interrupted, even on a busy machine. The row
//! `httparse, and fields` also extracts from the result of `httparse` the fields that this crate
//! extracts: lengths, codings, connection and host.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use streamline_wire::http::{Head, ParseMode};

/// Number of adjacent HTTP heads that one pass of the benchmark parses.
const HEAD_COUNT: usize = 1_000;
/// Number of passes over the heads that the benchmark measures for each parser.
const PASSES: usize = 501;

/// The HTTP heads that the benchmark parses: a request by a browser, a request by a program, and a
/// response.
const HEAD_TEXTS: [(&str, &[u8]); 3] = [
    (
        "request, 8 fields",
        b"GET /static/img/logo-2x.png?v=20261121 HTTP/1.1\r\nHost: www.example.com\r\n\
        User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
        Accept: image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5\r\n\
        Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
        Referer: https://www.example.com/index.html\r\nConnection: keep-alive\r\n\
        Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n",
    ),
    ("request, 2 fields", b"GET /health HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"),
    (
        "response, 7 fields",
        b"HTTP/1.1 200 OK\r\nServer: nginx/1.26.0\r\nDate: Sat, 21 Nov 2026 13:00:00 GMT\r\n\
        Content-Type: text/html; charset=UTF-8\r\nContent-Length: 12345\r\n\
        Connection: keep-alive\r\nCache-Control: max-age=3600\r\nETag: \"5f3e-6041\"\r\n\r\n",
    ),
];

/// One pass of a head parser over adjacent heads. Returns a sum of the extracted values, so that
/// the compiler cannot drop the work.
type HeadPass = fn(&[u8]) -> u64;

/// The parsers that the benchmark compares, with their names in the output.
const CANDIDATES: [(&str, HeadPass); 4] = [
    ("wire, strict", |bytes| parse_with_wire(bytes, ParseMode::Strict)),
    ("wire, lenient", |bytes| parse_with_wire(bytes, ParseMode::Lenient)),
    ("httparse", |bytes| parse_with_httparse(bytes, false)),
    ("httparse, and fields", |bytes| parse_with_httparse(bytes, true)),
];

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (name, text) in HEAD_TEXTS {
        let bytes = text.repeat(HEAD_COUNT);
        for ((candidate, _), time) in CANDIDATES.iter().zip(shortest_parse_times(&bytes)) {
            let each = time.as_secs_f64() * 1e9 / HEAD_COUNT as f64;
            writeln!(out, "{name:20} {:4} B  {candidate:22} {each:7.1} ns a head", text.len())?;
        }
    }
    Ok(())
}

/// Parses the heads in `bytes` repeatedly with each parser that the benchmark compares. Returns the
/// shortest time of a pass per parser.
fn shortest_parse_times(bytes: &[u8]) -> [Duration; 4] {
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..PASSES {
        let runs = CANDIDATES.map(|(_, pass)| {
            let start = Instant::now();
            let sum = black_box(pass(black_box(bytes)));
            (start.elapsed(), sum)
        });
        assert!(runs[0].1 == runs[1].1 && runs[0].1 == runs[3].1, "the readers disagree");
        for (times, (time, _)) in times.iter_mut().zip(runs) {
            times.push(time);
        }
    }
    times.map(|times| times.into_iter().min().unwrap_or_default())
}

fn parse_with_wire(mut bytes: &[u8], mode: ParseMode) -> u64 {
    let mut sum = 0;
    while !bytes.is_empty() {
        let read = if bytes[0] == b'H' { Head::parse_response } else { Head::parse_request };
        let head = read(bytes, mode).expect("a head");
        let fields = &head.fields;
        sum += fields.length.unwrap_or(0) + fields.host.len() as u64 + u64::from(fields.keep_alive);
        bytes = &bytes[head.end..];
    }
    sum
}

fn parse_with_httparse(mut bytes: &[u8], fields: bool) -> u64 {
    let mut sum = 0;
    while !bytes.is_empty() {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let length = if bytes[0] == b'H' {
            let mut response = httparse::Response::new(&mut headers);
            let length = response.parse(bytes).expect("a head").unwrap();
            sum += if fields { sum_fields(response.headers) } else { 0 };
            length
        } else {
            let mut request = httparse::Request::new(&mut headers);
            let length = request.parse(bytes).expect("a head").unwrap();
            sum += if fields { sum_fields(request.headers) } else { 0 };
            length
        };
        bytes = &bytes[length..];
    }
    sum
}

fn sum_fields(headers: &[httparse::Header<'_>]) -> u64 {
    let mut sum = 0;
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            sum += text.parse::<u64>().unwrap_or(0);
        } else if is("host") {
            sum += header.value.len() as u64;
        } else if is("connection") {
            sum += u64::from(header.value.eq_ignore_ascii_case(b"keep-alive"));
        } else if is("transfer-encoding") || is("content-encoding") || is("upgrade") {
            sum += 0;
        }
    }
    sum
}
