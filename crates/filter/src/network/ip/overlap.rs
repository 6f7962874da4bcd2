//! Overlap policies: rules that select the bytes of overlapping fragments.
//!
//! Input: fragments in order of arrival. Output: disjoint ranges, each belonging to one fragment.
//! Operating systems differ, and attackers exploit the difference, so an observer must reassemble
//! like the receiver (J. Novak, "Target-Based Fragmentation Reassembly", 2005). A policy compares
//! the positions of a received and a newly arrived fragment. A fragment that was trimmed is
//! compared by its remainder, as those systems do in their queues.

/// The rule that decides which of two overlapping fragments supplies the bytes of the overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FragmentPolicy {
    /// The fragment that arrived first.
    First,
    /// The fragment that arrived last.
    Last,
    /// The fragment with the lower start offset; at equal offsets the one that arrived first.
    Bsd,
    /// The fragment with the lower start offset; at equal offsets the one that arrived last. Linux
    /// up to 4.18.
    Linux,
    /// The fragment that arrived first, unless the new fragment begins before it and ends after it.
    Windows,
    /// The fragment that arrived first, unless the new fragment begins before it and does not end
    /// before it.
    Solaris,
    /// Neither: the datagram is dropped. Linux since 4.19; for IPv6 all systems (RFC 5722).
    Drop,
}

/// A byte range of a datagram, and the fragment that supplies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OwnedRange {
    /// Offset of the first byte.
    pub(super) from: u32,
    /// Offset past the last byte.
    pub(super) to: u32,
    /// Index of the fragment in order of arrival.
    pub(super) piece: usize,
}

impl FragmentPolicy {
    /// Keywords of the policies in a request, in the order of the variants.
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

    /// Returns true if the old fragment supplies the bytes of its overlap with the new one.
    const fn keeps_old(self, old: &OwnedRange, new: &OwnedRange) -> bool {
        match self {
            Self::First | Self::Drop => true,
            Self::Last => false,
            Self::Bsd => old.from <= new.from,
            Self::Linux => old.from < new.from,
            Self::Windows => !(new.from < old.from && old.to < new.to),
            Self::Solaris => !(new.from < old.from && old.to <= new.to),
        }
    }

    /// Resolves the overlaps between fragments, given as start and end offsets in order of arrival.
    /// Returns disjoint ranges, sorted by offset.
    pub(super) fn resolve(self, pieces: impl Iterator<Item = (u32, u32)>) -> Vec<OwnedRange> {
        let mut settled: Vec<OwnedRange> = Vec::new();
        for (piece, (from, to)) in pieces.enumerate() {
            let new = OwnedRange { from, to, piece };
            let first = settled.partition_point(|old| old.to <= from);
            let behind = settled.partition_point(|old| old.from < to).max(first);
            let met = settled.get(first..behind).unwrap_or_default();
            let now = self.split_ranges(met, new);
            settled.splice(first..behind, now);
        }
        settled
    }

    /// Splits `new`, and the ranges `met` that it overlaps, into disjoint ranges.
    fn split_ranges(self, met: &[OwnedRange], new: OwnedRange) -> Vec<OwnedRange> {
        let mut now = Vec::with_capacity(2 * met.len() + 1);
        let (mut at, mut rest) = (new.from, None);
        for old in met {
            if self.keeps_old(old, &new) {
                now.push(OwnedRange { from: at, to: old.from, ..new });
                now.push(*old);
                at = old.to;
            } else {
                now.push(OwnedRange { to: new.from, ..*old });
                rest = Some(OwnedRange { from: new.to, ..*old });
            }
        }
        now.push(OwnedRange { from: at, ..new });
        now.extend(rest);
        now.retain(|segment| segment.from < segment.to);
        now
    }
}
