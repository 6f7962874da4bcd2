//! Overlap policies: rules that select the bytes of overlapping fragments.
//!
//! Input: fragments in order of arrival. Output: disjoint ranges, each belonging to one fragment.
//! Operating systems use different policies, and attackers exploit the difference, so an observer
//! must reassemble like the receiver (J. Novak, "Target-Based Fragmentation Reassembly", 2005). A
//! policy compares the positions of a received and a newly arrived fragment. If a fragment has been
//! trimmed, only the remainder is compared, as in the queues of those systems.

/// The rule that decides which of two overlapping fragments supplies the bytes of the overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FragmentPolicy {
    /// The fragment that arrived first supplies the bytes of an overlap.
    First,
    /// The fragment that arrived last supplies the bytes of an overlap.
    Last,
    /// The fragment with the lower start offset supplies the bytes of an overlap; at equal offsets,
    /// the one that arrived first.
    Bsd,
    /// The fragment with the lower start offset supplies the bytes of an overlap; at equal offsets,
    /// the one that arrived last. Used by Linux up to 4.18.
    Linux,
    /// The fragment that arrived first supplies the bytes of an overlap, unless the new fragment
    /// begins before it and ends after it.
    Windows,
    /// The fragment that arrived first supplies the bytes of an overlap, unless the new fragment
    /// begins before it and does not end before it.
    Solaris,
    /// If fragments overlap, their datagram is dropped. Used by Linux since 4.19 and, for IPv6, by
    /// all systems (RFC 5722).
    Drop,
}

/// A byte range of a datagram, and the fragment that supplies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FragmentRange {
    /// Offset in the datagram of the first byte of the range.
    pub(super) start: u32,
    /// Offset in the datagram past the last byte of the range.
    pub(super) end: u32,
    /// Index of the fragment that supplies the range, in order of arrival.
    pub(super) fragment: usize,
}

impl FragmentPolicy {
    /// Keywords of the overlap policies, as written in a request, in the order of the variants.
    pub(super) const KEYWORDS: &'static [&'static str] =
        &["first", "last", "bsd", "linux", "windows", "solaris", "drop"];

    /// Returns the overlap policy with this keyword, or `None` if there is no such policy.
    pub(super) fn from_keyword(word: &str) -> Option<Self> {
        use FragmentPolicy::{Bsd, Drop, First, Last, Linux, Solaris, Windows};
        let all = [First, Last, Bsd, Linux, Windows, Solaris, Drop];
        all.into_iter()
            .zip(Self::KEYWORDS)
            .find(|(_, known)| **known == word)
            .map(|(policy, _)| policy)
    }

    /// Returns true if, under this policy, the old fragment supplies the bytes of its overlap with
    /// the new one.
    const fn keeps_old_bytes(self, old: &FragmentRange, new: &FragmentRange) -> bool {
        match self {
            Self::First | Self::Drop => true,
            Self::Last => false,
            Self::Bsd => old.start <= new.start,
            Self::Linux => old.start < new.start,
            Self::Windows => !(new.start < old.start && old.end < new.end),
            Self::Solaris => !(new.start < old.start && old.end <= new.end),
        }
    }

    /// Resolves the overlaps between fragments. The fragments are given by their start and end
    /// offsets, in order of arrival. Returns disjoint ranges, sorted by offset.
    pub(super) fn resolve_overlaps(
        self,
        pieces: impl Iterator<Item = (u32, u32)>,
    ) -> Vec<FragmentRange> {
        let mut settled: Vec<FragmentRange> = Vec::new();
        for (piece, (from, to)) in pieces.enumerate() {
            let new = FragmentRange { start: from, end: to, fragment: piece };
            let first = settled.partition_point(|old| old.end <= from);
            let behind = settled.partition_point(|old| old.start < to).max(first);
            let met = settled.get(first..behind).unwrap_or_default();
            let now = self.split_ranges(met, new);
            settled.splice(first..behind, now);
        }
        settled
    }

    /// Splits `new` and the ranges in `met` into disjoint ranges. Every range in `met` overlaps
    /// `new`. This policy decides which fragment supplies the bytes of an overlap.
    fn split_ranges(self, met: &[FragmentRange], new: FragmentRange) -> Vec<FragmentRange> {
        let mut now = Vec::with_capacity(2 * met.len() + 1);
        let (mut at, mut rest) = (new.start, None);
        for old in met {
            if self.keeps_old_bytes(old, &new) {
                now.push(FragmentRange { start: at, end: old.start, ..new });
                now.push(*old);
                at = old.end;
            } else {
                now.push(FragmentRange { end: new.start, ..*old });
                rest = Some(FragmentRange { start: new.end, ..*old });
            }
        }
        now.push(FragmentRange { start: at, ..new });
        now.extend(rest);
        now.retain(|segment| segment.start < segment.end);
        now
    }
}
