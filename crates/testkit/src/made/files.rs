//! The capture file formats, and damaged capture files.

use crate::traffic::traffic;
use wire::LinkType;

/// A variant of the capture file formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// True for pcapng, false for the classic pcap format.
    next: bool,
    big: bool,
    /// True for timestamps in ns, false for µs.
    nanoseconds: bool,
    /// The snapshot length: the maximum number of captured bytes per frame.
    snap: usize,
}

const CLASSIC: Form = Form { next: false, big: false, nanoseconds: false, snap: 262_144 };
const NEXT: Form = Form { next: true, ..CLASSIC };

/// All variants that captures are written in.
pub(super) const FORMS: [Form; 8] = [
    CLASSIC,
    Form { big: true, ..CLASSIC },
    Form { nanoseconds: true, ..CLASSIC },
    Form { nanoseconds: true, big: true, ..CLASSIC },
    Form { snap: 96, ..CLASSIC },
    NEXT,
    Form { big: true, ..NEXT },
    Form { nanoseconds: true, ..NEXT },
];

type Frames<'f> = &'f [(u64, Vec<u8>)];

impl Form {
    pub(super) const fn extension(self) -> &'static str {
        match self.next {
            true => "pcapng",
            false if self.big => "cap",
            false => "pcap",
        }
    }

    /// Returns a capture file with these frames. pcapng describes one interface per link type; the
    /// classic format stores only the first link type and its frames.
    pub(super) fn write(self, interfaces: &[(LinkType, Frames<'_>)]) -> Vec<u8> {
        match self.next {
            true => self.blocks(interfaces),
            false => self.records(interfaces[0]),
        }
    }

    fn long(self, word: u32) -> [u8; 4] {
        if self.big { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    fn short(self, word: u16) -> [u8; 2] {
        if self.big { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    const fn tick_ns(self) -> u64 {
        if self.nanoseconds { 1 } else { 1_000 }
    }

    fn records(self, (link, frames): (LinkType, Frames<'_>)) -> Vec<u8> {
        let magic = if self.nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut file = self.long(magic).to_vec();
        file.extend([self.short(2), self.short(4)].concat());
        let words = [0, 0, self.snap as u32, u32::from(link.0)];
        file.extend(words.map(|word| self.long(word)).concat());
        for (time_ns, frame) in frames {
            let captured = &frame[..frame.len().min(self.snap)];
            let rest = time_ns % 1_000_000_000 / self.tick_ns();
            let words = [
                (time_ns / 1_000_000_000) as u32,
                rest as u32,
                captured.len() as u32,
                frame.len() as u32,
            ];
            file.extend(words.map(|word| self.long(word)).concat());
            file.extend(captured);
        }
        file
    }

    fn blocks(self, interfaces: &[(LinkType, Frames<'_>)]) -> Vec<u8> {
        let unknown = [self.long(u32::MAX), self.long(u32::MAX)].concat();
        let section =
            [&self.long(0x1a2b_3c4d)[..], &self.short(1), &self.short(0), &unknown].concat();
        let mut file = self.block(0x0a0d_0d0a, &section);
        for (link, _) in interfaces {
            let mut about =
                [&self.short(link.0)[..], &self.short(0), &self.long(self.snap as u32)].concat();
            if self.nanoseconds {
                // if_tsresol, then the end of the options.
                about.extend([&self.short(9)[..], &self.short(1), &[9, 0, 0, 0], &[0; 4]].concat());
            }
            file.extend(self.block(1, &about));
        }
        let mut all: Vec<_> = (0..)
            .zip(interfaces)
            .flat_map(|(at, (_, frames))| {
                frames.iter().map(move |(time_ns, frame)| (*time_ns, at, frame))
            })
            .collect();
        all.sort_by_key(|(time_ns, ..)| *time_ns);
        for (time_ns, interface, frame) in all {
            let ticks = time_ns / self.tick_ns();
            let captured = &frame[..frame.len().min(self.snap)];
            let words = [
                interface,
                (ticks >> 32) as u32,
                ticks as u32,
                captured.len() as u32,
                frame.len() as u32,
            ];
            let mut packet = words.map(|word| self.long(word)).concat();
            packet.extend(captured);
            packet.resize(packet.len().next_multiple_of(4), 0);
            file.extend(self.block(6, &packet));
        }
        file
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let length = self.long(body.len() as u32 + 12);
        [&self.long(kind)[..], &length, body, &length].concat()
    }
}

/// Returns truncated, damaged and empty capture files, with their names.
pub(super) fn faults() -> Vec<(String, Vec<u8>)> {
    let frames = traffic(7, 3).frames;
    let [classic, next] = [CLASSIC, NEXT].map(|form| form.write(&[(LinkType::ETHERNET, &frames)]));
    let changed = |file: &[u8], at: usize, bytes: &[u8]| {
        let mut file = file.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    // Behind the file's header and the first record.
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
