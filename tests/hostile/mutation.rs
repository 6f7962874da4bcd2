//! Mutations that are applied to a capture before it is replayed.

use std::fmt;
use testkit::Random;
use wire::capture::{ReadOutcome, Reader};

/// A change to the bytes of a capture file before it is replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mutation {
    /// The capture is not changed.
    Unchanged,
    /// Truncation to this many bytes.
    Truncate(usize),
    /// Bits flipped at positions derived from this seed.
    FlipBits(u64),
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged => f.write_str("untouched"),
            Self::Truncate(length) => write!(f, "cut to {length} bytes"),
            Self::FlipBits(seed) => write!(f, "bits flipped by seed {seed}"),
        }
    }
}

impl Mutation {
    /// Returns the bytes of a capture file after the mutation.
    pub(crate) fn apply(self, capture: &[u8]) -> Vec<u8> {
        let mut bytes = capture.to_vec();
        match self {
            Self::Unchanged => {}
            Self::Truncate(length) => bytes.truncate(length),
            Self::FlipBits(seed) => {
                let mut random = Random::new(seed);
                // One bit or a few; in half of the cases within the file's headers.
                let flips = 1 + random.below(16) as usize;
                let end = if random.one_in(2) { bytes.len().min(256) } else { bytes.len() };
                random.flip_bits(&mut bytes[..end], flips);
            }
        }
        bytes
    }
}

/// Number of mutations of each kind per capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MutationCounts {
    /// Maximum number of truncations. With `usize::MAX`, captures are truncated at the start of
    /// every record and within every record.
    pub(crate) truncations: usize,
    /// Number of copies of the capture in which bits are flipped.
    pub(crate) flips: usize,
}

/// Returns the mutations of a capture: truncations at and within its records, and flipped bits.
pub(crate) fn capture_mutations(
    capture: &[u8],
    counts: MutationCounts,
    random: &mut Random,
) -> Vec<Mutation> {
    let mut lengths = record_offsets(capture);
    if lengths.len() > counts.truncations {
        random.shuffle(&mut lengths);
        lengths.truncate(counts.truncations);
    }
    let lengths = lengths.into_iter().map(Mutation::Truncate);
    let flips: Vec<Mutation> =
        (0..counts.flips).map(|_| Mutation::FlipBits(random.next_u64())).collect();
    lengths.chain(flips).collect()
}

/// Returns the offsets in a capture at which it is truncated: the start of each record, and a
/// position within each record.
fn record_offsets(capture: &[u8]) -> Vec<usize> {
    let mut reader = Reader::new();
    let mut at = 0;
    let mut lengths = vec![0];
    while let Some(rest) = capture.get(at..) {
        let next = match reader.next(rest) {
            ReadOutcome::Packet(packet) => at + packet.consumed,
            ReadOutcome::NeedMore { consumed, wanted } if consumed > 0 && wanted <= rest.len() => {
                at + consumed
            }
            ReadOutcome::NeedMore { .. } | ReadOutcome::Error(_) => break,
        };
        lengths.extend([at + (next - at) / 2, next]);
        at = next;
    }
    lengths.retain(|length| *length < capture.len());
    lengths.dedup();
    lengths
}
