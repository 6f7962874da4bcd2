//! Tests of failures in complete requests: data that could not be read, written or decoded is
//! reported, all other data is present, and the ledger balances.

use crate::collect::{COLLECT_FILTERS, run_and_collect};
use crate::messages::{self, Message};
use crate::request::PlannedRequest;
use crate::scratch::Scratch;
use std::io::Write;
use std::path::Path;
use testkit::{Frame, TcpHeader};
use wire::capture::write;

const CLIENT_AND_SERVER_ADDRESSES: [&str; 2] = ["10.0.0.1", "192.0.2.80"];
const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// Returns a capture of a connection with one request, and a response in segments of 1,400 bytes.
/// `snap` is the maximum captured length of a frame.
fn http_connection_capture(request: &[u8], response: &[u8], snap: usize) -> Vec<u8> {
    let mut capture = write::encode_file_header(wire::LinkType::ETHERNET).to_vec();
    let mut sequence = [7_000_u32, 9_000];
    let mut add = |side: usize, flags: u8, data: &[u8]| {
        let ports = [40_000, 80];
        let segment = TcpHeader {
            source: ports[side],
            target: ports[1 - side],
            sequence: sequence[side],
            acknowledgement: sequence[1 - side],
            flags,
            window: 64_000,
            options: Vec::new(),
        };
        let frame = Frame::ethernet()
            .ipv4(CLIENT_AND_SERVER_ADDRESSES[side], CLIENT_AND_SERVER_ADDRESSES[1 - side])
            .tcp(&segment, data);
        let (captured, length) = (frame.len().min(snap), frame.len() as u32);
        capture.extend(write::encode_record_header(1_000_000_000, captured as u32, length));
        capture.extend(&frame[..captured]);
        sequence[side] += data.len() as u32 + u32::from(flags & (SYN | 1) != 0);
    };
    add(0, SYN, b"");
    add(1, SYN | ACK, b"");
    add(0, ACK, request);
    response.chunks(1_400).for_each(|chunk| add(1, ACK, chunk));
    add(1, ACK | 1, b"");
    add(0, ACK | 1, b"");
    capture
}

fn response(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const REQUEST: &[u8] = b"GET /it HTTP/1.1\r\nHost: example.org\r\n\r\n";

/// Asserts that a capture contains exactly one response, and returns the response.
fn only_response(path: &Path) -> Message {
    let messages = messages::messages_with_bodies(path).expect("a capture");
    let responses = messages.into_iter().filter(|(message, _)| message.class >= 100);
    let mut responses = responses.map(|(message, bytes)| Message { bytes, ..message });
    let only = responses.next().expect("a response");
    assert_eq!(responses.next(), None);
    only
}

#[test]
fn truncated_capture_is_read_up_to_the_cut_and_reported() {
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let capture = http_connection_capture(REQUEST, &response("", &body), usize::MAX);
    let half = capture.len() / 2;
    let path = scratch.path("cut.pcap");
    std::fs::write(&path, &capture[..half]).expect("a file");
    let text = format!("replay '{}' | tcp | http emit=body | collect | discard", path.display());
    let (blocks, outcome) =
        run_and_collect(&PlannedRequest::with_filters(text, COLLECT_FILTERS)).expect("a beginning");
    let [failure] = outcome.failures.as_slice() else { panic!("{:?}", outcome.failures) };
    let message = failure.to_string();
    assert!(message.contains("cut.pcap") && message.contains("record"), "{message}");
    let messages = messages::group_into_messages(&blocks);
    assert_eq!(messages.len(), 2);
    let bytes = &messages[1].bytes;
    assert!(bytes.len() > half * 9 / 10 - 2_000 && body.starts_with(bytes), "{}", bytes.len());
    assert!(!messages[1].is_complete() || bytes.len() < body.len());
}

#[test]
fn only_uncaptured_bytes_are_missing() {
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let path = scratch.path("short.pcap");
    // The response head and the beginning of every segment.
    let capture = http_connection_capture(REQUEST, &response("", &body), 400);
    std::fs::write(&path, capture).expect("a file");
    let message = only_response(&path);
    let blocks = message.bytes.len() as u64;
    assert_eq!(blocks + message.missing, body.len() as u64);
    assert!(blocks > 20_000 && message.missing > 60_000, "{blocks} seen");
    assert!(!message.is_complete());
}

#[test]
fn compressed_bombs_are_not_decompressed() {
    let scratch = Scratch::new();
    let path = scratch.path("bomb.pcap");
    let zeros = vec![0_u8; 1 << 20];
    // One beyond the ratio, one beyond the length.
    for megabytes in [1, 17] {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        (0..megabytes).for_each(|_| encoder.write_all(&zeros).expect("memory"));
        let bomb = encoder.finish().expect("memory");
        assert!(bomb.len() * 500 < megabytes << 20, "{} bytes are no bomb", bomb.len());
        let sent = response("Content-Encoding: gzip\r\n", &bomb);
        std::fs::write(&path, http_connection_capture(REQUEST, &sent, usize::MAX)).expect("a file");
        let message = only_response(&path);
        assert!(message.bytes == bomb, "{megabytes} MB: {}", message.bytes.len());
    }
    // Contents within the limits are decoded.
    let text = "to be or not to be, that is the question\n".repeat(1_000);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).expect("memory");
    let sent = response("Content-Encoding: gzip\r\n", &encoder.finish().expect("memory"));
    std::fs::write(&path, http_connection_capture(REQUEST, &sent, usize::MAX)).expect("a file");
    assert!(only_response(&path).bytes == text.as_bytes());
}

#[test]
fn unwritable_directory_is_refused_by_name() {
    let scratch = Scratch::new();
    let path = scratch.path("good.pcap");
    let capture = http_connection_capture(REQUEST, &response("", b"here"), usize::MAX);
    std::fs::write(&path, capture).expect("a file");
    let blocked = scratch.path("a file, not a folder");
    std::fs::write(&blocked, b"").expect("a file");
    for folder in [blocked.join("out"), "/proc/out".into()] {
        let folder = folder.display().to_string();
        let text = format!("replay '{}' | tcp | http | files '{folder}'", path.display());
        let message = match PlannedRequest::new(text).run_sequential() {
            Err(error) => error.to_string(),
            Ok(outcome) => outcome.failures.iter().map(ToString::to_string).collect(),
        };
        assert!(message.contains(&folder), "{message}");
    }
}

/// Writes a body of 100 KB to a file system of 64 KB. Asserts that the failure and the number of
/// lost bytes are reported.
#[test]
fn full_disk_is_reported_with_lost_bytes() {
    if testkit::need::require_root().is_none() {
        return;
    }
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let mounted = rustix::mount::mount(
        "none",
        &disk,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        Some(c"size=64k"),
    );
    if let Err(why) = mounted {
        return testkit::need::report_skip::<()>(&format!("needs to mount a file system: {why}"))
            .unwrap_or_default();
    }
    let path = scratch.path("good.pcap");
    let body: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    std::fs::write(&path, http_connection_capture(REQUEST, &response("", &body), usize::MAX))
        .expect("a file");
    let text = format!(
        "replay '{}' | tcp | http emit=body | files '{}'",
        path.display(),
        disk.join("out").display()
    );
    let outcome = PlannedRequest::new(text).run_sequential().expect("it begins");
    rustix::mount::unmount(&disk, rustix::mount::UnmountFlags::empty()).expect("the disk is idle");
    let message: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
    assert!(message.iter().any(|message| message.contains("out")), "{message:?}");
    assert_eq!(outcome.ledger.imbalances(), []);
}
