//! Benchmark of capture readers: this crate against `pcap-parser`, over captures of 100 MB built in
//! memory. `cargo run --release -p streamline-wire --example capture_rate`.
//!
//! Each row is the median of eleven passes over a capture. The passes of all readers are
//! interleaved. All readers except the one that finds layers must compute the same sum of times and
//! lengths. The reader `through a buffer` copies the capture piece by piece into a buffer of 256
//! KB, as a program that reads a file does. `pcap-parser` does the same with a buffer of 1 MB. The
//! reader `in place` reads the 100 MB directly, where records of uneven length defeat the
//! prefetcher.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapError};
use streamline_wire::capture::{self, Packet, ReadOutcome, Reader, write};
use streamline_wire::{LinkType, layers};

/// Size in bytes of each generated capture.
const CAPTURE_SIZE: usize = 100_000_000;
/// Number of passes over a capture that the benchmark measures for each reader.
const PASSES: usize = 11;

/// One pass of a capture reader over a capture. Returns the sum of the packets' times and lengths,
/// so that results can be compared.
type CapturePass = fn(&[u8]) -> u64;

/// The readers that the benchmark compares, with their names in the output.
const CANDIDATES: [(&str, CapturePass); 4] = [
    ("wire, in place", sum_in_place),
    ("wire, through a buffer", read_through_buffer),
    ("wire and layers, through a buffer", read_and_dissect),
    ("pcap-parser, through a buffer", read_with_pcap_parser),
];

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (frames, length) in [("64 B", 64), ("IMIX", 0), ("1500 B", 1500)] {
        for (format, file) in [("pcap", build_pcap(length)), ("pcapng", build_pcapng(length))] {
            let records = capture::packets(&file).count() as f64;
            for ((candidate, _), time) in CANDIDATES.iter().zip(median_read_times(&file)) {
                let seconds = time.as_secs_f64();
                let rate = file.len() as f64 / seconds / 1e9;
                let each = seconds * 1e9 / records;
                write!(out, "{format:6} {frames:6}  {candidate:33} ")?;
                writeln!(out, "{rate:6.2} GB/s {each:7.2} ns a record")?;
            }
        }
    }
    Ok(())
}

/// Reads the capture `file` repeatedly with each reader that the benchmark compares. Returns the
/// median time of a pass per reader.
fn median_read_times(file: &[u8]) -> [Duration; 4] {
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..PASSES {
        let runs = CANDIDATES.map(|(_, pass)| {
            let start = Instant::now();
            let sum = black_box(pass(black_box(file)));
            (start.elapsed(), sum)
        });
        assert!(runs[0].1 == runs[1].1 && runs[0].1 == runs[3].1, "the readers disagree");
        for (times, (time, _)) in times.iter_mut().zip(runs) {
            times.push(time);
        }
    }
    times.map(|mut times| {
        times.sort();
        times[PASSES / 2]
    })
}

fn sum_in_place(file: &[u8]) -> u64 {
    let packets = capture::packets(file).flatten();
    packets.map(|(packet, data)| packet.time_ns ^ data.len() as u64).fold(0, u64::wrapping_add)
}

fn read_through_buffer(file: &[u8]) -> u64 {
    sum_packets_through_buffer(file, |packet, data| packet.time_ns ^ data.len() as u64)
}

fn read_and_dissect(file: &[u8]) -> u64 {
    sum_packets_through_buffer(file, |packet, data| {
        layers(packet.link, data).payload.unwrap_or(0).into()
    })
}

/// Reads a capture through one buffer, like a program that reads a file: an incomplete last record
/// moves to the front of the buffer. Returns the sum of `sum_of` over all packets.
fn sum_packets_through_buffer(mut file: &[u8], sum_of: impl Fn(&Packet, &[u8]) -> u64) -> u64 {
    let (mut sum, mut reader) = (0u64, Reader::new());
    let mut buffer = vec![0; 256 * 1024];
    let (mut start, mut end) = (0, 0);
    loop {
        match reader.next(&buffer[start..end]) {
            ReadOutcome::Packet(packet) => {
                let data = &buffer[start + packet.data.start..start + packet.data.end];
                sum = sum.wrapping_add(sum_of(&packet, data));
                start += packet.consumed;
            }
            ReadOutcome::NeedMore { consumed, .. } => {
                buffer.copy_within(start + consumed..end, 0);
                (start, end) = (0, end - start - consumed);
                match file.read(&mut buffer[end..]) {
                    Ok(0) | Err(_) => return sum,
                    Ok(count) => end += count,
                }
            }
            ReadOutcome::Error(_) => return sum,
        }
    }
}

fn read_with_pcap_parser(file: &[u8]) -> u64 {
    let mut sum = 0u64;
    let mut reader: Box<dyn PcapReaderIterator> =
        pcap_parser::create_reader(1 << 20, file).expect("the captures made here are right");
    loop {
        match reader.next() {
            Ok((consumed, block)) => {
                sum = sum.wrapping_add(match block {
                    PcapBlockOwned::Legacy(packet) => {
                        let ns =
                            u64::from(packet.ts_sec) * NS_PER_SECOND + u64::from(packet.ts_usec);
                        ns ^ packet.data.len() as u64
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        let (seconds, micros) = packet.decode_ts(0, 1_000_000);
                        let ns = u64::from(seconds) * NS_PER_SECOND + u64::from(micros) * 1_000;
                        ns ^ u64::from(packet.caplen)
                    }
                    _ => 0,
                });
                reader.consume(consumed);
            }
            Err(PcapError::Incomplete(_)) => reader.refill().expect("memory can be read"),
            Err(_) => return sum,
        }
    }
}

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Yields frames with times in ns. All frames have the given length in bytes or, for 0, the lengths
/// of the simple IMIX: 7 frames of 64 bytes, 4 of 576 and 1 of 1500.
fn generate_frames(length: usize) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let imix = [64, 576, 64, 64, 576, 64, 1500, 64, 576, 64, 576, 64];
    (0u64..).map(move |number| {
        let length = if length == 0 { imix[number as usize % imix.len()] } else { length };
        let frame = testkit::Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2");
        let frame = frame.udp(1024 + number as u16 % 999, 53, &vec![7; length - 42]);
        (1_700_000_000 * NS_PER_SECOND + number * 1_000, frame)
    })
}

fn build_pcap(length: usize) -> Vec<u8> {
    let mut file = write::encode_file_header(LinkType::ETHERNET).to_vec();
    for (time_ns, frame) in generate_frames(length) {
        file.extend(write::encode_record_header(time_ns, frame.len() as u32, frame.len() as u32));
        file.extend(frame);
        if file.len() > CAPTURE_SIZE {
            break;
        }
    }
    file
}

fn build_pcapng(length: usize) -> Vec<u8> {
    let mut file = encode_little_endian(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
    file.extend(encode_little_endian(&[1, 20, 1, 262_144, 20]));
    for (time_ns, frame) in generate_frames(length) {
        let (micros, captured) = (time_ns / 1_000, frame.len() as u32);
        let total = captured.next_multiple_of(4) + 32;
        let (high, low) = ((micros >> 32) as u32, micros as u32);
        file.extend(encode_little_endian(&[6, total, 0, high, low, captured, captured]));
        file.extend(frame);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend(encode_little_endian(&[total]));
        if file.len() > CAPTURE_SIZE {
            break;
        }
    }
    file
}

fn encode_little_endian(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
