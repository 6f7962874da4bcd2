//! Whose bytes count where fragments overlap: the rules of those who receive them.
//!
//! In: pieces in order of arrival. Out: disjoint segments, each of one piece. Operating systems
//! decide differently, and who sends overlapping fragments on purpose counts on that: an observer
//! must put them together as the receiver does (J. Novak, "Target-Based Fragmentation Reassembly",
//! 2005). A rule weighs one piece that is here against one that comes, by where they lie; a piece
//! that others have trimmed is weighed by what is left of it, as in the queues of the systems.

/// Who wins where fragments overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// What came first.
    First,
    /// What came last.
    Last,
    /// What begins first; at the same place, what came first.
    Bsd,
    /// What begins first; at the same place, what came last. Linux up to 4.18.
    Linux,
    /// What came first, unless what comes begins before it and ends behind it.
    Windows,
    /// What came first, unless what comes begins before it and does not end before it.
    Solaris,
    /// Nobody: the datagram is dropped. Linux since 4.19; everybody for IPv6 (RFC 5722).
    Drop,
}

/// Bytes of a datagram that one piece gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// The first byte.
    pub(super) from: u32,
    /// One past the last.
    pub(super) to: u32,
    /// The number of the piece, by arrival.
    pub(super) piece: usize,
}

impl Policy {
    /// The words in a request, in the order of the variants.
    pub(super) const WORDS: &'static [&'static str] =
        &["first", "last", "bsd", "linux", "windows", "solaris", "drop"];

    /// The policy that this word stands for.
    pub(super) fn of(word: &str) -> Option<Self> {
        use Policy::{Bsd, Drop, First, Last, Linux, Solaris, Windows};
        let all = [First, Last, Bsd, Linux, Windows, Solaris, Drop];
        all.into_iter()
            .zip(Self::WORDS)
            .find(|(_, known)| **known == word)
            .map(|(policy, _)| policy)
    }

    /// Whether what is here stays, where what comes overlaps it.
    const fn keeps(self, here: &Segment, comes: &Segment) -> bool {
        match self {
            Self::First | Self::Drop => true,
            Self::Last => false,
            Self::Bsd => here.from <= comes.from,
            Self::Linux => here.from < comes.from,
            Self::Windows => !(comes.from < here.from && here.to < comes.to),
            Self::Solaris => !(comes.from < here.from && here.to <= comes.to),
        }
    }

    /// Settles who gives which bytes; `pieces` are first byte and one past the last, in order of
    /// arrival.
    pub(super) fn settle(self, pieces: impl Iterator<Item = (u32, u32)>) -> Vec<Segment> {
        let mut settled: Vec<Segment> = Vec::new();
        for (piece, (from, to)) in pieces.enumerate() {
            let comes = Segment { from, to, piece };
            let first = settled.partition_point(|here| here.to <= from);
            let behind = settled.partition_point(|here| here.from < to).max(first);
            let met = settled.get(first..behind).unwrap_or_default();
            let now = self.divide(met, comes);
            settled.splice(first..behind, now);
        }
        settled
    }

    /// What becomes of segments that `comes` meets, and of itself.
    fn divide(self, met: &[Segment], comes: Segment) -> Vec<Segment> {
        let mut now = Vec::with_capacity(2 * met.len() + 1);
        let (mut at, mut rest) = (comes.from, None);
        for here in met {
            if self.keeps(here, &comes) {
                now.push(Segment { from: at, to: here.from, ..comes });
                now.push(*here);
                at = here.to;
            } else {
                now.push(Segment { to: comes.from, ..*here });
                rest = Some(Segment { from: comes.to, ..*here });
            }
        }
        now.push(Segment { from: at, ..comes });
        now.extend(rest);
        now.retain(|segment| segment.from < segment.to);
        now
    }
}
