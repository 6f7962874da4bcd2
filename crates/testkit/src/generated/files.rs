//! Encoding of generated captures in several file formats, and damaged capture files.

use crate::traffic::mixed_traffic;
use wire::LinkType;

/// A capture file format: pcap or pcapng, its byte order, its time unit and its snapshot length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileFormat {
    /// True for pcapng, false for the classic pcap format.
    is_pcapng: bool,
    is_big_endian: bool,
    /// True if timestamps are in ns, false if they are in µs.
    has_nanoseconds: bool,
    /// The snapshot length: the maximum number of captured bytes per frame.
    snapshot_length: usize,
}

const CLASSIC_PCAP: FileFormat = FileFormat {
    is_pcapng: false,
    is_big_endian: false,
    has_nanoseconds: false,
    snapshot_length: 262_144,
};
const PCAPNG: FileFormat = FileFormat { is_pcapng: true, ..CLASSIC_PCAP };

/// The file formats of generated captures. Successive captures use them in turn.
pub(super) const FILE_FORMATS: [FileFormat; 8] = [
    CLASSIC_PCAP,
    FileFormat { is_big_endian: true, ..CLASSIC_PCAP },
    FileFormat { has_nanoseconds: true, ..CLASSIC_PCAP },
    FileFormat { has_nanoseconds: true, is_big_endian: true, ..CLASSIC_PCAP },
    FileFormat { snapshot_length: 96, ..CLASSIC_PCAP },
    PCAPNG,
    FileFormat { is_big_endian: true, ..PCAPNG },
    FileFormat { has_nanoseconds: true, ..PCAPNG },
];

type TimedFrames<'f> = &'f [(u64, Vec<u8>)];

impl FileFormat {
    pub(super) const fn extension(self) -> &'static str {
        match self.is_pcapng {
            true => "pcapng",
            false if self.is_big_endian => "cap",
            false => "pcap",
        }
    }

    /// Returns a capture file with these frames. A pcapng file has one interface for each link
    /// type; a classic file contains only the frames of the first link type.
    pub(super) fn encode(self, interfaces: &[(LinkType, TimedFrames<'_>)]) -> Vec<u8> {
        match self.is_pcapng {
            true => self.encode_pcapng(interfaces),
            false => self.encode_pcap(interfaces[0]),
        }
    }

    fn u32_bytes(self, word: u32) -> [u8; 4] {
        if self.is_big_endian { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    fn u16_bytes(self, word: u16) -> [u8; 2] {
        if self.is_big_endian { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    const fn timestamp_tick_ns(self) -> u64 {
        if self.has_nanoseconds { 1 } else { 1_000 }
    }

    fn encode_pcap(self, (link, frames): (LinkType, TimedFrames<'_>)) -> Vec<u8> {
        let magic = if self.has_nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut file = self.u32_bytes(magic).to_vec();
        file.extend([self.u16_bytes(2), self.u16_bytes(4)].concat());
        let words = [0, 0, self.snapshot_length as u32, u32::from(link.0)];
        file.extend(words.map(|word| self.u32_bytes(word)).concat());
        for (time_ns, frame) in frames {
            let captured = &frame[..frame.len().min(self.snapshot_length)];
            let rest = time_ns % 1_000_000_000 / self.timestamp_tick_ns();
            let words = [
                (time_ns / 1_000_000_000) as u32,
                rest as u32,
                captured.len() as u32,
                frame.len() as u32,
            ];
            file.extend(words.map(|word| self.u32_bytes(word)).concat());
            file.extend(captured);
        }
        file
    }

    fn encode_pcapng(self, interfaces: &[(LinkType, TimedFrames<'_>)]) -> Vec<u8> {
        let unknown = [self.u32_bytes(u32::MAX), self.u32_bytes(u32::MAX)].concat();
        let section =
            [&self.u32_bytes(0x1a2b_3c4d)[..], &self.u16_bytes(1), &self.u16_bytes(0), &unknown]
                .concat();
        let mut file = self.pcapng_block(0x0a0d_0d0a, &section);
        for (link, _) in interfaces {
            let mut about = [
                &self.u16_bytes(link.0)[..],
                &self.u16_bytes(0),
                &self.u32_bytes(self.snapshot_length as u32),
            ]
            .concat();
            if self.has_nanoseconds {
                // The option if_tsresol (resolution of timestamps), and the end of the options.
                about.extend(
                    [&self.u16_bytes(9)[..], &self.u16_bytes(1), &[9, 0, 0, 0], &[0; 4]].concat(),
                );
            }
            file.extend(self.pcapng_block(1, &about));
        }
        let mut all: Vec<_> = (0..)
            .zip(interfaces)
            .flat_map(|(at, (_, frames))| {
                frames.iter().map(move |(time_ns, frame)| (*time_ns, at, frame))
            })
            .collect();
        all.sort_by_key(|(time_ns, ..)| *time_ns);
        for (time_ns, interface, frame) in all {
            let ticks = time_ns / self.timestamp_tick_ns();
            let captured = &frame[..frame.len().min(self.snapshot_length)];
            let words = [
                interface,
                (ticks >> 32) as u32,
                ticks as u32,
                captured.len() as u32,
                frame.len() as u32,
            ];
            let mut packet = words.map(|word| self.u32_bytes(word)).concat();
            packet.extend(captured);
            packet.resize(packet.len().next_multiple_of(4), 0);
            file.extend(self.pcapng_block(6, &packet));
        }
        file
    }

    fn pcapng_block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let length = self.u32_bytes(body.len() as u32 + 12);
        [&self.u32_bytes(kind)[..], &length, body, &length].concat()
    }
}

/// Returns truncated, damaged and empty capture files, with their names.
pub(super) fn damaged_files() -> Vec<(String, Vec<u8>)> {
    let frames = mixed_traffic(7, 3).frames;
    let [classic, next] =
        [CLASSIC_PCAP, PCAPNG].map(|format| format.encode(&[(LinkType::ETHERNET, &frames)]));
    let changed = |file: &[u8], at: usize, bytes: &[u8]| {
        let mut file = file.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    // Offset of the second record: after the file header and the first record.
    let second = 24 + 16 + frames[0].1.len();
    let faults = [
        ("cut-in-record.pcap", classic[..classic.len() - 7].to_vec()),
        ("cut-in-head.pcap", classic[..second + 9].to_vec()),
        ("cut-in-header.pcap", classic[..20].to_vec()),
        ("long-record.pcap", changed(&classic, second + 8, &[0xff; 4])),
        ("no-magic.pcap", changed(&classic, 0, b"\x89PNG")),
        ("no-frames.pcap", classic[..24].to_vec()),
        ("cut-in-block.pcapng", next[..next.len() - 9].to_vec()),
        ("unlike-lengths.pcapng", changed(&next, next.len() - 4, &[0, 1, 0, 0])),
        ("no-frames.pcapng", next[..28].to_vec()),
    ];
    faults.into_iter().map(|(name, bytes)| (format!("faults/{name}"), bytes)).collect()
}
