//! Overlap policies: rules that select the bytes of overlapping fragments.
//!
//! In: pieces in order of arrival. Out: disjoint segments, each of one piece. Operating systems
//! differ, and attackers exploit the difference: an observer must reassemble like the receiver (J.
//! Novak, "Target-Based Fragmentation Reassembly", 2005). A policy compares a received piece with
//! an arriving one by their positions; a trimmed piece is compared by its remainder, as in the
//! systems' queues.

/// The rule for overlapping fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FragmentPolicy {
    /// The first to arrive.
    First,
    /// The last to arrive.
    Last,
    /// The fragment with the lower start; at equal starts the first to arrive.
    Bsd,
    /// The fragment with the lower start; at equal starts the last to arrive. Linux up to 4.18.
    Linux,
    /// The first to arrive, unless the new one begins before it and ends after it.
    Windows,
    /// The first to arrive, unless the new one begins before and does not end before it.
    Solaris,
    /// None: the datagram is dropped. Linux since 4.19; for IPv6 everywhere (RFC 5722).
    Drop,
}

/// The byte range of a datagram taken from one fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OwnedRange {
    /// Offset of the first byte.
    pub(super) from: u32,
    /// Offset past the last byte.
    pub(super) to: u32,
    /// Index of the piece, by arrival.
    pub(super) piece: usize,
}

impl FragmentPolicy {
    /// Keywords in a request, in variant order.
    pub(super) const WORDS: &'static [&'static str] =
        &["first", "last", "bsd", "linux", "windows", "solaris", "drop"];

    /// Returns the policy with this keyword; `None` if unknown.
    pub(super) fn of(word: &str) -> Option<Self> {
        use FragmentPolicy::{Bsd, Drop, First, Last, Linux, Solaris, Windows};
        let all = [First, Last, Bsd, Linux, Windows, Solaris, Drop];
        all.into_iter()
            .zip(Self::WORDS)
            .find(|(_, known)| **known == word)
            .map(|(policy, _)| policy)
    }

    /// Returns true if the received segment wins over the arriving one.
    const fn keeps(self, here: &OwnedRange, comes: &OwnedRange) -> bool {
        match self {
            Self::First | Self::Drop => true,
            Self::Last => false,
            Self::Bsd => here.from <= comes.from,
            Self::Linux => here.from < comes.from,
            Self::Windows => !(comes.from < here.from && here.to < comes.to),
            Self::Solaris => !(comes.from < here.from && here.to <= comes.to),
        }
    }

    /// Resolves overlaps; `pieces` are start and end offsets in order of arrival.
    pub(super) fn settle(self, pieces: impl Iterator<Item = (u32, u32)>) -> Vec<OwnedRange> {
        let mut settled: Vec<OwnedRange> = Vec::new();
        for (piece, (from, to)) in pieces.enumerate() {
            let comes = OwnedRange { from, to, piece };
            let first = settled.partition_point(|here| here.to <= from);
            let behind = settled.partition_point(|here| here.from < to).max(first);
            let met = settled.get(first..behind).unwrap_or_default();
            let now = self.divide(met, comes);
            settled.splice(first..behind, now);
        }
        settled
    }

    /// Splits `comes` and the segments that it overlaps.
    fn divide(self, met: &[OwnedRange], comes: OwnedRange) -> Vec<OwnedRange> {
        let mut now = Vec::with_capacity(2 * met.len() + 1);
        let (mut at, mut rest) = (comes.from, None);
        for here in met {
            if self.keeps(here, &comes) {
                now.push(OwnedRange { from: at, to: here.from, ..comes });
                now.push(*here);
                at = here.to;
            } else {
                now.push(OwnedRange { to: comes.from, ..*here });
                rest = Some(OwnedRange { from: comes.to, ..*here });
            }
        }
        now.push(OwnedRange { from: at, ..comes });
        now.extend(rest);
        now.retain(|segment| segment.from < segment.to);
        now
    }
}
