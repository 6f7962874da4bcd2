//! Frames for tests that run over all filters: external captures, generated frames, and random
//! bytes.

#![allow(dead_code, reason = "each exam uses its share")]

pub(crate) mod boundaries;

use filter::LANES;
use filter::testing::{self, Frame};
use filter::transport::token::token_writer::write_token;
use std::fs;
use testkit::Random;
use wire::LinkType;

/// Maximum size of a capture in bytes. Larger captures are skipped, so that a test takes only
/// seconds.
const CAPTURE_SIZE_MAX: u64 = 1 << 20;

/// Function that returns frames from the start of each capture. Its argument is the maximum number
/// of frames per capture.
pub(crate) type CaptureReader = fn(usize) -> Vec<Frame>;

/// Returns the first `each` packets of every generated capture.
pub(crate) fn generated_frames(each: usize) -> Vec<Frame> {
    first_frames(&testkit::generated_captures(), each)
}

/// Returns the first `each` packets of every generated capture of valid application traffic, such
/// as DNS, HTTP and TLS.
pub(crate) fn application_traffic(each: usize) -> Vec<Frame> {
    let kinds = ["dns/", "http/", "mixed/", "streams/", "text/", "tls/", "web"];
    first_frames(&testkit::generated_captures().with_name_prefixes(&kinds), each)
}

/// Returns the first `each` packets of every external capture.
pub(crate) fn external_frames(each: usize) -> Vec<Frame> {
    first_frames(&testkit::corpus_captures().expect("the outside cases are here"), each)
}

fn first_frames(captures: &testkit::Captures, each: usize) -> Vec<Frame> {
    let small = |path: &&std::path::PathBuf| {
        fs::metadata(path).is_ok_and(|about| about.len() < CAPTURE_SIZE_MAX)
    };
    let read = captures.paths.iter().filter(small).filter_map(|path| fs::read(path).ok());
    read.flat_map(|bytes| testing::read_capture(&bytes).into_iter().take(each)).collect()
}

/// Returns one frame for each case that a header filter distinguishes.
pub(crate) fn header_case_frames() -> Vec<Frame> {
    let mut later = Frame::ipv4(17, &[1, 2, 3, 4]);
    later.bytes[14 + 7] = 9;
    let mut first = Frame::udp(7, 53, b"abc");
    first.bytes[34 + 4] = 3;
    first.bytes[14 + 6] = 0x20;
    let mut options = Frame::tcp(1, 22, b"");
    options.bytes[14] = 0x47;
    let mut padded = Frame::udp(68, 67, b"x");
    padded.bytes.extend([0; 17]);
    let tagged = [0x81, 0, 0x20, 7, 0x81, 0, 0, 0, 8, 0, 0x45];
    let raw = |link: LinkType, at: usize, frame: &Frame| Frame::new(link.0, &frame.bytes[at..]);
    let udp = Frame::udp(53, 0, b"answer");
    let cooked = [&[0; 14][..], &udp.bytes[12..]].concat();
    let cooked2 = [&udp.bytes[12..14], &[0; 18], &udp.bytes[14..]].concat();
    let mut sealed = Frame::udp(4000, 53, b"here a token is data");
    write_token(&mut sealed.bytes, &testing::TEST_KEY, 1, 64);
    let loopback = [&[2, 0, 0, 0][..], &udp.bytes[14..]].concat();
    vec![
        Frame::tcp(4000, 80, b"GET / HTTP/1.1\r\n\r\n"),
        Frame::tcp(4001, 22, b"SSH-2.0-OpenSSH_9.2\r\n"),
        Frame::tcp(4002, 23, b"\xff\xfb\x18\xff\xfb\x20"),
        Frame::tcp(4003, 554, b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n"),
        Frame::udp(4000, 53, b"question"),
        Frame::udp(4000, 4789, &[&[8, 0, 0, 0, 0, 0, 42, 0], &udp.bytes[..]].concat()),
        Frame::ipv6(17, &[0, 53, 0, 53, 0, 8, 0, 0]),
        Frame::ipv6(0, &[60, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 80, 0, 80]),
        Frame::ipv6(44, &[17, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3, 4]),
        Frame::ipv4(1, &[8, 0, 0, 0]),
        Frame::ipv4(0, &[]),
        Frame::ethernet(&[8, 6, 0, 1]),
        Frame::ethernet(&tagged),
        Frame::ethernet(&[0, 3, 0x42, 0x42, 3]),
        raw(LinkType::RAW, 14, &udp),
        Frame::new(LinkType::LINUX_SLL.0, &cooked),
        Frame::new(LinkType::LINUX_SLL2.0, &cooked2),
        Frame::new(LinkType::NULL.0, &loopback),
        Frame::new(LinkType::PPP.0, &[&[0, 0x21][..], &udp.bytes[14..]].concat()),
        Frame::new(abi::Marks::NO_LINK_TYPE, b"no frame at all"),
        Frame::new(9999, b"a link type that nobody knows"),
        later,
        first,
        options,
        padded,
        udp,
        sealed,
    ]
}

/// Returns every frame truncated to every length; the length on the wire stays the same.
pub(crate) fn truncate_to_every_length(frames: &[Frame]) -> Vec<Frame> {
    let cut = |frame: &Frame, length: usize| Frame {
        bytes: frame.bytes[..length].to_vec(),
        wire_length: Some(frame.bytes.len() as u32),
        ..frame.clone()
    };
    frames.iter().flat_map(|frame| (0..frame.bytes.len()).map(|n| cut(frame, n))).collect()
}

/// Returns frames with flipped bits and frames of random bytes, for all link types.
pub(crate) fn noise_frames(frames: &[Frame], count: usize) -> Vec<Frame> {
    let mut random = Random::with_replayable_seed();
    let links = [0, 1, 9, 12, 14, 50, 101, 108, 113, 228, 229, 276, 9999, abi::Marks::NO_LINK_TYPE];
    let mut noise = Vec::new();
    for number in 0..count {
        let mut frame = random.pick(frames).clone();
        if number % 2 == 0 {
            let flips = random.within(1..9);
            random.flip_bits(&mut frame.bytes, flips);
        } else {
            let length = random.within(0..300);
            frame = Frame::new(*random.pick(&links), &random.bytes(length));
        }
        frame.time = random.below(1 << 40);
        noise.push(frame);
    }
    noise
}

/// Splits frames into batches of unequal sizes: full ones, short ones, single blocks.
pub(crate) fn uneven_batches(frames: &[Frame]) -> impl Iterator<Item = &[Frame]> {
    let (mut rest, mut size) = (frames, LANES);
    std::iter::from_fn(move || {
        let (batch, behind) = rest.split_at(size.min(rest.len()));
        rest = behind;
        size = if size == 1 { LANES } else { size / 2 };
        (!batch.is_empty()).then_some(batch)
    })
}
