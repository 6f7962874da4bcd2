//! Overlap policies: rules that select the bytes where a segment overlaps held segments.
//!
//! Emitted bytes cannot be changed, so a policy applies to held bytes only. Novak and Sturges
//! measured the rules ("Target-Based TCP Stream Reassembly", 2007); Snort (`stream_tcp`) and
//! Suricata (`host-os-policy`) implement them. The new segment wins the overlap with an old one
//!
//! - `first`: never;
//! - `last`: always;
//! - `bsd` and `windows`: if it begins before the old one;
//! - `linux`: if it begins before the old one, or begins with the old one and ends after it;
//! - `solaris`: if it ends after the old one, or ends with the old one and does not begin after it.
//!
//! Suricata applies its rules only if the bytes differ. For equal bytes every rule produces the
//! same stream.

use super::connection::{StreamSide, is_sequence_after, sequence_distance};
use super::outcomes::{DUPLICATES, OVERLAPPED};
use super::reassembly::SideOutput;
use crate::contract::{Block, HeldList};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The rule that decides which of two overlapping segments supplies the bytes of the overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentPolicy {
    First,
    Last,
    Linux,
    /// The rule of BSD and Windows: the segment that begins earlier supplies the bytes of an
    /// overlap. If both begin at the same position, the old one does.
    Bsd,
    Solaris,
}

/// A half-open range of sequence numbers.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub(super) struct SequenceSpan {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl SegmentPolicy {
    pub(super) const POLICY_NAMES: &'static [&'static str] =
        &["first", "last", "linux", "windows", "bsd", "solaris"];

    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "last" => Self::Last,
            "linux" => Self::Linux,
            "windows" | "bsd" => Self::Bsd,
            "solaris" => Self::Solaris,
            _ => Self::First,
        }
    }

    /// Returns true if, under this policy, `new` supplies the bytes of its overlap with `old`.
    const fn new_wins(self, new: SequenceSpan, old: SequenceSpan) -> bool {
        let before = is_sequence_after(old.from, new.from);
        let behind = is_sequence_after(new.to, old.to);
        match self {
            Self::First => false,
            Self::Last => true,
            Self::Bsd => before,
            Self::Linux => before || (new.from == old.from && behind),
            Self::Solaris => behind || (new.to == old.to && !is_sequence_after(new.from, old.from)),
        }
    }
}

impl SequenceSpan {
    /// Returns the number of bytes that this range shares with another.
    pub(super) const fn shared_byte_count(self, other: Self) -> u32 {
        if !self.overlaps(other) {
            return 0;
        }
        let from = if is_sequence_after(other.from, self.from) { other.from } else { self.from };
        let to = if is_sequence_after(self.to, other.to) { other.to } else { self.to };
        to.wrapping_sub(from)
    }

    const fn overlaps(self, other: Self) -> bool {
        is_sequence_after(self.to, other.from) && is_sequence_after(other.to, self.from)
    }
}

/// Returns the range of sequence numbers that a held block covers.
pub(super) fn held_span(key: u32, block: &Block<'_>) -> SequenceSpan {
    SequenceSpan { from: key, to: key.wrapping_add(block.length()) }
}

impl StreamSide {
    /// Trims held segments that overlap `new`, if the policy prefers the bytes of `new`. Drops held
    /// segments that `new` then covers completely.
    pub(super) fn trim_held_segments(
        &mut self,
        output: &mut SideOutput<'_, '_, '_>,
        new: SequenceSpan,
    ) {
        let policy = output.rules.policy;
        if policy == SegmentPolicy::First {
            return;
        }
        let loses = |(_, (key, block)): &(usize, (u32, Block<'_>))| {
            let old = held_span(*key, block);
            new.overlaps(old) && policy.new_wins(new, old)
        };
        let held = output
            .cx
            .held_blocks(&self.held)
            .take_while(|(key, _)| is_sequence_after(new.to, *key));
        let mut losers: Vec<_> = held.enumerate().filter(loses).collect();
        let mut list = self.held;
        // In reverse order, so that indices of earlier entries stay valid.
        while let Some((before, (key, block))) = losers.pop() {
            let old = held_span(key, &block);
            self.held_bytes = self.held_bytes.saturating_sub(block.length());
            let (left, right) =
                (sequence_distance(old.from, new.from), sequence_distance(new.to, old.to));
            if left > 0 {
                let piece = block.narrow(0, left.unsigned_abs());
                self.hold_piece(output, &mut list, &piece, old.from);
            }
            if right > 0 {
                let right = right.unsigned_abs();
                let piece = block.narrow(block.length().saturating_sub(right), right);
                self.hold_piece(output, &mut list, &piece, new.to);
            }
            output.cx.drop_held_block(&mut list, u32::try_from(before).unwrap_or(0), OVERLAPPED);
        }
        self.held = list;
    }

    /// Holds the parts of a new block that no held block covers. If there is no such part, consumes
    /// the block as a duplicate.
    pub(super) fn hold_uncovered_parts<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        came: &Block<'a>,
        new: SequenceSpan,
    ) {
        let mut free = Vec::new();
        let mut from = new.from;
        let held = output
            .cx
            .held_blocks(&self.held)
            .take_while(|(key, _)| is_sequence_after(new.to, *key));
        for (key, block) in held {
            let old = held_span(key, &block);
            if !new.overlaps(old) {
                continue;
            }
            if is_sequence_after(old.from, from) {
                free.push(SequenceSpan { from, to: old.from });
            }
            from = old.to;
        }
        if is_sequence_after(new.to, from) {
            free.push(SequenceSpan { from, to: new.to });
        }
        if free.is_empty() {
            output.cx.count(DUPLICATES, 1);
            return output.cx.consume(came);
        }
        let mut list = self.held;
        for (number, part) in free.into_iter().enumerate() {
            let skipped = part.from.wrapping_sub(new.from);
            let piece = came.narrow(skipped, part.to.wrapping_sub(part.from));
            match number {
                0 if output.cx.hold(&mut list, &piece, part.from) => {
                    self.held_bytes = self.held_bytes.saturating_add(piece.length());
                }
                0 => break,
                _ => self.hold_piece(output, &mut list, &piece, part.from),
            }
        }
        self.held = list;
    }

    /// Holds a part of an incoming block. The part counts as a new block that this filter has
    /// created.
    fn hold_piece<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        list: &mut HeldList,
        piece: &Block<'a>,
        key: u32,
    ) {
        if output.cx.hold_created_block(list, piece, key) {
            self.held_bytes = self.held_bytes.saturating_add(piece.length());
        }
    }
}
