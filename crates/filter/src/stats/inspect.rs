//! `inspect`: reports lengths, the share of printable bytes, and entropy.
//!
//! Input: any blocks. Output: the same blocks. Reads every byte in view and changes nothing; the
//! state is a count per byte value, in a private session of plain data.

use crate::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `inspect`, which reports lengths, the share of printable bytes, and entropy.
pub const INSPECT: Description = Description {
    name: "inspect",
    summary: "report lengths, printable share and entropy of blocks",
    details: "\
Reads every byte in view and reports, when the path stops, blocks, bytes, the shortest, mean and
longest block, the number of bytes per thousand that are printable ASCII or white space, and the
entropy in thousandths of a bit per byte (8000: random, compressed or encrypted). Blocks that are no
data (lost bytes or the end of a stream, the description of a message) are in none of these; lost
bytes are counted as `bytes not here`. Leaves class and view unchanged.",
    example: "replay web.pcap | udp | inspect | discard",
    kind: FilterKind::Inspection,
    reads: ReadDepth::All,
    counters: &["bytes not here"],
    state: StateFacts::private_session::<ByteCounts>().with_worker_rule(|_| {
        WorkerRule::Differs("its mean and its entropy are of all blocks", WorkerRule::DEFAULT_HINT)
    }),
    has_report: true,
    constructor: Some(|_| Ok(Filter::classify(Inspect::default()))),
    ..Description::FILTER_DEFAULTS
};

const UNAVAILABLE_BYTES: Counter = INSPECT.counter("bytes not here");

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct ByteCounts {
    bytes: [u64; 256],
    blocks: u64,
    length: u64,
    shortest: u32,
    longest: u32,
}

impl Default for ByteCounts {
    fn default() -> Self {
        Self { bytes: [0; 256], blocks: 0, length: 0, shortest: 0, longest: 0 }
    }
}

impl Session for ByteCounts {
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("blocks", Unit::Blocks, "processed", |counts, _| counts.blocks),
        Field::new("bytes", Unit::Bytes, "in their views", |counts, _| counts.length),
        Field::new("shortest", Unit::Bytes, "block", |counts, _| counts.shortest.into()),
        Field::new("longest", Unit::Bytes, "block", |counts, _| counts.longest.into()),
    ];
}

#[derive(Default)]
struct Inspect {
    counts: Sessions<ByteCounts>,
}

impl Classify for Inspect {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let bytes = block.bytes();
        if !block.pointer.is_hole() && !block.marks.is_description() {
            self.counts.get_or_create(PRIVATE_SESSION_KEY).add_bytes(bytes);
        }
        let missing = u64::from(block.length()) - bytes.len() as u64;
        if missing > 0 {
            cx.count(UNAVAILABLE_BYTES, missing);
        }
        block.pointer.class
    }

    fn report(&self) -> Report {
        let counts = self.counts.get(PRIVATE_SESSION_KEY).copied().unwrap_or_default();
        let sum = |sum: u64, n: &u64| sum.saturating_add(*n);
        let read = counts.bytes.iter().fold(0, sum);
        let printable =
            counts.bytes.iter().zip(0..=u8::MAX).filter(|(_, byte)| is_printable(*byte));
        let printable = printable.map(|(n, _)| n).fold(0, sum);
        let rows = [
            ("blocks", counts.blocks),
            ("bytes", counts.length),
            ("shortest, bytes", counts.shortest.into()),
            ("mean, bytes", counts.length.checked_div(counts.blocks).unwrap_or(0)),
            ("longest, bytes", counts.longest.into()),
            (
                "printable, per thousand",
                printable.saturating_mul(1000).checked_div(read).unwrap_or(0),
            ),
            ("entropy, thousandths of a bit per byte", entropy_millibits(&counts.bytes, read)),
        ];
        Report::from_rows(rows)
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.counts)
    }
}

impl ByteCounts {
    fn add_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.shortest = if self.blocks == 0 { length } else { self.shortest.min(length) };
        self.longest = self.longest.max(length);
        self.blocks = self.blocks.wrapping_add(1);
        self.length = self.length.wrapping_add(length.into());
        for byte in bytes {
            let counts = &mut self.bytes[usize::from(*byte)];
            *counts = counts.wrapping_add(1);
        }
    }
}

const fn is_printable(byte: u8) -> bool {
    byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Returns the Shannon entropy per byte, in thousandths of a bit. `bytes` is the number of
/// occurrences of each byte value, and `read` is their sum.
fn entropy_millibits(bytes: &[u64; 256], read: u64) -> u64 {
    let share = |n: &u64| *n as f64 / read as f64;
    let shares = bytes.iter().filter(|n| **n > 0).map(share);
    let bits: f64 = shares.map(|share| -share * share.log2()).sum();
    (bits * 1000.0).round().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fragment, Frame, Node, answer_frames, report_rows, run_fragments};

    fn report_values(frames: &[Frame]) -> Vec<u64> {
        report_rows(&INSPECT, &[], frames).into_iter().map(|(_, n)| n).collect()
    }

    #[test]
    fn report_has_counts_lengths_and_entropy() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(report_values(&[Frame::new(1, &every)]), [1, 256, 256, 256, 256, 382, 8000]);
        let same = [Frame::new(1, b"aaaa"), Frame::new(1, b"aa"), Frame::new(1, &[])];
        assert_eq!(report_values(&same), [3, 6, 0, 2, 4, 1000, 0]);
        assert_eq!(report_values(&[]), [0; 7]);
    }

    #[test]
    fn holes_and_descriptions_are_not_inspected() {
        let pieces = [
            Fragment::description(1),
            Fragment::new(1, b"aaaa"),
            Fragment::hole(1, 1000),
            Fragment::new(1, b"aa").with_flags(BlockFlags::SESSION_END),
        ];
        let mut node = Node::new(&INSPECT, &[]).unwrap();
        run_fragments(&mut node, &pieces);
        let values: Vec<u64> = node.report().rows.into_iter().map(|(_, n)| n).collect();
        assert_eq!(values, [2, 6, 2, 3, 4, 1000, 0]);
        assert_eq!(node.counts.counters, [1000], "lost bytes");
    }

    #[test]
    fn block_stays_unchanged() {
        let found = answer_frames(&INSPECT, &[], &[Frame::udp(1, 2, b"abc")]);
        assert_eq!((found[0].class, found[0].view, found[0].length), (Class::YES, 0, 45));
    }
}
